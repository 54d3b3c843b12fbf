//! Where the memory of a cgroup may be swapped out to.
//!
//! Each of three limits holds: what the machine has, `memory.swap.max` of the scope's own cgroup, and those of the
//! pods' containers, which the kubelet sets by `memorySwap.swapBehavior`: 0 for all with `NoSwap`, its default. A
//! container can swap out no more than it has, whatever it may.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use evictd_engine::model::usage::SwapUse;
use evictd_sys::{fs::read_lossy, page::page_size};

use crate::{
    cgroup::{
        memory::{MemoryCgroup, Version},
        tree::subdirectories,
    },
    kernfile::{number, open_primed, pread, values_of},
    proc::machine::{MachineSwap, has_mglru, has_swap},
};

/// Swap that a cgroup may still use, with its files held open.
#[derive(Debug)]
pub(crate) struct SwapHeadroom {
    machine: MachineSwap,
    /// What the cgroup has swapped out, and its limit of that. The root, and v1, have only the machine's.
    own: Option<(File, File)>,
    /// Whether what is swapped out stays in memory, compressed (`zswap`, or a swap device on zram).
    compressed: bool,
}

impl SwapHeadroom {
    /// `None` where the machine has no swap, or the cgroup may not use any.
    pub fn open(cgroup: &MemoryCgroup) -> Option<Self> {
        Self::open_below(cgroup, Path::new("/proc"), Path::new("/sys"))
    }

    fn open_below(cgroup: &MemoryCgroup, proc: &Path, sys: &Path) -> Option<Self> {
        let machine = MachineSwap::open(proc).ok()?;
        let held = |name: &str| open_primed(&cgroup.path().join(name)).ok();
        let own = match cgroup.version() {
            Version::V2 => held("memory.swap.current").zip(held("memory.swap.max")),
            Version::V1 => None,
        };
        let zswap = sys.join("module/zswap/parameters/enabled");
        let is_zswap = fs::read(zswap).is_ok_and(|text| text.starts_with(b"Y"));
        let swaps = read_lossy(proc.join("swaps")).unwrap_or_default();
        let compressed = is_zswap || swaps.lines().any(is_on_zram);
        Some(Self {
            machine,
            own,
            compressed,
        })
    }

    /// What is free at this moment, where all pods together may swap out `pods` bytes more; of what is kept compressed,
    /// half is usable. Of what the cgroup has swapped out `swap_cached` bytes are in its memory as well. Does not
    /// allocate.
    pub fn read(&self, pods: u64, swap_cached: u64) -> SwapUse {
        let (free, used) = self.machine.read().unwrap_or_default();
        let own = self.own.as_ref().map(|(current, max)| {
            // `max` is no number.
            let limit = read(max).ok().flatten().unwrap_or(u64::MAX);
            let swapped = read(current).ok().flatten();
            // Where it is not known no swap counts.
            swapped.map_or((0, 0), |swapped| (limit, swapped))
        });
        let (limit, current) = own.unwrap_or((u64::MAX, 0));
        let usable = limit.saturating_sub(current).min(free).min(pods);
        let swapped = own.map(|(_, current)| current.saturating_sub(swap_cached));
        SwapUse {
            swapped: swapped.unwrap_or(used),
            usable: if self.compressed { usable / 2 } else { usable },
        }
    }
}

/// A line of `/proc/swaps`.
fn is_on_zram(line: &str) -> bool {
    line.starts_with("/dev/zram") || line.starts_with("/zram")
}

/// A cgroup without a swap limit that could swap out less than this counts as 0: a sandbox, CRI-O's conmon, or a
/// container whose limit is not written yet. In bytes.
const SANDBOX: u64 = 4 << 20;

