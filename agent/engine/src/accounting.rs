//! Memory accounting of a scope: from raw counters to what is available and to the inputs of `pace`. Pure, so that the
//! simulation (`cargo xtask judge`) runs the same code.

use crate::{
    Signal, Threshold, ThresholdValue,
    growth::Headroom,
    hard_threshold,
    model::usage::{MachineMemory, MemoryReading, SwapUse},
    shortage::{LimitedGrowth, Shortage},
    units::signed,
};

/// What the memory guard keeps if nothing else is configured, in bytes: the kubelet's default hard threshold.
pub const GUARD: u64 = 100 << 20;

/// Kernel memory per page cache is at most 1/32: one `buffer_head` (104 bytes) for each 4 KiB page.
const KERNEL_OF_CACHE: u64 = 32;
/// The largest [`MemoryThresholds::step`].
const STEP_BYTES: u64 = 16 << 20;
/// How fast page cache is taken to be written and memory to be swapped out, in bytes per second: a slow disk.
const WRITES_PER_SECOND: u64 = 32 << 20;

/// What must stay available of the scope's signal, in bytes; by default nothing, which is never met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryThresholds {
    /// Hard threshold, in bytes: it is met while less than this is available; 0 is never met.
    pub threshold: u64,
    /// Bytes that must be available for a threshold that was met to be met no longer (minimum reclaim included); at
    /// least `threshold`.
    pub resolved: u64,
    /// Bytes available below which the kernel program kills by itself; `None` where it never does.
    pub floor: Option<u64>,
    /// The hard threshold is the kubelet's own ([`Shortage::is_kubelets`]).
    pub is_kubelets: bool,
}

/// One of the amounts of [`MemoryThresholds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The hard threshold.
    Threshold,
    /// Amount from which on a threshold that was met is resolved.
    Resolved,
    /// Amount at which the kernel itself kills.
    Floor,
}

/// When the kernel programs may kill a task of a pod by themselves, by what was left at the agent's last look; rounded
/// to [`MemoryThresholds::step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillLimits {
    /// A task that holds so many bytes of anonymous and shared memory has used up what was left above the threshold,
    /// whatever page cache there is by now.
    pub min_task_bytes: u64,
    /// No task can hold more bytes: its pod held less at the last look, and no more than this was left in all. A larger
    /// sum counts shared memory once per mapping.
    pub max_task_bytes: u64,
    /// A pod that is charged so many bytes has grown by its part of what was left: where less is charged to each pod of
    /// the list, the memory has gone elsewhere. Page cache that the kernel cannot take from it counts as growth.
    pub min_pod_bytes: u64,
}

/// A pod that the kernel programs may kill from, as of the agent's last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedPod {
    /// Bytes that it held without page cache.
    pub held: u64,
    /// Bytes of huge pages besides: the pod's cgroup is charged for them, and no task's counter shows them.
    pub huge_pages: u64,
    /// Place of the pod among those that may be published, which are `ranks`.
    pub rank: u64,
    /// Number of pods that may be published.
    pub ranks: u64,
}

/// Configured amount at which the kernel itself kills.
#[derive(Clone, Copy, Debug)]
pub enum Floor<'a> {
    /// Nowhere.
    Off,
    /// The kernel kills when half of the hard threshold is left.
    Half,
    /// The kernel kills when this is left, if that is below the hard threshold: from the threshold on it would kill
    /// before the agent decides.
    Of(&'a ThresholdValue),
}

impl Floor<'_> {
    /// Amount of the floor below the threshold `hard`, in bytes; `None` without a floor, and where `hard` is 0.
    fn below(self, hard: u64, capacity: i64) -> Option<u64> {
        match self {
            Self::Off => None,
            _ if hard == 0 => None,
            Self::Of(value) if value.amount(capacity) < hard => Some(value.amount(capacity)),
            Self::Of(_) | Self::Half => Some(hard / 2),
        }
    }

    /// The amount that is configured, in bytes, where half of the hard threshold stands in for it.
    pub fn replaced(self, hard: u64, capacity: i64) -> Option<u64> {
        match self {
            Self::Of(value) if hard > 0 => Some(value.amount(capacity)).filter(|own| *own >= hard),
            _ => None,
        }
    }
}

