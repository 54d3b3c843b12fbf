//! Sets the triggers of a scope: where they lie, and when they are set anew.

use std::io;

use evictd_engine::units::signed;
use evictd_node::trigger::memory::{
    Action, Direction, SLOTS_PER_SCOPE, Trigger, TriggerSet, batch_bytes, slot, slot_of,
};
use evictd_sys::page::page_size;

use super::{ScopeTriggers, WatchedScope};
use crate::spin::spin_window;

/// What a CPU charges in advance, in bytes: the counter moves by so much at once. A trigger is set anew when its limit
/// has moved by that, as a smaller move makes no difference. The floor's trigger lies ahead by that, so that the charge
/// that reaches it ends at the floor and not past it.
fn batch() -> u64 {
    batch_bytes(page_size())
}

/// Where the triggers of a scope were set. Limits are bytes of the usage counter.
pub struct ArmedTriggers {
    /// Limit of the threshold's trigger; 0 before it was set.
    hard: u64,
    /// Limit of the floor's trigger; 0 before it was set.
    floor: u64,
    /// Limit of the recovery's trigger; `None` while it is disabled.
    recovery: Option<u64>,
    /// The trigger a spin window before the threshold is set and has not tripped.
    pub is_approach_set: bool,
    /// Bytes before the threshold at which that trigger lies.
    pub spin_window: u64,
    /// The usage counter less the usage, in bytes; `None` while that is not known.
    pub offset: Option<i64>,
}

impl ArmedTriggers {
    /// `fastest_growth`: of the machine, in bytes per second.
    pub fn new(fastest_growth: u64) -> Self {
        Self {
            hard: 0,
            floor: 0,
            recovery: None,
            is_approach_set: false,
            spin_window: spin_window(fastest_growth),
            offset: None,
        }
    }

    /// All triggers are to be set anew.
    pub fn forget_limits(&mut self) {
        (self.hard, self.floor, self.recovery) = (0, 0, None);
    }
}

impl WatchedScope {
    /// Arms every slot for the first time.
    pub(crate) fn arm_all(&mut self, trigger: &mut dyn TriggerSet) -> io::Result<()> {
        self.scope.follow_limit();
        self.sample = self.scope.sample()?;
        for slot in 0..SLOTS_PER_SCOPE {
            self.set(trigger, slot, Trigger::DISABLED)?;
        }
        self.armed.recovery = None;
        self.arm(trigger)
    }

    /// The threshold is not met: sets the triggers anew where their limits have moved.
    pub(crate) fn rearm(
        &mut self,
        trigger: &mut dyn TriggerSet,
        triggers: &ScopeTriggers,
        was_under_pressure: bool,
    ) -> io::Result<()> {
        self.reported_block = None;
        self.idle = false;
        if self.armed.recovery.take().is_some() {
            self.set(trigger, slot::RECOVERY, Trigger::DISABLED)?;
        }
        if self.is_calibrated(trigger) {
            self.calibrate(trigger, triggers.counter)
        } else if was_under_pressure
            || triggers.trip.is_some()
            || self.limit_has_moved(trigger)
            || self.has_left_spin_window(trigger)
        {
            self.arm(trigger)
        } else {
            Ok(())
        }
    }

    /// Re-arms the floor's trigger when reclaimable or swappable memory has changed. Both are added to its limit, so
    /// that the kernel kills only where nothing can be reclaimed. It follows while the threshold is met, too.
    pub(crate) fn rearm_floor(&mut self, trigger: &mut dyn TriggerSet) -> io::Result<()> {
        let Some(offset) = self.offset_on(trigger) else {
            return Ok(());
        };
        let thresholds = self.scope.thresholds();
        let limit = thresholds
            .floor
            .filter(|_| self.kernel_may_kill)
            .map_or(u64::MAX, |floor| {
                let ahead = floor.saturating_add(batch()).min(thresholds.threshold);
                let reclaimable_cache = self.sample.reclaimable_cache.max(self.sample.reclaimable);
                // Where something can be swapped out, the usage stays at its limit and grows no further.
                let swap = self.sample.shortage.headroom.swap;
                self.scope
                    .usage_limit(ahead.max(floor), reclaimable_cache.saturating_add(swap))
                    .saturating_add_signed(offset)
            });
        if self.armed.floor != 0 && limit.abs_diff(self.armed.floor) < batch() {
            return Ok(());
        }
        self.armed.floor = limit;
        let new = match limit {
            u64::MAX => Trigger::DISABLED,
            limit => Trigger {
                limit,
                direction: Direction::Rising,
                action: Action::Kill,
                ..Trigger::DISABLED
            },
        };
        self.set(trigger, slot::FLOOR, new)
    }

    /// Arms the trigger of the recovery, as nothing is left to do at `now`.
    pub(crate) fn await_recovery(
        &mut self,
        trigger: &mut dyn TriggerSet,
        now: u64,
    ) -> io::Result<()> {
        let Some(offset) = self.offset_on(trigger) else {
            return Ok(());
        };
        let resolves = self.pace.is_resolving(now);
        let amount = self.scope.thresholds().needed(resolves);
        let limit = self.limit(amount, offset).saturating_sub(1);
        let stays = |armed: u64| armed.abs_diff(limit) < batch();
        if self.armed.recovery.is_some_and(stays) {
            return Ok(());
        }
        self.armed.recovery = Some(limit);
        let new = Trigger {
            limit,
            direction: Direction::Falling,
            ..Trigger::DISABLED
        };
        self.set(trigger, slot::RECOVERY, new)
    }

