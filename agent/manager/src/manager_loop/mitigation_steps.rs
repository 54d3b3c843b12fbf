//! Which steps the loop requests for a soft threshold on memory before its grace period is over, and what it makes of
//! their effects.

use std::sync::Arc;

use evictd_engine::{
    Observations, Pod, Signal,
    mitigation::{SoftShortage, Step, Steps},
    model::settings::MitigationConfig,
    units::signed,
};
use evictd_node::pods::table::PodEntry;
use evictd_sys::clock::monotonic_ns;

use crate::{
    ManagerEvent, MitigationAction, MitigationOutcome, MitigationRequest, StepEffect,
    manager_loop::ManagerLoop,
};

/// The steps so far.
#[derive(Debug)]
pub(crate) struct MitigationState {
    steps: Steps,
    /// Amount that was available when the last reclaim or throttle was begun.
    available: i64,
    /// The signal of the throttle that is set: its release is recorded with the same one.
    signal: Signal,
    /// All throttled pods have to be released: the event queue had no place for a release.
    must_release: bool,
}

impl MitigationState {
    pub fn new(config: MitigationConfig) -> Self {
        Self {
            steps: Steps::new(config),
            available: 0,
            signal: Signal::MemoryAvailable,
            must_release: false,
        }
    }

    pub fn reconfigure(&mut self, config: MitigationConfig) {
        self.steps.reconfigure(config);
    }
}

impl ManagerLoop {
    /// Takes the next step, if one is due.
    pub(super) fn mitigate(&mut self, seen: &Observations) {
        self.release_throttled();
        let shortage = match self.limiter.is_paused() {
            // Nothing is done, and throttled pods are released.
            true => None,
            false => self.shortage(seen),
        };
        let short = shortage.map(|(_, short)| short);
        let Some(step) = self.mitigation.steps.next(monotonic_ns(), short) else {
            return;
        };
        if let Some((signal, _)) = shortage {
            self.mitigation.signal = signal;
        }
        let signal = self.mitigation.signal;
        if step != Step::Unthrottle {
            self.mitigation.available = seen.get(signal).map_or(0, |now| now.available);
        }
        let config = self.mitigation.steps.config();
        let action = match step {
            Step::Reclaim(deficit) => MitigationAction::Reclaim {
                deficit,
                pods: self.entries(self.planner.reclaimable(self.node.snapshot(seen))),
                within: config.reclaim.unwrap_or_default(),
            },
            Step::Throttle => {
                let count = config.throttle.map_or(0, |throttle| throttle.pods);
                MitigationAction::Throttle(self.first(seen, signal, count))
            }
            Step::Unthrottle => MitigationAction::ReleaseAll,
        };
        let is_sent = self.ask(action, self.shadow.on);
        if self.shadow.on || !is_sent {
            // Nothing is done, so that no answer comes.
            self.mitigation.steps.reclaimed();
        }
    }

    /// Lets pods grow that are asked to go or are being deleted: they may need memory to end.
    pub(super) fn unthrottle(&mut self, pods: Vec<Arc<PodEntry>>) {
        let throttles = self.mitigation.steps.config().throttle.is_some();
        if !self.shadow.on && throttles && !pods.is_empty() {
            self.ask(MitigationAction::Release(pods), false);
        }
    }

    /// Has a step taken; false when it found no place. A release is tried again then.
    fn ask(&mut self, action: MitigationAction, shadow: bool) -> bool {
        let signal = self.mitigation.signal;
        let is_release = !shadow && action.step() == Step::Unthrottle;
        let request = MitigationRequest {
            action,
            signal,
            shadow,
        };
        let is_sent = self
            .reporter
            .emit(ManagerEvent::Mitigate(Box::new(request)));
        self.mitigation.must_release |= is_release && !is_sent;
        is_sent
    }

    /// Shadow mode begins, and leaves no pod throttled; or it ends, and none of its steps was taken.
    pub(super) fn begin_steps_anew(&mut self, shadow: bool) {
        let config = self.mitigation.steps.config();
        let signal = self.mitigation.signal;
        self.mitigation = MitigationState {
            signal,
            must_release: shadow || self.mitigation.must_release,
            ..MitigationState::new(config)
        };
        self.release_throttled();
    }

    fn release_throttled(&mut self) {
        if std::mem::take(&mut self.mitigation.must_release) {
            self.ask(MitigationAction::ReleaseAll, false);
        }
    }