impl MemoryThresholds {
    /// Builds the amounts from the largest hard threshold of `signal`; without one all of them are zero, and there is
    /// no floor.
    pub fn from_thresholds(
        thresholds: &[Threshold],
        signal: Signal,
        capacity: u64,
        floor: Floor<'_>,
    ) -> Self {
        let capacity = signed(capacity);
        let Some(threshold) = hard_threshold(thresholds, signal, capacity) else {
            return Self::default();
        };
        let hard = threshold.amount(capacity);
        Self {
            threshold: hard,
            resolved: threshold.resolved_amount(capacity).max(hard),
            floor: floor.below(hard, capacity),
            is_kubelets: false,
        }
    }

    /// Bytes that must be available for the threshold not to be met. `resolves`: its minimum reclaim counts
    /// ([`Pace::is_resolving`](crate::pace::Pace::is_resolving)).
    pub fn needed(&self, resolves: bool) -> u64 {
        match resolves {
            true => self.resolved.max(self.threshold),
            false => self.threshold,
        }
    }

    /// Whether the threshold is met by this much available; `was_under_pressure`: it was at the look before. `resolves`: as for
    /// [`needed`](Self::needed).
    pub fn is_pressing(&self, available: u64, was_under_pressure: bool, resolves: bool) -> bool {
        available < self.needed(was_under_pressure && resolves)
    }

    /// Bytes by which memory may move without being a growth.
    pub fn step(&self) -> u64 {
        (self.threshold / 16).clamp(1, STEP_BYTES)
    }

    /// Computes the limits for tasks of a pod when `headroom` was left, as the kernel counts. A pod of a later rank is killed
    /// from deeper below the threshold, down to half of it; where the published ones have used up what was left, one of them
    /// at least has grown by its part of it, and all of them by half of that if they grow alike. A counter that has
    /// [`jumped`](crate::growers::counter_jump) is no growth.
    pub fn kill_limits(&self, pod: PublishedPod, headroom: u64, jump: u64) -> KillLimits {
        let left = headroom.saturating_sub(self.threshold.max(self.floor.unwrap_or(0)));
        let (step, ranks) = (self.step(), pod.ranks.max(1));
        let in_steps = |bytes: u64| {
            let steps = pod.held.saturating_add(bytes).div_ceil(step);
            steps.saturating_add(1).saturating_mul(step)
        };
        let deeper = self.threshold / (2 * ranks) * pod.rank;
        let grown = (headroom / (2 * ranks)).max(jump);
        // Others are published where it moves by more.
        let fine = step.div_ceil(4);
        let min_pod = pod
            .held
            .saturating_add(pod.huge_pages)
            .saturating_add(grown);
        KillLimits {
            min_task_bytes: in_steps(left).saturating_add(deeper),
            max_task_bytes: in_steps(headroom),
            min_pod_bytes: min_pod.div_ceil(fine).saturating_mul(fine),
        }
    }

    /// Cuts what is not below this capacity, so that it could never be kept: the threshold to a tenth of the capacity, a
    /// resolved amount to the threshold.
    pub fn within(self, capacity: u64) -> Self {
        let threshold = match self.threshold < capacity {
            true => self.threshold,
            false => capacity / 10,
        };
        let resolved = match self.resolved < capacity {
            true => self.resolved,
            false => threshold,
        };
        let floor = self.floor.map(|floor| match floor < threshold {
            true => floor,
            false => threshold / 2,
        });
        Self {
            threshold,
            resolved,
            floor,
            ..self
        }
    }

    /// The first amount that is not below this capacity, so that it can never be kept, with its bytes.
    pub fn above(&self, capacity: u64) -> Option<(Amount, u64)> {
        let amounts = [
            (Amount::Threshold, Some(self.threshold)),
            (Amount::Resolved, Some(self.resolved)),
            (Amount::Floor, self.floor),
        ];
        let mut amounts = amounts
            .into_iter()
            .filter_map(|(which, n)| Some((which, n?)));
        amounts.find(|(_, bytes)| *bytes >= capacity)
    }
}

/// Guard by another count of what is left of a scope's memory than the kubelet's: the last bytes before the OOM killer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGuard {
    /// Count that the memory guard goes by.
    pub source: MemoryGuardSource,
    /// Bytes that must be left by the memory guard's count: with less, the threshold is met, whatever the kubelet's count
    /// says.
    pub amount: u64,
}

