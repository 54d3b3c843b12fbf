//! The evictions of a state directory, from its journal and incident files, and how a user names one of them.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use evictd_store::{
    incident::{Incident, files},
    journal::{self, Damage},
    record::{EvictionRecord, OutcomeRecord, Record, Reported, RequestRecord},
};
use evictd_sys::fs::PathError;

use super::CommandError;
use crate::cli::input::bad;

/// Name of the newest eviction.
const LATEST: &str = "latest";
/// Requests without an agreement that may still get one: after so many, an agent forgets which pods it has requested.
pub(super) const REQUESTS: usize = 256;

/// One eviction, without the samples before and after it.
pub(super) struct EvictionSummary {
    pub eviction: Box<EvictionRecord>,
    pub asked: Option<Box<RequestRecord>>,
    pub reported: Option<Reported>,
    /// The pod went. The API server may have refused a request, for a disruption budget for example.
    pub is_agreed: bool,
    finish: Option<OutcomeRecord>,
}

impl EvictionSummary {
    fn new(eviction: Box<EvictionRecord>, asked: Option<Box<RequestRecord>>) -> Self {
        Self {
            is_agreed: !asked.as_ref().is_some_and(|asked| asked.may_be_refused),
            eviction,
            asked,
            reported: None,
            finish: None,
        }
    }

    /// A refused eviction has no incident file.
    fn of_file(incident: Incident) -> Self {
        let asked = incident.asked.map(Box::new);
        Self {
            is_agreed: true,
            finish: incident.finish,
            ..Self::new(Box::new(incident.eviction), asked)
        }
    }

    /// The incident as far as it is known without its file.
    pub fn incident(self) -> Incident {
        Incident {
            asked: self.asked.map(|asked| *asked),
            finish: self.finish,
            ..Incident::new(*self.eviction)
        }
    }
}

/// Which evictions to keep in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    All,
    /// So many, the newest ones.
    Newest(usize),
    /// Evictions whose id ends with this text; for `latest` the newest one.
    Named(&'a str),
}

/// The evictions that were selected, oldest first.
pub(super) struct Evictions {
    pub known: Vec<EvictionSummary>,
    /// Number of all evictions, selected or not.
    pub total: usize,
    /// Incident files that cannot be read and might be selected, or their directory.
    pub damaged: Vec<PathError>,
}

/// Reads the evictions of a state directory. The error tells which lines of its journal cannot be read.
pub(super) fn evictions(
    dir: &Path,
    wanted: Wanted<'_>,
) -> Result<(Evictions, Vec<Damage>), CommandError> {
    let mut gathered = Gathered::new(wanted);
    let damage = each_record(dir, |record| gathered.take(record))?;
    Ok((gathered.with_files(dir), damage))
}

/// Gives every record of the journal to `take`, oldest first. The error tells which lines cannot be read.
pub(super) fn each_record(
    dir: &Path,
    take: impl FnMut(Record),
) -> Result<Vec<Damage>, CommandError> {
    // A directory that is not there has no journal, which is not the same as an empty one.
    std::fs::read_dir(dir).map_err(PathError::at(dir))?;
    Ok(journal::read_each(dir, take)?)
}

/// Gathers evictions from the journal, record by record. A full journal has some ten thousand.
struct Gathered<'a> {
    wanted: Wanted<'a>,
    /// Evictions in the order in which they happened: one that a budget has protected goes later, under the name of its
    /// first request.
    known: BTreeMap<usize, EvictionSummary>,
    /// Number of evictions in `known` that are agreed.
    agreed: usize,
    next: usize,
    /// The place of each eviction, kept or not, by id.
    places: HashMap<String, usize>,
}

impl<'a> Gathered<'a> {
    fn new(wanted: Wanted<'a>) -> Self {
        Self {
            wanted: match wanted {
                Wanted::Named(LATEST) => Wanted::Newest(1),
                wanted => wanted,
            },
            known: BTreeMap::new(),
            agreed: 0,
            next: 0,
            places: HashMap::new(),
        }
    }

