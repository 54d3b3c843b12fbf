//! Counts with triggers, seen from the agent: it speaks of what is available, the kernel's programs of what they
//! counted.
//!
//! `available = base - count`, where the base comes from a file (loadavg, statfs) read while the count stood still.
//! Whatever the hooks miss makes the base move: that is the drift, corrected and counted at every sample.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use aya::maps::{Array, MapData, RingBuf};
use evictd_common::counter::{CounterTrigger as Record, Direction};
use evictd_engine::units::nanos;
use evictd_sys::clock::monotonic_ns;

use crate::bpf::{
    object::{BpfObject, ObjectError, os_error},
    ring::next_record,
};

pub use evictd_common::counter::{CgroupCount, CounterTriggerEvent, TRIGGERS};

/// Reads between which the count must not move; with more events than that the last reading is taken as it is.
const QUIET_READS: usize = 4;

/// Direction in which a trigger is crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountDirection {
    /// Less than the limit is available: a threshold is met.
    Below,
    /// The limit or more is available again.
    Recovered,
}

/// A limit of what is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountTrigger {
    /// Limit of what is available, in tasks or inodes.
    pub available: i64,
    /// Direction in which the limit is crossed.
    pub direction: CountDirection,
}

/// A trigger that was crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterEvent {
    /// Index of the count: 0 for tasks, the filesystem's index for inodes.
    pub counter: usize,
    /// Slot of the trigger, below [`TRIGGERS`].
    pub slot: usize,
    /// Number of tasks or inodes that were available then, by the count.
    pub available: i64,
    /// The kernel's record.
    pub event: CounterTriggerEvent,
}

/// Corrections of counts that were off, since the counts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Samples that found the count off.
    pub corrections: u64,
    /// Sum of the corrections without sign, in tasks or inodes.
    pub total: u64,
}

/// Result of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Available now, by the file.
    pub available: i64,
    /// Available by the count until now, `None` at the first sample.
    pub counted: Option<i64>,
}

/// Names of the maps of one topic.
pub(super) struct MapNames {
    pub counts: &'static str,
    pub triggers: &'static str,
    pub wakeups: &'static str,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    trigger: Option<CountTrigger>,
    generation: u64,
    /// The generation whose crossing was handed out: two CPUs that cross at once both report it.
    handed_on: u64,
}

/// A hook that counts nothing for so long, while what it stands for moves, is stale.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// Largest number of tasks or inodes by which a working hook may lag behind the files.
const UNSEEN: u64 = 32;

/// Whether a hook still counts.
#[derive(Clone, Copy, Debug, Default)]
struct HookActivity {
    /// The first sample since the count has moved: when it was, in nanoseconds of CLOCK_MONOTONIC, the count, and how many
    /// were in use by the file. What is available also moves without a task or a file: on xfs with each block written.
    since: Option<(u64, i64, u64)>,
    is_stale: bool,
}

impl HookActivity {
    fn note(&mut self, now: u64, count: i64, used: u64) {
        match self.since {
            Some((since, counted, before)) if counted == count => {
                let has_waited = now.saturating_sub(since) >= nanos(STALE_AFTER);
                self.is_stale |= has_waited && used.abs_diff(before) > UNSEEN;
            }
            _ => {
                *self = Self {
                    since: Some((now, count, used)),
                    is_stale: false,
                }
            }
        }
    }
}

#[derive(Default)]
struct Counter {
    base: Option<i64>,
    activity: HookActivity,
    slots: [Slot; TRIGGERS as usize],
    drift: Drift,
}

/// Makes the record that places a limit of what is available on the count's scale.
fn record(base: i64, slot: Slot) -> Record {
    let (limit, direction) = match slot.trigger {
        Some(trigger) => {
            let at = base.saturating_sub(trigger.available);
            match trigger.direction {
                CountDirection::Below => (at.saturating_add(1), Direction::Rising as u32),
                CountDirection::Recovered => (at, Direction::Falling as u32),
            }
        }
        None => (i64::MAX, Direction::Rising as u32),
    };
    Record {
        limit,
        generation: slot.generation.max(1),
        direction,
        padding: 0,
    }
}

