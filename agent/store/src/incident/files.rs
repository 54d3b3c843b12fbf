//! Incidents on their way to the state directory: one file for each eviction, the newest ones are kept.
//!
//! A file is written a moment after the eviction is over, so that it shows what came afterwards. What cannot be written
//! is counted and logged; it stops no thread.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use evictd_engine::{
    recorder::SignalSample,
    units::{SECOND, nanos},
};
use evictd_sys::fs::{PathError, TEMPORARY};

use crate::{
    incident::{Incident, VERSION},
    record::OutcomeRecord,
};

/// Name of the directory of the incidents, in the state directory.
const DIRECTORY: &str = "incidents";
/// Extension of the incidents' files.
const FILE: &str = "json";
/// Files that are kept.
pub const MAX_FILES: usize = 64;
/// Evictions that may be open at once: as many as the fast path has under way. Of more, the oldest is given up.
const MAX_OPEN: usize = 64;
/// Time in nanoseconds for which an end is waited for; where a pod was asked to go, it begins when the pod's time is
/// over.
const PATIENCE_NS: u64 = 5 * SECOND;
/// How much of the time after the end is shown; of a pod that was asked to go as much as above, for it is looked at
/// seldom.
const AFTER_NS: u64 = SECOND;

/// Counters of what became of the incidents.
#[derive(Debug, Default)]
pub struct IncidentCounters {
    /// Files that were written.
    pub written: AtomicU64,
    /// Files that could not be written.
    pub failed: AtomicU64,
}

#[derive(Debug)]
struct Open {
    incident: Incident,
    /// Time at which the incident is written, in nanoseconds of CLOCK_MONOTONIC.
    due: u64,
}

/// Evictions that are not written yet.
#[derive(Debug)]
pub struct Incidents {
    directory: PathBuf,
    open: VecDeque<Open>,
    kept: Arc<IncidentCounters>,
}

impl Incidents {
    /// Creates an empty collection whose files go to this state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            directory: state_dir.join(DIRECTORY),
            open: VecDeque::new(),
            kept: Arc::default(),
        }
    }

    /// Counters of what became of the incidents so far.
    pub fn kept(&self) -> &Arc<IncidentCounters> {
        &self.kept
    }

    /// A pod was evicted, or asked to end. What was seen before is kept now: until the incident is written the recorder
    /// may have forgotten it.
    pub fn begin(&mut self, now: u64, mut incident: Incident, samples: &[SignalSample]) {
        incident.see(samples);
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
            self.kept.failed.fetch_add(1, Ordering::Relaxed);
        }
        let grace = incident.grace().unwrap_or(Duration::ZERO);
        let grace = nanos(grace);
        let due = now.saturating_add(grace).saturating_add(PATIENCE_NS);
        self.open.push_back(Open { incident, due });
    }

    /// Notes the outcome of an eviction that is over.
    pub fn finish(&mut self, now: u64, finish: &OutcomeRecord) {
        let is_it = |open: &&mut Open| open.incident.eviction.id == finish.id;
        if let Some(open) = self.open.iter_mut().find(is_it) {
            open.incident.finish = Some(finish.clone());
            open.due = now + AFTER_NS;
        }
    }

    /// Finds the pods that were asked to go and have gone; `is_gone` is asked by UID.
    pub fn find_gone(&mut self, now: u64, is_gone: impl Fn(&str) -> bool) {
        for Open { incident, due } in &mut self.open {
            let eviction = &incident.eviction;
            let is_expected = incident.grace().is_some() && incident.finish.is_none();
            if is_expected && is_gone(&eviction.uid) {
                incident.finish = Some(OutcomeRecord {
                    exited: now,
                    ..OutcomeRecord::unknown(&eviction.id)
                });
                *due = now + PATIENCE_NS;
            }
        }
    }

    /// Takes out the incidents that are due to be written by now.
    pub fn due(&mut self, now: u64) -> Vec<Incident> {
        let (due, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|open: &Open| open.due <= now);
        self.open = open;
        let due: VecDeque<Open> = due;
        due.into_iter().map(|open| open.incident).collect()
    }

    /// Creates the writer of the files.
    pub fn writer(&self) -> Writer {
        Writer {
            directory: self.directory.clone(),
            kept: Arc::clone(&self.kept),
        }
    }
}

