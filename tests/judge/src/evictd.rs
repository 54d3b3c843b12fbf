//! evictd's own core on the simulated node: what is here stands in for `agent/fastpath`'s files, threads and signals.

use std::time::Duration;

use evictd_engine::{
    Candidate, CandidateState, SelectionCriteria, Signal,
    accounting::{
        Accounting, GUARD, MemoryGuard, MemoryGuardSource, MemorySample, MemoryThresholds,
    },
    counter_history::CounterHistory,
    flush_deadline::FlushDeadline,
    growers::{Grower, Growers, WATCHED, WATCHED_BEFOREHAND, WATCHED_LIMITED, counter_jump},
    kubelet_times::MONITORING_INTERVAL_NS,
    limiter::{EvictionKind, EvictionLimiter, Rate},
    model::{
        settings::Mode,
        usage::{MachineMemory, MemoryReading, SwapUse},
    },
    pace::{Decision, Pace, PaceInputs, PaceProfile, Urgency},
    pending::Pending,
    permit::{LastResort, NodeRate, Permission},
    round::{self, Attempt, Candidates, Choice, MAX_IN_FLIGHT, Pods, Round},
    sampling::{self, Notification, ScopeState, pod_readings},
    shortage::LimitedGrowth,
    terminating::{Terminating, VictimReading, VictimState},
    units::{nanos, signed},
};

use super::{
    course::{Course, Strategy},
    world::{Incident, PodSpec, Reading, ScopeKind, World},
};
use crate::BarePod;

/// The node's eviction rate, as in the chart's values: `exemptGrowers` is set too.
pub const RATE: Rate = Rate {
    evictions: 10,
    period: Duration::from_secs(300),
};
/// The index of its quota.
const NODE_QUOTA: u8 = 1;

/// The fastest growth that one CPU makes, in bytes per second.
const FASTEST_OF_A_CPU: u64 = 4 << 30;
/// Bytes that may be new in no line, and those that each CPU keeps to itself, as in `StatLag`.
const NEW: u64 = 8 << 20;
const KEPT_BY_A_CPU: u64 = 3 * 64 * 4096;
/// What each CPU may keep of two counters of the machine: 125 pages each (`vm_stat`'s threshold), in bytes.
const BLUR_OF_A_CPU: u64 = 2 * 125 * 4096;

/// State of the fast path between two looks.
pub struct Evictd {
    pace: Pace,
    in_flight: Vec<Victim>,
    limiter: EvictionLimiter,
    pods: Vec<BarePod>,
    /// What the journal has of its evictions, the oldest first. It outlives the agent.
    journal: Vec<Eviction>,
    /// Threshold and minimum reclaim that the last look went by, in bytes; `None` before the first one.
    limits: Option<(u64, u64)>,
    next: u64,
    restart: Option<u64>,
    trigger: Option<f64>,
    under_pressure: bool,
    history: CounterHistory,
    /// Time at which all pods were read last, and what was available then.
    read: (u64, u64),
    /// Memory of the pods that grow most.
    growers: Growers,
    /// The same of those with limits of their own, and the time at which they were read last.
    limited_growers: (Growers, u64),
    /// Time at which those were read last that stand still close to their limits.
    near_limits_read_at: u64,
    flush: FlushDeadline,
    sample: MemorySample,
}

struct Victim {
    pod: usize,
    terminating: Terminating,
    is_reported: bool,
}

impl Victim {
    /// A pod that an earlier agent has signalled, like the fast path's `Victim::restored`.
    fn restored(world: &World<'_>, eviction: &Eviction) -> Self {
        let &Eviction { pod, at, is_stuck } = eviction;
        let left = VictimReading {
            populated: world.populated(pod),
            usage: world.left(pod),
        };
        Self {
            pod,
            terminating: Terminating::restore(at, world.now, left, world.shared(pod), is_stuck),
            is_reported: is_stuck || !left.populated,
        }
    }
}

/// An eviction as the journal has it.
struct Eviction {
    pod: usize,
    /// Time of SIGKILL, in nanoseconds.
    at: u64,
    /// Whether the victim was found to be stuck.
    is_stuck: bool,
}

/// A pod as the limiter sees it: no policy is about it.
fn limited_pod(is_protected: bool) -> BarePod {
    let mut pod = BarePod::default();
    pod.is_protected = is_protected;
    pod.permit.set(Permission::Always, 0, &[NODE_QUOTA]);
    pod
}

