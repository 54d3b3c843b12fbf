//! How the loop waits: it sleeps until a trigger trips or a look is due, or spins when a crossing is imminent.

use std::time::Duration;

use evictd_engine::sampling::{self, Notification, ScopeState, wants_hook};

use crate::{FastPathEvent, monitor::MemoryMonitor, scope::WatchedScope, spin::Wait};

impl MemoryMonitor {
    /// How to wait for the look that is due after the interval: spinning, if a scope's threshold is about to be
    /// crossed.
    pub(crate) fn wait(&mut self, now: u64, interval: Duration) -> Wait {
        let asleep = Wait::Sleep(interval);
        let trigger = &*self.triggers.set;
        // A kernel program is about to be attached.
        if self.is_busy() || (trigger.has_program() && !trigger.is_attached()) {
            return asleep;
        }
        let scopes = self.scopes.iter_mut();
        scopes
            .filter(|watched| !watched.under_pressure && !watched.gone)
            .filter(|watched| watched.is_armed(trigger) && watched.can_trip())
            .filter_map(|watched| watched.wait(now))
            .fold(asleep, Wait::and)
    }

    /// Computes when to look again; attaches or detaches the per-page hook as the distance asks for it.
    pub(crate) fn sample_interval(&mut self) -> Duration {
        // Under pressure the hook stays as it is: attaching it takes too long.
        if self.is_busy() {
            return sampling::BUSY;
        }
        let growth = self.fastest_growth;
        let attached = self.triggers.set.is_attached();
        let wanted = self
            .scopes
            .iter()
            .any(|watched| !watched.gone && wants_hook(growth, watched.distance(), attached));
        let switched = self.triggers.switch(wanted);
        self.status.note_hook(switched.is_lost);
        // One event for each loss; every look tries again.
        if let Some(errno) = switched.lost_now {
            self.events.send(FastPathEvent::HookLost { errno });
        }
        if switched.is_new {
            // The hook has not seen the charges of the time in which it was being attached.
            return Duration::ZERO;
        }
        self.next_look()
    }

    /// When to look again, with the hook as it is.
    fn next_look(&self) -> Duration {
        if self.is_busy() {
            return sampling::BUSY;
        }
        let growth = self.fastest_growth;
        let (trigger, has_program) = (&*self.triggers.set, self.triggers.set.has_program());
        let has_hook = self.triggers.has_triggers() && !self.triggers.is_lost();
        let is_attached = has_hook && trigger.is_attached();
        // Pods that limits, a pause or policies hold back now may go the next moment.
        let table = &self.pods.table;
        let has_candidates = || {
            let mut pods = table.entries.iter().zip(&table.candidates);
            pods.any(|(entry, candidate)| !entry.protected && candidate.usage > 0)
        };
        let next = |watched: &WatchedScope| {
            if watched.gone {
                return sampling::MAX_INTERVAL;
            }
            let state = match watched.under_pressure {
                false => ScopeState::Calm,
                true if has_candidates() => ScopeState::Idle,
                true => ScopeState::NoCandidates,
            };
            let notification = if is_attached && watched.is_armed(trigger) {
                match has_program {
                    true if watched.can_trip() => Notification::AtCrossing,
                    true => Notification::Hidden(watched.pace.fastest_growth(watched.step())),
                    // The trigger lies a spin window before the threshold; the crossing itself is found by looking.
                    false => Notification::Late,
                }
            } else if has_hook {
                Notification::OnceNear
            } else {
                Notification::Late
            };
            let headroom = watched.sample.shortage.headroom.immediate;
            sampling::sample_interval_at(state, notification, watched.distance(), headroom, growth)
        };
        let looks = self.scopes.iter().map(next);
        looks.min().unwrap_or(sampling::MAX_INTERVAL)
    }

    /// When the standby thread has to look again if the fast path has not come by then; `None` where no threshold is
    /// met: the next crossing calls it.
    pub(crate) fn next_take_over(&self) -> Option<Duration> {
        let is_under_pressure = self.scopes.iter().any(|watched| watched.under_pressure);
        is_under_pressure.then(|| self.next_look())
    }

    /// Whether a threshold is met, and something is under way or due about it.
    fn is_busy(&self) -> bool {
        let mut scopes = self.scopes.iter();
        scopes.any(|watched| watched.under_pressure && !watched.idle)
    }
}
