//! Relieves pressure: asks which pods have to be evicted, and kills them.

use std::sync::Arc;

use evictd_engine::{
    CandidateState, Observation, Observations, Resource, SelectionCriteria,
    growers::{Grower, WATCHED},
    growth::Headroom,
    limiter::{EvictionKind, ShadowChooser},
    model::{settings::MemoryHook, usage::MemoryReading},
    pace::{Decision, KERNEL_KILL_NS, PaceInputs, PaceProfile, Urgency},
    pending::Pending,
    permit::{LastResort, NodeRate},
    record::{KillOutcome, Stages},
    round::{self, Attempt, Candidates, Choice, Outcome, Pods, Round},
    shortage::Shortage,
    terminating::{Terminating, VictimReading},
    units::{SECOND, signed},
};
use evictd_node::{memory_scope::Scope, pods::table::PodEntry};
use evictd_sys::{clock::monotonic_ns, fs::errno};

use crate::{
    BlockedBy, EvictionReport, FastPathEvent,
    in_flight::{Eviction, Victim},
    monitor::MemoryMonitor,
    scope::{Crossing, DyingAround, WatchedScope},
};

/// All pods were read, and together they cannot end a shortage: they are read again so much later, in nanoseconds.
const IN_VAIN_NS: u64 = SECOND;

/// Why a pod goes, as far as its report tells.
#[derive(Clone, Copy)]
struct KillContext {
    urgency: Urgency,
    pace_inputs: PaceInputs,
    choice: Choice,
    /// Time at which the kernel killed from the pod by itself, in nanoseconds of CLOCK_MONOTONIC; `None` if it has not.
    killed: Option<u64>,
}

/// Memory that a victim holds.
#[derive(Default)]
struct VictimUsage {
    /// `None` if unknown.
    reading: Option<MemoryReading>,
    /// Time since which the victim has held as much, while others grew; in nanoseconds of CLOCK_MONOTONIC.
    still_since: Option<u64>,
}

/// A pod that was signalled, or would have been in live mode.
struct Kill {
    pod: Arc<PodEntry>,
    number: u64,
    /// Time of the decision, in nanoseconds of CLOCK_MONOTONIC, like `signalled`.
    decided: u64,
    signalled: u64,
    outcome: KillOutcome,
    /// Working set of the pod when the eviction was decided, in bytes.
    working_set: u64,
    held: VictimUsage,
}

impl Kill {
    /// The bytes that it gives back to a scope: page cache the kernel could reclaim anyway. Where SIGKILL was refused that
    /// is nothing: the pod is left alone.
    fn expected_by(&self, scope: &Scope) -> u64 {
        let reading = self.held.reading.map(|r| r.of_scope(scope.is_limited()));
        self.expected_of(reading)
    }

    fn expected_of(&self, reading: Option<MemoryReading>) -> u64 {
        match self.outcome {
            KillOutcome::Refused(_) => 0,
            KillOutcome::Killed | KillOutcome::Shadow => {
                let held = reading.map_or(u64::MAX, |reading| reading.unreclaimable());
                held.min(self.working_set)
            }
        }
    }

    /// Its state from here on. Where the kernel has killed from it what was left was signalled a moment ago.
    fn terminating(&self, now: u64, by_kernel: bool) -> Terminating {
        let shmem = self.shmem();
        let all = self.expected_of(self.held.reading);
        if !by_kernel {
            return Terminating::new(self.signalled, all, shmem);
        }
        let left = VictimReading {
            populated: !self.pod.killer.is_empty(),
            usage: Some(all),
        };
        Terminating::restore(self.signalled, now, left, shmem, false)
    }

    /// Bytes of shared memory, which outlives its processes.
    fn shmem(&self) -> u64 {
        self.held.reading.map_or(0, |reading| reading.shmem)
    }
}

