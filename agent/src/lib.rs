//! evictd sees node pressure the moment the kernel does, decides as the kubelet would, and evicts the right pod
//! before the OOM killer picks a wrong one. This crate must not decide, and must not know paths of the API or files of the
//! kernel, but for those that `check` and `top` show.
//!
//! It connects the others. The [`daemon`] runs the loops of `fastpath` and `manager`, which decide by `engine`
//! and kill through `node`, and has `store` and `kube` record and report each eviction. [`telemetry`] serves metrics
//! and probes, [`cli`] has the subcommands, [`check`] what `evictd check` finds. docs/architecture.md has the picture.

pub mod check;
pub mod cli;
pub mod daemon;
pub mod telemetry;
