//! The stopwatch: when the threshold was crossed, and the memory over time.
//!
//! All contenders are measured by the same one: a trigger of evictd's kernel programs, loaded a second time by the
//! benchmark itself and armed at the same limit. It is exact to the page, costs every contender the same some
//! nanoseconds per charge, and unlike a thread that reads the counter in a loop it takes no CPU away, which on a
//! machine with two of them would decide the race. Where no program can be loaded the crossing is the first sample
//! past the limit, and the results say so.

use evictd_node::{
    memory_scope::Scope,
    trigger::memory::{self, Action, Direction, Trigger, TriggerSet},
};
use evictd_sys::page::page_size;
use evictd_tests::{prelude::*, sampling::Sampling};

const INTERVAL: Duration = Duration::from_micros(500);
const SAMPLES: usize = 1 << 16;
const CROSSINGS: usize = 1 << 10;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Bytes charged.
    pub usage: u64,
    /// Bytes past the limit that was in force; negative before.
    pub beyond: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The limit in bytes of usage.
    pub limit: u64,
}

#[derive(Debug, Default)]
pub struct Observation {
    /// Every crossing from below.
    pub crossings: Vec<Crossing>,
    /// Every half millisecond.
    pub samples: Vec<Sample>,
}

impl Observation {
    /// The last crossing before the first signal; without a signal, or ahead of all, the first one. The counter may go back
    /// below the limit by itself: a CPU gives back what it had charged in advance (up to 256 KiB,
    /// `drain_stock`), or inactive_file grows. A reader then finds nothing to do, and at 20 MB/s the next crossing is
    /// 13 ms away.
    pub fn acted_upon(&self, signalled: Option<u64>) -> Option<Crossing> {
        let before = |crossing: &&Crossing| signalled.is_some_and(|at| crossing.time_ns <= at);
        let last = self.crossings.iter().rfind(before);
        last.or(self.crossings.first()).copied()
    }
}

pub struct Observer {
    sampling: Sampling<Watch>,
    pub stopwatch: &'static str,
}

impl Observer {
    /// Starts to watch for the moment when less than `amount` bytes are available.
    pub fn start(scope: Scope, amount: u64) -> Result<Self> {
        let (object, built) = memory::load(BpfObject::load(), &[scope.cgroup()], None);
        let mut trigger = built?.trigger;
        let exact = trigger.has_program();
        trigger.set_near(true)?;
        let hook = trigger.hook();
        let mut watch = Watch {
            _object: object.ok(),
            scope,
            amount,
            trigger,
            exact,
            limit: 0,
            was_past: false,
            seen: Observation {
                crossings: Vec::with_capacity(CROSSINGS),
                samples: Vec::with_capacity(SAMPLES),
            },
        };
        watch.sample()?;
        Ok(Self {
            // A trigger that is set anew after the crossing has come in between would time the wrong charge.
            sampling: Sampling::start(INTERVAL, watch, Watch::sample),
            stopwatch: match hook {
                MemoryHook::Eventfd | MemoryHook::Sampler => "sampled every 0.5 ms",
                hook => hook.name(),
            },
        })
    }

    pub fn finish(self) -> Result<Observation> {
        Ok(self.sampling.finish()?.seen)
    }
}

struct Watch {
    // The programs are attached for as long as it lives.
    _object: Option<BpfObject>,
    scope: Scope,
    amount: u64,
    trigger: Box<dyn TriggerSet>,
    exact: bool,
    limit: u64,
    was_past: bool,
    seen: Observation,
}

impl Watch {
    fn cross(&mut self, time_ns: u64, limit: u64) {
        if self.seen.crossings.len() < CROSSINGS {
            self.seen.crossings.push(Crossing { time_ns, limit });
        }
    }

    fn sample(&mut self) -> Result<()> {
        let look = self.scope.sample()?;
        let time_ns = monotonic_ns();
        let limit = self.scope.usage_limit(self.amount, look.reclaimable_cache);
        let is_past = look.usage >= limit;
        while let Some(trip) = self.trigger.next_crossing() {
            if self.exact {
                self.cross(trip.time_ns, trip.limit.saturating_mul(page_size()));
                // To be set anew as soon as the usage is below it.
                self.limit = 0;
            }
        }
        if is_past && !self.was_past && !self.exact {
            self.cross(time_ns, limit);
        }
        self.was_past = is_past;
        // The ground moves by pages, and at 20 MB/s one of them is a fifth of a millisecond.
        let has_moved = limit.abs_diff(self.limit) >= page_size();
        if !is_past && has_moved {
            self.limit = limit;
            let trigger = Trigger {
                limit,
                direction: Direction::Rising,
                action: Action::RecordOnly,
                ..Trigger::DISABLED
            };
            self.trigger.arm(0, trigger)?;
        }
        if self.seen.samples.len() < SAMPLES {
            let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            self.seen.samples.push(Sample {
                time_ns,
                usage: look.usage,
                beyond: signed(look.usage) - signed(limit),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_by_itself_is_not_what_was_acted_upon() {
        let at = |time_ns| Crossing { time_ns, limit: 0 };
        let mut seen = Observation {
            crossings: vec![at(10), at(20), at(30)],
            samples: Vec::new(),
        };
        let time = |signalled| seen.acted_upon(signalled).map(|c| c.time_ns);
        assert_eq!(time(Some(25)), Some(20));
        // Killed ahead of it, or by the OOM killer.
        assert_eq!(time(Some(5)), Some(10));
        assert_eq!(time(None), Some(10));
        seen.crossings.clear();
        assert!(seen.acted_upon(Some(5)).is_none());
    }
}
