//! How the loop waits: it sleeps until a trigger trips or a look is due, or spins when a crossing is imminent.

use std::time::Duration;

use evictd_engine::model::settings::MemoryHook;
use evictd_engine::sampling::{self, Nearness, Notification, ScopeState};
use evictd_sys::fs::errno;

use crate::{FastPathEvent, monitor::MemoryMonitor, scope::ScopeMonitor, spin::Wait};

impl MemoryMonitor {
    /// How to wait for the look that is due after the interval: spinning, if a scope's threshold is about to be
    /// crossed.
    pub(crate) fn wait(&mut self, now: u64, interval: Duration) -> Wait {
        let asleep = Wait::Sleep(interval);
        let trigger = &*self.trigger;
        let is_busy = self
            .scopes
            .iter()
            .any(|monitor| monitor.pressed && !monitor.idle);
        // A kernel program is about to be attached.
        if is_busy || (trigger.has_program() && !trigger.is_attached()) {
            return asleep;
        }
        let scopes = self.scopes.iter_mut();
        scopes
            .filter(|monitor| !monitor.pressed && !monitor.gone && monitor.is_armed(trigger))
            .filter_map(|monitor| monitor.wait(now))
            .fold(asleep, Wait::and)
    }

    /// Computes when to look again; attaches or detaches the per-page hook as the distance asks for it.
    pub(crate) fn sample_interval(&mut self) -> Duration {
        // Under pressure the hook stays as it is: attaching it takes too long.
        if self
            .scopes
            .iter()
            .any(|monitor| monitor.pressed && !monitor.idle)
        {
            return sampling::BUSY;
        }
        let growth = self.fastest_growth;
        let nearness = Nearness::new(growth);
        let trigger = &mut *self.trigger;
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
        let errno = switched.as_ref().err().map(errno);
        let is_lost = errno.is_some();
        self.status.note_hook(is_lost);
        // One event for each loss; every look tries again.
        if let Some(errno) = lost_now(&mut self.hook_lost, errno) {
            self.events.send(FastPathEvent::HookLost { errno });
        }
        if wanted && matches!(switched, Ok(true)) {
            // The hook has not seen the charges of the time in which it was being attached.
            return Duration::ZERO;
        }
        let is_attached = has_triggers && !is_lost && trigger.is_attached();
        // Pods that limits, a pause or policies hold back now may go the next moment.
        let has_candidates = || {
            let mut pods = self.table.entries.iter().zip(&self.table.candidates);
            pods.any(|(entry, candidate)| !entry.protected && candidate.usage > 0)
        };
        let next = |monitor: &ScopeMonitor| {
            if monitor.gone {
                return sampling::CEILING;
            }
            let state = match monitor.pressed {
                false => ScopeState::Calm,
                true if has_candidates() => ScopeState::Idle,
                true => ScopeState::NoCandidates,
            };
            let notification = if is_attached && monitor.is_armed(trigger) {
                match has_program {
                    true => Notification::AtCrossing,
                    // The trigger lies a spin window before the threshold; the crossing itself is found by looking.
                    false => Notification::Late,
                }
            } else if has_triggers && !is_lost {
                Notification::OnceNear
            } else {
                Notification::Late
            };
            let room = monitor.sample.shortage.headroom.immediate;
            sampling::sample_interval_at(state, notification, monitor.distance(), room, growth)
        };
        let looks = self.scopes.iter().map(next);
        looks.min().unwrap_or(sampling::CEILING)
    }
}

/// The errno to report when the hook is refused, or refused for another reason than before; `before` is what was seen
/// last.
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
