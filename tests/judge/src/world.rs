//! The node: memory that grows by drawn lines, a kernel that reclaims and kills, and pods that take their time to die.

use std::{collections::VecDeque, ops::AddAssign};

pub use evictd_engine::units::{MS, SECOND};
use evictd_engine::{
    Among, Candidate, CandidateState, QosClass, RankInputs, Resource, SelectionCriteria,
    accounting::GUARD,
    kubelet_times::MONITORING_INTERVAL_NS,
    model::{settings::RankingStrategy, usage::MemoryReading},
    select,
};

/// No step of the simulation is longer.
const LONGEST_STEP: u64 = 20 * MS;
/// Page cache that is to be written, in bytes, with which v1 has met the OOM killer.
const LEAST_DIRTY: f64 = (128 << 20) as f64;
/// Statistics of cache that turned active are flushed this late.
const FLUSH: u64 = 2 * SECOND;
/// The growth that the judge sees is measured over each of these, in nanoseconds: 1, 1.5, 2, 3, 4, 6, ... ms, up to 12 s.
const SEEN_OVER: [u64; 28] = {
    let mut over = [MS; 28];
    let mut index = 0;
    while index < over.len() {
        over[index] = (2 + index as u64 % 2) * (MS << (index / 2)) / 2;
        index += 1;
    }
    over
};

/// An amount over time: straight between its points, level before and behind them. Times in nanoseconds, amounts in bytes.
#[derive(Clone, Debug, Default)]
pub struct Line(pub Vec<(u64, f64)>);

impl Line {
    pub fn at(&self, time: u64) -> f64 {
        let next = self.0.partition_point(|point| point.0 <= time);
        match (
            next.checked_sub(1).map(|last| self.0[last]),
            self.0.get(next),
        ) {
            (Some((t0, a0)), Some(&(t1, a1))) => {
                a0 + (a1 - a0) * (time - t0) as f64 / (t1 - t0) as f64
            }
            (Some((_, amount)), None) | (None, Some(&(_, amount))) => amount,
            (None, None) => 0.0,
        }
    }

    pub fn level(amount: f64) -> Self {
        Self(vec![(0, amount)])
    }

    pub fn raise(&mut self, amount: f64) {
        if self.0.is_empty() {
            self.0.push((0, 0.0));
        }
        self.0.iter_mut().for_each(|point| point.1 += amount);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// A cgroup of v1: reclaim leaves page cache that has to be written to the flusher.
    V1,
    V2,
    Machine,
}

#[derive(Clone, Debug, Default)]
pub struct PodSpec {
    pub inputs: RankInputs,
    /// Critical: never evicted.
    pub protected: bool,
    /// Process memory.
    pub anon: Line,
    /// Memory-backed volumes.
    pub tmpfs: Line,
    /// Page cache that was read, in all.
    pub read: Line,
    /// Page cache that was written, in all.
    pub written: Line,
    /// Page cache that was moved to the active list, in all.
    pub activated: Line,
    /// Process memory comes in huge pages.
    pub huge: bool,
    /// Bytes at which the pod's own limit ends its growth.
    pub limit: Option<u64>,
    /// From the arrival of SIGKILL until memory begins to come back.
    pub exit: u64,
    /// Bytes per second.
    pub teardown: f64,
    pub stuck: bool,
    /// From the end of its processes until its volumes and its cgroup are gone.
    pub unmount: u64,
}

#[derive(Clone, Debug)]
pub struct Incident {
    pub shape: &'static str,
    pub traits: Vec<&'static str>,
    /// Bytes.
    pub capacity: u64,
    pub scope: ScopeKind,
    /// A kernel program tells of the crossing; else the node is looked at by deadlines.
    pub has_program: bool,
    /// The fastest growth of the machine, in bytes per second.
    pub fastest: u64,
    /// From when on which threshold and minimum reclaim are in force, in bytes.
    pub limits: Vec<(u64, u64, u64)>,
    pub pods: Vec<PodSpec>,
    pub outside: Line,
    /// Memory of the machine that the kubelet's count leaves out: slab in use, page tables, network buffers.
    pub uncounted: Line,
    /// Bytes of swap.
    pub swap: f64,
    /// Rate at which page cache is written, in bytes per second.
    pub write_back: f64,
    /// Statistics are shown so late.
    pub lag: u64,
    /// Cache that turned active is shown late.
    pub late_lists: bool,
    /// From the crossing to the look.
    pub wake: u64,
    /// From the decision to the arrival of SIGKILL.
    pub signal: u64,
    pub restart: Option<u64>,
    /// The node has an eviction rate, which counts evictions of these times already: nanoseconds, before the beginning. The
    /// oldest is the first.
    pub rate: Option<Vec<i64>>,
    pub kubelet_looks: u64,
    pub ranking: RankingStrategy,
    /// Times at which lines and limits change their course, ascending.
    pub marks: Vec<u64>,
    pub end: u64,
    /// Largest amount of freed memory that the CPUs keep in their lists of free pages, in bytes: it is not in
    /// `MemAvailable`.
    pub kept: f64,
}

/// A pod as it is now. Amounts are bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PodState {
    anon: f64,
    tmpfs: f64,
    /// Nothing of it is hard.
    cache: Totals,
    dies: Option<u64>,
    /// Process memory of the pod when SIGKILL arrived.
    at_death: Option<f64>,
    exited: Option<u64>,
    removed: bool,
    /// Whether the OOM killer has chosen the pod.
    oom: bool,
}

