//! The evictions of a journal, and how one of them is named.

use std::{collections::BTreeMap, path::Path};

use evictd_store::{
    incident::Incident,
    journal::{self, Damage},
    record::{Record, Reported},
};
use evictd_sys::fs::PathError;

use super::CommandError;
use crate::cli::input::bad;

/// Names the newest one.
const LATEST: &str = "latest";

/// What the journal knows of one eviction.
pub(super) struct Known {
    /// Without what was seen before and after.
    pub incident: Incident,
    pub reported: Option<Reported>,
    /// The pod went. One that was asked may have been refused, by its budget for example.
    pub is_agreed: bool,
    /// By when it happened: one that a budget has protected goes later, under the name of its first request.
    place: usize,
}

impl Known {
    fn new(incident: Incident, place: usize) -> Self {
        let asked = incident.asked.as_ref();
        Self {
            is_agreed: !asked.is_some_and(|asked| asked.may_be_refused),
            incident,
            reported: None,
            place,
        }
    }
}

/// Every record of the journal, oldest first, and what of it cannot be read.
pub(super) fn journal_of(dir: &Path) -> Result<(Vec<Record>, Vec<Damage>), CommandError> {
    // A directory that is not there has no journal, which is not the same as an empty one.
    std::fs::read_dir(dir).map_err(PathError::at(dir))?;
    Ok(journal::read_noting_damage(dir)?)
}

/// Every eviction of a journal, oldest first.
pub(super) fn known(records: Vec<Record>) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    let mut places = BTreeMap::new();
    for record in records {
        match record {
            // What waited for the API server is carried over into a new file, and is there twice.
            Record::Evicted(eviction) if !places.contains_key(&eviction.id) => {
                places.insert(eviction.id.clone(), known.len());
                known.push(Known::new(Incident::new(*eviction), known.len()));
            }
            Record::Counted(counted) => {
                let next = known.len();
                let mut found = known.iter_mut().rev();
                let found = found.find(|known| id(known) == counted.id);
                if let Some(found) = found.filter(|known| !known.is_agreed) {
                    found.is_agreed = true;
                    found.incident.eviction.time = counted.time;
                    found.place = next;
                }
            }
            Record::Asked(asked) => {
                known.push(Known::new(Incident::of_asked(*asked), known.len()));
            }
            Record::Finished(finish) => {
                if let Some(known) = places.get(&finish.id).and_then(|i| known.get_mut(*i)) {
                    known.incident.finish = Some(finish);
                }
            }
            Record::Reported(reported) => {
                if let Some(known) = places.get(&reported.id).and_then(|i| known.get_mut(*i)) {
                    known.reported = Some(reported);
                }
            }
            _ => {}
        }
    }
    // Each before what came after its agreement.
    known.sort_by_key(|known| known.place);
    known
}

/// The eviction with this id, with this end of its id, or the latest one.
pub(super) fn find(mut known: Vec<Known>, wanted: &str, dir: &Path) -> Result<Known, CommandError> {
    let total = known.len();
    if wanted == LATEST
        && let Some(newest) = known.pop()
    {
        return Ok(newest);
    }
    let is_it = |known: &Known| !wanted.is_empty() && id(known).ends_with(wanted);
    let exact = known.iter().position(|k| id(k) == wanted);
    let mut matching = known.iter().enumerate().filter(|(_, k)| is_it(k));
    match (exact, matching.next(), matching.next()) {
        (Some(place), ..) => Ok(known.swap_remove(place)),
        (None, Some((place, _)), None) => Ok(known.swap_remove(place)),
        (None, Some(_), Some(_)) => Err(bad(wanted, "is the end of more than one incident's id")),
        (None, None, _) => {
            let dir = dir.display();
            let reason = format!("is none of the {total} incidents in {dir}");
            Err(bad(wanted, &reason))
        }
    }
}

fn id(known: &Known) -> &str {
    &known.incident.eviction.id
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A budget protects a pod for a while; another one goes, and then it goes too.
    #[test]
    fn who_was_asked_goes_when_that_is_agreed() {
        let asked = json!({
            "event": "asked", "id": "a", "time": "2026-11-22T02:00:00Z", "namespace": "shop", "name": "db", "uid": "u",
            "message": "low", "signal": "memory.available", "available": 1, "threshold": 2, "workingSet": 0, "request": 0,
            "shadow": false, "gracePeriodSeconds": 30, "decided": 0, "mayBeRefused": true,
        });
        let evicted = json!({
            "event": "evicted", "id": "b", "time": "2026-11-22T03:00:00Z", "namespace": "shop", "name": "web", "uid": "v",
            "reason": "Evicted", "message": "low", "signal": "memory.available", "shadow": false, "hook": "sampler",
            "stages": {"crossed": 0, "woken": 0, "decided": 0, "signalled": 0}, "available": 1, "threshold": 2,
            "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0,
        });
        let counted = json!({
            "event": "counted", "id": "a", "time": "2026-11-22T05:00:00Z", "boot": "", "at": 0,
            "namespace": "shop", "name": "db", "uid": "u",
            "signal": "memory.available",
        });
        let read = |lines: &[&Value]| {
            let records = lines
                .iter()
                .map(|line| serde_json::from_value((*line).clone()));
            let records: Result<Vec<Record>, _> = records.collect();
            let known = known(records.expect("records")).into_iter();
            known
                .map(|k| (id(&k).to_owned(), k.is_agreed, k.incident.eviction.time))
                .collect::<Vec<_>>()
        };
        let protected = read(&[&asked, &evicted]);
        assert_eq!((protected[0].0.as_str(), protected[0].1), ("a", false));
        let gone = read(&[&asked, &evicted, &counted]);
        assert_eq!(gone[0].0, "b");
        let expected = ("a".to_owned(), true, "2026-11-22T05:00:00Z".to_owned());
        assert_eq!(gone[1], expected);
    }
}
