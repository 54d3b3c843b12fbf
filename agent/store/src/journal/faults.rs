//! Every call to the system fails, once and from then on, with all that may be left behind.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::*;
use crate::record::{Reported, counted::Counted};

/// A file of it holds some ten evictions with their reports.
const LIMIT: u64 = 6000;
const RECORDS: usize = 50;
/// Of so many evictions one waits to be reported.
const ONE_WAITS: usize = 20;
/// Of so many evictions one counts for limits.
const ONE_COUNTS: usize = 10;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// This call.
    Once(u64),
    /// This call and all after it.
    From(u64),
    /// The call that makes a file, from this call on: no inode is left.
    NoInodes(u64),
    /// Names do not reach the disk, from this call on.
    NoNames(u64),
}

/// A disk that counts calls and has some of them fail. A write that fails has written half of its bytes.
#[derive(Clone, Debug)]
struct Faulty(Arc<FaultyState>);

#[derive(Debug)]
struct FaultyState {
    calls: AtomicU64,
    fault: Mutex<Option<Fault>>,
    /// What a call fails with.
    errno: i32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Names,
    Other,
}

impl Faulty {
    fn new(fault: Option<Fault>) -> Self {
        Self::failing_with(libc::ENOSPC, fault)
    }

    fn failing_with(errno: i32, fault: Option<Fault>) -> Self {
        Self(Arc::new(FaultyState {
            calls: AtomicU64::new(0),
            fault: Mutex::new(fault),
            errno,
        }))
    }

    fn heal(&self) {
        *self.0.fault.lock().unwrap() = None;
    }

    fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn call(&self, call: Call) -> io::Result<()> {
        let n = self.0.calls.fetch_add(1, Ordering::Relaxed);
        let fails = match *self.0.fault.lock().unwrap() {
            None => false,
            Some(Fault::Once(at)) => n == at,
            Some(Fault::From(at)) => n >= at,
            Some(Fault::NoInodes(at)) => n >= at && call == Call::Open,
            Some(Fault::NoNames(at)) => n >= at && call == Call::Names,
        };
        match fails {
            true => Err(io::Error::from_raw_os_error(self.0.errno)),
            false => Ok(()),
        }
    }
}

