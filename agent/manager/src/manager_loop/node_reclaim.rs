//! Pods wait while the node gives back what is no longer needed, but not for ever.

use std::time::Duration;

use evictd_engine::{
    Observations, Plan, Signal, Threshold,
    reclaim::{ReclaimBy, Removed},
    units::{nanos, signed},
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    ManagerEvent, ReclaimRequest, Reclaimed,
    manager_loop::{ManagerLoop, Wake, execute::is_unresolved},
};

/// How long the kubelet may take until pods are evicted in its stead: it looks every 10 s, and needs some time for its
/// images.
const KUBELET: Duration = Duration::from_secs(15);
/// How long an answer of the runtime keeps the next one from being asked for: the kubelet's monitoring interval.
const REST: Duration = Duration::from_secs(10);
/// The runtime's side keeps to its time by itself; its command needs a moment.
const GRACE: Duration = Duration::from_millis(500);

/// Components that may remove what is not in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimOptions {
    /// The container runtime, within this time.
    pub runtime: Option<Duration>,
    /// A kubelet beside this agent, where there is no runtime to ask.
    pub kubelet: bool,
}

/// The reclaim that evictions wait for.
#[derive(Debug)]
struct Waiting {
    plan: Plan,
    before: Observations,
    since: u64,
    of: ReclaimBy,
    patience: Duration,
    /// Pods did not wait for it.
    had_evictions: bool,
}

/// Reclaims so far.
#[derive(Debug)]
pub(crate) struct ReclaimState {
    may: ReclaimOptions,
    waiting: Option<Waiting>,
    /// The runtime has not answered the last request yet, whether it is waited for or not.
    is_asked: bool,
    /// Time at which the last answer came.
    answered: Option<u64>,
    /// Whether the last answer was that there is no runtime to ask.
    is_away: bool,
    /// Pods have waited for the kubelet during this pressure. It reclaims whenever it looks: no pod waits for that again.
    has_waited_for_kubelet: bool,
    /// Shadow mode has spoken of this pressure.
    shadow_reported: bool,
}

impl ReclaimState {
    pub fn new(may: ReclaimOptions) -> Self {
        Self {
            may,
            waiting: None,
            is_asked: false,
            answered: None,
            is_away: false,
            has_waited_for_kubelet: false,
            shadow_reported: false,
        }
    }

    /// Chooses the component that is to reclaim now, and the time that it may take.
    fn next(&self, now: u64) -> (ReclaimBy, Duration) {
        let rests = self
            .answered
            .is_some_and(|at| now.saturating_sub(at) < nanos(REST));
        match self.may.runtime {
            Some(within) if !self.is_asked && !rests => (ReclaimBy::Runtime, within + GRACE),
            runtime if (runtime.is_none() || self.is_away) && self.waits_for_kubelet() => {
                (ReclaimBy::Kubelet, KUBELET)
            }
            _ => (ReclaimBy::None, Duration::ZERO),
        }
    }

    fn waits_for_kubelet(&self) -> bool {
        self.may.kubelet && !self.has_waited_for_kubelet
    }
}

impl ManagerLoop {
    /// Requests what a plan wants reclaimed, and bounds how long evictions wait for it.
    pub(super) fn reclaim(&mut self, plan: &Plan, seen: &Observations) {
        let layout = self.sources.layout();
        let is_pressed =
            |t: &Threshold| !layout.node_reclaim(t.signal).is_empty() && self.planner.is_pressed(t);
        self.reclaim.has_waited_for_kubelet &= self.thresholds.iter().any(is_pressed);
        if plan.node_reclaim.is_empty() {
            self.reclaim.shadow_reported = false;
        } else if self.reclaim.waiting.is_none() {
            self.begin_reclaim(plan, seen);
        }
        let Some(waiting) = &self.reclaim.waiting else {
            return;
        };
        let now = monotonic_ns();
        if now.saturating_sub(waiting.since) > nanos(waiting.patience) {
            self.after_reclaim();
            return;
        }
        let unhelped = self.planner.evict_unhelped(
            signed(now),
            self.node.snapshot(seen),
            plan,
            waiting.of,
            &waiting.plan.node_reclaim,
            &waiting.before,
        );
        if !unhelped.is_empty()
            && let Some(waiting) = &mut self.reclaim.waiting
        {
            waiting.had_evictions = true;
            self.execute(unhelped, seen, Wake::at(now));
        }
    }

