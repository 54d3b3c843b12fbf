//! Memory of pods that `memory.min` keeps the kernel from reclaiming.
//!
//! Reclaim passes over a cgroup that uses no more than its effective protection, until the OOM killer comes
//! (`shrink_node_memcgs`). The kubelet sets `memory.min` of Guaranteed pods, of their containers and of the cgroups
//! above to what they request (`memoryReservationPolicy: TieredReservation`). What a cgroup is set to counts as far as
//! those above it are protected, and with the mount option `memory_recursiveprot` what they do not use of theirs goes
//! to all below (`page_counter_calculate_protection`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use evictd_engine::units::scaled;
use evictd_sys::fs::read_lossy;

use crate::{
    cgroup::{memory::MemoryCgroup, tree::subdirectories},
    kernfile::number,
    proc::mountinfo::{MOUNTINFO, Mount},
};

/// Less protection than this, in bytes, is not worth a look at what it covers: that of a pod's sandbox.
const SMALL: u64 = 1 << 20;

/// Looks at what is protected below one cgroup.
#[derive(Debug)]
pub struct Protection {
    top: PathBuf,
    /// Whether `top` is the reclaim target: the `memory.min` of its children then counts in full
    /// (`page_counter_calculate_protection`).
    is_target: bool,
    /// `memory_recursiveprot`.
    is_recursive: bool,
}

impl Protection {
    /// `scope`: the cgroup that reclaim works for. A container without a limit that is a node is an exception:
    /// reclaim works for a cgroup above it.
    pub fn below(scope: &Path, is_limited: bool) -> Self {
        let mounts = read_lossy(MOUNTINFO).unwrap_or_default();
        Self {
            top: scope.to_owned(),
            // The machine's root has no such file.
            is_target: is_limited || !scope.join("memory.min").exists(),
            is_recursive: is_recursive(&mounts),
        }
    }

    /// Page cache and slab of pods that the kernel will not take back, in bytes. For threads of normal priority: it
    /// reads two numbers of each cgroup that has a protected one above it, and more of containers that are protected
    /// themselves.
    pub fn cache_of<'a>(&self, pods: impl Iterator<Item = &'a MemoryCgroup>) -> u64 {
        let mut pods: Vec<&Path> = pods.map(MemoryCgroup::path).collect();
        pods.sort_unstable();
        let effective = (!self.is_target).then(|| bytes_in(&self.top, "memory.min"));
        self.cache_below(&self.top, effective, &pods)
    }

    /// Protected page cache and slab of the pods below one cgroup. `effective`: its own protection in bytes; `None`: it
    /// is what memory is reclaimed for.
    fn cache_below(&self, dir: &Path, effective: Option<u64>, pods: &[&Path]) -> u64 {
        if effective == Some(0) {
            return 0;
        }
        let children: Vec<(PathBuf, Usage)> = subdirectories(dir)
            .map(|path| {
                let usage = Usage::of(&path, self.is_recursive);
                (path, usage)
            })
            .collect();
        let siblings = children.iter().map(|(_, usage)| usage.protected());
        let parent = effective.map(|effective| Parent {
            effective,
            usage: bytes_in(dir, "memory.current"),
            protected: siblings.fold(0, u64::saturating_add),
            is_recursive: self.is_recursive,
        });
        let in_pods = children.iter().map(|(path, usage)| {
            let effective = parent.map_or(usage.min, |parent| parent.effective_protection(*usage));
            match Relation::to(path, pods) {
                Relation::Outside => 0,
                Relation::Container => cache_in(path, effective),
                // A pod without containers has its memory itself.
                Relation::Pod if subdirectories(path).next().is_none() => cache_in(path, effective),
                Relation::Pod | Relation::Above => self.cache_below(path, Some(effective), pods),
            }
        });
        in_pods.fold(0, u64::saturating_add)
    }
}

