//! The journal: every eviction is on disk before anybody else hears of it, and survives the agent.
//!
//! One JSON object a line in `journal.jsonl`. When that file is full it becomes `journal.1.jsonl`, in place of the
//! one before: the journal never takes more than twice [`FILE_BYTES`].

use std::{
    fs::{self, File},
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::unreported::Unreported;
pub use super::{
    graduated::{GraduatedAction, GraduatedPod},
    pauses::Pause,
    reclaimed::NodeReclaimed,
    records::{Asked, Eviction, Finish, Numbers, PaceRecord, Record, Reported},
};
use crate::observe::cgroup::PathError;

/// Size at which a file is full, in bytes.
pub const FILE_BYTES: u64 = 4 << 20;
const CURRENT: &str = "journal.jsonl";
const PREVIOUS: &str = "journal.1.jsonl";

/// An open journal. Dropping it closes the files and gives up the lock.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    file: File,
    bytes: u64,
    /// What the API server has not heard of yet, where there is one.
    unreported: Option<Unreported>,
    // Held for as long as the journal is open: a second agent must not write here.
    _lock: File,
}

/// A journal that several tasks write to.
#[derive(Clone, Debug)]
pub struct SharedJournal(Arc<Mutex<Journal>>);

impl SharedJournal {
    /// Shares a journal.
    pub fn new(journal: Journal) -> Self {
        Self(Arc::new(Mutex::new(journal)))
    }

    /// Has the journal alone for a while.
    pub fn lock(&self) -> MutexGuard<'_, Journal> {
        // A panic in between leaves at worst half a line, which every reader passes over.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or the directory.
    #[error("stateDir: {0}")]
    Path(#[from] PathError),
    /// Another agent has it.
    #[error("stateDir: {}: another evictd runs on it", .0.display())]
    InUse(PathBuf),
}

impl Journal {
    /// Opens the journal of a directory, which is made when it is not there.
    ///
    /// # Errors
    /// The directory cannot be written, or another agent holds it.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(dir).map_err(PathError::at(dir))?;
        let lock_path = dir.join("lock");
        let lock = File::create(&lock_path).map_err(PathError::at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(JournalError::InUse(dir.to_owned())),
            Err(fs::TryLockError::Error(e)) => return Err(PathError::at(&lock_path)(e).into()),
        }
        let (file, bytes) = open_current(dir)?;
        let mut journal = Self {
            dir: dir.to_owned(),
            file,
            bytes,
            unreported: None,
            _lock: lock,
        };
        journal.end_last_line()?;
        Ok(journal)
    }

    /// Writes a record and waits until it is on disk.
    ///
    /// # Errors
    /// The disk is full or broken; nothing of the record counts then.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let mut line = serde_json::to_vec(record).map_err(|e| self.error(CURRENT)(e.into()))?;
        line.push(b'\n');
        if self.bytes + line.len() as u64 > FILE_BYTES {
            self.rotate()?;
        }
        self.write(&line)?;
        if let Some(unreported) = &mut self.unreported {
            unreported.note(record);
        }
        Ok(())
    }

    /// From now on keeps in mind what the API server has not heard of, starting with what the files hold, and carries
    /// it over whenever a file is full. Oldest first.
    ///
    /// # Errors
    /// A file that is there cannot be read.
    pub fn follow(&mut self) -> Result<Vec<Eviction>, JournalError> {
        let mut unreported = Unreported::default();
        for record in read(&self.dir)?.0 {
            unreported.note(&record);
        }
        let waiting = unreported.waiting().cloned().collect();
        self.unreported = Some(unreported);
        Ok(waiting)
    }

    /// Where its files are.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Evictions that were forgotten because too many waited.
    pub fn forgotten(&self) -> u64 {
        self.unreported.as_ref().map_or(0, Unreported::forgotten)
    }

    fn write(&mut self, line: &[u8]) -> Result<(), JournalError> {
        let written = self
            .file
            .write_all(line)
            .and_then(|()| self.file.sync_data());
        written.map_err(self.error(CURRENT))?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), JournalError> {
        fs::rename(self.dir.join(CURRENT), self.dir.join(PREVIOUS)).map_err(self.error(CURRENT))?;
        (self.file, self.bytes) = open_current(&self.dir)?;
        let waiting: Vec<Record> = match &self.unreported {
            Some(unreported) => unreported.waiting().cloned().map(Record::evicted).collect(),
            None => Vec::new(),
        };
        for record in waiting {
            let mut line =
                serde_json::to_vec(&record).map_err(|e| self.error(CURRENT)(e.into()))?;
            line.push(b'\n');
            self.write(&line)?;
        }
        Ok(())
    }

    /// A crash may have left half a line; the next record must not become its tail.
    fn end_last_line(&mut self) -> Result<(), JournalError> {
        let path = self.dir.join(CURRENT);
        let text = fs::read(&path).map_err(PathError::at(&path))?;
        if text.last().is_some_and(|b| *b != b'\n') {
            self.file.write_all(b"\n").map_err(self.error(CURRENT))?;
            self.bytes += 1;
        }
        Ok(())
    }

    fn error(&self, name: &str) -> impl FnOnce(io::Error) -> JournalError + use<> {
        let path = self.dir.join(name);
        move |e| PathError::at(&path)(e).into()
    }
}

