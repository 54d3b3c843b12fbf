//! Takes over what the control block holds: another table of pods, other settings, another pods' cgroup, another
//! capacity of the node.

use evictd_engine::pace::Pace;

use crate::{
    FastPathSettings,
    control::{NODE, PODS},
    in_flight::Victim,
    monitor::MemoryMonitor,
    scope::WatchedScope,
};

impl MemoryMonitor {
    /// Takes over all that was handed over.
    pub(crate) fn apply_updates(&mut self) {
        if self.pods.take_table(&self.control) {
            self.published_at = 0;
        }
        // The settings are taken first and applied last: a scope that was handed over before them is applied before
        // them.
        let settings = self.control.take_settings();
        self.apply_scope(NODE);
        self.apply_scope(PODS);
        if let Some(settings) = settings {
            self.apply_settings(settings);
        }
        self.apply_kills();
    }

    /// Pods that the manager or the kubelet has killed give memory back as well, whatever they were killed for. Where there is
    /// room for the fast path's own victims alone they wait.
    pub(super) fn apply_kills(&mut self) {
        while self.in_flight.has_room_for_others()
            && let Some(kill) = self.control.take_kill()
        {
            let pod = &kill.pod;
            pod.eviction_state.end_kill();
            if self.in_flight.contains(pod) {
                self.control.leave(kill.pod);
                continue;
            }
            for watched in self
                .scopes
                .iter_mut()
                .filter(|watched| watched.scope.holds(pod))
            {
                match kill.is_for_pressure {
                    true => watched.pace.evicted(kill.signalled),
                    // What it gives back is no shrinking of others.
                    false => watched.pace.forget_growth(),
                }
            }
            self.in_flight.push(Victim::by_other(kill));
        }
    }

    fn apply_settings(&mut self, settings: FastPathSettings) {
        if std::mem::replace(&mut self.shadow, settings.shadow) != settings.shadow {
            self.limiter.forget_shadow();
            self.forget_shadow_victims();
            // The pods that shadow mode has chosen did not die.
            self.scopes
                .iter_mut()
                .for_each(|watched| watched.pace = Pace::default());
        }
        self.published_at = 0;
        self.strategy = settings.strategy;
        for index in 0..self.scopes.len() {
            let Some(watched) = self.scopes.get_mut(index) else {
                return;
            };
            watched.kernel_may_kill = !settings.shadow;
            let before = watched.scope.thresholds().threshold;
            if index == NODE && watched.scope.given().0 == settings.capacity {
                watched.scope.set_thresholds(settings.thresholds);
            }
            // Another minimum reclaim or floor is no other threshold.
            if watched.scope.thresholds().threshold != before {
                watched.pace.reset();
                watched.comes_into_force = true;
            }
            if let Err(e) = watched.arm_all(&mut *self.triggers.set) {
                self.report_scope_gone(index, &e);
            }
        }
    }

    /// The pods' cgroup was found, or is another one; or the node has another capacity.
    fn apply_scope(&mut self, index: usize) {
        let Some(mut scope) = self.control.take_scope(index) else {
            return;
        };
        self.published_at = 0;
        let trigger = &mut *self.triggers.set;
        let mut hooked = Ok(());
        let mut was_under_pressure = false;
        match self.scopes.get_mut(index) {
            Some(watched) if watched.scope.is_resized(&scope) => {
                // The threshold of the node's scope comes with the settings.
                let (before, now) = (watched.scope.given(), scope.given());
                let has_other_threshold =
                    index == PODS && before.0 == now.0 && before.1.threshold != now.1.threshold;
                was_under_pressure = watched.under_pressure && !has_other_threshold;
                watched.resize(&mut scope);
                if has_other_threshold {
                    watched.pace.reset();
                }
                self.control.retire_scope(index, scope);
            }
            Some(watched) => {
                hooked = trigger.watch(index, scope.cgroup());
                watched.replace(&mut scope);
                self.control.retire_scope(index, scope);
            }
            // This frees the box: once, while nothing is urgent.
            None => {
                hooked = trigger.watch(index, scope.cgroup());
                let kernel_may_kill = !self.shadow;
                let mut watched = WatchedScope::new(
                    *scope,
                    index,
                    self.fastest_growth,
                    self.cpus,
                    kernel_may_kill,
                );
                // A pod that was evicted for the node gave to the pods' cgroup as well.
                let last = self
                    .scopes
                    .iter()
                    .filter_map(|watched| watched.pace.last_eviction());
                if let Some(last) = last.max() {
                    watched.pace.evicted(last);
                }
                self.scopes.push(watched);
            }
        }
        let settled = hooked.and_then(|()| match self.scopes.get_mut(index) {
            Some(watched) => {
                // Where it was met before, that was reported then.
                watched.comes_into_force |= !was_under_pressure;
                self.limit_writes.watch(watched.scope.cgroup());
                watched.arm_all(trigger)
            }
            None => Ok(()),
        });
        if let Err(e) = settled {
            self.report_scope_gone(index, &e);
        }
    }
}