/// Amounts of memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Cannot be given back: processes, memory-backed volumes, what is outside of pods; without what was swapped out.
    pub hard: f64,
    /// The part of it that the kubelet's count leaves out.
    pub uncounted: f64,
    /// Clean page cache on the inactive list.
    pub inactive: f64,
    /// Clean page cache on the active list.
    pub active: f64,
    /// Page cache to be written, on the inactive list.
    pub dirty: f64,
}

impl Totals {
    pub fn usage(&self) -> f64 {
        self.hard + self.inactive + self.active + self.dirty
    }

    /// What is charged.
    fn charged(&self) -> f64 {
        self.usage() - self.uncounted
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.hard += other.hard;
        self.uncounted += other.uncounted;
        self.inactive += other.inactive;
        self.active += other.active;
        self.dirty += other.dirty;
    }
}

/// Amounts that the statistics show, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// All that is charged: exact.
    pub usage: u64,
    /// `inactive_file`.
    pub inactive: u64,
    /// `active_file`.
    pub active: u64,
    pub dirty: u64,
    pub listed: u64,
    pub swap: u64,
    /// What is swapped out.
    pub swapped: u64,
}

impl Reading {
    /// Page cache on both lists.
    pub fn cache(&self) -> u64 {
        self.inactive + self.active
    }
}

#[derive(Clone)]
pub struct World<'a> {
    pub incident: &'a Incident,
    /// Nanoseconds.
    pub now: u64,
    pods: Vec<PodState>,
    pub totals: Totals,
    orphans: Totals,
    swapped: f64,
    /// Bytes that the CPUs keep in their lists of free pages.
    kept: f64,
    history: VecDeque<(u64, Totals)>,
    /// Since when the threshold is crossed by memory that cannot be given back.
    pub short_since: Option<u64>,
    /// Since when the kubelet's count meets the threshold, with statistics that are exact and up to date.
    pub met_since: Option<u64>,
    pub evicted: Option<u64>,
    pub used_up: usize,
    /// The pods that the OOM killer took then, and when.
    pub ooms: Vec<(u64, usize)>,
    /// All lines stand still since then, and memory grows by so much per second instead.
    frozen: Option<(u64, f64)>,
    mark: usize,
}

impl<'a> World<'a> {
    pub fn new(incident: &'a Incident) -> Self {
        let mut world = Self {
            incident,
            now: 0,
            pods: vec![PodState::default(); incident.pods.len()],
            totals: Totals::default(),
            orphans: Totals::default(),
            swapped: 0.0,
            kept: 0.0,
            history: VecDeque::new(),
            short_since: None,
            met_since: None,
            evicted: None,
            used_up: 0,
            ooms: Vec::new(),
            frozen: None,
            mark: 0,
        };
        for (pod, spec) in world.pods.iter_mut().zip(&incident.pods) {
            pod.cache.active = spec.activated.at(0);
            pod.cache.inactive = (spec.read.at(0) - pod.cache.active).max(0.0);
            pod.cache.dirty = spec.written.at(0);
        }
        world.settle(0);
        world
    }