/// Usage of a cgroup and its `memory.min`, in bytes.
#[derive(Clone, Copy, Debug)]
struct Usage {
    usage: u64,
    min: u64,
}

impl Usage {
    fn of(dir: &Path, is_recursive: bool) -> Self {
        let min = bytes_in(dir, "memory.min");
        let usage = match min > 0 || is_recursive {
            true => bytes_in(dir, "memory.current"),
            false => 0,
        };
        Self { usage, min }
    }

    fn protected(self) -> u64 {
        self.usage.min(self.min)
    }
}

/// A cgroup whose protection its children share.
#[derive(Clone, Copy, Debug)]
struct Parent {
    effective: u64,
    usage: u64,
    /// Sum of what all children use of their `memory.min`, in bytes.
    protected: u64,
    is_recursive: bool,
}

impl Parent {
    /// Computes a child's protection as the kernel's `effective_protection` does.
    fn effective_protection(self, child: Usage) -> u64 {
        let protected = child.protected();
        if self.protected > self.effective {
            return scaled(protected, self.effective, self.protected);
        }
        if !self.is_recursive || self.usage <= self.protected {
            return protected;
        }
        let unclaimed = self.effective - self.protected;
        let share = scaled(
            unclaimed,
            child.usage - protected,
            self.usage - self.protected,
        );
        protected.saturating_add(share)
    }
}

/// Relation of a cgroup to the pods.
enum Relation {
    Above,
    Pod,
    Container,
    Outside,
}

impl Relation {
    /// `pods` are sorted.
    fn to(path: &Path, pods: &[&Path]) -> Self {
        if path
            .parent()
            .is_some_and(|pod| pods.binary_search(&pod).is_ok())
        {
            return Self::Container;
        }
        // A cgroup sorts before those below it.
        match pods.get(pods.partition_point(|pod| *pod < path)) {
            Some(pod) if *pod == path => Self::Pod,
            Some(pod) if pod.starts_with(path) => Self::Above,
            _ => Self::Outside,
        }
    }
}

/// What reclaim cannot take of a cgroup that is protected so far: as much of it as the rest leaves of the protection.
fn cache_in(dir: &Path, effective: u64) -> u64 {
    if effective < SMALL {
        return 0;
    }
    let reading = MemoryCgroup::open(dir)
        .ok()
        .and_then(|cgroup| cgroup.read().ok());
    reading.map_or(0, |reading| {
        let left = effective.saturating_sub(reading.unreclaimable());
        left.min(reading.reclaimable())
    })
}

/// Counts those of the cgroups that have `memory.min` set.
pub fn set_on(pods: &[MemoryCgroup]) -> usize {
    let is_set = |pod: &&MemoryCgroup| bytes_in(pod.path(), "memory.min") > 0;
    pods.iter().filter(is_set).count()
}

/// What a file says; 0 where it is gone, or on v1, which has no protection; all there is where it is no number.
fn bytes_in(dir: &Path, file: &str) -> u64 {
    let text = fs::read(dir.join(file));
    text.map_or(0, |text| number(&text).unwrap_or(u64::MAX))
}

