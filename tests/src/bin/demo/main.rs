//! `cargo xtask demo`: a cgroup plays a node; a hog runs once against the kernel's OOM killer alone and then against
//! evictd. Ends with 0 only if evictd has evicted the right pod, nobody else died, and the OOM killer was not needed.

mod chart;
mod node;
mod story;
mod timeline;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::Parser;
use evictd::config::Quantity;

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

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C or SIGTERM came: every loop asks, and what was made is removed on the way out.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let handler: extern "C" fn(libc::c_int) = note_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    match story::tell(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(2)
        }
    }
}
