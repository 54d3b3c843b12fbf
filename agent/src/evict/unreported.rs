//! Evictions that are in the journal and that the API server has not heard of.

use std::collections::VecDeque;

use super::journal::{Eviction, Record};

/// How many may wait; with more the oldest are forgotten and counted. At half a KiB each they fit into one file of the
/// journal many times over.
const WAITING: usize = 1024;

/// What waits, oldest first.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    waiting: VecDeque<Eviction>,
    forgotten: u64,
}

impl Unreported {
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
            Record::Finished(_) | Record::Asked(_) => {}
        }
    }

    /// What waits, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Eviction> {
        self.waiting.iter()
    }

    /// How many did not fit.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
