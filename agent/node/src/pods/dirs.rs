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
    /// Logs, by container; not those of containers that have ended beside others that run.
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
        let groups = FollowedCgroups::of(cgroup).unwrap_or_default();
        let mounts = |group: &Path| {
            let pid = first_process(group)?;
            read_lossy(format!("/proc/{pid}/mountinfo")).ok()
        };
        let running = Running::new(groups.paths().filter_map(mounts));
        let counted = pod.containers.iter().filter(|c| running.has_log(&c.name));
        let logs = counted.map(|c| (c.name.clone(), logs.join(&c.name)));
        Self {
            volumes: volumes.collect(),
            logs: logs.filter(|(_, path)| is_there(path)).collect(),
            layers: running.layers,
            unknown: running.unknown,
            runtime_uid: uid.clone(),
        }
    }
}

/// The containers that run, by the mounts of one process of each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Running {
    /// Their writable layers.
    layers: Named,
    /// Those whose writable layers cannot be found, with the reason.
    unknown: Vec<(String, String)>,
    /// Groups of processes whose container has no name; the sandbox is one.
    nameless: usize,
}

impl Running {
    fn new(mountinfos: impl Iterator<Item = String>) -> Self {
        let mut running = Self::default();
        for mounts in mountinfos {
            let Some(name) = container_name(&mounts) else {
                running.nameless += 1;
                continue;
            };
            let is_here = |layer: PathBuf| match layer.is_dir() {
                true => Ok(layer),
                false => Err("the upper layer of its overlay cannot be seen from here".to_owned()),
            };
            match mounts::upper_of_root(&mounts).and_then(is_here) {
                Ok(layer) => running.layers.push((name, layer)),
                Err(reason) => running.unknown.push((name, reason)),
            }
        }
        // A container may have groups below its own.
        running.layers.sort();
        running.layers.dedup();
        running.unknown.sort();
        running.unknown.dedup();
        running
    }

    /// Whether the log of a container counts: the kubelet counts only those of containers that run
    /// (`removeTerminatedContainers`). All count where no container runs, because the pod goes for its files between
    /// two runs, and where a container hides its name.
    fn has_log(&self, container: &str) -> bool {
        let mut layers = self.layers.iter().map(|(name, _)| name);
        let mut unknown = self.unknown.iter().map(|(name, _)| name);
        let runs_none = self.layers.is_empty() && self.unknown.is_empty();
        let runs = layers.any(|name| name == container) || unknown.any(|name| name == container);
        runs || runs_none || self.nameless > 1
    }
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

    /// It has no name.
    const SANDBOX: &str = "4711 4000 0:120 / / rw - xfs x rw\n";

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
        let of = |kind: &str, options: &str| {
            let running = Running::new([root(kind, options)].into_iter());
            (running.layers, running.unknown)
        };
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
        let sandbox = Running {
            nameless: 1,
            ..Running::default()
        };
        assert_eq!(Running::new([SANDBOX.to_owned()].into_iter()), sandbox);
    }

    // R10: the kubelet's figures are those of containers that run.
    #[test]
    fn logs_of_containers_that_have_ended_do_not_count_beside_others() {
        let named = |name: &str| MOUNTINFO.replace("containers/web", &format!("containers/{name}"));
        let counted = |mounts: &[&String]| {
            let running = Running::new(mounts.iter().map(|text| (*text).clone()));
            let all = ["init", "web", "proxy"].into_iter();
            all.filter(|name| running.has_log(name)).collect::<Vec<_>>()
        };
        let (web, proxy, sandbox) = (named("web"), named("proxy"), SANDBOX.to_owned());
        assert_eq!(counted(&[&sandbox, &web, &proxy]), ["web", "proxy"]);
        // Its neighbour waits to be started again.
        assert_eq!(counted(&[&sandbox, &proxy]), ["proxy"]);
        assert_eq!(counted(&[&proxy]), ["proxy"]);
        // Between two runs, or where no process tells a name.
        let all = ["init", "web", "proxy"];
        assert_eq!(counted(&[]), all);
        assert_eq!(counted(&[&sandbox]), all);
        // A container that has left its mounts behind looks like a second sandbox.
        assert_eq!(counted(&[&sandbox, &sandbox, &proxy]), all);
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