/// The counts of one topic. Nothing here allocates after it was built.
pub(super) struct EventCounter {
    counts: Array<MapData, i64>,
    triggers: Array<MapData, Record>,
    wakeups: RingBuf<MapData>,
    counters: Vec<Counter>,
}

impl EventCounter {
    pub fn new(
        object: &mut BpfObject,
        names: &MapNames,
        counters: usize,
    ) -> Result<Self, ObjectError> {
        Ok(Self {
            counts: object.array(names.counts)?,
            triggers: object.array(names.triggers)?,
            wakeups: object.ring(names.wakeups)?,
            counters: (0..counters).map(|_| Counter::default()).collect(),
        })
    }

    /// Reads what is available by the count, `None` before the first sample.
    pub fn counted(&self, counter: usize) -> io::Result<Option<i64>> {
        let count = self.events(counter)?;
        let base = self.counters.get(counter).and_then(|c| c.base);
        Ok(base.map(|base| base - count))
    }

    /// Reads the truth, what is available and how many are in use, and moves the triggers to where it puts them. A trigger
    /// that has tripped stays tripped.
    pub fn sample(
        &mut self,
        counter: usize,
        mut read: impl FnMut() -> io::Result<(i64, u64)>,
    ) -> io::Result<Sample> {
        let mut before = self.events(counter)?;
        let (mut count, (mut truth, mut used)) = (before, read()?);
        for _ in 1..QUIET_READS {
            count = self.events(counter)?;
            if count == before {
                break;
            }
            (before, (truth, used)) = (count, read()?);
        }
        let Some(state) = self.counters.get_mut(counter) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        state.activity.note(monotonic_ns(), count, used);
        let base = truth.saturating_add(count);
        let old = state.base.replace(base);
        if let Some(moved) = old.map(|old| old.abs_diff(base)).filter(|by| *by != 0) {
            state.drift.corrections += 1;
            state.drift.total += moved;
        }
        if old != Some(base) {
            for slot in 0..TRIGGERS as usize {
                self.write(counter, slot)?;
            }
        }
        Ok(Sample {
            available: truth,
            counted: old.map(|old| old - count),
        })
    }

