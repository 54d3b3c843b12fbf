//! What the node has left of everything, and the triggers that say when to look.

use std::{fmt, io, os::fd::BorrowedFd, time::Duration};

use evictd_engine::{
    Layout, Observation, Observations, Signal, Threshold, sampling, units::signed,
};
use evictd_node::{
    memory_scope::Scope,
    proc::machine::fastest_growth,
    trigger::{
        counter::{CountDirection, CountTrigger, CounterEvent, Drift},
        hook::CountHook,
        inodes::{self, InodeTrigger},
        pids::{self, PidTrigger},
    },
};

/// Slots of a count's triggers.
const HARD: usize = 0;
const SOFT: usize = 1;

/// A filesystem under the names that the kubelet gives it.
#[derive(Clone, Copy, Debug)]
pub struct DiskSource {
    /// Index in the trigger.
    pub filesystem: usize,
    /// Signal of the filesystem's free bytes.
    pub available: Signal,
    /// Signal of the filesystem's free inodes.
    pub inodes_free: Signal,
}

/// The filesystems of the node.
pub struct DiskSources {
    /// Triggers on their inodes, and statfs.
    pub trigger: InodeTrigger,
    /// nodefs, imagefs and containerfs; several may be one filesystem.
    pub names: [DiskSource; 3],
    /// Layout of the filesystems.
    pub layout: Layout,
}

impl fmt::Debug for DiskSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskSources")
            .field("names", &self.names)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// A trigger that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Armed {
    count: Count,
    slot: usize,
    trigger: CountTrigger,
}

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Pids,
    Inodes(usize),
}

/// Everything that is looked at besides the memory that the fast path watches.
pub struct SignalSources {
    /// The node's memory.
    pub memory: Scope,
    /// The memory of the pods' cgroup, where there is one.
    pub pods_memory: Option<Scope>,
    /// The node's tasks; `None` where procfs does not say.
    pub pids: Option<PidTrigger>,
    /// The node's filesystems; `None` where none are known.
    pub disks: Option<DiskSources>,
    /// Whether the counts of a cgroup that is removed are added to its parent's.
    pub counts_are_merged: bool,
    armed: Vec<Armed>,
    /// Counts whose hooks were reported as silent, each once.
    reported_stale: Vec<Count>,
    /// Hooks that could not be armed or count nothing, since this was emptied, with the reason.
    pub(crate) refusals: Vec<String>,
}

/// Observes the memory of the node and of the pods' cgroup, at `now` in nanoseconds of CLOCK_MONOTONIC.
pub fn observe_memory(node: &Scope, pods: Option<&Scope>, now: i64) -> Observations {
    let mut seen = Observations::default();
    add_memory(&mut seen, node, pods, now);
    seen
}

fn add_memory(seen: &mut Observations, node: &Scope, pods: Option<&Scope>, now: i64) {
    let scopes = [
        (Signal::MemoryAvailable, Some(node)),
        (Signal::AllocatableMemoryAvailable, pods),
    ];
    for (signal, scope) in scopes {
        if let Some(scope) = scope
            && let Ok(sample) = scope.sample()
        {
            let observation = Observation {
                available: signed(sample.guarded_available),
                capacity: signed(scope.capacity()),
                time: Some(now),
            };
            seen.set(signal, observation);
        }
    }
}

