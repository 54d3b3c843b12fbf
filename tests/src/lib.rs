//! What the integration tests, the demo and the benchmarks share: cgroups of their own and processes inside them.

pub mod agent;
pub mod apiserver;
pub mod cast;
pub mod cgroup;
pub mod containerd;
pub mod cpus;
pub mod deploy;
pub mod disk;
pub mod embedded;
pub mod engine;
pub mod following;
pub mod forker;
pub mod hog;
pub mod interrupt;
pub mod kept;
pub mod member;
pub mod node;
pub mod patience;
pub mod played;
pub mod runtime;
pub mod scrape;
pub mod scripted;
mod serving;
pub mod skip;
pub mod tls;
pub mod tracefs;
pub mod vectors;
