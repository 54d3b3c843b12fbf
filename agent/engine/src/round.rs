//! One round of evictions: the pods that are evicted for one scope's memory at one look, one after the other.
//!
//! [`crate::pace`] has said that a pod may go; how many do, and which, is decided here. The fast path runs it on the
//! node's pods, the judge (`cargo xtask judge`) on those of a simulated node.

mod relief;

use crate::{
    Among, Candidate, CandidateState,
    counter_history::CounterHistory,
    growers::{Grower, Largest, MAX_GROWERS, WATCHED},
    limiter::EvictionKind,
    model::{settings::Mode, usage::MemoryReading},
    pace::{PaceInputs, PaceProfile, Urgency},
    pending::Pending,
    permit::{LastResort, NodeRate},
    round::relief::{NextVictim, Relief},
    select::{
        SelectionCriteria, UrgentGrowth, eligible_growth, goes_by_order_alone, is_eligible,
        pass_over, pass_over_all_but_growers, pass_over_in_vain, pass_over_not_growing, select,
        sum_of_eligible,
    },
    units::scaled,
};

/// Victims that may be on their way at once: at this number no other pod is signalled.
pub const MAX_IN_FLIGHT: usize = 64;
/// Bytes that the processes of a pod hold at least: less is a sandbox, or a helper beside a memory-backed volume.
const LEAST_OF_PROCESSES: u64 = 4 << 20;

/// How many pods a round evicts at most, where so many have processes that are ending and `room` more can be followed:
/// the kubelet waits for the end of each.
pub fn most(mode: Mode, dying: usize, room: usize) -> usize {
    match mode {
        Mode::Evictd => room,
        Mode::Kubelet => room.min(usize::from(dying == 0)),
    }
}

/// The candidates of a round; a position is that of a candidate.
pub struct Candidates<'a, R> {
    /// Candidates as they were loaded.
    pub candidates: &'a mut [Candidate],
    /// What their usage counters showed at earlier looks.
    pub history: &'a CounterHistory,
    /// Reads the pod at a position in full; `None`: it is gone.
    pub read: R,
}

/// The pods, as a round reads and evicts them.
pub trait Pods {
    /// The candidates.
    fn candidates(&mut self) -> Candidates<'_, impl Fn(usize) -> Option<MemoryReading>>;

    /// The rules of every choice.
    fn rules(&self) -> SelectionCriteria;

    /// Loads the candidates anew: upper bounds of what they use, and which of them may be evicted for this scope.
    fn load(&mut self, kind: EvictionKind, resort: LastResort);

    /// What the node's rate allows.
    fn rate(&self) -> NodeRate;

    /// Whether a pod was evicted for this scope since the kubelet could have looked.
    fn has_evicted_lately(&self) -> bool;

    /// Reads in full the pods whose counters have grown most.
    fn watch_growers(&mut self);

    /// See [`counter_jump`](crate::growers::counter_jump).
    fn jump(&self) -> u64;

    /// What the pods grow by of those that are read in full, over windows of at least `shortest` nanoseconds.
    fn growers(&self, shortest: u64) -> [Grower; WATCHED];

    /// Pods that the policies' last resort takes when all else has failed.
    fn last_resort(&self) -> LastResort;

    /// Number of pods that would be candidates but for policies and limits.
    fn denied(&self) -> usize;

    /// Number of pods that have processes that are ending, by a kill of either loop, without those whose memory is overdue.
    fn terminating_in_time(&self) -> usize;

    /// Evicts a pod.
    fn evict(&mut self, position: usize, choice: Choice) -> Attempt;
}

/// What came of the attempt to evict a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The pod was signalled, and this is expected of it.
    Signalled(Pending),
    /// The kernel has refused SIGKILL: the pod lives on, and is not chosen again.
    Refused,
    /// The pod had ended by itself, or may not be evicted any more.
    Nothing,
}

/// Choice of a pod: under which last resort, and whether out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Pods that the policies' last resort has allowed.
    pub resort: LastResort,
    /// Because it grows, or its processes hold memory: pods that come before it in the order were passed over.
    pub out_of_order: bool,
    /// What says which limits hold for it.
    pub kind: EvictionKind,
}

/// Outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Enough pods were evicted, or as many as may be at once.
    Done,
    /// No pod is left that may be evicted.
    NoCandidates,
    /// All pods together cannot end the shortage, and it is not urgent.
    InVain,
}

/// The decision that a round carries out.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Why pods may be evicted.
    pub urgency: Urgency,
    /// Inputs from which the urgency was decided.
    pub pace_inputs: PaceInputs,
    /// Largest number of pods that the round evicts.
    pub most: usize,
}

