//! What is known of a pod's disk use: by a walk, and by the runtime where a walk has no number.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use evictd_engine::{ContainerUsage, FsUsage, PodUsage, node_reclaim::LayerUsage};

/// Disk use of one pod, as a walk has found it.
#[derive(Clone, Debug, Default)]
pub struct DiskUse {
    /// In the form of the kubelet's summary. Without `ephemeral_storage` the first walk is not at its end, or could not
    /// look at all: there is more.
    pub usage: PodUsage,
    /// Inodes made less those removed when the walk was half way through, by filesystem, of each of the pod's cgroups.
    pub counted: HashMap<u64, [i64; FILESYSTEMS]>,
    /// Time at which the walk began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: u64,
    /// The walk has come to its end.
    pub(super) has_ended: bool,
    /// Containers whose writable layers were not found, with the reason.
    unknown: Vec<(String, String)>,
    /// Containers that go by their ids: the runtime knows them by names.
    nameless: Vec<String>,
    /// The walk has found a container that runs, not only the sandbox.
    has_named: bool,
    /// Of the unknown and of others that have none, whose numbers are the runtime's.
    filled: HashSet<String>,
    /// Time at which the runtime was asked for the numbers of `filled`, in nanoseconds of CLOCK_MONOTONIC.
    filled_at: u64,
    /// The UID that the runtime has for the pod.
    runtime_uid: String,
}

/// Filesystems that can have counts.
pub const FILESYSTEMS: usize = evictd_node::trigger::inodes::MAX_FILESYSTEMS as usize;

impl DiskUse {
    /// Creates the disk use of a walk that has begun (`began` in nanoseconds of CLOCK_MONOTONIC) and has found nothing
    /// yet.
    pub(super) fn begun(
        began: u64,
        unknown: Vec<(String, String)>,
        nameless: Vec<String>,
        has_named: bool,
        runtime_uid: String,
    ) -> Self {
        Self {
            began,
            unknown,
            nameless,
            has_named,
            runtime_uid,
            ..Self::default()
        }
    }

    /// Containers of which it is not known what their writable layers use, with the reason: they count as if they used
    /// nothing.
    pub fn unknown_layers(&self) -> impl Iterator<Item = &(String, String)> {
        self.unknown
            .iter()
            .filter(|(name, _)| !self.filled.contains(name))
    }

    /// Whether the walk has come to its end, and has looked at all.
    pub(super) fn is_whole(&self) -> bool {
        self.usage.ephemeral_storage.is_some()
    }

    /// Whether this counts from now on, in place of what another walk has found. A walk that is not whole says what
    /// there is at least: it lessens nothing, so that no pod hides its files by making its walks fail.
    pub(super) fn replaces(&self, known: &Self) -> bool {
        self.is_whole()
            || (self.has_ended || !known.is_whole())
                && self.usage.bytes_of_files() >= known.usage.bytes_of_files()
    }

    /// Takes the runtime's numbers where the walk has none. What an earlier answer had and this one has not is gone; so are
    /// those of containers that had ended, beside a container that the walk has found.
    pub(super) fn fill(&mut self, answer: &LayersAnswer) {
        self.empty();
        let of_pod = answer.layers.get(&self.runtime_uid);
        let of_pod = of_pod.filter(|known| !(known.have_ended && self.has_named));
        for (name, fs) in of_pod.into_iter().flat_map(|known| &known.layers) {
            let container = container(&mut self.usage, name.clone());
            if container.rootfs.bytes.is_none() || self.filled.contains(name) {
                container.rootfs = *fs;
                self.filled.insert(name.clone());
            }
        }
        self.count_once();
        self.filled_at = answer.requested_at;
        if self.is_whole() {
            self.usage.ephemeral_storage = Some(self.usage.bytes_of_files());
        }
    }