    /// Threshold and resolved amount in force, in bytes.
    pub fn limits(&self) -> (u64, u64) {
        let limits = &self.incident.limits;
        let current = limits.iter().rev().find(|limit| limit.0 <= self.now);
        current.map_or((0, 0), |&(_, threshold, resolved)| (threshold, resolved))
    }

    /// Whether some processes of a pod are left.
    pub fn populated(&self, pod: usize) -> bool {
        self.pods[pod].exited.is_none()
    }

    pub fn is_signalled(&self, pod: usize) -> bool {
        self.pods[pod].dies.is_some()
    }

    /// Bytes that a pod is charged for; `None` once its cgroup is removed.
    pub fn usage(&self, pod: usize) -> Option<u64> {
        let state = &self.pods[pod];
        (!state.removed).then_some((state.anon + state.tmpfs + state.cache.usage()) as u64)
    }

    /// Amounts that a pod's files show; `None` once its cgroup is removed.
    pub fn reading(&self, pod: usize) -> Option<MemoryReading> {
        let state = &self.pods[pod];
        let held = self.held(pod);
        let [inactive, active] =
            [state.cache.inactive + state.cache.dirty, state.cache.active].map(|a| a as u64);
        (!state.removed).then(|| MemoryReading {
            usage: held + inactive + active,
            inactive_file: inactive,
            active_file: active,
            shmem: self.shared(pod),
            ..MemoryReading::default()
        })
    }

    /// Bytes of a pod that cannot be given back; 0 once its cgroup is removed.
    pub fn held(&self, pod: usize) -> u64 {
        let state = &self.pods[pod];
        (state.anon + state.tmpfs) as u64
    }

    /// Bytes of a pod that cannot be given back; `None` once its cgroup is removed.
    pub fn left(&self, pod: usize) -> Option<u64> {
        (!self.pods[pod].removed).then(|| self.held(pod))
    }

    pub fn shared(&self, pod: usize) -> u64 {
        self.pods[pod].tmpfs as u64
    }

    /// Memory-backed volumes, process memory and page cache as text.
    pub fn pod_text(&self, pod: usize) -> String {
        let state = &self.pods[pod];
        format!(
            "anon {:.0} tmpfs {:.0} cache {:.0} MiB",
            mib(state.anon),
            mib(state.tmpfs),
            mib(state.cache.usage())
        )
    }

    /// Bytes that the CPUs keep in their lists of free pages.
    pub fn kept(&self) -> u64 {
        self.kept as u64
    }

    pub fn read(&self) -> Reading {
        let behind = self.now.saturating_sub(self.incident.lag);
        let index = self.history.partition_point(|entry| entry.0 <= behind);
        self.read_as(match index.checked_sub(1) {
            Some(last) => self.history[last].1,
            None => self.totals,
        })
    }

    /// Reads the statistics as they are after a flush.
    pub fn read_flushed(&self) -> Reading {
        self.read_as(self.totals)
    }

    fn read_as(&self, shown: Totals) -> Reading {
        let (mut inactive, mut active) = (shown.inactive + shown.dirty, shown.active);
        if self.incident.late_lists {
            let since = |(pod, spec): (&PodState, &PodSpec)| match pod.dies {
                None => {
                    spec.activated.at(self.clock())
                        - spec.activated.at(self.clock().saturating_sub(FLUSH))
                }
                Some(_) => 0.0,
            };
            let moved: f64 = self.pods.iter().zip(&self.incident.pods).map(since).sum();
            let moved = moved.clamp(0.0, active);
            (inactive, active) = (inactive + moved, active - moved);
        }
        Reading {
            // What waits for the swap device is not charged yet.
            usage: (self.totals.charged() as u64).min(self.incident.capacity),
            inactive: inactive as u64,
            active: active as u64,
            dirty: shown.dirty as u64,
            listed: shown.charged() as u64,
            swap: (self.incident.swap - self.swapped).max(0.0) as u64,
            swapped: self.swapped as u64,
        }
    }