/// The growth that a round has to end.
#[derive(Clone, Copy, Debug)]
struct GrowthRate {
    /// Bytes per second.
    per_second: u64,
    /// See [`UrgentGrowth::steady`].
    steady: u64,
    /// The shortest window, in nanoseconds, over which it is urgent: the growth of pods is measured over as long at least.
    shortest: u64,
    /// Only the pods that make it may go ([`PaceInputs::is_for_growers`]). Counters do not tell which these are: page cache
    /// that grows is what makes it urgent.
    for_growers: bool,
}

/// The pods that make a growth.
struct KnownGrowers {
    /// What each grows by, in bytes per second, and its position; 0: none.
    growers: [(u64, usize); MAX_GROWERS],
    /// See [`UrgentGrowth::of_others`].
    of_others: u64,
}

impl Round {
    /// Evicts pods. Allocates nothing by itself.
    pub fn run(&self, pods: &mut impl Pods) -> Outcome {
        pods.load(EvictionKind::Urgent, LastResort::None);
        if !self.can_end_shortage(pods) {
            // Where no pod may go at all, that is the reason.
            return match pods.candidates().candidates.iter().any(is_eligible) {
                true => Outcome::InVain,
                false => Outcome::NoCandidates,
            };
        }
        // The pods that grow can wait for the first signal, if others may go.
        let for_growers = self.urgency.is_urgent() && self.pace_inputs.is_for_growers();
        let by_order = goes_by_order_alone(pods.has_evicted_lately(), pods.rate());
        let needs_growers = for_growers || !by_order;
        if needs_growers {
            pods.watch_growers();
        }
        let outcome = match self.urgency {
            Urgency::Urgent {
                growth: per_second,
                exhausted_in,
            } => {
                let shortest = PaceProfile::Sustained.shortest_window(exhausted_in);
                let steady = self.pace_inputs.pace.steady_growth();
                let urgent = GrowthRate {
                    per_second,
                    steady: steady.map_or(per_second, |steady| steady.min(per_second)),
                    shortest,
                    for_growers,
                };
                self.evict_urgently(pods, urgent)
            }
            Urgency::Paced { .. } => self.evict_one(pods),
        };
        if !needs_growers {
            pods.watch_growers();
        }
        outcome
    }

    /// Whether pods may go for what they have together ([`PaceInputs::can_end_shortage`]). Where it depends on that, all
    /// are read in full: their counters have page cache in them that is available already.
    fn can_end_shortage(&self, pods: &mut impl Pods) -> bool {
        let is_enough = |attainable| {
            let inputs = &self.pace_inputs;
            inputs.can_end_shortage(self.urgency, attainable)
        };
        if is_enough(0) {
            return true;
        }
        let Candidates {
            candidates, read, ..
        } = pods.candidates();
        let usage = |at| candidates.get(at).map_or(0, |c: &Candidate| c.usage);
        let mut attainable = sum_of_eligible(candidates, usage);
        for (position, candidate) in candidates.iter_mut().enumerate() {
            if !is_enough(attainable) {
                return false;
            }
            if is_eligible(candidate)
                && let Some(reading) = read(position)
            {
                let working_set = reading.working_set();
                let given = working_set.saturating_sub(reading.left_out);
                attainable = attainable.saturating_sub(candidate.usage.saturating_sub(given));
                (candidate.usage, candidate.is_exact) = (working_set, true);
            }
        }
        is_enough(attainable)
    }

    /// One pod, as the kubelet does.
    fn evict_one(&self, pods: &mut impl Pods) -> Outcome {
        while let Some(victim) = choose(pods) {
            // A refusal is the one attempt in ten seconds; one that died by itself in between is none.
            if pods.evict(victim, Choice::default()) != Attempt::Nothing {
                return Outcome::Done;
            }
        }
        Outcome::NoCandidates
    }

    /// Evicts as many pods as it takes for memory to be back before nothing is left.
    fn evict_urgently(&self, pods: &mut impl Pods, growth: GrowthRate) -> Outcome {
        let growth_of_pods = {
            let loaded = pods.candidates();
            eligible_growth(loaded.candidates, loaded.history.grew())
        };
        let mut relief = Relief::new(&self.pace_inputs, growth.per_second, growth_of_pods);
        let mut evictions = UrgentEvictions {
            growth,
            left: self.most,
            has_tried: false,
            choice: Choice::default(),
            by_order: false,
        };
        if growth.for_growers && !evictions.restrict_to_growers(pods) {
            return Outcome::Done;
        }
        while evictions.left > 0
            && let Some(next) = relief.next()
        {
            evictions.pass_over(pods, next);
            let Some(victim) = choose(pods) else {
                match evictions.widen(pods, next) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            };
            let attempt = pods.evict(victim, evictions.choice);
            if let Attempt::Signalled(gives) = attempt {
                let grew = pods.candidates().history.grew().get(victim).copied();
                relief.add(grew.unwrap_or(0), gives);
            }
            evictions.note(pods, attempt);
        }
        Outcome::Done
    }
}