/// Amount of memory that all pods together can and may swap out.
#[derive(Debug)]
pub struct PodSwap {
    /// Total that all pods may have swapped out: what they had at the last refresh plus what they may still add.
    /// `u64::MAX` if one has no limit.
    until: AtomicU64,
    /// What they have swapped out: `memory.swap.current` of the cgroups that they lie in. The fast path's own files.
    swapped: Vec<(PathBuf, File)>,
    /// What they had swapped out when the pods were looked at.
    seen: AtomicU64,
    /// The pods, with what each could swap out then ([`can_swap`]).
    pods: Vec<(Arc<MemoryCgroup>, AtomicU64)>,
    /// The machine has swap; otherwise nothing is read.
    is_read: bool,
    /// Reclaim at the limit of a cgroup swaps: `vm.swappiness` is not 0.
    swaps_at_limits: AtomicBool,
    /// Reclaim for the machine swaps: with a swappiness of 0 too (`get_scan_count`), but for reclaim by generations
    /// (MGLRU, `isolate_folios`).
    swaps_for_machine: AtomicBool,
    /// Path of the `swappiness` that is read: the machine's, or on v1 that of a pod's cgroup.
    swappiness: PathBuf,
    vmstat: PathBuf,
    /// A sysfs mount.
    sys: PathBuf,
}

impl Default for PodSwap {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(u64::MAX),
            swapped: Vec::new(),
            seen: AtomicU64::new(0),
            pods: Vec::new(),
            is_read: false,
            swaps_at_limits: AtomicBool::new(true),
            swaps_for_machine: AtomicBool::new(true),
            swappiness: "/proc/sys/vm/swappiness".into(),
            vmstat: "/proc/vmstat".into(),
            sys: "/sys".into(),
        }
    }
}

impl PodSwap {
    /// Opens the files above `pods`. What was known of one of them `before` is taken over until the next refresh, as a
    /// table is made with each pod that comes or goes; the others are looked at. Where the machine has no swap, nothing is
    /// opened or read.
    pub fn after<'a>(before: &Self, pods: impl Iterator<Item = &'a Arc<MemoryCgroup>>) -> Self {
        if !has_swap() {
            return Self::default();
        }
        Self::of_pods(before, pods.cloned().collect())
    }

    fn of_pods(before: &Self, pods: Vec<Arc<MemoryCgroup>>) -> Self {
        let mut parents: Vec<&Path> = pods.iter().filter_map(|pod| pod.path().parent()).collect();
        parents.sort_unstable();
        // A cgroup sorts before those below it, which it counts.
        parents.dedup_by(|below, above| below.starts_with(above));
        let of_pod = |pod: &Arc<MemoryCgroup>| pod.path().join("memory.swappiness");
        let v1 = pods.iter().find(|pod| pod.version() == Version::V1);
        let machine = Self::default();
        let open = |dir: &Path| {
            let path = dir.join("memory.swap.current");
            let file = open_primed(&path).ok()?;
            Some((path, file))
        };
        let mut swap = Self {
            swapped: parents.into_iter().filter_map(open).collect(),
            is_read: true,
            swappiness: v1.map_or(machine.swappiness, of_pod),
            vmstat: before.vmstat.clone(),
            sys: before.sys.clone(),
            ..Self::default()
        };
        let known = before.pods.iter().map(|(pod, can)| (pod.id(), can));
        let known: HashMap<u64, &AtomicU64> = known.collect();
        let mut swapped = swap.swapped_now();
        let pods = pods.into_iter().map(|pod| {
            let can = match known.get(&pod.id()) {
                Some(can) => {
                    // It is as old as that. What a pod that is gone had swapped out is in it no more.
                    swapped = swapped.min(before.seen.load(Ordering::Relaxed));
                    can.load(Ordering::Relaxed)
                }
                None => can_swap(&pod),
            };
            (pod, AtomicU64::new(can))
        });
        swap.pods = pods.collect();
        swap.set(swapped);
        swap
    }

    /// Looks at all of them anew: their memory grows, and limits change. For threads of normal priority, by files of
    /// their own.
    pub fn refresh(&self) {
        if !self.is_read {
            return;
        }
        // In this order: what is swapped out meanwhile counts twice rather than not at all.
        let swapped = self.swapped_now();
        for (pod, can) in &self.pods {
            can.store(can_swap(pod), Ordering::Relaxed);
        }
        self.set(swapped);
    }

    fn swapped_now(&self) -> u64 {
        let swapped = self.swapped.iter().filter_map(|(path, _)| bytes_in(path));
        swapped.fold(0, u64::saturating_add)
    }

    /// Adds up what is known of the pods, which had swapped out so many bytes then.
    fn set(&self, swapped: u64) {
        self.seen.store(swapped, Ordering::Relaxed);
        let can = self.pods.iter().map(|(_, can)| can.load(Ordering::Relaxed));
        let can = can.fold(0, u64::saturating_add);
        let until = match can {
            u64::MAX => u64::MAX,
            can => match can.saturating_sub(pinned(&self.vmstat)) {
                0 => 0,
                can => swapped.saturating_add(can),
            },
        };
        self.until.store(until, Ordering::Relaxed);
        let swaps = bytes_in(&self.swappiness) != Some(0);
        self.swaps_at_limits.store(swaps, Ordering::Relaxed);
        let swaps = swaps || !has_mglru(&self.sys);
        self.swaps_for_machine.store(swaps, Ordering::Relaxed);
    }

    /// Bytes that they can still swap out and may, at the limit of a cgroup or for the machine; the largest number
    /// where they are not limited. What was swapped out since all of them were looked at is left out. Does not
    /// allocate.
    pub fn left(&self, at_limit: bool) -> u64 {
        let swaps = match at_limit {
            true => &self.swaps_at_limits,
            false => &self.swaps_for_machine,
        };
        if !swaps.load(Ordering::Relaxed) {
            return 0;
        }
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 || until == u64::MAX {
            return until;
        }
        let swapped = self
            .swapped
            .iter()
            .map(|(_, file)| read(file).ok().flatten());
        until.saturating_sub(swapped.flatten().fold(0, u64::saturating_add))
    }
}

