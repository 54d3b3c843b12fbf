//! Cgroups of a pod with memory limits of their own: there the kernel ends a growth, by an OOM kill within the cgroup.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use evictd_engine::{model::usage::MemoryReading, shortage::LimitedGrowth};

use crate::cgroup::{
    memory::{MemoryCgroup, read_limit},
    swap::SwapUsage,
    tree::{FollowedCgroup, FollowedCgroups, subdirectories},
};

/// Cgroups of one pod that have memory limits, its own and its containers', with their files held open.
#[derive(Debug)]
pub struct LimitedCgroups {
    pod: Arc<MemoryCgroup>,
    /// A cgroup stands before those below it.
    list: Vec<Arc<LimitedCgroup>>,
    /// For each of the list, the position of the next one above it.
    above: Vec<Option<usize>>,
}

/// One cgroup with a memory limit.
#[derive(Debug)]
pub struct LimitedCgroup {
    /// Memory of the cgroup.
    pub memory: Arc<MemoryCgroup>,
    limit: File,
    /// Bytes of the limit when it was read last.
    last: AtomicU64,
    swapped: SwapUsage,
}

/// Bytes that are in use and left below a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BelowLimit {
    /// Bytes that only the end of processes gives back, in memory and in swap: at its limit a cgroup grows in swap alone.
    /// Without huge pages, which are no growth of the machine.
    pub unreclaimable: u64,
    /// What these may come to by the cgroup's own limit, with what it has in swap.
    pub limit: u64,
    /// Bytes of unreclaimable memory that still fit below the limit, and below those of the cgroups above.
    pub left: u64,
}

impl LimitedCgroups {
    /// Opens those of a pod's cgroups that have a limit; one that vanishes is left out. What is open of them in `before`
    /// is shared.
    pub fn reopen(found: &FollowedCgroups, pod: &Arc<MemoryCgroup>, before: Option<&Self>) -> Self {
        let before = before.map_or(&[][..], |before| &before.list);
        let open = |cgroup: &FollowedCgroup| {
            let same = before.iter().find(|open| open.memory.id() == cgroup.id);
            let open = || LimitedCgroup::open(cgroup, pod).map(Arc::new);
            same.cloned().or_else(open)
        };
        let list: Vec<Arc<LimitedCgroup>> = found.list.iter().filter_map(open).collect();
        let path = |at: usize| list[at].memory.path();
        let next_above = |at| {
            (0..at)
                .rev()
                .find(|above| path(at).starts_with(path(*above)))
        };
        Self {
            pod: Arc::clone(pod),
            above: (0..list.len()).map(next_above).collect(),
            list,
        }
    }

    /// Whether one of the pod's cgroups has got a limit since these were opened: a container runtime makes a cgroup and
    /// prepares the container's root before it writes the limit.
    pub fn miss_one_of(&self, found: &FollowedCgroups) -> bool {
        let is_open = |id| self.list.iter().any(|open| open.memory.id() == id);
        let mut others = found.list.iter().filter(|cgroup| !is_open(cgroup.id));
        others.any(|cgroup| LimitedCgroup::open(cgroup, &self.pod).is_some())
    }

    /// Takes note of other limits; the kubelet resizes pods. For threads of normal priority.
    pub fn look_at_limits(&self) {
        for one in &self.list {
            // By a file of its own: the fast path would wait for a reader of the open one that has lost its CPU.
            if let Ok(Some(limit)) = one.memory.limit() {
                one.last.store(limit, Ordering::Relaxed);
            }
        }
    }

    /// The open `memory.stat` of the pod, or of one of them, by the kernel's id of the cgroup.
    pub(super) fn stat_of(&self, id: u64) -> Option<&Arc<File>> {
        let limited = self.list.iter().map(|one| &one.memory);
        let mut open = std::iter::once(&self.pod).chain(limited);
        open.find(|memory| memory.id() == id)
            .map(|memory| memory.stat())
    }