    /// Sets a trigger, which trips once until it is set again; one that is crossed already trips at the next event.
    pub fn arm(
        &mut self,
        counter: usize,
        slot: usize,
        trigger: Option<CountTrigger>,
    ) -> io::Result<()> {
        let state = self.counters.get_mut(counter);
        let Some(slots) = state.map(|c| &mut c.slots).filter(|s| slot < s.len()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        slots[slot].trigger = trigger;
        slots[slot].generation += 1;
        // The programs stop at the first slot that was never used.
        for below in 0..slot {
            let unused = &mut self.counters[counter].slots[below];
            if unused.generation == 0 {
                unused.generation = 1;
                self.write(counter, below)?;
            }
        }
        self.write(counter, slot)
    }

    /// Forgets what a count means: its triggers stay, and count again after the next sample.
    pub fn suspend(&mut self, counter: usize) -> io::Result<()> {
        if let Some(state) = self.counters.get_mut(counter) {
            state.base = None;
            state.activity = HookActivity::default();
        }
        for slot in 0..TRIGGERS as usize {
            self.write(counter, slot)?;
        }
        Ok(())
    }

    pub fn drift(&self, counter: usize) -> Drift {
        self.counters
            .get(counter)
            .map(|c| c.drift)
            .unwrap_or_default()
    }

    /// Whether the hook counts nothing any more, by the samples: its triggers do not trip.
    pub fn is_stale(&self, counter: usize) -> bool {
        let counter = self.counters.get(counter);
        counter.is_some_and(|counter| counter.activity.is_stale)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wakeups.as_fd()
    }

    /// The oldest crossing not read yet, once per arming. Those of triggers that were set anew in the meantime are left
    /// out.
    pub fn next_crossing(&mut self) -> Option<CounterEvent> {
        loop {
            let event: CounterTriggerEvent = next_record(&mut self.wakeups)?;
            let (counter, slot) = (
                (event.slot / TRIGGERS) as usize,
                (event.slot % TRIGGERS) as usize,
            );
            let Some(state) = self.counters.get_mut(counter) else {
                continue;
            };
            let armed = &mut state.slots[slot];
            if let Some(base) = state.base
                && armed.generation == event.generation
                && armed.handed_on != event.generation
            {
                armed.handed_on = event.generation;
                return Some(CounterEvent {
                    counter,
                    slot,
                    available: base - event.count,
                    event,
                });
            }
        }
    }

    /// Reads what the programs have counted: what was started or made, less what has ended or was removed.
    pub fn events(&self, counter: usize) -> io::Result<i64> {
        let index = u32::try_from(counter).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.counts.get(&index, 0).map_err(os_error)
    }

    fn write(&mut self, counter: usize, slot: usize) -> io::Result<()> {
        let Some(state) = self.counters.get(counter) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut wanted = state.slots[slot];
        if wanted.generation == 0 {
            return Ok(());
        }
        if state.base.is_none() {
            wanted.trigger = None;
        }
        let index = counter as u32 * TRIGGERS + slot as u32;
        self.triggers
            .set(index, record(state.base.unwrap_or(0), wanted), 0)
            .map_err(os_error)
    }
}

/// Number of attempts of a self-test: others may undo in the same moment what it makes.
pub(super) const ATTEMPTS: usize = 5;

/// Whether a hook counts what the agent makes. What is made lasts until the count was read again. Where nothing can be
/// made, nothing is known against the hook.
///
/// # Errors
/// The count cannot be read.
pub(super) fn self_test<T>(
    events: impl Fn() -> io::Result<i64>,
    make: impl Fn() -> io::Result<T>,
) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        let before = events()?;
        let Ok(_made) = make() else {
            return Ok(true);
        };
        if events()? != before {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use evictd_engine::units::SECOND;

    use super::*;

    fn at(available: i64, direction: CountDirection) -> Record {
        let trigger = Some(CountTrigger {
            available,
            direction,
        });
        record(
            1000,
            Slot {
                trigger,
                generation: 1,
                handed_on: 0,
            },
        )
    }

    #[test]
    fn less_than_the_limit_is_one_more_counted_than_the_difference() {
        let below = at(100, CountDirection::Below);
        assert_eq!(
            (below.limit, below.direction),
            (901, Direction::Rising as u32)
        );
        let recovered = at(100, CountDirection::Recovered);
        assert_eq!(
            (recovered.limit, recovered.direction),
            (900, Direction::Falling as u32)
        );
    }

    #[test]
    fn a_hook_that_counts_nothing_while_files_move_is_silent() {
        let mut activity = HookActivity::default();
        let mut is_stale = |seconds: u64, count, used| {
            activity.note(seconds * SECOND, count, used);
            activity.is_stale
        };
        // Nothing happens, or what is there is counted.
        assert!(!is_stale(0, 7, 1000) && !is_stale(60, 7, 1000));
        assert!(!is_stale(61, 107, 900) && !is_stale(62, 107, 800));
        assert!(!is_stale(63, 108, 700), "it counts again");
        // A few that it has not seen yet, and as many that it never sees.
        assert!(!is_stale(64, 108, 690) && !is_stale(70, 108, 680));
        assert!(is_stale(71, 108, 600) && is_stale(72, 108, 700));
        assert!(!is_stale(73, 109, 600), "it counts again");
    }

    #[test]
    fn an_empty_slot_is_never_crossed() {
        let never = record(0, Slot::default());
        assert_eq!((never.limit, never.generation), (i64::MAX, 1));
    }

    proptest::proptest! {
        /// The two triggers of one limit never both hold, and one of them always does.
        #[test]
        fn below_or_recovered(
            base in -1_000_000_i64..1_000_000,
            limit in 0_i64..1_000_000,
            count in -1_000_000_i64..1_000_000,
        ) {
            let holds = |direction| {
                let trigger = Some(CountTrigger { available: limit, direction });
                let r = record(base, Slot { trigger, generation: 1, handed_on: 0 });
                if r.direction == Direction::Falling as u32 { count <= r.limit } else { count >= r.limit }
            };
            proptest::prop_assert_eq!(holds(CountDirection::Below), base - count < limit);
            proptest::prop_assert_eq!(holds(CountDirection::Recovered), base - count >= limit);
        }
    }
}