    /// The pods with upper bounds of their usage, as the fast path lays them out; pods in `taken` are on their way.
    pub fn candidates(&self, taken: impl Fn(usize) -> bool) -> Vec<Candidate> {
        let candidate = |(index, spec): (usize, &PodSpec)| {
            let usage = self.usage(index);
            let state = if spec.protected {
                CandidateState::Denied
            } else if taken(index) {
                CandidateState::Terminating
            } else if usage.is_none() {
                CandidateState::Unavailable
            } else {
                CandidateState::Eligible
            };
            Candidate {
                inputs: spec.inputs,
                usage: usage.unwrap_or(0),
                is_exact: false,
                state,
            }
        };
        self.incident
            .pods
            .iter()
            .enumerate()
            .map(candidate)
            .collect()
    }

    /// The engine's choice among these.
    pub fn choose(&self, candidates: &mut [Candidate], among: Among) -> Option<usize> {
        let exact = |pod| self.reading(pod).map(|reading| reading.working_set());
        select(candidates, self.rules(), among, exact)
    }

    /// The engine's choices among these, one after the other, until they use so many bytes together. By classes, Guaranteed pods
    /// wait until no other one is left at the first choice.
    pub fn choose_some(&self, candidates: &mut [Candidate], amount: u64) -> Vec<usize> {
        let waits = |candidate: &Candidate| {
            self.incident.ranking == RankingStrategy::Qos
                && candidate.inputs.qos == QosClass::Guaranteed
        };
        let (mut chosen, mut used) = (Vec::new(), 0_u64);
        while used < amount
            && let Some(pod) = self.choose(candidates, Among::Using)
            && (!waits(&candidates[pod]) || chosen.first().is_none_or(|at| waits(&candidates[*at])))
        {
            chosen.push(pod);
            used = used.saturating_add(candidates[pod].usage);
        }
        chosen
    }

    /// The order of eviction.
    pub fn rules(&self) -> SelectionCriteria {
        SelectionCriteria {
            strategy: self.incident.ranking,
            resource: Resource::Memory,
            system_over_reserved: false,
        }
    }

    /// Sends SIGKILL to a pod's processes.
    pub fn kill(&mut self, pod: usize) {
        let arrives = self.now + self.incident.signal;
        self.pods[pod].dies.get_or_insert(arrives);
        self.evicted = Some(self.now);
    }

    /// Bytes that are available by the kubelet's count, with statistics that are exact and up to date.
    fn counted(&self) -> f64 {
        let Totals {
            hard,
            uncounted,
            active,
            ..
        } = self.totals;
        self.incident.capacity as f64 - (hard - uncounted) - active
    }

    /// Whether evicted pods are going to give back what the kubelet's count lacks.
    pub fn is_covered(&self) -> bool {
        let (threshold, resolved) = self.limits();
        let pods = self.pods.iter().zip(&self.incident.pods);
        let gives = pods.filter(|(pod, spec)| pod.dies.is_some() && (pod.oom || !spec.stuck));
        let coming: f64 = gives.map(|(pod, _)| pod.anon + pod.tmpfs).sum();
        self.counted() + coming >= threshold.max(resolved) as f64
    }

    /// Bytes above the memory that cannot be given back, on the signal's scale: with less than the threshold of them it has
    /// to be met by the kubelet's count too, or no more than the memory guard's amount is left.
    fn room(&self) -> f64 {
        let threshold = self.limits().0;
        let above_guard = (threshold - threshold.min(GUARD)) as f64;
        let swap = (self.incident.swap - self.swapped).max(0.0);
        let room = self.incident.capacity as f64 - self.totals.hard;
        room.max(self.counted().min(room + above_guard + swap))
    }

    /// Bytes of them that processes can use at once, whatever page cache there is.
    fn left_at_once(&self) -> f64 {
        match self.incident.scope {
            ScopeKind::V1 => self.room() - self.totals.dirty,
            _ => self.room(),
        }
    }

