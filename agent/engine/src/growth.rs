//! How fast an amount grows, over windows from a millisecond to some seconds at once.
//!
//! A growth seen over a short window says little of the next ten seconds, one seen over a long window sees a new growth
//! too late. So every window has a say, and what it saw is taken to go on for a time that the caller gives.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::units::{SECOND, is_zero, scaled};

/// Windows: the shortest one, and each of the others twice as long as the one before.
const WINDOWS: usize = 14;
/// Length of the shortest window in nanoseconds. The longest is 8 s.
const SHORTEST_NS: u64 = 1_000_000;
/// A growth may pause for so many nanoseconds, or for this part of the window, before it counts as one that has ended.
const PAUSE_NS: u64 = SECOND / 8;
const PAUSE_PART: u64 = 8;
/// That of one pod for longer: it may wait for a processor, and what all grow by over a quarter of a second has it in it as long.
const POD_PAUSE_NS: u64 = SECOND / 2;
/// The recent growth of one amount. Allocates nothing; the caller brings the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Growth {
    windows: [Window; WINDOWS],
    latest: Option<Sample>,
}

/// Reads a growth. A file's times may contradict each other.
pub(crate) fn in_order<'de, D: Deserializer<'de>>(from: D) -> Result<Growth, D::Error> {
    let growth = Growth::deserialize(from)?;
    let last = growth.latest().unwrap_or(u64::MAX);
    for (i, window) in growth.windows.iter().enumerate() {
        for (name, sample) in [("begin", window.begin), ("next", window.next)] {
            if let Some(time) = sample.map(|sample| sample.time).filter(|time| *time > last) {
                return Err(D::Error::custom(format_args!(
                    "windows[{i}].{name}.time: {time}: is later than latest.time, which is {last}"
                )));
            }
        }
    }
    Ok(growth)
}

/// An amount at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Nanoseconds.
    pub time: u64,
    /// Amount in use that cannot be given back, without what victims hold (`dying`).
    pub amount: u64,
    /// Amount that victims still hold, counted beside `amount`.
    #[serde(default)]
    pub dying: u64,
    /// Amount beside `amount` that the kernel can free only later: dirty page cache and reclaimable slab
    /// ([`Headroom::deferred`]).
    #[serde(default)]
    #[serde(rename = "unwritten")]
    pub deferred: u64,
    /// What is swapped out: it is in use no longer, and has grown all the same.
    #[serde(default)]
    pub swapped: u64,
    /// The same as an older agent has written it: free swap.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub swap: u64,
    /// The part of the amount that is kernel memory and may keep track of page cache.
    #[serde(default)]
    pub kernel: u64,
    /// The part of the amount that statistics do not list yet: what it is, a later sample tells.
    #[serde(default)]
    #[serde(rename = "unlisted")]
    pub stat_lag: u64,
    /// Amount of the CPUs' lists of free pages that is left out of `amount`; 0 where the lists were not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[serde(rename = "in_lists")]
    pub pcp_free: u64,
}

impl Sample {
    /// Computes by how much the amount has grown since `begin`, what was swapped out meanwhile included; below zero
    /// where it has shrunk.
    fn grown_since(&self, begin: Self) -> i128 {
        self.with_swapped() - begin.with_swapped()
    }

    /// The amount, with what is swapped out, but for a constant.
    fn with_swapped(&self) -> i128 {
        i128::from(self.amount) + i128::from(self.swapped) - i128::from(self.swap)
    }

    /// What of the growth tells nothing yet: memory that is in no statistics may be page cache, and kernel memory may
    /// keep track of it.
    fn unknown_since(&self, begin: Self) -> i128 {
        let stat_lag = self.stat_lag.saturating_sub(begin.stat_lag);
        self.bookkeeping_since(begin) + i128::from(stat_lag)
    }

    /// What kernel memory may have grown by for the page cache that was written meanwhile: inodes, dentries and buffer
    /// heads, which the kernel gives back with it. A file of one page takes some 1.5 KiB of them.
    fn bookkeeping_since(&self, begin: Self) -> i128 {
        let kernel = self.kernel.saturating_sub(begin.kernel);
        let deferred = self.deferred.saturating_sub(begin.deferred);
        kernel.min(deferred / 2).into()
    }
}

