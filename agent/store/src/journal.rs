//! The journal: every eviction is on disk before it is reported, and survives the agent.
//!
//! One JSON object a line in `journal.jsonl`. When that file is full it becomes `journal.1.jsonl`, in place of the
//! one before: the journal takes twice [`FILE_BYTES`]. Where no new file can be made the full one goes on, up to twice
//! its size.
//!
//! Whatever call fails: what was acknowledged stays readable, a line that was cut is never continued by the next one,
//! and the next record finds the journal as if nothing had happened, as soon as the disk takes it. Nothing is
//! acknowledged that is written to a file without a name: where the files, or the directory, are removed, the journal
//! begins anew with what the API server has not heard of and what counts.

mod damage;
mod disk;
#[cfg(test)]
mod faults;

use std::{
    collections::{HashSet, VecDeque},
    fs::{self, File},
    io::{self, BufRead as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use evictd_sys::fs::PathError;

pub use damage::Damage;

use crate::{
    backlog::ReportBacklog,
    record::{
        EvictionRecord, Record,
        counted::{Clocks, TimeBound},
    },
    restore::{Counts, Restored},
};

pub use disk::{Disk, System};

/// Size at which a file is full, in bytes.
pub const FILE_BYTES: u64 = 4 << 20;
/// Divisor of a file's size: records that are carried over because they count take at most this part of it.
const CARRIED: u64 = 4;
/// Divisor of a file's size: about this part of it is carried over with one call, and each call waits for the disk.
const AT_ONCE: u64 = 64;
const CURRENT: &str = "journal.jsonl";
const PREVIOUS: &str = "journal.1.jsonl";

/// An open journal. Dropping it closes the files and gives up the lock.
#[derive(Debug)]
pub struct Journal<D: Disk = System> {
    disk: D,
    dir: PathBuf,
    /// The directory, locked for as long as the journal is open: a second agent must not write here. Names reach the disk
    /// through it when no descriptor is left, and its lock needs no write: a disk that is full or read-only gives it too.
    /// `None` until there is a directory.
    held: Option<File>,
    /// File to which records go; `None` until a file could be made.
    file: Option<File>,
    /// Whether the file's name is `CURRENT`; otherwise it is full, is called `PREVIOUS` already, and the new one could
    /// not be made yet.
    is_current: bool,
    /// Length of the part of the file that is acknowledged, in bytes.
    bytes: u64,
    /// Behind that there may be part of a record that was not written.
    is_torn: bool,
    /// The names of the files are not on disk yet.
    names_pending: bool,
    /// IDs of the records that are not in this file yet: those that the API server has not heard of, and those that
    /// count.
    to_carry: VecDeque<String>,
    /// Size at which a file is full, in bytes.
    limit: u64,
    /// Evictions that the API server has not heard of yet; `None` until `follow` has read them.
    unreported: Option<ReportBacklog>,
    /// Records that could not be written.
    lost: Arc<AtomicU64>,
    /// Records that limits and recreations count; `None` until they were asked for.
    counts: Option<Counts>,
}

/// Why a journal cannot be opened or written.
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
    /// Opens the journal of a directory, which is made when it is not there. On a disk that is full, read-only or
    /// broken it starts without a file, or without the directory, and makes it when it can.
    ///
    /// # Errors
    /// The directory may not be written or is none, or another agent holds it: a matter of the configuration.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        Self::open_on(System, dir, FILE_BYTES)
    }
}

impl<D: Disk> Journal<D> {
    pub(crate) fn open_on(disk: D, dir: &Path, limit: u64) -> Result<Self, JournalError> {
        let mut journal = Self {
            disk,
            dir: dir.to_owned(),
            held: None,
            file: None,
            is_current: false,
            bytes: 0,
            is_torn: false,
            names_pending: true,
            to_carry: VecDeque::new(),
            limit,
            unreported: None,
            lost: Arc::default(),
            counts: None,
        };
        match journal.open_current() {
            Ok(()) => {}
            Err(JournalError::Path(error)) if !is_configured_wrong(&error.source) => {
                tracing::error!(%error, "the journal has no file yet");
            }
            Err(error) => return Err(error),
        }
        Ok(journal)
    }

