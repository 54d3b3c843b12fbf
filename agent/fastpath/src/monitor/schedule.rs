//! How the loop is to wait: asleep until a wire trips or a look is due, or awake when a crossing is imminent.

use std::time::Duration;

use evictd_engine::model::settings::MemoryHook;
use evictd_node::sampling::{self, Nearness};

use crate::{Event, monitor::MemoryMonitor, scope::ScopeMonitor, spin::Wait};

/// While memory is on its way back.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(1);
/// While a threshold is met and nothing is to be done about it at once: the recovery trips a wire, and a growth that makes it
/// urgent has to be seen.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// With a program the sampler has only the ground to watch (inactive_file, capacity), which moves slower than usage.
const HOOKED_FLOOR: Duration = Duration::from_millis(10);

impl MemoryMonitor {
    /// How to wait for the look that is due after the interval: earlier or awake when some scope's threshold is about to be
    /// crossed.
    pub(crate) fn wait(&mut self, now: u64, interval: Duration) -> Wait {
        let asleep = Wait::Sleep(interval);
        let tripwire = &*self.setup.trigger;
        let is_busy = self.scopes.iter().any(|post| post.pressed && !post.idle);
        // A program is attached a moment later.
        if is_busy || (tripwire.has_program() && !tripwire.is_attached()) {
            return asleep;
        }
        let posts = self.scopes.iter_mut();
        posts
            .filter(|post| !post.pressed && !post.gone && post.is_armed(tripwire))
            .filter_map(|post| post.wait(now))
            .fold(asleep, Wait::and)
    }

    /// When to look again; switches the per-page rung on the way.
    pub(crate) fn next_look(&mut self) -> Duration {
        // Under pressure the rung stays as it is: attaching takes time that the look has not.
        if self.scopes.iter().any(|post| post.pressed && !post.idle) {
            return PRESSURE_INTERVAL;
        }
        let growth = self.growth;
        let nearness = Nearness::new(growth);
        let tripwire = &mut *self.setup.trigger;
        let has_wires = tripwire.hook() != MemoryHook::Sampler;
        let has_program = tripwire.has_program();
        let attached = tripwire.is_attached();
        let wanted = self
            .scopes
            .iter()
            .any(|post| !post.gone && nearness.wants_hook(post.distance(), attached));
        let switched = if has_wires {
            tripwire.set_near(wanted)
        } else {
            Ok(false)
        };
        match switched {
            // What was charged while it was being attached was not seen by it.
            Ok(true) if wanted => return Duration::ZERO,
            Ok(_) => {}
            Err(ref e) => {
                let errno = e.raw_os_error().unwrap_or(0);
                self.setup.events.send(Event::HookLost { errno });
            }
        }
        let is_lost = switched.is_err();
        let is_attached = has_wires && !is_lost && tripwire.is_attached();
        let next = |post: &ScopeMonitor| {
            let far = sampling::next_look(post.distance(), growth);
            if post.gone {
                sampling::CEILING
            } else if post.pressed && post.no_candidates {
                IDLE_INTERVAL
            } else if post.pressed {
                // In good time for a growth that begins now to be seen before it has used up much of what is left.
                let left = post.sample.shortage.room.at_once / 4;
                sampling::next_look(left, growth).min(IDLE_INTERVAL)
            } else if is_attached && post.is_armed(tripwire) {
                // An eventfd tells late: the last stretch is found by looking.
                if has_program {
                    far.max(HOOKED_FLOOR)
                } else {
                    far
                }
            } else if has_wires && !is_lost {
                nearness.next_look(post.distance())
            } else {
                far
            }
        };
        let looks = self.scopes.iter().map(next);
        looks.min().unwrap_or(sampling::CEILING)
    }
}
