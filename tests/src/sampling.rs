//! A thread that looks at something again and again.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::JoinHandle,
};

use evictd_node::cgroup::realtime::acquire_fastpath_fifo;

use crate::prelude::*;

/// Looks at fixed intervals until it is finished.
pub struct Sampling<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Sampling<T> {
    /// Starts with what was `seen` so far, to which each look adds. The thread itself allocates nothing.
    pub fn start(
        interval: Duration,
        mut seen: T,
        mut look: impl FnMut(&mut T) -> Result<()> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // Without the priority the looks are less regular, and that is all.
            let _ = acquire_fastpath_fifo();
            while !stopped.load(Ordering::Relaxed) {
                look(&mut seen)?;
                std::thread::sleep(interval);
            }
            Ok(seen)
        });
        Self { stop, thread }
    }

    /// All that was seen.
    pub fn finish(self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join().ok();
        joined.context("the sampling thread has panicked")?
    }
}
