//! What holds for all pods of a node: a pause, the last resort, and limits on evictions. Read on the fast path: no
//! lock, no allocation.

mod fleet;
mod kind;
mod quota;

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

pub use self::kind::EvictionKind;
use crate::{
    CandidateState, ManagedPod, NodeBounds, Pod,
    eviction_state::EvictionState,
    limiter::{fleet::FleetHold, quota::Quota},
    model::settings::Mode,
    permit::{EvictionPermit, LastResort, MAX_QUOTAS_PER_POD, NodeRate},
    units::signed,
};

/// Quotas that one node can have at a time. Their indexes fit a byte; index 0 stands for no quota.
pub const MAX_QUOTAS: usize = 256;
/// No eviction was charged.
const NEVER: i64 = i64::MIN;
/// The limits of a pod that are rates, the node's and its owner's, come first; they hold for the last resort too.
const RATES: usize = 2;
/// The node's is the first of them.
const NODE_RATE: usize = 1;
/// All limits but the node's rate, which bounds what a shortage of the node takes.
const ALL_BUT_NODE_RATE: Range<usize> = NODE_RATE..MAX_QUOTAS_PER_POD;

/// Loop that chooses pods in shadow mode. What it has chosen lives on, and is not available for as long as its pressure
/// lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowChooser {
    /// The fast path.
    FastPath,
    /// The manager.
    Manager,
}

/// What holds for all pods of the node. The fast path and the manager charge; the policy side sets.
#[derive(Debug)]
pub struct EvictionLimiter {
    paused: AtomicBool,
    last_resort: AtomicU8,
    fleet: FleetHold,
    /// See [`Self::await_policies`].
    policies_awaited_until: AtomicU64,
    /// See [`Self::await_configuration`].
    configuration_awaited_until: AtomicU64,
    /// See [`Self::await_removals`].
    removals_awaited_until: AtomicU64,
    /// See [`Self::last_eviction`]; [`NEVER`] as long as no pod was evicted.
    last_eviction: AtomicI64,
    /// Time at which shadow mode last chose a pod, in nanoseconds of CLOCK_MONOTONIC; [`NEVER`] as long as it has not.
    last_in_shadow: AtomicI64,
    /// The pressure for which each [`ShadowChooser`] has chosen pods last; counts from 1.
    shadow_pressure: [AtomicU32; 2],
    /// Quotas by index; index 0 stands for no quota. The policy side assigns the others.
    quotas: Box<[Quota]>,
    /// The index of the node's rate; 0 where the node has none.
    node_quota: AtomicU8,
    /// See [`Self::exempt_growers`].
    exempts_growers: AtomicBool,
}

impl Default for EvictionLimiter {
    /// No limits, no pause.
    fn default() -> Self {
        Self {
            paused: AtomicBool::new(false),
            last_resort: AtomicU8::new(LastResort::None as u8),
            fleet: FleetHold::default(),
            policies_awaited_until: AtomicU64::new(0),
            configuration_awaited_until: AtomicU64::new(0),
            removals_awaited_until: AtomicU64::new(0),
            last_eviction: AtomicI64::new(NEVER),
            last_in_shadow: AtomicI64::new(NEVER),
            shadow_pressure: [const { AtomicU32::new(1) }; 2],
            quotas: (0..MAX_QUOTAS).map(|_| Quota::default()).collect(),
            node_quota: AtomicU8::new(0),
            exempts_growers: AtomicBool::new(false),
        }
    }
}

impl EvictionLimiter {
    /// Stops all evictions, or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether all evictions are stopped.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// No policy is known yet: what is not urgent waits for them, but not past this moment; 0: they are known.
    pub fn await_policies(&self, until: u64) {
        self.policies_awaited_until.store(until, Ordering::Relaxed);
    }

    /// Whether policies are still awaited.
    pub fn awaits_policies(&self, now: u64) -> bool {
        now < self.policies_awaited_until.load(Ordering::Relaxed)
    }

    /// The kubelet's thresholds are not known yet, and others stand in for them: what is not urgent waits, but not past
    /// this moment (nanoseconds of CLOCK_MONOTONIC); 0: they are known.
    pub fn await_configuration(&self, until: u64) {
        let awaited = &self.configuration_awaited_until;
        awaited.store(until, Ordering::Relaxed);
    }