    /// Whether page cache that has to be written first leaves less than the threshold.
    pub fn is_tight(&self) -> bool {
        self.short_since.is_some() || self.left_at_once() < self.limits().0 as f64
    }

    /// From now on the fastest growth that was seen over any of some windows goes on.
    pub fn freeze(&mut self) {
        let grown = |over: u64| {
            let before = self.now.saturating_sub(over);
            let line = |line: &Line| line.at(self.now) - line.at(before);
            let pods = self.pods.iter().zip(&self.incident.pods);
            let living = pods.filter(|(pod, _)| pod.dies.is_none());
            let pods: f64 = living.map(|(_, p)| line(&p.anon) + line(&p.tmpfs)).sum();
            let others = line(&self.incident.outside) + line(&self.incident.uncounted);
            (pods + others) * SECOND as f64 / over as f64
        };
        let speed = SEEN_OVER.into_iter().map(grown).fold(0.0, f64::max);
        self.frozen = Some((self.now, speed));
    }

    /// One step towards a time, and no further than to where the usage reaches `trigger` bytes; whether it has done so now.
    pub fn step(&mut self, towards: u64, trigger: Option<f64>) -> bool {
        let before = self.totals.charged();
        let left = trigger
            .map(|trigger| trigger - before)
            .filter(|left| *left > 0.0);
        let to = self.stop(towards, left);
        self.settle(to);
        trigger.is_some_and(|trigger| before < trigger && self.totals.charged() >= trigger)
    }

    /// One step towards a time, and no further than to the next crossing.
    pub fn step_to_crossing(&mut self, towards: u64) {
        let left = self.left_at_once() - self.limits().0 as f64;
        let to = self.stop(towards, Some(left.max(0.0)));
        self.settle(to);
    }

    /// Computes the time at which the next step ends, which is before memory grows by more than `left` bytes.
    fn stop(&mut self, towards: u64, left: Option<f64>) -> u64 {
        let mut to = towards.min(self.now + LONGEST_STEP);
        let marks = &self.incident.marks;
        while marks.get(self.mark).is_some_and(|mark| *mark <= self.now) {
            self.mark += 1;
        }
        if let Some(mark) = marks.get(self.mark) {
            to = to.min(*mark);
        }
        for (pod, spec) in self.pods.iter().zip(&self.incident.pods) {
            let milestone = match (pod.dies, pod.exited) {
                (Some(dies), None) if dies > self.now => dies,
                (Some(dies), None) if dies + spec.exit > self.now => dies + spec.exit,
                (_, Some(exited)) if !pod.removed => exited + spec.unmount,
                _ => continue,
            };
            to = to.min(milestone);
        }
        to = to.max(self.now + 1);
        let grows = self.expected_growth(to);
        match left {
            Some(left) if grows > left => {
                let part = left / grows * (to - self.now) as f64;
                to.min(self.now + part as u64 + 1000)
            }
            _ => to,
        }
    }

    fn expected_growth(&self, to: u64) -> f64 {
        let (from, to) = (self.clock(), self.clock_at(to));
        let line = |line: &Line| line.at(to) - line.at(from);
        let pods = self.pods.iter().zip(&self.incident.pods);
        let living = pods.filter(|(pod, _)| pod.dies.is_none());
        let grows = |p: &PodSpec| line(&p.anon) + line(&p.tmpfs) + line(&p.read) + line(&p.written);
        let others = line(&self.incident.outside) + line(&self.incident.uncounted);
        living.map(|(_, spec)| grows(spec)).sum::<f64>() + others
    }

    /// The time that lines go by.
    fn clock(&self) -> u64 {
        self.clock_at(self.now)
    }

    fn clock_at(&self, time: u64) -> u64 {
        self.frozen.map_or(time, |(since, _)| time.min(since))
    }

