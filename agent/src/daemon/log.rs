//! The log of the daemon. A thread writes its lines: a reader that does not read costs lines, and holds up no other
//! thread.

use std::{
    fs::File,
    io::{self, Write},
    mem,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder};
use tracing_subscriber::fmt::MakeWriter;

/// The name of the thread.
const THREAD: &str = "log";
/// Lines that may wait. With [`LONGEST`] they take 8 MiB at most; usual lines take 200 KiB.
const LINES: usize = 1024;
/// Length up to which a line is kept, in bytes.
const LONGEST: usize = 8 << 10;
/// How long the end of the process waits for lines that are not written: once for those before the last words, and
/// once for these.
const PATIENCE: Duration = Duration::from_millis(500);

/// Queue in which the threads of the daemon leave their lines.
#[derive(Debug)]
pub struct Log {
    queue: NonBlocking,
    /// Lines handed to the queue, those that found no place there included.
    handed: AtomicUsize,
    /// Lines that the thread has taken and is done with.
    done: Arc<AtomicUsize>,
    /// Lines that it could not write.
    failed: Arc<AtomicUsize>,
    /// The process ends: only the last words are taken.
    is_closed: AtomicBool,
}

impl Log {
    /// Starts the thread that writes to standard error.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn to_stderr() -> io::Result<Arc<Self>> {
        // Not by `std::io::stderr`, whose lock the thread would hold for as long as the reader hangs.
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::to(stderr.into()))
    }

    fn to(file: File) -> Arc<Self> {
        let (done, failed) = (Arc::<AtomicUsize>::default(), Arc::default());
        let writer = LineWriter {
            file,
            done: Arc::clone(&done),
            failed: Arc::clone(&failed),
        };
        let queue = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(LINES)
            .thread_name(THREAD);
        let (queue, guard) = queue.finish(writer);
        // Its drop prints to standard output, which may hang as well, when the queue is full. `Log::end` waits instead.
        mem::forget(guard);
        Arc::new(Self {
            queue,
            handed: AtomicUsize::new(0),
            done,
            failed,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Leaves a line, unless too many wait already.
    pub fn leave(&self, line: &[u8]) {
        if !self.is_closed.load(Ordering::Relaxed) {
            self.hand_over(line);
        }
    }

    fn hand_over(&self, line: &[u8]) {
        self.handed.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.clone();
        // A lossy queue refuses none: it counts what finds no place.
        let _ = match line.get(..LONGEST) {
            Some(first) if line.len() > LONGEST => queue.write_all(&[first, b"...\n"].concat()),
            _ => queue.write_all(line),
        };
    }

    /// Takes no more lines, and waits for a moment until those that were left are written, with `last` after them. A
    /// reader that does not read holds up no end.
    pub fn end(&self, last: &str) {
        self.is_closed.store(true, Ordering::Relaxed);
        if self.waits_until_written() && !last.is_empty() {
            self.hand_over(last.as_bytes());
            self.waits_until_written();
        }
    }

    fn waits_until_written(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        while self.waiting() > 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Lines that are left and not written yet.
    fn waiting(&self) -> usize {
        let over = self.done.load(Ordering::Acquire) + self.lost();
        self.handed.load(Ordering::Relaxed).saturating_sub(over)
    }

    /// Lines that found no place in the queue.
    fn lost(&self) -> usize {
        self.queue.error_counter().dropped_lines()
    }

    /// Lines that are not in the log: too many waited, or they could not be written.
    pub fn dropped(&self) -> u64 {
        let dropped = self.lost() + self.failed.load(Ordering::Relaxed);
        u64::try_from(dropped).unwrap_or(u64::MAX)
    }
}

/// Leaves what the formatter makes, one line at a time.
#[derive(Debug)]
pub struct LogWriter(pub Arc<Log>);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.leave(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writer of the thread's lines; it gives each as a whole.
struct LineWriter {
    file: File,
    done: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
}

impl Write for LineWriter {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.file.write(part)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(line);
        if written.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.done.fetch_add(1, Ordering::Release);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A log into a pipe, and where the pipe is read.
    fn piped() -> (Arc<Log>, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let log = Log::to(std::os::fd::OwnedFd::from(writer).into());
        (log, reader)
    }

    #[test]
    fn the_last_words_come_after_all_lines() {
        let (log, mut reader) = piped();
        for n in 0..100 {
            log.leave(format!("{n}\n").as_bytes());
        }
        log.end("last\n");
        log.leave(b"too late\n");
        let expected: String = (0..100).map(|n| format!("{n}\n")).collect();
        let expected = expected + "last\n";
        let mut text = vec![0; expected.len()];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!((log.waiting(), log.dropped()), (0, 0));
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_only() {
        let (log, mut reader) = piped();
        let began = Instant::now();
        let line = [b'x'; 2 * LONGEST];
        for _ in 0..2 * LINES {
            log.leave(&line);
        }
        log.end("last\n");
        assert!(began.elapsed() < 4 * PATIENCE);
        let waiting = log.waiting();
        assert!((1..=LINES + 1).contains(&waiting), "{waiting}");
        // A pipe takes 16 pages.
        assert!(log.dropped() >= (LINES - 64) as u64, "{}", log.dropped());
        // It reads again: lines are cut, and what has waited comes.
        let mut text = vec![0; LONGEST + 4];
        reader.read_exact(&mut text).unwrap();
        assert!(text.ends_with(b"x...\n"));
        let drain = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
        while log.waiting() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(drain);
    }

    #[test]
    fn lines_without_a_reader_are_counted() {
        let (log, reader) = piped();
        drop(reader);
        log.leave(b"one\n");
        log.leave(b"two\n");
        log.end("last\n");
        assert_eq!((log.waiting(), log.dropped()), (0, 3));
    }
}
