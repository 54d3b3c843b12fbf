//! Whether a growth comes in steps: it has paused before, and gone on.

use serde::{Deserialize, Serialize};

use crate::units::SECOND;

/// Rises that are remembered.
const REMEMBERED: usize = 8;
/// So many rises make steps: two may be two pods that have just started.
const STEPS: usize = 3;
/// A rise that makes less than this part of a growth is none of its steps.
const STEP_PART: u64 = 8;
/// Rises older than this many nanoseconds do not count.
const REACH_NS: u64 = 16 * SECOND;
/// An amount that has not grown for so many nanoseconds has paused.
pub(crate) const PAUSE_NS: u64 = SECOND / 8;

/// The last rises of one amount, with a pause between each two of them. Allocates nothing; the caller brings the clock.
/// Growth that takes longer than a pause for as much as the noise is cut into rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rises {
    /// The latest last.
    #[serde(skip_serializing_if = "is_none")]
    rises: [Rise; REMEMBERED],
    /// The lowest amount since the last rise, in the unit of the samples.
    lowest: Option<i64>,
    /// Time of the last sample, in nanoseconds.
    sampled_at: u64,
}

/// The amount went up, without a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rise {
    /// Nanoseconds: the last sample before it, and the last one that was higher.
    began: u64,
    ended: u64,
    /// In the unit of the samples; 0: there was no such rise.
    amount: u64,
}

impl Rises {
    /// Takes in an amount; what is less than `noise` above the lowest one is no rise. Times go forward.
    pub fn observe(&mut self, time: u64, amount: i64, noise: u64) {
        let began = std::mem::replace(&mut self.sampled_at, time);
        let lowest = self.lowest.unwrap_or(amount);
        let risen = u64::try_from(amount.saturating_sub(lowest)).unwrap_or(0);
        if risen < noise.max(1) {
            self.lowest = Some(lowest.min(amount));
            return;
        }
        self.lowest = Some(amount);
        let [.., last] = &mut self.rises;
        if last.amount > 0 && began.saturating_sub(last.ended) <= PAUSE_NS {
            last.ended = time;
            last.amount = last.amount.saturating_add(risen);
            return;
        }
        self.rises.rotate_left(1);
        let [.., last] = &mut self.rises;
        *last = Rise {
            began,
            ended: time,
            amount: risen,
        };
    }

    /// The amount is counted in another way from now on, and has not grown.
    pub fn rebase(&mut self, difference: i64) {
        self.lowest = self.lowest.map(|lowest| lowest.saturating_add(difference));
    }

    /// Leaves out a victim that may have grown until a time: of a rise by more than it `held`, the rest was of others.
    pub fn exclude_victim(&mut self, held: u64, until: u64) {
        for rise in self.rises.iter_mut().filter(|rise| rise.began < until) {
            rise.amount = rise.amount.saturating_sub(held);
        }
    }

    /// Whether no amount was taken in yet.
    pub fn has_no_samples(&self) -> bool {
        *self == Self::default()
    }

    /// The next amount is another one, and has not grown.
    pub fn begin_anew(&mut self) {
        self.lowest = None;
    }

    /// Whether the growth by `amount` comes in steps, and the next one is not overdue: it has paused for a quarter longer
    /// than before at most.
    pub fn are_steps(&self, amount: u64, now: u64) -> bool {
        let since = now.saturating_sub(REACH_NS);
        let mut steps = self.rises.iter().filter(|rise| {
            rise.amount > 0 && rise.began >= since && rise.amount >= amount / STEP_PART
        });
        let Some(mut last) = steps.next() else {
            return false;
        };
        let (mut count, mut longest) = (1, 0);
        for step in steps {
            longest = longest.max(step.began.saturating_sub(last.ended));
            (count, last) = (count + 1, step);
        }
        count >= STEPS && now.saturating_sub(last.ended) <= longest.saturating_add(longest / 4)
    }
}

/// Whether there was no rise, for a field that is left out of a file then.
fn is_none(rises: &[Rise; REMEMBERED]) -> bool {
    *rises == <[Rise; REMEMBERED]>::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MS;

    const MIB: i64 = 1 << 20;
    const NOISE: u64 = 1 << 20;

    /// Sees an amount that rises by 20 MiB within 100 ms at each of these times, up to the last one, and which is read
    /// every 10 ms.
    fn rising(at: &[u64], until: u64) -> Rises {
        let mut rises = Rises::default();
        for ms in (0..=until).step_by(10) {
            let since = |at: &u64| i64::try_from(ms.saturating_sub(*at).min(100)).unwrap();
            let risen: i64 = at.iter().map(since).sum();
            rises.observe(ms * MS, risen * MIB / 5, NOISE);
        }
        rises
    }

    // R43
    #[test]
    fn three_rises_are_steps_until_the_next_one_is_overdue() {
        let are_steps = |at: &[u64], until: u64| {
            let risen = 20 * MIB.unsigned_abs() * at.len() as u64;
            rising(at, until).are_steps(risen, until * MS)
        };
        assert!(!are_steps(&[1000, 2000], 2500));
        assert!(are_steps(&[1000, 2000, 3000], 3500));
        assert!(are_steps(&[1000, 2000, 3000], 4200));
        assert!(!are_steps(&[1000, 2000, 3000], 4300));
        // One rise, and three that were long ago.
        assert!(!are_steps(&[1000, 1100, 1200], 1300));
        assert!(!are_steps(&[1000, 2000, 19_000], 19_500));
    }

    // R43
    #[test]
    fn steps_that_a_victim_cannot_have_made_are_those_of_others() {
        let now = 3500 * MS;
        for (held, are_steps) in [(5, true), (19, false), (300, false)] {
            let mut rises = rising(&[1000, 2000, 3000], 3500);
            rises.exclude_victim(held << 20, now);
            assert_eq!(rises.are_steps(60 << 20, now), are_steps, "{held}");
        }
        // It has not grown since the second one.
        let mut rises = rising(&[1000, 2000, 3000], 3500);
        rises.exclude_victim(300 << 20, 1500 * MS);
        assert!(!rises.are_steps(60 << 20, now));
    }

    /// A disk is looked at every 250 ms.
    #[test]
    fn a_growth_without_a_pause_is_one_rise_however_seldom_it_is_sampled() {
        let mut rises = Rises::default();
        for look in 0..8 {
            rises.observe(look * 250 * MS, look.min(3).cast_signed() * 40 * MIB, NOISE);
        }
        assert!(!rises.are_steps(120 << 20, 1000 * MS));
        assert!(!rises.are_steps(120 << 20, 1750 * MS));
    }

    #[test]
    fn noise_and_what_comes_and_goes_make_no_steps() {
        let mut rises = Rises::default();
        for second in 1..8 {
            rises.observe(second * SECOND, MIB * 100 + MIB / 2, NOISE);
            rises.observe(second * SECOND + 500 * MS, MIB * 100, NOISE);
        }
        assert!(is_none(&rises.rises));
        // Counted in another way it has not grown.
        rises.rebase(50 * MIB);
        rises.observe(9 * SECOND, 150 * MIB, NOISE);
        // And what a victim had has become others'.
        rises.begin_anew();
        rises.observe(10 * SECOND, 400 * MIB, NOISE);
        assert!(is_none(&rises.rises));
    }
}