/// The urgent evictions of one round: which of the loaded pods may be chosen next.
struct UrgentEvictions {
    growth: GrowthRate,
    /// Number of pods that may still be evicted.
    left: usize,
    /// Whether a pod was signalled, or the kernel has refused to.
    has_tried: bool,
    /// What the next pod is evicted under; out of order while some of the loaded pods are passed over.
    choice: Choice,
    /// Those whose processes hold memory have ended by themselves: the order alone decides.
    by_order: bool,
}

impl UrgentEvictions {
    /// Leaves only the pods that make the growth, beyond the node's rate where that is used up. Whether there is one.
    fn restrict_to_growers(&mut self, pods: &mut impl Pods) -> bool {
        if pods.rate().is_for_growers_only() {
            self.choice.kind = EvictionKind::Grower;
            pods.load(self.choice.kind, LastResort::None);
        }
        (self.choice.out_of_order, self.by_order) = (true, true);
        self.growth.pass_over_others(pods)
    }

    /// Passes over the pods that are no help as the next victim.
    fn pass_over(&mut self, pods: &mut impl Pods, next: NextVictim) {
        self.choice.out_of_order |= match next {
            NextVictim::First => self.growth.pass_over_in_vain(pods),
            NextVictim::Growing => {
                let growers = self.growth.known_growers(pods).growers;
                let loaded = pods.candidates();
                let (grew, per_second) = (loaded.history.grew(), self.growth.per_second);
                pass_over_not_growing(loaded.candidates, grew, &growers, per_second);
                true
            }
            NextVictim::WithProcesses if self.by_order => false,
            NextVictim::WithProcesses => {
                self.growth.pass_over_in_vain(pods) || pass_over_without_processes(pods)
            }
        };
    }

    /// No pod could be chosen: loads others, or ends the round.
    fn widen(&mut self, pods: &mut impl Pods, next: NextVictim) -> Option<Outcome> {
        let growers_only = self.is_for_growers_only();
        if self.choice.out_of_order && next == NextVictim::WithProcesses && !growers_only {
            self.by_order = true;
            self.restore_passed_over(pods);
            return None;
        }
        if growers_only && !self.has_tried {
            // Above the threshold no pod has to go.
            return Some(match self.growth.for_growers {
                true => Outcome::Done,
                false => Outcome::NoCandidates,
            });
        }
        if self.choice.out_of_order {
            return Some(Outcome::Done);
        }
        if pods.rate().is_for_growers_only() {
            let is_one_left = self.restrict_to_growers(pods);
            return (!is_one_left).then_some(Outcome::NoCandidates);
        }
        let resort = self.choice.resort;
        if resort >= pods.last_resort() || pods.terminating_in_time() > 0 || pods.denied() == 0 {
            return Some(Outcome::NoCandidates);
        }
        self.choice.resort = resort.next();
        pods.load(self.choice.kind, self.choice.resort);
        None
    }

    /// Takes note of what came of an attempt.
    fn note(&mut self, pods: &mut impl Pods, attempt: Attempt) {
        if attempt != Attempt::Nothing {
            (self.left, self.has_tried) = (self.left - 1, true);
        }
        let is_signalled = matches!(attempt, Attempt::Signalled(_));
        // Those that were passed over for it may go by the order.
        if !is_signalled && self.choice.out_of_order && !self.is_for_growers_only() {
            self.restore_passed_over(pods);
        }
    }

    fn is_for_growers_only(&self) -> bool {
        self.growth.for_growers || self.choice.kind == EvictionKind::Grower
    }

    fn restore_passed_over(&mut self, pods: &mut impl Pods) {
        self.choice.out_of_order = false;
        let candidates = pods.candidates().candidates.iter_mut();
        let passed_over = candidates.filter(|c| c.state == CandidateState::PassedOver);
        passed_over.for_each(|candidate| candidate.state = CandidateState::Eligible);
    }
}

impl<R: Fn(usize) -> Option<MemoryReading>> Candidates<'_, R> {
    /// The position of the candidate that comes first in the order of eviction, which is chosen ([`select`]).
    pub fn choose(self, rules: SelectionCriteria, among: Among) -> Option<usize> {
        let exact = |position| (self.read)(position).map(|reading| reading.working_set());
        select(self.candidates, rules, among, exact)
    }

    /// Reads the pod at a position in full, and takes over what it uses.
    fn read_exactly(&mut self, position: usize) -> Option<MemoryReading> {
        let candidate = self.candidates.get_mut(position)?;
        let reading = (self.read)(position)?;
        (candidate.usage, candidate.is_exact) = (reading.working_set(), true);
        Some(reading)
    }
}

