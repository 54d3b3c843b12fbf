//! The thread that writes the state directory. Its callers never wait for the disk: they hand over a record and go on,
//! and what must not happen before the record is on disk is done when the thread acknowledges it.
//!
//! The queue is bounded. When the disk is full or does not answer, other records and files give way first: the last
//! [`RESERVED`] places are kept for what limits count and what is reported to the API server. What is not written is
//! counted and logged.

use std::{
    collections::VecDeque,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread::JoinHandle,
    time::Duration,
};

use evictd_engine::limiter::RestoredEviction;
use evictd_sys::{clock::monotonic_ns, mutex::locked};

use crate::{
    journal::{Disk, Journal},
    record::{Record, counted::Clocks},
    restore::Counts,
};

/// Records that may wait.
pub const RECORDS: usize = 1024;
/// Places among these that only essential records take.
pub const RESERVED: usize = 512;
/// Records that are written with one sync.
const MAX_TOGETHER: usize = 64;
/// Files that may wait.
pub const FILES: usize = 16;

/// Called on the thread when a record is on disk, or when it is certain that it will not be.
type Acknowledge = Box<dyn FnOnce() + Send>;
/// Writes one file.
type WriteFile = Box<dyn FnOnce() + Send>;

enum Job {
    Record(Record, Option<Acknowledge>),
    File(WriteFile),
    /// Sent back when all that was handed over before is done.
    Flush(Box<dyn FnOnce() + Send>),
    End,
}

/// The queue, for all that write to the state directory. Clones share it.
#[derive(Clone)]
pub struct DiskQueue {
    jobs: SyncSender<Job>,
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    /// What was handed over and counts, on disk or not: the journal itself belongs to the thread.
    counts: Mutex<Counts>,
    /// Records that are handed over and not on disk.
    records: AtomicUsize,
    /// Number of files that are handed over and not on disk.
    files: AtomicUsize,
    /// Since when the disk works on one job, in nanoseconds of CLOCK_MONOTONIC; 0: it has none.
    busy_since: AtomicU64,
    /// Records that are not on disk and will not be.
    lost: Arc<AtomicU64>,
}

impl fmt::Debug for DiskQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskQueue")
            .field("dir", &self.shared.dir)
            .field("records", &self.records())
            .finish_non_exhaustive()
    }
}

/// The running thread. The process may end without it: what the disk has not taken by then is lost.
#[derive(Debug)]
pub struct DiskThread {
    queue: DiskQueue,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl DiskThread {
    /// Starts the thread. It takes the journal, which has recalled what it is to recall by then.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(journal: Journal) -> std::io::Result<Self> {
        Self::start_on(journal)
    }

    fn start_on<D: Disk + 'static>(journal: Journal<D>) -> std::io::Result<Self> {
        // Files and requests to flush are bounded by their own counts; they fit beside the records.
        let (jobs, queue) = mpsc::sync_channel(RECORDS + 2 * FILES);
        let shared = Arc::new(Shared {
            dir: journal.dir().to_owned(),
            counts: Mutex::new(journal.counts().cloned().unwrap_or_default()),
            records: AtomicUsize::new(0),
            files: AtomicUsize::new(0),
            busy_since: AtomicU64::new(0),
            lost: journal.lost(),
        });
        let (end, ended) = mpsc::sync_channel(1);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || {
                run(journal, &queue, &own);
                // The receiver may have stopped waiting.
                let _ = end.try_send(());
            })?;
        Ok(Self {
            queue: DiskQueue { jobs, shared },
            ended,
            thread,
        })
    }

    /// Queue to which records are handed over.
    pub fn queue(&self) -> &DiskQueue {
        &self.queue
    }

    /// Ends the thread when all that was handed over is done; gives it up when that takes longer than `patience`, and
    /// says how many records are lost then.
    ///
    /// # Errors
    /// The number of records that are not on disk.
    pub fn close(self, patience: Duration) -> Result<(), usize> {
        // A full queue has a disk that does not answer.
        let asked = self.queue.jobs.try_send(Job::End).is_ok();
        if asked && self.ended.recv_timeout(patience).is_ok() {
            let _ = self.thread.join();
            return Ok(());
        }
        Err(self.queue.records())
    }
}

impl DiskQueue {
    /// Hands over a record. A record that finds no place is logged, counted as lost, and given back.
    ///
    /// # Errors
    /// The record: too many wait already.
    pub fn append(&self, record: Record) -> Result<(), Box<Record>> {
        self.publish(record, None)
    }