/// Count that a guard goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryGuardSource {
    /// The kernel's `MemAvailable`.
    Machine,
    /// What the kernel can take in a cgroup without waiting for a disk: where reclaim finds nothing but dirty pages, the
    /// OOM killer comes. v1 does not make a group's writers wait (`balance_dirty_pages` knows groups on v2 only) and
    /// leaves dirty pages to the flusher (`shrink_folio_list`); on v2 with MGLRU the writers wait too late, and the
    /// flusher is not called (`evict_folios`).
    Written {
        /// Whether what grows waits for the writeback all the same: reclaim of v1 does (`shrink_folio_list`), that by
        /// generations (MGLRU) does not.
        is_awaited: bool,
    },
    /// Kubelet's count in another cgroup of v2, without page cache that `memory.min` protects. A writer that writes more
    /// than the disk can take waits there.
    Counted,
}

/// Rules by which a scope's memory is counted.
#[derive(Clone, Copy, Debug)]
pub struct Accounting {
    /// Capacity of the scope, in bytes.
    pub capacity: u64,
    /// Amounts that must stay available in the scope.
    pub thresholds: MemoryThresholds,
    /// The scope is the whole machine. Its usage (kubelet's formula) differs from the root's page counter.
    pub is_machine: bool,
    /// The OOM killer acts at its own limit, if not before.
    pub is_limited: bool,
    /// The usage is that of a root: anonymous memory and page cache.
    pub is_root: bool,
    /// Page cache on the active list counts as available too.
    pub counts_active_file: bool,
    /// Guard by another count than the kubelet's; `None` where there is none.
    pub guard: Option<MemoryGuard>,
    /// Bytes of pods' page cache that the kernel will not take back (`memory.min`).
    pub protected_cache: u64,
}

/// A memory guard's count of what is left.
#[derive(Clone, Copy)]
struct GuardReading {
    /// Bytes that are left by the memory guard's count.
    left: u64,
    /// Bytes of the machine's memory that cannot be reclaimed, which was read with it: memory that is plugged in or taken by
    /// a balloon changes nothing in it.
    used: Option<u64>,
    /// Swap that pods may use beside `left`: on the machine the OOM killer does not come before it is used up, which the
    /// kubelet's count of available memory does not know either.
    swap: u64,
    /// Bytes that should be left by the memory guard's count.
    amount: u64,
    /// The part of `left` that lies in the CPUs' lists of free pages.
    pcp_free: u64,
}

impl GuardReading {
    /// `left` on the signal's scale: equals the threshold exactly when the memory guard's amount is left. A guard amount above
    /// the threshold counts as the threshold.
    fn as_signal_amount(self, threshold: u64) -> u64 {
        let left = self.left.saturating_add(self.swap);
        left.saturating_add(threshold.saturating_sub(self.amount))
    }
}

/// The scope at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// All that is charged, and what the memory guard adds.
    pub usage: u64,
    /// The part of it that counts as available.
    pub reclaimable_cache: u64,
    /// capacity - usage + `reclaimable_cache`, no more than the memory guard leaves and without protected page cache: for
    /// triggers and reports.
    pub guarded_available: u64,
    /// What the kubelet counts as available: without a guard, and with no page cache but that on the inactive list.
    pub kubelet_available: u64,
    /// Bytes that are charged and are in no line of `memory.stat` ([`MemoryReading::uncategorized`]).
    pub uncategorized: u64,
    /// Kernel memory, where it has a counter of its own ([`MemoryReading::kernel`]), without what is counted as
    /// reclaimable.
    pub kernel: u64,
    /// What the kernel can take back ([`MemoryReading::reclaimable`]), in bytes. For a cgroup without slab, part of
    /// which may be in use.
    pub reclaimable: u64,
    /// What is short of it, for the pace: its `available` is the kubelet's count, on the machine bounded by the memory guard.
    pub shortage: Shortage,
}

impl MemorySample {
    /// Whether less than so many bytes were available without the CPUs' lists of free pages.
    pub fn is_short_without_pcp_free(&self, threshold: u64) -> bool {
        self.guarded_available
            .saturating_sub(self.shortage.pcp_free)
            < threshold
    }

    /// Counts `bytes` of the statistics' lag as page cache.
    pub fn count_lag_as_cache(&mut self, bytes: u64) {
        let bytes = self.add_estimate(bytes);
        self.shortage.headroom.immediate += bytes;
        self.shortage.stat_lag = self.shortage.stat_lag.saturating_sub(bytes);
    }

    /// Counts `bytes` of the scope's kernel memory as reclaimable, because they turned out to be slab. They may be in
    /// use, as on v2: inodes of open files.
    pub fn count_slab_as_reclaimable(&mut self, bytes: u64) {
        let bytes = self.add_estimate(bytes);
        self.shortage.headroom.deferred += bytes;
        self.shortage.kernel = self.shortage.kernel.saturating_sub(bytes);
    }

