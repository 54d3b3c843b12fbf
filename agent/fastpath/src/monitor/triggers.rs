//! What the triggers of all scopes have told since the last cycle.

use evictd_engine::model::settings::MemoryHook;
use evictd_node::trigger::memory::{ANY_SLOT, MAX_SCOPES, SLOTS_PER_SCOPE, TriggerSet, slot};
use evictd_sys::{fs::errno, page::page_size};

use crate::scope::ScopeTriggers;

/// The hook, and what was read from it.
pub(crate) struct TriggerReader {
    /// The hook that watches the scopes.
    pub set: Box<dyn TriggerSet>,
    unhandled: TriggerEvents,
    /// Events of triggers so far.
    pub events_read: u64,
    /// Why the hook could not be attached or detached at the last attempt: an errno.
    lost: Option<i32>,
}

/// The events of the triggers since the last cycle.
#[derive(Default)]
pub(crate) struct TriggerEvents {
    /// Scope by scope.
    pub scopes: [ScopeTriggers; MAX_SCOPES as usize],
    /// Index of the scope whose threshold's trigger tripped first.
    pub tripped: Option<usize>,
}

/// Outcome of attaching or detaching the per-page hook.
pub(crate) struct Switched {
    /// It was attached, and has not seen the charges of the time before.
    pub is_new: bool,
    /// The kernel refuses.
    pub is_lost: bool,
    /// The errno of a refusal that was not there before.
    pub lost_now: Option<i32>,
}

impl TriggerReader {
    pub fn new(set: Box<dyn TriggerSet>) -> Self {
        Self {
            set,
            unhandled: TriggerEvents::default(),
            events_read: 0,
            lost: None,
        }
    }

    /// Reads the events of the triggers; whether a threshold's trigger has tripped.
    pub fn drain(&mut self) -> bool {
        let TriggerEvents {
            scopes: triggers,
            tripped,
        } = &mut self.unhandled;
        while let Some(trip) = self.set.next_crossing() {
            self.events_read += 1;
            if trip.slot == ANY_SLOT {
                for triggers in &mut *triggers {
                    triggers.trip = triggers.trip.or(Some(trip));
                }
                *tripped = tripped.or(Some(0));
                continue;
            }
            let scope = (trip.slot / SLOTS_PER_SCOPE) as usize;
            let Some(triggers) = triggers.get_mut(scope) else {
                continue;
            };
            match trip.slot % SLOTS_PER_SCOPE {
                slot::CALIBRATION => triggers.counter = Some(trip.usage * page_size()),
                // It only has to wake the thread.
                slot::RECOVERY => {}
                slot::APPROACH => triggers.approached = true,
                _ => {
                    triggers.trip = triggers.trip.or(Some(trip));
                    *tripped = tripped.or(Some(scope));
                }
            }
        }
        tripped.is_some()
    }

    /// The events since the last cycle, which are handled now.
    pub fn take(&mut self) -> TriggerEvents {
        std::mem::take(&mut self.unhandled)
    }

    /// Attaches or detaches the per-page hook, as `wanted`.
    pub fn switch(&mut self, wanted: bool) -> Switched {
        let switched = match self.has_triggers() {
            true => self.set.set_near(wanted),
            false => Ok(false),
        };
        let errno = switched.as_ref().err().map(errno);
        Switched {
            is_new: wanted && matches!(switched, Ok(true)),
            is_lost: errno.is_some(),
            lost_now: lost_now(&mut self.lost, errno),
        }
    }

    /// Whether the kernel has refused the last attempt to attach or detach the hook.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether a hook wakes the loop.
    pub fn has_triggers(&self) -> bool {
        self.set.hook() != MemoryHook::Sampler
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
