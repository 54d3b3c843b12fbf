//! For how long a threshold has been met, where it is met, not met, and met again.

use crate::units::{SECOND, shift_by_gap};

/// A threshold that is met again within this time has been met by turns.
const BY_TURNS_NS: u64 = 60 * SECOND;

/// Period in which a threshold is met by turns, or was the last time.
#[derive(Clone, Copy, Debug)]
pub struct MetByTurns {
    since: u64,
    until: u64,
}

impl MetByTurns {
    /// The threshold is met at `now`: the period goes on, or another one begins. Returns its start.
    pub fn note(period: &mut Option<Self>, now: u64) -> u64 {
        let goes_on = |before: &Self| now < before.until.saturating_add(BY_TURNS_NS);
        let since = period.filter(goes_on).map_or(now, |before| before.since);
        *period = Some(Self { since, until: now });
        since
    }

    /// Leaves out so many nanoseconds until `now` in which no look was taken.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        for time in [&mut self.since, &mut self.until] {
            shift_by_gap(time, late, now);
        }
    }

    /// Start of the period, in nanoseconds.
    pub fn since(self) -> u64 {
        self.since
    }
}
