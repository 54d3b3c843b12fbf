//! What the usage counters of all pods showed at earlier looks: by how much each pod grows, and since when one has not.

use crate::units::{MS, SECOND, scaled};

/// Over less than this a growth says nothing, in nanoseconds.
const GROWTH_NS: u64 = MS;
/// Least age difference between `latest` and each entry of `older`, in nanoseconds.
const OLDER_NS: u64 = SECOND;
/// A pod whose counter has moved by less than this has not grown, in bytes.
const STILL: u64 = 1 << 20;

/// The counters of so many pods, by their positions. Times are nanoseconds of one monotonic clock, 0: never; amounts
/// are bytes.
#[derive(Debug, Default)]
pub struct CounterHistory {
    grew: Vec<u64>,
    latest: Counters,
    /// A second or two before the latest, and as much before again.
    older: [Counters; 2],
}

/// All counters at one moment; [`UNKNOWN`] for a pod that was not read then.
#[derive(Clone, Debug, Default)]
struct Counters {
    at: u64,
    bytes: Vec<u64>,
}

const UNKNOWN: u64 = u64::MAX;

impl CounterHistory {
    /// Creates the history of `pods` pods, none of which was read yet.
    pub fn new(pods: usize) -> Self {
        let never = Counters {
            at: 0,
            bytes: vec![UNKNOWN; pods],
        };
        Self {
            grew: vec![0; pods],
            older: [never.clone(), never.clone()],
            latest: never,
        }
    }

    /// Takes over what is known of the pods of an earlier table: of pairs of a position here and one there. Does not
    /// allocate.
    pub fn inherit(&mut self, before: &Self, pods: impl Iterator<Item = (usize, usize)> + Clone) {
        let looks = std::iter::once(&mut self.latest).chain(&mut self.older);
        let earlier = std::iter::once(&before.latest).chain(&before.older);
        for (look, earlier) in looks.zip(earlier) {
            look.at = earlier.at;
            copy(&mut look.bytes, &earlier.bytes, pods.clone());
        }
        copy(&mut self.grew, &before.grew, pods);
    }

    /// Returns the growth that was seen of each pod, in bytes per second; 0 where it is not known.
    pub fn grew(&self) -> &[u64] {
        &self.grew
    }

    /// All counters were read. Does not allocate.
    pub fn note(&mut self, now: u64, usages: impl Iterator<Item = u64>) {
        let latest = &mut self.latest;
        let elapsed = now.saturating_sub(latest.at);
        if elapsed < GROWTH_NS {
            return;
        }
        if latest.at.saturating_sub(self.older[0].at) >= OLDER_NS {
            self.older.swap(0, 1);
            let older = &mut self.older[0];
            older.at = latest.at;
            older.bytes.copy_from_slice(&latest.bytes);
        }
        for ((usage, before), grew) in usages.zip(&mut latest.bytes).zip(&mut self.grew) {
            *grew = scaled(usage.saturating_sub(*before), SECOND, elapsed);
            *before = usage;
        }
        latest.at = now;
    }

    /// The time of the oldest kept look whose value for this pod differs from `usage` by at most 1 MiB; `None` if there
    /// is none.
    pub fn still_since(&self, position: usize, usage: u64) -> Option<u64> {
        let is_still = |older: &&Counters| {
            let was = older.bytes.get(position);
            older.at > 0 && was.is_some_and(|was| usage.abs_diff(*was) <= STILL)
        };
        let older = self.older.iter().rev().find(is_still)?;
        Some(older.at)
    }
}

/// Copies the elements at pairs of a position in `to` and one in `from`.
pub fn copy(to: &mut [u64], from: &[u64], positions: impl Iterator<Item = (usize, usize)>) {
    for (here, there) in positions {
        if let (Some(to), Some(from)) = (to.get_mut(here), from.get(there)) {
            *to = *from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_has_not_grown_is_known_after_a_second() {
        let mut history = CounterHistory::new(1);
        let mut note = |now: u64, usage: u64| {
            history.note(now, std::iter::once(usage));
            history.still_since(0, usage)
        };
        let usage = 500 << 20;
        assert_eq!(note(5 * SECOND, usage), None);
        assert_eq!(note(5 * SECOND + 10 * MS, usage), Some(5 * SECOND));
        assert_eq!(note(5 * SECOND + 20 * MS, usage + 2 * STILL), None);
        assert_eq!(note(6 * SECOND, usage), Some(5 * SECOND));
        assert_eq!(note(7 * SECOND, usage), Some(5 * SECOND));
        assert_eq!(note(8 * SECOND, usage), Some(6 * SECOND));
    }

    #[test]
    fn another_table_keeps_what_is_known_of_the_same_pods() {
        let mut before = CounterHistory::new(2);
        before.note(SECOND, [STILL * 9, 0].into_iter());
        before.note(2 * SECOND, [STILL * 9, 1000].into_iter());
        before.note(3 * SECOND, [STILL * 9, 3000].into_iter());
        // The first pod is gone, and another one comes before the second one.
        let mut history = CounterHistory::new(2);
        history.inherit(&before, std::iter::once((1, 1)));
        assert_eq!(history.grew(), [0, 2000]);
        assert_eq!(history.still_since(1, 3000), before.still_since(1, 3000));
        assert_eq!(history.still_since(0, 0), None, "it was never read");
        history.note(4 * SECOND, [500 << 20, 4000].into_iter());
        assert_eq!(history.grew(), [0, 1000]);
    }

    #[test]
    fn growth_is_that_between_two_looks() {
        let mut history = CounterHistory::new(2);
        history.note(SECOND, [100, 900].into_iter());
        assert_eq!(history.grew(), [0, 0], "nothing was known before");
        history.note(SECOND + GROWTH_NS / 2, [500, 900].into_iter());
        assert_eq!(history.grew(), [0, 0], "too soon");
        history.note(SECOND + 2 * GROWTH_NS, [300, 800].into_iter());
        assert_eq!(history.grew(), [100_000, 0]);
    }
}
