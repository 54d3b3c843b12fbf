//! The end of threads.

use std::{
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Waits for a thread's end, for `timeout` at most: a call into the kernel may not return. Whether it has ended.
pub fn wait_for_end<T>(thread: &JoinHandle<T>, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