impl MemoryMonitor {
    /// Decides for one scope and evicts what is due. Returns whether no victim is terminating, so that the scope may
    /// wait for its recovery trigger. `dying` is what victims held around the reading of the scope.
    pub(crate) fn resolve_pressure(&mut self, index: usize, now: u64, dying: DyingAround) -> bool {
        let Some(watched) = self.scopes.get_mut(index) else {
            return true;
        };
        let memory = self.in_flight.memory(&watched.scope, now);
        let seen = watched.shortage(memory.shadow, memory.dying, dying);
        watched.pace.observe(now, &seen);
        let mut pace_inputs = PaceInputs {
            now,
            pace: watched.pace,
            shortage: seen,
            pending: memory.pending,
            profile: PaceProfile::for_threshold(watched.scope.signal(), true),
        };
        let mut decision = pace_inputs.decide();
        if decision.is_urgent() {
            // Read only then: free pages that `MemAvailable` does not count, and growth that limits of the pods' own
            // end.
            let uncounted = watched.scope.uncounted_pcp_free();
            pace_inputs.shortage.count_pcp_free(uncounted);
            pace_inputs.shortage.limited_growth =
                self.pods.limited_growth(watched, &self.in_flight, now);
            decision = pace_inputs.decide();
        }
        let Decision::Evict { urgency } = decision else {
            return self.in_flight.terminating_count() == 0;
        };
        let is_in_vain = !urgency.is_urgent() && now < watched.in_vain_until;
        if !urgency.is_urgent() && !self.limiter.allows_paced(now) {
            self.report_no_candidates(index, Outcome::NoCandidates);
            return self.in_flight.terminating_count() == 0;
        }
        let most = round::most(self.mode, self.dying(now), self.in_flight.free_slots());
        if most > 0 && !is_in_vain {
            let round = Round {
                urgency,
                pace_inputs,
                most,
            };
            let outcome = round.run(&mut ScopePods {
                monitor: self,
                index,
                round: &round,
            });
            if outcome == Outcome::InVain
                && let Some(watched) = self.scopes.get_mut(index)
            {
                watched.in_vain_until = now.saturating_add(IN_VAIN_NS);
            }
            if outcome != Outcome::Done {
                self.report_no_candidates(index, outcome);
            }
        }
        self.in_flight.terminating_count() == 0
    }

    /// Reads upper bounds of what all pods use, and which of them may be evicted.
    pub(crate) fn load_candidates(&mut self, kind: EvictionKind, resort: LastResort) {
        let (limiter, in_flight) = (&self.limiter, &self.in_flight);
        let growth = self.fastest_growth;
        self.pods.load(growth, limiter, in_flight, kind, resort);
    }

    /// Pods that would be candidates but for policies and limits.
    fn denied(&self) -> usize {
        self.pods.denied(&self.limiter, &self.in_flight)
    }

    /// How many pods have processes that are ending.
    fn dying(&self, now: u64) -> usize {
        self.in_flight.terminating_count() + self.pods.being_killed(now, &self.in_flight)
    }

    /// The rules of every choice.
    pub(crate) fn rules(&self) -> SelectionCriteria {
        SelectionCriteria {
            strategy: self.strategy,
            resource: Resource::Memory,
            system_over_reserved: self.system_over_reserved(),
        }
    }

    /// Whether the node's own daemons use more than was kept back for them; without the pods' cgroup that is not known.
    fn system_over_reserved(&self) -> bool {
        let mut observations = Observations::default();
        for watched in self.scopes.iter().filter(|watched| !watched.gone) {
            let seen = Observation {
                available: signed(watched.sample.shortage.available),
                capacity: signed(watched.scope.capacity()),
                time: None,
            };
            observations.set(watched.scope.signal(), seen);
        }
        observations.system_over_reserved()
    }