impl Disk for Faulty {
    fn open(&self, path: &Path) -> io::Result<(File, u64)> {
        self.call(Call::Open)?;
        System.open(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.call(Call::Other) {
            System.write(file, &bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        // The system may take less than all.
        System.write(file, &bytes[..bytes.len().div_ceil(2)])
    }

    // The machine does not crash here: nothing has to be on disk.
    fn sync(&self, _: &File) -> io::Result<()> {
        self.call(Call::Other)
    }

    fn cut(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.call(Call::Other)?;
        System.cut(file, bytes)
    }

    fn length(&self, file: &File) -> io::Result<u64> {
        self.call(Call::Other)?;
        System.length(file)
    }

    fn is_at(&self, file: &File, path: &Path) -> io::Result<bool> {
        self.call(Call::Other)?;
        System.is_at(file, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Call::Other)?;
        System.rename(from, to)
    }

    fn sync_names(&self, _: &File) -> io::Result<()> {
        self.call(Call::Names)
    }
}

fn eviction(id: usize) -> Record {
    Record::evicted(EvictionRecord {
        // Earlier than now, or the journal would write down that the clock was set back.
        time: "2020-11-21T02:00:00Z".into(),
        message: "low on memory".into(),
        shadow: !id.is_multiple_of(ONE_COUNTS),
        ..EvictionRecord::example(id.to_string())
    })
}

fn reported(id: usize) -> Record {
    Record::Reported(Reported {
        id: id.to_string(),
        time: String::new(),
        outcome: "deleted".into(),
    })
}

/// Writes what a node writes; what was acknowledged, in order. `heal_after` records the fault is gone.
fn write(
    journal: &mut Journal<Faulty>,
    disk: &Faulty,
    heal_after: Option<usize>,
) -> Vec<(Record, bool)> {
    let mut told = Vec::new();
    for id in 0..RECORDS {
        if heal_after == Some(id) {
            disk.heal();
        }
        let mut append = |record: Record| {
            let ok = journal.append(&record).is_ok();
            told.push((record, ok));
            ok
        };
        // What is not in the journal is never reported.
        if append(eviction(id)) && !id.is_multiple_of(ONE_WAITS) {
            append(reported(id));
        }
    }
    told
}

/// What must be readable: the acknowledged records that fit into one file, all evictions that wait, and all that count.
fn check(dir: &Path, told: &[(Record, bool)], what: &str) {
    let (read, _) = read(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    // A record that was glued to another one's half would be none of these.
    for record in &read {
        let is = |told: &Record| match (told, record) {
            (Record::Evicted(e), Record::Counted(c)) => Counted::from(e.as_ref()) == **c,
            _ => told == record,
        };
        assert!(told.iter().any(|(r, _)| is(r)), "{what}: {record:?}");
    }
    let acknowledged: Vec<_> = told.iter().filter(|(_, ok)| *ok).map(|(r, _)| r).collect();
    let mut bytes = 0;
    for record in acknowledged.iter().rev() {
        bytes += serde_json::to_vec(record).unwrap().len() as u64 + 1;
        // The rest of a file may be what was carried over.
        if bytes > LIMIT / 3 {
            break;
        }
        assert!(read.contains(record), "{what}: lost {record:?}");
    }
    let ids = |records: &mut dyn Iterator<Item = &Record>| {
        let mut unreported = ReportBacklog::default();
        records.for_each(|record| unreported.note(record));
        let ids = unreported.waiting().map(|e| e.id.clone());
        ids.collect::<BTreeSet<_>>()
    };
    let counting = |records: &mut dyn Iterator<Item = &Record>| {
        let mut counts = Counts::default();
        records.for_each(|record| counts.note(record));
        counts.newest(u64::MAX)
    };
    let found = counting(&mut read.iter());
    for id in counting(&mut acknowledged.iter().copied()) {
        assert!(found.contains(&id), "{what}: {id} no longer counts");
    }
    let waiting = ids(&mut acknowledged.into_iter());
    let found = ids(&mut read.iter());
    let refused = |id: &String| told.iter().any(|(r, ok)| !ok && is_about(r, id));
    for id in &waiting {
        // Its report may have reached the file although that was not acknowledged.
        assert!(
            found.contains(id) || refused(id),
            "{what}: {id} is forgotten"
        );
    }
    // What was refused may be there all the same, for it may have reached the file.
    for id in found.difference(&waiting) {
        assert!(refused(id), "{what}: {id} would be told twice");
    }
}

fn is_about(record: &Record, id: &str) -> bool {
    match record {
        Record::Evicted(eviction) => eviction.id == id,
        Record::Reported(reported) => reported.id == id,
        _ => false,
    }
}

/// How many calls a run without faults makes.
fn calls() -> u64 {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Faulty::new(None));
    let mut journal = Journal::open_on(disk.clone(), dir.path(), LIMIT).unwrap();
    journal.follow().unwrap();
    journal.restore().unwrap();
    let told = write(&mut journal, &disk, None);
    assert!(told.iter().all(|(_, ok)| *ok));
    assert!(dir.path().join(PREVIOUS).exists(), "it has rotated");
    check(dir.path(), &told, "without faults");
    disk.calls()
}

/// A run with a fault; then a crash, and an agent that starts with what is there.
fn run(fault: Fault, heal_after: Option<usize>) {
    let what = format!("{fault:?}, gone before record {heal_after:?}");
    let (dir, disk) = (tempfile::tempdir().unwrap(), Faulty::new(Some(fault)));
    // The first calls are those of the start, which has a test of its own.
    let Ok(mut journal) = Journal::open_on(disk.clone(), dir.path(), LIMIT) else {
        return;
    };
    journal.follow().unwrap();
    journal.restore().unwrap();
    let mut told = write(&mut journal, &disk, heal_after);
    let refused = told.iter().filter(|(_, ok)| !ok).count() as u64;
    assert_eq!(journal.lost().load(Ordering::Relaxed), refused, "{what}");
    if let Some(healed) = heal_after {
        let first = |(r, _): &&(Record, bool)| is_about(r, &healed.to_string());
        let at = told.iter().position(|t| first(&t)).unwrap();
        assert!(told[at..].iter().all(|(_, ok)| *ok), "{what}: {told:?}");
    }
    check(dir.path(), &told, &what);

    drop(journal);
    let mut journal = Journal::open_on(Faulty::new(None), dir.path(), LIMIT).unwrap();
    journal.follow().unwrap();
    journal.restore().unwrap();
    for id in RECORDS..RECORDS + 20 {
        for record in [eviction(id), reported(id)] {
            journal.append(&record).unwrap();
            told.push((record, true));
        }
    }
    check(dir.path(), &told, &format!("{what}, after a crash"));
    let files = [CURRENT, PREVIOUS].map(|name| dir.path().join(name));
    let bytes = files.map(|file| fs::metadata(file).map_or(0, |m| m.len()));
    assert!(bytes.iter().all(|b| *b <= 2 * LIMIT), "{what}: {bytes:?}");
}

// R42
#[test]
fn whatever_one_call_fails_what_was_acknowledged_is_kept() {
    (0..calls()).for_each(|call| run(Fault::Once(call), None));
}

// R42
#[test]
fn from_whatever_call_all_fail_what_was_acknowledged_is_kept() {
    (0..calls()).for_each(|call| run(Fault::From(call), None));
}

// R42
#[test]
fn whatever_calls_fail_for_a_while_what_was_acknowledged_is_kept() {
    (0..calls()).for_each(|call| run(Fault::From(call), Some(30)));
}

// R42
#[test]
fn without_inodes_the_full_file_goes_on() {
    // What matters is which of the few calls that make a file is the first to fail.
    for call in (1..calls()).step_by(10) {
        for heal_after in [None, Some(25), Some(40)] {
            run(Fault::NoInodes(call), heal_after);
            run(Fault::NoNames(call), heal_after);
        }
    }
}

#[test]
fn a_start_without_room_makes_its_file_later() {
    let (dir, disk) = (
        tempfile::tempdir().unwrap(),
        Faulty::new(Some(Fault::NoInodes(0))),
    );
    let mut journal = Journal::open_on(disk.clone(), dir.path(), LIMIT).unwrap();
    journal.follow().unwrap();
    journal.append(&eviction(1)).unwrap_err();
    assert_eq!(journal.lost().load(Ordering::Relaxed), 1);
    disk.heal();
    journal.append(&eviction(2)).unwrap();
    assert_eq!(read(dir.path()).unwrap(), (vec![eviction(2)], 0));
}

/// What only another configuration mends ends the start; a broken disk does not.
#[test]
fn a_start_on_a_broken_disk_makes_its_file_later() {
    for errno in [
        libc::EIO,
        libc::EUCLEAN,
        libc::EROFS,
        libc::EDQUOT,
        libc::ENFILE,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Faulty::failing_with(errno, Some(Fault::From(0)));
        let mut journal = Journal::open_on(disk.clone(), dir.path(), LIMIT).unwrap();
        journal.follow().unwrap();
        journal.append(&eviction(1)).unwrap_err();
        disk.heal();
        journal.append(&eviction(2)).unwrap();
        assert_eq!(read(dir.path()).unwrap(), (vec![eviction(2)], 0));
    }
    for errno in [libc::EACCES, libc::EPERM, libc::ENOTDIR, libc::EISDIR] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Faulty::failing_with(errno, Some(Fault::From(0)));
        Journal::open_on(disk, dir.path(), LIMIT).unwrap_err();
    }
}

/// What waits to be reported is in the file before, and there is no room for the next one yet.
#[test]
fn a_start_without_room_carries_over_what_waits_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    journal.append(&eviction(1)).unwrap();
    drop(journal);
    let [from, to] = [CURRENT, PREVIOUS].map(|name| dir.path().join(name));
    fs::rename(&from, to).unwrap();
    let disk = Faulty::new(Some(Fault::NoInodes(0)));
    let mut journal = Journal::open_on(disk.clone(), dir.path(), LIMIT).unwrap();
    assert_eq!(journal.follow().unwrap().len(), 1);
    journal.append(&eviction(2)).unwrap_err();
    disk.heal();
    journal.append(&eviction(3)).unwrap();
    let kept = read_file(&from, &|_| true).unwrap().0;
    assert_eq!(kept, [eviction(1), eviction(3)]);
}

#[test]
fn a_file_that_cannot_be_read_takes_nothing_from_the_other_one() {
    let dir = tempfile::tempdir().unwrap();
    Journal::open(dir.path())
        .unwrap()
        .append(&eviction(0))
        .unwrap();
    fs::create_dir(dir.path().join(PREVIOUS)).unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.follow().unwrap().len(), 1);
    journal.restore().unwrap();
    assert!(journal.counts().is_some());
    // Nothing at all can be read.
    fs::remove_file(dir.path().join(CURRENT)).unwrap();
    assert!(journal.follow().is_err() && journal.restore().is_err());
}