    /// Writes a record and waits until it is on disk.
    ///
    /// # Errors
    /// The disk is full or broken; nothing of the record counts then. It is counted as lost.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let written = self.try_append(record);
        if written.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn try_append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = self.line(record)?;
        let length = line.len() as u64;
        self.find_removed()?;
        if self.file.is_none() || self.bytes + length > self.limit {
            let rotated = self.rotate();
            if self.file.is_none() || self.bytes + length > 2 * self.limit {
                rotated?;
            }
        } else if !self.to_carry.is_empty() {
            // The next rotation insists on it.
            let _ = self.carry_over();
        }
        self.write(&line)?;
        self.note(record);
        Ok(())
    }

    fn note(&mut self, record: &Record) {
        if let Some(unreported) = &mut self.unreported {
            unreported.note(record);
        }
        if let Some(counts) = &mut self.counts {
            counts.note(record);
        }
    }

    /// Writes several records and waits once until all of them are on disk. False where nothing was written, because they do
    /// not fit into the present file or the disk refuses: each can be [appended](Self::append) then.
    pub fn append_together(&mut self, records: &[&Record]) -> bool {
        let mut lines = Vec::new();
        for record in records {
            let Ok(line) = self.line(record) else {
                return false;
            };
            lines.extend(line);
        }
        let has_room = self.find_removed().is_ok()
            && self.file.is_some()
            && self.to_carry.is_empty()
            && self.bytes + lines.len() as u64 <= self.limit;
        if !has_room || self.write(&lines).is_err() {
            return false;
        }
        records.iter().for_each(|record| self.note(record));
        true
    }

    /// What limits and recreations have counted before, as the files have it. From now on that is carried over whenever
    /// a file is full.
    ///
    /// # Errors
    /// A file that is there cannot be read, and no other has anything.
    pub fn restore(&mut self) -> Result<Restored, JournalError> {
        let mut counts = Counts::default();
        let read = read_what_can_be(&self.dir, Counts::wants);
        read.iter().flatten().for_each(|record| counts.note(record));
        let clocks = Clocks::now();
        let restored = counts.restore(&clocks);
        self.counts = Some(counts);
        self.to_carry = self.not_in_this_file();
        // Before anything new, for the order counts; the next rotation insists on it.
        let _ = self.carry_over();
        if restored.is_bound_needed {
            // Or it would count as just now at each start.
            let time = clocks.wall.to_string();
            if let Err(error) = self.append(&Record::TimeBound(TimeBound { time })) {
                tracing::warn!(%error, "cannot write to the journal that the clock was set back");
            }
        }
        read?;
        Ok(restored)
    }

    /// Records that limits and recreations count; `None` until [`Self::restore`] has read them.
    pub fn counts(&self) -> Option<&Counts> {
        self.counts.as_ref()
    }

    /// From now on keeps in mind what the API server has not heard of, starting with what the files hold, and carries
    /// it over whenever a file is full. Oldest first.
    ///
    /// # Errors
    /// A file that is there cannot be read, and no other has anything; what comes from now on is kept in mind all the same.
    pub fn follow(&mut self) -> Result<Vec<EvictionRecord>, JournalError> {
        let unreported = self.unreported.insert(ReportBacklog::default());
        for record in read_what_can_be(&self.dir, |_| true)? {
            unreported.note(&record);
        }
        let forgotten = unreported.forgotten();
        if forgotten > 0 {
            tracing::warn!(
                forgotten,
                "more evictions wait for their report than are kept: the oldest get none"
            );
        }
        let waiting = unreported.waiting().cloned().collect();
        self.to_carry = self.not_in_this_file();
        Ok(waiting)
    }

    /// Directory of the journal's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Counts the records that could not be written.
    pub fn lost(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lost)
    }

    fn line(&self, record: &Record) -> Result<Vec<u8>, JournalError> {
        let mut line = serde_json::to_vec(record).map_err(|e| self.error(e.into()))?;
        line.push(b'\n');
        Ok(line)
    }

    /// Writes a line behind what is acknowledged; it is acknowledged when it, and the file's name, are on disk.
    fn write(&mut self, line: &[u8]) -> Result<(), JournalError> {
        self.repair()?;
        let Some(file) = &mut self.file else {
            return Err(self.error(io::ErrorKind::NotFound.into()));
        };
        // Until all of it is on disk, what is there is no record.
        self.is_torn = true;
        let written = write_all(&self.disk, file, line).and_then(|()| self.disk.sync(file));
        written.map_err(|e| self.error(e))?;
        self.is_torn = false;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Puts right what an earlier failure has left: part of a line, names that are not on disk.
    fn repair(&mut self) -> Result<(), JournalError> {
        if let (true, Some(file)) = (self.is_torn, &mut self.file) {
            if self.disk.cut(file, self.bytes).is_err() {
                // At least the next record does not become its tail.
                let ended = write_all(&self.disk, file, b"\n");
                let length = ended.and_then(|()| self.disk.length(file));
                self.bytes = length.map_err(|e| self.error(e))?;
            }
            self.is_torn = false;
        }
        if let (true, Some(held)) = (self.names_pending, &self.held) {
            let synced = self.disk.sync_names(held);
            synced.map_err(PathError::at(&self.dir))?;
            self.names_pending = false;
        }
        Ok(())
    }

    /// Makes and locks the directory where that was not done yet, or another one has its name by now.
    fn hold(&mut self) -> Result<(), JournalError> {
        let dir = &self.dir;
        // On a disk that gives no answer nothing counts as removed.
        let is_held = |held| disk::is_at(held, dir).unwrap_or(true);
        if self.held.as_ref().is_some_and(is_held) {
            return Ok(());
        }
        fs::create_dir_all(dir).map_err(PathError::at(dir))?;
        let opened = File::open(dir).map_err(PathError::at(dir))?;
        match opened.try_lock() {
            Ok(()) => self.held = Some(opened),
            Err(fs::TryLockError::WouldBlock) => return Err(JournalError::InUse(dir.clone())),
            Err(fs::TryLockError::Error(e)) => return Err(PathError::at(dir)(e).into()),
        }
        Ok(())
    }

    /// Gives up a file that was removed, and locks a directory that was made anew: what is written to a file without a
    /// name is lost with the process.
    fn find_removed(&mut self) -> Result<(), JournalError> {
        self.hold()?;
        let Some(file) = &self.file else {
            return Ok(());
        };
        let path = self.path();
        // On a disk that gives no answer nothing counts as removed.
        if self.disk.is_at(file, &path).unwrap_or(true) {
            return Ok(());
        }
        tracing::error!(
            path = %path.display(),
            "the journal's file was removed: it begins anew, with what counts and what was not reported"
        );
        self.file = None;
        self.is_current = false;
        (self.bytes, self.is_torn) = (0, false);
        Ok(())
    }

    /// A new file in place of one that is full. After an error the full one goes on, whatever it is called by now: it
    /// never takes the place of the one before a second time.
    fn rotate(&mut self) -> Result<(), JournalError> {
        // Without a file there is nothing to carry it over to, and nothing of it goes.
        if self.file.is_some() {
            self.carry_over()?;
        }
        if self.is_current {
            let [from, to] = [CURRENT, PREVIOUS].map(|name| self.dir.join(name));
            match self.disk.rename(&from, &to) {
                // It was removed: all that is missing is the next one.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed.map_err(|e| self.error(e))?,
            }
            self.is_current = false;
            self.names_pending = true;
        }
        self.open_current()?;
        self.to_carry = self.kept();
        self.carry_over()
    }

    /// What a new file begins with, by id: what the API server has not heard of, and what counts, in the order of the
    /// journal.
    fn kept(&self) -> VecDeque<String> {
        let counting = self.counts.as_ref();
        let counting = counting.map_or_else(Vec::new, |counts| counts.newest(self.limit / CARRIED));
        let counts: HashSet<&String> = counting.iter().collect();
        let waiting = self.unreported.iter().flat_map(ReportBacklog::waiting);
        let ids = waiting.map(|eviction| &eviction.id);
        let only_waiting: Vec<String> = ids.filter(|id| !counts.contains(id)).cloned().collect();
        only_waiting.into_iter().chain(counting).collect()
    }

    /// Repeats in this file what the API server has not heard of and what counts: the file before will go. A record
    /// that is there twice counts once.
    fn carry_over(&mut self) -> Result<(), JournalError> {
        while !self.to_carry.is_empty() {
            let (mut lines, mut ids) = (Vec::new(), 0);
            for id in &self.to_carry {
                if let Some(record) = self.kept_record(id) {
                    lines.extend(self.line(&record)?);
                }
                ids += 1;
                if lines.len() as u64 >= self.limit / AT_ONCE {
                    break;
                }
            }
            if !lines.is_empty() {
                self.write(&lines)?;
            }
            self.to_carry.drain(..ids);
        }
        Ok(())
    }

    /// Finds the record that is kept of this id. An eviction may have been reported meanwhile; then it only counts.
    fn kept_record(&self, id: &str) -> Option<Record> {
        let mut waiting = self.unreported.iter().flat_map(ReportBacklog::waiting);
        match waiting.find(|eviction| eviction.id == id) {
            Some(eviction) => Some(Record::evicted(eviction.clone())),
            None => self.counts.as_ref()?.get(id).cloned(),
        }
    }

    fn open_current(&mut self) -> Result<(), JournalError> {
        self.hold()?;
        let path = self.dir.join(CURRENT);
        let (file, length) = self.disk.open(&path).map_err(PathError::at(&path))?;
        // A crash may have left half a line; the next record must not become its tail.
        let whole = match length {
            0 => 0,
            _ => whole_lines(&path).map_err(PathError::at(&path))?,
        };
        self.file = Some(file);
        self.bytes = whole;
        self.is_current = true;
        self.is_torn = whole < length;
        // The name must be on disk too, or a power failure takes the file with it.
        self.names_pending = true;
        Ok(())
    }

    /// What is kept and was not carried over by an earlier agent, which may have ended in the middle of that.
    fn not_in_this_file(&self) -> VecDeque<String> {
        let here = read_file(&self.dir.join(CURRENT), &|_| true);
        let here = here.map(|(records, _)| records).unwrap_or_default();
        let (mut evicted, mut counts) = (HashSet::new(), Counts::default());
        for record in &here {
            if let Record::Evicted(eviction) = record {
                evicted.insert(&eviction.id);
            }
            counts.note(record);
        }
        let waiting = self.unreported.iter().flat_map(ReportBacklog::waiting);
        let waiting: HashSet<&String> = waiting.map(|eviction| &eviction.id).collect();
        let is_missing = |id: &String| match waiting.contains(id) {
            true => !evicted.contains(id),
            false => counts.get(id).is_none(),
        };
        self.kept().into_iter().filter(is_missing).collect()
    }

    /// The file by the name that it has now.
    fn path(&self) -> PathBuf {
        let name = if self.is_current { CURRENT } else { PREVIOUS };
        self.dir.join(name)
    }

    fn error(&self, source: io::Error) -> JournalError {
        PathError::at(&self.path())(source).into()
    }
}

