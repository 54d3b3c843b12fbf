//! `cargo xtask demo`: a cgroup plays a node; a hog runs once against the kernel's OOM killer alone and then against
//! evictd. Ends with 0 only if evictd has evicted the right pod, no other pod died, and the OOM killer was not needed.

mod story;
mod timeline;

use std::process::ExitCode;

use clap::Parser;
use evictd_engine::model::quantity::Quantity;

/// Shows evictd at work on this machine, without a cluster.
#[derive(Parser, Clone)]
#[command(name = "cargo xtask demo")]
pub struct Arguments {
    /// Memory of the node that is played
    #[arg(long, default_value = "512Mi")]
    size: Quantity,
    /// evictionHard[memory.available]
    #[arg(long, default_value = "100Mi")]
    threshold: Quantity,
    /// MiB per second that the hog allocates; 0: as fast as the machine can
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// How often evictd has to win
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// memoryHook: auto, fexit, kprobe, tracepoint, eventfd or sampler
    #[arg(long, default_value = "auto")]
    hook: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    evictd_tests::interrupt::catch();
    match story::tell(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(2)
        }
    }
}