    /// As [`Self::append`]; when the record is on disk, or when it is certain that it will not be, the thread calls
    /// `acknowledge`, which must not take long.
    ///
    /// # Errors
    /// As [`Self::append`]; `acknowledge` is not called then.
    pub fn append_then(
        &self,
        record: Record,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> Result<(), Box<Record>> {
        self.publish(record, Some(Box::new(acknowledge)))
    }

    fn publish(&self, record: Record, acknowledge: Option<Acknowledge>) -> Result<(), Box<Record>> {
        self.lock_counts().note(&record);
        let places = match is_essential(&record) {
            true => RECORDS,
            false => RECORDS - RESERVED,
        };
        let refused = if take_place(&self.shared.records, places) {
            match self.jobs.try_send(Job::Record(record, acknowledge)) {
                Ok(()) => return Ok(()),
                Err(mpsc::TrySendError::Full(job) | mpsc::TrySendError::Disconnected(job)) => {
                    self.shared.records.fetch_sub(1, Ordering::Relaxed);
                    match job {
                        Job::Record(record, _) => record,
                        Job::File(_) | Job::Flush(_) | Job::End => return Ok(()),
                    }
                }
            }
        } else {
            record
        };
        self.shared.lost.fetch_add(1, Ordering::Relaxed);
        tracing::error!(record = ?refused, "a record is not in the journal: too many wait for the disk");
        Err(Box::new(refused))
    }

    /// Has a file written by the thread.
    ///
    /// # Errors
    /// Too many wait already; `write` is dropped.
    pub fn write_file(&self, write: impl FnOnce() + Send + 'static) -> Result<(), QueueFull> {
        if !take_place(&self.shared.files, FILES) {
            return Err(QueueFull);
        }
        self.jobs.try_send(Job::File(Box::new(write))).map_err(|_| {
            self.shared.files.fetch_sub(1, Ordering::Relaxed);
            QueueFull
        })
    }

    /// Calls `done` on the thread when all that was handed over before is done.
    ///
    /// # Errors
    /// The queue is full; `done` is dropped.
    pub fn flush(&self, done: impl FnOnce() + Send + 'static) -> Result<(), QueueFull> {
        let sent = self.jobs.try_send(Job::Flush(Box::new(done)));
        sent.map_err(|_| QueueFull)
    }

    /// The last eviction of a pod by its UID, as far as the journal was recalled or it was handed over since.
    pub fn eviction_of(&self, uid: &str) -> Option<String> {
        self.lock_counts().eviction_of(uid).map(str::to_owned)
    }

    /// The evictions that limits count, as far as the journal was recalled or they were handed over since.
    pub fn evictions(&self) -> Vec<RestoredEviction> {
        let clocks = Clocks::now();
        let counts = self.lock_counts();
        counts.restore(&clocks).evictions()
    }

    /// Whether it was handed over that the pod of an eviction is stuck; known as [`Self::eviction_of`].
    pub fn knows_stuck(&self, id: &str) -> bool {
        self.lock_counts().knows_stuck(id)
    }

    /// The state directory.
    pub fn dir(&self) -> &std::path::Path {
        &self.shared.dir
    }

    /// Records that are handed over and not on disk.
    pub fn records(&self) -> usize {
        self.shared.records.load(Ordering::Relaxed)
    }

    /// Files that are handed over and not written.
    pub fn files(&self) -> usize {
        self.shared.files.load(Ordering::Relaxed)
    }

    /// Counts the records that are not on disk and will not be.
    pub fn lost(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.lost)
    }

    /// Time for which the disk has worked on the present job; zero when it has none.
    pub fn busy(&self) -> Duration {
        match self.shared.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(monotonic_ns().saturating_sub(since)),
        }
    }

    fn lock_counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        locked(&self.shared.counts)
    }
}

/// Too many jobs wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many jobs wait for the disk")]
pub struct QueueFull;

fn run<D: Disk>(mut journal: Journal<D>, queue: &Receiver<Job>, shared: &Shared) {
    let mut next = None;
    while let Some(job) = next.take().or_else(|| queue.recv().ok()) {
        shared.busy_since.store(monotonic_ns(), Ordering::Relaxed);
        match job {
            Job::Record(record, acknowledge) => {
                let mut waiting = VecDeque::from([(record, acknowledge)]);
                // A slow disk takes seconds for each sync.
                while waiting.len() < MAX_TOGETHER
                    && let Ok(job) = queue.try_recv()
                {
                    match job {
                        Job::Record(record, acknowledge) => {
                            waiting.push_back((record, acknowledge))
                        }
                        other => {
                            next = Some(other);
                            break;
                        }
                    }
                }
                while !waiting.is_empty() {
                    shared.busy_since.store(monotonic_ns(), Ordering::Relaxed);
                    let done = append_some(&mut journal, &waiting);
                    shared.records.fetch_sub(done, Ordering::Relaxed);
                    // Waiting for the caller is not waiting for the disk.
                    shared.busy_since.store(0, Ordering::Relaxed);
                    for acknowledge in waiting.drain(..done).filter_map(|(_, then)| then) {
                        acknowledge();
                    }
                }
            }
            Job::File(write) => {
                write();
                shared.files.fetch_sub(1, Ordering::Relaxed);
            }
            Job::Flush(done) => done(),
            Job::End => return,
        }
        shared.busy_since.store(0, Ordering::Relaxed);
    }
}

/// Writes all that waits together, or the first one alone, after which the others may fit; how many they were.
fn append_some<D: Disk>(
    journal: &mut Journal<D>,
    waiting: &VecDeque<(Record, Option<Acknowledge>)>,
) -> usize {
    let records: Vec<&Record> = waiting.iter().map(|(record, _)| record).collect();
    if records.len() > 1 && journal.append_together(&records) {
        return records.len();
    }
    if let Some(record) = records.first()
        && let Err(error) = journal.append(record)
    {
        tracing::error!(%error, ?record, "a record is not in the journal");
    }
    1
}

/// Takes one of so many places, if one is free.
fn take_place(taken: &AtomicUsize, places: usize) -> bool {
    let add = |n| (n < places).then_some(n + 1);
    taken
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        .is_ok()
}

/// Whether limits count it, it is reported to the API server, or it says that it was.
fn is_essential(record: &Record) -> bool {
    match record {
        Record::Evicted(_)
        | Record::Requested(_)
        | Record::Counted(_)
        | Record::Reported(_)
        | Record::Recreated(_)
        | Record::Stuck(_)
        | Record::TimeBound(_) => true,
        Record::Finished(_)
        | Record::Reclaimed(_)
        | Record::Mitigated(_)
        | Record::OomKill(_)
        | Record::Paused(_)
        | Record::MetInForce(_)
        | Record::KubeletEvicted(_)
        | Record::ShadowNode(_) => false,
    }
}

#[cfg(test)]
mod tests;