    /// Takes what was walked under containers' ids off the runtime's numbers, which have the same under names. A name
    /// of which it is known that no layer was found is none of them.
    fn count_once(&mut self) {
        let (nameless, filled, unknown) = (&self.nameless, &self.filled, &self.unknown);
        let is_other = |name: &String| unknown.iter().any(|(other, _)| other == name);
        let containers = &mut self.usage.containers;
        let mut left = FsUsage::default();
        let walked = containers.iter().filter(|c| nameless.contains(&c.name));
        walked.for_each(|c| left.add(c.rootfs));
        let take_off = |number: &mut Option<u64>, left: &mut Option<u64>| {
            if let (Some(number), Some(left)) = (number, left) {
                let part = (*left).min(*number);
                *number -= part;
                *left -= part;
            }
        };
        let doubled = containers.iter_mut().filter(|c| filled.contains(&c.name));
        for container in doubled.filter(|c| !is_other(&c.name)) {
            take_off(&mut container.rootfs.bytes, &mut left.bytes);
            take_off(&mut container.rootfs.inodes, &mut left.inodes);
        }
    }

    /// Without the runtime's numbers.
    fn empty(&mut self) {
        for name in self.filled.drain() {
            container(&mut self.usage, name).rootfs = FsUsage::default();
        }
        if self.is_whole() {
            self.usage.ephemeral_storage = Some(self.usage.bytes_of_files());
        }
    }

    /// What holds of a pod that was killed at a moment, in nanoseconds of CLOCK_MONOTONIC, and runs again; `None` where
    /// the walk is older. The runtime's numbers are those of the containers that are gone unless it was asked later.
    pub(crate) fn after_kill(&self, at: u64) -> Option<Self> {
        if self.began <= at {
            return None;
        }
        let mut found = self.clone();
        if self.filled_at <= at {
            found.empty();
        }
        Some(found)
    }

    /// Inodes that the pod has made since the walk on a filesystem, less those removed: `now` is what each of its
    /// cgroups has counted. That of a removed cgroup is in its parent's if they are merged; else nothing is known of
    /// it, and what the walk has found stays.
    pub fn since(
        &self,
        filesystem: usize,
        cgroups: &[u64],
        are_merged: bool,
        now: impl Fn(u64) -> Option<i64>,
    ) -> i64 {
        let new = cgroups.iter().filter(|id| !self.counted.contains_key(id));
        let new: i64 = new.filter_map(|id| now(*id)).sum();
        let known = self.counted.iter().map(|(id, nets)| {
            let then = nets.get(filesystem).copied().unwrap_or(0);
            match now(*id) {
                None if !are_merged => 0,
                now => now.unwrap_or(0) - then,
            }
        });
        known.sum::<i64>() + new
    }
}

/// The last walk of every pod that was walked, by UID.
pub type Found = HashMap<String, Arc<DiskUse>>;

/// Answer of the runtime about writable layers.
#[derive(Default)]
pub(super) struct LayersAnswer {
    pub layers: LayerUsage,
    /// Time at which the runtime was asked, in nanoseconds of CLOCK_MONOTONIC.
    pub requested_at: u64,
}

/// The container of a name, which is added where there is none.
pub(crate) fn container(usage: &mut PodUsage, name: String) -> &mut ContainerUsage {
    let at = usage.containers.iter().position(|c| c.name == name);
    let at = at.unwrap_or_else(|| {
        usage.containers.push(ContainerUsage {
            name,
            ..ContainerUsage::default()
        });
        usage.containers.len() - 1
    });
    &mut usage.containers[at]
}

#[cfg(test)]
mod tests {
    use evictd_engine::node_reclaim::PodLayers;

    use super::*;