    /// The cgroups, by position: one stands before those below it.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &LimitedCgroup)> {
        self.list.iter().map(|one| &**one).enumerate()
    }

    /// The growth that these limits will end, by what `growth` tells of the cgroup at a position: its growth, and the room below
    /// its limit. Does not allocate.
    pub fn limited_growth(
        &self,
        growth: &mut impl FnMut(usize, &LimitedCgroup) -> (LimitedGrowth, u64),
    ) -> LimitedGrowth {
        self.growth_below(None, growth)
    }

    /// The growth that is ended by the limits next below that of the cgroup at `above`; `None`: by the uppermost ones.
    fn growth_below(
        &self,
        above: Option<usize>,
        growth: &mut impl FnMut(usize, &LimitedCgroup) -> (LimitedGrowth, u64),
    ) -> LimitedGrowth {
        let next_below = self.iter().zip(&self.above).filter(|(_, of)| **of == above);
        next_below.fold(LimitedGrowth::default(), |all, ((at, one), _)| {
            let below = self.growth_below(Some(at), growth);
            let (own, room) = growth(at, one);
            all.merged(own.or_of_those_below(below, room))
        })
    }

    /// What is in use of the cgroup at a position; `None` where it is gone, or past its limit, so that it has another
    /// one. Does not allocate.
    pub fn read(&self, at: usize) -> Option<BelowLimit> {
        let own = self.list.get(at)?;
        let (limit, reading) = own.read()?;
        let (held, huge_pages) = (reading.unreclaimable(), reading.hugetlb);
        let next_above = |at: &usize| self.above.get(*at).copied().flatten();
        let above = std::iter::successors(next_above(&at), next_above);
        let above = above.filter_map(|at| self.list.get(at)?.read());
        let left = above.map(|(limit, reading)| limit.saturating_sub(reading.unreclaimable()));
        let swapped = own.swapped.read(reading.swap_cached);
        Some(BelowLimit {
            unreclaimable: (held - huge_pages.min(held)).saturating_add(swapped),
            limit: (limit - huge_pages.min(limit)).saturating_add(swapped),
            left: left.fold(limit.saturating_sub(held), u64::min),
        })
    }
}

/// Charges that must not fail (`__GFP_NOFAIL`, `__GFP_HIGH`, `PF_MEMALLOC`) go past a limit by pages, and by no more than
/// this part of it.
const FORCED_PART: u64 = 32;

