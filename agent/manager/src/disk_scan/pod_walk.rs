//! The walk of one pod's directories, in steps.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use evictd_engine::{FsUsage, PodUsage, VolumeUsage, units::nanos};
use evictd_node::{
    fs::{
        du::{Usage, Walk, is_refused},
        mounts::MountPoints,
    },
    pods::dirs::Named,
    trigger::inodes::CgroupCountReader,
};
use evictd_sys::clock::monotonic_ns;

use super::{
    STEP, ScanTarget,
    disk_use::{DiskUse, FILESYSTEMS, container},
};

/// A walk that has rested for longer may have counted files twice that were moved, and temporary ones that never existed at
/// the same time.
const RESTED: Duration = Duration::from_secs(10);
/// For so long at least a close walk goes on before others, and so long at most.
const FIRST: Duration = Duration::from_secs(60);
const LONGEST_FIRST: Duration = Duration::from_secs(960);

/// Kind of a directory.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Volume,
    Layer,
    Logs,
}

/// The walk of one pod, as far as it has come.
pub(super) struct PodWalk {
    pub target: ScanTarget,
    found: DiskUse,
    /// Counts of the hooks when the walk began.
    before: HashMap<u64, [i64; FILESYSTEMS]>,
    /// Directories that were not begun, the next one last.
    left: Vec<(Kind, String, PathBuf)>,
    walk: Option<(Kind, String, Walk)>,
    /// Whether all could be looked at so far.
    is_whole: bool,
    /// Time that the steps took, without rests.
    pub worked: Duration,
    /// It does not rest, and goes on before others for so long: by what an earlier one has found the pod may be above a limit
    /// of its own.
    first: Option<Duration>,
}

impl PodWalk {
    pub fn begin(
        target: ScanTarget,
        mounts: &MountPoints,
        cgroup_counts: Option<&CgroupCountReader>,
    ) -> Self {
        let began = monotonic_ns();
        let places = (target.places)(mounts);
        let of = |kind, named: Named| named.into_iter().map(move |(n, path)| (kind, n, path));
        let left = of(Kind::Logs, places.logs)
            .chain(of(Kind::Layer, places.layers))
            .chain(of(Kind::Volume, places.volumes));
        Self {
            found: DiskUse::begun(
                began,
                places.unknown,
                places.nameless,
                places.has_named,
                places.runtime_uid,
            ),
            before: counted(&target, cgroup_counts),
            left: left.collect(),
            walk: None,
            is_whole: true,
            worked: Duration::ZERO,
            first: None,
            target,
        }
    }

    /// Begins anew and without rests, as the kubelet walks.
    pub fn begin_closely(
        &self,
        mounts: &MountPoints,
        cgroup_counts: Option<&CgroupCountReader>,
    ) -> Self {
        Self {
            first: Some(FIRST),
            ..Self::begin(self.target.clone(), mounts, cgroup_counts)
        }
    }

    /// Above this many bytes a close walk is to follow on what it has found by `now`: the pod may exceed a limit of its own.
    /// `None` where it is certain, or close already: no walk is begun anew for ever.
    pub fn uncertain_above(&self, now: u64) -> Option<u64> {
        let is_uncertain = !self.is_close() && self.has_rested(now);
        self.target.least_limit.filter(|_| is_uncertain)
    }

    /// Whether it has rested for too long by `now`, be it for others' walks.
    pub fn has_rested(&self, now: u64) -> bool {
        let took = now.saturating_sub(self.found.began);
        took.saturating_sub(nanos(self.worked)) > nanos(RESTED)
    }

    /// Whether it does not rest.
    pub fn is_close(&self) -> bool {
        self.first.is_some()
    }

    /// Whether it goes on before others, which a short disk awaits as well.
    pub fn goes_first(&self, is_short: bool) -> bool {
        let longest = if is_short { FIRST } else { LONGEST_FIRST };
        self.first
            .is_some_and(|first| self.worked < first.min(longest))
    }

    /// A whole walk has taken so long: a close one goes first for twice as long, or its turns would make it uncertain.
    pub fn expect(&mut self, worked: Duration) {
        self.first = Some((worked * 2).clamp(FIRST, LONGEST_FIRST));
    }

    /// Time at which it began, in nanoseconds of CLOCK_MONOTONIC.
    pub fn began(&self) -> u64 {
        self.found.began
    }

    /// One step; `true` at the end.
    pub fn step(&mut self, mounts: &MountPoints) -> bool {
        if let Some((kind, name, walk)) = &mut self.walk {
            if walk.step(STEP) {
                let (kind, name, found) = (*kind, std::mem::take(name), walk.found());
                self.is_whole &= walk.is_whole();
                add(&mut self.found.usage, kind, name, found);
                self.walk = None;
            }
        } else if let Some((kind, name, path)) = self.left.pop() {
            // One that cannot be looked at has no number.
            match Walk::new(&path, mounts) {
                Ok(walk) => self.walk = Some((kind, name, walk)),
                Err(error) => self.is_whole &= is_refused(&error.source),
            }
        }
        self.walk.is_none() && self.left.is_empty()
    }

    pub fn pass_by(&mut self, mounts: &MountPoints) {
        if let Some((_, _, walk)) = &mut self.walk {
            walk.pass_by(mounts);
        }
    }

    /// Gives up what a walk that waits does not need.
    pub fn park(&mut self) {
        if let Some((_, _, walk)) = &mut self.walk {
            walk.park();
        }
    }

