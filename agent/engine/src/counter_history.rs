//! What the usage counters of all pods showed at earlier looks: by how much each pod grows, and since when one has not.

use crate::units::{MS, SECOND, scaled};

/// Over less than this a growth says nothing, in nanoseconds.
const GROWTH_NS: u64 = MS;
/// Over less than this a growth is not steady.
const LEAST_NS: u64 = 100 * MS;
/// All pods together have grown by so many times what CPUs charge in advance before the growth of each is known.
const JUMPS: u64 = 4;
/// Least age difference between the latest look and each of the two oldest, in nanoseconds.
const OLDER_NS: u64 = SECOND;
/// A pod whose counter has moved by less than this has not grown, in bytes.
const STILL: u64 = 1 << 20;

/// The counters of so many pods, by their positions. Times are nanoseconds of one monotonic clock, 0: never; amounts
/// are bytes.
#[derive(Debug, Default)]
pub struct CounterHistory {
    grew: Vec<u64>,
    /// The latest; that of a tenth of a second or two before it, and as much before again; that of a second or two before
    /// the latest, and as much before again.
    looks: [Counters; 5],
}

/// All counters at one moment; [`UNKNOWN`] for a pod that was not read then.
#[derive(Clone, Debug, Default)]
struct Counters {
    at: u64,
    bytes: Vec<u64>,
}

impl Counters {
    /// What has come of a pod's `usage` since then, in bytes.
    fn grown(&self, position: usize, usage: u64) -> u64 {
        let before = self.bytes.get(position).filter(|was| **was != UNKNOWN);
        before.map_or(0, |before| usage.saturating_sub(*before))
    }
}

const UNKNOWN: u64 = u64::MAX;

impl CounterHistory {
    /// Creates the history of `pods` pods, none of which was read yet.
    pub fn new(pods: usize) -> Self {
        Self {
            grew: vec![0; pods],
            looks: std::array::from_fn(|_| Counters {
                at: 0,
                bytes: vec![UNKNOWN; pods],
            }),
        }
    }

    /// Forgets all looks. Does not allocate.
    pub fn forget(&mut self) {
        self.grew.fill(0);
        for look in &mut self.looks {
            look.at = 0;
            look.bytes.fill(UNKNOWN);
        }
    }