    fn begin_reclaim(&mut self, plan: &Plan, seen: &Observations) {
        let now = monotonic_ns();
        let (of, patience) = match self.shadow || self.limiter.is_paused() {
            true => (ReclaimBy::None, Duration::ZERO),
            false => self.reclaim.next(now),
        };
        self.reclaim.waiting = Some(Waiting {
            plan: plan.clone(),
            before: *seen,
            since: now,
            of,
            patience,
            had_evictions: false,
        });
        let speaks = match of {
            ReclaimBy::None => self.shadow && !self.reclaim.shadow_reported,
            ReclaimBy::Runtime | ReclaimBy::Kubelet => true,
        };
        let what = plan.node_reclaim.clone();
        if speaks {
            self.reclaim.shadow_reported = self.shadow;
            let is_sent = self.emit(ManagerEvent::Reclaim(ReclaimRequest { what, of }));
            self.reclaim.is_asked |= is_sent && of == ReclaimBy::Runtime;
        }
        if of == ReclaimBy::None {
            self.after_reclaim();
        }
    }

    /// The runtime has answered.
    pub(super) fn reclaimed(&mut self, removed: Option<Removed>) {
        self.reclaim.is_asked = false;
        let now = monotonic_ns();
        self.reclaim.answered = Some(now);
        self.reclaim.is_away = removed.is_none();
        let waits_for_kubelet = self.reclaim.waits_for_kubelet();
        let waiting = self.reclaim.waiting.as_mut();
        let Some(waiting) = waiting.filter(|w| w.of == ReclaimBy::Runtime) else {
            return;
        };
        match removed {
            Some(removed) => {
                if let Some((waiting, seen)) = self.after_reclaim() {
                    let took = Duration::from_nanos(now.saturating_sub(waiting.since));
                    self.report_reclaimed(waiting, removed, &seen, took);
                }
            }
            // There may be a kubelet that does it.
            None if waits_for_kubelet => {
                waiting.of = ReclaimBy::Kubelet;
                waiting.patience = KUBELET;
            }
            None => {
                self.after_reclaim();
            }
        }
    }

    fn report_reclaimed(
        &mut self,
        waiting: Waiting,
        removed: Removed,
        seen: &Observations,
        took: Duration,
    ) {
        let before = &waiting.before;
        let layout = self.sources.layout();
        let helped: Vec<_> = self
            .thresholds
            .iter()
            .filter(|t| !layout.node_reclaim(t.signal).is_empty() && is_unresolved(t, before))
            .collect();
        let is_enough = !waiting.had_evictions && !helped.iter().any(|t| is_unresolved(t, seen));
        let mut freed: Vec<(Signal, i64)> = helped
            .iter()
            .filter_map(|t| {
                let (then, now) = (before.get(t.signal)?, seen.get(t.signal)?);
                Some((t.signal, now.available.saturating_sub(then.available)))
            })
            .collect();
        freed.dedup();
        let reclaimed = Reclaimed {
            what: waiting.plan.node_reclaim,
            removed,
            freed,
            is_enough,
            took,
        };
        self.emit(ManagerEvent::Reclaimed(Box::new(reclaimed)));
    }

    /// The waiting is over: a new sample decides which pods must go. Answers with what was
    /// waited for and that sample.
    fn after_reclaim(&mut self) -> Option<(Waiting, Observations)> {
        let waiting = self.reclaim.waiting.take()?;
        self.reclaim.has_waited_for_kubelet |= waiting.of == ReclaimBy::Kubelet;
        let seen = self.sample();
        let snapshot = |observations| self.node.snapshot(observations);
        let evictions = self.planner.after_reclaim(
            signed(monotonic_ns()),
            &waiting.plan,
            snapshot(&waiting.before),
            snapshot(&seen),
        );
        self.execute(evictions, &seen, Wake::at(monotonic_ns()));
        Some((waiting, seen))
    }
}

#[cfg(test)]
mod tests {
    use evictd_engine::units::SECOND;

    use super::*;

    // R8: it looks every ten seconds as long as a disk is short, and so do the evictions that follow.
    #[test]
    fn the_kubelet_is_waited_for_once() {
        let within = Duration::from_secs(30);
        for runtime in [None, Some(within)] {
            let kubelet = true;
            let mut state = ReclaimState::new(ReclaimOptions { runtime, kubelet });
            // No runtime has answered.
            state.is_away = runtime.is_some();
            state.answered = Some(SECOND);
            assert_eq!(state.next(SECOND).0, ReclaimBy::Kubelet);
            state.has_waited_for_kubelet = true;
            assert_eq!(state.next(SECOND).0, ReclaimBy::None);
        }
    }
}