    /// Whether policies or the kubelet's thresholds are still awaited.
    fn awaits_rules(&self, now: u64) -> bool {
        self.awaits_policies(now) || self.awaits_configuration(now)
    }

    /// Whether the kubelet's thresholds are still awaited.
    pub(crate) fn awaits_configuration(&self, now: u64) -> bool {
        now < self.configuration_awaited_until.load(Ordering::Relaxed)
    }

    /// Until this moment (nanoseconds of CLOCK_MONOTONIC; 0: not at all) pods go for files only where that is urgent: the
    /// API server has not accepted a DELETE yet, and the files of a further victim would stay as well.
    pub fn await_removals(&self, until: u64) {
        self.removals_awaited_until.store(until, Ordering::Relaxed);
    }

    /// When this agent or an earlier one has last evicted a pod, in nanoseconds of CLOCK_MONOTONIC, below zero before
    /// this boot. The fleet is told of it, maybe twice: an earlier agent may have ended before it could. Shadow mode has
    /// evicted none.
    pub fn last_eviction(&self) -> Option<i64> {
        let last = self.last_eviction.load(Ordering::Relaxed);
        (last != NEVER).then_some(last)
    }

    /// Sets which pods the last resort may take.
    pub fn set_last_resort(&self, resort: LastResort) {
        self.last_resort.store(resort as u8, Ordering::Relaxed);
    }

    /// Pods that the last resort may take.
    pub fn last_resort(&self) -> LastResort {
        match self.last_resort.load(Ordering::Relaxed) {
            0 => LastResort::None,
            1 => LastResort::Conditional,
            _ => LastResort::Any,
        }
    }

    /// Sets a quota: at most so many evictions in a period of nanoseconds, and never more than `ceiling` in total. Its
    /// charges stay.
    pub fn set_quota(&self, index: u8, most: Option<u32>, period: u64, ceiling: Option<u32>) {
        if let Some(quota) = self.quotas.get(usize::from(index)) {
            quota.set(most, period, ceiling);
        }
    }

    /// Evictions that a quota was ever charged with. The caller reads this before it counts the pods that are left.
    pub fn charged_in_total(&self, index: u8) -> u32 {
        let quota = self.quotas.get(usize::from(index));
        quota.map_or(0, |q| q.total.load(Ordering::Acquire))
    }

    /// Whether an eviction still counts for a quota.
    pub fn is_charged(&self, index: u8, now: u64) -> bool {
        let quota = self.quotas.get(usize::from(index));
        quota.is_some_and(|quota| quota.counted(now) > 0)
    }

    /// Clears a quota, so that it can count for another limit.
    pub fn clear_quota(&self, index: u8) {
        if let Some(quota) = self.quotas.get(usize::from(index)) {
            quota.set(None, 0, None);
            quota.total.store(0, Ordering::Relaxed);
            quota.charged.clear();
            quota.forget_shadow();
        }
    }

    /// What a pod is to a choice for the node at this moment. `is_victim`: its end is followed already.
    pub fn state_of(
        &self,
        pod: &dyn ManagedPod,
        now: u64,
        kind: EvictionKind,
        resort: LastResort,
        is_victim: bool,
    ) -> CandidateState {
        let known = pod.eviction_state();
        if is_victim || known.is_being_killed(now) || known.is_ending() {
            CandidateState::Terminating
        } else if known.is_refused(now) {
            CandidateState::Unavailable
        } else if pod.is_protected() || !self.allows(pod, now, kind, resort) {
            CandidateState::Denied
        } else {
            CandidateState::Eligible
        }
    }

    fn has_capacity_in(&self, pod: &dyn ManagedPod, now: u64, limits: Range<usize>) -> bool {
        let mut quotas = self.quotas_of(pod.permit(), limits);
        pod.eviction_state().is_requested() || quotas.all(|q| q.has_capacity(now))
    }

    fn quotas_of(
        &self,
        permit: &EvictionPermit,
        places: Range<usize>,
    ) -> impl Iterator<Item = &Quota> {
        permit.quotas(places).filter_map(|q| self.quotas.get(q))
    }