impl LimitedCgroup {
    /// Bytes of the limit when it was read last.
    pub fn last_limit(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// `None`: it has no limit.
    fn open(cgroup: &FollowedCgroup, pod: &Arc<MemoryCgroup>) -> Option<Self> {
        // The first read takes the kernel's buffer, as that of `open_primed`.
        let limit = File::open(cgroup.path.join(pod.version().limit_file())).ok()?;
        let last = AtomicU64::new(read_limit(&limit).ok()??);
        let memory = match cgroup.id == pod.id() {
            true => Arc::clone(pod),
            false => Arc::new(MemoryCgroup::open(&cgroup.path).ok()?),
        };
        Some(Self {
            memory,
            limit,
            last,
            swapped: SwapUsage::open(&cgroup.path),
        })
    }

    /// Limit and memory; `None` where it is past its limit.
    fn read(&self) -> Option<(u64, MemoryReading)> {
        let (limit, reading) = (read_limit(&self.limit).ok()??, self.memory.read().ok()?);
        let most = limit.saturating_add(limit / FORCED_PART);
        self.last.store(limit, Ordering::Relaxed);
        (reading.usage <= most).then_some((limit, reading))
    }
}

/// Bytes until a pod or one of its containers meets its own limit, whichever is first; `None` without one. Page cache
/// that is not active gives way before. For threads of normal priority, by files that are opened for it.
pub fn headroom_below_limits(pod: &MemoryCgroup) -> Option<u64> {
    let room = |cgroup: &MemoryCgroup| {
        let limit = cgroup.limit().ok()??;
        Some(limit.saturating_sub(cgroup.read().ok()?.working_set()))
    };
    let containers = subdirectories(pod.path());
    let rooms = containers.filter_map(|dir| room(&MemoryCgroup::open(&dir).ok()?));
    rooms.chain(room(pod)).min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_container_has_the_least_that_is_left_of_its_limit_and_its_pods() {
        let dir = tempfile::tempdir().unwrap();
        let uses = |path: &str, usage: u64, limit: &str| {
            let dir = dir.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
            write("memory.current", (usage * MIB).to_string());
            write("memory.max", limit.to_owned());
            write(
                "memory.stat",
                format!("inactive_file {}\nactive_file 0\n", MIB),
            );
        };
        let mib = |mib: u64| (mib * MIB).to_string();
        uses("", 150, &mib(200));
        uses("sandbox", 1, "max");
        uses("app", 100, &mib(120));
        uses("app/inner", 60, &mib(60));
        for (name, text) in [("max", "max".to_owned()), ("current", mib(20))] {
            fs::write(dir.path().join(format!("app/memory.swap.{name}")), text).unwrap();
        }
        uses("sidecar", 49, &mib(190));
        let found = FollowedCgroups::find(dir.path()).unwrap();
        let pod = Arc::new(MemoryCgroup::open(dir.path()).unwrap());
        let limited = LimitedCgroups::reopen(&found, &pod, None);
        let position = |name: &str| {
            let path = dir.path().join(name);
            limited
                .iter()
                .find(|(_, one)| one.memory.path() == path)
                .unwrap()
                .0
        };
        let seen = |name: &str| {
            let uses = limited.read(position(name));
            uses.map(|uses| (uses.unreclaimable / MIB, uses.left / MIB))
        };
        assert_eq!(seen("app"), Some((119, 21)), "20 MiB are in swap");
        assert_eq!(limited.read(position("app")).unwrap().limit, 140 * MIB);
        assert_eq!(seen("app/inner"), Some((59, 1)));
        assert_eq!(seen("sidecar"), Some((48, 51)));
        assert_eq!(headroom_below_limits(&pod), Some(21 * MIB));
        // A pod that is resized in place.
        uses("sidecar", 49, &mib(60));
        assert_eq!(seen("sidecar"), Some((48, 12)));
        // At its limit, with charges that the kernel has forced.
        uses("app", 121, &mib(120));
        assert_eq!(seen("app"), Some((140, 0)));
        // Past its limit: that is another one by now.
        uses("app", 130, &mib(120));
        assert_eq!(seen("app"), None);
    }
    /// The innermost limit of those that end most of the growth.
    #[test]
    fn a_limit_between_others_ends_a_growth_that_theirs_do_not() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["", "runner", "runner/step", "side"] {
            let dir = dir.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            let files = [
                ("memory.current", "0"),
                ("memory.max", "4096"),
                ("memory.stat", "inactive_file 0\n"),
            ];
            for (name, text) in files {
                fs::write(dir.join(name), text).unwrap();
            }
        }
        let found = FollowedCgroups::find(dir.path()).unwrap();
        let pod = Arc::new(MemoryCgroup::open(dir.path()).unwrap());
        let limited = LimitedCgroups::reopen(&found, &pod, None);
        // What is left below the limit of each, in this order: pod, runner, step, side.
        let left_where = |grows: [u64; 4]| {
            let mut growth = |_, one: &LimitedCgroup| {
                let paths = ["", "runner", "runner/step", "side"].map(|path| dir.path().join(path));
                let at = paths
                    .iter()
                    .position(|path| one.memory.path() == path)
                    .unwrap();
                let left = [1000, 100, 10, 1][at];
                let growth = LimitedGrowth {
                    grown: grows[at],
                    growth: grows[at],
                    left,
                };
                (growth, left)
            };
            limited.limited_growth(&mut growth).left
        };
        assert_eq!(left_where([80, 80, 0, 0]), 100);
        assert_eq!(left_where([80, 80, 75, 0]), 10);
        assert_eq!(left_where([80, 20, 0, 0]), 1000);
    }
}