/// The candidate that comes first in the order of eviction and uses something.
fn choose(pods: &mut impl Pods) -> Option<usize> {
    let rules = pods.rules();
    pods.candidates().choose(rules, Among::Using)
}

/// Passes over the pods whose processes hold next to nothing, where others hold more: their shared memory would come
/// too late as well. Whether there are any.
fn pass_over_without_processes(pods: &mut impl Pods) -> bool {
    let Candidates {
        candidates, read, ..
    } = pods.candidates();
    let of_processes = |r: MemoryReading| r.unreclaimable().saturating_sub(r.shmem);
    let holds = |position| read(position).map_or(0, of_processes) >= LEAST_OF_PROCESSES;
    let mut all = candidates.iter().enumerate();
    if !all.any(|(position, candidate)| is_eligible(candidate) && holds(position)) {
        return false;
    }
    pass_over(candidates, |position, _| !holds(position))
}

impl GrowthRate {
    /// Finds the pods that make the growth, and reads them in full.
    fn known_growers(self, pods: &mut impl Pods) -> KnownGrowers {
        let (watched, jump) = (pods.growers(self.shortest), pods.jump());
        let mut loaded = pods.candidates();
        let mut largest = Largest::<MAX_GROWERS>::default();
        for grower in &watched {
            largest.offer(grower.growth, grower.position);
        }
        let mut of_others = self.offer_by_counters(&loaded, &watched, jump, &mut largest);
        let mut growers = largest.0;
        for (growth, position) in growers.iter_mut().filter(|(growth, _)| *growth > 0) {
            let reading = loaded.read_exactly(*position);
            let is_it = |g: &Grower| g.position == *position && g.growth > 0;
            if watched.iter().any(is_it) {
                continue;
            }
            of_others = of_others.saturating_sub(*growth);
            if let Some(reading) = reading {
                // The part of a counter's growth that is page cache is not known, that of the pod's memory is.
                *growth = scaled(*growth, reading.unreclaimable(), reading.usage.max(1));
            }
        }
        KnownGrowers { growers, of_others }
    }

    /// Where the pods that are watched do not make half of the growth, offers the others by their counters, as far as all
    /// together are not more than it: then page cache would be among it. What those grow by together that may be evicted.
    fn offer_by_counters<R>(
        self,
        loaded: &Candidates<'_, R>,
        watched: &[Grower],
        jump: u64,
        largest: &mut Largest<MAX_GROWERS>,
    ) -> u64 {
        let of_watched = watched.iter().map(|grower| grower.growth);
        let of_watched = of_watched.fold(0, u64::saturating_add);
        if self.for_growers || of_watched >= self.steady / 2 {
            return 0;
        }
        let steadily = loaded.history.steadily(jump);
        let by_counter = |(position, candidate): (usize, &Candidate)| {
            let growth = steadily(position);
            let growth = match watched.iter().find(|g| g.position == position) {
                _ if candidate.state.is_over() => 0,
                Some(grower) if grower.growth > 0 => 0,
                Some(grower) => grower.steady.min(growth),
                None => growth,
            };
            (growth, position, is_eligible(candidate))
        };
        let all = loaded.candidates.iter().enumerate().map(by_counter);
        let others = all.filter(|(growth, ..)| *growth > 0);
        let (mut sum, mut count) = (of_watched, 0);
        for (growth, ..) in others.clone() {
            (sum, count) = (sum.saturating_add(growth), count + 1);
        }
        if sum > self.per_second.saturating_add(self.per_second / 2) {
            return 0;
        }
        // Each that is listed is read: not what is below half of the mean.
        let least = sum / (2 * count).max(1);
        let mut of_others = 0_u64;
        for (growth, position, _) in others.filter(|(.., is_eligible)| *is_eligible) {
            of_others = of_others.saturating_add(growth);
            if growth >= least {
                largest.offer(growth, position);
            }
        }
        of_others
    }

    /// Passes over the pods that do not make the growth, where it is theirs alone to end it, or the node's rate is used up
    /// and exempts them. Whether one is left.
    fn pass_over_others(self, pods: &mut impl Pods) -> bool {
        let mut known = self.known_growers(pods);
        let growth = known.urgent(self);
        let rules = pods.rules();
        pass_over_all_but_growers(pods.candidates().candidates, rules, growth)
    }

