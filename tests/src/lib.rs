//! What the integration tests, the demo and the benchmarks share: cgroups of their own and processes inside them.

pub mod agent;
pub mod apiserver;
pub mod bpffs;
pub mod cgroup;
pub mod chaos;
pub mod chart;
pub mod cluster_node;
pub mod containerd;
pub mod counting;
pub mod cpus;
pub mod deploy;
pub mod disk;
pub mod embedded;
pub mod engine;
pub mod forker;
pub mod heard;
pub mod held_in_exit;
pub mod hog;
pub mod interrupt;
pub mod mapped;
pub mod mounts;
pub mod node;
pub mod policies;
pub mod policy_fixture;
pub mod prelude;
pub mod reaped;
pub mod runtime;
pub mod sampling;
pub mod scrape;
pub mod scripted;
mod serving;
pub mod skip;
pub mod staged;
pub mod stalled;
pub mod table;
pub mod talker;
pub mod text;
pub mod tls;
pub mod tracefs;
pub mod vectors;
pub mod wait;
pub mod watch_fixture;
pub mod workload;

/// Creates a runtime that runs futures on the thread that waits for them.
pub fn current_thread() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()
}