    /// Sets the index of the quota that is the node's rate; 0: none.
    pub fn set_node_quota(&self, index: u8) {
        self.node_quota.store(index, Ordering::Relaxed);
    }

    /// What the node's rate allows at this moment. Rates of owners hold for their own pods alone.
    pub fn node_rate(&self, now: u64) -> NodeRate {
        let index = usize::from(self.node_quota.load(Ordering::Relaxed));
        let quota = self.quotas.get(index).filter(|_| index != 0);
        NodeRate {
            left: quota.map_or(usize::MAX, |quota| quota.left_of_rate(now)),
            exempts_growers: self.exempts_growers.load(Ordering::Relaxed),
        }
    }

    /// Sets whether urgent evictions of the pods that make the growth go on where the node's rate is used up.
    pub fn exempt_growers(&self, exempt: bool) {
        self.exempts_growers.store(exempt, Ordering::Relaxed);
    }

    /// The bounds that hold at this moment for a planner of a mode.
    pub fn node_bounds(&self, mode: Mode, now: u64) -> NodeBounds {
        let kind = match mode {
            Mode::Kubelet => EvictionKind::AsKubelet,
            Mode::Evictd => EvictionKind::Paced,
        };
        NodeBounds {
            allows_paced: self.is_in_time(kind, now),
            allows_own_limits: !self.awaits_rules(now),
            awaits_removals: now < self.removals_awaited_until.load(Ordering::Relaxed),
            rate: self.node_rate(now),
        }
    }

    /// Charges the limits of a pod that is about to be evicted. The fleet is not told of one above a limit of its own: any
    /// pod could use up what it allows.
    pub fn charge(&self, kind: EvictionKind, pod: &dyn ManagedPod, now: u64) {
        if kind != EvictionKind::OwnLimit {
            self.last_eviction.fetch_max(signed(now), Ordering::Relaxed);
        }
        let state = pod.eviction_state();
        state.mark_evicted(now);
        if !state.is_requested() {
            let quotas = self.charged_quotas(kind, pod);
            quotas.for_each(|q| q.charge(signed(now)));
        }
        state.set_requested(false);
    }

    /// Charges all limits of a pod that was asked to go. Where it is killed before it has gone, its limits do not spare
    /// it, and are not charged a second time.
    pub fn charge_request(&self, pod: &dyn ManagedPod, now: u64) {
        self.charge(EvictionKind::Paced, pod, now);
        pod.eviction_state().set_requested(true);
    }

    /// Charges the limits of a pod that would have been evicted, so that shadow mode holds back what live mode would.
    /// The fleet is not told, and live mode forgets it.
    pub fn charge_in_shadow(
        &self,
        kind: EvictionKind,
        pod: &dyn ManagedPod,
        now: u64,
        by: ShadowChooser,
    ) {
        if kind != EvictionKind::OwnLimit {
            self.last_in_shadow.store(signed(now), Ordering::Relaxed);
        }
        pod.eviction_state().mark_in_shadow(self.shadow_mark(by));
        let quotas = self.charged_quotas(kind, pod);
        quotas.for_each(|q| q.charge_in_shadow(signed(now)));
    }

    /// The quotas that count an eviction: all, but not the node's rate where the pod is above a limit of its own.
    fn charged_quotas(
        &self,
        kind: EvictionKind,
        pod: &dyn ManagedPod,
    ) -> impl Iterator<Item = &Quota> {
        let places = match kind {
            EvictionKind::OwnLimit => ALL_BUT_NODE_RATE,
            _ => 0..MAX_QUOTAS_PER_POD,
        };
        self.quotas_of(pod.permit(), places)
    }

