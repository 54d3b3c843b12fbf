//! Everything that touches eBPF, cgroupfs, procfs, statfs and signals.
//!
//! Must not know: tokio, kube, policy, config.

pub mod bpf;
pub mod cgroup;
pub mod fs;
pub(crate) mod kernfile;
pub mod memory_scope;
pub mod pods;
pub mod proc;
pub mod trigger;
