//! evictd sees node pressure the moment the kernel does, decides as the kubelet would, and evicts the right pod
//! before the OOM killer picks a wrong one.
//!
//! Data flows one way: a kernel counter trips a wire ([`kernel`]), the [`reflex`] reads fresh values ([`observe`],
//! [`pods`]), asks the [`engine`], and kills ([`evict`]); all that may take its time comes afterwards.

pub mod check;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod cri;
pub mod daemon;
pub mod engine;
pub mod evict;
pub mod graduated;
pub mod kernel;
pub mod observe;
pub mod pods;
pub mod policy;
pub mod reflex;
pub mod rounds;
pub mod sys;
pub mod telemetry;