    /// The pressure is over: what shadow mode has chosen for it is available again. Its limits stay charged.
    pub fn forget_shadow_victims(&self, by: ShadowChooser) {
        self.shadow_pressure[by as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Shadow mode is over: none of the pods that it has chosen was evicted.
    pub fn forget_shadow(&self) {
        for by in [ShadowChooser::FastPath, ShadowChooser::Manager] {
            self.forget_shadow_victims(by);
        }
        self.last_in_shadow.store(NEVER, Ordering::Relaxed);
        self.quotas.iter().for_each(Quota::forget_shadow);
    }

    /// Whether a pod was evicted under a limit, or shadow mode has chosen it for a pressure that lasts: it does not
    /// count as available.
    pub fn is_evicted_or_chosen(&self, state: &EvictionState) -> bool {
        let chosen = |by| state.shadow_mark() == self.shadow_mark(by);
        state.is_evicted() || chosen(ShadowChooser::FastPath) || chosen(ShadowChooser::Manager)
    }

    /// Computes a number that tells a pressure of one chooser from all others; never zero.
    fn shadow_mark(&self, by: ShadowChooser) -> u64 {
        let pressure = self.shadow_pressure[by as usize].load(Ordering::Relaxed);
        (by as u64 + 1) << 32 | u64::from(pressure)
    }

    /// Takes note of an eviction of an earlier agent, in nanoseconds of CLOCK_MONOTONIC, below zero before this boot: the
    /// fleet is told of it, and waits after it while it is slow, whatever limits there are.
    pub fn note_restored(&self, at: i64) {
        self.last_eviction.fetch_max(at, Ordering::Relaxed);
    }

    /// Charges a quota for an eviction of an earlier agent, in nanoseconds of CLOCK_MONOTONIC, below zero before this
    /// boot; the oldest first. The fleet does not count all that a quota does: see [`Self::note_restored`].
    pub fn charge_restored(&self, index: u8, at: i64) {
        if let Some(quota) = self.quotas.get(usize::from(index)) {
            quota.charge(at);
        }
    }
}

/// Largest number of evictions in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of evictions allowed within `period`.
    pub evictions: u32,
    /// Period in which no more than `evictions` are allowed.
    pub period: Duration,
}

/// An eviction of an earlier agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestoredEviction {
    /// Moment at which the pod was killed or asked to go, in nanoseconds of this boot's CLOCK_MONOTONIC; below zero if
    /// it was before this boot.
    pub begun: i64,
    /// The same from which limits count it: where nothing tells when a pod that was asked to go ended, the end of its
    /// time.
    pub at: i64,
    /// Whether it was in this boot.
    pub is_same_boot: bool,
    /// The pod: UID, namespace, name, owner and labels are known.
    pub pod: Pod,
    /// Whether the pod's owner and labels are known. If not, the eviction counts for every group of its namespace, and
    /// without an owner for every owner there.
    pub is_workload_known: bool,
    /// Whether the pod was above a limit of its own: the node's rate does not count such an eviction.
    pub at_own_limit: bool,
    /// Whether the pod was asked to go, not killed.
    pub is_requested: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cause, EvictionDecision, Message, Signal, Timing,
        fleet::{FleetPace, FleetRules},
        model::managed::tests::BarePod,
        pace::{PaceInputs, Urgency},
        permit::Permission,
    };

    /// Whether a pod may go for a shortage that cannot wait.
    fn allows_urgent(limiter: &EvictionLimiter, pod: &BarePod, now: u64) -> bool {
        limiter.allows(pod, now, EvictionKind::Urgent, LastResort::None)
    }

    #[test]
    fn what_is_not_urgent_waits_for_policies_that_are_not_known() {
        let limiter = EvictionLimiter::default();
        limiter.await_policies(100);
        assert!(!limiter.allows_paced(99) && limiter.allows_paced(100));
        // What is decided as the kubelet does asks the fleet alone.
        let pod = BarePod::default();
        assert!(limiter.allows(&pod, 99, EvictionKind::AsKubelet, LastResort::None));
        assert!(!limiter.allows(&pod, 99, EvictionKind::Paced, LastResort::None));
        let paced = |mode| limiter.node_bounds(mode, 99).allows_paced;
        assert!(paced(Mode::Kubelet) && !paced(Mode::Evictd));
        assert_eq!(limiter.fleet_pace(99), FleetPace::Normal);
        limiter.await_policies(0);
        assert!(limiter.allows_paced(99));
    }

    #[test]
    fn what_is_not_urgent_waits_for_the_kubelets_thresholds() {
        let limiter = EvictionLimiter::default();
        limiter.await_configuration(100);
        limiter.await_policies(0);
        let pod = BarePod::default();
        for kind in [EvictionKind::Paced, EvictionKind::AsKubelet] {
            assert!(!limiter.allows(&pod, 99, kind, LastResort::None));
        }
        assert!(allows_urgent(&limiter, &pod, 99));
        assert!(!limiter.allows_paced(99) && limiter.allows_paced(100));
        for mode in [Mode::Kubelet, Mode::Evictd] {
            let bounds = limiter.node_bounds(mode, 99);
            assert!(!bounds.allows_paced && !bounds.allows_own_limits);
        }
        limiter.await_configuration(0);
        assert!(limiter.allows_paced(99));
    }

    #[test]
    fn a_permission_ends_by_itself() {
        let (limiter, pod) = (EvictionLimiter::default(), BarePod::default());
        let allows = |now| allows_urgent(&limiter, &pod, now);
        assert!(
            allows(u64::MAX - 1)
                && limiter.allows(&pod, 5, EvictionKind::KernelKill, LastResort::None)
        );
        pod.permit.set(Permission::Until(100), -7, &[]);
        assert!(allows(99) && !allows(100));
        assert!(
            !limiter.allows(&pod, 99, EvictionKind::KernelKill, LastResort::None),
            "the kernel reads no clock"
        );
        assert_eq!(pod.permit.order(), -7);
        pod.permit.set(Permission::Denied, 0, &[]);
        assert!(!allows(0));
        assert!(limiter.allows(&pod, 0, EvictionKind::Urgent, LastResort::Conditional));
        pod.permit.set(Permission::Never, 0, &[]);
        assert!(!limiter.allows(&pod, 0, EvictionKind::Urgent, LastResort::Conditional));
        assert!(limiter.allows(&pod, 0, EvictionKind::Urgent, LastResort::Any));
        limiter.pause(true);
        assert!(
            !limiter.allows(&pod, 0, EvictionKind::Urgent, LastResort::Any),
            "a pause is a pause"
        );
    }

    #[test]
    fn a_pod_on_its_way_is_neither_spared_nor_chosen() {
        use CandidateState::{Denied, Eligible, Terminating};
        let (limiter, pod) = (EvictionLimiter::default(), BarePod::default());
        let state = |resort| limiter.state_of(&pod, 5, EvictionKind::Urgent, resort, false);
        assert_eq!(state(LastResort::None), Eligible);
        pod.permit.set(Permission::Denied, 0, &[]);
        assert_eq!(state(LastResort::None), Denied);
        assert_eq!(state(LastResort::Conditional), Eligible);
        assert_eq!(
            limiter.state_of(&pod, 5, EvictionKind::Urgent, LastResort::None, true),
            Terminating
        );
        pod.state.begin_kill(4);
        assert_eq!(state(LastResort::None), Terminating);
        pod.state.end_kill();
        pod.state.set_ending(true);
        assert_eq!(state(LastResort::Any), Terminating);
        let critical = BarePod {
            is_protected: true,
            ..BarePod::default()
        };
        let state = limiter.state_of(&critical, 5, EvictionKind::Urgent, LastResort::Any, false);
        assert_eq!(state, Denied, "whatever policies say");
        assert!(!limiter.allows(&critical, 5, EvictionKind::KernelKill, LastResort::None));
    }

    #[test]
    fn the_fleets_pace_ends_by_itself() {
        let rules = FleetRules {
            window: Duration::from_nanos(100),
            slow_nodes: 1,
            pause_nodes: 2,
            pause: Duration::from_nanos(1000),
            slow_interval: Duration::from_nanos(50),
        };
        let limiter = EvictionLimiter::default();
        assert!(limiter.allows_paced(0));
        limiter.set_fleet(FleetPace::Paused, Duration::from_nanos(1000), &rules, 5000);
        assert!(!limiter.allows_paced(5999));
        let pod = BarePod::default();
        assert!(allows_urgent(&limiter, &pod, 5999), "an urgent one goes");
        limiter.charge(EvictionKind::Urgent, &pod, 5990);
        assert_eq!(limiter.fleet_pace(6000), FleetPace::Slow);
        assert!(!limiter.allows_paced(6039) && limiter.allows_paced(6040));
        assert_eq!(limiter.fleet_pace(6100), FleetPace::Normal);
        limiter.set_fleet(FleetPace::Slow, Duration::from_nanos(90), &rules, 7000);
        assert_eq!(limiter.fleet_pace(7089), FleetPace::Slow);
        limiter.set_fleet(FleetPace::Normal, Duration::ZERO, &rules, 7010);
        assert_eq!(limiter.fleet_pace(7011), FleetPace::Normal);
    }

    fn decision(cause: Cause, urgency: Option<Urgency>) -> EvictionDecision {
        let timing = |urgency| {
            Box::new(Timing {
                urgency,
                pace_inputs: PaceInputs::default(),
                is_beyond_rate: false,
            })
        };
        EvictionDecision {
            uid: String::new(),
            namespace: String::new(),
            name: String::new(),
            grace_period_seconds: 1,
            message: Message::default(),
            cause,
            is_soft: false,
            timing: urgency.map(timing),
            other_signals: Vec::new(),
        }
    }

    /// All other limits hold.
    // R38
    #[test]
    fn beyond_the_nodes_rate_a_grower_is_exempt_from_that_rate_alone() {
        const PERIOD: u64 = 1_000_000;
        let limiter = EvictionLimiter::default();
        for index in [1, 2] {
            limiter.set_quota(index, Some(1), PERIOD, None);
        }
        limiter.set_node_quota(1);
        limiter.exempt_growers(true);
        assert!(!limiter.node_rate(5).is_for_growers_only());
        limiter.charge_restored(1, 5);
        assert!(limiter.node_rate(5).is_for_growers_only());
        let managed = BarePod::default();
        let pod = &managed.permit;
        let urgent = Urgency::Urgent {
            exhausted_in: 1,
            growth: 1,
        };
        let mut beyond = decision(Cause::Pressure(Signal::PidAvailable), Some(urgent));
        beyond.timing.as_mut().unwrap().is_beyond_rate = true;
        let kind = EvictionKind::of(&beyond);
        let may_go = |kind| {
            let state = limiter.state_of(&managed, 5, kind, LastResort::None, false);
            state == CandidateState::Eligible
        };
        pod.set(Permission::Always, 0, &[1, 2]);
        assert!(may_go(kind) && !may_go(EvictionKind::Urgent));
        limiter.pause(true);
        assert!(!may_go(kind));
        limiter.pause(false);
        pod.set(Permission::Denied, 0, &[1, 2]);
        assert!(!may_go(kind));
        pod.set(Permission::Always, 0, &[1, 2]);
        limiter.charge_restored(2, 5);
        assert!(!may_go(kind), "its owner's rate");
        limiter.exempt_growers(false);
        assert!(!limiter.node_rate(5).is_for_growers_only());
    }

    /// Two are chosen at one look.
    #[test]
    fn a_slow_fleet_lets_one_decision_of_a_look_pass() {
        let limiter = EvictionLimiter::default();
        let pods: [BarePod; 2] = Default::default();
        limiter.set_fleet(FleetPace::Slow, SLOW.window, &SLOW, 0);
        let short = Cause::Pressure(Signal::NodeFsAvailable);
        let paced = Urgency::Paced { only_cache: false };
        let urgent = Urgency::Urgent {
            exhausted_in: 1,
            growth: 1,
        };
        let allows = |pod: usize, now, cause, urgency| {
            let kind = EvictionKind::of(&decision(cause, urgency));
            limiter.allows(&pods[pod], now, kind, LastResort::None)
        };
        assert!(allows(0, 10, short, Some(paced)) && allows(1, 10, short, Some(paced)));
        limiter.charge(EvictionKind::Paced, &pods[0], 10);
        assert!(!allows(1, 11, short, Some(paced)) && !allows(1, 11, short, None));
        assert!(allows(1, 11, short, Some(urgent)));
        let own_limit = Cause::LocalStorage("emptydirfs.limit");
        assert!(allows(1, 11, own_limit, None), "the fleet counts none");
        assert!(allows(1, 60, short, Some(paced)));
    }

    const SLOW: FleetRules = FleetRules {
        window: Duration::from_nanos(1_000_000),
        slow_nodes: 1,
        pause_nodes: 2,
        pause: Duration::from_nanos(1000),
        slow_interval: Duration::from_nanos(50),
    };

    // A restart does not let a node evict sooner.
    #[test]
    fn a_slow_fleet_waits_after_the_evictions_of_an_earlier_agent() {
        let slow = || {
            let limiter = EvictionLimiter::default();
            limiter.set_fleet(FleetPace::Slow, SLOW.window, &SLOW, 0);
            limiter
        };
        let limiter = slow();
        // A limit also counts what the fleet does not.
        limiter.charge_restored(1, 1000);
        limiter.note_restored(980);
        assert!(!limiter.allows_paced(1029) && limiter.allows_paced(1030));
        assert_eq!(limiter.last_eviction(), Some(980), "the fleet is told");
        limiter.charge(EvictionKind::Urgent, &BarePod::default(), 1040);
        assert!(!limiter.allows_paced(1089) && limiter.allows_paced(1090));
        let before_boot = slow();
        before_boot.note_restored(-20);
        assert!(!before_boot.allows_paced(29) && before_boot.allows_paced(30));
        assert!(slow().allows_paced(0), "its first one");
    }

    // R47
    #[test]
    fn shadow_mode_uses_limits_up_and_live_mode_forgets_it() {
        let limiter = EvictionLimiter::default();
        limiter.set_fleet(FleetPace::Slow, SLOW.window, &SLOW, 0);
        let pods: [BarePod; 3] = Default::default();
        pods.iter()
            .for_each(|p| p.permit.set(Permission::Always, 0, &[3, 9]));
        limiter.set_quota(3, Some(2), 1000, None);
        limiter.set_quota(9, None, 0, Some(2));
        let allows = |pod: usize, now| allows_urgent(&limiter, &pods[pod], now);
        let kind = EvictionKind::Urgent;
        limiter.charge_in_shadow(kind, &pods[0], 110, ShadowChooser::FastPath);
        limiter.charge_in_shadow(kind, &pods[1], 120, ShadowChooser::Manager);
        assert!(!allows(2, 130), "two would be gone");
        assert!(!limiter.allows_paced(169) && limiter.allows_paced(170));
        assert_eq!(limiter.last_eviction(), None, "no other node is told");
        let is_away = |pod: usize| limiter.is_evicted_or_chosen(&pods[pod].state);
        assert!(is_away(0) && is_away(1));
        assert!(!pods[0].state.is_evicted(), "it lives");

        limiter.forget_shadow_victims(ShadowChooser::FastPath);
        assert!(!is_away(0) && is_away(1));
        limiter.set_quota(9, None, 0, None);
        assert!(!allows(2, 1109), "the rate was used up nevertheless");
        assert!(allows(2, 1110));

        limiter.charge_in_shadow(kind, &pods[2], 1115, ShadowChooser::FastPath);
        limiter.charge(kind, &pods[0], 1116);
        assert!(!allows(1, 1117));
        limiter.forget_shadow();
        assert!(allows(1, 1117), "one has left in earnest");
        assert!(!is_away(2) && !is_away(1) && is_away(0));
        limiter.charge(kind, &pods[1], 1118);
        assert!(!allows(2, 1119));
        // What was counted of all pods is not less than the policy side has seen.
        assert_eq!(limiter.charged_in_total(9), 5);
    }

    #[test]
    fn what_is_left_of_the_nodes_rate_is_left_for_all_pods() {
        let limiter = EvictionLimiter::default();
        let owned = BarePod::default();
        owned.permit.set(Permission::Always, 0, &[3, 9]);
        limiter.set_quota(3, Some(4), 100, None);
        limiter.set_quota(9, Some(1), 100, None);
        let left = |now| limiter.node_rate(now).left;
        assert_eq!(left(0), usize::MAX, "no rate of the node yet");
        limiter.set_node_quota(3);
        limiter.charge(EvictionKind::Urgent, &owned, 10);
        // The owner's rate is used up, and holds for its own pods alone.
        assert_eq!((left(20), left(110)), (3, 4));
        limiter.set_quota(3, Some(4), 0, None);
        assert_eq!(left(20), usize::MAX, "no time, no limit");
    }

    /// A pod above its own limit, as often as its owner likes, takes nothing from what a shortage of the node may use.
    #[test]
    fn own_limits_use_up_no_rate_of_the_node() {
        let limiter = EvictionLimiter::default();
        let pod = BarePod::default();
        pod.permit.set(Permission::Always, 0, &[3, 9]);
        limiter.set_quota(3, Some(2), 100, None);
        limiter.set_quota(9, Some(5), 100, None);
        for now in 10..14 {
            limiter.charge(EvictionKind::OwnLimit, &pod, now);
        }
        limiter.charge_in_shadow(EvictionKind::OwnLimit, &pod, 14, ShadowChooser::Manager);
        limiter.set_node_quota(3);
        assert_eq!(limiter.node_rate(20).left, 2);
        assert_eq!(limiter.last_eviction(), None, "no other node is told");
        assert!(
            !limiter.allows(&pod, 20, EvictionKind::OwnLimit, LastResort::None),
            "its owner's rate"
        );
        pod.permit.set(Permission::Always, 0, &[3, 0]);
        limiter.charge(EvictionKind::Urgent, &pod, 20);
        limiter.charge(EvictionKind::Urgent, &pod, 21);
        assert!(!allows_urgent(&limiter, &pod, 22));
        assert!(limiter.allows(&pod, 22, EvictionKind::OwnLimit, LastResort::None));
    }

    #[test]
    fn limits_hold_back_no_pod_that_was_asked_and_count_it_once() {
        let limiter = EvictionLimiter::default();
        let pods: [BarePod; 3] = Default::default();
        pods.iter()
            .for_each(|p| p.permit.set(Permission::Always, 0, &[3, 9]));
        limiter.set_quota(3, Some(2), 1000, None);
        limiter.set_quota(9, Some(1), 1000, None);
        let allows = |pod: &BarePod| allows_urgent(&limiter, pod, 20);
        limiter.charge_request(&pods[0], 10);
        assert!(allows(&pods[0]) && !allows(&pods[1]));
        pods[0].permit.set(Permission::Denied, 0, &[3, 9]);
        assert!(!allows(&pods[0]), "a policy may");

        limiter.charge(EvictionKind::Urgent, &pods[0], 30);
        assert_eq!(limiter.charged_in_total(3), 1);
        assert_eq!(limiter.last_eviction(), Some(30));
        assert!(!pods[0].state.is_requested(), "it is killed");
        // It runs anew.
        limiter.charge_request(&pods[2], 40);
        pods[2].state.forget_eviction(40);
        assert!(!allows(&pods[2]));
    }

    #[test]
    fn limits_count_within_their_period() {
        let limiter = EvictionLimiter::default();
        let pods: [BarePod; 4] = Default::default();
        pods.iter()
            .for_each(|p| p.permit.set(Permission::Always, 0, &[3, 9]));
        limiter.set_quota(3, Some(2), 100, None);
        limiter.set_quota(9, None, 0, Some(3));
        for now in [10, 20] {
            assert!(allows_urgent(&limiter, &pods[0], now));
            limiter.charge(EvictionKind::Urgent, &pods[0], now);
        }
        assert!(!allows_urgent(&limiter, &pods[1], 30), "two are gone");
        assert!(
            allows_urgent(&limiter, &pods[1], 110),
            "one of them no longer counts"
        );
        limiter.charge(EvictionKind::Urgent, &pods[1], 110);
        assert!(
            !allows_urgent(&limiter, &pods[2], 1000),
            "three have left, and none is to spare"
        );
        assert_eq!(limiter.charged_in_total(9), 3);
        limiter.set_quota(9, None, 0, Some(4));
        assert!(allows_urgent(&limiter, &pods[2], 1000));
        assert!(pods[0].state.is_evicted() && !pods[3].state.is_evicted());
        limiter.clear_quota(3);
        limiter.clear_quota(9);
        assert!(allows_urgent(&limiter, &pods[3], 0));
    }
}