fn unsigned(amount: i128) -> u64 {
    u64::try_from(amount.max(0)).unwrap_or(u64::MAX)
}

/// Beginning of one window, and of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    begin: Option<Sample>,
    next: Option<Sample>,
}

/// Amounts that can still be used, in the unit of the signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Headroom {
    /// Amount that can be used at once.
    #[serde(rename = "atOnce")]
    pub immediate: u64,
    /// Amount that becomes available only at [`Headroom::deferred_per_second`]: page cache that has to be written
    /// first, slab that may be in use.
    #[serde(rename = "slowly")]
    pub deferred: u64,
    /// Rate at which `deferred` becomes available, per second.
    #[serde(rename = "perSecond")]
    pub deferred_per_second: u64,
    /// Amount that swapping can make available, as far as the pods may swap: what grows waits for the device, and
    /// nothing is used up before this is.
    #[serde(default)]
    pub swap: u64,
}

impl Headroom {
    /// All of it, whenever it comes.
    pub fn total(self) -> u64 {
        self.in_time().saturating_add(self.deferred)
    }

    /// Computes the amount that is there within so many nanoseconds: what can be written by then as well.
    pub(crate) fn within(self, nanos: u64) -> u64 {
        let written = grown_in(self.deferred_per_second, nanos).min(self.deferred);
        self.in_time().saturating_add(written)
    }

    /// Computes the amount that is there when a growth needs it: at once, or by swapping, for which the growth waits.
    pub fn in_time(self) -> u64 {
        self.immediate.saturating_add(self.swap)
    }
}

/// A growth that was seen over one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grown {
    /// Amount of the growth, in the unit of the samples.
    pub amount: u64,
    /// Length of the window, in nanoseconds; never zero.
    pub elapsed: u64,
    /// Growth of deferred memory ([`Sample::deferred`]) over the same time: it uses up immediate headroom too.
    pub deferred: u64,
}

impl Growth {
    /// Takes in a sample; times go forward.
    pub fn observe(&mut self, sample: Sample) {
        let time = sample.time;
        if self.latest.is_some_and(|latest| time <= latest.time) {
            return;
        }
        self.rebase_on_pcp_free(sample.pcp_free);
        self.latest = Some(sample);
        let mut length = SHORTEST_NS;
        for window in &mut self.windows {
            match window.next {
                Some(next) if window.begin.is_some() && time - next.time < length => {}
                next => {
                    window.begin = next.or(Some(sample));
                    window.next = Some(sample);
                }
            }
            length *= 2;
        }
    }

    /// Bytes that left the victims' counters since the last sample and may not be free yet: the kernel uncharges a page
    /// before it frees it. They are no growth of others unless the next sample still shows them.
    pub fn freed_late(&self, sample: Sample) -> u64 {
        self.latest.map_or(0, |last| {
            let left = last.dying.saturating_sub(sample.dying);
            sample.amount.saturating_sub(last.amount).min(left)
        })
    }

    /// Moves `held` from the amount in use to that of victims, in all samples since `since`: the victim held it at
    /// every moment since then, so that growth since then was of other pods. Older samples are dropped.
    pub fn exclude_victim(&mut self, held: u64, since: u64) {
        let without = |sample: Sample| {
            (sample.time >= since).then(|| Sample {
                amount: sample.amount.saturating_sub(held),
                dying: sample.dying.saturating_add(held),
                ..sample
            })
        };
        for window in &mut self.windows {
            window.begin = window.begin.and_then(without);
            window.next = window.next.and_then(without);
        }
        self.latest = self.latest.and_then(without);
    }

    /// Counts the samples anew where the lists of free pages are read from now on, or are read no longer: the amount is
    /// another one, and nothing has grown.
    fn rebase_on_pcp_free(&mut self, pcp_free: u64) {
        let before = self.latest.map_or(0, |latest| latest.pcp_free);
        if (before == 0) == (pcp_free == 0) {
            return;
        }
        let counted_anew = |sample: Sample| Sample {
            amount: sample
                .amount
                .saturating_add(before)
                .saturating_sub(pcp_free),
            ..sample
        };
        for window in &mut self.windows {
            window.begin = window.begin.map(counted_anew);
            window.next = window.next.map(counted_anew);
        }
        self.latest = self.latest.map(counted_anew);
    }

