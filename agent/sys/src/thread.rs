//! The end of threads.

use std::{
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Waits for a thread's end, for so long at most: a call into the kernel may not return. Whether it has ended.
pub fn has_ended<T>(thread: &JoinHandle<T>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