    // R10
    #[test]
    fn the_count_of_a_removed_container_does_not_wipe_what_the_walk_has_found() {
        let [pod, old, new] = [1, 2, 3];
        let walk = DiskUse {
            counted: [(pod, [5; FILESYSTEMS]), (old, [300_000; FILESYSTEMS])].into(),
            ..DiskUse::default()
        };
        let since = |are_merged, counts: &[(u64, i64)]| {
            let counts: HashMap<u64, i64> = counts.iter().copied().collect();
            walk.since(0, &[pod, new], are_merged, |id| counts.get(&id).copied())
        };
        // It is still there, and has removed files.
        assert_eq!(since(true, &[(pod, 5), (old, 100_000)]), -200_000);
        // Its successor has made some.
        assert_eq!(since(true, &[(pod, 300_007), (new, 40)]), 42);
        assert_eq!(since(false, &[(pod, 5), (new, 40)]), 40);
        assert_eq!(since(false, &[]), 0);
    }

    /// A static pod that was killed and runs again has the same name, and its containers have the same names.
    #[test]
    fn what_dead_containers_had_written_is_not_held_against_new_ones() {
        let fs = |bytes| FsUsage {
            bytes: Some(bytes),
            inodes: Some(1),
        };
        let answer = |requested_at, layers: &[(&str, u64)], have_ended| LayersAnswer {
            layers: {
                let of_pod = layers.iter().map(|(name, n)| ((*name).to_owned(), fs(*n)));
                let layers = of_pod.collect();
                [("u".to_owned(), PodLayers { layers, have_ended })].into()
            },
            requested_at,
        };
        let mut walk = DiskUse {
            began: 50,
            runtime_uid: "u".into(),
            ..DiskUse::default()
        };
        walk.usage.ephemeral_storage = Some(0);
        walk.fill(&answer(10, &[("a", 7)], false));
        assert_eq!(walk.usage.ephemeral_storage, Some(7));
        assert!(walk.after_kill(60).is_none(), "the walk is older");
        let after = walk.after_kill(20).unwrap();
        assert_eq!(after.usage.ephemeral_storage, Some(0));
        assert_eq!(after.usage.containers[0].rootfs.bytes, None);
        // Asked after the kill.
        walk.fill(&answer(30, &[("a", 2)], false));
        let after = walk.after_kill(20).unwrap();
        assert_eq!(after.usage.ephemeral_storage, Some(2));
        // What it does not name any more is not there.
        walk.fill(&answer(40, &[("b", 1)], false));
        assert_eq!(walk.usage.ephemeral_storage, Some(1));
        // An answer from between two runs, until a walk finds a container that runs.
        let between = answer(50, &[("init", 5), ("a", 3)], true);
        container(&mut walk.usage, "sandbox's id".into()).rootfs = fs(0);
        walk.fill(&between);
        assert_eq!(walk.usage.ephemeral_storage, Some(8));
        walk.filled.remove("a");
        container(&mut walk.usage, "a".into()).rootfs = fs(1);
        walk.has_named = true;
        walk.fill(&between);
        assert_eq!(walk.usage.ephemeral_storage, Some(1));
    }

    #[test]
    fn a_layer_that_was_walked_under_its_containers_id_does_not_count_again_by_the_name() {
        let fs = |bytes| FsUsage {
            bytes: Some(bytes),
            inodes: Some(1),
        };
        let of_pod = vec![("web".to_owned(), fs(9)), ("other".to_owned(), fs(2))];
        let of_pod = PodLayers {
            layers: of_pod,
            have_ended: false,
        };
        let answer = LayersAnswer {
            layers: [("u".to_owned(), of_pod)].into(),
            requested_at: 10,
        };
        // The sandbox; the same container; a sandbox that looks like another container (gVisor).
        for (is_nameless, walked, all) in [(false, 1, 12), (true, 10, 12), (true, 1, 11)] {
            let unknown = vec![("other".to_owned(), "why".to_owned())];
            let nameless = is_nameless.then(|| "c0ffee".to_owned());
            let nameless = nameless.into_iter().collect();
            let mut walk = DiskUse::begun(0, unknown, nameless, true, "u".into());
            container(&mut walk.usage, "c0ffee".into()).rootfs = fs(walked);
            walk.usage.ephemeral_storage = Some(walked);
            for _ in 0..2 {
                walk.fill(&answer);
                assert_eq!(walk.usage.ephemeral_storage, Some(all));
            }
        }
    }
}
