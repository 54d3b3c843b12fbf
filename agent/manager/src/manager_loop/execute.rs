//! Carries out a plan: kills at once, or hands over the candidates of a soft eviction.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use evictd_engine::{
    Cause, EvictionDecision, Observations, Signal,
    limiter::{EvictionKind, ShadowChooser},
    permit::LastResort,
    record::{KillOutcome, SignalReading, Stages},
    soft::SoftCandidate,
    units::signed,
};
use evictd_node::pods::table::PodEntry;
use evictd_sys::{clock::monotonic_ns, fs};

use crate::{
    ManagerEvent, ManagerEviction, PodSet, SoftEvictionRequest,
    manager_loop::{ManagerLoop, Wake},
};

/// Shadow mode, and what it has said.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// Pods are chosen and reported, and none is killed.
    pub on: bool,
    /// UIDs of pods above limits of their own that were reported. The planner knows the reported thresholds.
    reported: BTreeSet<String>,
}

impl Shadow {
    pub fn new(on: bool) -> Self {
        let reported = BTreeSet::new();
        Self { on, reported }
    }

    /// Forgets the reports of pods that are no longer there.
    pub fn keep_pods(&mut self, pods: &PodSet) {
        self.reported.retain(|uid| pods.entry(uid).is_some());
    }
}

/// Request for a soft eviction that is under way.
pub struct SoftUnderWay {
    signal: Signal,
    is_needed: Arc<AtomicBool>,
    is_hard_due: Arc<AtomicBool>,
}

impl ManagerLoop {
    /// Carries evictions out, in their order.
    pub(super) fn execute(
        &mut self,
        evictions: Vec<EvictionDecision>,
        seen: &Observations,
        wake: Wake,
    ) {
        let short: Vec<Signal> = self
            .planner
            .thresholds()
            .filter(|t| self.planner.is_under_pressure(t))
            .map(|t| t.signal)
            .collect();
        let is_over = |under_way: &mut SoftUnderWay| !short.contains(&under_way.signal);
        if let Some(over) = self.soft_request.take_if(is_over) {
            // Asking may take minutes: a pod would go for a shortage that is over.
            over.is_needed.store(false, Ordering::Relaxed);
            over.is_hard_due.store(false, Ordering::Relaxed);
        }
        // One that becomes due while pods are asked may be ended by what its own path does first.
        if let Some(under_way) = &self.soft_request
            && !self
                .planner
                .is_hard_due(signed(monotonic_ns()), seen, under_way.signal)
        {
            under_way.is_hard_due.store(false, Ordering::Relaxed);
        }
        if self.planner.forget_shadow_reports() {
            self.limiter.forget_shadow_victims(ShadowChooser::Manager);
        }
        for eviction in evictions {
            let (cause, is_hard) = (eviction.cause, !eviction.is_soft);
            let uid = eviction.uid.clone();
            let is_of_limit = matches!(cause, Cause::LocalStorage(_));
            if self.shadow.on && is_of_limit && self.shadow.reported.contains(&uid) {
                // It lives on, above its limit.
                self.planner.note_outcome(&uid, KillOutcome::Shadow);
                continue;
            }
            let is_reported = match eviction.is_soft {
                true => self.request(eviction, seen),
                false => self.kill(eviction, seen, wake),
            };
            if !self.shadow.on || !is_reported {
                continue;
            }
            match cause {
                Cause::Pressure(signal) => self.planner.note_reported_in_shadow(signal, is_hard),
                Cause::LocalStorage(_) => {
                    self.shadow.reported.insert(uid);
                }
            }
        }
    }

    /// The pod of a decision, if it may still go. Several are chosen at once: the one before may have used up what this
    /// one's limits had left, or what the fleet brake lets go.
    fn still_allowed(&mut self, eviction: &EvictionDecision, now: u64) -> Option<Arc<PodEntry>> {
        let pod = Arc::clone(self.node.pods.entry(&eviction.uid)?);
        if self.node.known_kills.was_killed_unseen(&pod) {
            // The fast path was faster: it is a victim already.
            return None;
        }
        let kind = EvictionKind::of(eviction);
        if self.limiter.allows(&*pod, now, kind, LastResort::None) {
            return Some(pod);
        }
        self.planner.cancel_eviction(&eviction.uid);
        None
    }