/// What a cgroup has swapped out: its `memory.swap.current`, held open. On cgroup v1, and where the cgroup may not swap,
/// nothing is open and it is 0: an open file is memory of the kernel.
#[derive(Debug)]
pub struct SwapUsage(Option<File>);

impl SwapUsage {
    /// Opens that of a cgroup.
    pub fn open(cgroup: &Path) -> Self {
        let may_swap = bytes_in(&cgroup.join("memory.swap.max")) != Some(0);
        let open = || open_primed(&cgroup.join("memory.swap.current")).ok();
        Self(may_swap.then(open).flatten())
    }

    /// Opens that of a pod, if the machine has swap.
    pub fn open_of_pod(cgroup: &Path) -> Self {
        match has_swap() {
            true => Self::open(cgroup),
            false => Self(None),
        }
    }

    /// Bytes that are swapped out, but for `swap_cached` bytes of them that are in memory as well. Does not allocate.
    pub fn read(&self, swap_cached: u64) -> u64 {
        let swapped = self.0.as_ref().and_then(|file| read(file).ok().flatten());
        swapped.unwrap_or(0).saturating_sub(swap_cached)
    }
}

/// What a pod can still swap out, by its own limit and those of its containers; the largest number: as much as there is.
fn can_swap(pod: &MemoryCgroup) -> u64 {
    if pod.version() == Version::V1 {
        return u64::MAX;
    }
    let can = |dir: &Path| {
        // Without a limit.
        let of_small = || match swappable_in(dir) < SANDBOX {
            true => 0,
            false => u64::MAX,
        };
        can_swap_in(dir).unwrap_or_else(of_small)
    };
    let mut containers = subdirectories(pod.path()).peekable();
    if containers.peek().is_none() {
        return can(pod.path());
    }
    let below = containers.map(|dir| can(&dir)).fold(0, u64::saturating_add);
    below.min(can_swap_in(pod.path()).unwrap_or(u64::MAX))
}

/// What is left of the limit, and no more than there is to be swapped out; `None` where there is no limit.
fn can_swap_in(dir: &Path) -> Option<u64> {
    let limit = bytes_in(&dir.join("memory.swap.max"))?;
    let swapped = bytes_in(&dir.join("memory.swap.current")).unwrap_or(0);
    Some(match limit.saturating_sub(swapped) {
        0 => 0,
        left => left.min(swappable_in(dir)),
    })
}

/// Reads the number in a file; `None` where it cannot be read or is no number.
fn bytes_in(path: &Path) -> Option<u64> {
    number(&fs::read(path).ok()?)
}

