//! Pods wait while the node gives back what is no longer needed, but not for ever.

use std::time::Duration;

use evictd_engine::{
    NodeReclaim, Observation, Observations, Plan, Signal, Threshold,
    reclaim::Removed,
    units::{nanos, signed},
};
use evictd_sys::clock::monotonic_ns;

use crate::{
    ManagerEvent, ReclaimBy, ReclaimRequest, Reclaimed,
    manager_loop::{ManagerLoop, Wake, execute::is_unresolved},
};

/// How long the kubelet may take until pods are evicted in its stead: it looks every 10 s, and needs some time for its
/// images.
const KUBELET: Duration = Duration::from_secs(15);
/// How long one that was in vain keeps the next one from being tried: the kubelet's monitoring interval.
const REST: Duration = Duration::from_secs(10);
/// What would be used up this soon is not waited for: an eviction takes as long until the files are gone.
const EXHAUSTED_SOON: Duration = Duration::from_secs(2);
/// Growth is measured over this time at least, and from this old a look at most.
const GROWTH_WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// The runtime's side keeps to its time by itself; its command needs a moment.
const GRACE: Duration = Duration::from_millis(500);

/// What may remove what is not in use.
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
    /// A look of the last moments: growth is measured from it.
    lately: Observations,
    lately_at: u64,
    since: u64,
    of: ReclaimBy,
    patience: Duration,
}

/// Reclaims so far.
#[derive(Debug)]
pub(crate) struct ReclaimState {
    may: ReclaimOptions,
    waiting: Option<Waiting>,
    /// The runtime has not answered the last request yet, whether it is waited for or not.
    is_asked: bool,
    /// When the last answer came.
    answered: Option<u64>,
    /// It was that there is no runtime to ask.
    is_away: bool,
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
            shadow_reported: false,
        }
    }

    /// What is to reclaim now, and how long that may take.
    fn next(&self, now: u64) -> (ReclaimBy, Duration) {
        let rests = self
            .answered
            .is_some_and(|at| now.saturating_sub(at) < nanos(REST));
        match self.may.runtime {
            Some(within) if !self.is_asked && !rests => (ReclaimBy::Runtime, within + GRACE),
            None if self.may.kubelet => (ReclaimBy::Kubelet, KUBELET),
            Some(_) if self.may.kubelet && self.is_away => (ReclaimBy::Kubelet, KUBELET),
            _ => (ReclaimBy::None, Duration::ZERO),
        }
    }
}