    /// Passes over the pods that would go in vain, unless the next one goes by the order alone ([`goes_by_order_alone`]).
    /// Whether there are any.
    fn pass_over_in_vain(self, pods: &mut impl Pods) -> bool {
        let (rules, rate) = (pods.rules(), pods.rate());
        if goes_by_order_alone(pods.has_evicted_lately(), rate) {
            return false;
        }
        let mut known = self.known_growers(pods);
        let growth = known.urgent(self);
        let Candidates {
            candidates, read, ..
        } = pods.candidates();
        let exact = |position, usage| {
            let reading = read(position);
            reading.map_or((usage, 0), |r| {
                (r.working_set(), r.unreclaimable().min(usage))
            })
        };
        pass_over_in_vain(candidates, rules, growth, rate, exact)
    }
}

impl KnownGrowers {
    fn urgent(&mut self, rate: GrowthRate) -> UrgentGrowth<'_> {
        UrgentGrowth {
            per_second: rate.per_second,
            steady: rate.steady,
            growers: &mut self.growers,
            of_others: self.of_others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        RankInputs, Resource,
        growth::Headroom,
        model::settings::RankingStrategy,
        pace::Pace,
        shortage::Shortage,
        units::{MS, SECOND},
    };

    const MIB: u64 = 1 << 20;

    /// Pods by their shared memory and what their processes hold, in MiB.
    struct Listed {
        candidates: Vec<Candidate>,
        pods: Vec<(u64, u64)>,
        /// MiB of page cache of each on the inactive list.
        cache: u64,
        /// What comes of an attempt.
        attempt: Attempt,
        /// Only the pod at this position cannot be evicted.
        unkillable: Option<(usize, Attempt)>,
        rate: NodeRate,
        has_evicted_lately: bool,
        /// Whether the growers are known without being read for it.
        are_growers_known: bool,
        /// So many at the end go as a last resort only.
        spared: usize,
        dying: usize,
        /// So many at the end were asked to go, which the node's rate counts already.
        requested: usize,
        /// Those that grow, in MiB per second, and their positions.
        growers: Vec<(u64, usize)>,
        history: CounterHistory,
        chosen: Vec<usize>,
        resorts: Vec<LastResort>,
    }

    impl Listed {
        fn new(pods: &[(u64, u64)]) -> Self {
            let candidate = |(shared, processes): &(u64, u64)| Candidate {
                inputs: RankInputs::default(),
                usage: (shared + processes) * MIB,
                is_exact: true,
                state: CandidateState::Eligible,
            };
            Self {
                candidates: pods.iter().map(candidate).collect(),
                pods: pods.to_vec(),
                cache: 0,
                attempt: Attempt::Signalled(Pending::default()),
                unkillable: None,
                rate: NodeRate::default(),
                has_evicted_lately: true,
                are_growers_known: true,
                spared: 0,
                dying: 0,
                requested: 0,
                growers: Vec::new(),
                history: CounterHistory::default(),
                chosen: Vec::new(),
                resorts: Vec::new(),
            }
        }
    }

    impl Pods for Listed {
        fn candidates(&mut self) -> Candidates<'_, impl Fn(usize) -> Option<MemoryReading>> {
            let (pods, cache) = (&self.pods, self.cache * MIB);
            Candidates {
                candidates: &mut self.candidates,
                history: &self.history,
                read: move |position: usize| {
                    let (shared, processes) = pods[position];
                    Some(MemoryReading {
                        usage: (shared + processes) * MIB + cache,
                        inactive_file: cache,
                        shmem: shared * MIB,
                        ..MemoryReading::default()
                    })
                },
            }
        }

        fn rules(&self) -> SelectionCriteria {
            SelectionCriteria {
                strategy: RankingStrategy::Kubelet,
                resource: Resource::Memory,
                system_over_reserved: false,
            }
        }

        fn load(&mut self, kind: EvictionKind, resort: LastResort) {
            let spared = match resort {
                LastResort::None => self.spared,
                LastResort::Conditional | LastResort::Any => 0,
            };
            let is_used_up = self.rate.left == 0 && kind != EvictionKind::Grower;
            for (nth, candidate) in self.candidates.iter_mut().rev().enumerate() {
                let is_held_back = is_used_up && nth >= self.requested;
                candidate.state = match nth < spared || is_held_back {
                    true => CandidateState::Denied,
                    false => CandidateState::Eligible,
                };
            }
        }

        fn rate(&self) -> NodeRate {
            self.rate
        }

        fn has_evicted_lately(&self) -> bool {
            self.has_evicted_lately
        }

        fn watch_growers(&mut self) {
            self.are_growers_known = true;
        }

        fn jump(&self) -> u64 {
            0
        }

        fn growers(&self, _: u64) -> [Grower; WATCHED] {
            let mut growers = [Grower::NONE; WATCHED];
            let known = self.growers.iter().filter(|_| self.are_growers_known);
            for (at, (mib, position)) in growers.iter_mut().zip(known) {
                *at = Grower {
                    position: *position,
                    growth: mib * MIB,
                    steady: mib * MIB,
                };
            }
            growers
        }

