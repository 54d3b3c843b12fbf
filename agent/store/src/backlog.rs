//! Evictions that are in the journal and that the API server has not heard of.

use std::collections::VecDeque;

use crate::record::{EvictionRecord, Record};

/// How many may wait; with more the oldest are forgotten and counted. At half a KiB each they fit into one file of the
/// journal many times over.
const WAITING: usize = 1024;

/// Evictions that wait to be reported, oldest first.
#[derive(Debug, Default)]
pub struct ReportBacklog {
    waiting: VecDeque<EvictionRecord>,
    forgotten: u64,
}

impl ReportBacklog {
    /// Takes in a record in the order of the journal. A record that was carried over counts once.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Evicted(eviction) => {
                if self.waiting.iter().any(|e| e.id == eviction.id) {
                    return;
                }
                if self.waiting.len() == WAITING {
                    self.waiting.pop_front();
                    self.forgotten += 1;
                }
                self.waiting.push_back((**eviction).clone());
            }
            Record::Reported(reported) => self.waiting.retain(|e| e.id != reported.id),
            _ => {}
        }
    }

    /// Iterates over the evictions that wait, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = &EvictionRecord> {
        self.waiting.iter()
    }

    /// Number of evictions that did not fit.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{FILE_BYTES, Journal},
        record::{OutcomeRecord, Reported},
    };

    fn eviction(id: &str, padding: usize) -> Record {
        Record::evicted(EvictionRecord {
            message: "x".repeat(padding),
            ..EvictionRecord::example(id)
        })
    }

    fn ids(evictions: &[EvictionRecord]) -> Vec<&str> {
        evictions.iter().map(|e| e.id.as_str()).collect()
    }

    // R42: however long the API server is away, what it has not heard of is not pushed out of the journal by what it
    // has.
    #[test]
    fn what_waits_outlives_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert!(journal.follow().unwrap().is_empty());
        journal.append(&eviction("waits", 10)).unwrap();
        journal.append(&eviction("told", 10)).unwrap();
        let told = Reported {
            id: "told".into(),
            time: String::new(),
            outcome: "deleted".into(),
        };
        journal.append(&Record::Reported(told)).unwrap();
        let filler = Record::Finished(OutcomeRecord::unknown(&"x".repeat(1 << 20)));
        for _ in 0..20 {
            journal.append(&filler).unwrap();
        }
        drop(journal);
        let mut journal = Journal::open(dir.path()).unwrap();
        assert_eq!(ids(&journal.follow().unwrap()), ["waits"]);
        let bytes: u64 = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(bytes <= 2 * FILE_BYTES, "{bytes}");
    }

    #[test]
    fn the_oldest_is_forgotten_and_counted() {
        let mut unreported = ReportBacklog::default();
        for n in 0..=WAITING {
            unreported.note(&eviction(&n.to_string(), 0));
        }
        // What was carried over comes a second time.
        unreported.note(&eviction("5", 0));
        assert_eq!(unreported.forgotten(), 1);
        assert_eq!(unreported.waiting().count(), WAITING);
        assert_eq!(unreported.waiting().next().unwrap().id, "1");
    }
}