    /// The growth over each window, as of the latest amount; windows without a growth of at least `noise` are left out.
    pub fn windows(&self, noise: u64) -> impl Iterator<Item = Grown> {
        let is_seen = move |grown: &Grown| grown.elapsed > 0 && grown.amount >= noise.max(1);
        self.all_windows().filter(is_seen)
    }

    /// The growth over each window that has begun, be it none; the shortest window first.
    fn all_windows(&self) -> impl Iterator<Item = Grown> {
        self.windows.iter().filter_map(|window| {
            let (begin, latest) = (window.begin?, self.latest?);
            Some(Grown {
                amount: unsigned(latest.grown_since(begin) - latest.unknown_since(begin)),
                elapsed: latest.time.saturating_sub(begin.time),
                deferred: latest.deferred.saturating_sub(begin.deferred),
            })
        })
    }

    /// The fastest growth over any window, per second; windows as in [`Self::windows`], and 0 where there is none.
    pub fn fastest(&self, noise: u64) -> u64 {
        let seen = self.windows(noise).map(Grown::per_second);
        seen.max().unwrap_or(0)
    }

    /// The fastest growth that has not ended, over the windows of at least `shortest` nanoseconds, or over the longest one where
    /// the amount is not known for so long. Per second, and 0 where there is none.
    pub fn fastest_of_pod(&self, shortest: u64, noise: u64) -> u64 {
        let seen = self.that_goes_on(shortest, noise).map(Grown::per_second);
        seen.max().unwrap_or(0)
    }

    /// As [`Self::fastest_of_pod`], beyond the highest amount that was sampled within a second before the window: what comes and
    /// goes within a second is no growth.
    pub fn fastest_beyond(&self, shortest: u64, noise: u64) -> u64 {
        let latest = self.latest.unwrap_or_default();
        let beyond = |grown: Grown| {
            let begin = latest.time - grown.elapsed;
            let is_before = |s: &Sample| (begin.saturating_sub(SECOND)..=begin).contains(&s.time);
            let before = self.samples().filter(is_before);
            let highest = before.map(|sample| sample.amount).max().unwrap_or(0);
            let amount = grown.amount.min(latest.amount.saturating_sub(highest));
            Grown { amount, ..grown }
        };
        let goes_on = self.that_goes_on(shortest, noise);
        let beyond = goes_on.map(beyond).filter(|grown| grown.amount >= noise);
        beyond.map(Grown::per_second).max().unwrap_or(0)
    }

    /// The growth of a pod that has not ended, over each window of at least `shortest` nanoseconds, or over the longest one.
    fn that_goes_on(&self, shortest: u64, noise: u64) -> impl Iterator<Item = Grown> {
        let known = self.all_windows().map(|grown| grown.elapsed);
        let shortest = shortest.min(known.max().unwrap_or(0));
        let long = self.windows(noise).filter(move |g| g.elapsed >= shortest);
        long.filter(|grown| !self.has_ended(*grown, POD_PAUSE_NS))
    }

    /// Nanoseconds until `headroom` is used up by net growth: the growth of others less what victims give back. Only
    /// windows count that began at `since` or later and are at least `shortest` long. `None`: there is no net growth.
    pub fn exhausts_net(&self, headroom: u64, since: u64, shortest: u64) -> Option<u64> {
        let headroom = Headroom {
            immediate: headroom,
            ..Headroom::default()
        };
        let ends = self.windows.iter().filter_map(|window| {
            let (begin, latest) = (window.begin?, self.latest?);
            let dying = i128::from(latest.dying) - i128::from(begin.dying);
            let grown = Grown {
                amount: unsigned(latest.grown_since(begin) + dying),
                elapsed: latest.time.saturating_sub(begin.time),
                deferred: 0,
            };
            let counts = begin.time >= since && grown.elapsed >= shortest && grown.amount > 0;
            counts.then(|| grown.exhausts(headroom))
        });
        ends.min()
    }