/// What waits to be reported, and what counts, is in the new file; every record that follows is where the next agent
/// reads it.
// R42
#[test]
fn a_journal_whose_files_were_removed_begins_anew() {
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    for is_dir_removed in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        let mut journal = Journal::open_on(Faulty::new(None), &dir, LIMIT).unwrap();
        journal.follow().unwrap();
        journal.restore().unwrap();
        // The first waits, the second only counts.
        for record in [eviction(0), eviction(10), reported(10)] {
            journal.append(&record).unwrap();
        }
        match is_dir_removed {
            true => fs::remove_dir_all(&dir).unwrap(),
            false => fs::remove_file(dir.join(CURRENT)).unwrap(),
        }
        journal.append(&eviction(21)).unwrap();
        assert_eq!(names(&dir), [CURRENT]);
        let (records, _) = read(&dir).unwrap();
        let Record::Evicted(counted) = eviction(10) else {
            panic!("an eviction");
        };
        let counted = Record::Counted(Box::new(Counted::from(counted.as_ref())));
        assert_eq!(records, [eviction(0), counted, eviction(21)]);
        // No second agent may write there.
        let second = Journal::open(&dir).unwrap_err();
        assert!(matches!(second, JournalError::InUse(_)), "{second}");
        // Removed at its limit, and more than twice.
        for id in 30..70 {
            if id % 13 == 0 {
                fs::remove_file(dir.join(CURRENT)).unwrap();
            }
            for record in [eviction(id), reported(id)] {
                journal.append(&record).unwrap();
                assert!(read(&dir).unwrap().0.contains(&record), "{id}");
            }
        }
        assert_eq!(journal.lost().load(Ordering::Relaxed), 0);
    }
}

/// Between the look and the rename.
#[test]
fn a_full_file_that_was_removed_is_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open_on(Faulty::new(None), dir.path(), LIMIT).unwrap();
    journal.append(&eviction(1)).unwrap();
    fs::remove_file(dir.path().join(CURRENT)).unwrap();
    journal.rotate().unwrap();
    journal.append(&eviction(2)).unwrap();
    assert_eq!(read(dir.path()).unwrap(), (vec![eviction(2)], 0));
}

#[test]
fn a_directory_that_another_agent_has_made_anew_is_left_to_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let mut first = Journal::open(&dir).unwrap();
    first.append(&eviction(1)).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let mut second = Journal::open(&dir).unwrap();
    let refusal = first.append(&eviction(2)).unwrap_err();
    assert!(matches!(refusal, JournalError::InUse(_)), "{refusal}");
    second.append(&eviction(3)).unwrap();
    assert_eq!(read(&dir).unwrap(), (vec![eviction(3)], 0));
}
