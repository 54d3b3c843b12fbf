//! Reads a filesystem on a thread of its own: statfs(2) on a disk that does not answer does not return, and the caller
//! has other signals to look at.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use evictd_sys::{eventfd::EventFd, pi_mutex::PiMutex, poll::poll, rt::MANAGER_PRIORITY};

use crate::cgroup::realtime::acquire_sched_fifo;

use super::{
    mounts::{Superblock, mount_of},
    statfs::{Filesystem, FilesystemReading},
};

/// Time that a caller waits for an answer.
const PATIENCE: Duration = Duration::from_millis(100);
/// An answer that comes later than that serves the next caller, unless it is older than this.
const FRESH: Duration = Duration::from_secs(2);
/// Without an answer for so long the filesystem counts as hung.
const HUNG: Duration = Duration::from_secs(5);

/// A mounted filesystem, as the thread knows it.
pub(crate) struct Disk {
    pub filesystem: Filesystem,
    pub superblock: Superblock,
    /// `None` where the superblock cannot be told.
    pub mount_point: Option<PathBuf>,
}

impl Disk {
    /// statfs. A disk that was mounted again at the same place is followed, whichever device number it has now: that
    /// superblock comes with the reading.
    fn read(&mut self) -> (io::Result<FilesystemReading>, Option<Superblock>) {
        let gone = match self.filesystem.read() {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => error,
            read => return (read, None),
        };
        let path = self.filesystem.path();
        let Ok((superblock, mount_point)) = mount_of(path) else {
            return (Err(gone), None);
        };
        if Some(mount_point) != self.mount_point || superblock.kind != self.superblock.kind {
            return (Err(gone), None);
        }
        let Ok(filesystem) = Filesystem::open(path) else {
            return (Err(gone), None);
        };
        self.filesystem = filesystem;
        self.superblock = superblock.clone();
        (self.filesystem.read(), Some(superblock))
    }
}

type Read = Box<dyn FnMut() -> (io::Result<FilesystemReading>, Option<Superblock>) + Send>;

/// State that the thread has to tell. The mutex is held for the exchange of a value.
#[derive(Default)]
struct State {
    /// With the moment at which it came.
    answer: Option<(Instant, io::Result<FilesystemReading>)>,
    remounted: Option<Superblock>,
}

struct Shared {
    request: EventFd,
    answered: EventFd,
    is_over: AtomicBool,
    state: PiMutex<State>,
}

/// One filesystem. The thread starts with the first read, and ends with this, or when its last call returns.
pub(crate) struct FilesystemReader {
    shared: Arc<Shared>,
    /// Function that reads, until the thread has it.
    read: Option<Read>,
    /// Time at which the question was put that has no answer yet.
    requested_at: Option<Instant>,
    /// Time since which the filesystem is not there, or answers with errors.
    gone: Option<Instant>,
}

impl FilesystemReader {
    /// Creates a reader of a disk that was looked at.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn new(mut disk: Disk) -> io::Result<Self> {
        Self::by(Box::new(move || disk.read()))
    }

    fn by(read: Read) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                request: EventFd::new()?,
                answered: EventFd::new()?,
                is_over: AtomicBool::new(false),
                state: PiMutex::default(),
            }),
            read: Some(read),
            requested_at: None,
            gone: None,
        })
    }

    /// Bytes and inodes.
    ///
    /// # Errors
    /// ENODEV when the filesystem was unmounted; `TimedOut` when there is no answer in time, and at once for as long as
    /// there is none.
    pub fn read(&mut self) -> io::Result<FilesystemReading> {
        let read = self.read_in_time();
        match &read {
            Ok(_) => self.gone = None,
            // Not a network's ETIMEDOUT.
            Err(error)
                if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() => {}
            // ENODEV where it was unmounted; EIO, ESTALE or ENOTCONN where it answers with an error alone.
            Err(_) => {
                self.gone.get_or_insert_with(Instant::now);
            }
        }
        read
    }

    fn read_in_time(&mut self) -> io::Result<FilesystemReading> {
        self.start()?;
        if self.requested_at.is_some() {
            let (came, answer) = self.answer().ok_or(io::ErrorKind::TimedOut)?;
            self.requested_at = None;
            // However long it took: it is of the moment at which it came.
            if came.elapsed() < FRESH {
                return answer;
            }
        }
        let requested_at = Instant::now();
        self.requested_at = Some(requested_at);
        self.shared.request.notify();
        loop {
            // Before the look: an answer that comes after it ends the wait.
            self.shared.answered.clear();
            if let Some((_, answer)) = self.answer() {
                self.requested_at = None;
                return answer;
            }
            let left = PATIENCE.saturating_sub(requested_at.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            poll([Some(self.shared.answered.fd())], Some(left));
        }
    }

    /// The superblock that was found at the same mount point since this was asked, once.
    pub fn remounted(&self) -> Option<Superblock> {
        self.shared.state.lock().remounted.take()
    }

    /// Whether the filesystem has not answered for long, or with errors alone, or has not been there.
    pub fn is_hung(&self) -> bool {
        let is_long = |since: Instant| since.elapsed() >= HUNG;
        self.requested_at.is_some_and(is_long) || self.gone.is_some_and(is_long)
    }

    fn answer(&self) -> Option<(Instant, io::Result<FilesystemReading>)> {
        self.shared.state.lock().answer.take()
    }

    fn start(&mut self) -> io::Result<()> {
        let Some(read) = self.read.take() else {
            return Ok(());
        };
        // A thread that cannot be had does not give the closure back: it is shared until then.
        let read = Arc::new(PiMutex::new(Some(read)));
        let (own, shared) = (Arc::clone(&read), Arc::clone(&self.shared));
        let started = std::thread::Builder::new()
            .name("statfs".into())
            .spawn(move || {
                // As the thread that waits for it. Where this is refused, that one was refused as well, and that was
                // said.
                let _ = acquire_sched_fifo(MANAGER_PRIORITY);
                let read = own.lock().take();
                if let Some(read) = read {
                    shared.run(read);
                }
            });
        if started.is_err() {
            self.read = read.lock().take();
        }
        started.map(drop)
    }
}