    /// Takes note of pods from which the kernel has killed by itself: what is left of them is killed, and they are
    /// evicted pods like others.
    pub(crate) fn take_kernel_kills(&mut self, now: u64) {
        while let Some(kill) = self.triggers.set.next_kernel_kill() {
            let mut entries = self.pods.table.entries.iter();
            let position = entries.position(|e| e.memory.id() == kill.cgroup_id);
            let entry = position.and_then(|position| self.pods.table.entries.get(position));
            let ago = now.saturating_sub(kill.time);
            let signalled = |entry: &Arc<PodEntry>| {
                let is_managers = entry.eviction_state.is_being_killed(now);
                let in_flight = self.in_flight.signalled(entry);
                in_flight.or_else(|| is_managers.then_some(now))
            };
            if let Some(signalled) = entry.and_then(signalled) {
                // An earlier agent's victim may have run again before the pinned guard killed from it.
                if kill.time.saturating_sub(signalled) > KERNEL_KILL_NS {
                    let pod = entry.map(Arc::clone);
                    self.events.send(FastPathEvent::KernelKill(pod, ago));
                }
                continue;
            }
            // The pinned guard of an earlier agent may have killed for a scope that this one does not watch: the node's counts
            // every pod.
            let index = match kill.scope < self.scopes.len() {
                true => kill.scope,
                false => 0,
            };
            let (Some(position), Some(watched)) = (position, self.scopes.get(index)) else {
                self.events.send(FastPathEvent::KernelKill(None, ago));
                continue;
            };
            if ago > KERNEL_KILL_NS || self.in_flight.free_slots() == 0 {
                let pod = entry.map(Arc::clone);
                self.events.send(FastPathEvent::KernelKill(pod, ago));
                continue;
            }
            // The sample is of a later time, when the victim may have given its memory back.
            let threshold = watched.scope.thresholds().threshold;
            let left = threshold.saturating_sub(kill.missing);
            let shortage = Shortage {
                available: left,
                threshold,
                headroom: Headroom {
                    immediate: left,
                    ..Headroom::default()
                },
                ..Shortage::default()
            };
            let pace_inputs = PaceInputs {
                now: kill.time,
                pace: watched.pace,
                shortage,
                pending: Pending::default(),
                profile: PaceProfile::for_threshold(watched.scope.signal(), true),
            };
            // The candidates of a new table are not read yet.
            if let Some(candidate) = self.pods.table.candidates.get_mut(position)
                && let Some(reading) = entry.and_then(|entry| entry.memory.read().ok())
            {
                candidate.usage = reading.working_set();
            }
            let urgency = Urgency::Urgent {
                exhausted_in: 0,
                growth: 0,
            };
            let why = KillContext {
                urgency,
                pace_inputs,
                choice: Choice::default(),
                killed: Some(kill.time),
            };
            self.kill(index, position, why);
        }
    }

    /// Signals one pod; `None`: it had ended, or may not go any more.
    fn kill(&mut self, index: usize, victim: usize, why: KillContext) -> Option<Attempt> {
        // No pod is signalled that could not be tracked.
        if self.in_flight.free_slots() == 0 {
            return None;
        }
        let pod = Arc::clone(self.pods.table.entries.get(victim)?);
        let watched = self.scopes.get(index)?;
        let working_set = self.pods.table.candidates.get(victim)?.usage;
        let decided = why.killed.unwrap_or_else(monotonic_ns);
        let limiter = &self.limiter;
        // Several are chosen at once: the one before may have used up what this one's limits had left.
        let Choice { kind, resort, .. } = why.choice;
        let state = || limiter.state_of(&*pod, decided, kind, resort, false);
        if why.killed.is_none() && state() != CandidateState::Eligible {
            return None;
        }
        let outcome = self.signal(&pod, kind, decided, why.killed.is_some())?;
        let signalled = why.killed.unwrap_or_else(monotonic_ns);
        self.evictions += 1;
        let kill = Kill {
            number: self.evictions,
            decided,
            signalled,
            outcome,
            working_set,
            // Read when the signal is on its way.
            held: self.measure(victim, &pod),
            pod,
        };
        let report = self.report(watched, why, &kill);
        let (expected, usage) = (report.expected, report.usage_at_decision);
        self.events.send(FastPathEvent::Evicted(report));
        if outcome.refusal().is_some() {
            if let Some(watched) = self.scopes.get_mut(index)
                && !why.urgency.is_urgent()
            {
                watched.pace.note_refusal(signalled);
            }
            return Some(Attempt::Refused);
        }
        let now = monotonic_ns();
        let terminating = kill.terminating(now, why.killed.is_some());
        let mut gives = Pending::default();
        terminating.add_to(&mut gives, now, Some(expected));
        self.in_flight.push(Victim::new(
            Arc::clone(&kill.pod),
            Eviction {
                number: kill.number,
                scope: index,
                shadow: self.shadow,
            },
            terminating,
            usage,
        ));
        self.note_in_paces(index, &kill, why.killed.is_some());
        Some(Attempt::Signalled(gives))
    }

