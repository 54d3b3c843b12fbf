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
}

impl Known {
    fn new(incident: Incident) -> Self {
        Self {
            incident,
            reported: None,
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
                known.push(Known::new(Incident::new(*eviction)));
            }
            Record::Asked(asked) => {
                known.push(Known::new(Incident::of_asked(*asked)));
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
