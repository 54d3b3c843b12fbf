//! Takes over what the control block holds: another table of pods, other settings, another pods' cgroup, another
//! capacity of the node.

use evictd_engine::pace::Pace;

use crate::{
    FastPathSettings,
    control::{NODE, PODS},
    in_flight::Victim,
    monitor::MemoryMonitor,
    scope::ScopeMonitor,
};

impl MemoryMonitor {
    /// Takes over all that was handed over.
    pub(crate) fn apply_updates(&mut self) {
        if self.pods.take_table(&self.control) {
            self.published_at = 0;
        }
        // The settings are taken first and applied last: a scope that was handed over before them is applied before them.
        let settings = self.control.take_settings();
        self.apply_scope(NODE);
        self.apply_scope(PODS);
        if let Some(settings) = settings {
            self.apply_settings(settings);
        }
        self.apply_kills();
    }

    /// Pods that the manager or the kubelet has killed give memory back as well, whatever they were killed for. Without
    /// room for another victim the fast path kills no pod either, and they wait.
    pub(super) fn apply_kills(&mut self) {
        while self.in_flight.free_slots() > 0
            && let Some((pod, signalled, by)) = self.control.take_kill()
        {
            pod.eviction_state.end_kill();
            if self.in_flight.contains(&pod) {
                continue;
            }
            for monitor in self.scopes.iter_mut().filter(|m| m.scope.holds(&pod)) {
                monitor.pace.evicted(signalled);
            }
            self.in_flight.push(Victim::foreign(pod, signalled, by));
        }
    }

    fn apply_settings(&mut self, settings: FastPathSettings) {
        if std::mem::replace(&mut self.shadow, settings.shadow) != settings.shadow {
            self.limiter.forget_shadow();
            // The pods that shadow mode has chosen did not die.
            self.scopes
                .iter_mut()
                .for_each(|monitor| monitor.pace = Pace::default());
        }
        self.published_at = 0;
        self.forget_shadow_victims();
        self.strategy = settings.strategy;
        for index in 0..self.scopes.len() {
            let Some(monitor) = self.scopes.get_mut(index) else {
                return;
            };
            monitor.kernel_may_kill = !settings.shadow;
            let is_new = index == NODE
                && monitor.scope.capacity() == settings.capacity
                && monitor.scope.thresholds() != settings.thresholds;
            if is_new {
                monitor.scope.set_thresholds(settings.thresholds);
                monitor.pace.reset();
            }
            if let Err(e) = monitor.arm_all(&mut *self.triggers.set) {
                self.report_scope_gone(index, &e);
            } else if is_new {
                self.report_met_in_force(index);
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
        let mut watched = Ok(());
        let mut was_pressed = false;
        match self.scopes.get_mut(index) {
            Some(monitor) if monitor.scope.is_resized(&scope) => {
                // The thresholds of the node's scope come with the settings.
                let has_other_thresholds = index == PODS
                    && monitor.scope.capacity() == scope.capacity()
                    && monitor.scope.thresholds() != scope.thresholds();
                was_pressed = monitor.pressed && !has_other_thresholds;
                monitor.resize(&mut scope);
                if has_other_thresholds {
                    monitor.pace.reset();
                }
                self.control.retire_scope(index, scope);
            }
            Some(monitor) => {
                watched = trigger.watch(index, scope.cgroup());
                monitor.replace(&mut scope);
                self.control.retire_scope(index, scope);
            }
            // This frees the box: once, while nothing is urgent.
            None => {
                watched = trigger.watch(index, scope.cgroup());
                let kernel_may_kill = !self.shadow;
                let mut monitor = ScopeMonitor::new(
                    *scope,
                    index,
                    self.fastest_growth,
                    self.cpus,
                    kernel_may_kill,
                );
                // A pod that was evicted for the node gave to the pods' cgroup as well.
                let last = self.scopes.iter().filter_map(|m| m.pace.last_eviction());
                if let Some(last) = last.max() {
                    monitor.pace.evicted(last);
                }
                self.scopes.push(monitor);
            }
        }
        let settled = watched.and_then(|()| match self.scopes.get_mut(index) {
            Some(monitor) => monitor.arm_all(trigger),
            None => Ok(()),
        });
        match settled {
            // The event was sent when it was met.
            Ok(()) if was_pressed => {}
            Ok(()) => self.report_met_in_force(index),
            Err(e) => self.report_scope_gone(index, &e),
        }
    }
}