fn write_all<D: Disk>(disk: &D, file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match disk.write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Length of a file up to the end of its last whole line, in bytes.
fn whole_lines(path: &Path) -> io::Result<u64> {
    let text = fs::read(path)?;
    let whole = text
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    Ok(whole as u64)
}

/// Whether only another configuration helps. A disk that is full, read-only or broken stops no agent: the journal tries
/// again.
pub fn is_configured_wrong(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied};
    matches!(
        error.kind(),
        PermissionDenied | NotADirectory | IsADirectory
    )
}

/// Reads all records of a directory, oldest first. Lines that a crash has cut are left out and counted; those with an
/// event that only a later version knows are left out.
///
/// # Errors
/// A file that is there cannot be read.
pub fn read(dir: &Path) -> Result<(Vec<Record>, usize), PathError> {
    read_where(dir, |_| true)
}

/// Reads records like [`read`], but only from the lines that are wanted; the others are passed over unread.
///
/// # Errors
/// A file that is there cannot be read.
pub fn read_where(
    dir: &Path,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<(Vec<Record>, usize), PathError> {
    let (mut records, mut damaged) = (Vec::new(), 0);
    for name in [PREVIOUS, CURRENT] {
        let (read, unread) = read_file(&dir.join(name), &wanted)?;
        records.extend(read);
        let lines = unread
            .damage
            .iter()
            .filter(|damage| !damage.is_unknown_event);
        damaged += lines.map(|damage| damage.lines).sum::<usize>() + usize::from(unread.is_cut);
    }
    Ok((records, damaged))
}

/// Reads records like [`read_where`]; a file that cannot be read takes nothing from the other one.
fn read_what_can_be(dir: &Path, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Record>, PathError> {
    let (mut records, mut failed) = (Vec::new(), Ok(()));
    for name in [PREVIOUS, CURRENT] {
        match read_file(&dir.join(name), &wanted) {
            Ok((read, _)) => records.extend(read),
            Err(error) => failed = Err(error),
        }
    }
    match failed {
        Err(error) if records.is_empty() => return Err(error),
        Err(error) => {
            tracing::error!(%error, "a file of the journal cannot be read: only the other one counts")
        }
        Ok(()) => {}
    }
    Ok(records)
}

/// Gives all records of a directory to `take`, oldest first, and keeps none; says which files have lines that cannot be
/// read. A last line that a crash has cut is none of them.
///
/// # Errors
/// A file that is there cannot be read.
pub fn read_each(dir: &Path, mut take: impl FnMut(Record)) -> Result<Vec<Damage>, PathError> {
    let mut damage = Vec::new();
    for name in [PREVIOUS, CURRENT] {
        let read = each_of_file(&dir.join(name), &|_| true, &mut take)?;
        damage.extend(read.damage);
    }
    Ok(damage)
}

/// Whether older records may have gone with a file that was replaced.
pub fn is_cut(dir: &Path) -> bool {
    dir.join(PREVIOUS).exists()
}

/// Lines of one file that are no records.
#[derive(Default)]
struct Unread {
    /// At most one of each kind.
    damage: Vec<Damage>,
    /// Whether the file's last line has no end, and is no record.
    is_cut: bool,
}

/// The records of one file, which need not be there.
fn read_file(
    path: &Path,
    wanted: &impl Fn(&[u8]) -> bool,
) -> Result<(Vec<Record>, Unread), PathError> {
    let mut records = Vec::new();
    let unread = each_of_file(path, wanted, &mut |record| records.push(record))?;
    Ok((records, unread))
}

/// Reads the records of one file, which need not be there, and hands them on one after the other.
fn each_of_file(
    path: &Path,
    wanted: &impl Fn(&[u8]) -> bool,
    take: &mut impl FnMut(Record),
) -> Result<Unread, PathError> {
    let mut read = Unread::default();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(read),
        Err(e) => return Err(PathError::at(path)(e)),
    };
    let mut file = io::BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file
            .read_until(b'\n', &mut line)
            .map_err(PathError::at(path))?
            == 0
        {
            break;
        }
        let is_whole = line.pop_if(|end| *end == b'\n').is_some();
        if !wanted(&line) {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(record) => take(record),
            Err(_) if line.is_empty() => {}
            Err(_) if !is_whole => read.is_cut = true,
            Err(_) => {
                let (reason, is_unknown_event) = damage::reason(&line);
                let mut known = read.damage.iter_mut();
                match known.find(|known| known.is_unknown_event == is_unknown_event) {
                    Some(known) => known.lines += 1,
                    None => read.damage.push(Damage {
                        is_unknown_event,
                        path: path.to_owned(),
                        lines: 1,
                        first: number,
                        reason,
                    }),
                }
            }
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::OutcomeRecord;

    fn finish(id: &str) -> Record {
        Record::Finished(OutcomeRecord::unknown(id))
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
            (vec![finish("a"), finish("b")], 0)
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