impl Drop for FilesystemReader {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.request.notify();
    }
}

impl Shared {
    fn run(&self, mut read: Read) {
        loop {
            let [asked] = poll([Some(self.request.fd())], None);
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            if asked == 0 {
                continue;
            }
            self.request.clear();
            let (answer, remounted) = read();
            {
                let mut state = self.state.lock();
                state.answer = Some((Instant::now(), answer));
                if remounted.is_some() {
                    state.remounted = remounted;
                }
            }
            self.answered.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn reading(available: u64) -> FilesystemReading {
        FilesystemReading {
            available,
            ..FilesystemReading::default()
        }
    }

    /// A filesystem that answers when and what the test wants.
    fn scripted() -> (FilesystemReader, Sender<u64>) {
        let (answers, next): (_, Receiver<u64>) = channel();
        let read = move || {
            let answer = next.recv().map(reading);
            (answer.map_err(|_| io::ErrorKind::NotFound.into()), None)
        };
        (FilesystemReader::by(Box::new(read)).unwrap(), answers)
    }

    #[test]
    fn a_filesystem_that_hangs_costs_its_reader_little_time() {
        let (mut reader, answers) = scripted();
        answers.send(1).unwrap();
        assert_eq!(reader.read().unwrap(), reading(1));
        let timed_out = |reader: &mut FilesystemReader| {
            let refused = reader.read().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        };
        timed_out(&mut reader);
        assert!(!reader.is_hung());
        // The first one has waited; no other one does before there is an answer.
        let begun = Instant::now();
        for _ in 0..100 {
            timed_out(&mut reader);
        }
        assert!(begun.elapsed() < PATIENCE * 10, "{:?}", begun.elapsed());
        // A late answer is one.
        answers.send(2).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let late = loop {
            match reader.read() {
                Ok(late) => break late,
                Err(_) => assert!(Instant::now() < until),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(late, reading(2));
        answers.send(3).unwrap();
        assert_eq!(reader.read().unwrap(), reading(3));
    }

    /// Waits for the thread to have told its answer.
    fn has_answered(reader: &FilesystemReader) {
        let until = Instant::now() + Duration::from_secs(20);
        while reader.shared.state.lock().answer.is_none() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_slow_answer_counts_from_when_it_came() {
        let (mut reader, answers) = scripted();
        assert!(reader.read().is_err());
        reader.requested_at = Instant::now().checked_sub(HUNG);
        assert!(reader.is_hung());
        answers.send(1).unwrap();
        has_answered(&reader);
        assert_eq!(reader.read().unwrap(), reading(1));
        assert!(!reader.is_hung());
        // One that has lain there is too old.
        assert!(reader.read().is_err());
        answers.send(2).unwrap();
        has_answered(&reader);
        let mut state = reader.shared.state.lock();
        let (came, _) = state.answer.as_mut().unwrap();
        *came = came.checked_sub(FRESH).unwrap();
        drop(state);
        answers.send(3).unwrap();
        assert_eq!(reader.read().unwrap(), reading(3));
    }

    #[test]
    fn a_filesystem_that_is_away_for_long_is_said_to_be() {
        for errno in [libc::ENODEV, libc::EIO, libc::ESTALE, libc::ETIMEDOUT] {
            let answers = [true, false, true];
            let mut answers = answers.into_iter().map(move |is_away| match is_away {
                true => Err(io::Error::from_raw_os_error(errno)),
                false => Ok(reading(1)),
            });
            let read = move || (answers.next().unwrap(), None);
            let mut reader = FilesystemReader::by(Box::new(read)).unwrap();
            assert!(reader.read().is_err());
            assert!(!reader.is_hung());
            assert!(reader.gone.is_some(), "{errno}");
            reader.gone = Instant::now().checked_sub(HUNG);
            assert!(reader.is_hung());
            assert!(reader.read().is_ok());
            assert!(!reader.is_hung());
        }
    }
}