/// Whether a process's mountinfo shows cgroup v2 mounted with `memory_recursiveprot`.
fn is_recursive(mountinfo: &str) -> bool {
    let is_set = |options: &str| options.split(',').any(|o| o == "memory_recursiveprot");
    Mount::all(mountinfo).any(|m| m.superblock.kind == "cgroup2" && is_set(&m.options))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A cgroup with what it is set to, its processes' memory and its page cache, in MiB.
    fn make(root: &Path, name: &str, min: u64, anon: u64, file: u64) -> PathBuf {
        let dir = root.join(name);
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
        write("memory.min", format!("{}\n", min * MIB));
        write("memory.current", ((anon + file) * MIB).to_string());
        let (anon, file) = (anon * MIB, file * MIB);
        write(
            "memory.stat",
            format!("anon {anon}\nfile {file}\ninactive_file {file}\nactive_file 0\n"),
        );
        dir
    }

    fn protection(top: &Path, is_recursive: bool) -> Protection {
        Protection {
            top: top.to_owned(),
            is_target: true,
            is_recursive,
        }
    }

    fn cache(protection: &Protection, pods: &[PathBuf]) -> u64 {
        let pods = pods.iter().map(|pod| MemoryCgroup::open(pod).unwrap());
        let pods: Vec<_> = pods.collect();
        protection.cache_of(pods.iter()) / MIB
    }

    /// A Guaranteed pod that requests 1000 MiB beside a BestEffort one: what the kubelet sets, but of the cgroup of all
    /// pods, which is set to so much.
    fn node(root: &Path, all: u64) -> [PathBuf; 2] {
        make(root, "system", 500, 0, 500);
        make(root, "kubepods", all, 1300, 1400);
        let guaranteed = make(root, "kubepods/pod1", 1000, 300, 900);
        make(root, "kubepods/pod1/sandbox", 0, 1, 0);
        make(root, "kubepods/pod1/c", 1000, 299, 900);
        make(root, "kubepods/besteffort", 0, 1000, 500);
        let best_effort = make(root, "kubepods/besteffort/pod2", 0, 1000, 500);
        make(root, "kubepods/besteffort/pod2/c", 0, 1000, 500);
        [guaranteed, best_effort]
    }

    // R40
    #[test]
    fn cache_is_protected_as_far_as_processes_leave_it_room() {
        let dir = tempfile::tempdir().unwrap();
        let pods = node(dir.path(), 1000);
        // Of 1000, of which processes have 299. What is not a pod's does not count.
        assert_eq!(cache(&protection(dir.path(), false), &pods), 701);
        // More than it has.
        make(dir.path(), "kubepods/pod1/c", 1000, 299, 200);
        assert_eq!(cache(&protection(dir.path(), false), &pods), 200);
        // Processes have all of it.
        make(dir.path(), "kubepods/pod1/c", 1000, 1100, 200);
        assert_eq!(cache(&protection(dir.path(), false), &pods), 0);
    }

    #[test]
    fn what_is_set_counts_as_far_as_those_above_are_protected() {
        let dir = tempfile::tempdir().unwrap();
        let pods = node(dir.path(), 600);
        assert_eq!(cache(&protection(dir.path(), false), &pods), 301);
        let pods = node(dir.path(), 0);
        assert_eq!(cache(&protection(dir.path(), false), &pods), 0);
        // A container that is a node, and is not protected itself.
        let pods = node(dir.path(), 1000);
        make(dir.path(), ".", 0, 1300, 1900);
        let outer = Protection {
            is_target: false,
            ..protection(dir.path(), false)
        };
        assert_eq!(cache(&outer, &pods), 0);
    }

    /// systemd mounts cgroups so.
    #[test]
    fn what_is_not_used_protects_the_others() {
        let dir = tempfile::tempdir().unwrap();
        // 1000 of 2500 are claimed; the 1500 besides go to what is not claimed, in all 1700: 200 and 1500.
        let pods = node(dir.path(), 2500);
        let share = |used: u64| 1500 * used / 1700;
        let (guaranteed, best_effort) = (1000 + share(200) - 299, share(1500) - 1000);
        let found = cache(&protection(dir.path(), true), &pods);
        assert!(
            found.abs_diff(guaranteed + best_effort) <= 3,
            "{found} {guaranteed} {best_effort}"
        );
    }

    #[test]
    fn the_mount_option_is_found() {
        let line = |options| {
            format!(
                "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,{options}\n"
            )
        };
        assert!(is_recursive(&line("nsdelegate,memory_recursiveprot")));
        assert!(!is_recursive(&line("nsdelegate")));
        assert!(!is_recursive("30 23 0:26 / /x rw - tmpfs tmpfs rw\n"));
    }
}
