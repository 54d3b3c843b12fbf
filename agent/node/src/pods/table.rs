//! The pods as the fast path sees them: numbers and open files. Built off the fast path, handed over whole.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_engine::{
    Candidate, CandidateState, ManagedPod, Pod, RankInputs,
    counter_history::{CounterHistory, copy},
    eviction_state::EvictionState,
    growers::Largest,
    model::{settings::Mode, usage::MemoryReading},
    permit::EvictionPermit,
    round::Candidates,
};
use evictd_sys::fs::{PathError, is_gone};

use crate::{
    cgroup::{
        kill::CgroupKiller,
        limited::LimitedCgroups,
        memory::MemoryCgroup,
        stat_flush::StatFlusher,
        swap::{PodSwap, SwapUsage},
        tree::FollowedCgroups,
    },
    pods::dirs::SeenContainers,
};

/// One pod with everything open that a decision and a kill need. What is open is shared with the entry that takes its
/// place when something else is said of the pod, or another of its cgroups has come or gone: an open file takes up to
/// 8 KiB of the kernel's memory, and all pods may change at once.
#[derive(Debug)]
pub struct PodEntry {
    /// The pod as the engine knows it.
    pub pod: Pod,
    /// Memory cgroup of the pod, whose files threads of normal priority leave alone: see [`PodEntry::open_memory`].
    pub memory: Arc<MemoryCgroup>,
    /// What it has swapped out.
    swapped: Arc<SwapUsage>,
    /// Open `memory.stat` files of the pod and its cgroups, read to make the kernel flush them.
    statistics: StatFlusher,
    /// Cgroups of the pod that have limits of their own.
    pub limited: LimitedCgroups,
    /// Kills its processes.
    pub killer: Arc<CgroupKiller>,
    /// What looks at its files have seen of its containers.
    pub seen: Arc<SeenContainers>,
    /// The ids of its cgroups that are followed, its own first.
    cgroups: Vec<u64>,
    /// Whether the pod has more cgroups than are followed.
    pub is_cut: bool,
    /// Whether it is never evicted.
    pub protected: bool,
    /// Permit: whether and in what order the policies let the pod go; it changes in place.
    pub permit: EvictionPermit,
    /// What has happened to the pod; shared with the entry that takes its place.
    pub eviction_state: Arc<EvictionState>,
}

impl PodEntry {
    /// Opens the files of the pod's cgroup; the mode says which pods are protected.
    ///
    /// # Errors
    /// The cgroup is not there.
    pub fn open(pod: Pod, cgroup: &Path, mode: Mode) -> Result<Self, PathError> {
        Self::reopen(pod, cgroup, &FollowedCgroups::find(cgroup)?, mode, None)
    }

