//! Where the kernel groups real-time tasks (RT_GROUP_SCHED, cgroup v1): a cgroup of the cpu hierarchy without a budget of its own,
//! as each container has one, refuses SCHED_FIFO whatever the capabilities are.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{fs::read_lossy, rt::v1_root};

/// The bit of CAP_SYS_NICE (`include/uapi/linux/capability.h`).
const CAP_SYS_NICE: u32 = 23;
/// A cgroup's budget of real-time run time, in microseconds a period. Only kernels that group real-time tasks have it.
const BUDGET: &str = "cpu.rt_runtime_us";

/// The cgroup of the calling thread in the cpu hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub struct CpuGroup {
    dir: PathBuf,
    /// The top of the hierarchy, which always has a budget; `None` where it is not mounted.
    root: Option<PathBuf>,
}

impl CpuGroup {
    /// The calling thread's, if it has no budget there.
    pub fn without_budget() -> Option<Self> {
        let groups = read_lossy("/proc/thread-self/cgroup").ok()?;
        let mounts = read_lossy("/proc/self/mountinfo").ok()?;
        let all = candidates(&groups, &mounts);
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
    pub fn leave(&self) -> io::Result<()> {
        let root = self.root.as_ref().ok_or(io::ErrorKind::NotFound)?;
        enter(root)
    }

    /// Moves the calling thread back. Where that is refused it stays at the root, which only means less to it.
    pub fn come_back(&self) {
        let _ = enter(&self.dir);
    }

    /// Why SCHED_FIFO is refused in it.
    pub fn explain(&self, refused: &io::Error, left: &io::Error) -> io::Error {
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
pub fn may_be_nice() -> Option<bool> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(effective >> CAP_SYS_NICE & 1 == 1)
}

/// Where a thread's cgroup of v1's cpu hierarchy may be seen, by `/proc/thread-self/cgroup` and `/proc/self/mountinfo`. Mounts of
/// the whole hierarchy come first: a container has one of its own part below.
fn candidates(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let has_cpu = |list: &str| list.split(',').any(|word| word == "cpu");
    let group = groups.lines().find_map(|line| {
        // 4:cpu,cpuacct:/kubepods
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        has_cpu(controllers).then_some(path)
    });
    let Some(group) = group else {
        return Vec::new();
    };
    let mut found: Vec<(bool, PathBuf)> = mounts
        .lines()
        .filter_map(|line| {
            // 36 25 0:31 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let is_v1 = kind.next() == Some("cgroup");
            if !is_v1 || !has_cpu(kind.nth(1)?) {
                return None;
            }
            let mut place = place.split(' ').skip(3);
            let (root, point) = (place.next()?, place.next()?);
            let below = Path::new(group).strip_prefix(root).ok()?;
            let dir = match below.as_os_str().is_empty() {
                true => PathBuf::from(point),
                false => Path::new(point).join(below),
            };
            Some((root != "/", dir))
        })
        .collect();
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
        let found = |groups| candidates(groups, MOUNTS);
        let groups = "9:cpuset:/x\n4:cpu,cpuacct:/kubepods/a/b\n0::/\n";
        let [whole, part] = [
            "/sys/fs/cgroup/cpu,cpuacct/kubepods/a/b",
            "/sys/fs/cgroup/own/b",
        ]
        .map(PathBuf::from);
        assert_eq!(found(groups), [whole, part]);
        assert_eq!(
            found("4:cpu,cpuacct:/\n"),
            [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")]
        );
        // v2 only, and a path outside the cgroup namespace.
        assert!(found("0::/kubepods/a\n").is_empty());
        assert!(candidates("4:cpu:/a\n", "nonsense\n").is_empty());
    }
}