fn open_current(dir: &Path) -> Result<(File, u64), PathError> {
    let path = dir.join(CURRENT);
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(PathError::at(&path))?;
    let bytes = file.metadata().map_err(PathError::at(&path))?.len();
    // The name must be on disk too, or a power failure takes the file with it.
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(PathError::at(dir))?;
    Ok((file, bytes))
}

/// Reads all records of a directory, oldest first. Lines that a crash has cut are left out and counted.
///
/// # Errors
/// A file that is there cannot be read.
pub fn read(dir: &Path) -> Result<(Vec<Record>, usize), PathError> {
    read_where(dir, |_| true)
}

/// The same of the lines that are wanted; the others are passed over unread.
///
/// # Errors
/// A file that is there cannot be read.
pub(super) fn read_where(
    dir: &Path,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<(Vec<Record>, usize), PathError> {
    let (mut records, mut damaged) = (Vec::new(), 0);
    for name in [PREVIOUS, CURRENT] {
        let path = dir.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(PathError::at(&path)(e)),
        };
        for line in io::BufReader::new(file).split(b'\n') {
            let line = line.map_err(PathError::at(&path))?;
            if !wanted(&line) {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(record) => records.push(record),
                Err(_) if line.is_empty() => {}
                Err(_) => damaged += 1,
            }
        }
    }
    Ok((records, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(id: &str) -> Record {
        Record::Finished(Finish {
            id: id.to_owned(),
            exited: 1,
            freed: 2,
            peak_usage: 3,
            available: 4,
        })
    }

    // R42
    #[test]
    fn records_survive_and_half_a_line_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        Journal::open(dir.path())
            .unwrap()
            .append(&finish("a"))
            .unwrap();
        let path = dir.path().join(CURRENT);
        let whole = fs::read(&path).unwrap();
        let torn: Vec<u8> = whole
            .iter()
            .chain(&whole[..whole.len() / 2])
            .copied()
            .collect();
        fs::write(&path, torn).unwrap();
        Journal::open(dir.path())
            .unwrap()
            .append(&finish("b"))
            .unwrap();
        assert_eq!(
            read(dir.path()).unwrap(),
            (vec![finish("a"), finish("b")], 1)
        );
    }

    #[test]
    fn the_journal_does_not_grow_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        let long = finish(&"x".repeat(1 << 20));
        for _ in 0..12 {
            journal.append(&long).unwrap();
        }
        let total: u64 = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(total <= 2 * FILE_BYTES, "{total}");
        assert!(read(dir.path()).unwrap().0.len() >= 3);
    }

    #[test]
    fn the_second_agent_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = Journal::open(dir.path()).unwrap();
        let refusal = Journal::open(dir.path()).unwrap_err().to_string();
        assert!(refusal.ends_with("another evictd runs on it"), "{refusal}");
        drop(first);
        Journal::open(dir.path()).unwrap();
    }
}