    /// As [`Self::open`], with the pod's cgroups as they were found. `before` is another entry of the pod: what has
    /// happened to it is shared, and so are files of the same cgroups. Where all cgroups are the same, only those are
    /// opened that have a limit since.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn reopen(
        pod: Pod,
        cgroup: &Path,
        found: &FollowedCgroups,
        mode: Mode,
        before: Option<&Self>,
    ) -> Result<Self, PathError> {
        let protected = pod.is_protected(mode);
        let cgroups: Vec<u64> = found.ids().collect();
        let state = before.map(|before| Arc::clone(&before.eviction_state));
        let before = before.filter(|before| cgroups.first() == Some(&before.memory.id()));
        let memory = match before {
            Some(before) => Arc::clone(&before.memory),
            None => Arc::new(MemoryCgroup::open(cgroup)?),
        };
        let swapped = match before {
            Some(before) => Arc::clone(&before.swapped),
            None => Arc::new(SwapUsage::open_of_pod(cgroup)),
        };
        let seen = before.map(|before| Arc::clone(&before.seen));
        let limited = LimitedCgroups::reopen(found, &memory, before.map(|before| &before.limited));
        let statistics = before.map(|before| &before.statistics);
        let killer = match before {
            Some(before) if before.cgroups == cgroups => Arc::clone(&before.killer),
            _ => {
                let before = before.map(|before| &*before.killer);
                Arc::new(CgroupKiller::reopen(cgroup, found, before)?)
            }
        };
        Ok(Self {
            pod,
            statistics: StatFlusher::reopen(found, &limited, statistics),
            limited,
            memory,
            swapped,
            killer,
            seen: seen.unwrap_or_default(),
            cgroups,
            is_cut: found.is_cut,
            protected,
            permit: EvictionPermit::default(),
            eviction_state: state.unwrap_or_default(),
        })
    }

    /// Whether these are its cgroups still, and no other ones of them have limits.
    pub fn follows(&self, found: &FollowedCgroups) -> bool {
        self.is_cut == found.is_cut
            && found.ids().eq(self.cgroups.iter().copied())
            && !self.limited.miss_one_of(found)
    }

    /// Its memory by files of the caller's own, for threads of normal priority. The kernel locks an open file for the
    /// time of a read (`seq_read_iter`), and the fast path would wait for a reader that has lost its CPU.
    ///
    /// # Errors
    /// The cgroup is not there any more, or no descriptor is left.
    pub fn open_memory(&self) -> Result<MemoryCgroup, PathError> {
        MemoryCgroup::open(self.memory.path())
    }

    /// Reads an upper bound of the pod's usage, which is one number. Whether the pod still exists.
    pub fn read_usage(&self, candidate: &mut Candidate) -> CandidateState {
        match self.memory.usage() {
            Ok(usage) => {
                candidate.usage = usage;
                CandidateState::Eligible
            }
            Err(_) => CandidateState::Unavailable,
        }
    }

    /// Bytes that only its end gives back, in memory, of which this is a reading, and in swap: with swap what grows is
    /// partly older memory that is swapped out. Does not allocate.
    pub fn held(&self, reading: &MemoryReading) -> u64 {
        reading
            .unreclaimable()
            .saturating_add(self.swapped.read(reading.swap_cached))
    }

    /// Ids of its cgroups that are followed, its own first.
    pub fn cgroups(&self) -> &[u64] {
        &self.cgroups
    }

    /// Makes the kernel add up its statistics, so that page cache is told from other memory. Does not allocate.
    pub fn flush_statistics(&self) {
        self.statistics.flush();
    }

    /// Whether no process is left. For threads of normal priority.
    pub fn is_empty(&self) -> bool {
        match self.open_killer() {
            Ok(killer) => killer.is_empty(),
            Err(error) => is_gone(&error.source),
        }
    }

    /// Opens the pod's [`CgroupKiller`], for threads of normal priority.
    ///
    /// # Errors
    /// As [`Self::open_memory`].
    pub fn open_killer(&self) -> Result<CgroupKiller, PathError> {
        CgroupKiller::open(self.killer.path())
    }
}

impl ManagedPod for PodEntry {
    fn pod(&self) -> &Pod {
        &self.pod
    }

    fn permit(&self) -> &EvictionPermit {
        &self.permit
    }

    fn eviction_state(&self) -> &EvictionState {
        &self.eviction_state
    }

    fn is_protected(&self) -> bool {
        self.protected
    }

    fn memory_usage(&self) -> u64 {
        self.memory.usage_by_path().unwrap_or(0)
    }

    fn is_younger_than(&self, time: u64) -> bool {
        let killer = self.open_killer();
        killer.is_ok_and(|killer| killer.is_younger_than(time))
    }

    fn has_older_than(&self, time: u64) -> bool {
        match self.open_killer() {
            Ok(killer) => killer.holds_older_than(time),
            // What cannot be opened and is there is not known to be gone.
            Err(error) => !is_gone(&error.source),
        }
    }
}

/// All pods, with the room that ranking them takes.
#[derive(Debug, Default)]
pub struct PodTable {
    /// The pods, sorted by namespace, name and UID: the order among equals.
    pub entries: Vec<Arc<PodEntry>>,
    /// One per entry; the fast path writes here and never grows it.
    pub candidates: Vec<Candidate>,
    /// History of the pods' usage counters at earlier looks.
    pub history: CounterHistory,
    /// Usage of each pod when its statistics were flushed last, or less where it has given something back since, in
    /// bytes.
    seen: Vec<u64>,
    /// Flusher of the cgroups that the pods lie in: their classes, and the cgroup of all pods.
    above: StatFlusher,
    /// Amount that the pods can and may swap out: a thread of normal priority looks at it once a second.
    pub swap: Arc<PodSwap>,
}

