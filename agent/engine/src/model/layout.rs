//! How a node's disks are laid out, and what follows from it: which thresholds count, whose bytes are measured, what
//! can be reclaimed before a pod has to go.

use crate::{Pod, PodUsage, Resource, Signal, Threshold};

/// Layout of the node's disks: which filesystems are separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images lie on a filesystem of their own.
    pub dedicated_image_fs: bool,
    /// Writable layers do not lie beside the images.
    pub split_image_fs: bool,
}

/// Step by which the node can give back something before a pod is evicted; the steps are taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeReclaim {
    /// Delete containers that have ended.
    Containers,
    /// Delete unused images.
    Images,
}

/// Files of a pod that lie on the filesystem that is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    writable_layers: bool,
    logs: bool,
    volumes: bool,
}

/// The three layouts that the kubelet knows.
enum Kind {
    Single,
    Dedicated,
    Split,
}

impl NodeReclaim {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Containers, Self::Images];

    /// A short name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::Images => "images",
        }
    }
}

impl Layout {
    fn kind(self) -> Kind {
        match (self.dedicated_image_fs, self.split_image_fs) {
            (true, true) => Kind::Split,
            (true, false) => Kind::Dedicated,
            (false, _) => Kind::Single,
        }
    }

    /// The thresholds that count on this layout (`UpdateContainerFsThresholds`): those of containerfs are those
    /// of the filesystem that it is part of, whatever is configured for it.
    pub fn apply(self, thresholds: &[Threshold]) -> Vec<Threshold> {
        let follows = match (self.dedicated_image_fs, self.split_image_fs) {
            (true, false) => [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
            (true, true) | (false, false) => [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
            // The kubelet has no rule for this one and leaves what is configured.
            (false, true) => return thresholds.to_vec(),
        };
        let mut kept: Vec<Option<Threshold>> = thresholds.iter().cloned().map(Some).collect();
        for (own, followed) in [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree]
            .into_iter()
            .zip(follows)
        {
            for hard in [true, false] {
                let base = thresholds
                    .iter()
                    .rfind(|t| t.signal == followed && t.is_hard() == hard);
                let copy = base.map(|base| Threshold {
                    signal: own,
                    ..base.clone()
                });
                match thresholds
                    .iter()
                    .rposition(|t| t.signal == own && t.is_hard() == hard)
                {
                    Some(position) => kept[position] = copy,
                    None => kept.push(copy),
                }
            }
        }
        kept.into_iter().flatten().collect()
    }

    /// The thresholds that are configured for containerfs and mean nothing, for a warning.
    pub fn ignored(self, thresholds: &[Threshold]) -> impl Iterator<Item = &Threshold> {
        let applies = self.dedicated_image_fs || !self.split_image_fs;
        let is_own = |t: &&Threshold| {
            matches!(
                t.signal,
                Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree
            )
        };
        thresholds.iter().filter(move |_| applies).filter(is_own)
    }

    /// Lists what to reclaim from the node itself when a signal is low (`buildSignalToNodeReclaimFuncs`).
    pub fn node_reclaim(self, signal: Signal) -> &'static [NodeReclaim] {
        use NodeReclaim::{Containers, Images};
        match (self.kind(), signal) {
            (
                _,
                Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable,
            ) => &[],
            (Kind::Single, _) => &NodeReclaim::ALL,
            (Kind::Dedicated, Signal::NodeFsAvailable | Signal::NodeFsInodesFree) => &[],
            (Kind::Dedicated, _) => &NodeReclaim::ALL,
            (Kind::Split, Signal::ImageFsAvailable | Signal::ImageFsInodesFree) => &[Images],
            (Kind::Split, _) => &[Containers],
        }
    }

    /// Chooses which of a pod's files are measured for a disk signal (`buildSignalToRankFunc`).
    fn parts(self, signal: Signal) -> Parts {
        let nodefs = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
        let imagefs = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        match self.kind() {
            Kind::Single => Parts {
                writable_layers: true,
                logs: true,
                volumes: true,
            },
            Kind::Dedicated if nodefs => Parts {
                writable_layers: false,
                logs: true,
                volumes: true,
            },
            Kind::Dedicated => Parts {
                writable_layers: true,
                logs: false,
                volumes: false,
            },
            // Images belong to no pod: nothing is measured, and priority and request decide.
            Kind::Split if imagefs => Parts::default(),
            Kind::Split => Parts {
                writable_layers: true,
                logs: true,
                volumes: true,
            },
        }
    }

    /// Whether two signals watch the same of one filesystem: nodefs, imagefs and containerfs may be names of one.
    pub(crate) fn watch_the_same(self, one: Signal, other: Signal) -> bool {
        let is_one_disk = || self.parts(one) == self.parts(other);
        let is_of_files = one.resource().is_of_files();
        one == other || is_of_files && one.resource() == other.resource() && is_one_disk()
    }

    /// How much of what a signal watches a pod uses, in the signal's unit. What is missing counts as zero.
    pub fn usage(self, signal: Signal, pod: &Pod, usage: &PodUsage) -> u64 {
        match signal.resource() {
            Resource::Memory => usage.memory_working_set.unwrap_or(0),
            Resource::Pids => usage.processes.unwrap_or(0),
            Resource::EphemeralStorage => self.disk_usage(signal, pod, usage, |fs| fs.bytes),
            Resource::Inodes => self.disk_usage(signal, pod, usage, |fs| fs.inodes),
        }
    }

    fn disk_usage(
        self,
        signal: Signal,
        pod: &Pod,
        usage: &PodUsage,
        get: impl Fn(&crate::FsUsage) -> Option<u64>,
    ) -> u64 {
        let parts = self.parts(signal);
        let layers = usage
            .containers
            .iter()
            .filter(|_| parts.writable_layers)
            .map(|c| &c.rootfs);
        let logs = usage
            .containers
            .iter()
            .filter(|_| parts.logs)
            .map(|c| &c.logs);
        let local = pod
            .volumes
            .iter()
            .filter(|volume| parts.volumes && volume.is_local);
        let volumes = local
            .filter_map(|volume| usage.volumes.iter().find(|v| v.name == volume.name))
            .map(|v| &v.fs);
        layers
            .chain(logs)
            .chain(volumes)
            .map(|fs| get(fs).unwrap_or(0))
            .fold(0, u64::saturating_add)
    }

    /// Takes inodes that a pod has removed off those of its files that lie on the filesystem of a signal: off the
    /// largest number first, and what is left off the next.
    pub fn take_off_inodes(self, signal: Signal, usage: &mut PodUsage, removed: u64) {
        let parts = self.parts(signal);
        let containers = usage.containers.iter_mut().flat_map(|c| {
            let layer = parts.writable_layers.then_some(&mut c.rootfs);
            layer.into_iter().chain(parts.logs.then_some(&mut c.logs))
        });
        let volumes = usage.volumes.iter_mut().filter(|_| parts.volumes);
        let all = containers.chain(volumes.map(|v| &mut v.fs));
        let mut numbers: Vec<&mut u64> = all.filter_map(|fs| fs.inodes.as_mut()).collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        let mut left = removed;
        for number in numbers {
            let part = left.min(*number);
            *number -= part;
            left -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ContainerUsage, FsUsage, ThresholdValue, VolumeUsage};

    const SINGLE: Layout = Layout {
        dedicated_image_fs: false,
        split_image_fs: false,
    };
    const DEDICATED: Layout = Layout {
        dedicated_image_fs: true,
        split_image_fs: false,
    };
    const SPLIT: Layout = Layout {
        dedicated_image_fs: true,
        split_image_fs: true,
    };

    fn threshold(signal: Signal, share: f32, grace: u64) -> Threshold {
        let value = ThresholdValue::Percentage(share);
        Threshold {
            signal,
            value,
            grace_period: Duration::from_secs(grace),
            min_reclaim: None,
        }
    }

    fn shown(thresholds: &[Threshold]) -> Vec<String> {
        let mut shown: Vec<String> = thresholds.iter().map(ToString::to_string).collect();
        shown.sort_unstable();
        shown
    }

    #[test]
    fn containerfs_follows_the_filesystem_it_is_part_of() {
        // R3
        let configured = [
            threshold(Signal::NodeFsAvailable, 0.1, 0),
            threshold(Signal::NodeFsAvailable, 0.2, 30),
            threshold(Signal::ImageFsAvailable, 0.15, 0),
            threshold(Signal::ContainerFsAvailable, 0.5, 0),
            threshold(Signal::ContainerFsInodesFree, 0.5, 0),
        ];
        let common = [
            "imagefs.available<15%",
            "nodefs.available<10%",
            "nodefs.available<20% for 30s",
        ];
        for layout in [SINGLE, SPLIT] {
            let nodefs = [
                "containerfs.available<10%",
                "containerfs.available<20% for 30s",
            ];
            assert_eq!(
                shown(&layout.apply(&configured)),
                [&nodefs[..], &common].concat()
            );
        }
        assert_eq!(
            shown(&DEDICATED.apply(&configured)),
            [&["containerfs.available<15%"][..], &common].concat()
        );
        assert_eq!(DEDICATED.ignored(&configured).count(), 2);
        let odd = Layout {
            dedicated_image_fs: false,
            split_image_fs: true,
        };
        assert_eq!(odd.apply(&configured), configured);
        assert_eq!(odd.ignored(&configured).count(), 0);
    }

    // R10
    #[test]
    fn removed_inodes_are_taken_off_the_files_that_a_signal_measures() {
        let fs = |inodes| FsUsage {
            bytes: Some(1),
            inodes,
        };
        let volume = |name: &str, inodes| VolumeUsage {
            name: name.into(),
            fs: fs(Some(inodes)),
        };
        let container = ContainerUsage {
            rootfs: fs(Some(400)),
            logs: fs(None),
            ..ContainerUsage::default()
        };
        let before = PodUsage {
            containers: vec![container],
            volumes: vec![volume("a", 100), volume("b", 300)],
            ..PodUsage::default()
        };
        let [nodefs, imagefs] = [Signal::NodeFsInodesFree, Signal::ImageFsInodesFree];
        // The layer, and the two volumes.
        for (layout, signal, removed, left) in [
            (SINGLE, nodefs, 350, [50, 100, 300]),
            (SINGLE, nodefs, 750, [0, 50, 0]),
            (SINGLE, nodefs, 10_000, [0, 0, 0]),
            (DEDICATED, nodefs, 350, [400, 50, 0]),
            (DEDICATED, imagefs, 450, [0, 100, 300]),
            (SPLIT, imagefs, 450, [400, 100, 300]),
            (SPLIT, nodefs, 650, [0, 100, 50]),
        ] {
            let mut usage = before.clone();
            layout.take_off_inodes(signal, &mut usage, removed);
            let volumes = usage.volumes.iter().map(|v| v.fs.inodes);
            let all: Vec<_> = std::iter::once(usage.containers[0].rootfs.inodes)
                .chain(volumes)
                .collect();
            assert_eq!(all, left.map(Some), "{layout:?} {signal} {removed}");
            assert_eq!(usage.containers[0].logs.inodes, None);
        }
    }

    #[test]
    fn the_node_gives_back_what_lies_on_the_disk_that_is_short() {
        // R8
        use NodeReclaim::{Containers, Images};
        for (layout, nodefs, imagefs, containerfs) in [
            (
                SINGLE,
                &[Containers, Images][..],
                &[Containers, Images][..],
                &[Containers, Images][..],
            ),
            (DEDICATED, &[], &[Containers, Images], &[Containers, Images]),
            (SPLIT, &[Containers], &[Images], &[Containers]),
        ] {
            assert_eq!(
                layout.node_reclaim(Signal::NodeFsAvailable),
                nodefs,
                "{layout:?}"
            );
            assert_eq!(
                layout.node_reclaim(Signal::ImageFsInodesFree),
                imagefs,
                "{layout:?}"
            );
            assert_eq!(
                layout.node_reclaim(Signal::ContainerFsAvailable),
                containerfs,
                "{layout:?}"
            );
            assert_eq!(layout.node_reclaim(Signal::MemoryAvailable), []);
        }
    }
}