        fn last_resort(&self) -> LastResort {
            LastResort::Any
        }

        fn denied(&self) -> usize {
            let candidates = self.candidates.iter();
            let is_denied = |c: &&Candidate| c.state == CandidateState::Denied;
            candidates.filter(is_denied).count()
        }

        fn terminating_in_time(&self) -> usize {
            self.dying
        }

        fn evict(&mut self, position: usize, choice: Choice) -> Attempt {
            self.chosen.push(position);
            self.resorts.push(choice.resort);
            let unkillable = self.unkillable.filter(|(at, _)| *at == position);
            unkillable.map_or(self.attempt, |(_, attempt)| attempt)
        }
    }

    /// A victim's shared memory is enough, and the room is used up four seconds before it comes.
    fn too_late() -> Round {
        let growth = 60 * MIB;
        let mut pending = Pending::default();
        pending.add(1000 * MIB, 5 * SECOND);
        Round {
            urgency: Urgency::Urgent {
                exhausted_in: SECOND,
                growth,
            },
            pace_inputs: PaceInputs {
                shortage: Shortage {
                    headroom: Headroom {
                        immediate: growth,
                        ..Headroom::default()
                    },
                    used: 1000 * MIB,
                    ..Shortage::default()
                },
                pending,
                ..PaceInputs::default()
            },
            most: 1,
        }
    }

    // R43
    #[test]
    fn where_shared_memory_comes_too_late_a_pod_goes_whose_processes_hold_memory() {
        // The first in the order is the one that uses most.
        let cases = [
            (&[(900, 0), (10, 40), (800, 1)][..], 1),
            (&[(10, 40), (900, 300), (10, 50)], 1),
            (&[(100, 0), (900, 1), (800, 2)], 1),
        ];
        for (pods, expected) in cases {
            let mut listed = Listed::new(pods);
            assert_eq!(too_late().run(&mut listed), Outcome::Done);
            assert_eq!(listed.chosen, [expected], "{pods:?}");
        }
    }

    // R38
    #[test]
    fn beyond_the_nodes_rate_the_growers_go_and_no_other_pod() {
        for (growers, requested, expected, outcome) in [
            (vec![(1000, 1)], 0, vec![1], Outcome::Done),
            (vec![(10, 1)], 0, vec![], Outcome::NoCandidates),
            (vec![], 0, vec![], Outcome::NoCandidates),
            (vec![(1000, 1)], 1, vec![2], Outcome::Done),
            // A buffer of a pod that comes later in the order.
            (vec![(4000, 2), (1000, 1)], 0, vec![1], Outcome::Done),
        ] {
            let mut listed = Listed {
                rate: NodeRate {
                    left: 0,
                    exempts_growers: true,
                },
                growers,
                requested,
                ..Listed::new(&[(0, 900), (0, 300), (0, 200)])
            };
            let round = Round {
                urgency: Urgency::Urgent {
                    exhausted_in: 0,
                    growth: 1000 * MIB,
                },
                most: 3,
                ..too_late()
            };
            assert_eq!(round.run(&mut listed), outcome);
            assert_eq!(listed.chosen, expected);
        }
    }

    /// Of many pods that grow alike those that are read in full do not make half: the counters of the others tell, unless page cache
    /// is among what they show.
    // R38
    #[test]
    fn many_pods_that_grow_alike_are_known_by_their_counters() {
        let mut pods = vec![(0, 6); 3];
        pods.resize(23, (0, 20));
        for (by_counter, cache_is_read, expected) in
            [(50, false, 3), (100, false, 0), (50, true, 3)]
        {
            let mut steadily = vec![0; 3];
            steadily.resize(23, by_counter * MIB);
            if cache_is_read {
                steadily[0] = 1000 * MIB;
            }
            let mut listed = Listed {
                history: grown_by(&steadily),
                // Two of them are read, and a pod in front of them whose counter shows page cache.
                growers: vec![(50, 3), (50, 4)],
                ..Listed::new(&pods)
            };
            if cache_is_read {
                listed.growers.push((0, 0));
            }
            for candidate in &mut listed.candidates[3..] {
                candidate.inputs.priority = 100;
            }
            urgent_growth(1).run(&mut listed);
            assert_eq!(listed.chosen, [expected], "{by_counter} {cache_is_read}");
        }
    }

    /// As many as a large node has, of which no 64 make half; and some of which have been chosen in shadow mode, and grow on.
    #[test]
    fn half_of_a_growth_may_be_that_of_a_hundred_pods() {
        for terminating in [0, 100] {
            let mut pods = vec![(0, 6); 3];
            pods.resize(163 + terminating, (0, 20));
            let mut steadily = vec![0; 3];
            steadily.resize(pods.len(), 6 * MIB);
            let mut listed = Listed {
                history: grown_by(&steadily),
                ..Listed::new(&pods)
            };
            for candidate in &mut listed.candidates[3..] {
                candidate.inputs.priority = 100;
            }
            for candidate in &mut listed.candidates[163..] {
                candidate.state = CandidateState::Terminating;
            }
            let growth = urgent_growth_of(960 * MIB);
            assert!(growth.pass_over_others(&mut listed));
            let goes = |at: usize| listed.candidates[at].state == CandidateState::Eligible;
            assert!(!goes(0) && goes(3));
        }
    }

    /// Pods of a low priority that can carry a growth go before those that make it, be these few or many.
    #[test]
    fn pods_of_a_low_priority_carry_the_growth_of_many() {
        for (exempts_growers, growers) in [(true, 3), (true, 8), (false, 3), (false, 8)] {
            let mut pods = vec![(0, 1500); 8];
            pods.resize(16, (0, 2000));
            let mut listed = Listed {
                rate: NodeRate {
                    left: 9,
                    exempts_growers,
                },
                growers: (8..8 + growers)
                    .map(|at| (480 / growers as u64, at))
                    .collect(),
                ..Listed::new(&pods)
            };
            for candidate in &mut listed.candidates[8..] {
                candidate.inputs.priority = 1000;
            }
            let growth = urgent_growth_of(480 * MIB);
            assert!(!growth.pass_over_in_vain(&mut listed), "{growers}");
        }
    }

    /// Counters that have grown by so much within a second.
    fn grown_by(steadily: &[u64]) -> CounterHistory {
        let mut history = CounterHistory::new(steadily.len());
        history.note(SECOND, steadily.iter().map(|_| 0));
        history.note(2 * SECOND, steadily.iter().copied());
        history
    }

    fn urgent_growth_of(per_second: u64) -> GrowthRate {
        GrowthRate {
            per_second,
            steady: per_second,
            shortest: 0,
            for_growers: false,
        }
    }

    /// The kubelet asks for no pod: the first one in the order does not go for the growth of another one.
    // R40
    #[test]
    fn where_page_cache_is_to_be_written_the_growers_go_and_no_other_pod() {
        for (growers, expected) in [(vec![(1000, 1)], vec![1]), (vec![], vec![])] {
            let mut listed = Listed {
                growers,
                ..Listed::new(&[(0, 900), (0, 300), (0, 200)])
            };
            let mut round = too_late();
            round.most = 3;
            let shortage = &mut round.pace_inputs.shortage;
            (shortage.guard_amount, shortage.dirty_or_writeback) = (100 * MIB, 60 * MIB);
            assert_eq!(round.run(&mut listed), Outcome::Done);
            assert_eq!(listed.chosen, expected);
        }
    }

    #[test]
    fn pods_that_have_ended_by_themselves_end_the_round() {
        for pods in [&[(9, 0), (8, 0)][..], &[(900, 0), (10, 40), (10, 30)]] {
            let mut listed = Listed {
                attempt: Attempt::Nothing,
                ..Listed::new(pods)
            };
            assert_eq!(too_late().run(&mut listed), Outcome::NoCandidates);
            listed.chosen.sort_unstable();
            assert_eq!(listed.chosen, Vec::from_iter(0..pods.len()), "each once");
        }
    }

    // R43
    #[test]
    fn a_refusal_is_an_attempt() {
        for (urgency, most, attempts) in [
            (Urgency::Paced { only_cache: false }, MAX_IN_FLIGHT, 1),
            (too_late().urgency, 2, 2),
        ] {
            let mut listed = Listed {
                attempt: Attempt::Refused,
                ..Listed::new(&[(900, 0), (10, 40), (10, 30)])
            };
            let round = Round {
                urgency,
                most,
                ..too_late()
            };
            assert_eq!(round.run(&mut listed), Outcome::Done);
            assert_eq!(listed.chosen.len(), attempts);
        }
    }

    /// Three pods before a grower of a higher priority, and one of a still higher one behind it.
    fn around_a_grower() -> Listed {
        let mut listed = Listed {
            growers: vec![(1000, 3)],
            ..Listed::new(&[(0, 10), (0, 9), (0, 8), (0, 500), (0, 400)])
        };
        listed.candidates[3].inputs.priority = 100;
        listed.candidates[4].inputs.priority = 1000;
        listed
    }

    fn urgent_growth(most: usize) -> Round {
        Round {
            urgency: Urgency::Urgent {
                exhausted_in: 0,
                growth: 1000 * MIB,
            },
            most,
            ..too_late()
        }
    }

    /// Those that were passed over for it go then, and not a pod that comes after it in the order.
    #[test]
    fn where_the_grower_cannot_be_evicted_the_order_decides() {
        for attempt in [Attempt::Refused, Attempt::Nothing] {
            let mut listed = Listed {
                unkillable: Some((3, attempt)),
                ..around_a_grower()
            };
            urgent_growth(2).run(&mut listed);
            assert_eq!(listed.chosen[..2], [3, 0], "{attempt:?}");
        }
    }

    /// In some milliseconds all grow by ten times as much as in the time over which the pods' own growth is known.
    #[test]
    fn a_burst_is_of_the_pods_that_grow_steadily() {
        for (burst, expected) in [(true, vec![3]), (false, vec![0])] {
            let mut listed = Listed {
                growers: vec![(150, 3)],
                ..around_a_grower()
            };
            let mut round = urgent_growth(1);
            for (at, mib) in [
                (1, 0),
                (250, 50),
                (500, 100),
                (510, if burst { 110 } else { 1000 }),
            ] {
                let seen = Shortage {
                    used: mib * MIB,
                    ..round.pace_inputs.shortage
                };
                round.pace_inputs.pace.observe(SECOND + at * MS, &seen);
            }
            round.run(&mut listed);
            assert_eq!(listed.chosen, expected);
        }
    }

    /// They are read for it, although no pod went lately.
    // R38
    #[test]
    fn the_last_eviction_of_a_rate_is_a_growers() {
        for (left, first) in [(1, 3), (2, 0)] {
            let mut listed = Listed {
                rate: NodeRate {
                    left,
                    ..NodeRate::default()
                },
                has_evicted_lately: false,
                are_growers_known: false,
                ..around_a_grower()
            };
            urgent_growth(1).run(&mut listed);
            assert_eq!(listed.chosen, [first], "{left} left");
        }
    }

    #[test]
    fn the_kubelet_evicts_one_pod_at_a_time() {
        let room = |dying| MAX_IN_FLIGHT - dying;
        assert_eq!(most(Mode::Evictd, 0, room(0)), MAX_IN_FLIGHT);
        // Some that end wait for a place still.
        assert_eq!(most(Mode::Evictd, 64, room(56)), 8);
        assert_eq!(most(Mode::Kubelet, 0, room(5)), 1);
        assert_eq!(most(Mode::Kubelet, 0, 0), 0);
        assert_eq!(most(Mode::Kubelet, 1, room(1)), 0);
    }

    /// So many MiB are missing, and one pod has gone for them: another one may go at the kubelet's pace.
    fn another_at_pace(missing: u64) -> Round {
        let mut pace = Pace::default();
        let shortage = Shortage {
            threshold: missing * MIB,
            ..Shortage::default()
        };
        pace.observe(SECOND, &shortage);
        pace.evicted(SECOND);
        Round {
            urgency: Urgency::Paced { only_cache: false },
            pace_inputs: PaceInputs {
                pace,
                shortage,
                ..PaceInputs::default()
            },
            most: 1,
        }
    }

    /// Policies deny all pods: that is why none goes, and not that they hold too little.
    #[test]
    fn pods_that_are_denied_are_not_in_vain() {
        let mut listed = Listed {
            spared: 2,
            ..Listed::new(&[(0, 100), (0, 200)])
        };
        let outcome = another_at_pace(250).run(&mut listed);
        assert_eq!(outcome, Outcome::NoCandidates);
    }

    /// The counters of two pods show 400 MiB, 100 of which are page cache that is available already.
    #[test]
    fn page_cache_of_pods_does_not_end_a_shortage() {
        let evicts = |missing: u64| {
            let mut listed = Listed {
                cache: 50,
                ..Listed::new(&[(0, 100), (0, 200)])
            };
            let counters = listed.candidates.iter_mut();
            counters.for_each(|candidate| candidate.usage += 50 * MIB);
            (another_at_pace(missing).run(&mut listed), listed.chosen)
        };
        assert_eq!(evicts(401), (Outcome::InVain, vec![]));
        assert_eq!(evicts(301), (Outcome::InVain, vec![]));
        assert_eq!(evicts(300), (Outcome::Done, vec![1]));
    }

    #[test]
    fn the_last_resort_takes_a_pod_where_none_is_dying() {
        let evicts = |spared: usize, dying: usize| {
            let mut listed = Listed::new(&[(0, 50)]);
            (listed.spared, listed.dying) = (spared, dying);
            too_late().run(&mut listed);
            listed.resorts
        };
        assert_eq!(evicts(0, 0), [LastResort::None]);
        assert_eq!(evicts(1, 0), [LastResort::Conditional]);
        assert_eq!(evicts(1, 1), [], "what dies comes back first");
    }
}
