//! How many pods one urgent decision takes, and which: asked before each of them.

use crate::{
    growth::{Headroom, grown_in},
    pace::{KILL_LATENCY_NS, MARGIN_NS, PaceInputs},
    pending::Pending,
};

/// Choice of the pod that an urgent decision takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextVictim {
    /// The first in the order of eviction.
    First,
    /// The first of those that grow: what comes back is enough, and only the end of a growth is sooner.
    Growing,
    /// The first of those whose processes hold memory: shared memory that comes back is enough, and comes too late.
    WithProcesses,
}

/// State by which an urgent decision chooses how many pods it takes: it is asked before each of them.
#[derive(Clone, Copy, Debug)]
pub struct Relief {
    now: u64,
    headroom: Headroom,
    /// The growth that was seen, per second.
    growth: u64,
    /// The part of it that pods which may still go have by their own counters, per second.
    growth_of_pods: u64,
    /// The growth that was seen may be that of a victim, as long as no other pod's counter tells of it.
    is_settling: bool,
    /// Memory comes, and not fast enough.
    is_overtaken: bool,
    pending: Pending,
}

impl Relief {
    /// Creates the relief for a decision of `pace_inputs` at a `growth` per second. `growth_of_pods` is what all pods that
    /// may go grow by per second, as their own counters tell; 0 where that is not known yet.
    pub fn new(pace_inputs: &PaceInputs, growth: u64, growth_of_pods: u64) -> Self {
        let (pace, pending) = (&pace_inputs.pace, pace_inputs.pending);
        let is_settling = pace.is_settling(pace_inputs.now);
        Self {
            now: pace_inputs.now,
            headroom: pace_inputs.shortage.usable(),
            growth,
            growth_of_pods,
            is_settling,
            is_overtaken: pending.flows && !is_settling,
            pending,
        }
    }

    /// A pod goes that grew by so much per second, and what is expected of it.
    pub fn add(&mut self, grew: u64, gives: Pending) {
        (self.is_settling, self.is_overtaken) = (true, false);
        self.growth = self.growth.saturating_sub(grew);
        self.growth_of_pods = self.growth_of_pods.saturating_sub(grew);
        self.pending.merge(gives);
    }

    /// The pod that has to go next: nothing would be left before the memory of those that go is there. `None`: no more.
    pub fn next(&self) -> Option<NextVictim> {
        let first = Some(NextVictim::First);
        let Some(due) = self.pending.due else {
            return first;
        };
        if self.is_overtaken {
            return first;
        }
        let wait = due.saturating_sub(self.now).saturating_add(MARGIN_NS);
        let until_then = grown_in(self.growth, wait);
        let headroom = self.headroom.within(wait);
        if until_then == 0 || until_then < headroom {
            return None;
        }
        // What goes now comes no sooner where enough is on its way; but a growth ends at once with the pod whose it is.
        let is_enough = until_then <= headroom.saturating_add(self.pending.soon);
        if !(is_enough || self.is_settling) {
            let is_late = until_then <= headroom.saturating_add(self.pending.amount);
            return if is_late {
                Some(NextVictim::WithProcesses)
            } else {
                first
            };
        }
        let grown = grown_in(self.growth_of_pods, KILL_LATENCY_NS);
        let ends_it = grown > 0 && grown >= self.headroom.within(KILL_LATENCY_NS);
        ends_it.then_some(NextVictim::Growing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        shortage::Shortage,
        units::{MS, SECOND},
    };

    const MIB: u64 = 1 << 20;

    /// A page of slab is written in no time, and gives nothing to a growth.
    #[test]
    fn what_can_be_written_counts_by_its_amount() {
        let next = |deferred: u64| {
            let mut pending = Pending::default();
            pending.add(MIB, SECOND + 5 * SECOND);
            let inputs = PaceInputs {
                now: SECOND,
                shortage: Shortage {
                    headroom: Headroom {
                        immediate: 16 * MIB,
                        deferred,
                        deferred_per_second: 32 * MIB,
                        ..Headroom::default()
                    },
                    ..Shortage::default()
                },
                pending,
                ..PaceInputs::default()
            };
            Relief::new(&inputs, 20 * MIB, 0).next()
        };
        assert_eq!(next(4096), Some(NextVictim::First));
        assert_eq!(next(400 * MIB), None, "the disk keeps up with it");
    }

    /// What grows behind others in the order goes as well, but only when nothing else would be in time.
    #[test]
    fn a_growth_of_other_pods_takes_as_many_as_end_it() {
        let pace_inputs = |mib_left: u64| PaceInputs {
            now: SECOND,
            shortage: Shortage {
                headroom: Headroom {
                    immediate: mib_left * MIB,
                    ..Headroom::default()
                },
                ..Shortage::default()
            },
            ..PaceInputs::default()
        };
        let mut gives = Pending::default();
        gives.add_soon(800 * MIB, SECOND + 50 * MS);
        let fast = 5000 * MIB;
        let grower = Some(NextVictim::Growing);
        for (mib_left, grew, next) in [(90, 0, None), (30, 0, grower), (30, fast, None)] {
            let mut relief = Relief::new(&pace_inputs(mib_left), fast, fast);
            assert_eq!(relief.next(), Some(NextVictim::First), "one goes");
            relief.add(grew, gives);
            assert_eq!(relief.next(), next, "{mib_left} {grew}");
        }
    }
}