    /// A step is over.
    pub(super) fn mitigation_done(&mut self, effect: StepEffect) {
        if matches!(effect.step, Step::Reclaim(_)) {
            self.mitigation.steps.reclaimed();
        }
        if effect.pods.is_empty() {
            return;
        }
        let seen = self.sources.sample(signed(monotonic_ns()));
        let after = seen.get(effect.signal).map_or(0, |now| now.available);
        self.reporter
            .emit(ManagerEvent::Mitigated(Box::new(MitigationOutcome {
                effect,
                available_before: self.mitigation.available,
                available_after: after,
            })));
    }

    /// The soft threshold on memory that lacks most.
    fn shortage(&self, seen: &Observations) -> Option<(Signal, SoftShortage)> {
        let memory = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];
        self.planner
            .thresholds()
            .filter(|t| !t.is_hard() && memory.contains(&t.signal) && t.is_unresolved(seen))
            .filter_map(|t| {
                let now = seen.get(t.signal)?;
                let short = SoftShortage {
                    deficit: t.deficit(now),
                    is_met: now.available < signed(t.amount(now.capacity)),
                };
                Some((t.signal, short))
            })
            .max_by_key(|(_, short)| (short.is_met, short.deficit))
    }

    /// The first candidates, in the order of eviction.
    fn first(&self, seen: &Observations, signal: Signal, count: usize) -> Vec<Arc<PodEntry>> {
        let candidates = self.planner.candidates(self.node.snapshot(seen), signal);
        self.entries(candidates.into_iter().take(count))
    }

    fn entries<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> Vec<Arc<PodEntry>> {
        pods.filter_map(|pod| self.node.pods.entry(&pod.uid).cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evictd_engine::{
        Observation, Threshold, ThresholdValue,
        model::{quantity::Quantity, settings::ThrottleConfig},
    };

    use super::*;
    use crate::{
        Command, ManagerSetup, PodSet,
        tests::{MIB, manager_loop, pod, setup},
    };

    /// The manager of a node of 100 MiB with a soft threshold of 50 MiB, which throttles.
    fn manager(dir: &std::path::Path) -> ManagerLoop {
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            value: ThresholdValue::Quantity(Quantity::bytes(50 * MIB)),
            grace_period: Duration::from_secs(90),
            min_reclaim: None,
        };
        manager_loop(ManagerSetup {
            mitigation: MitigationConfig {
                reclaim: None,
                throttle: Some(ThrottleConfig {
                    pods: 1,
                    time_limit: Duration::from_secs(60),
                }),
            },
            ..setup(dir, vec![soft])
        })
    }

    /// The steps that are asked for, with the UIDs of the pods that they name.
    fn asked(manager: &ManagerLoop) -> Vec<(Step, Vec<String>)> {
        let events = std::iter::from_fn(|| manager.reporter.events.next());
        let asked = events.filter_map(|event| match event {
            ManagerEvent::Mitigate(request) => Some(request.action),
            _ => None,
        });
        let uids = |pods: &[Arc<PodEntry>]| pods.iter().map(|pod| pod.pod.uid.clone()).collect();
        asked
            .map(|action| (action.step(), uids(action.pods())))
            .collect()
    }

    fn available(mib: u64) -> Observations {
        let mut seen = Observations::default();
        let observation = Observation {
            available: signed(mib * MIB),
            capacity: signed(100 * MIB),
            time: None,
        };
        seen.set(Signal::MemoryAvailable, observation);
        seen
    }

    // R46
    #[test]
    fn a_pod_that_is_being_deleted_is_released_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = manager(dir.path());
        let entries = |is_deleting: bool| {
            let names =
                ["stays", "goes"].map(|name| pod(dir.path(), name, is_deleting && name == "goes"));
            Command::Pods(PodSet::new(&names))
        };
        let release = (Step::Unthrottle, vec!["goes".to_owned()]);
        for (is_deleting, released) in [(false, vec![]), (true, vec![release]), (true, vec![])] {
            manager.apply(entries(is_deleting));
            assert_eq!(asked(&manager), released);
        }
    }

    // R46
    #[test]
    fn a_release_that_finds_no_place_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = manager(dir.path());
        manager.mitigate(&available(40));
        assert_eq!(asked(&manager), [(Step::Throttle, vec![])]);
        while manager.ask(MitigationAction::ReleaseAll, true) {}
        manager.mitigate(&available(60));
        manager.mitigate(&available(60));
        assert!(manager.reporter.events.dropped() > 0);
        asked(&manager);
        manager.mitigate(&available(60));
        assert_eq!(asked(&manager), [(Step::Unthrottle, vec![])]);
        manager.mitigate(&available(60));
        assert_eq!(asked(&manager), []);
    }
}
