//! Which changes of the pauses go to the journal: an operator asks later when evictions were paused.

use std::{collections::BTreeMap, path::Path};

use evictd_policy::{PauseChange, PauseSource, PauseState};
use evictd_store::{
    journal,
    record::{Pause, Record},
};
use evictd_sys::fs::PathError;

/// Turns changes into records, each once: a pause that an earlier agent has written down is no news.
#[derive(Debug, Default)]
pub struct PauseLog {
    /// Whether each source pauses, by its last record in the journal.
    written: BTreeMap<String, bool>,
    is_started: bool,
}

impl PauseLog {
    /// Goes on where the journal of this directory ends.
    ///
    /// # Errors
    /// A file that is there cannot be read.
    pub fn from_journal(dir: &Path) -> Result<Self, PathError> {
        // Of eight megabytes of records these are few: the others need not be read.
        let (records, _) =
            journal::read_where(dir, |line| line.starts_with(br#"{"event":"paused""#))?;
        let words = records.into_iter().filter_map(|record| match record {
            Record::Paused(pause) => Some((pause.by, pause.paused)),
            _ => None,
        });
        Ok(Self {
            written: words.collect(),
            is_started: false,
        })
    }

    /// Lists the changes that are to be written down now.
    pub fn changes(&mut self, state: &PauseState) -> Vec<Pause> {
        let (mut changes, untold) = state.changes();
        if !std::mem::replace(&mut self.is_started, true) {
            // What was lifted while no agent ran is no change to this one.
            changes.extend(PauseSource::ALL.map(|source| PauseChange::now(source, state)));
        }
        let mut news = Vec::new();
        for change in changes {
            let by = change.source.as_str().to_owned();
            if self
                .written
                .insert(by.clone(), change.paused)
                .unwrap_or(false)
                == change.paused
            {
                continue;
            }
            news.push(Pause {
                time: change.time.to_string(),
                by,
                paused: change.paused,
                evictions_paused: change.evictions_paused,
                untold: 0,
            });
        }
        if let Some(first) = news.first_mut() {
            first.untold = untold;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use evictd_store::journal::Journal;

    fn state() -> PauseState {
        PauseState::new(Arc::default())
    }

    fn reported(
        pauses: &mut PauseLog,
        state: &PauseState,
        journal: &mut Journal,
    ) -> Vec<(String, bool, bool)> {
        let news = pauses.changes(state);
        for pause in &news {
            journal
                .append(&Record::Paused(pause.clone()))
                .expect("a journal");
        }
        let words = news.into_iter();
        words
            .map(|p| (p.by, p.paused, p.evictions_paused))
            .collect()
    }

    #[test]
    fn every_change_is_reported_once_over_restarts() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = Journal::open(dir.path()).expect("a journal");
        let open = || PauseLog::from_journal(dir.path()).expect("a journal");
        let word = |by: &str, paused, all| (by.to_owned(), paused, all);
        let (mut pauses, first) = (open(), state());
        assert_eq!(reported(&mut pauses, &first, &mut journal), []);
        first.set(PauseSource::Node, true);
        first.set(PauseSource::File, true);
        first.set(PauseSource::File, false);
        assert_eq!(
            reported(&mut pauses, &first, &mut journal),
            [
                word("node", true, true),
                word("file", true, true),
                word("file", false, true)
            ]
        );
        assert_eq!(reported(&mut pauses, &first, &mut journal), []);
        // The next agent finds the same pause: no news.
        let (mut pauses, second) = (open(), state());
        second.set(PauseSource::Node, true);
        assert_eq!(reported(&mut pauses, &second, &mut journal), []);
        // The one after it does not: it was lifted between two looks.
        let (mut pauses, third) = (open(), state());
        assert_eq!(
            reported(&mut pauses, &third, &mut journal),
            [word("node", false, false)]
        );
        assert_eq!(reported(&mut open(), &state(), &mut journal), []);
    }

    #[test]
    fn a_flapping_source_does_not_fill_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut pauses = PauseLog::from_journal(dir.path()).expect("no journal is none");
        let state = state();
        for i in 0..1001 {
            state.set(PauseSource::ConfigMap, i % 2 == 0);
        }
        let news = pauses.changes(&state);
        assert!(news.len() <= 16, "{}", news.len());
        assert_eq!(news[0].untold + 16, 1001);
        assert!(
            news.last().is_some_and(|p| p.paused),
            "the last word is told"
        );
    }
}