    /// Whether the amount has shrunk by more than `noise` over the shortest window of at least so many nanoseconds.
    pub fn shrinks(&self, shortest: u64, noise: u64) -> bool {
        let mut seen = self.windows.iter().filter_map(|window| {
            let (begin, latest) = (window.begin?, self.latest?);
            let is_long = latest.time.saturating_sub(begin.time) >= shortest;
            is_long.then(|| latest.grown_since(begin) < -i128::from(noise))
        });
        seen.next().unwrap_or(false)
    }

    /// The growth over the shortest window of at least so many nanoseconds, be it none; `None` where nothing was seen for
    /// so long.
    pub fn lately(&self, shortest: u64) -> Option<Grown> {
        self.all_windows().find(|grown| grown.elapsed >= shortest)
    }

    /// The growth over the shortest window of at least so many nanoseconds in which there was any, however small, or over
    /// the longest one where nothing was seen for so long; `None` where there is no growth.
    pub fn over(&self, shortest: u64) -> Option<Grown> {
        let mut longest = None;
        for grown in self.windows(0) {
            longest = Some(grown);
            if grown.elapsed >= shortest {
                break;
            }
        }
        longest
    }

    /// The amount at a time: between two samples it has grown steadily, but until then no faster than before the first of
    /// them, as far as that is known over `shortest` nanoseconds: a growth that was faster has begun since. Before the first
    /// sample it was that of the first, and where it has shrunk between two of them that of the later one.
    pub fn amount_at(&self, time: u64, shortest: u64) -> u64 {
        let before = self.samples().filter(|sample| sample.time < time);
        let after = self.samples().filter(|sample| sample.time >= time);
        let Some(after) = after.min_by_key(|sample| sample.time) else {
            return self.latest.map_or(0, |latest| latest.amount);
        };
        let Some(before) = before.max_by_key(|sample| sample.time) else {
            return after.amount;
        };
        let grown = after.amount.saturating_sub(before.amount);
        let since = scaled(grown, after.time - time, after.time - before.time);
        let interpolated = after.amount - since;
        let is_earlier = |s: &Sample| s.time.saturating_add(shortest) <= before.time;
        let earlier = self.samples().filter(is_earlier);
        match earlier.max_by_key(|sample| sample.time) {
            Some(earlier) if time < after.time => {
                let grown = before.amount.saturating_sub(earlier.amount);
                let until = scaled(grown, time - before.time, before.time - earlier.time);
                // Rounded up, as that above.
                let extrapolated = before.amount.saturating_add(until).saturating_add(1);
                interpolated.min(extrapolated)
            }
            _ => interpolated,
        }
    }

    /// The highest amount since a time, and the latest.
    pub fn highest_since(&self, time: u64) -> (u64, u64) {
        let known = self.samples().filter(|sample| sample.time >= time);
        let latest = self.latest.map_or(0, |latest| latest.amount);
        (
            known.map(|sample| sample.amount).fold(latest, u64::max),
            latest,
        )
    }

    /// The amount by which it has fallen since the last sample that is not later than a time.
    pub fn fallen_since(&self, time: u64) -> u64 {
        let times = self.samples().map(|sample| sample.time);
        let last = times.filter(|at| *at <= time).max().unwrap_or(0);
        let (highest, latest) = self.highest_since(last);
        highest - latest
    }

    fn samples(&self) -> impl Iterator<Item = Sample> {
        let windows = self.windows.iter().flat_map(|w| [w.begin, w.next]);
        windows.chain([self.latest]).flatten()
    }

    /// The time of the last sample, in nanoseconds.
    pub fn latest(&self) -> Option<u64> {
        self.latest.map(|latest| latest.time)
    }