impl ManagerLoop {
    /// Requests what a plan wants reclaimed, and bounds how long evictions wait for it.
    pub(super) fn reclaim(&mut self, plan: &Plan, seen: &Observations) {
        if plan.node_reclaim.is_empty() {
            self.reclaim.shadow_reported = false;
        } else if self.reclaim.waiting.is_none() {
            self.begin_reclaim(plan, seen);
        }
        let Some(waiting) = &self.reclaim.waiting else {
            return;
        };
        let now = monotonic_ns();
        let waited = now.saturating_sub(waiting.since);
        if waited > nanos(waiting.patience) || self.cannot_wait(waiting, seen) {
            self.after_reclaim();
        } else if let Some(waiting) = &mut self.reclaim.waiting
            && now.saturating_sub(waiting.lately_at) >= nanos(GROWTH_WINDOW.1)
        {
            (waiting.lately, waiting.lately_at) = (*seen, now);
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
            lately: *seen,
            lately_at: now,
            since: now,
            of,
            patience,
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

    /// What a reclaim would bring may come too late: all of it will be used up within a moment, or less than half of a
    /// hard threshold is left while it is not known when the kubelet looks, or nothing at all while the runtime is at
    /// work. Of what no reclaim brings back others take care.
    fn cannot_wait(&self, waiting: &Waiting, seen: &Observations) -> bool {
        let layout = self.sources.layout();
        let waits = |t: &&Threshold| t.is_hard() && !layout.node_reclaim(t.signal).is_empty();
        self.thresholds.iter().filter(waits).any(|t| {
            let Some(now) = seen.get(t.signal) else {
                return false;
            };
            let left = u64::try_from(now.available).unwrap_or(0);
            let amount = t.amount(now.capacity);
            let lately = waiting.lately.get(t.signal);
            let is_soon = lately.is_some_and(|then| is_exhausted_soon(then, now));
            let is_too_little = match waiting.of {
                ReclaimBy::Runtime => left == 0 && amount > 0,
                ReclaimBy::Kubelet | ReclaimBy::None => left < amount / 2,
            };
            is_too_little || left < amount && is_soon
        })
    }

    /// The runtime has answered.
    pub(super) fn reclaimed(&mut self, removed: Option<Removed>) {
        self.reclaim.is_asked = false;
        let now = monotonic_ns();
        self.reclaim.answered = Some(now);
        self.reclaim.is_away = removed.is_none();
        let kubelet = self.reclaim.may.kubelet;
        let waiting = self.reclaim.waiting.as_mut();
        let Some(waiting) = waiting.filter(|w| w.of == ReclaimBy::Runtime) else {
            return;
        };
        match removed {
            Some(removed) => {
                let (what, before) = (waiting.plan.node_reclaim.clone(), waiting.before);
                let took = Duration::from_nanos(now.saturating_sub(waiting.since));
                let seen = self.after_reclaim().unwrap_or(before);
                self.report_reclaimed(what, removed, &before, &seen, took);
            }
            // There may be a kubelet that does it.
            None if kubelet => {
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
        what: Vec<NodeReclaim>,
        removed: Removed,
        before: &Observations,
        seen: &Observations,
        took: Duration,
    ) {
        let layout = self.sources.layout();
        let helped: Vec<_> = self
            .thresholds
            .iter()
            .filter(|t| !layout.node_reclaim(t.signal).is_empty() && is_unresolved(t, before))
            .collect();
        let is_enough = !helped.iter().any(|t| is_unresolved(t, seen));
        let mut freed: Vec<(Signal, i64)> = helped
            .iter()
            .filter_map(|t| {
                let (then, now) = (before.get(t.signal)?, seen.get(t.signal)?);
                Some((t.signal, now.available.saturating_sub(then.available)))
            })
            .collect();
        freed.dedup();
        let reclaimed = Reclaimed {
            what,
            removed,
            freed,
            is_enough,
            took,
        };
        self.emit(ManagerEvent::Reclaimed(Box::new(reclaimed)));
    }

    /// The waiting is over: a new sample decides which pods must go. Answers with that sample.
    fn after_reclaim(&mut self) -> Option<Observations> {
        let waiting = self.reclaim.waiting.take()?;
        let seen = self.sample();
        let snapshot = |observations| self.node.snapshot(observations);
        let evictions = self.planner.after_reclaim(
            signed(monotonic_ns()),
            &waiting.plan,
            snapshot(&waiting.before),
            snapshot(&seen),
        );
        let wake = Wake {
            woken: monotonic_ns(),
            crossed: None,
        };
        self.execute(evictions, &seen, wake);
        Some(seen)
    }
}

/// Whether nothing is left within [`EXHAUSTED_SOON`] if it goes on as from one look to another.
fn is_exhausted_soon(then: Observation, now: Observation) -> bool {
    let Some((then_at, now_at)) = then.time.zip(now.time) else {
        return false;
    };
    let elapsed = u64::try_from(now_at.saturating_sub(then_at)).unwrap_or(0);
    let used = i128::from(then.available) - i128::from(now.available);
    elapsed >= nanos(GROWTH_WINDOW.0)
        && i128::from(now.available) * i128::from(elapsed)
            < used * i128::from(nanos(EXHAUSTED_SOON))
}

#[cfg(test)]
mod tests {
    use super::*;

    // R8: 1.6 s until no inode is left, of which a walk of the runtime's would take all.
    #[test]
    fn what_is_used_up_in_a_moment_is_not_waited_for() {
        let at = |ms: i64, available: i64| Observation {
            available,
            capacity: 6_500_000,
            time: Some(ms * 1_000_000),
        };
        let begin = at(0, 327_000);
        let is_soon = |ms, left| is_exhausted_soon(begin, at(ms, left));
        assert!(is_soon(250, 327_000 - 50_000));
        assert!(!is_soon(250, 327_000 - 30_000), "2.5 s");
        assert!(!is_soon(20, 327_000 - 50_000), "a burst of 20 ms");
        assert!(!is_soon(1000, 330_000) && !is_soon(1000, 327_000));
        assert!(is_soon(1000, 1));
    }
}