    /// Kills a pod, or says that it would; whether there was one to kill.
    fn kill(&mut self, eviction: EvictionDecision, seen: &Observations, wake: Wake) -> bool {
        let decided = monotonic_ns();
        let Some(pod) = self.still_allowed(&eviction, decided) else {
            return false;
        };
        let Some(outcome) = self.signal(&pod, &eviction, decided) else {
            // The next look decides anew.
            self.planner.cancel_eviction(&eviction.uid);
            return false;
        };
        let signalled = monotonic_ns();
        let is_killed = outcome == KillOutcome::Killed;
        if is_killed {
            (self.on_kill)(&pod, signalled, eviction.cause);
        }
        self.planner.note_outcome(&eviction.uid, outcome);
        let reading = match eviction.cause {
            Cause::Pressure(signal) => Some(self.reading(signal, &eviction, seen)),
            Cause::LocalStorage(_) => None,
        };
        if is_killed {
            self.node.usage_collector.forget_files(&eviction.uid);
        }
        let (hook, crossed) = self.hook_of(eviction.cause, wake);
        self.evictions += 1;
        self.reporter.set_cause(&eviction.message.text);
        self.reporter
            .emit(ManagerEvent::Evicted(Box::new(ManagerEviction {
                pod,
                number: self.evictions,
                signal: eviction.cause.name().to_owned(),
                hook,
                stages: Stages {
                    crossed,
                    woken: wake.woken,
                    decided,
                    signalled,
                },
                available: reading.map_or(0, |reading| reading.available),
                threshold: reading.map_or(0, |reading| reading.threshold),
                usage: reading.map_or(0, |reading| reading.usage),
                outcome,
                eviction,
            })));
        true
    }

    /// Sends SIGKILL, or charges the limits alone in shadow mode. `None`: the pod has ended by itself, and its end
    /// frees nothing.
    fn signal(
        &mut self,
        pod: &Arc<PodEntry>,
        eviction: &EvictionDecision,
        decided: u64,
    ) -> Option<KillOutcome> {
        let (known, kind) = (&pod.eviction_state, EvictionKind::of(eviction));
        if self.shadow.on {
            self.limiter
                .charge_in_shadow(kind, &**pod, decided, ShadowChooser::Manager);
            return Some(KillOutcome::Shadow);
        }
        // A pod of thousands of processes is not signalled at once: the fast path must know of it meanwhile.
        known.begin_kill(decided);
        match pod.killer.kill() {
            Ok(result) if result.empty && !self.goes_without_process(pod, eviction.cause) => {
                known.end_kill();
                None
            }
            Ok(_) => {
                self.limiter.charge(kind, &**pod, decided);
                self.node.known_kills.note(pod);
                Some(KillOutcome::Killed)
            }
            Err(e) => {
                known.end_kill();
                known.mark_refused(decided);
                Some(KillOutcome::Refused(fs::errno(&e)))
            }
        }
    }

    /// The name of what has found a cause, and when its trigger was crossed, in nanoseconds of CLOCK_MONOTONIC; 0 where
    /// none was.
    fn hook_of(&self, cause: Cause, wake: Wake) -> (String, u64) {
        match (cause, wake.crossed) {
            (Cause::Pressure(signal), Some((of, crossed))) if signal == of => {
                (self.sources.hook(of).to_string(), crossed.event.time_ns)
            }
            (Cause::Pressure(_), _) => ("sampler".to_owned(), 0),
            (Cause::LocalStorage(_), _) => ("walker".to_owned(), 0),
        }
    }

    fn goes_without_process(&self, pod: &PodEntry, cause: Cause) -> bool {
        let mode = self.planner.mode();
        let empty = &self.node.empty;
        empty.goes_without_process(&pod.pod, cause, mode, monotonic_ns())
    }

