//! evictd sees node pressure the moment the kernel does, decides as the kubelet would, and evicts the right pod
//! before the OOM killer picks a wrong one.
//!
//! Data flows one way: a kernel counter trips a wire ([`kernel`]), the [`reflex`] reads fresh values ([`observe`],
//! [`pods`]), asks the [`engine`], and kills ([`evict`]); all that may take its time comes afterwards.

pub mod check;
pub mod cli;
pub mod daemon;
pub mod telemetry;