/// Anonymous and shared memory on the lists of reclaim. What is locked (`mlock`), and tmpfs without swap, as the
/// kubelet mounts memory-backed volumes since 6.4, are on none; page cache, of a log for example, is not swapped out.
fn swappable_in(dir: &Path) -> u64 {
    let stat = fs::read(dir.join("memory.stat")).unwrap_or_default();
    let lines = values_of(&stat, ["inactive_anon", "active_anon"]);
    lines.into_iter().flatten().sum()
}

/// Bytes of the machine that are pinned for devices (VFIO, RDMA, `io_uring`): they stay on the lists, and cannot be
/// swapped out. Whose they are, and whether they are anonymous, is not told. 0 before 5.7.
fn pinned(vmstat: &Path) -> u64 {
    let text = fs::read(vmstat).unwrap_or_default();
    let lines = values_of(&text, ["nr_foll_pin_acquired", "nr_foll_pin_released"]);
    let [acquired, released] = lines.map(Option::unwrap_or_default);
    acquired
        .saturating_sub(released)
        .saturating_mul(page_size())
}

fn read(file: &File) -> io::Result<Option<u64>> {
    Ok(number(pread(file, &mut [0; 32])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_a_cgroup_has_swapped_out_is_read_where_it_may_swap() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(SwapUsage::open(dir.path()).read(0), 0, "cgroup v1");
        write("memory.swap.current", "4096\n");
        for (max, swapped) in [("max\n", 4096), ("8192\n", 4096), ("0\n", 0)] {
            write("memory.swap.max", max);
            assert_eq!(SwapUsage::open(dir.path()).read(0), swapped, "{max}");
        }
    }

    fn room(swap_kib: u64, max: &str, zswap: &str, swaps: &str, pods: u64) -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/meminfo",
            &format!("MemTotal: 1 kB\nSwapTotal: {swap_kib} kB\nSwapFree: {swap_kib} kB\n"),
        );
        write("sys/module/zswap/parameters/enabled", zswap);
        write(
            "proc/swaps",
            &format!("Filename Type Size Used Priority\n{swaps}"),
        );
        for (name, text) in [
            ("current", "1"),
            ("stat", "anon 0\nfile 0\n"),
            ("swap.current", "1048576\n"),
            ("swap.max", max),
        ] {
            write(&format!("cgroup/memory.{name}"), text);
        }
        let cgroup = MemoryCgroup::open(&dir.path().join("cgroup")).unwrap();
        let room =
            SwapHeadroom::open_below(&cgroup, &dir.path().join("proc"), &dir.path().join("sys"));
        let read = room.map(|room| room.read(pods, 0));
        // What others of the machine have swapped out is not the cgroup's.
        assert!(read.is_none_or(|read| read.swapped == MIB));
        read.map(|read| read.usable)
    }

    #[test]
    fn the_least_of_all_limits_is_the_room() {
        const ALL: u64 = u64::MAX;
        let (file, zram) = (
            "/swapfile file 65536 0 -2\n",
            "/dev/zram0 partition 65536 0 100\n",
        );
        assert_eq!(room(0, "max\n", "N\n", file, ALL), None, "no swap");
        let limited = |max| room(64 << 10, max, "N\n", file, ALL);
        assert_eq!(limited("max\n"), Some(64 * MIB));
        assert_eq!(limited("9437184\n"), Some(8 * MIB));
        assert_eq!(limited("0\n"), Some(0));
        let compressed = |zswap, swaps| room(64 << 10, "max\n", zswap, swaps, ALL);
        assert_eq!(compressed("Y\n", file), Some(32 * MIB));
        assert_eq!(compressed("N\n", zram), Some(32 * MIB));
        assert_eq!(room(64 << 10, "max\n", "N\n", file, 5 * MIB), Some(5 * MIB));
    }

    /// A page has its place in swap as soon as it is on its way there, and keeps it for a while when it is read back.
    // R40
    #[test]
    fn what_is_in_memory_and_in_swap_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            fs::create_dir_all(dir.path().join("cgroup")).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        };
        let kib = |mib: u64| mib << 10;
        write(
            "meminfo",
            format!(
                "MemTotal: {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\nSwapCached: {} kB\nZswap: {} kB\n",
                kib(1024),
                kib(512),
                kib(400),
                kib(30),
                kib(2)
            ),
        );
        write("cgroup/memory.current", (100 * MIB).to_string());
        let stat = [
            ("anon", 50),
            ("file", 30),
            ("inactive_file", 30),
            ("active_file", 0),
            ("swapcached", 20),
            ("zswap", 5),
        ];
        let lines = stat.map(|(name, mib)| format!("{name} {}\n", mib * MIB));
        write("cgroup/memory.stat", lines.concat());
        write("cgroup/memory.swap.max", "max\n".into());
        write("cgroup/memory.swap.current", (60 * MIB).to_string());
        let cgroup = MemoryCgroup::open(&dir.path().join("cgroup")).unwrap();
        let reading = cgroup.read().unwrap();
        let swap = SwapHeadroom::open_below(&cgroup, dir.path(), dir.path()).unwrap();
        let all = swap.read(u64::MAX, reading.swap_cached);
        assert_eq!((all.swapped, all.usable), (35 * MIB, 400 * MIB));
        let pod = SwapUsage::open(cgroup.path());
        assert_eq!(pod.read(reading.swap_cached), 35 * MIB);
        let machine = SwapHeadroom { own: None, ..swap };
        assert_eq!(machine.read(u64::MAX, 0).swapped, 80 * MIB);
    }

    /// What pods can swap out and may, whose cgroups have these limits and usages: those of the pod, then those of its
    /// containers, of which the second has swapped out 1 MiB.
    fn pods(pods: &[&[(&str, u64)]]) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path(), pods).left(true)
    }

    fn made(dir: &Path, pods: &[&[(&str, u64)]]) -> PodSwap {
        fs::write(dir.join("memory.swap.current"), "1048576\n").unwrap();
        let made = pods.iter().enumerate().map(|(pod, groups)| {
            let pod = dir.join(format!("pod{pod}"));
            for (at, (max, usage)) in groups.iter().enumerate() {
                let dir = match at {
                    0 => pod.clone(),
                    _ => pod.join(format!("container{at}")),
                };
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("memory.swap.max"), max).unwrap();
                // As much page cache again.
                fs::write(dir.join("memory.current"), (usage * 2).to_string()).unwrap();
                let stat = format!("anon {usage}\nfile {usage}\nactive_anon {usage}\n");
                fs::write(dir.join("memory.stat"), stat).unwrap();
                let swapped = if at == 0 || at == 2 { MIB } else { 0 };
                fs::write(dir.join("memory.swap.current"), swapped.to_string()).unwrap();
            }
            Arc::new(MemoryCgroup::open(&pod).unwrap())
        });
        let swap = PodSwap {
            swappiness: dir.join("swappiness"),
            vmstat: dir.join("vmstat"),
            sys: dir.into(),
            ..PodSwap::of_pods(&PodSwap::default(), made.collect())
        };
        swap.refresh();
        swap
    }

    // R40
    #[test]
    fn a_container_can_swap_out_no_more_than_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let (gib, write) = (1 << 30, |name: &str, text: String| {
            fs::write(dir.path().join(name), text).unwrap();
        });
        let allowance = (16 * gib).to_string();
        // Burstable with LimitedSwap, beside a BestEffort hog, which may swap out nothing.
        let idle: &[_] = &[("max", gib), (&allowance, gib)];
        let swap = made(dir.path(), &[idle, &[("max", 9 * gib), ("0", 9 * gib)]]);
        assert_eq!(swap.left(true), gib);
        // What is swapped out leaves less at once; what grows is seen at the next look.
        write("memory.swap.current", (101 * MIB).to_string());
        assert_eq!(swap.left(true), gib - 100 * MIB);
        write(
            "pod0/container1/memory.swap.current",
            (100 * MIB).to_string(),
        );
        write(
            "pod0/container1/memory.stat",
            // A memory-backed volume of the kubelet is mounted without swap, and cannot be swapped out.
            format!(
                "anon {}\nshmem {}\ninactive_anon {}\nactive_anon {MIB}\nunevictable {}\n",
                2 * gib,
                7 * gib,
                2 * gib,
                7 * gib
            ),
        );
        swap.refresh();
        assert_eq!(swap.left(true), 2 * gib + MIB);
        // The limit is the lesser one.
        write("pod0/container1/memory.swap.max", (101 * MIB).to_string());
        swap.refresh();
        assert_eq!(swap.left(true), MIB);
        // The administrator has switched swapping off but for the machine.
        write("swappiness", "0\n".into());
        swap.refresh();
        assert_eq!((swap.left(true), swap.left(false)), (0, MIB));
        // Reclaim by generations does not swap for the machine either.
        fs::create_dir_all(dir.path().join("kernel/mm/lru_gen")).unwrap();
        write("kernel/mm/lru_gen/enabled", "0x0007\n".into());
        swap.refresh();
        assert_eq!(swap.left(false), 0);
        write("kernel/mm/lru_gen/enabled", "0x0000\n".into());
        swap.refresh();
        // The kubelet is started with NoSwap.
        write("pod0/container1/memory.swap.max", "0".into());
        swap.refresh();
        assert_eq!(swap.left(true), 0);
    }

    // R40
    #[test]
    fn of_known_pods_nothing_is_read_until_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let pod: &[_] = &[("max", 0), ("314572800", 100 * MIB)];
        let all = made(dir.path(), &[pod; 3]);
        let after = |before, pods: &[usize]| {
            let pods = pods.iter().map(|place| Arc::clone(&all.pods[*place].0));
            PodSwap::of_pods(before, pods.collect())
        };
        let none = PodSwap {
            vmstat: dir.path().join("vmstat"),
            ..PodSwap::default()
        };
        let before = after(&none, &[0, 1]);
        for pod in ["pod0", "pod1", "pod2"] {
            let stat = dir.path().join(pod).join("container1/memory.stat");
            fs::write(stat, format!("active_anon {}\n", 200 * MIB)).unwrap();
        }
        // A MiB was swapped out since.
        fs::write(dir.path().join("memory.swap.current"), "2097152\n").unwrap();
        let swap = after(&before, &[0, 1, 2]);
        assert_eq!(swap.left(true), (100 + 100 + 200 - 1) * MIB);
        assert_eq!(after(&swap, &[0]).left(true), 99 * MIB);
        swap.refresh();
        assert_eq!(swap.left(true), 600 * MIB);
    }

    // R40
    #[test]
    fn what_is_pinned_cannot_be_swapped_out() {
        let dir = tempfile::tempdir().unwrap();
        let limited: &[_] = &[
            ("max", 300 * MIB),
            ("max", 512 << 10),
            ("209715200", 300 * MIB),
        ];
        let swap = made(dir.path(), &[limited]);
        let left = |pinned: u64| {
            let lines = [("acquired", 7 + pinned / page_size()), ("released", 7)];
            let lines = lines.map(|(name, pages)| format!("nr_foll_pin_{name} {pages}\n"));
            fs::write(dir.path().join("vmstat"), lines.concat()).unwrap();
            swap.refresh();
            swap.left(true) / MIB
        };
        assert_eq!(swap.left(true) / MIB, 199, "the kernel does not tell");
        assert_eq!([0, 150 * MIB, 400 * MIB].map(left), [199, 49, 0]);
    }

    #[test]
    fn the_kubelet_limits_swap_container_by_container() {
        const SANDBOX: (&str, u64) = ("max", 512 << 10);
        let hog = |max| (max, 300 * MIB);
        // NoSwap; then LimitedSwap, of which 1 MiB is used.
        assert_eq!(pods(&[&[hog("max"), SANDBOX, hog("0")]]), 0);
        let limited: &[_] = &[hog("max"), SANDBOX, hog("9437184"), hog("2097152")];
        assert_eq!(pods(&[limited, &[hog("max"), SANDBOX, hog("0")]]), 10 * MIB);
        // The pod's own limit is the lesser one.
        assert_eq!(pods(&[&[hog("3145728"), SANDBOX, hog("9437184")]]), 2 * MIB);
        // Not limited: one container, or a pod without any.
        assert_eq!(
            pods(&[limited, &[hog("max"), SANDBOX, hog("max")]]),
            u64::MAX
        );
        assert_eq!(pods(&[limited, &[hog("max")]]), u64::MAX);
        // conmon, with the page cache of the logs that it has written.
        assert_eq!(pods(&[&[hog("max"), ("max", 3 << 20), hog("0")]]), 0);
        // Just made.
        assert_eq!(pods(&[limited, &[SANDBOX]]), 10 * MIB);
    }
}
