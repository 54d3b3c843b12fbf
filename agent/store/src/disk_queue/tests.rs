//! A disk that does not answer, played by a gate before each sync.

use std::{
    fs::File,
    path::Path,
    sync::{Condvar, MutexGuard},
    time::Instant,
};

use super::*;
use crate::{
    journal::{FILE_BYTES, System, read},
    record::{EvictionRecord, OutcomeRecord},
};

const SOON: Duration = Duration::from_secs(20);

/// Syncs wait until the gate is open, and are counted.
#[derive(Clone, Debug, Default)]
struct Gated(Arc<(Mutex<bool>, Condvar)>, Arc<AtomicUsize>);

impl Gated {
    fn is_open(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap()
    }

    fn open_gate(&self) {
        *self.is_open() = true;
        self.0.1.notify_all();
    }
}

impl Disk for Gated {
    fn sync(&self, file: &File) -> std::io::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        drop(self.0.1.wait_while(self.is_open(), |open| !*open).unwrap());
        System.sync(file)
    }
}

fn start(dir: &Path) -> (Gated, DiskThread) {
    let disk = Gated::default();
    let journal = Journal::open_on(disk.clone(), dir, FILE_BYTES).unwrap();
    (disk, DiskThread::start_on(journal).unwrap())
}

fn eviction(n: usize) -> Record {
    Record::evicted(EvictionRecord {
        uid: format!("uid-{n}"),
        ..EvictionRecord::example(n.to_string())
    })
}

fn finish(n: usize) -> Record {
    Record::Finished(OutcomeRecord::unknown(&n.to_string()))
}

fn holds(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + SOON;
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

// R42
#[test]
fn what_waits_for_a_slow_disk_has_one_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, thread) = start(dir.path());
    let queue = thread.queue();
    let acknowledged = Arc::<AtomicUsize>::default();
    for n in 0..10 {
        let acknowledged = Arc::clone(&acknowledged);
        let then = move || {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        };
        queue.append_then(eviction(n), then).unwrap();
    }
    assert!(holds(|| disk.1.load(Ordering::Relaxed) == 1));
    disk.open_gate();
    assert!(holds(|| acknowledged.load(Ordering::Relaxed) == 10));
    // The first one alone, perhaps, and the others.
    assert!(disk.1.load(Ordering::Relaxed) <= 2);
    let (records, _) = read(dir.path()).unwrap();
    assert_eq!(records, (0..10).map(eviction).collect::<Vec<_>>());
}

// R42
#[test]
fn a_disk_that_hangs_delays_acknowledgements_and_no_caller() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, thread) = start(dir.path());
    let queue = thread.queue();
    let acknowledged = Arc::<Mutex<Vec<Record>>>::default();
    for n in 0..10 {
        let acknowledged = Arc::clone(&acknowledged);
        let then = move || acknowledged.lock().unwrap().push(eviction(n));
        queue.append_then(eviction(n), then).unwrap();
    }
    assert!(holds(|| !queue.busy().is_zero()), "it is said");
    assert_eq!(queue.records(), 10);
    assert!(acknowledged.lock().unwrap().is_empty());
    // What was handed over is known although it is not on disk.
    assert_eq!(queue.eviction_of("uid-3").as_deref(), Some("3"));
    assert_eq!(queue.evictions().len(), 10);
    disk.open_gate();
    assert!(holds(|| queue.records() == 0));
    assert_eq!(thread.close(SOON), Ok(()));
    let all: Vec<Record> = (0..10).map(eviction).collect();
    assert_eq!(*acknowledged.lock().unwrap(), all);
    assert_eq!(read(dir.path()).unwrap(), (all, 0));
}

#[test]
fn evictions_have_places_that_nothing_else_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, thread) = start(dir.path());
    let queue = thread.queue();
    let others = (0..RECORDS).filter(|n| queue.append(finish(*n)).is_ok());
    assert_eq!(others.count(), RECORDS - RESERVED);
    for n in 0..RESERVED {
        queue.append(eviction(n)).unwrap();
    }
    assert_eq!(
        *queue.append(eviction(RESERVED)).unwrap_err(),
        eviction(RESERVED)
    );
    let lost = (RESERVED + 1) as u64;
    assert_eq!(queue.lost().load(Ordering::Relaxed), lost);
    // Files have places of their own.
    let written = Arc::new(AtomicUsize::new(0));
    let write = || {
        let written = Arc::clone(&written);
        queue.write_file(move || {
            written.fetch_add(1, Ordering::Relaxed);
        })
    };
    for _ in 0..FILES {
        write().unwrap();
    }
    assert_eq!(write(), Err(QueueFull));
    disk.open_gate();
    assert_eq!(thread.close(SOON), Ok(()));
    assert_eq!(written.load(Ordering::Relaxed), FILES);
    assert_eq!(read(dir.path()).unwrap().0.len(), RECORDS);
}

#[test]
fn the_end_does_not_wait_for_a_disk_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, thread) = start(dir.path());
    let queue = thread.queue().clone();
    queue.append(eviction(1)).unwrap();
    queue.append(eviction(2)).unwrap();
    assert_eq!(thread.close(Duration::from_millis(20)), Err(2));
    disk.open_gate();
    assert!(holds(|| queue.records() == 0));
}