/// Builds the limiter of a new agent, which counts what was evicted before.
fn limiter(incident: &Incident, journal: &[Eviction]) -> EvictionLimiter {
    let limiter = EvictionLimiter::default();
    if let Some(before) = &incident.rate {
        limiter.set_quota(NODE_QUOTA, Some(RATE.evictions), nanos(RATE.period), None);
        limiter.set_node_quota(NODE_QUOTA);
        limiter.exempt_growers(true);
        let own = journal.iter().map(|eviction| signed(eviction.at));
        for at in before.iter().copied().chain(own) {
            limiter.charge_restored(NODE_QUOTA, at);
        }
    }
    limiter
}

/// Builds the accounting of the simulated node's scope.
fn accounting(world: &World<'_>) -> Accounting {
    let (threshold, resolved) = world.limits();
    let (is_machine, source) = match world.incident.scope {
        ScopeKind::Machine => (true, MemoryGuardSource::Machine),
        ScopeKind::V1 => (false, MemoryGuardSource::Written { is_awaited: true }),
        ScopeKind::V2 => (false, MemoryGuardSource::Counted),
    };
    Accounting {
        capacity: world.incident.capacity,
        thresholds: MemoryThresholds {
            threshold,
            resolved,
            ..MemoryThresholds::default()
        },
        is_machine,
        is_limited: !is_machine,
        is_root: is_machine,
        counts_active_file: false,
        guard: Some(MemoryGuard {
            source,
            amount: GUARD,
        }),
        protected_cache: 0,
    }
}

/// How many more evictions the node's rate allowed at a moment of a course.
pub fn left_of_rate(incident: &Incident, course: &Course<'_>, now: u64) -> usize {
    let kills = course.kills.iter().filter(|kill| kill.time <= now);
    let journal = kills.map(|kill| Eviction {
        pod: kill.pod,
        at: kill.time,
        is_stuck: false,
    });
    limiter(incident, &Vec::from_iter(journal))
        .node_rate(now)
        .left
}

/// Computes what `MemAvailable` shows: it is made of counters of which each CPU keeps a little to itself.
fn machine_memory(world: &World<'_>, reading: &Reading, in_lists: u64) -> MachineMemory {
    let capacity = world.incident.capacity;
    let blur = world.incident.fastest / FASTEST_OF_A_CPU * BLUR_OF_A_CPU;
    let (shown, flushed) = (reading.cache(), world.read_flushed().cache());
    let cache = shown.clamp(flushed.saturating_sub(blur), flushed.saturating_add(blur));
    let uncounted = world.totals.uncounted as u64;
    let used = reading.usage - cache.min(reading.usage) + uncounted + world.kept();
    MachineMemory {
        total: capacity,
        available: capacity.saturating_sub(used),
        unreclaimable: used.min(capacity),
        pcp_free: in_lists,
    }
}

impl Evictd {
    /// The agent is started at the beginning.
    pub fn new(incident: &Incident) -> Self {
        Self::start(incident, incident.restart, Vec::new())
    }

    fn start(incident: &Incident, restart: Option<u64>, journal: Vec<Eviction>) -> Self {
        let pods = incident.pods.iter().map(|spec| limited_pod(spec.protected));
        Self {
            pace: Pace::default(),
            in_flight: Vec::new(),
            limiter: limiter(incident, &journal),
            pods: pods.collect(),
            journal,
            limits: None,
            next: 0,
            restart,
            trigger: None,
            under_pressure: false,
            history: CounterHistory::new(incident.pods.len()),
            read: (0, 0),
            growers: Growers::new(WATCHED, counter_jump(0, 0)),
            limited_growers: (Growers::new(WATCHED_LIMITED, counter_jump(0, 0)), 0),
            near_limits_read_at: 0,
            flush: FlushDeadline::default(),
            sample: MemorySample::default(),
        }
    }

    /// Starts the next agent, with what the journal tells it. No incident lasts for the ten minutes after which victims are
    /// forgotten.
    fn restarted(&mut self, world: &World<'_>) -> Self {
        let journal = std::mem::take(&mut self.journal);
        let mut next = Self::start(world.incident, None, journal);
        let is_recent = |at: &u64| world.now.saturating_sub(*at) < MONITORING_INTERVAL_NS;
        let last = next.journal.last().map(|eviction| eviction.at);
        if let Some(last) = last.filter(is_recent) {
            next.pace.evicted(last);
        }
        // Of a pod that was signalled twice the last time counts.
        for (index, eviction) in next.journal.iter().enumerate() {
            let mut later = next.journal.iter().skip(index + 1);
            let is_there = world.usage(eviction.pod).is_some();
            if is_there && later.all(|other| other.pod != eviction.pod) {
                next.in_flight.push(Victim::restored(world, eviction));
            }
        }
        next
    }