    fn settle(&mut self, to: u64) {
        let (from, clock) = (self.clock(), self.clock_at(to));
        let elapsed = (to - self.now) as f64 / SECOND as f64;
        self.now = to;
        let dirty = self.totals.dirty;
        let mut sum = self.orphans;
        let mut freed = 0.0;
        for (pod, spec) in self.pods.iter_mut().zip(&self.incident.pods) {
            if pod.removed {
                continue;
            }
            match pod.dies.filter(|dies| *dies <= to) {
                None => grow(pod, spec, from, clock),
                Some(dies) => {
                    let before = pod.anon;
                    die(pod, spec, dies, to);
                    freed += before - pod.anon;
                }
            }
            if pod.exited.is_some_and(|exited| exited + spec.unmount <= to) {
                (pod.removed, pod.anon, pod.tmpfs) = (true, 0.0, 0.0);
                self.orphans += pod.cache;
                sum += std::mem::take(&mut pod.cache);
            }
            sum.hard += pod.anon + pod.tmpfs;
            sum += pod.cache;
        }
        self.swapped = self.swapped.min(sum.hard);
        sum.uncounted = self.incident.uncounted.at(clock);
        sum.hard += self.incident.outside.at(clock) + sum.uncounted - self.swapped;
        if let Some((since, speed)) = self.frozen {
            sum.hard += speed * (to - since) as f64 / SECOND as f64;
        }
        self.totals = sum;
        if sum.dirty > 0.0 && elapsed > 0.0 {
            let written = (self.incident.write_back * elapsed).min(sum.dirty);
            self.turn_clean(written / sum.dirty);
        }
        self.reclaim((sum.dirty - dirty).max(0.0), elapsed);
        // Where nothing else is free they are emptied.
        let free = (self.incident.capacity as f64 - self.totals.usage()).max(0.0);
        self.kept = (self.kept + freed).min(self.incident.kept).min(free);
        let (threshold, resolved) = self.limits();
        let level = match self.short_since {
            Some(_) => resolved.max(threshold),
            None => threshold,
        };
        self.short_since = (self.room() < level as f64).then(|| self.short_since.unwrap_or(to));
        // The minimum reclaim counts once the kubelet has seen it for certain, or a pod went for it.
        let is_resolving = |since: u64| {
            to - since >= MONITORING_INTERVAL_NS || self.evicted.is_some_and(|at| at >= since)
        };
        let level = match self.met_since {
            Some(since) if is_resolving(since) => resolved.max(threshold),
            _ => threshold,
        };
        let is_met = self.counted() < level as f64;
        self.met_since = is_met.then(|| self.met_since.unwrap_or(to));
        if self.incident.lag > 0 {
            let behind = to.saturating_sub(self.incident.lag);
            while self.history.len() > 1 && self.history[1].0 <= behind {
                self.history.pop_front();
            }
            self.history.push_back((to, self.totals));
        }
    }

    /// Turns this part of the page cache that had to be written into clean page cache.
    fn turn_clean(&mut self, part: f64) {
        for list in self.lists() {
            list.inactive += list.dirty * part;
            list.dirty *= 1.0 - part;
        }
    }

    /// The page cache of each pod, of none, and of all.
    fn lists(&mut self) -> impl Iterator<Item = &mut Totals> {
        let pods = self.pods.iter_mut().map(|pod| &mut pod.cache);
        pods.chain([&mut self.orphans, &mut self.totals])
    }

    /// Takes at most so many bytes of one kind of page cache, from each pod its part; how many there were.
    fn take(&mut self, most: f64, kind: fn(&mut Totals) -> &mut f64) -> f64 {
        let all = *kind(&mut self.totals);
        let taken = most.min(all);
        let part = 1.0 - share(taken, all);
        self.lists().for_each(|list| *kind(list) *= part);
        taken
    }