    fn take(&mut self, record: Record) {
        match record {
            // A record that waited for the API server is carried over into a new file, and is there twice.
            Record::Evicted(eviction) if !self.places.contains_key(&eviction.id) => {
                self.add(eviction, None);
            }
            Record::Requested(asked) => {
                let eviction = Box::new(EvictionRecord::from(asked.as_ref()));
                self.add(eviction, Some(asked));
            }
            Record::Counted(counted) => {
                if let Some(mut known) = self.take_open(&counted.id) {
                    known.is_agreed = true;
                    known.eviction.time = counted.time;
                    self.keep(known);
                }
            }
            Record::Finished(finish) => {
                if let Some(known) = self.find(&finish.id) {
                    known.finish = Some(finish);
                }
            }
            Record::Reported(reported) => {
                if let Some(known) = self.find(&reported.id) {
                    known.reported = Some(reported);
                }
            }
            _ => {}
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut EvictionSummary> {
        self.known.get_mut(self.places.get(id)?)
    }

    /// Removes a request that is not agreed to yet.
    fn take_open(&mut self, id: &str) -> Option<EvictionSummary> {
        let place = self.places.get(id)?;
        let is_open = self.known.get(place).is_some_and(|known| !known.is_agreed);
        is_open.then(|| self.known.remove(place)).flatten()
    }

    fn add(&mut self, eviction: Box<EvictionRecord>, asked: Option<Box<RequestRecord>>) {
        match is_wanted(self.wanted, &eviction.id) {
            true => self.keep(EvictionSummary::new(eviction, asked)),
            false => {
                self.places.insert(eviction.id, self.next);
                self.next += 1;
            }
        }
    }

    fn keep(&mut self, known: EvictionSummary) {
        self.places.insert(id(&known).to_owned(), self.next);
        let is_agreed = known.is_agreed;
        self.agreed += usize::from(is_agreed);
        self.known.insert(self.next, known);
        self.next += 1;
        let Wanted::Newest(most) = self.wanted else {
            return;
        };
        // One that is not agreed to yet may become the newest, as long as the agent knows its request.
        let (kept, most) = match is_agreed {
            true => (self.agreed, most),
            false => (self.known.len() - self.agreed, most.max(REQUESTS)),
        };
        let mut alike = (self.known.iter()).filter(|(_, known)| known.is_agreed == is_agreed);
        if kept > most
            && let Some(place) = alike.next().map(|(place, _)| *place)
        {
            self.known.remove(&place);
            self.agreed -= usize::from(is_agreed);
        }
    }

    /// Adds the incidents whose files outlive their records in the journal.
    fn with_files(self, dir: &Path) -> Evictions {
        let mut known: Vec<EvictionSummary> = self.known.into_values().collect();
        let mut total = self.places.len();
        let mut damaged = Vec::new();
        let ids = files::ids(dir).unwrap_or_else(|error| {
            damaged.push(error);
            Vec::new()
        });
        for id in ids.into_iter().filter(|id| !self.places.contains_key(id)) {
            total += 1;
            if !is_wanted(self.wanted, &id) {
                continue;
            }
            match files::read(dir, &id) {
                Ok(Some(incident)) => {
                    let at = place_of(&known, &incident);
                    known.insert(at, EvictionSummary::of_file(incident));
                }
                // Its place was needed for a newer one meanwhile.
                Ok(None) => total -= 1,
                Err(error) => {
                    total -= 1;
                    damaged.push(error);
                }
            }
        }
        if let Wanted::Newest(most) = self.wanted {
            known.drain(..known.len().saturating_sub(most));
        }
        Evictions {
            known,
            total,
            damaged,
        }
    }
}

fn is_wanted(wanted: Wanted<'_>, id: &str) -> bool {
    match wanted {
        Wanted::All | Wanted::Newest(_) => true,
        Wanted::Named(end) => !end.is_empty() && id.ends_with(end),
    }
}

/// Position of an incident among the known evictions by its time. The order of the journal stays: the clock may have
/// been set back.
fn place_of(known: &[EvictionSummary], incident: &Incident) -> usize {
    let time = |eviction: &EvictionRecord| eviction.time.parse::<jiff::Timestamp>().ok();
    let at = time(&incident.eviction);
    let before = |known: &EvictionSummary| time(&known.eviction) <= at;
    known.iter().rposition(before).map_or(0, |last| last + 1)
}

impl Evictions {
    /// Number of evictions that are older than the selected ones.
    pub(super) fn left_out(&self) -> usize {
        self.total.saturating_sub(self.known.len())
    }

    /// The eviction with this id, with this end of its id, or the latest one, among those that were selected so.
    pub(super) fn find(self, wanted: &str, dir: &Path) -> Result<EvictionSummary, CommandError> {
        let Self {
            mut known,
            total,
            damaged,
        } = self;
        if wanted == LATEST
            && let Some(newest) = known.pop()
        {
            return Ok(newest);
        }
        let exact = known.iter().position(|known| id(known) == wanted);
        match (exact, known.len()) {
            (Some(place), _) => Ok(known.swap_remove(place)),
            (None, 1) => Ok(known.swap_remove(0)),
            (None, 0) => Err(match damaged.into_iter().next() {
                Some(damaged) => damaged.into(),
                None => {
                    let dir = dir.display();
                    let reason = format!("is none of the {total} incidents in {dir}");
                    bad(wanted, &reason)
                }
            }),
            (None, _) => Err(bad(wanted, "is the end of more than one incident's id")),
        }
    }
}

fn id(known: &EvictionSummary) -> &str {
    &known.eviction.id
}

#[cfg(test)]
mod tests {
    use evictd_store::record::counted::Counted;
    use serde_json::{Value, json};

    use super::*;

    fn asked(id: &str) -> Value {
        json!({
            "event": "asked", "id": id, "time": "2026-11-22T02:00:00Z", "namespace": "shop", "name": "db", "uid": "u",
            "message": "low", "signal": "memory.available", "available": 1, "threshold": 2, "workingSet": 0,
            "request": 0,
            "shadow": false, "gracePeriodSeconds": 30, "decided": 0, "mayBeRefused": true,
        })
    }

    /// A budget protects a pod for a while; another one goes, and then it goes too.
    #[test]
    fn a_pod_that_was_asked_goes_when_that_is_agreed() {
        let asked = asked("a");
        let evicted = json!({
            "event": "evicted", "id": "b", "time": "2026-11-22T03:00:00Z", "namespace": "shop", "name": "web",
            "uid": "v",
            "reason": "Evicted", "message": "low", "signal": "memory.available", "shadow": false, "hook": "sampler",
            "stages": {"crossed": 0, "woken": 0, "decided": 0, "signalled": 0}, "available": 1, "threshold": 2,
            "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0,
        });
        let counted = json!({
            "event": "counted", "id": "a", "time": "2026-11-22T05:00:00Z", "boot": "", "at": 0,
            "namespace": "shop", "name": "db", "uid": "u",
            "signal": "memory.available",
        });
        let read_wanted = |lines: &[&Value], wanted: Wanted<'_>| {
            let records = lines
                .iter()
                .map(|line| serde_json::from_value((*line).clone()));
            let records: Result<Vec<Record>, _> = records.collect();
            let mut gathered = Gathered::new(wanted);
            let records = records.expect("records").into_iter();
            records.for_each(|record| gathered.take(record));
            let nowhere = Path::new("/nowhere");
            let known = gathered.with_files(nowhere).known.into_iter();
            known
                .map(|k| (id(&k).to_owned(), k.is_agreed, k.eviction.time))
                .collect::<Vec<_>>()
        };
        let read = |lines: &[&Value]| read_wanted(lines, Wanted::All);
        let protected = read(&[&asked, &evicted]);
        assert_eq!((protected[0].0.as_str(), protected[0].1), ("a", false));
        let gone = read(&[&asked, &evicted, &counted]);
        assert_eq!(gone[0].0, "b");
        let expected = ("a".to_owned(), true, "2026-11-22T05:00:00Z".to_owned());
        assert_eq!(gone[1], expected);
        // It was the oldest, and becomes the newest.
        let newest = read_wanted(&[&asked, &evicted, &counted], Wanted::Newest(1));
        assert_eq!((newest.len(), &newest[0]), (1, &expected));
        let named = read_wanted(&[&asked, &evicted, &counted], Wanted::Named("a"));
        assert_eq!(named, [expected]);
        let latest = read_wanted(&[&asked, &counted, &evicted], Wanted::Named(LATEST));
        assert_eq!(latest[0].0, "b");
    }

    #[test]
    fn incidents_that_cannot_be_listed_are_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let found = |dir: &Path| Gathered::new(Wanted::All).with_files(dir).damaged;
        assert!(found(dir.path()).is_empty());
        std::fs::write(dir.path().join("incidents"), "in the way").unwrap();
        let damaged = found(dir.path())[0].to_string();
        assert!(damaged.contains("incidents: "), "{damaged}");
    }

    /// Budgets refuse for weeks, and the journal has every request.
    #[test]
    fn requests_without_an_answer_are_bounded() {
        let record = |n: usize| -> Record {
            serde_json::from_value(asked(&format!("asked-{n}"))).expect("a record")
        };
        let mut gathered = Gathered::new(Wanted::Newest(2));
        (0..10_000).for_each(|n| gathered.take(record(n)));
        assert_eq!(gathered.known.len(), REQUESTS);
        // The last ones may still be agreed to.
        for n in [9_998, 1, 9_900, 9_997] {
            let Record::Requested(asked) = record(n) else {
                panic!("it is a request");
            };
            gathered.take(Record::Counted(Box::new(Counted::agreed(&asked))));
        }
        let agreed = gathered.known.values().filter(|known| known.is_agreed);
        assert_eq!(
            agreed.map(id).collect::<Vec<_>>(),
            ["asked-9900", "asked-9997"]
        );
        let found = gathered.with_files(Path::new("/nowhere"));
        assert_eq!((found.known.len(), found.total), (2, 10_000));
    }
}