/// Number of pods whose statistics are flushed at once: the pod that made them lag is the one that has grown most.
const MAX_GROWN: usize = 4;

impl PodTable {
    /// A table of these pods.
    pub fn new(entries: Vec<Arc<PodEntry>>) -> Self {
        Self::after(&PodSwap::default(), entries)
    }

    /// The same, with what an earlier table knew of what they can swap out.
    pub fn after(before: &PodSwap, mut entries: Vec<Arc<PodEntry>>) -> Self {
        entries.sort_by(|one, other| key(one).cmp(&key(other)));
        let candidates = entries.iter().map(|e| candidate(e)).collect();
        let above = StatFlusher::of(above(&entries).iter().map(|dir| &**dir));
        let swap = PodSwap::after(before, entries.iter().map(|entry| &entry.memory));
        Self {
            history: CounterHistory::new(entries.len()),
            seen: vec![0; entries.len()],
            entries,
            candidates,
            above,
            swap: Arc::new(swap),
        }
    }

    /// Takes over what the table in use before knows of the growth of the same pods. Does not allocate.
    pub fn inherit(&mut self, before: &Self) {
        let same = same_pods(&self.entries, &before.entries);
        self.history.inherit(&before.history, same.clone());
        copy(&mut self.seen, &before.seen, same);
    }

    /// All usages were read anew. Does not allocate.
    pub fn note_growth(&mut self, now: u64) {
        let usages = self.candidates.iter().map(|candidate| candidate.usage);
        self.history.note(now, usages);
    }

    /// Each pod with its candidate.
    pub fn pairs_mut(&mut self) -> impl Iterator<Item = (&PodEntry, &mut Candidate)> {
        let entries = self.entries.iter().map(|entry| &**entry);
        entries.zip(&mut self.candidates)
    }

    /// The candidates, and what reads a pod in full.
    pub fn candidates(
        &mut self,
        at_limit: bool,
    ) -> Candidates<'_, impl Fn(usize) -> Option<MemoryReading>> {
        let entries = &self.entries;
        Candidates {
            candidates: &mut self.candidates,
            history: &self.history,
            read: move |position: usize| {
                let reading = entries.get(position)?.memory.read().ok()?;
                Some(reading.of_scope(at_limit))
            },
        }
    }

    /// Makes the kernel flush the statistics of those pods that have grown most since that was done for them, and of
    /// the cgroups above. Does not allocate.
    pub fn flush_statistics(&mut self) {
        let mut most = Largest::<MAX_GROWN>::default();
        for (place, (entry, seen)) in self.entries.iter().zip(&mut self.seen).enumerate() {
            let usage = entry.memory.usage().unwrap_or(0);
            // A pod that has given something back grows from there.
            *seen = usage.min(*seen);
            let grown = usage - *seen;
            most.offer(grown, place);
        }
        for (grown, place) in most.0 {
            if let (Some(entry), Some(seen)) = (self.entries.get(place), self.seen.get_mut(place)) {
                entry.statistics.flush();
                *seen += grown;
            }
        }
        self.above.flush();
    }
}

/// Makes the kernel flush the statistics of pods, and of the cgroups above them. For threads of normal priority.
pub fn flush_statistics(entries: &[Arc<PodEntry>]) {
    entries.iter().for_each(|entry| entry.flush_statistics());
    StatFlusher::of(above(entries).iter().map(|dir| &**dir)).flush();
}

/// The order among equals.
fn key(entry: &PodEntry) -> (&str, &str, &str) {
    let pod = &entry.pod;
    (&pod.namespace, &pod.name, &pod.uid)
}

