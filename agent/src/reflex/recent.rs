//! What the pods used a moment ago: shortly before a crossing all of them are asked, so that the decision has to ask only
//! those that come first.
//!
//! Usage that was read a little earlier, plus what the fastest growth of the machine may have added since, is an upper
//! bound, and that is all that the choice needs of those that it passes over ([`crate::engine::select`]).

use super::watch::Watch;
use crate::{
    engine::{Candidate, CandidateState},
    pods::table::{Entry, PodTable},
    policy::LastResort,
};

/// Older than this nothing is recent: a bound that has grown further would have almost everybody asked again.
const RECENT_NS: u64 = 2_000_000;
/// What a page counter may jump ahead by at once: a huge page, or what a CPU charges in advance.
const JUMP: u64 = 2 << 20;

/// How old the candidates' usages are.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Every pod was asked after this, in nanoseconds of CLOCK_MONOTONIC.
    since: Option<u64>,
}

impl Recent {
    /// Nothing is known from here on.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What each pod may use more than it did when it was asked, in bytes; `growth` is the machine's fastest, in bytes per
    /// second. The answer is good for one decision: it leaves other things in the candidates.
    pub fn take(&mut self, now: u64, growth: u64) -> Option<u64> {
        let since = self.since.take()?;
        let elapsed = now.saturating_sub(since);
        let grown = (growth / 1_000_000).saturating_mul(elapsed) / 1000;
        (elapsed <= RECENT_NS).then_some(grown + JUMP)
    }
}

/// Reads an upper bound of what a pod uses: one number. Whether it may be chosen as far as that goes.
pub(super) fn ask(entry: &Entry, candidate: &mut Candidate) -> CandidateState {
    match entry.memory.usage() {
        Ok(usage) => {
            candidate.usage = usage;
            CandidateState::Eligible
        }
        Err(_) => CandidateState::Gone,
    }
}

impl Watch {
    /// Goes through a decision that nothing follows, and asks every pod: the real one, a moment later, finds all it needs in
    /// the caches and has not to ask again.
    pub(super) fn rehearse(&mut self, now: u64) {
        self.recent.forget();
        self.load_candidates(LastResort::Nobody);
        self.first_in_order();
        let PodTable {
            entries,
            candidates,
        } = &mut *self.setup.table;
        for (entry, candidate) in entries.iter().zip(candidates) {
            // Whoever was asked in full, or not at all.
            if candidate.is_exact || candidate.state != CandidateState::Eligible {
                candidate.state = ask(entry, candidate);
            }
        }
        self.recent.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWTH: u64 = 8 << 30;
    const US: u64 = 1000;

    #[test]
    fn the_bound_grows_with_its_age() {
        let mut recent = Recent::default();
        assert_eq!(recent.take(0, GROWTH), None);
        recent.since = Some(100);
        let more = recent.take(100 + 10 * US, GROWTH);
        assert_eq!(more, Some(GROWTH / 1_000_000 * 10 + JUMP));
        assert_eq!(recent.take(100 + 10 * US, GROWTH), None, "once");
    }

    #[test]
    fn what_is_old_is_not_recent() {
        let mut recent = Recent { since: Some(0) };
        assert_eq!(recent.take(RECENT_NS + 1, GROWTH), None);
    }
}