    /// The growth that uses up the headroom first, and the nanoseconds that this takes; `None` where no growth lasts so
    /// long: one that was seen for some nanoseconds is taken to go on for `lasts`, unless it has ended.
    pub fn exhausts(
        &self,
        headroom: Headroom,
        noise: u64,
        lasts: impl Fn(u64) -> u64,
    ) -> Option<(u64, Grown)> {
        let ends = self.windows(noise).filter_map(|grown| {
            let time = grown.exhausts(headroom);
            (time <= lasts(grown.elapsed)).then_some((time, grown))
        });
        // It compares windows: only those that last long enough are looked at.
        let ends = ends.filter(|(_, grown)| !self.has_ended(*grown, PAUSE_NS));
        ends.min_by_key(|(time, _)| *time)
    }

    /// Whether a growth has ended: over the last part of its window, a `pause` at least, it was an eighth as fast at most.
    fn has_ended(&self, grown: Grown, pause: u64) -> bool {
        let pause = pause.max(grown.elapsed / PAUSE_PART);
        let mut parts = self.all_windows();
        let last_part = parts.find(|part| (pause..grown.elapsed).contains(&part.elapsed));
        last_part.is_some_and(|part| part.per_second() < grown.per_second() / PAUSE_PART)
    }
}

impl Grown {
    /// Bytes, or whatever the unit is, in a second.
    pub fn per_second(self) -> u64 {
        scaled(self.amount, SECOND, self.elapsed)
    }

    /// The nanoseconds in which a growth that goes on for ever uses up the headroom.
    fn exhausts(self, headroom: Headroom) -> u64 {
        let speed = self.per_second().max(1);
        let in_all = scaled(headroom.total(), SECOND, speed);
        let faster = speed.saturating_sub(headroom.deferred_per_second);
        if faster == 0 {
            return in_all;
        }
        // What comes slowly is not there when it is needed, unless all of it has come by then; and writers of page
        // cache take from the same headroom.
        let faster = faster.saturating_add(scaled(self.deferred, SECOND, self.elapsed));
        in_all.min(scaled(headroom.in_time(), SECOND, faster))
    }
}