    fn add_estimate(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.shortage.used);
        self.reclaimable += bytes;
        self.shortage.used -= bytes;
        self.shortage.estimated += bytes;
        bytes
    }
}

/// What is in use of a scope, in bytes, and what is left.
struct Balance {
    /// Memory that cannot be given back without an eviction.
    used: u64,
    left: u64,
    /// The part of `left` that is slab, of which more may be in use.
    slab: u64,
}

impl Accounting {
    /// Computes the sample that these numbers make; `machine` is read where the memory guard is the machine's. Does not
    /// allocate.
    pub fn sample(
        &self,
        reading: &MemoryReading,
        machine: Option<MachineMemory>,
        swap: SwapUse,
    ) -> MemorySample {
        let reclaimable_cache = self.reclaimable_cache(reading);
        let available = |cache| {
            let working_set = reading.usage.saturating_sub(cache);
            self.capacity.saturating_sub(working_set)
        };
        let counted = available(reclaimable_cache);
        let free = self.capacity.saturating_sub(reading.usage);
        let written = reclaimable_cache.saturating_sub(reading.dirty_or_writeback);
        let guard = self.guard_reading(free, written, machine, swap.usable);
        let cache = reading.reclaimable();
        // On v1 kernel memory is not told apart; the part that keeps track of page cache goes with it.
        let of_cache = reading.kernel.min(cache / KERNEL_OF_CACHE);
        let reclaimable = match self.is_machine {
            // A root's usage is made of anonymous memory and page cache.
            true if self.is_root => cache.saturating_sub(reading.slab_reclaimable),
            true => cache,
            false => cache.saturating_add(of_cache),
        };
        let shortage = self.shortage(reading, swap, reclaimable, counted, guard);
        let left = guard.map(|guard| guard.as_signal_amount(self.thresholds.threshold));
        let left = left.into_iter().chain(self.left_unprotected(&shortage));
        let guarded_available = left.fold(counted, u64::min);
        let lacking = counted - guarded_available;
        // Triggers compare usage, so what is lacking is put into it. Machine: as if that much more were in use. Cgroup:
        // as if that much less page cache counted as available; it is never more than counts.
        let (used, withheld) = if self.is_machine {
            (lacking, 0)
        } else {
            (0, lacking)
        };
        MemorySample {
            usage: reading.usage.saturating_add(used),
            reclaimable_cache: reclaimable_cache.saturating_sub(withheld),
            guarded_available,
            kubelet_available: available(reading.inactive_file),
            uncategorized: reading.uncategorized,
            kernel: reading.kernel - of_cache,
            reclaimable: match self.is_machine {
                true => reclaimable,
                false => reclaimable.saturating_sub(reading.slab_reclaimable),
            },
            shortage,
        }
    }

    /// What the memory guard knows to be left. `free` is not charged, `written` is page cache that counts as available and can
    /// be taken at once, `swap` what pods may use; all in bytes.
    fn guard_reading(
        &self,
        free: u64,
        written: u64,
        machine: Option<MachineMemory>,
        swap: u64,
    ) -> Option<GuardReading> {
        let MemoryGuard { source, amount } = self.guard?;
        let (left, used, pcp_free, swap) = match source {
            // A file that cannot be read says nothing; the kubelet's count remains.
            MemoryGuardSource::Machine => {
                let MachineMemory {
                    total,
                    available,
                    unreclaimable,
                    pcp_free,
                } = machine?;
                let left = available.saturating_add(pcp_free).min(total);
                let used = unreclaimable.saturating_sub(pcp_free);
                (left, Some(used), pcp_free, swap)
            }
            MemoryGuardSource::Written { .. } => (free.saturating_add(written), None, 0, 0),
            MemoryGuardSource::Counted => return None,
        };
        Some(GuardReading {
            left,
            used,
            swap,
            amount,
            pcp_free,
        })
    }