    /// Takes over other thresholds, like `MemoryMonitor::apply_settings`.
    fn apply_limits(&mut self, limits: (u64, u64)) {
        let before = self.limits.replace(limits);
        if before.is_some_and(|(threshold, _)| threshold != limits.0) {
            self.pace.reset();
        }
    }

    /// What the statistics show, flushed where `StatLag::sample` would have them flushed, and how much is in none of them yet.
    fn read(&mut self, world: &World<'_>) -> (Reading, u64) {
        let reading = world.read();
        // Nothing stands beside a root's statistics.
        if world.incident.scope == ScopeKind::Machine {
            return (reading, 0);
        }
        let (fastest, capacity) = (world.incident.fastest, world.incident.capacity);
        if self
            .flush
            .is_due(world.now, &self.sample, capacity, fastest)
        {
            return (world.read_flushed(), 0);
        }
        let missing = reading.usage.saturating_sub(reading.listed);
        let slack = NEW + fastest / FASTEST_OF_A_CPU * KEPT_BY_A_CPU;
        let working_set = reading.usage.saturating_sub(reading.inactive);
        let counted = capacity.saturating_sub(working_set);
        let is_short = counted.saturating_add(missing) < world.limits().0;
        match missing > slack && !is_short {
            true => (world.read_flushed(), 0),
            false => (reading, missing),
        }
    }

    /// Looks at the scope like `WatchedScope::sample`.
    fn look_at_scope(&mut self, world: &World<'_>) {
        let (reading, unlisted) = self.read(world);
        let was_short = self.sample.is_short_without_pcp_free(world.limits().0);
        let in_lists = match self.under_pressure || was_short {
            true => world.kept(),
            false => 0,
        };
        let machine = machine_memory(world, &reading, in_lists);
        let swap = SwapUse {
            swapped: reading.swapped,
            usable: reading.swap,
        };
        let memory = MemoryReading {
            usage: reading.usage,
            inactive_file: reading.inactive,
            active_file: reading.active,
            dirty_or_writeback: reading.dirty,
            ..MemoryReading::default()
        };
        self.sample = accounting(world).sample(&memory, Some(machine), swap);
        self.sample.shortage.stat_lag = unlisted;
    }

    /// Bytes that may still be used before the threshold is met.
    fn distance(&self) -> u64 {
        let threshold = self.sample.shortage.threshold;
        self.sample.guarded_available.saturating_sub(threshold)
    }

    /// Reads all pods when the node has moved or the last readings are old, like `MemoryMonitor::publish_when_due`.
    fn read_pods_when_due(&mut self, world: &World<'_>) {
        let ((at, before), available) = (self.read, self.sample.guarded_available);
        let is_old = pod_readings::are_old(world.now - at, self.is_near(world));
        self.read_pods_if(
            is_old || pod_readings::has_moved(before, available, self.distance()),
            world,
        );
    }

    /// The same while victims end, like `MemoryMonitor::read_pods_while_terminating`.
    fn read_pods_while_dying(&mut self, world: &World<'_>) {
        let age = world.now - self.read.0;
        self.read_pods_if(age >= pod_readings::WHILE_TERMINATING_NS, world);
    }

    fn read_pods_if(&mut self, is_due: bool, world: &World<'_>) {
        if is_due {
            self.note_usages(world);
            self.watch_growers(world, WATCHED_BEFOREHAND);
        }
        let age = world.now - self.near_limits_read_at;
        if self.is_near(world) && pod_readings::are_old(age, true) {
            self.watch_near_limits(world);
        }
    }

    /// Reads pods that stand still close to their limits, like `PodReadings::watch_near_limits`.
    fn watch_near_limits(&mut self, world: &World<'_>) {
        let before = std::mem::replace(&mut self.near_limits_read_at, world.now);
        let (distance, headroom) = (self.distance(), self.sample.shortage.headroom.immediate);
        let left_of = |(pod, spec): (usize, &PodSpec)| {
            let limit = spec.limit.filter(|limit| *limit >= distance)?;
            let left = limit.saturating_sub(world.usage(pod)?);
            (left < headroom).then_some((left, pod))
        };
        let pods = world.incident.pods.iter().enumerate();
        let mut most_left: Vec<_> = pods.filter_map(left_of).collect();
        most_left.sort_unstable_by_key(|(left, _)| std::cmp::Reverse(*left));
        for (_, pod) in most_left.into_iter().take(WATCHED) {
            let (number, held) = (pod as u64 + 1, world.held(pod));
            let limited = &mut self.limited_growers.0;
            limited.note_unless_crowded(number, world.now, held, before);
        }
    }

