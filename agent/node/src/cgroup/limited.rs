//! Cgroups of a pod with memory limits of their own: there the kernel ends a growth, by an OOM kill within the cgroup.

use std::{fs::File, sync::Arc};

use evictd_sys::page::page_size;

use crate::{
    cgroup::{
        memory::{MemoryCgroup, limit_in},
        tree::{FollowedCgroup, FollowedCgroups, subdirectories},
    },
    kernfile::pread,
};

/// Cgroups of one pod that have memory limits, its own and its containers', with their files held open.
#[derive(Debug)]
pub struct LimitedCgroups {
    pod: Arc<MemoryCgroup>,
    list: Vec<Arc<LimitedCgroup>>,
}

/// One cgroup with a memory limit.
#[derive(Debug)]
pub struct LimitedCgroup {
    /// Memory of the cgroup.
    pub memory: Arc<MemoryCgroup>,
    limit: File,
}

/// Bytes that are in use and left below a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BelowLimit {
    /// Bytes that only the end of processes gives back.
    pub unreclaimable: u64,
    /// Limit of the cgroup itself.
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
        Self {
            pod: Arc::clone(pod),
            list: found.list.iter().filter_map(open).collect(),
        }
    }

    /// Whether one of the pod's cgroups has got a limit since these were opened: a container runtime makes a cgroup and
    /// prepares the container's root before it writes the limit.
    pub fn miss_one_of(&self, found: &FollowedCgroups) -> bool {
        let is_open = |id| self.list.iter().any(|open| open.memory.id() == id);
        let mut others = found.list.iter().filter(|cgroup| !is_open(cgroup.id));
        others.any(|cgroup| LimitedCgroup::open(cgroup, &self.pod).is_some())
    }

    /// The open `memory.stat` of the pod, or of one of them, by the kernel's id of the cgroup.
    pub(super) fn stat_of(&self, id: u64) -> Option<&Arc<File>> {
        let limited = self.list.iter().map(|one| &one.memory);
        let mut open = std::iter::once(&self.pod).chain(limited);
        open.find(|memory| memory.id() == id)
            .map(|memory| memory.stat())
    }

    /// Cgroups of this set that have no other one of it below.
    pub fn innermost(&self) -> impl Iterator<Item = &LimitedCgroup> {
        let has_none_below = |one: &&LimitedCgroup| {
            let others = self.list.iter().map(|other| other.memory.path());
            !others
                .filter(|other| *other != one.memory.path())
                .any(|other| other.starts_with(one.memory.path()))
        };
        self.list.iter().map(|one| &**one).filter(has_none_below)
    }

    /// Cgroup of this set that has all others of it below: the pod's own, if that has a limit; `None` where there are
    /// no others.
    pub fn outermost(&self) -> Option<&LimitedCgroup> {
        let (first, others) = self.list.split_first()?;
        let is_below =
            |other: &Arc<LimitedCgroup>| other.memory.path().starts_with(first.memory.path());
        (!others.is_empty() && others.iter().all(is_below)).then_some(first)
    }

    /// What is in use of one of them; `None` where it is gone, or past its limit, so that it has another one. Does not
    /// allocate.
    pub fn read(&self, one: &LimitedCgroup) -> Option<BelowLimit> {
        let own = one.read()?;
        let is_above = |other: &&LimitedCgroup| {
            let (above, path) = (other.memory.path(), one.memory.path());
            above != path && path.starts_with(above)
        };
        let all = self.list.iter().map(|one| &**one);
        let left = all
            .filter(is_above)
            .filter_map(LimitedCgroup::read)
            .map(|uses| uses.left);
        Some(BelowLimit {
            left: left.fold(own.left, u64::min),
            ..own
        })
    }
}

impl LimitedCgroup {
    /// `None`: it has no limit.
    fn open(cgroup: &FollowedCgroup, pod: &Arc<MemoryCgroup>) -> Option<Self> {
        // The first read takes the kernel's buffer, as that of `open_primed`.
        let limit = File::open(cgroup.path.join(pod.version().limit_file())).ok()?;
        read_limit(&limit)?;
        let memory = match cgroup.id == pod.id() {
            true => Arc::clone(pod),
            false => Arc::new(MemoryCgroup::open(&cgroup.path).ok()?),
        };
        Some(Self { memory, limit })
    }

    fn read(&self) -> Option<BelowLimit> {
        let (limit, reading) = (read_limit(&self.limit)?, self.memory.read().ok()?);
        let held = reading.unreclaimable();
        (reading.usage <= limit).then_some(BelowLimit {
            unreclaimable: held,
            limit,
            left: limit.saturating_sub(held),
        })
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

fn read_limit(file: &File) -> Option<u64> {
    limit_in(pread(file, &mut [0; 32]).ok()?, page_size())
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
        uses("sidecar", 49, &mib(190));
        let found = FollowedCgroups::of(dir.path()).unwrap();
        let pod = Arc::new(MemoryCgroup::open(dir.path()).unwrap());
        let limited = LimitedCgroups::reopen(&found, &pod, None);
        let mut seen: Vec<_> = limited
            .innermost()
            .map(|one| {
                let name = one.memory.path().file_name().unwrap().to_owned();
                let BelowLimit {
                    unreclaimable: held,
                    left,
                    ..
                } = limited.read(one).unwrap();
                (name.into_string().unwrap(), held / MIB, left / MIB)
            })
            .collect();
        seen.sort();
        let expected = [("app", 99, 21), ("sidecar", 48, 51)];
        assert_eq!(
            seen,
            expected.map(|(name, held, left)| (name.to_owned(), held, left))
        );
        let outermost = limited.outermost().unwrap();
        assert_eq!(outermost.memory.path(), dir.path());
        assert_eq!(headroom_below_limits(&pod), Some(21 * MIB));
        // Past its limit: that is another one by now.
        uses("app", 130, &mib(120));
        let app = limited
            .innermost()
            .find(|one| one.memory.path().ends_with("app"));
        assert_eq!(limited.read(app.unwrap()), None);
    }
}