    /// Returns the disk use that is known by `now`, before the end: there is so much at least.
    pub fn so_far(&self, now: u64) -> DiskUse {
        let mut found = self.found.clone();
        found.usage.is_uncertain = self.has_rested(now);
        found.counted.clone_from(&self.before);
        if let Some((kind, name, walk)) = &self.walk {
            add(&mut found.usage, *kind, name.clone(), walk.found());
        }
        found
    }

    /// Returns the disk use at the end, `now`.
    pub fn finish(&self, now: u64, cgroup_counts: Option<&CgroupCountReader>) -> DiskUse {
        let after = counted(&self.target, cgroup_counts);
        let mut found = self.found.clone();
        found.usage.is_uncertain = self.has_rested(now);
        found.usage.ephemeral_storage = self.is_whole.then(|| found.usage.bytes_of_files());
        found.has_ended = true;
        // One reading before and one after stand for the middle of the walk.
        let middle = |(id, after): (u64, [i64; FILESYSTEMS])| {
            let before = self.before.get(&id).copied().unwrap_or_default();
            let nets = std::array::from_fn(|index| i64::midpoint(before[index], after[index]));
            (id, nets)
        };
        found.counted = after.into_iter().map(middle).collect();
        found
    }
}

fn counted(
    target: &ScanTarget,
    cgroup_counts: Option<&CgroupCountReader>,
) -> HashMap<u64, [i64; FILESYSTEMS]> {
    let Some(counts) = cgroup_counts else {
        return HashMap::new();
    };
    let nets = |id| std::array::from_fn(|index| counts.net(id, index).unwrap_or(0));
    target.cgroups.iter().map(|id| (*id, nets(*id))).collect()
}

fn add(usage: &mut PodUsage, kind: Kind, name: String, found: Usage) {
    let fs = FsUsage {
        bytes: Some(found.bytes),
        inodes: Some(found.inodes),
    };
    match kind {
        Kind::Volume => usage.volumes.push(VolumeUsage { name, fs }),
        // A container that the pod's status does not name can take another one's name.
        Kind::Layer => container(usage, name).rootfs.add(fs),
        Kind::Logs => container(usage, name).logs = fs,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evictd_engine::units::SECOND;
    use evictd_node::pods::dirs::PodDirs;

    use super::*;

    // R10
    #[test]
    fn a_walk_that_a_pod_leads_astray_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("scratch/a")).unwrap();
        for file in 0..2 * STEP {
            fs::write(at(&format!("scratch/a/{file}")), "").unwrap();
        }
        let mounts = MountPoints::default();
        for is_moved in [false, true] {
            let volumes = vec![("scratch".into(), at("scratch"))];
            let target = ScanTarget::of("u", move || PodDirs::fixed(volumes.clone()));
            let mut walk = PodWalk::begin(target, &mounts, None);
            walk.step(&mounts);
            walk.step(&mounts);
            walk.park();
            if is_moved {
                fs::rename(at("scratch/a"), at("elsewhere")).unwrap();
            }
            while !walk.step(&mounts) {}
            let found = walk.finish(walk.began(), None);
            assert_eq!(found.is_whole(), !is_moved);
            assert_eq!(found.usage.ephemeral_storage.is_some(), !is_moved);
            // What was found counts.
            let inodes = found.usage.volumes[0].fs.inodes;
            assert_eq!(inodes, Some(2 * STEP as u64 + 2));
        }
    }

    /// Files are moved from where a walk was to where it comes while it rests, or take each other's place.
    // R10
    #[test]
    fn what_a_walk_with_long_rests_has_found_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), [1; 65536]).unwrap();
        let mounts = MountPoints::default();
        let needs = |least_limit, rested: u64| {
            let volumes = vec![("scratch".into(), dir.path().to_owned())];
            let target = ScanTarget {
                least_limit,
                ..ScanTarget::of("u", move || PodDirs::fixed(volumes.clone()))
            };
            let mut walk = PodWalk::begin(target, &mounts, None);
            while !walk.step(&mounts) {}
            walk.worked = Duration::from_secs(9);
            let now = walk.began() + nanos(walk.worked) + rested * SECOND;
            let found = walk.finish(now, None).usage;
            assert_eq!(found.is_uncertain, rested > 10);
            let found = found.bytes_of_files();
            let is_too_much =
                |walk: &PodWalk| walk.uncertain_above(now).is_some_and(|least| found > least);
            let mut close = walk.begin_closely(&mounts, None);
            assert!(close.goes_first(true) && !is_too_much(&close));
            // It has taken turns with others: it counts for no limit, and is not begun once more.
            close.worked = FIRST;
            for is_uncertain in [false, true] {
                let now = close.began() + nanos(FIRST + RESTED) + u64::from(is_uncertain);
                let uses = [close.so_far(now), close.finish(now, None)];
                assert!(
                    uses.iter()
                        .all(|found| found.usage.is_uncertain == is_uncertain)
                );
                assert_eq!(close.uncertain_above(now), None);
            }
            is_too_much(&walk)
        };
        assert!(needs(Some(1000), 11));
        assert!(!needs(Some(1000), 9), "it is as du sees it");
        assert!(!needs(Some(1 << 20), 11), "it is not over");
        assert!(!needs(None, 11));
    }

    #[test]
    fn layers_of_one_name_add_up() {
        let mut usage = PodUsage::default();
        for (bytes, inodes) in [(5, 1), (7, 2)] {
            add(
                &mut usage,
                Kind::Layer,
                "web".into(),
                Usage { bytes, inodes },
            );
        }
        let rootfs = usage.containers[0].rootfs;
        assert_eq!((rootfs.bytes, rootfs.inodes), (Some(12), Some(3)));
        assert_eq!(usage.containers.len(), 1);
    }
}