    fn report(&self, watched: &WatchedScope, why: KillContext, kill: &Kill) -> EvictionReport {
        let expected = kill.expected_by(&watched.scope);
        let crossing = match why.killed {
            // The agent did not run: what it has seen cross is of another pressure.
            Some(_) if watched.crossing.is_older_than(kill.signalled) => Crossing::default(),
            _ => watched.crossing,
        };
        let (sample, capacity) = (&watched.sample, watched.scope.capacity());
        let (usage, available, kubelet_available) = match why.killed {
            Some(_) => {
                let left = why.pace_inputs.shortage.available;
                (capacity.saturating_sub(left), left, None)
            }
            None => (
                sample.usage,
                sample.guarded_available,
                Some(sample.kubelet_available),
            ),
        };
        EvictionReport {
            number: kill.number,
            signal: watched.scope.signal(),
            stages: Stages {
                crossed: crossing.crossed,
                // The kernel's kill came before the agent.
                woken: crossing.woken.min(kill.decided),
                decided: kill.decided,
                signalled: kill.signalled,
            },
            hook: crossing.hook.unwrap_or(MemoryHook::Sampler),
            usage_at_crossing: crossing.usage,
            usage_at_decision: usage,
            available,
            kubelet_available,
            capacity,
            threshold: watched.scope.thresholds().threshold,
            working_set: kill.working_set,
            urgency: why.urgency,
            pace_inputs: why.pace_inputs,
            expected,
            shmem: kill.shmem().min(expected),
            by_kernel: why.killed.is_some(),
            last_resort: why.choice.resort != LastResort::None,
            out_of_order: why.choice.out_of_order,
            outcome: kill.outcome,
            pod: Arc::clone(&kill.pod),
        }
    }

    /// A victim gives to every scope that counts it. The kernel's program kills below a threshold that no look may have seen met.
    fn note_in_paces(&mut self, chosen_for: usize, kill: &Kill, by_kernel: bool) {
        let at = kill.signalled;
        for (index, watched) in self.scopes.iter_mut().enumerate() {
            if !watched.scope.holds(&kill.pod) {
                continue;
            }
            if index == chosen_for {
                let is_met = watched.sample.shortage.is_met_by_kubelet(false);
                watched.pace.note_own_eviction(by_kernel || is_met);
            }
            let is_limited = watched.scope.is_limited();
            let reading = kill.held.reading.map(|r| r.of_scope(is_limited));
            let held = reading.map(|reading| reading.unreclaimable());
            let still = held.zip(kill.held.still_since);
            watched.pace.evicted_holding(at, still);
        }
    }

    /// Sends SIGKILL, or charges the limits alone in shadow mode. `None`: the pod was empty already, and the kernel has
    /// not killed from it.
    fn signal(
        &self,
        entry: &PodEntry,
        kind: EvictionKind,
        decided: u64,
        by_kernel: bool,
    ) -> Option<KillOutcome> {
        let limiter = &self.limiter;
        if self.shadow {
            // As live: a pod between two runs gives nothing, and the next one is chosen.
            if entry.killer.is_empty() {
                return None;
            }
            // What a limit would have held back is held back here too.
            limiter.charge_in_shadow(kind, entry, decided, ShadowChooser::FastPath);
            return Some(KillOutcome::Shadow);
        }
        let before = entry.eviction_state.evicted_at();
        // A pod of thousands of processes is not signalled at once: the manager must know of it meanwhile.
        entry.eviction_state.mark_evicted(decided);
        let killed = entry.killer.kill();
        if matches!(&killed, Ok(result) if !result.empty || by_kernel) {
            limiter.charge(kind, entry, decided);
            return Some(KillOutcome::Killed);
        }
        entry.eviction_state.restore_evicted_at(before);
        let refusal = killed.err()?;
        entry.eviction_state.mark_refused(decided);
        Some(KillOutcome::Refused(errno(&refusal)))
    }