/// Writes incidents; it may take its time.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    kept: Arc<IncidentCounters>,
}

impl Writer {
    /// Writes each with those of the samples that belong to it, and removes the oldest files.
    pub fn write(&self, incidents: Vec<Incident>, samples: &[SignalSample]) {
        for mut incident in incidents {
            incident.see(samples);
            incident.fill_outcome();
            match self.write_one(&incident) {
                Ok(()) => self.kept.written.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    let id = &incident.eviction.id;
                    tracing::warn!(id, %error, "an incident cannot be written down");
                    self.kept.failed.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
        if let Err(error) = self.remove_old() {
            tracing::warn!(%error, "incidents that are too many cannot be removed");
        }
    }

    fn remove_old(&self) -> io::Result<()> {
        let listed = names(&self.directory, FILE)?;
        // An agent that was killed while it wrote has left a temporary file.
        let left = names(&self.directory, TEMPORARY)?;
        let mut removed = Ok(());
        for path in listed.iter().rev().skip(MAX_FILES).chain(&left) {
            // One that stays keeps no other.
            removed = removed.and(fs::remove_file(path));
        }
        removed
    }

    fn write_one(&self, incident: &Incident) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let path = file(&self.directory, &incident.eviction.id);
        evictd_sys::fs::replace(&path, &serde_json::to_vec(incident)?, true)
    }
}

/// The files with this extension, the oldest first. One of a time to come is older than all others: the clock was set
/// back since.
fn names(directory: &Path, wanted: &str) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => oldest_first(entries, wanted),
        // No incident was written yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn oldest_first(entries: fs::ReadDir, wanted: &str) -> io::Result<Vec<PathBuf>> {
    let now = SystemTime::now();
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != wanted) {
            continue;
        }
        match fs::symlink_metadata(&path).and_then(|facts| facts.modified()) {
            Ok(written) => names.push((written <= now, written, path)),
            // The agent writes and removes files while a report lists them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    names.sort();
    Ok(names.into_iter().map(|(_, _, path)| path).collect())
}

/// The ids of the incidents that have a file, oldest file first; at most [`MAX_FILES`].
///
/// # Errors
/// The directory is there and cannot be listed.
pub fn ids(state_dir: &Path) -> Result<Vec<String>, PathError> {
    let directory = state_dir.join(DIRECTORY);
    let names = names(&directory, FILE).map_err(PathError::at(&directory))?;
    let newest = names.len().saturating_sub(MAX_FILES);
    let ids = names
        .iter()
        .skip(newest)
        .filter_map(|path| path.file_stem());
    Ok(ids
        .filter_map(|id| id.to_str().map(str::to_owned))
        .collect())
}

