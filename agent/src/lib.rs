//! evictd sees node pressure the moment the kernel does, decides as the kubelet would, and evicts the right pod
//! before the OOM killer picks a wrong one.
//!
//! This crate is the composition of the others: `node` sees a counter cross a limit, `fastpath` and `manager` ask
//! `engine` and kill, and the [`daemon`] lets `store` and `kube` keep and report what was done. docs/architecture.md
//! has the picture.

pub mod check;
pub mod cli;
pub mod daemon;
pub mod telemetry;
