//! The memory trigger.
//!
//! A trigger is one counter and one limit. The counter is a cgroup's `page_counter` (found by the cgroup's id, the
//! inode number of its directory). The agent writes [`MemoryTrigger`], the programs write [`TriggerState`]: two maps,
//! so that neither side can overwrite what the other one wrote.

/// Pages that a CPU charges in advance (`MEMCG_CHARGE_BATCH`): the counter moves by so much at once.
pub const CHARGE_BATCH: u64 = 64;

/// Bytes of a charge batch, with pages of `page_size` bytes.
pub const fn batch_bytes(page_size: u64) -> u64 {
    CHARGE_BATCH * page_size
}

/// Whether a limit in pages is none: `PAGE_COUNTER_MAX` (`LONG_MAX / PAGE_SIZE`), or so close to it that no machine has
/// as much.
#[inline(always)]
pub const fn is_unlimited(pages: u64, page_shift: u32) -> bool {
    pages >= (i64::MAX as u64 >> page_shift) / 2
}

/// log2 of twice the number of CPUs, rounded up. [`skip_allowance`] shifts the distance to a limit right by it, so that
/// all CPUs together use up at most half.
pub const fn slack_shift(cpus: u64) -> u32 {
    (2 * cpus).next_power_of_two().ilog2()
}

/// Pages that one CPU may let pass without a comparison, `nearest` pages from the nearest limit. If every CPU does so
/// and is about to charge a batch, at most half of the distance is used up.
#[inline(always)]
pub const fn skip_allowance(nearest: u64, shift: u32) -> u64 {
    let share = nearest.saturating_sub(CHARGE_BATCH << shift) >> shift;
    if share < CHARGE_BATCH {
        share
    } else {
        CHARGE_BATCH
    }
}

/// Scopes that one program watches at once: the node, and the pods' cgroup.
pub const MAX_SCOPES: u32 = 2;
/// Slots of one scope, see [`slot`]; those of scope `n` begin at `n * SLOTS_PER_SCOPE`.
pub const SLOTS_PER_SCOPE: u32 = 5;
/// Slots in the maps `TRIGGERS` and `TRIGGER_STATE`.
pub const MAX_TRIGGERS: u32 = MAX_SCOPES * SLOTS_PER_SCOPE;

/// What the slots of a scope are for. The programs only need to know whose they are.
pub mod slot {
    /// The hard threshold's trigger.
    pub const HARD: u32 = 0;
    /// The floor's trigger.
    pub const FLOOR: u32 = 1;
    /// A trigger that trips at the next charge, to learn what the counter of the machine reads.
    pub const CALIBRATION: u32 = 2;
    /// The way back: trips when enough is available again.
    pub const RECOVERY: u32 = 3;
    /// A little before the hard threshold: time to get ready.
    pub const APPROACH: u32 = 4;
}

/// A limit that no rising counter reaches: the slot is in use, but not armed.
pub const NEVER: u64 = u64::MAX;

/// How long a crossing may stay unread before the next charge wakes the thread of its CPU, in nanoseconds. Most
/// wake-ups take less; a late one takes more.
pub const RENOTIFY_AFTER_NS: u64 = 60_000;

/// Pages that take longer than [`RENOTIFY_AFTER_NS`] to clear, when they are charged at once.
pub const SLOW_PAGES: u64 = 256;

/// Pods that the programs may kill from for each scope, by rank.
pub const MAX_VICTIMS: u32 = 16;

/// How long a crossing stays unread until the programs take the agent to be stopped or gone, in nanoseconds: longer
/// than a late wake-up takes, and less than what is left below a threshold lasts.
pub const ABSENT_AFTER_NS: u64 = 20_000_000;

/// The layout of these records, for agents that find what an agent of another version has pinned.
pub const LAYOUT: u64 = 7;

/// Direction in which a trigger is crossed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Crossing upwards: the counter is at the limit or above.
    Rising = 0,
    /// Crossing downwards: the counter is at the limit or below.
    Falling = 1,
}

/// Action of the program at a crossing.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One record into the trigger's ring buffer per arming, and the agent is woken.
    Wake = 0,
    /// SIGKILL to the allocating task, if its pod is the victim of rank 0, the task holds at least
    /// [`VictimLimits::min_task_pages`], and the pinned guard's figures are still trusted (`ebpf/src/memory/guard.rs`).
    Kill = 1,
    /// The record, and no wake-up: for measurements.
    RecordOnly = 2,
    /// Like [`Self::Wake`]; and where the agent has not come [`RENOTIFY_AFTER_NS`] later, the next charge wakes the
    /// thread that waits on the CPU that makes it. A hook that cannot tell where that is only wakes the agent.
    WakeLocal = 3,
}

/// One armed trigger, written by the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTrigger {
    /// Id of the cgroup whose `memory.usage` is watched.
    pub cgroup_id: u64,
    /// The limit in pages; [`NEVER`] is compared with nothing.
    pub limit: u64,
    /// Counts the armings of this slot from 1; 0 means that this slot and all behind it are unused.
    pub generation: u64,
    /// A [`Direction`].
    pub direction: u32,
    /// An [`Action`].
    pub action: u32,
    /// For the hard threshold: the limit as if no page cache counted as available, in pages; else 0.
    pub full: u64,
}

