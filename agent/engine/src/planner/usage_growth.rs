//! Which pod makes the growth of a signal, by what the pods used at the looks before.

use std::collections::HashMap;

use crate::{
    Signal,
    growers::STEADY_NS,
    kubelet_times::MONITORING_INTERVAL_NS,
    units::{SECOND, scaled},
};

/// Usage of each pod at two moments, in the signal's unit. Times are nanoseconds of one clock.
#[derive(Clone, Debug, Default)]
pub struct UsageGrowth {
    pods: [HashMap<String, Seen>; Signal::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    begin: Use,
    latest: Use,
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

impl UsageGrowth {
    /// A look finds that a pod uses so much, or has used it a while ago.
    pub fn note(&mut self, signal: Signal, uid: &str, now: u64, used: Use) {
        let pods = &mut self.pods[signal as usize];
        let Some(seen) = pods.get_mut(uid) else {
            let new = Seen {
                begin: used,
                latest: used,
                noted: now,
            };
            pods.insert(uid.to_owned(), new);
            return;
        };
        seen.noted = now;
        if used.is_whole != seen.latest.is_whole {
            (seen.begin, seen.latest) = (used, used);
            return;
        }
        if used.time <= seen.latest.time {
            return;
        }
        if seen.latest.time - seen.begin.time >= STEADY_NS {
            seen.begin = seen.latest;
        }
        seen.latest = used;
    }

    /// Computes the growth of a pod per second; 0 where it is not known.
    pub fn of(&self, signal: Signal, uid: &str) -> u64 {
        self.pods[signal as usize].get(uid).map_or(0, |seen| {
            let grown = seen.latest.usage.saturating_sub(seen.begin.usage);
            scaled(grown, SECOND, seen.latest.time - seen.begin.time)
        })
    }

    /// A pod was evicted for signals. Their growth is seen anew, and so is that of the pods; walks of files are too rare for
    /// that.
    pub fn begin_anew(&mut self, is_of: impl Fn(Signal) -> bool) {
        for (signal, pods) in Signal::ALL.into_iter().zip(&mut self.pods) {
            if is_of(signal) {
                pods.retain(|_, seen| seen.latest.of_walk);
            }
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
            growth.of(signal, "pod")
        };
        // The walk began before the last look that knew nothing of the pod's files.
        assert_eq!(note(2, 2 * SECOND, 0, false), 0);
        assert_eq!(note(3, SECOND, 10 * GIB, true), 0);
        let grown = note(6, 5 * SECOND, 12 * GIB, true);
        assert_eq!(grown, GIB / 2);
    }

    #[test]
    fn an_eviction_for_another_disk_leaves_the_growth_of_inodes() {
        let signals = [Signal::NodeFsInodesFree, Signal::ImageFsInodesFree];
        let mut growth = UsageGrowth::default();
        for second in 1..=2 {
            let used = Use {
                time: second * SECOND,
                usage: 100 * second,
                of_walk: false,
                is_whole: true,
            };
            for signal in signals {
                growth.note(signal, "pod", second * SECOND, used);
            }
        }
        growth.begin_anew(|signal| signal == signals[0]);
        assert_eq!(signals.map(|signal| growth.of(signal, "pod")), [0, 100]);
    }
}