    /// Whether the threshold is met, by the counter alone, and no cycle has seen that yet.
    pub(crate) fn is_crossed(&self) -> bool {
        let threshold = self.scope.thresholds().threshold;
        if self.under_pressure || self.gone {
            false
        } else if self.scope.is_machine() {
            let sample = self.scope.sample();
            sample.is_ok_and(|sample| sample.guarded_available < threshold)
        } else {
            let usage = self.scope.cgroup().usage();
            usage.is_ok_and(|usage| usage >= self.limit(threshold, 0))
        }
    }

    /// Whether the triggers are set, so that one may trip once the hook is attached.
    pub(crate) fn is_armed(&self, trigger: &dyn TriggerSet) -> bool {
        self.offset_on(trigger).is_some()
    }

    /// Whether usage can reach the threshold's trigger. Where more page cache than the threshold can be given back, usage
    /// ends at the capacity, and other memory takes the place of that cache without a charge that tells.
    pub(crate) fn can_trip(&self) -> bool {
        let threshold = self.scope.thresholds().threshold;
        self.limit(threshold, 0) <= self.scope.capacity()
    }

    fn set(&self, trigger: &mut dyn TriggerSet, slot: u32, new: Trigger) -> io::Result<()> {
        trigger.arm(slot_of(self.index, slot), new)
    }

    /// Whether the usage counter and the usage differ, so that their offset has to be known.
    fn is_calibrated(&self, trigger: &dyn TriggerSet) -> bool {
        self.scope.is_machine() && trigger.has_program()
    }

    fn offset_on(&self, trigger: &dyn TriggerSet) -> Option<i64> {
        match self.armed.offset {
            None if self.is_calibrated(trigger) => None,
            known => Some(known.unwrap_or(0)),
        }
    }

    /// The offset of counter and usage changes. Each look asks the kernel for the counter, by a trigger that the next
    /// charge trips, and sets the triggers anew with the answer.
    fn calibrate(&mut self, trigger: &mut dyn TriggerSet, counter: Option<u64>) -> io::Result<()> {
        match counter {
            Some(counter) => {
                self.armed.offset = Some(signed(counter) - signed(self.sample.usage));
                self.arm(trigger)
            }
            None => {
                let at_the_next_charge = Trigger {
                    limit: 0,
                    ..Trigger::DISABLED
                };
                self.set(trigger, slot::CALIBRATION, at_the_next_charge)
            }
        }
    }

    fn limit(&self, amount: u64, offset: i64) -> u64 {
        self.scope
            .usage_limit(amount, self.sample.reclaimable_cache)
            .saturating_add_signed(offset)
    }

    /// Whether the threshold's limit has moved by enough to set the triggers anew: by a page close to the threshold,
    /// where a batch too far would be too late.
    fn limit_has_moved(&self, trigger: &dyn TriggerSet) -> bool {
        let limit = self.limit(self.scope.thresholds().threshold, 0);
        let enough = match trigger.has_program() && self.distance() <= self.armed.spin_window {
            true => page_size(),
            false => batch(),
        };
        limit.abs_diff(self.armed.hard) >= enough
    }

    /// Whether the usage is so far from the spin window that its trigger would not trip at once again.
    fn has_left_spin_window(&self, trigger: &dyn TriggerSet) -> bool {
        trigger.has_program()
            && !self.armed.is_approach_set
            && self.distance() > self.armed.spin_window * 3 / 2
    }

    fn arm(&mut self, trigger: &mut dyn TriggerSet) -> io::Result<()> {
        let Some(offset) = self.offset_on(trigger) else {
            return self.calibrate(trigger, None);
        };
        let thresholds = self.scope.thresholds();
        let rising = |amount: u64, action: Action| Trigger {
            limit: self.limit(amount, offset),
            direction: Direction::Rising,
            action,
            ..Trigger::DISABLED
        };
        let full = match thresholds.threshold {
            // No pinned guard kills for it.
            0 => 0,
            threshold => self
                .scope
                .usage_limit(threshold, 0)
                .saturating_add_signed(offset),
        };
        let hard = Trigger {
            full,
            ..rising(thresholds.threshold, Action::WakeLocal)
        };
        let approach = rising(
            thresholds.threshold.saturating_add(self.armed.spin_window),
            Action::Wake,
        );
        self.armed.hard = hard.limit;
        self.set(trigger, slot::HARD, hard)?;
        self.armed.floor = 0;
        self.rearm_floor(trigger)?;
        // Without a kernel program a trigger costs a system call: none is set anew close to the threshold.
        self.armed.is_approach_set =
            trigger.has_program() && self.distance() > self.armed.spin_window;
        let approach = if self.armed.is_approach_set {
            approach
        } else {
            Trigger::DISABLED
        };
        self.set(trigger, slot::APPROACH, approach)
    }
}