    /// Reads in full so many of the pods that have grown most, like `PodReadings::watch_growers`. No pod has the number 0.
    fn watch_growers(&mut self, world: &World<'_>, most: usize) {
        let is_over = |pod| self.in_flight.iter().any(|victim| victim.pod == pod);
        let grew = self.history.grew().iter().zip(0..);
        let mut largest: Vec<_> = grew
            .filter(|(grew, pod)| **grew > 0 && !is_over(*pod))
            .collect();
        largest.sort_unstable_by_key(|(grew, _)| std::cmp::Reverse(**grew));
        let (limited, before) = &mut self.limited_growers;
        for (_, pod) in largest.into_iter().take(most).rev() {
            let (number, held) = (pod as u64 + 1, world.held(pod));
            self.growers.note(number, world.now, held);
            if world.incident.pods[pod].limit.is_some() {
                limited.note_unless_crowded(number, world.now, held, *before);
            }
        }
        *before = world.now;
    }

    /// The growth that the pods' own limits will end, like `PodReadings::limited_growth`.
    fn limited_growth(&mut self, world: &World<'_>) -> LimitedGrowth {
        let (growers, now, since) = (
            &mut self.limited_growers.0,
            world.now,
            self.pace.steady_since(),
        );
        let mut bounded = LimitedGrowth::default();
        for (pod, spec) in world.incident.pods.iter().enumerate() {
            let (number, is_victim) = (pod as u64 + 1, |v: &Victim| v.pod == pod);
            let Some(limit) = spec.limit.filter(|_| growers.is_watched(number, now)) else {
                continue;
            };
            if self.in_flight.iter().any(is_victim) {
                continue;
            }
            let held = world.held(pod);
            growers.observe(number, now, held);
            let (grown, growth) = growers.steady_growth_of(number, now, since, limit);
            let left = limit.saturating_sub(held);
            bounded = bounded.merged(LimitedGrowth::new(grown, growth, left));
        }
        bounded
    }

    /// Whether the threshold is so near that the program which costs something per page is attached.
    fn is_near(&self, world: &World<'_>) -> bool {
        sampling::wants_hook(world.incident.fastest, self.distance(), true)
    }

    fn note_usages(&mut self, world: &World<'_>) {
        self.read = (world.now, self.sample.guarded_available);
        let pods = 0..world.incident.pods.len();
        let usages = pods.map(|pod| world.usage(pod).unwrap_or(0));
        self.history.note(world.now, usages);
    }

    fn dying(&self) -> usize {
        let is_dying = |v: &&Victim| v.terminating.exited().is_none() && !v.terminating.is_stuck();
        self.in_flight.iter().filter(is_dying).count()
    }

