//! Memory over time, for the picture in the terminal.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use evictd_node::cgroup::memory::MemoryCgroup;

/// Memory over time: one number every half millisecond.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Duration, u64)>>,
}

impl Recorder {
    /// Starts to record the usage of a cgroup directory.
    pub fn start(cgroup: &Path) -> io::Result<Self> {
        let memory = MemoryCgroup::open(cgroup).map_err(io::Error::other)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut samples = Vec::with_capacity(1 << 16);
            while !stopped.load(Ordering::Relaxed) && samples.len() < samples.capacity() {
                if let Ok(usage) = memory.usage() {
                    samples.push((start.elapsed(), usage));
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            samples
        });
        Ok(Self { stop, thread })
    }

    pub fn finish(self) -> Vec<(Duration, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