    /// Takes over what is known of the pods of an earlier table: of pairs of a position here and one there. Does not
    /// allocate.
    pub fn inherit(&mut self, before: &Self, pods: impl Iterator<Item = (usize, usize)> + Clone) {
        for (look, earlier) in self.looks.iter_mut().zip(&before.looks) {
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
        let [latest, recent, before_recent, older, oldest] = &mut self.looks;
        let elapsed = now.saturating_sub(latest.at);
        if elapsed < GROWTH_NS {
            return;
        }
        for (first, second, apart) in [(recent, before_recent, LEAST_NS), (older, oldest, OLDER_NS)]
        {
            if latest.at.saturating_sub(first.at) >= apart {
                std::mem::swap(first, second);
                first.at = latest.at;
                first.bytes.copy_from_slice(&latest.bytes);
            }
        }
        for ((usage, before), grew) in usages.zip(&mut latest.bytes).zip(&mut self.grew) {
            *grew = scaled(usage.saturating_sub(*before), SECOND, elapsed);
            *before = usage;
        }
        latest.at = now;
    }

    /// The growth of each pod, by its position, in bytes per second: over the shortest time, of a tenth of a second at least, in
    /// which all together have grown by more than CPUs charge in advance, where a counter may
    /// [`jump`](crate::growers::counter_jump); 0 where it is not known. Each CPU charges in advance for one cgroup or few: the
    /// growth of one pod may be wrong by as much, and so may the sum of all. Does not allocate.
    pub(crate) fn steadily(&self, jump: u64) -> impl Fn(usize) -> u64 + Clone {
        let [latest, earlier @ ..] = &self.looks;
        let grown = |past: &Counters, position: usize| {
            let now = latest.bytes.get(position).copied().unwrap_or(0);
            past.grown(position, now)
        };
        let elapsed = |past: &Counters| latest.at.saturating_sub(past.at);
        let is_enough = |past: &&Counters| {
            let pods = 0..latest.bytes.len();
            let all = pods.fold(0_u64, |sum, at| sum.saturating_add(grown(past, at)));
            past.at > 0 && elapsed(past) >= LEAST_NS && all >= jump.saturating_mul(JUMPS)
        };
        let past = earlier.iter().find(is_enough);
        move |position| {
            past.map_or(0, |past| {
                scaled(grown(past, position), SECOND, elapsed(past))
            })
        }
    }

    /// The time of the oldest kept look, of a second ago or two, since which no look's value for this pod differs from `usage`
    /// by more than 1 MiB; `None` if there is none.
    pub fn still_since(&self, position: usize, usage: u64) -> Option<u64> {
        let is_other = |look: &&Counters| {
            let was = look.bytes.get(position);
            was.is_none_or(|was| usage.abs_diff(*was) > STILL)
        };
        let moved = self.looks.iter().filter(is_other).map(|look| look.at);
        let moved = moved.max().unwrap_or(0);
        let [.., older, oldest] = &self.looks;
        [older.at, oldest.at]
            .into_iter()
            .filter(|at| *at > moved)
            .min()
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

    /// A pod that takes and gives back a buffer.
    #[test]
    fn a_pod_that_has_come_back_to_an_amount_has_not_held_it() {
        let mut history = CounterHistory::new(1);
        let looks = [(5000, 100), (6000, 40), (6100, 40)];
        for (ms, mib) in looks {
            history.note(ms * MS, std::iter::once(mib << 20));
        }
        assert_eq!(history.still_since(0, 100 << 20), None);
        assert_eq!(history.still_since(0, 40 << 20), Some(6 * SECOND));
    }

    #[test]
    fn what_is_forgotten_makes_no_growth() {
        let mut history = CounterHistory::new(1);
        for second in 1..=3 {
            history.note(second * SECOND, std::iter::once(second << 30));
        }
        history.forget();
        assert_eq!(history.grew(), [0]);
        history.note(9 * SECOND, std::iter::once(7 << 30));
        assert_eq!((history.grew(), history.steadily(0)(0)), (&[0][..], 0));
        assert_eq!(history.still_since(0, 7 << 30), None);
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

    /// Each CPU charges a batch of pages at once: between two looks a pod that grows slowly does not move, and of many pods none
    /// has grown by what 64 CPUs charge in advance.
    #[test]
    fn a_steady_growth_of_many_is_known() {
        let mut history = CounterHistory::new(62);
        for look in 1..=400 {
            let ms = look * 10;
            let slow = (ms * 6 * STILL / 1000) >> 18 << 18;
            let over = ms.min(3000) * 50 * STILL / 1000;
            let new = ms.saturating_sub(3800) * 50 * STILL / 1000;
            let pods = [over, new].into_iter().chain([slow; 60]);
            history.note(ms * MS, pods);
        }
        let steadily = |history: &CounterHistory| {
            let of = history.steadily(16 * STILL);
            Vec::from_iter((0..62).map(of))
        };
        let [over, new, ref slow @ ..] = steadily(&history)[..] else {
            panic!("62 pods")
        };
        assert_eq!((over, new >> 20), (0, 50));
        assert!(
            slow.iter().all(|slow| (5..=8).contains(&(slow >> 20))),
            "{slow:?}"
        );
        // Batches of CPUs alone.
        let mut history = CounterHistory::new(62);
        for look in 1..=400 {
            history.note(
                look * 10 * MS,
                (0..62).map(|pod| (look + pod) % 2 * STILL / 4),
            );
        }
        assert_eq!(steadily(&history), [0; 62]);
    }
}
