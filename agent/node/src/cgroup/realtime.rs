//! What keeps a thread of the agent from being fast by the cgroups that it is in itself, all on cgroup v1.
//!
//! Kernels that group real-time tasks (RT_GROUP_SCHED) refuse SCHED_FIFO, whatever the capabilities are, in a cgroup of
//! the cpu hierarchy without a budget of its own, as each container has one. And at the limit of its memory cgroup a
//! thread waits.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use evictd_sys::{
    fs::read_lossy,
    rt::{self, FASTPATH_PRIORITY},
};

use crate::{
    cgroup::hierarchy::v1_root,
    proc::{
        mountinfo::{MOUNTINFO, Mount},
        process::effective_capabilities,
    },
};

/// The bit of CAP_SYS_NICE (`include/uapi/linux/capability.h`).
const CAP_SYS_NICE: u32 = 23;
/// A cgroup's budget of real-time run time, in microseconds a period. Only kernels that group real-time tasks have it.
const BUDGET: &str = "cpu.rt_runtime_us";

/// Why it is refused where CAP_SYS_NICE is there and v1 has no say.
const REFUSED_BY_V2: &str = "a kernel with CONFIG_RT_GROUP_SCHED grants it in no cgroup of v2 but the root; else it is a seccomp profile";

/// Gives the calling thread the fast path's SCHED_FIFO.
///
/// # Errors
/// See [`acquire_sched_fifo`].
pub fn acquire_fastpath_fifo() -> io::Result<()> {
    acquire_sched_fifo(FASTPATH_PRIORITY)
}

/// Gives the calling thread SCHED_FIFO with a priority from 1 to 99. Where its cgroup of v1's cpu hierarchy has no
/// budget for real-time tasks, the thread leaves it for the root, which has one.
///
/// # Errors
/// CAP_SYS_NICE is missing, or the thread cannot leave a cgroup without a budget: the error names the true reason.
pub fn acquire_sched_fifo(priority: i32) -> io::Result<()> {
    let Err(refused) = rt::set_sched_fifo(priority) else {
        return Ok(());
    };
    if refused.raw_os_error() != Some(libc::EPERM) {
        return Err(refused);
    }
    if has_cap_sys_nice() == Some(false) {
        return Err(io::Error::other(format!(
            "{refused}: CAP_SYS_NICE is missing"
        )));
    }
    let Some(cgroup) = CpuCgroup::without_budget() else {
        return Err(match has_cap_sys_nice() {
            Some(true) => io::Error::other(format!("{refused}: {REFUSED_BY_V2}")),
            _ => refused,
        });
    };
    cgroup
        .leave()
        .map_err(|left| cgroup.explain(&refused, &left))?;
    rt::set_sched_fifo(priority).inspect_err(|_| cgroup.come_back())
}

/// Tries SCHED_FIFO on a thread of its own.
///
/// # Errors
/// See [`acquire_sched_fifo`].
pub fn probe_realtime() -> io::Result<()> {
    let tried = std::thread::spawn(acquire_fastpath_fifo).join();
    tried.unwrap_or_else(|_| Err(io::Error::other("the probing thread has panicked")))
}

/// Moves the calling thread to the root of a v1 memory hierarchy, which has no limit: kernel memory allocated for it
/// and for threads it starts later is charged there. The process's own pages stay charged where they are. `cgroup` is
/// any directory of that hierarchy.
///
/// To read the members of a pod takes a page (the killer reads `cgroup.procs`), and a thread without a page left in its
/// cgroup waits for one, or is killed for it. v2 cannot do this for single threads.
///
/// # Errors
/// No root above this directory, or it may not be written to.
pub fn join_root_memcg(cgroup: &Path) -> io::Result<()> {
    enter(v1_root(cgroup).ok_or(io::ErrorKind::NotFound)?)
}

/// The cgroup of the calling thread in the cpu hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct CpuCgroup {
    dir: PathBuf,
    /// The top of the hierarchy, which always has a budget; `None` where it is not mounted.
    root: Option<PathBuf>,
}