    /// Computes the shortage from which the pace of evictions is decided.
    fn shortage(
        &self,
        reading: &MemoryReading,
        SwapUse { swapped, usable }: SwapUse,
        reclaimable: u64,
        counted: u64,
        guard: Option<GuardReading>,
    ) -> Shortage {
        let MemoryThresholds {
            threshold,
            resolved,
            is_kubelets,
            ..
        } = self.thresholds;
        // The kernel's own count of the machine is the better one.
        let machine = guard.filter(|_| self.is_machine);
        let Balance { used, left, slab } = self.balance(reading, reclaimable, machine);
        let dirty_or_writeback = match guard {
            Some(_) if !self.is_machine => reading.dirty_or_writeback.min(reclaimable).min(left),
            _ => 0,
        };
        let deferred = dirty_or_writeback.saturating_add(slab).min(left);
        let protected = self.protected_cache.min(reading.reclaimable());
        // What is protected stays when it is written.
        let freed_when_written =
            dirty_or_writeback.min(left.saturating_sub(slab.saturating_add(protected)));
        let protected = protected.min(left - deferred);
        // The kernel's view counts where it is another one: memory that grows is urgent although the kubelet finds
        // enough.
        let amount = match (guard, self.guard) {
            (Some(guard), _) => guard.amount,
            (None, Some(guard)) if protected > 0 => guard.amount,
            _ => 0,
        };
        let on_scale = machine.map(|machine| machine.as_signal_amount(threshold));
        let available = on_scale.map_or(counted, |left| left.min(counted));
        Shortage {
            available,
            beyond_guard: counted - available,
            threshold,
            resolved,
            used,
            dying: 0,
            skew: 0,
            kernel: reading.kernel.min(used),
            stat_lag: 0,
            estimated: 0,
            headroom: Headroom {
                immediate: left - deferred - protected,
                deferred,
                deferred_per_second: WRITES_PER_SECOND,
                swap: usable,
            },
            dirty_or_writeback: freed_when_written,
            awaits_writeback: dirty_or_writeback > 0
                && self.guard.is_some_and(|guard| {
                    guard.source == MemoryGuardSource::Written { is_awaited: true }
                }),
            swapped,
            swap_free: 0,
            guard_amount: amount.min(threshold),
            limited_growth: LimitedGrowth::default(),
            pcp_free: machine.map_or(0, |guard| guard.pcp_free),
            is_kubelets,
        }
    }

    /// Computes what is in use and what is left. `machine` is the kernel's count, where the scope is the machine.
    fn balance(
        &self,
        reading: &MemoryReading,
        reclaimable: u64,
        machine: Option<GuardReading>,
    ) -> Balance {
        if let Some(GuardReading {
            left,
            used: Some(used),
            ..
        }) = machine
            && !self.is_limited
        {
            let slab = 0;
            return Balance { used, left, slab };
        }
        let own = reading.usage.saturating_sub(reclaimable);
        // Below its own limit there may be less than on the machine.
        let lacking = machine.map(|machine| self.capacity.saturating_sub(machine.left));
        let used = own.max(lacking.unwrap_or(0));
        Balance {
            used,
            left: self.capacity.saturating_sub(used),
            // The kernel does not tell slab that it can give back from slab in use: inodes of open sockets and pipes,
            // files on tmpfs. Its count of the machine takes a few MiB of it for in use.
            slab: match used > own {
                true => 0,
                false => reading.slab_reclaimable.min(reclaimable),
            },
        }
    }

    /// What is left beside page cache that is protected, as an amount of the signal: the threshold itself when the
    /// guard's amount is left. The triggers follow it; a pod that is not urgent goes by [`Shortage::available`].
    fn left_unprotected(&self, shortage: &Shortage) -> Option<u64> {
        let headroom = shortage.headroom;
        // As for the memory guard ([`GuardReading::swap`]).
        let swap = if self.is_machine { headroom.swap } else { 0 };
        let left = headroom.immediate.saturating_add(headroom.deferred);
        let left = left.saturating_add(swap);
        let is_seen = self.protected_cache > 0 && shortage.guard_amount > 0;
        is_seen.then(|| left.saturating_add(shortage.threshold - shortage.guard_amount))
    }

    /// Computes what counts as available although it is charged, in bytes.
    fn reclaimable_cache(&self, reading: &MemoryReading) -> u64 {
        let active = if self.counts_active_file {
            reading.active_file
        } else {
            0
        };
        reading.inactive_file.saturating_add(active)
    }

    /// The usage at which `amount` is no longer available, as the kubelet's notifier computes it
    /// (`threshold_notifier_linux.go`): capacity - amount + inactive_file. The comparison is "less than", so the
    /// trigger is one byte further.
    pub fn usage_limit(&self, amount: u64, reclaimable_cache: u64) -> u64 {
        self.capacity
            .saturating_sub(amount)
            .saturating_add(reclaimable_cache)
            .saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
