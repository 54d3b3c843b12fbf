//! Where a pod's files lie on the node.
//!
//! The kubelet asks the container runtime; the agent asks the kernel. Each container mounts its termination log from
//! `<kubelet>/pods/<uid>/containers/<name>/<id>` (`dockershim`'s heritage, kept by every kubelet since), so that the
//! mounts of one of its processes have its name, and the overlay that is its root has its writable layer.

use std::path::{Path, PathBuf};

use evictd_engine::Pod;
use evictd_sys::fs::read_lossy;

use crate::{
    cgroup::tree::{FollowedCgroups, first_process},
    fs::mounts::{self, MountPoints},
    pods::cgroup_name,
    proc::mountinfo::Mount,
};

/// Where the container runtime's logs of all pods lie (the kubelet's `podLogsDirectory`).
pub const POD_LOGS: &str = "/var/log/pods";
/// Plugins whose volumes count as local (`localVolumeNames`), as directories below a pod's `volumes`.
const LOCAL_PLUGINS: [&str; 3] = [
    "kubernetes.io~empty-dir",
    "kubernetes.io~configmap",
    "kubernetes.io~git-repo",
];

/// Directories of one kind, with the name of the container or volume that they belong to.
pub type Named = Vec<(String, PathBuf)>;

/// The directories of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDirs {
    /// Writable layers, by container.
    pub layers: Named,
    /// Logs, by container.
    pub logs: Named,
    /// Local volumes.
    pub volumes: Named,
    /// Containers that run and whose writable layers cannot be found, with the reason.
    pub unknown: Vec<(String, String)>,
    /// The UID that the runtime has for the pod; empty where there is none.
    pub runtime_uid: String,
}

impl PodDirs {
    /// Volumes that are given beforehand, and nothing else.
    pub fn fixed(volumes: Named) -> Self {
        Self {
            volumes,
            ..Self::default()
        }
    }

    /// The directories of a pod of the kubelet's, as far as they can be found. They have the UID that the cgroup has: a
    /// static pod's is not that of its mirror in the API. What is mounted is not looked at.
    pub fn of_kubelet_pod(
        kubelet: &Path,
        logs: &Path,
        pod: &Pod,
        cgroup: &Path,
        mounts: &MountPoints,
    ) -> Self {
        let is_there = |path: &Path| mounts.is_mounted(path) || path.is_dir();
        let named = cgroup_name::parse(cgroup).map(|name| name.uid);
        let uid = named.as_ref().unwrap_or(&pod.uid);
        let own = kubelet.join("pods").join(uid).join("volumes");
        let volumes = pod.volumes.iter().filter(|volume| volume.is_local);
        let volumes = volumes.filter_map(|volume| {
            let mut candidates = LOCAL_PLUGINS.map(|plugin| own.join(plugin).join(&volume.name));
            let found = candidates.iter_mut().find(|path| is_there(path))?;
            Some((volume.name.clone(), std::mem::take(found)))
        });
        let logs = logs.join(format!("{}_{}_{}", pod.namespace, pod.name, uid));
        let logs = pod
            .containers
            .iter()
            .map(|c| (c.name.clone(), logs.join(&c.name)));
        let groups = FollowedCgroups::of(cgroup).unwrap_or_default();
        let mounts = |group: &Path| {
            let pid = first_process(group)?;
            read_lossy(format!("/proc/{pid}/mountinfo")).ok()
        };
        let (layers, unknown) = layers(groups.paths().filter_map(mounts));
        Self {
            volumes: volumes.collect(),
            logs: logs.filter(|(_, path)| is_there(path)).collect(),
            layers,
            unknown,
            runtime_uid: uid.clone(),
        }
    }
}

/// The writable layers of containers, by the mounts of one process of each, and those that cannot be found.
fn layers(mountinfos: impl Iterator<Item = String>) -> (Named, Vec<(String, String)>) {
    let (mut found, mut unknown) = (Named::new(), Vec::new());
    for mounts in mountinfos {
        let Some(name) = container_name(&mounts) else {
            continue;
        };
        let is_here = |layer: PathBuf| match layer.is_dir() {
            true => Ok(layer),
            false => Err("the upper layer of its overlay cannot be seen from here".to_owned()),
        };
        match mounts::upper_of_root(&mounts).and_then(is_here) {
            Ok(layer) => found.push((name, layer)),
            Err(reason) => unknown.push((name, reason)),
        }
    }
    // A container may have groups below its own.
    found.sort();
    found.dedup();
    unknown.sort();
    unknown.dedup();
    (found, unknown)
}