/// The positions in both tables of the pods whose cgroup is in both.
fn same_pods<'a>(
    entries: &'a [Arc<PodEntry>],
    before: &'a [Arc<PodEntry>],
) -> impl Iterator<Item = (usize, usize)> + Clone + 'a {
    let mut there = 0;
    let same = move |(here, entry): (usize, &'a Arc<PodEntry>)| {
        while before.get(there).is_some_and(|b| key(b) < key(entry)) {
            there += 1;
        }
        let is_same = before.get(there)?.memory.id() == entry.memory.id();
        is_same.then_some((here, there))
    };
    entries.iter().enumerate().filter_map(same)
}

/// The directories one and two levels above the pods, the deepest first.
fn above(entries: &[Arc<PodEntry>]) -> Vec<PathBuf> {
    let two = |entry: &Arc<PodEntry>| {
        let above = entry.memory.path().ancestors().skip(1).take(2);
        above.map(Path::to_owned).collect::<Vec<_>>()
    };
    let dirs: BTreeSet<PathBuf> = entries.iter().flat_map(two).collect();
    // A cgroup below another one sorts after it.
    dirs.into_iter().rev().collect()
}

fn candidate(entry: &PodEntry) -> Candidate {
    let pod = &entry.pod;
    Candidate {
        inputs: RankInputs {
            priority: pod.priority,
            priority_unknown: pod.priority_unknown,
            qos: pod.qos,
            request: pod.memory_request,
            order: entry.permit.order(),
        },
        usage: 0,
        is_exact: false,
        state: CandidateState::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Cgroups of v1: a pod leaves more of them than a deciding thread looks at.
    #[test]
    fn a_pod_without_processes_does_not_run_anew() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path();
        for file in ["memory.usage_in_bytes", "memory.stat", "cgroup.procs"] {
            fs::write(pod.join(file), "").unwrap();
        }
        let entry = PodEntry::open(Pod::default(), pod, Mode::Evictd).unwrap();
        let has = || (entry.is_younger_than(1), entry.has_older_than(1));
        for container in 0..600 {
            let container = pod.join(container.to_string());
            fs::create_dir(&container).unwrap();
            fs::write(container.join("cgroup.procs"), "").unwrap();
        }
        assert_eq!(has(), (false, false));
        let own = format!("{}\n", std::process::id());
        fs::write(pod.join("599/cgroup.procs"), own).unwrap();
        assert_eq!(has(), (true, false));
    }

    /// The pod that has grown most comes first, and one that has shrunk meanwhile is not forgotten.
    #[test]
    fn those_that_have_grown_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = |pod: usize| dir.path().join(pod.to_string());
        let uses = |pod: usize, usage: u64| {
            fs::write(path(pod).join("memory.usage_in_bytes"), usage.to_string()).unwrap();
        };
        for pod in 0..6 {
            fs::create_dir(path(pod)).unwrap();
            uses(pod, 100);
            for file in ["memory.stat", "cgroup.procs"] {
                fs::write(path(pod).join(file), "").unwrap();
            }
        }
        let named = |pod: usize| Pod {
            name: pod.to_string(),
            ..Pod::default()
        };
        let open = |pod| Arc::new(PodEntry::open(named(pod), &path(pod), Mode::Evictd).unwrap());
        let mut table = PodTable::new((0..6).map(open).collect());
        uses(5, 900);
        uses(1, 500);
        uses(2, 400);
        uses(3, 300);
        table.flush_statistics();
        assert_eq!(table.seen, [0, 500, 400, 300, 0, 900]);
        table.flush_statistics();
        assert_eq!(table.seen, [100, 500, 400, 300, 100, 900]);
        uses(5, 50);
        table.flush_statistics();
        uses(5, 60);
        table.flush_statistics();
        assert_eq!(table.seen[5], 60);
        // Pod 1 is gone, and pod 3 was made anew in another cgroup.
        let mut left: Vec<_> = table.entries.clone();
        left.remove(1);
        fs::rename(path(3), path(7)).unwrap();
        fs::create_dir(path(3)).unwrap();
        for file in ["memory.usage_in_bytes", "memory.stat", "cgroup.procs"] {
            fs::write(path(3).join(file), "").unwrap();
        }
        left[2] = open(3);
        let mut next = PodTable::new(left);
        next.inherit(&table);
        assert_eq!(next.seen, [100, 400, 0, 100, 60]);
    }
}
