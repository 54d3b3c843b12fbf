//! Which pod makes the growth of a signal, by what the pods used at the looks before.

use std::collections::HashMap;

use crate::{
    Signal,
    growers::STEADY_NS,
    growth::{Growth, Sample},
    kubelet_times::MONITORING_INTERVAL_NS,
};

/// Growth of each pod's usage, in the signal's unit. Times are nanoseconds of one clock.
#[derive(Clone, Debug, Default)]
pub struct UsageGrowth {
    pods: [HashMap<String, Seen>; Signal::ALL.len()],
}

#[derive(Clone, Debug)]
struct Seen {
    growth: Box<Growth>,
    of_walk: bool,
    is_whole: bool,
    /// The last look.
    noted: u64,
}

/// Usage of a pod at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Moment of the reading, in nanoseconds.
    pub time: u64,
    /// Usage at that moment, in the signal's unit.
    pub usage: u64,
    /// A walk has found it: walks are rare.
    pub of_walk: bool,
    /// All of its files were walked: what a first walk finds has not grown.
    pub is_whole: bool,
}

/// What a pod grows by per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodGrowth {
    /// Over a quarter of a second at least, where it is known for so long, or between the last two walks.
    pub steady: u64,
    /// Over no less time than the growth of the signal was seen, what comes and goes included: after an eviction that is a moment.
    /// At least `steady`.
    pub fastest: u64,
    /// Start of the last walk but one, where walks have found the growth.
    pub since_walk: Option<u64>,
}

impl UsageGrowth {
    /// A look finds that a pod uses so much, or has used it a while ago.
    pub fn note(&mut self, signal: Signal, uid: &str, now: u64, used: Use) {
        let pods = &mut self.pods[signal as usize];
        if pods
            .get(uid)
            .is_none_or(|seen| seen.is_whole != used.is_whole)
        {
            let new = Seen {
                growth: Box::default(),
                of_walk: used.of_walk,
                is_whole: used.is_whole,
                noted: now,
            };
            pods.insert(uid.to_owned(), new);
        }
        if let Some(seen) = pods.get_mut(uid) {
            (seen.of_walk, seen.noted) = (used.of_walk, now);
            let sample = Sample {
                time: used.time,
                amount: used.usage,
                ..Sample::default()
            };
            seen.growth.observe(sample);
        }
    }

    /// Computes the growth of a pod per second; `None` where it is not known. What is counted and has ended is no growth. That of the
    /// signal was seen over `shortest` nanoseconds at least.
    pub fn of(&self, signal: Signal, uid: &str, shortest: u64) -> Option<PodGrowth> {
        let Seen {
            growth, of_walk, ..
        } = self.pods[signal as usize].get(uid)?;
        let latest = growth.latest()?;
        if *of_walk {
            let grown = growth.lately(STEADY_NS)?;
            return Some(PodGrowth {
                steady: grown.per_second(),
                fastest: grown.per_second(),
                since_walk: Some(latest - grown.elapsed),
            });
        }
        let steady = growth.fastest_beyond(STEADY_NS, 1);
        Some(PodGrowth {
            steady,
            fastest: growth.fastest_of_pod(shortest, 1).max(steady),
            since_walk: None,
        })
    }

    /// Forgets what was counted, but for walks: no look has told when it grew.
    pub fn forget_counted(&mut self) {
        for pods in &mut self.pods {
            pods.retain(|_, seen| seen.of_walk);
        }
    }

    /// Forgets what was not noted in a monitoring interval.
    pub fn forget_old(&mut self, now: u64) {
        for pods in &mut self.pods {
            pods.retain(|_, seen| now.saturating_sub(seen.noted) <= MONITORING_INTERVAL_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{MS, SECOND};

    /// A pod uses so much now, as is counted.
    fn count(growth: &mut UsageGrowth, signal: Signal, uid: &str, now: u64, usage: u64) {
        let used = Use {
            time: now,
            usage,
            of_walk: false,
            is_whole: true,
        };
        growth.note(signal, uid, now, used);
    }

    /// A pod starts forty threads at once, and no more. Another one starts fourteen at each look.
    // R43
    #[test]
    fn threads_that_started_together_are_little_beside_a_growth_that_goes_on() {
        let signal = Signal::PidAvailable;
        for start in (260..600).step_by(20) {
            let mut growth = UsageGrowth::default();
            for ms in (0..1600).step_by(20) {
                let now = (1000 + ms) * MS;
                let started = if ms >= start { 40 } else { 0 };
                count(&mut growth, signal, "started", now, 10 + started);
                count(&mut growth, signal, "grows", now, 10 + ms / 20 * 14);
                let steady = |uid| growth.of(signal, uid, 0).unwrap().steady;
                let case = (start, ms);
                if ms > 0 {
                    assert_eq!(steady("grows"), 700, "{case:?}");
                }
                assert!(steady("started") < 700 / 2, "{case:?}");
                if ms > start + 1030 {
                    assert_eq!(steady("started"), 0, "{case:?}");
                }
            }
        }
    }

    // R43
    #[test]
    fn a_growth_that_has_just_begun_is_seen_in_full() {
        let signal = Signal::PidAvailable;
        let mut growth = UsageGrowth::default();
        for ms in (0..=560_u64).step_by(20) {
            let tasks = 10 + ms.saturating_sub(480) * 20;
            count(&mut growth, signal, "bomb", (1000 + ms) * MS, tasks);
        }
        let PodGrowth {
            steady, fastest, ..
        } = growth.of(signal, "bomb", 0).unwrap();
        assert_eq!(fastest, 20_000);
        assert!((4000..8000).contains(&steady), "{steady}");
    }

    #[test]
    fn what_was_counted_before_a_gap_tells_no_growth() {
        let signal = Signal::PidAvailable;
        let mut growth = UsageGrowth::default();
        count(&mut growth, signal, "pod", SECOND, 10);
        growth.forget_counted();
        count(&mut growth, signal, "pod", 7 * SECOND, 900);
        assert_eq!(growth.of(signal, "pod", 0).unwrap().fastest, 0);
    }

    #[test]
    fn what_a_first_walk_finds_has_not_grown() {
        const GIB: u64 = 1 << 30;
        let signal = Signal::NodeFsAvailable;
        let mut growth = UsageGrowth::default();
        let mut note = |now: u64, time: u64, usage: u64, is_whole: bool| {
            let used = Use {
                time,
                usage,
                of_walk: true,
                is_whole,
            };
            growth.note(signal, "pod", now * SECOND, used);
            growth.of(signal, "pod", 0).map_or(0, |grown| grown.steady)
        };
        // The walk began before the last look that knew nothing of the pod's files.
        assert_eq!(note(2, 2 * SECOND, 0, false), 0);
        assert_eq!(note(3, SECOND, 10 * GIB, true), 0);
        let grown = note(6, 5 * SECOND, 12 * GIB, true);
        assert_eq!(grown, GIB / 2);
    }
}