impl CpuCgroup {
    /// The calling thread's, if it has no budget there.
    fn without_budget() -> Option<Self> {
        let cgroups = read_lossy("/proc/thread-self/cgroup").ok()?;
        let mounts = read_lossy(MOUNTINFO).ok()?;
        let all = candidates(&cgroups, &mounts);
        let budget = |dir: &Path| fs::read_to_string(dir.join(BUDGET)).ok();
        let dir = all.into_iter().find(|dir| budget(dir).is_some())?;
        let has_none = budget(&dir).is_some_and(|text| text.trim() == "0");
        let root = v1_root(&dir).map(Path::to_owned);
        has_none.then_some(Self { dir, root })
    }

    /// Moves the calling thread, and no other one of the process, to the root of the hierarchy.
    ///
    /// # Errors
    /// The root is not mounted, or not to be written to.
    fn leave(&self) -> io::Result<()> {
        let root = self.root.as_ref().ok_or(io::ErrorKind::NotFound)?;
        enter(root)
    }

    /// Moves the calling thread back. Best effort: if refused, the thread stays in the root cgroup.
    fn come_back(&self) {
        let _ = enter(&self.dir);
    }

    /// Why SCHED_FIFO is refused in it.
    fn explain(&self, refused: &io::Error, left: &io::Error) -> io::Error {
        let dir = self.dir.display();
        io::Error::other(format!(
            "{refused}: {BUDGET} is 0 in {dir}, and the thread cannot leave it for the hierarchy's root: {left}"
        ))
    }
}

/// 0 is the thread that writes.
fn enter(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("tasks"), "0")
}

/// Whether the calling thread has CAP_SYS_NICE; `None` where that cannot be read.
fn has_cap_sys_nice() -> Option<bool> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    Some(effective_capabilities(&status)? >> CAP_SYS_NICE & 1 == 1)
}

/// Where a thread's cgroup of v1's cpu hierarchy may be seen, by `/proc/thread-self/cgroup` and `/proc/self/mountinfo`.
/// Mounts of the whole hierarchy come first: a container has one of its own part below.
fn candidates(cgroups: &str, mountinfo: &str) -> Vec<PathBuf> {
    let has_cpu = |list: &str| list.split(',').any(|word| word == "cpu");
    let cgroup = cgroups.lines().find_map(|line| {
        // 4:cpu,cpuacct:/kubepods
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        has_cpu(controllers).then_some(path)
    });
    let Some(cgroup) = cgroup else {
        return Vec::new();
    };
    let cpu =
        Mount::all(mountinfo).filter(|m| m.superblock.kind == "cgroup" && has_cpu(&m.options));
    let found = cpu.filter_map(|mount| {
        let below = Path::new(cgroup).strip_prefix(&mount.root).ok()?;
        // Without a slash at the end where nothing is below.
        let dir = mount.point.components().chain(below.components());
        Some((mount.root != Path::new("/"), dir.collect()))
    });
    let mut found: Vec<(bool, PathBuf)> = found.collect();
    found.sort_by_key(|(is_part, _)| *is_part);
    found.into_iter().map(|(_, dir)| dir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        30 20 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        40 30 0:30 /kubepods/a /sys/fs/cgroup/own ro - cgroup cgroup rw,cpu,cpuacct\n\
        41 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        42 30 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
        43 30 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_cgroup_of_the_cpu_hierarchy_is_found() {
        let found = |cgroups| candidates(cgroups, MOUNTS);
        let cgroups = "9:cpuset:/x\n4:cpu,cpuacct:/kubepods/a/b\n0::/\n";
        let [whole, part] = [
            "/sys/fs/cgroup/cpu,cpuacct/kubepods/a/b",
            "/sys/fs/cgroup/own/b",
        ]
        .map(PathBuf::from);
        assert_eq!(found(cgroups), [whole, part]);
        assert_eq!(
            found("4:cpu,cpuacct:/\n"),
            [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")]
        );
        // v2 only, and a path outside the cgroup namespace.
        assert!(found("0::/kubepods/a\n").is_empty());
        assert!(candidates("4:cpu:/a\n", "nonsense\n").is_empty());
    }
}