/// The container's name, from where its termination log is mounted from.
fn container_name(mountinfo: &str) -> Option<String> {
    Mount::all(mountinfo).find_map(|mount| {
        let (pod, rest) = mount.root.to_str()?.rsplit_once("/containers/")?;
        let (name, id) = rest.split_once('/')?;
        let is_pods = pod
            .rsplit_once("/pods/")
            .is_some_and(|(_, uid)| !uid.contains('/'));
        (is_pods && !id.contains('/')).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evictd_engine::{Container, ContainerKind, Volume};

    use super::*;

    const MOUNTINFO: &str = "\
4711 4000 0:120 / / rw,relatime - overlay overlay rw,lowerdir=/l/1/fs:/l/2/fs,upperdir=/var/lib/containerd/s/9/fs,workdir=/w
4712 4711 0:123 / /proc rw,nosuid - proc proc rw
4713 4711 254:1 /var/lib/kubelet/pods/027b1a11/etc-hosts /etc/hosts rw - ext4 /dev/vda1 rw
4714 4711 254:1 /var/lib/kubelet/pods/027b1a11/containers/web/5a3f /dev/termination-log rw - ext4 /dev/vda1 rw
";

    #[test]
    fn a_container_is_known_by_its_termination_log() {
        assert_eq!(container_name(MOUNTINFO).as_deref(), Some("web"));
        assert_eq!(
            mounts::upper_of_root(MOUNTINFO),
            Ok("/var/lib/containerd/s/9/fs".into())
        );
        let unknown = "1 0 8:1 /srv/containers/web/x/y / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(container_name(unknown), None);
        assert!(mounts::upper_of_root(unknown).is_err());
    }

    // R10: btrfs and zfs snapshots, devices of their own, FUSE, and what is not mounted into the agent's container.
    #[test]
    fn a_layer_that_cannot_be_found_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("fs");
        let root = |kind: &str, options: &str| {
            let mounts = MOUNTINFO.lines().skip(1).collect::<Vec<_>>().join("\n");
            format!("4711 4000 0:120 / / rw - {kind} x {options}\n{mounts}\n")
        };
        let overlay = format!("rw,lowerdir=/l,upperdir={},workdir=/w", upper.display());
        let of = |kind: &str, options: &str| layers([root(kind, options)].into_iter());
        let (found, unknown) = of("overlay", &overlay);
        assert!(found.is_empty() && unknown[0].0 == "web");
        assert!(unknown[0].1.contains("cannot be seen"), "{unknown:?}");
        fs::create_dir(&upper).unwrap();
        let (found, unknown) = of("overlay", &overlay);
        assert_eq!((found, unknown), (vec![("web".into(), upper)], vec![]));
        for kind in ["btrfs", "fuse.fuse-overlayfs"] {
            let (found, unknown) = of(kind, "rw");
            assert!(found.is_empty());
            assert!(unknown[0].1.contains(kind), "{unknown:?}");
        }
        let (_, unknown) = of("overlay", "ro,lowerdir=/l");
        assert!(unknown[0].1.contains("without an upper"), "{unknown:?}");
        // The sandbox has no name.
        assert_eq!(
            layers(["4711 4000 0:120 / / rw - xfs x rw\n".to_owned()].into_iter()),
            (vec![], vec![])
        );
    }

    // R10
    #[test]
    fn volumes_and_logs_are_where_the_kubelet_puts_them() {
        let dir = tempfile::tempdir().unwrap();
        let (kubelet, logs) = (dir.path().join("kubelet"), dir.path().join("logs"));
        let scratch = kubelet.join("pods/u1/volumes/kubernetes.io~empty-dir/scratch");
        let web = logs.join("shop_web-0_u1/web");
        for path in [&scratch, &web] {
            fs::create_dir_all(path).unwrap();
        }
        let volume = |name: &str, is_local| Volume {
            name: name.into(),
            is_local,
            empty_dir: None,
        };
        let container = |name: &str| Container {
            name: name.into(),
            kind: ContainerKind::Regular,
            memory_request: Default::default(),
            storage_request: Default::default(),
            storage_limit: None,
        };
        let pod = Pod {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "web-0".into(),
            volumes: vec![volume("scratch", true), volume("claim", false)],
            containers: vec![container("web"), container("not-started")],
            ..Pod::default()
        };
        let mirror = Pod {
            uid: "of-the-mirror".into(),
            ..pod.clone()
        };
        let own = Path::new("/kubepods/burstable/podu1");
        for (pod, cgroup) in [(pod, Path::new("/nowhere")), (mirror, own)] {
            let mounts = MountPoints::default();
            let places = PodDirs::of_kubelet_pod(&kubelet, &logs, &pod, cgroup, &mounts);
            assert_eq!(places.volumes, [("scratch".to_owned(), scratch.clone())]);
            assert_eq!(places.logs, [("web".to_owned(), web.clone())]);
            assert!(places.layers.is_empty());
        }
    }
}
