//! Everything that touches eBPF, cgroupfs, procfs, statfs and signals. It must not know tokio, the API server, policies or
//! the configuration.

pub mod bpf;
pub mod cgroup;
pub mod fs;
pub(crate) mod kernfile;
pub mod memory_scope;
pub mod pods;
pub mod proc;
pub mod trigger;
