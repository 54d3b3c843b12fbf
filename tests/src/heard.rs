//! What a process says, read as it comes.

use std::{
    io::{BufRead as _, BufReader, Read},
    thread::JoinHandle,
};

use crate::prelude::*;

/// All that a process has said so far. With `EVICTD_VERBOSE` set it is shown as well.
pub struct Heard {
    text: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Heard {
    /// Reads to the end, or the process would block on a full pipe.
    pub fn from(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<String>>::default();
        let kept = Arc::clone(&text);
        let verbose = std::env::var_os("EVICTD_VERBOSE").is_some();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if verbose {
                    eprintln!("{line}");
                }
                let mut text = kept.lock();
                *text += &line;
                text.push('\n');
            }
        });
        Self { text, reader }
    }

    /// Nothing more is read until this is dropped, and a pipe takes 64 KiB.
    pub fn lock(&self) -> MutexGuard<'_, String> {
        self.text.lock()
    }

    /// Waits until it has these words; false when it comes to its end without them, or not in time.
    pub fn has(&self, words: &str, timeout: Duration) -> bool {
        let is_over = || self.reader.is_finished();
        until(timeout, || is_over() || self.lock().contains(words));
        self.lock().contains(words)
    }
}