    /// Requests a soft eviction; whether the request was sent.
    fn request(&mut self, eviction: EvictionDecision, seen: &Observations) -> bool {
        let Cause::Pressure(signal) = eviction.cause else {
            return false;
        };
        let now = monotonic_ns();
        let Some(first) = self.still_allowed(&eviction, now) else {
            return false;
        };
        let node = self.node.snapshot(seen);
        let choice = |eviction: EvictionDecision| {
            Some(SoftCandidate {
                pod: Arc::clone(self.node.pods.entry(&eviction.uid)?),
                reading: self.reading(signal, &eviction, seen),
                decision: eviction,
            })
        };
        let alternatives = self.planner.alternatives(node, &eviction);
        let candidates: Vec<_> = alternatives.into_iter().filter_map(choice).collect();
        let Some(choice) = candidates.first() else {
            // The signal is not observed now, or the threshold has gone: the next look decides anew.
            self.planner.cancel_eviction(&eviction.uid);
            return false;
        };
        let choice = Arc::clone(&choice.pod);
        if !self.shadow.on {
            self.soft_candidates = candidates.iter().map(|c| Arc::clone(&c.pod)).collect();
        }
        self.reporter.set_cause(&eviction.message.text);
        let chosen = eviction.uid.clone();
        let is_hard_due = self.planner.is_hard_due(signed(now), seen, signal);
        let under_way = SoftUnderWay {
            signal,
            is_needed: Arc::new(AtomicBool::new(true)),
            is_hard_due: Arc::new(AtomicBool::new(is_hard_due)),
        };
        let request = SoftEvictionRequest {
            signal,
            chosen: chosen.clone(),
            is_hard_due: Arc::clone(&under_way.is_hard_due),
            candidates,
            shadow: self.shadow.on,
            is_needed: Arc::clone(&under_way.is_needed),
        };
        self.soft_request = Some(under_way);
        self.planner.set_soft_request_under_way(!self.shadow.on);
        self.unthrottle(vec![choice]);
        if !self.reporter.emit(ManagerEvent::Soft(Box::new(request))) {
            // No answer comes; the next look asks again.
            self.soft_candidates.clear();
            let node = self.node.snapshot(seen);
            self.planner
                .soft_eviction_finished(signed(monotonic_ns()), node, &chosen, None);
            return false;
        }
        if self.shadow.on {
            let kind = EvictionKind::of(&eviction);
            self.limiter
                .charge_in_shadow(kind, &*first, now, ShadowChooser::Manager);
            self.planner.note_outcome(&chosen, KillOutcome::Shadow);
        }
        true
    }

    /// Builds the numbers of a signal for the records; zeros where it was not seen.
    fn reading(
        &self,
        signal: Signal,
        eviction: &EvictionDecision,
        seen: &Observations,
    ) -> SignalReading {
        let Some(now) = seen.get(signal) else {
            return SignalReading {
                signal,
                available: 0,
                threshold: 0,
                usage: 0,
            };
        };
        let threshold = self
            .planner
            .threshold(signal, !eviction.is_soft, now.capacity);
        let entry = self.node.pods.entry(&eviction.uid);
        let usage = self.node.usage_collector.usages().get(&eviction.uid);
        let layout = self.sources.layout();
        SignalReading {
            signal,
            available: u64::try_from(now.available).unwrap_or(0),
            threshold: threshold.map_or(0, |t| t.amount(now.capacity)),
            usage: match (entry, usage) {
                (Some(entry), Some(usage)) => layout.usage(signal, &entry.pod, usage),
                _ => 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evictd_engine::{
        Threshold, ThresholdValue,
        model::{quantity::Quantity, settings::Mode},
    };

    use super::*;
    use crate::{
        ManagerSetup,
        tests::{MIB, manager_loop, pod, setup},
    };

    // R43
    #[test]
    fn a_soft_eviction_that_has_no_candidate_is_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            value: ThresholdValue::Quantity(Quantity::bytes(100 * MIB)),
            grace_period: Duration::from_nanos(1),
            min_reclaim: None,
        };
        let mut setup = setup(dir.path(), vec![soft]);
        setup.settings.mode = Mode::Kubelet;
        let mut manager = manager_loop(ManagerSetup {
            pods: PodSet::new(&[pod(dir.path(), "a", false)]),
            ..setup
        });
        let begun = signed(monotonic_ns());
        let mut look = |second: i64, is_seen_then: bool| {
            let now = begun + second * 1_000_000_000;
            let seen = manager.sources.sample(now);
            let plan = manager.planner.plan(now, manager.node.snapshot(&seen));
            let chosen = plan.evictions.len();
            let then = match is_seen_then {
                true => seen,
                false => Observations::default(),
            };
            manager.execute(plan.evictions, &then, Wake::at(0));
            let events = std::iter::from_fn(|| manager.reporter.events.next());
            let is_request = |event: &ManagerEvent| matches!(event, ManagerEvent::Soft(_));
            (chosen, events.filter(is_request).count())
        };
        // Its grace period begins.
        assert_eq!(look(0, true), (0, 0));
        // The signal is not observed at the moment of the request, and the next one keeps the kubelet's pace.
        assert_eq!(look(1, false), (1, 0));
        assert_eq!(look(11, true), (1, 1));
    }
}