impl SignalSources {
    /// Creates the sources; nothing is armed before the first [`Self::arm`].
    pub fn new(
        memory: Scope,
        pods_memory: Option<Scope>,
        pids: Option<PidTrigger>,
        disks: Option<DiskSources>,
    ) -> Self {
        Self {
            memory,
            pods_memory,
            pids,
            disks,
            counts_are_merged: false,
            armed: Vec::new(),
            reported_stale: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// Layout of the disks.
    pub fn layout(&self) -> Layout {
        self.disks.as_ref().map(|d| d.layout).unwrap_or_default()
    }

    /// Looks at memory once more, by statistics that were flushed since.
    pub fn sample_memory(&self, seen: &mut Observations, now: i64) {
        add_memory(seen, &self.memory, self.pods_memory.as_ref(), now);
    }

    /// Looks at everything. A signal that cannot be read at present has no observation, and a threshold without an
    /// observation is not met.
    pub fn sample(&mut self, now: i64) -> Observations {
        let mut seen = observe_memory(&self.memory, self.pods_memory.as_ref(), now);
        let mut set = |signal, available: i64, capacity: u64| {
            let observation = Observation {
                available,
                capacity: signed(capacity),
                time: Some(now),
            };
            seen.set(signal, observation);
        };
        if let Some(pids) = &mut self.pids
            // The sample moves the triggers to where the files put them; the reading has the capacity.
            && let (Ok(sample), Ok(read)) = (pids.sample(), pids.read())
        {
            set(Signal::PidAvailable, sample.available, read.capacity);
        }
        if let Some(disks) = &mut self.disks {
            for filesystem in 0..disks.trigger.filesystems() {
                let Ok(read) = disks.trigger.read(filesystem) else {
                    continue;
                };
                // A slow filesystem answers once in a look, and the triggers stay where they are.
                let inodes_free = match disks.trigger.sample(filesystem) {
                    Ok(sample) => sample.map(|sample| sample.available),
                    Err(_) => read.limits_inodes().then(|| signed(read.inodes_free)),
                };
                // Several names of one filesystem have one reading: what is known of one holds for all.
                for disk in disks.names.iter().filter(|d| d.filesystem == filesystem) {
                    set(disk.available, signed(read.available), read.capacity);
                    if let Some(inodes_free) = inodes_free {
                        set(disk.inodes_free, inodes_free, read.inodes);
                    }
                }
            }
        }
        self.report_stale_hooks();
        seen
    }

    fn report_stale_hooks(&mut self) {
        let filesystems = self.disks.iter().flat_map(|d| 0..d.trigger.filesystems());
        let counts = std::iter::once(Count::Pids).chain(filesystems.map(Count::Inodes));
        let is_news = |count: &Count| self.is_stale(*count) && !self.reported_stale.contains(count);
        let news: Vec<Count> = counts.filter(is_news).collect();
        for count in news {
            let reason = "its hook counts nothing, although what is available changes";
            self.refusals.push(format!("{count:?}: {reason}"));
            self.reported_stale.push(count);
        }
    }

    fn is_stale(&self, count: Count) -> bool {
        match count {
            Count::Pids => self.pids.as_ref().is_some_and(PidTrigger::is_stale),
            Count::Inodes(index) => {
                let disks = self.disks.as_ref();
                disks.is_some_and(|disks| disks.trigger.is_stale(index))
            }
        }
    }

    /// Sets the triggers to where the thresholds are: on the way down while a threshold is not met, on the way up while
    /// it is, so that recovery is seen at once as well. True when a trigger has moved: what crossed it in the meantime
    /// is seen by another look only.
    pub fn arm<'a>(
        &mut self,
        thresholds: impl Iterator<Item = &'a Threshold>,
        seen: &Observations,
    ) -> bool {
        let mut wanted: Vec<Armed> = Vec::new();
        for threshold in thresholds {
            let (Some(count), Some(now)) =
                (self.count_of(threshold.signal), seen.get(threshold.signal))
            else {
                continue;
            };
            let slot = if threshold.is_hard() { HARD } else { SOFT };
            let trigger = trigger(threshold, now);
            // Several names of one filesystem share its triggers: the one that comes first counts.
            match wanted
                .iter_mut()
                .find(|a| (a.count, a.slot) == (count, slot))
            {
                Some(other) if comes_first(trigger, other.trigger) => other.trigger = trigger,
                Some(_) => {}
                None => wanted.push(Armed {
                    count,
                    slot,
                    trigger,
                }),
            }
        }
        if wanted == self.armed {
            return false;
        }
        for armed in &wanted {
            if !self.armed.contains(armed)
                && let Err(error) = self.set(armed)
            {
                self.refusals.push(format!("{armed:?}: {error}"));
            }
        }
        self.armed = wanted;
        true
    }

    fn set(&mut self, armed: &Armed) -> io::Result<()> {
        let trigger = Some(armed.trigger);
        match (armed.count, &mut self.pids, &mut self.disks) {
            (Count::Pids, Some(pids), _) => pids.arm(armed.slot, trigger),
            (Count::Inodes(index), _, Some(disks)) => disks.trigger.arm(index, armed.slot, trigger),
            _ => Ok(()),
        }
    }

    /// The first crossing since this was last asked, and the signal that it was of. All that have tripped are set anew
    /// by the next [`Self::arm`].
    pub fn next_crossing(&mut self) -> Option<(Signal, CounterEvent)> {
        let mut first = None;
        if let Some(pids) = &mut self.pids {
            while let Some(crossed) = pids.next_crossing() {
                self.armed
                    .retain(|a| (a.count, a.slot) != (Count::Pids, crossed.slot));
                first = first.or(Some((Signal::PidAvailable, crossed)));
            }
        }
        if let Some(disks) = &mut self.disks {
            while let Some(crossed) = disks.trigger.next_crossing() {
                let count = Count::Inodes(crossed.counter);
                self.armed
                    .retain(|a| (a.count, a.slot) != (count, crossed.slot));
                let name = disks.names.iter().find(|d| d.filesystem == crossed.counter);
                first = first.or(name.map(|d| (d.inodes_free, crossed)));
            }
        }
        first
    }

    /// Descriptors that become readable at a crossing.
    pub fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let pids = self.pids.as_ref().and_then(|p| p.fd());
        let inodes = self.disks.as_ref().and_then(|d| d.trigger.fd());
        [pids, inodes]
    }