    /// Reads what a victim holds.
    fn measure(&self, victim: usize, entry: &PodEntry) -> VictimUsage {
        let Ok(reading) = entry.memory.read() else {
            return VictimUsage::default();
        };
        let history = &self.pods.table.history;
        VictimUsage {
            reading: Some(reading),
            still_since: history.still_since(victim, reading.usage),
        }
    }

    /// Reports why no pod goes, once per pressure and again where another part of the agent holds pods back by now.
    fn report_no_candidates(&mut self, index: usize, outcome: Outcome) {
        let now = monotonic_ns();
        let mut held = BlockedBy {
            paused: self.limiter.is_paused(),
            urgent_only: !self.limiter.allows_paced(now),
            denied: 0,
            in_vain: outcome == Outcome::InVain,
        };
        let reported = self.scopes.get(index).and_then(|w| w.reported_block);
        if reported.is_some_and(|reported| reported.has_same_holder(held)) || self.dying(now) > 0 {
            return;
        }
        held.denied = self.denied();
        let Some(watched) = self.scopes.get_mut(index) else {
            return;
        };
        watched.reported_block = Some(held);
        self.events.send(FastPathEvent::NoCandidates {
            signal: watched.scope.signal(),
            available: watched.sample.guarded_available,
            threshold: watched.scope.thresholds().threshold,
            held,
        });
    }
}

/// The pods that one scope counts, for one round of evictions.
struct ScopePods<'a> {
    monitor: &'a mut MemoryMonitor,
    index: usize,
    round: &'a Round,
}

impl ScopePods<'_> {
    /// Whether their memory counts for the limit of a cgroup.
    fn are_at_limit(&self) -> bool {
        let watched = self.monitor.scopes.get(self.index);
        watched.is_some_and(|watched| watched.scope.is_limited())
    }
}

impl Pods for ScopePods<'_> {
    fn candidates(&mut self) -> Candidates<'_, impl Fn(usize) -> Option<MemoryReading>> {
        let at_limit = self.are_at_limit();
        self.monitor.pods.table.candidates(at_limit)
    }

    fn rules(&self) -> SelectionCriteria {
        self.monitor.rules()
    }

    fn load(&mut self, kind: EvictionKind, resort: LastResort) {
        self.monitor.load_candidates(kind, resort);
        let MemoryMonitor { pods, scopes, .. } = &mut *self.monitor;
        if let Some(watched) = scopes.get(self.index) {
            pods.exclude_pods_outside(&watched.scope);
        }
    }

    fn rate(&self) -> NodeRate {
        self.monitor.limiter.node_rate(monotonic_ns())
    }

    fn has_evicted_lately(&self) -> bool {
        let watched = self.monitor.scopes.get(self.index);
        watched.is_some_and(|watched| watched.pace.has_evicted_lately(monotonic_ns()))
    }

    fn watch_growers(&mut self) {
        self.monitor.pods.watch_growers(WATCHED);
    }

    fn jump(&self) -> u64 {
        self.monitor.pods.jump
    }

    fn growers(&self, shortest: u64) -> [Grower; WATCHED] {
        let at_limit = self.are_at_limit();
        self.monitor.pods.growing(shortest, at_limit)
    }

    fn last_resort(&self) -> LastResort {
        self.monitor.limiter.last_resort()
    }

    fn denied(&self) -> usize {
        self.monitor.denied()
    }

    fn terminating_in_time(&self) -> usize {
        let (now, in_flight) = (monotonic_ns(), &self.monitor.in_flight);
        in_flight.in_time_count(now) + self.monitor.pods.being_killed(now, in_flight)
    }

    fn evict(&mut self, position: usize, choice: Choice) -> Attempt {
        let why = KillContext {
            urgency: self.round.urgency,
            pace_inputs: self.round.pace_inputs,
            choice,
            killed: None,
        };
        let attempt = self.monitor.kill(self.index, position, why);
        attempt.unwrap_or(Attempt::Nothing)
    }
}