    /// What the kernel does where more is charged than there is; so many bytes were written in this step of so many seconds.
    fn reclaim(&mut self, newly_written: f64, elapsed: f64) {
        let capacity = self.incident.capacity as f64;
        let mut over = self.totals.usage() - capacity;
        if over <= 0.0 {
            return;
        }
        over -= self.take(over, |list| &mut list.inactive);
        over -= self.take(over, |list| &mut list.active);
        // What allocates waits until it is written; how long is left out. On v1 reclaim may find nothing where little is left
        // (docs/decisions/0009-memory-guard.md).
        let least = match self.incident.scope {
            ScopeKind::V1 => LEAST_DIRTY,
            ScopeKind::V2 | ScopeKind::Machine => 0.0,
        };
        let waits = (self.totals.dirty - least).max(newly_written);
        let waits = waits.clamp(0.0, self.totals.dirty);
        over -= self.take(over.min(waits), |list| &mut list.dirty);
        let free = (self.incident.swap - self.swapped).max(0.0);
        let swapped = over.min(free).min(self.incident.write_back * elapsed);
        self.swapped += swapped;
        self.totals.hard -= swapped;
        over -= swapped;
        if self.frozen.is_none() {
            over -= self.fall_back(over);
        }
        if swapped < free && self.frozen.is_none() {
            // A task that allocates waits for the swap device.
            return;
        }
        // A byte may be lost to rounding.
        let is_ending = |pod: &PodState| pod.oom && pod.exited.is_none();
        if over > 4096.0 && !self.pods.iter().any(is_ending) {
            self.oom_kill();
        }
    }

    /// Gives up so many bytes of huge pages that are not filled, and tells how many there were: a huge page that cannot be
    /// charged makes no OOM kill, small ones are taken in its place.
    fn fall_back(&mut self, over: f64) -> f64 {
        let mut left = over;
        let clock = self.clock();
        let pods = self.pods.iter_mut().zip(&self.incident.pods);
        for (pod, spec) in pods.filter(|(pod, spec)| spec.huge && pod.dies.is_none()) {
            let unfilled = (pod.anon - spec.anon.at(clock)).clamp(0.0, left);
            pod.anon -= unfilled;
            left -= unfilled;
        }
        self.totals.hard -= over - left;
        over - left
    }

    fn oom_kill(&mut self) {
        let pods = self.pods.iter().enumerate();
        let with = pods.filter(|(_, pod)| pod.exited.is_none() && !pod.oom);
        let Some((index, _)) = with.max_by(|a, b| a.1.anon.total_cmp(&b.1.anon)) else {
            // Nothing is left to kill: the node panics.
            if self.ooms.last().is_none_or(|last| last.1 != usize::MAX) {
                self.used_up += 1;
                self.ooms.push((self.now, usize::MAX));
            }
            return;
        };
        let pod = &mut self.pods[index];
        pod.oom = true;
        self.used_up += 1;
        // What was sent SIGKILL already is only helped to die (`oom_kill_process`): no pod has died of it.
        if pod.dies.is_none_or(|dies| dies > self.now) {
            pod.dies = Some(self.now);
            self.ooms.push((self.now, index));
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn grow(pod: &mut PodState, spec: &PodSpec, from: u64, to: u64) {
    const HUGE: f64 = (2 << 20) as f64;
    pod.anon = spec.anon.at(to);
    if spec.huge {
        pod.anon = (pod.anon / HUGE).ceil() * HUGE;
    }
    pod.tmpfs = spec.tmpfs.at(to);
    if to == from {
        return;
    }
    let grown = |line: &Line| match line.0.len() {
        0 | 1 => 0.0,
        _ => (line.at(to) - line.at(from)).max(0.0),
    };
    pod.cache.inactive += grown(&spec.read);
    pod.cache.dirty += grown(&spec.written);
    let activated = grown(&spec.activated).min(pod.cache.inactive);
    pod.cache.inactive -= activated;
    pod.cache.active += activated;
}

fn die(pod: &mut PodState, spec: &PodSpec, dies: u64, to: u64) {
    let at_death = *pod.at_death.get_or_insert(pod.anon);
    // The OOM killer's reaper does not wait for the processes.
    if spec.stuck && !pod.oom {
        return;
    }
    let begins = dies + spec.exit;
    if pod.exited.is_none() && to >= begins {
        let gone = spec.teardown * (to - begins) as f64 / SECOND as f64;
        pod.anon = (at_death - gone).max(0.0);
        if pod.anon == 0.0 {
            pod.exited = Some(to);
        }
    }
}

pub fn mib(bytes: f64) -> f64 {
    bytes / (1 << 20) as f64
}