    /// Hook that watches a signal: one of the kernel, or the sampler.
    pub fn hook(&self, signal: Signal) -> CountHook {
        match self.count_of(signal) {
            Some(Count::Pids) => self.pids.as_ref().map(|p| p.selected_hook().hook),
            Some(Count::Inodes(index)) => {
                let disks = self.disks.as_ref();
                disks.and_then(|d| Some(d.trigger.selected_hook(index)?.1.hook))
            }
            None => None,
        }
        .unwrap_or(CountHook::Sampler)
    }

    /// Whether hooks count the inodes of all filesystems.
    pub fn counts_inodes(&self) -> bool {
        let mut filesystems = Signal::FILESYSTEMS.iter();
        filesystems.all(|(_, inodes)| self.is_counted(*inodes))
    }

    /// Whether a hook counts what a signal watches, and is not silent.
    fn is_counted(&self, signal: Signal) -> bool {
        let counts = |count| !self.is_stale(count);
        self.hook(signal) != CountHook::Sampler && self.count_of(signal).is_some_and(counts)
    }

    /// Whether each of nodefs, imagefs and containerfs, in this order, has not answered for long; all of them where none could
    /// be watched from the start although thresholds ask for it.
    pub fn hung(&self, asks_for_disks: bool) -> [bool; 3] {
        let is_hung =
            |disks: &DiskSources, disk: &DiskSource| disks.trigger.is_hung(disk.filesystem);
        let disks = self.disks.as_ref();
        disks.map_or([asks_for_disks; 3], |disks| {
            disks.names.map(|disk| is_hung(disks, &disk))
        })
    }

    /// Drift of the counts, by signal.
    pub fn drift(&self) -> Vec<(Signal, Drift)> {
        let pids = self.pids.iter().map(|p| (Signal::PidAvailable, p.drift()));
        let disks = self.disks.iter().flat_map(|disks| {
            let of = |d: &DiskSource| (d.inodes_free, disks.trigger.drift(d.filesystem));
            disks.names.iter().map(of)
        });
        pids.chain(disks).collect()
    }

    fn count_of(&self, signal: Signal) -> Option<Count> {
        if signal == Signal::PidAvailable {
            return Some(Count::Pids);
        }
        let disks = self.disks.as_ref()?;
        let disk = disks.names.iter().find(|d| d.inodes_free == signal)?;
        Some(Count::Inodes(disk.filesystem))
    }

    /// When to look again: before the fastest use this machine can make has reached the nearest threshold. What a hook
    /// watches, and what has a grace period, needs no more than the ceiling.
    pub fn sample_interval<'a>(
        &self,
        thresholds: impl Iterator<Item = &'a Threshold>,
        seen: &Observations,
    ) -> Duration {
        let due = |threshold: &Threshold| {
            let signal = threshold.signal;
            let Some(now) = seen.get(signal) else {
                return sampling::MAX_INTERVAL;
            };
            let above = i128::from(now.available) - i128::from(threshold.amount(now.capacity));
            let is_memory = matches!(
                signal,
                Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable
            );
            if is_memory || !threshold.is_hard() {
                return sampling::MAX_INTERVAL;
            }
            let distance = u64::try_from(above).unwrap_or(0);
            match self.count_of(signal) {
                Some(Count::Pids) if above < 0 => sampling::PRESSED_PIDS,
                _ if above < 0 => sampling::PRESSED,
                _ if self.is_counted(signal) => sampling::MAX_INTERVAL,
                Some(Count::Pids) => sampling::sample_interval(distance, pids::fastest_growth()),
                Some(Count::Inodes(_)) => sampling::of_files(distance, inodes::fastest_growth()),
                // Buffered writes reserve space at once (delayed allocation), at memory speed. fallocate(2) reserves
                // without writing: the shortest interval bounds what it can take unseen.
                None => sampling::of_files(distance, fastest_growth()),
            }
        };
        let soonest = thresholds.map(due).min();
        soonest.unwrap_or(sampling::MAX_INTERVAL)
    }
}

/// The trigger of a threshold: where it is met, or where it is resolved.
fn trigger(threshold: &Threshold, seen: Observation) -> CountTrigger {
    let amount = threshold.amount(seen.capacity);
    if u64::try_from(seen.available).unwrap_or(0) < amount {
        return CountTrigger {
            available: signed(threshold.resolved_amount(seen.capacity)),
            direction: CountDirection::Recovered,
        };
    }
    CountTrigger {
        available: signed(amount),
        direction: CountDirection::Below,
    }
}

/// Whether the first of two triggers is reached before the second. Recovery of one is news while another is still met.
fn comes_first(a: CountTrigger, b: CountTrigger) -> bool {
    match (a.direction, b.direction) {
        (CountDirection::Below, CountDirection::Below) => a.available > b.available,
        (CountDirection::Recovered, CountDirection::Recovered) => a.available < b.available,
        (CountDirection::Below, CountDirection::Recovered) => true,
        (CountDirection::Recovered, CountDirection::Below) => false,
    }
}