    /// Resolves the pressure like `MemoryMonitor::resolve_pressure`.
    fn resolve_pressure<'a>(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        let now = world.now;
        let mut pending = Pending::default();
        let mut seen = self.sample.shortage;
        for victim in &self.in_flight {
            seen.dying += world.held(victim.pod);
            victim
                .terminating
                .add_to(&mut pending, now, world.left(victim.pod));
        }
        self.pace.observe(now, &seen);
        let mut pace_inputs = PaceInputs {
            now,
            pace: self.pace,
            shortage: seen,
            pending,
            profile: PaceProfile::for_threshold(Signal::MemoryAvailable, true),
        };
        let mut decision = pace_inputs.decide();
        if decision.is_urgent() {
            if world.incident.scope == ScopeKind::Machine {
                let uncounted = world.kept() - seen.pcp_free;
                pace_inputs.shortage.count_pcp_free(uncounted);
            }
            pace_inputs.shortage.limited_growth = self.limited_growth(world);
            decision = pace_inputs.decide();
        }
        let Decision::Evict { urgency } = decision else {
            return;
        };
        let room = MAX_IN_FLIGHT.saturating_sub(self.in_flight.len());
        let most = round::most(Mode::Evictd, self.dying(), room);
        if most == 0 {
            return;
        }
        let round = Round {
            urgency,
            pace_inputs,
            most,
        };
        round.run(&mut SimulatedPods {
            evictd: self,
            world,
            course,
            round: &round,
            candidates: Vec::new(),
        });
    }

    /// Lets go of the victims that are over, like `InFlight::observe`.
    fn finish(&mut self, world: &World<'_>) {
        let now = world.now;
        let is_enough = self.sample.guarded_available >= self.sample.shortage.threshold;
        let mut held = 0;
        self.in_flight.retain_mut(|victim| {
            let populated = world.populated(victim.pod);
            let usage = world.left(victim.pod);
            let seen = VictimReading { populated, usage };
            let fate = victim.terminating.observe(now, seen);
            if fate == VictimState::BecameStuck {
                let mut evictions = self.journal.iter_mut().rev();
                if let Some(eviction) = evictions.find(|eviction| eviction.pod == victim.pod) {
                    eviction.is_stuck = true;
                }
            }
            victim.is_reported |= victim.terminating.is_report_due(now, fate, is_enough);
            let is_over = victim.is_reported && fate == VictimState::Released;
            if is_over {
                held += usage.unwrap_or(0);
            }
            !is_over
        });
        self.pace.release_victims(held);
    }

    /// Computes the time until the next look like `MemoryMonitor::sample_interval`, in nanoseconds.
    fn wait(&self, world: &World<'_>) -> u64 {
        let fastest = world.incident.fastest;
        let state = match (self.under_pressure, self.dying()) {
            (false, _) => ScopeState::Calm,
            (true, 0) => ScopeState::Idle,
            (true, _) => ScopeState::Busy,
        };
        let notification = match world.incident.has_program {
            false => Notification::Late,
            true if self.is_near(world) => Notification::AtCrossing,
            true => Notification::OnceNear,
        };
        let room = self.sample.shortage.headroom.immediate;
        let wait: Duration =
            sampling::sample_interval_at(state, notification, self.distance(), room, fastest);
        u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The simulated node's pods in one round of evictions.
struct SimulatedPods<'r, 'a> {
    evictd: &'r mut Evictd,
    world: &'r mut World<'a>,
    course: &'r mut Course<'a>,
    round: &'r Round,
    candidates: Vec<Candidate>,
}

impl SimulatedPods<'_, '_> {
    /// What the limiter says of a pod.
    fn state_of(&self, pod: usize, kind: EvictionKind, resort: LastResort) -> CandidateState {
        let Evictd {
            limiter,
            in_flight,
            pods,
            ..
        } = &*self.evictd;
        let is_victim = in_flight.iter().any(|victim| victim.pod == pod);
        limiter.state_of(&pods[pod], self.world.now, kind, resort, is_victim)
    }
}

impl Pods for SimulatedPods<'_, '_> {
    fn candidates(&mut self) -> Candidates<'_, impl Fn(usize) -> Option<MemoryReading>> {
        let world = &*self.world;
        Candidates {
            candidates: &mut self.candidates,
            history: &self.evictd.history,
            read: |pod: usize| world.reading(pod),
        }
    }

    fn rules(&self) -> SelectionCriteria {
        self.world.rules()
    }

    fn load(&mut self, kind: EvictionKind, resort: LastResort) {
        self.candidates = self.world.candidates(|_| false);
        for pod in 0..self.candidates.len() {
            let state = self.state_of(pod, kind, resort);
            let candidate = &mut self.candidates[pod];
            if state != CandidateState::Eligible {
                candidate.state = state;
            }
        }
        self.evictd.note_usages(self.world);
    }

    fn rate(&self) -> NodeRate {
        self.evictd.limiter.node_rate(self.world.now)
    }

    fn has_evicted_lately(&self) -> bool {
        self.evictd.pace.has_evicted_lately(self.world.now)
    }

    fn watch_growers(&mut self) {
        self.evictd.watch_growers(self.world, WATCHED);
    }

    fn jump(&self) -> u64 {
        counter_jump(0, 0)
    }

    fn growers(&self, shortest: u64) -> [Grower; WATCHED] {
        let (growers, now) = (&self.evictd.growers, self.world.now);
        let growth = |pod: usize| growers.growth_of(pod as u64 + 1, pod, now, shortest);
        let known = (0..self.candidates.len()).filter_map(growth);
        let mut growing = [Grower::NONE; WATCHED];
        growing
            .iter_mut()
            .zip(known)
            .for_each(|(to, from)| *to = from);
        growing
    }

    fn last_resort(&self) -> LastResort {
        self.evictd.limiter.last_resort()
    }

    fn denied(&self) -> usize {
        let is_denied = |pod: &usize| {
            let state = self.state_of(*pod, EvictionKind::Urgent, LastResort::None);
            !self.evictd.pods[*pod].is_protected && state == CandidateState::Denied
        };
        (0..self.candidates.len()).filter(is_denied).count()
    }

    fn terminating_in_time(&self) -> usize {
        let victims = self.evictd.in_flight.iter();
        let in_time = victims.filter(|v| v.terminating.is_in_time(self.world.now));
        in_time.count()
    }

    fn evict(&mut self, pod: usize, choice: Choice) -> Attempt {
        // The pod before may have used up what the rate had left.
        let state = self.state_of(pod, choice.kind, choice.resort);
        if state != CandidateState::Eligible || !self.world.populated(pod) {
            return Attempt::Nothing;
        }
        let (world, evictd) = (&mut *self.world, &mut *self.evictd);
        let (now, working_set) = (world.now, self.candidates[pod].usage);
        let (held, shared) = (world.held(pod), world.shared(pod));
        let (why, numbers) = reason(self.round);
        self.course.kill(world, pod, why, &numbers);
        evictd.limiter.charge(choice.kind, &evictd.pods[pod], now);
        evictd.journal.push(Eviction {
            pod,
            at: now,
            is_stuck: false,
        });
        let expected = working_set.min(held);
        let terminating = Terminating::new(now, expected, shared);
        let mut gives = Pending::default();
        terminating.add_to(&mut gives, now, Some(expected));
        evictd.in_flight.push(Victim {
            pod,
            terminating,
            is_reported: false,
        });
        let usage = world.usage(pod).unwrap_or(0);
        let is_met = evictd.sample.shortage.is_met_by_kubelet(false);
        evictd.pace.note_own_eviction(is_met);
        let still_since = evictd.history.still_since(pod, usage);
        let still = still_since.map(|since| (held, since));
        evictd.pace.evicted_holding(now, still);
        Attempt::Signalled(gives)
    }
}

