//! How the loop is to wait: asleep until a trigger trips or a look is due, or awake when a crossing is imminent.

use std::time::Duration;

use evictd_engine::model::settings::MemoryHook;
use evictd_node::sampling::{self, Nearness};

use crate::{Event, monitor::MemoryMonitor, scope::ScopeMonitor, spin::Wait};

/// While memory is on its way back.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(1);
/// While a threshold is met and nothing is to be done about it at once: the recovery trips a trigger, and a growth that makes it
/// urgent has to be seen.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// With a program the sampler has only the ground to watch (inactive_file, capacity), which moves slower than usage.
const HOOKED_FLOOR: Duration = Duration::from_millis(10);

impl MemoryMonitor {
    /// How to wait for the look that is due after the interval: earlier or awake when some scope's threshold is about to be
    /// crossed.
    pub(crate) fn wait(&mut self, now: u64, interval: Duration) -> Wait {
        let asleep = Wait::Sleep(interval);
        let trigger = &*self.setup.trigger;
        let is_busy = self
            .scopes
            .iter()
            .any(|monitor| monitor.pressed && !monitor.idle);
        // A program is attached a moment later.
        if is_busy || (trigger.has_program() && !trigger.is_attached()) {
            return asleep;
        }
        let scopes = self.scopes.iter_mut();
        scopes
            .filter(|monitor| !monitor.pressed && !monitor.gone && monitor.is_armed(trigger))
            .filter_map(|monitor| monitor.wait(now))
            .fold(asleep, Wait::and)
    }

    /// When to look again; switches the per-page hook on the way.
    pub(crate) fn next_look(&mut self) -> Duration {
        // Under pressure the hook stays as it is: attaching takes time that the look has not.
        if self
            .scopes
            .iter()
            .any(|monitor| monitor.pressed && !monitor.idle)
        {
            return PRESSURE_INTERVAL;
        }
        let growth = self.growth;
        let nearness = Nearness::new(growth);
        let trigger = &mut *self.setup.trigger;
        let has_triggers = trigger.hook() != MemoryHook::Sampler;
        let has_program = trigger.has_program();
        let attached = trigger.is_attached();
        let wanted = self
            .scopes
            .iter()
            .any(|monitor| !monitor.gone && nearness.wants_hook(monitor.distance(), attached));
        let switched = if has_triggers {
            trigger.set_near(wanted)
        } else {
            Ok(false)
        };
        let refused = switched.as_ref().err();
        let errno = refused.map(|error| error.raw_os_error().unwrap_or(0));
        let is_lost = errno.is_some();
        self.setup.events.note_hook(is_lost);
        // Once for each loss: every look tries again.
        if let Some(errno) = lost_now(&mut self.hook_lost, errno) {
            self.setup.events.send(Event::HookLost { errno });
        }
        if wanted && matches!(switched, Ok(true)) {
            // What was charged while it was being attached was not seen by it.
            return Duration::ZERO;
        }
        let is_attached = has_triggers && !is_lost && trigger.is_attached();
        let next = |monitor: &ScopeMonitor| {
            let far = sampling::next_look(monitor.distance(), growth);
            if monitor.gone {
                sampling::CEILING
            } else if monitor.pressed && monitor.no_candidates {
                IDLE_INTERVAL
            } else if monitor.pressed {
                // In good time for a growth that begins now to be seen before it has used up much of what is left.
                let left = monitor.sample.shortage.room.at_once / 4;
                sampling::next_look(left, growth).min(IDLE_INTERVAL)
            } else if is_attached && monitor.is_armed(trigger) {
                // An eventfd tells late: the last spin window is found by looking.
                if has_program {
                    far.max(HOOKED_FLOOR)
                } else {
                    far
                }
            } else if has_triggers && !is_lost {
                nearness.next_look(monitor.distance())
            } else {
                far
            }
        };
        let looks = self.scopes.iter().map(next);
        looks.min().unwrap_or(sampling::CEILING)
    }
}

/// The errno to report when the hook is refused, or refused for another reason than before; `before` is what was seen last.
fn lost_now(before: &mut Option<i32>, now: Option<i32>) -> Option<i32> {
    let was = std::mem::replace(before, now);
    now.filter(|_| now != was)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_reported_once() {
        let mut before = None;
        let seen = [
            (None, None),
            (Some(1), Some(1)),
            (Some(1), None),
            (Some(1), None),
            (Some(2), Some(2)),
            (None, None),
            (Some(2), Some(2)),
        ];
        for (now, reported) in seen {
            assert_eq!(lost_now(&mut before, now), reported);
        }
    }
}