/// What a program remembers of a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerState {
    /// Address of the `struct mem_cgroup`, once a charge below it has shown it; 0 before.
    pub memcg: u64,
    /// The cgroup id that `memcg` was found for.
    pub cgroup_id: u64,
    /// Address of the last `mem_cgroup` that was found not to lie below the watched one.
    pub last_miss: u64,
    /// The generation in which `last_miss` was recorded. A later one looks again: the address may then belong to
    /// another cgroup.
    pub last_miss_generation: u64,
    /// The generation that tripped last.
    pub tripped: u64,
    /// When the slot tripped last, in nanoseconds of CLOCK_MONOTONIC.
    pub tripped_ns: u64,
    /// The producer position of the ring buffer behind its record.
    pub position: u64,
    /// When a thread was last woken for that crossing, in nanoseconds of CLOCK_MONOTONIC; 0 once the agent has read the
    /// record.
    pub woken_ns: u64,
}

/// What the agent leaves to the programs for the time when it is stopped or gone. Times are nanoseconds of
/// CLOCK_MONOTONIC.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentLease {
    /// [`LAYOUT`].
    pub layout: u64,
    /// Moment until which the agent counts as alive, unless a crossing stays unread for [`ABSENT_AFTER_NS`].
    pub lease_ns: u64,
    /// Moment until which the programs act on what was left at the agent's last look; later, other pods may have given
    /// memory back.
    pub trusted_ns: u64,
    /// Moment from which on nothing is killed; 0: programs never act in the agent's place.
    pub expires_ns: u64,
}

/// A pod that the programs may kill from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VictimKey {
    /// Id of the pod's cgroup.
    pub cgroup_id: u64,
    /// The scope that is short.
    pub scope: u64,
}

/// When the programs may kill a task of this pod. `KillLimits` (`agent/engine/src/accounting.rs`) says what the limits
/// are for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimLimits {
    /// Place of the pod in the order of eviction, 0 for the first.
    pub rank: u64,
    /// `KillLimits::min_task_bytes`, in pages.
    pub min_task_pages: u64,
    /// `KillLimits::max_task_bytes`, in pages.
    pub max_task_pages: u64,
    /// `KillLimits::min_pod_bytes`, in pages.
    pub min_pod_pages: u64,
}

/// The last kill that the programs made from a pod, by the id of its cgroup, until the agent takes note of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelKillRecord {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The scope that was short.
    pub scope: u32,
    /// Pages by which the scope's counter was past [`MemoryTrigger::full`]; 0 where that is not known, as in a record of a
    /// layout before 7: there it is the upper half of `scope`.
    pub pages_past: u32,
}

/// One crossing, in the trigger's ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerEvent {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The generation that tripped.
    pub generation: u64,
    /// The counter at that moment, in pages.
    pub usage: u64,
    /// The limit that it crossed, in pages.
    pub limit: u64,
    /// Id of the cgroup that was charged.
    pub cgroup_id: u64,
    /// Thread group id of the task that was charged.
    pub tgid: u32,
    /// Slot of the trigger.
    pub slot: u32,
}

crate::plain_old_data!(
    KernelKillRecord = 8 + 2 * 4,
    AgentLease = 4 * 8,
    TriggerEvent = 5 * 8 + 2 * 4,
    MemoryTrigger = 4 * 8 + 2 * 4,
    TriggerState = 8 * 8,
    VictimLimits = 4 * 8,
    VictimKey = 2 * 8,
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of 4, 16 and 64 KiB.
    const PAGE_SHIFTS: [u32; 3] = [12, 14, 16];

    #[test]
    fn no_limit_is_told_from_a_limit_whatever_the_size_of_a_page() {
        for shift in PAGE_SHIFTS {
            let page_counter_max = i64::MAX as u64 / (1 << shift);
            assert!(is_unlimited(page_counter_max, shift), "{shift}");
            // A PiB, and what could not be read.
            assert!(!is_unlimited((1 << 50) >> shift, shift), "{shift}");
            assert!(!is_unlimited(0, shift), "{shift}");
        }
    }

    #[test]
    fn a_batch_is_64_pages_whatever_their_size() {
        let batches = PAGE_SHIFTS.map(|shift| batch_bytes(1 << shift));
        assert_eq!(batches, [256 << 10, 1 << 20, 4 << 20]);
    }

    /// 1 CPU, 2, 256, 512 and all between; a page from the limit, 2 TiB and all between.
    #[test]
    fn all_cpus_together_use_up_half_of_the_way_at_most() {
        for cpus in 1..=1024 {
            let shift = slack_shift(cpus);
            for distance in (0..=29).map(|bits| 1_u64 << bits) {
                for nearest in [distance - 1, distance, distance + distance / 3] {
                    let allowed = skip_allowance(nearest, shift);
                    assert!(allowed <= CHARGE_BATCH);
                    let used = cpus * (allowed + CHARGE_BATCH);
                    assert!(allowed == 0 || used <= nearest / 2, "{cpus} {nearest}");
                }
            }
        }
        assert_eq!([1, 2, 3, 256, 512].map(slack_shift), [1, 2, 3, 9, 10]);
        assert_eq!(skip_allowance(1 << 29, slack_shift(512)), CHARGE_BATCH);
    }
}