/// Why a pod goes, and with which numbers.
fn reason(round: &Round) -> (&'static str, String) {
    match round.urgency {
        Urgency::Urgent {
            exhausted_in,
            growth,
        } => {
            let numbers = format!(
                " (nothing left in {:.4} s at {} MiB/s, {} MiB pending)",
                exhausted_in as f64 / 1e9,
                growth >> 20,
                round.pace_inputs.pending.amount >> 20
            );
            ("urgent", numbers)
        }
        Urgency::Paced { only_cache: true } => ("paced, page cache", String::new()),
        Urgency::Paced { only_cache: false } => ("paced", String::new()),
    }
}

impl<'a> Strategy<'a> for Evictd {
    fn next_look(&self) -> u64 {
        self.next
    }

    fn trigger(&self) -> Option<f64> {
        self.trigger
    }

    fn tripped(&mut self, world: &World<'a>) {
        self.next = self.next.min(world.now + world.incident.wake);
    }

    fn look(&mut self, world: &mut World<'a>, course: &mut Course<'a>) {
        if self.restart.is_some_and(|restart| restart <= world.now) {
            *self = self.restarted(world);
        }
        self.apply_limits(world.limits());
        self.look_at_scope(world);
        let thresholds = accounting(world).thresholds;
        let (available, resolves) = (
            self.sample.guarded_available,
            self.pace.is_resolving(world.now),
        );
        self.under_pressure = thresholds.is_pressing(available, self.under_pressure, resolves);
        self.resolve_pressure(world, course);
        self.finish(world);
        match self.under_pressure && self.dying() > 0 {
            true => self.read_pods_while_dying(world),
            false => self.read_pods_when_due(world),
        }
        self.next = world.now + self.wait(world);
        // Other thresholds wake it as well.
        let changes = world.incident.limits.iter().map(|limit| limit.0);
        let change = changes.filter(|at| *at > world.now).min();
        let restart = self.restart.map(|at| at.max(world.now + 1));
        for at in [change, restart].into_iter().flatten() {
            self.next = self.next.min(at);
        }
        // As `WatchedScope::arm`; what the machine lacks besides is counted as used.
        let lacking = self.sample.usage - self.sample.usage.min(world.read().usage);
        let limit =
            accounting(world).usage_limit(thresholds.threshold, self.sample.reclaimable_cache);
        let limit = limit.saturating_sub(lacking + 1);
        self.trigger = (world.incident.has_program && !self.under_pressure).then_some(limit as f64);
    }
}