/// Computes what a growth per second makes in some nanoseconds.
pub fn grown_in(per_second: u64, nanos: u64) -> u64 {
    scaled(per_second, nanos, SECOND)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::MS;

    const MIB: u64 = 1 << 20;

    fn lasts(elapsed: u64) -> u64 {
        elapsed.saturating_mul(16)
    }

    fn immediate(mib: u64) -> Headroom {
        Headroom {
            immediate: mib * MIB,
            ..Headroom::default()
        }
    }

    fn sample(time: u64, amount: u64) -> Sample {
        Sample {
            time,
            amount,
            ..Sample::default()
        }
    }

    /// A growth of so many MiB per second, seen every millisecond for so long.
    fn steady(mib_per_second: u64, ms: u64) -> Growth {
        let mut growth = Growth::default();
        for t in 0..=ms {
            growth.observe(sample(1 + t * MS, t * MIB * mib_per_second / 1000));
        }
        growth
    }

    #[test]
    fn a_steady_growth_tells_when_it_ends() {
        let (end, grown) = steady(20, 3000)
            .exhausts(immediate(100), MIB, lasts)
            .unwrap();
        assert!((4900 * MS..5100 * MS).contains(&end), "{end} {grown:?}");
        let speed = grown.per_second() / MIB;
        assert!((19..=21).contains(&speed), "{speed}");
    }

    /// A hundred MiB in a tenth of a second, and then nothing.
    #[test]
    fn a_growth_that_has_ended_is_not_taken_to_go_on() {
        let ends = |rest: u64| {
            let mut growth = steady(1000, 100);
            for t in 101..=100 + rest {
                growth.observe(sample(1 + t * MS, 100 * MIB));
            }
            growth.exhausts(immediate(50), MIB, lasts).is_some()
        };
        assert!(ends(1) && ends(100));
        assert!(!ends(600) && !ends(2000));
    }

    #[test]
    fn a_short_burst_is_not_taken_to_go_on_for_long() {
        let mut growth = steady(0, 1000);
        growth.observe(sample(1001 * MS, MIB));
        assert_eq!(growth.exhausts(immediate(100), MIB, lasts), None);
        growth.observe(sample(1002 * MS, 8 * MIB));
        let (end, _) = growth.exhausts(immediate(100), MIB, lasts).unwrap();
        assert!(end < 100 * MS, "{end}");
    }

    #[test]
    fn what_shrinks_or_is_noise_exhausts_nothing() {
        let mut growth = Growth::default();
        growth.observe(sample(1, 500 * MIB));
        growth.observe(sample(SECOND, 400 * MIB));
        assert_eq!(growth.exhausts(immediate(1), 1, lasts), None);
        growth.observe(sample(2 * SECOND, 401 * MIB));
        assert_eq!(growth.exhausts(immediate(1), 2 * MIB, lasts), None);
        assert!(growth.exhausts(immediate(1), MIB, lasts).is_some());
    }

    /// Behind a drop the growth that goes on is seen by the windows that begin after it.
    #[test]
    fn a_drop_hides_a_growth_for_a_moment_only() {
        let mut growth = steady(100, 500);
        let (from, base) = (501 * MS, 10 * MIB);
        for t in 0..200 {
            growth.observe(sample(1 + from + t * MS, base + t * MIB / 10));
        }
        let (_, grown) = growth.exhausts(immediate(50), MIB, lasts).unwrap();
        assert!((90..=110).contains(&(grown.per_second() / MIB)));
    }

    #[test]
    fn what_comes_slowly_counts_when_it_has_come() {
        let headroom = |deferred| Headroom {
            deferred: deferred * MIB,
            deferred_per_second: 32 * MIB,
            ..Headroom::default()
        };
        // Slower than what comes: all of it is there in time.
        let (end, _) = steady(16, 8000)
            .exhausts(headroom(160), MIB, lasts)
            .unwrap();
        assert!((9 * SECOND..11 * SECOND).contains(&end), "{end}");
        let (end, _) = steady(320, 1000)
            .exhausts(headroom(160), MIB, lasts)
            .unwrap();
        assert_eq!(end, 0);
    }

    // R40
    #[test]
    fn what_the_kernel_keeps_for_page_cache_is_no_growth() {
        let headroom = Headroom {
            immediate: 100 * MIB,
            deferred: 100 * MIB,
            deferred_per_second: 32 * MIB,
            swap: 0,
        };
        let end = |amount: u64, kernel: u64| {
            let mut growth = Growth::default();
            for t in [0, 1] {
                growth.observe(Sample {
                    time: 1 + t * SECOND,
                    amount: t * amount * MIB,
                    kernel: t * kernel * MIB,
                    deferred: t * 120 * MIB,
                    ..Sample::default()
                });
            }
            growth.exhausts(headroom, 1, lasts).map(|(end, _)| end / MS)
        };
        // Inodes and dentries of small files.
        assert_eq!(end(40, 40), None);
        // A pod beside the same files.
        assert!(end(160, 40) < Some(500));
        // Kernel memory that is too much for them: a fork bomb.
        assert!(end(260, 260) < Some(500));
        assert!(end(40, 0) < Some(1000));
    }

    // R40
    #[test]
    fn what_lies_in_the_lists_of_the_cpus_is_no_growth_when_they_are_read() {
        let mut growth = Growth::default();
        let mut see = |ms: u64, amount: u64, pcp_free: u64| {
            growth.observe(Sample {
                pcp_free: pcp_free * MIB,
                ..sample(1 + ms * MS, amount * MIB)
            });
            growth.over(4 * MS).map_or(0, |grown| grown.amount / MIB)
        };
        assert_eq!([see(0, 500, 0), see(2, 502, 0), see(4, 504, 0)], [0, 2, 4]);
        // Read from now on: 40 MiB lie there.
        assert_eq!([see(6, 466, 40), see(8, 468, 70)], [6, 4]);
        // And no longer; what grows goes on.
        assert_eq!([see(10, 540, 0), see(12, 542, 0)], [6, 4]);
    }

    // R40
    #[test]
    fn what_is_in_no_statistics_is_no_growth_until_they_list_it() {
        let end = |amounts: &[(u64, u64)]| {
            let mut growth = Growth::default();
            for (t, (amount, stat_lag)) in (0..).zip(amounts) {
                growth.observe(Sample {
                    stat_lag: stat_lag * MIB,
                    ..sample(1 + t * MS, amount * MIB)
                });
            }
            growth
                .exhausts(immediate(30), 6 * MIB, lasts)
                .map(|(end, _)| end)
        };
        // Page cache: it is listed a look later.
        assert_eq!(end(&[(0, 0), (8, 8), (0, 0)]), None);
        assert_eq!(end(&[(0, 0), (8, 8)]), None);
        // Anonymous memory.
        assert!(end(&[(0, 0), (8, 8), (8, 0)]).is_some());
        assert!(end(&[(0, 0), (8, 2)]).is_some());
    }

    #[test]
    fn an_amount_between_two_samples_has_grown_steadily() {
        let mut growth = Growth::default();
        for (s, mib) in [(1, 100), (2, 140), (3, 60)] {
            growth.observe(sample(s * SECOND, mib * MIB));
        }
        let at = |ms: u64| growth.amount_at(ms * MS, SECOND) / MIB;
        assert_eq!(
            [at(500), at(1000), at(1500), at(2000)],
            [100, 100, 120, 140]
        );
        // It has shrunk there: a container that was started anew.
        assert_eq!([at(2500), at(3000), at(3500)], [60, 60, 60]);
        assert_eq!(growth.highest_since(1500 * MS), (140 * MIB, 60 * MIB));
        assert_eq!(growth.highest_since(2500 * MS), (60 * MIB, 60 * MIB));
    }

    // R43
    /// It stands still, is read once a second, and then grows for some milliseconds: the last sample but one is of the pause.
    #[test]
    fn what_grows_after_a_pause_has_not_grown_in_it() {
        let mut growth = Growth::default();
        for (ms, mib) in [(0, 272), (1000, 272), (2000, 272), (2800, 300)] {
            growth.observe(sample(1 + ms * MS, mib * MIB));
        }
        let at = |ms: u64| growth.amount_at(1 + ms * MS, 250 * MS) / MIB;
        assert_eq!(
            [at(2000), at(2500), at(2700), at(2800)],
            [272, 272, 272, 300]
        );
    }

    proptest! {
        /// However seldom it is read: a growth of before counts neither as more nor as less since a time.
        #[test]
        fn what_grows_steadily_is_known_at_every_time(
            speed in 0_u64..4000,
            gaps in prop::collection::vec(1_u64..2000, 2..30),
            part in 0.0..1.0_f64,
        ) {
            let (mut growth, mut ms, mut before) = (Growth::default(), 0, 0);
            let amount = |ms: u64| ms * speed * MIB / 1000;
            for gap in gaps {
                growth.observe(sample(1 + ms * MS, amount(ms)));
                (before, ms) = (ms, ms + gap);
            }
            growth.observe(sample(1 + ms * MS, amount(ms)));
            let since = before + ((ms - before) as f64 * part) as u64;
            let known = growth.amount_at(1 + since * MS, 250 * MS);
            prop_assert!(known.abs_diff(amount(since)) < 100, "{known} at {since} of {ms}");
        }

        /// A growth that has been seen for a while is foretold within a quarter, whatever its speed.
        #[test]
        fn a_growth_that_lasts_is_foretold(speed in 1_u64..4000, seen_ms in 700_u64..3000) {
            let growth = steady(speed, seen_ms);
            let headroom = immediate(speed);
            let (end, _) = growth.exhausts(headroom, 1, lasts).expect("it is heading there");
            prop_assert!((750 * MS..=1250 * MS).contains(&end), "{end}");
        }

        #[test]
        fn no_samples_make_it_panic(
            samples in prop::collection::vec(any::<(u64, u64)>(), 0..40),
            headroom in any::<(u64, u64, u64)>(),
            noise in any::<u64>(),
        ) {
            let mut growth = Growth::default();
            let (immediate, deferred, deferred_per_second) = headroom;
            for (time, amount) in samples {
                growth.observe(sample(time, amount));
                let _ = growth.exhausts(Headroom { immediate, deferred, deferred_per_second, swap: deferred }, noise, lasts);
            }
        }
    }
}
