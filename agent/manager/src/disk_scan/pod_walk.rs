//! The walk of one pod's directories, in steps.

use std::{path::PathBuf, time::Duration};

use evictd_engine::{FsUsage, PodUsage, VolumeUsage};
use evictd_node::{
    fs::{
        du::{Usage, Walk},
        mounts::MountPoints,
    },
    pods::dirs::Named,
    trigger::inodes::ShareReader,
};
use evictd_sys::clock::monotonic_ns;

use super::{
    STEP, ScanTarget,
    disk_use::{DiskUse, FILESYSTEMS, bytes, container},
};

/// What kind of directory it is.
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
    /// What hooks had counted when it began.
    before: [i64; FILESYSTEMS],
    /// Directories that were not begun, the next one last.
    left: Vec<(Kind, String, PathBuf)>,
    walk: Option<(Kind, String, Walk)>,
    /// What the steps took, without rests.
    pub worked: Duration,
}

impl PodWalk {
    pub fn begin(target: ScanTarget, mounts: &MountPoints, shares: Option<&ShareReader>) -> Self {
        let began = monotonic_ns();
        let places = (target.places)(mounts);
        let of = |kind, named: Named| named.into_iter().map(move |(n, path)| (kind, n, path));
        let left = of(Kind::Logs, places.logs)
            .chain(of(Kind::Layer, places.layers))
            .chain(of(Kind::Volume, places.volumes));
        Self {
            found: DiskUse::begun(began, places.unknown, places.runtime_uid),
            before: counted(&target, shares),
            left: left.collect(),
            walk: None,
            worked: Duration::ZERO,
            target,
        }
    }

    /// One step; `true` at the end.
    pub fn step(&mut self, mounts: &MountPoints) -> bool {
        if let Some((kind, name, walk)) = &mut self.walk {
            if walk.step(STEP) {
                let (kind, name, found) = (*kind, std::mem::take(name), walk.found());
                add(&mut self.found.usage, kind, name, found);
                self.walk = None;
            }
        } else if let Some((kind, name, path)) = self.left.pop() {
            // One that cannot be looked at has no number.
            let walk = Walk::new(&path, mounts).ok();
            self.walk = walk.map(|walk| (kind, name, walk));
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

    /// What is known before the end: there is so much at least.
    pub fn so_far(&self) -> DiskUse {
        let mut found = self.found.clone();
        found.counted = self.before;
        if let Some((kind, name, walk)) = &self.walk {
            add(&mut found.usage, *kind, name.clone(), walk.found());
        }
        found
    }

    pub fn finish(&self, shares: Option<&ShareReader>) -> DiskUse {
        let after = counted(&self.target, shares);
        let mut found = self.found.clone();
        found.usage.ephemeral_storage = Some(bytes(&found.usage));
        // One reading before and one after stand for the middle of the walk.
        found.counted = std::array::from_fn(|i| i64::midpoint(self.before[i], after[i]));
        found
    }
}

fn counted(target: &ScanTarget, shares: Option<&ShareReader>) -> [i64; FILESYSTEMS] {
    std::array::from_fn(|index| shares.map_or(0, |s| s.net(&target.cgroups, index)))
}

fn add(usage: &mut PodUsage, kind: Kind, name: String, found: Usage) {
    let fs = FsUsage {
        bytes: Some(found.bytes),
        inodes: Some(found.inodes),
    };
    match kind {
        Kind::Volume => usage.volumes.push(VolumeUsage { name, fs }),
        Kind::Layer => container(usage, name).rootfs = fs,
        Kind::Logs => container(usage, name).logs = fs,
    }
}