/// Reads what was kept of an eviction, if anything was.
///
/// # Errors
/// The file is there and cannot be read, or does not hold an incident: the field is named.
pub fn read(state_dir: &Path, id: &str) -> Result<Option<Incident>, PathError> {
    let path = file(&state_dir.join(DIRECTORY), id);
    match fs::read(&path) {
        Ok(bytes) => {
            let incident = decode(&bytes).map_err(io::Error::other);
            incident.map(Some).map_err(PathError::at(&path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PathError::at(&path)(error)),
    }
}

/// Decodes what a file holds.
///
/// # Errors
/// It is no incident, or one of another version: the field is named.
pub fn decode(bytes: &[u8]) -> Result<Incident, String> {
    let mut bytes = serde_json::Deserializer::from_slice(bytes);
    let incident: Incident = serde_path_to_error::deserialize(&mut bytes).map_err(|error| {
        match error.path().to_string().as_str() {
            "." => error.into_inner().to_string(),
            field => format!("{field}: {}", error.inner()),
        }
    })?;
    bytes.end().map_err(|error| error.to_string())?;
    if incident.version != VERSION {
        let version = incident.version;
        return Err(format!(
            "version: {version} is not known here, only {VERSION}"
        ));
    }
    Ok(incident)
}

fn file(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.{FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::tests::incident;
    use evictd_engine::{Signal, pace::PaceInputs, recorder::Recorder};

    fn begun(incident: &Incident) -> Incident {
        Incident {
            pods: incident.pods.clone(),
            ..Incident::new(incident.eviction.clone())
        }
    }

    #[test]
    fn what_is_damaged_is_named() {
        let whole = serde_json::to_value(incident("one")).unwrap();
        let error = |change: fn(&mut serde_json::Value)| {
            let mut value = whole.clone();
            change(&mut value);
            decode(value.to_string().as_bytes()).unwrap_err()
        };
        let wrong_type = error(|v| v["eviction"]["stages"]["woken"] = "soon".into());
        assert!(
            wrong_type.starts_with("eviction.stages.woken: invalid type: string"),
            "{wrong_type}"
        );
        let sample = error(|v| v["samples"]["memory.available"][1] = 7.into());
        assert!(
            sample.starts_with("samples.memory.available[1]: "),
            "{sample}"
        );
        let later = error(|v| {
            let pace = PaceInputs::default();
            v["judged"] = serde_json::to_value(pace).unwrap();
            let growth = &mut v["judged"]["pace"]["growth"];
            growth["latest"] = serde_json::json!({"time": 10, "amount": 0});
            growth["windows"][0]["begin"] = serde_json::json!({"time": 20, "amount": 0});
        });
        assert!(
            later.starts_with("judged.pace.growth: windows[0].begin.time: 20: is later than latest.time, which is 10"),
            "{later}"
        );
        let missing = error(|v| drop(v.as_object_mut().unwrap().remove("eviction")));
        assert!(missing.contains("missing field `eviction`"), "{missing}");
        let newer = error(|v| v["version"] = 2.into());
        assert_eq!(newer, "version: 2 is not known here, only 1");
        let text = whole.to_string();
        assert!(decode(&text.as_bytes()[..text.len() / 2]).is_err());
        assert!(decode(format!("{text}x").as_bytes()).is_err());
    }

    // R49
    #[test]
    fn an_eviction_is_written_when_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut incidents = Incidents::new(dir.path());
        let (one, two) = (incident("one"), incident("two"));
        incidents.begin(SECOND, begun(&one), &[]);
        incidents.begin(SECOND, begun(&two), &[]);
        incidents.finish(2 * SECOND, one.finish.as_ref().unwrap());
        assert!(incidents.due(2 * SECOND).is_empty());
        let due = incidents.due(3 * SECOND);
        let samples = [SECOND / 2, SECOND].map(|time| SignalSample {
            time,
            signal: Signal::MemoryAvailable,
            available: 7,
        });
        incidents.writer().write(due, &samples);
        let read = |id| read(dir.path(), id).unwrap();
        let kept = read("one").unwrap();
        assert_eq!((&kept.eviction, &kept.finish), (&one.eviction, &one.finish));
        assert_eq!(
            kept.samples["memory.available"],
            [(SECOND / 2, 7), (SECOND, 7)]
        );
        assert_eq!(read("two"), None);
        // Its end was not reported.
        incidents
            .writer()
            .write(incidents.due(6 * SECOND), &samples);
        assert_eq!(read("two").unwrap().finish, None);
        assert_eq!(incidents.kept().written.load(Ordering::Relaxed), 2);
    }

    // R49
    #[test]
    fn what_was_seen_before_outlives_the_recorder() {
        let dir = tempfile::tempdir().unwrap();
        let mut incidents = Incidents::new(dir.path());
        let (recorder, one) = (Recorder::default(), incident("one"));
        let crossed = one.eviction.stages.crossed;
        let look = |time: u64| recorder.record(time, Signal::MemoryAvailable, 7);
        look(crossed - 5_000_000);
        look(crossed);
        incidents.begin(SECOND, begun(&one), &recorder.since(0));
        // Until the pod is gone the fast path looks every millisecond.
        (1..=2000).for_each(|ms| look(crossed + ms * 1_000_000));
        let seen = recorder.since(0);
        assert!(seen.iter().all(|sample| sample.time > crossed));
        incidents.writer().write(incidents.due(u64::MAX), &seen);
        let kept = read(dir.path(), "one").unwrap().unwrap();
        let samples = &kept.samples["memory.available"];
        assert_eq!(samples[0], (crossed - 5_000_000, 7));
        assert!(samples.is_sorted() && samples.len() == seen.len() + 1);
    }

    #[test]
    fn only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut incidents = Incidents::new(dir.path());
        let name = |number: usize| format!("{number:03}");
        for number in 0..MAX_OPEN + 2 {
            incidents.begin(SECOND, begun(&incident(&name(number))), &[]);
        }
        assert_eq!(incidents.kept().failed.load(Ordering::Relaxed), 2);
        incidents.writer().write(incidents.due(u64::MAX), &[]);
        for number in MAX_OPEN + 2..MAX_OPEN + 5 {
            incidents.begin(SECOND, begun(&incident(&name(number))), &[]);
            incidents.writer().write(incidents.due(u64::MAX), &[]);
        }
        assert_eq!(
            names(&dir.path().join(DIRECTORY), FILE).unwrap().len(),
            MAX_FILES
        );
        let is_there = |number| read(dir.path(), &name(number)).unwrap().is_some();
        assert!(!is_there(0) && !is_there(2) && is_there(MAX_OPEN + 4));
        // The clock is set back a day.
        let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
        for path in names(&dir.path().join(DIRECTORY), FILE).unwrap() {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(tomorrow).unwrap();
        }
        for number in MAX_OPEN + 5..MAX_OPEN + 7 {
            incidents.begin(SECOND, begun(&incident(&name(number))), &[]);
            incidents.writer().write(incidents.due(u64::MAX), &[]);
        }
        assert!(is_there(MAX_OPEN + 5) && is_there(MAX_OPEN + 6));
    }

    /// An agent that runs replaces temporary files and removes old ones while a report lists them.
    #[test]
    fn a_file_that_vanishes_meanwhile_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a.json", "b.json", "c.json"].map(|name| dir.path().join(name));
        files.iter().for_each(|file| fs::write(file, "{}").unwrap());
        let mut entries = fs::read_dir(dir.path()).unwrap();
        // With the first entry the kernel has given out all of them.
        let first = entries.next().unwrap().unwrap().path();
        let rest: Vec<_> = files.iter().filter(|file| **file != first).collect();
        fs::remove_file(rest[0]).unwrap();
        assert_eq!(oldest_first(entries, FILE).unwrap(), [rest[1].clone()]);
    }

    #[test]
    fn a_directory_that_cannot_be_listed_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ids(dir.path()).unwrap(), [""; 0]);
        fs::write(dir.path().join(DIRECTORY), "in the way").unwrap();
        let error = ids(dir.path()).unwrap_err().to_string();
        assert!(error.contains(DIRECTORY), "{error}");
    }

    #[test]
    fn what_a_crash_has_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(DIRECTORY).join("half.new");
        fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
        fs::write(&left, "{").unwrap();
        let mut incidents = Incidents::new(dir.path());
        incidents.begin(SECOND, begun(&incident("one")), &[]);
        incidents.writer().write(incidents.due(u64::MAX), &[]);
        assert!(!left.exists());
        assert!(read(dir.path(), "one").unwrap().is_some());
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(DIRECTORY), "in the way").unwrap();
        let mut incidents = Incidents::new(dir.path());
        incidents.begin(SECOND, begun(&incident("one")), &[]);
        incidents.writer().write(incidents.due(u64::MAX), &[]);
        assert_eq!(incidents.kept().failed.load(Ordering::Relaxed), 1);
    }
}
