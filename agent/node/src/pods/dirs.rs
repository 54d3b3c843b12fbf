//! Where a pod's files lie on the node.
//!
//! The kubelet asks the container runtime; the agent asks the kernel, and of it no more than it must of what a pod can
//! change: the mounts of a process are empty after chroot(2), and in a user namespace it mounts what it likes.
//!
//! - A writable layer is that of the overlay which the node's first process has as the container's root: the cgroup has
//!   the container's id; where the runtime does not mount by that (CRI-O, Docker), the root has the same superblock.
//! - A container's name is in the pod's status, by its id. Else its mounts tell: each container mounts its termination
//!   log from `<kubelet>/pods/<uid>/containers/<name>/<id>` (`dockershim`'s heritage, kept by every kubelet since).

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use evictd_engine::Pod;

use crate::{
    cgroup::tree::{FollowedCgroups, first_process},
    fs::mounts::{MountPoints, Overlays},
    pods::cgroup_name,
    proc::mountinfo::{Mount, Superblock},
};

/// Directory of the container runtime's logs of all pods (the kubelet's `podLogsDirectory`).
pub const POD_LOGS: &str = "/var/log/pods";
/// Plugins whose volumes count as local (`localVolumeNames`), as directories below a pod's `volumes`.
const LOCAL_PLUGINS: [&str; 3] = [
    "kubernetes.io~empty-dir",
    "kubernetes.io~configmap",
    "kubernetes.io~git-repo",
];

/// So many bytes of a process's mounts are read: those of its container's start come first, and a pod can make 100,000
/// (`fs.mount-max`).
const MOST_MOUNTS: u64 = 1 << 20;

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
        let mut containers = Containers::default();
        for group in groups.paths() {
            let below = group.strip_prefix(cgroup).unwrap_or(group);
            if let Some(id) = container_id(below)
                && let Some(pid) = first_process(group)
            {
                containers.add(id, &mounts_of(pid));
            }
        }
        let running = containers.running(&pod.container_names, &mounts.overlays);
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

/// The runtime's id of the container that a cgroup is of, by its path below the pod's: `<id>`, or
/// `<runtime>-<id>.scope`. What is directly below the pod is the runtime's to name.
fn container_id(below: &Path) -> Option<&str> {
    let group = match below.iter().next() {
        Some(name) => name.to_str()?,
        None => "",
    };
    // CRI-O's monitor of a container (`conmon_cgroup = "pod"`) is no container.
    let is_monitor = group.starts_with("crio-conmon-");
    let group = group.strip_suffix(".scope").unwrap_or(group);
    let (_, id) = group.rsplit_once('-').unwrap_or_default();
    (!is_monitor).then_some(if id.is_empty() { group } else { id })
}

/// Reads the mountinfo of a process; empty where it is gone.
fn mounts_of(pid: u32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/mountinfo")) {
        // What was read serves.
        let _ = file.take(MOST_MOUNTS).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Facts about each container that the mounts of its processes tell, by its id.
#[derive(Debug, Default)]
struct Containers(BTreeMap<String, Told>);

#[derive(Debug, Default)]
struct Told {
    name: Option<String>,
    root: Option<Superblock>,
}

impl Containers {
    /// A container may have groups below its own, each with a process whose mounts tell of it.
    fn add(&mut self, id: &str, mountinfo: &str) {
        let told = self.0.entry(id.to_owned()).or_default();
        // The last one lies on top.
        let root = || Mount::all(mountinfo).rfind(|mount| mount.point == Path::new("/"));
        told.name = told.name.take().or_else(|| container_name(mountinfo));
        told.root = told.root.take().or_else(|| Some(root()?.superblock));
    }

    /// With the names that are known by id, and the overlays of the node.
    fn running(self, names: &BTreeMap<String, String>, overlays: &Overlays) -> Running {
        let mut running = Running::default();
        let (mut nameless, mut found_any) = (Vec::new(), false);
        for (id, Told { name, root }) in self.0 {
            let by_root = || overlays.of_device(root.as_ref()?.device);
            let overlay = overlays.of_container(&id).or_else(by_root);
            found_any |= overlay.is_some();
            let Some(name) = names.get(&id).cloned().or(name) else {
                // The sandbox has no name, and the root that it was given.
                let given = overlay.map(|overlay| overlay.device);
                if given.is_none() || given != root.map(|root| root.device) {
                    nameless.push(id);
                }
                continue;
            };
            let layer = match (overlay, root) {
                (Some(overlay), _) => overlay
                    .upper
                    .clone()
                    .ok_or_else(|| "its root is an overlay without an upper layer".to_owned()),
                (None, Some(root)) if root.kind != "overlay" => Err(format!(
                    "its root is a filesystem of type {}, not an overlay",
                    root.kind
                )),
                (None, _) => Err("its root is not among the node's mounts".to_owned()),
            };
            let is_here = |layer: PathBuf| match layer.is_dir() {
                true => Ok(layer),
                false => Err("the upper layer of its overlay cannot be seen from here".to_owned()),
            };
            match layer.and_then(is_here) {
                Ok(layer) => running.layers.push((name, layer)),
                Err(reason) => running.unknown.push((name, reason)),
            }
        }
        if !found_any {
            // Nothing tells the sandbox from others: it is one of them.
            nameless.pop();
        }
        running.is_hidden = !nameless.is_empty();
        let reason = || "it hides its name and its root".to_owned();
        let hidden = nameless.into_iter().map(|id| (id, reason()));
        running.unknown.extend(hidden);
        running
    }
}

/// The containers that run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Running {
    /// Writable layers of the containers.
    layers: Named,
    /// Containers whose writable layers cannot be found, with the reason.
    unknown: Vec<(String, String)>,
    /// At least one of these has no name but its id.
    is_hidden: bool,
}

impl Running {
    /// Whether the log of a container counts: the kubelet counts only those of containers that run
    /// (`removeTerminatedContainers`). All count where no container runs, because the pod goes for its files between
    /// two runs, and where a container hides its name.
    fn has_log(&self, container: &str) -> bool {
        let mut layers = self.layers.iter().map(|(name, _)| name);
        let mut unknown = self.unknown.iter().map(|(name, _)| name);
        let runs_none = self.layers.is_empty() && self.unknown.is_empty();
        let runs = layers.any(|name| name == container) || unknown.any(|name| name == container);
        runs || runs_none || self.is_hidden
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
    const SANDBOX: &str = "4711 4000 0:90 / / rw - xfs x rw\n";

    /// The overlay of a container's root as the node sees it.
    fn node_mount(id: &str, device: u32, options: &str) -> String {
        let point = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/rootfs");
        format!("900 30 0:{device} / {point} rw - overlay overlay {options}")
    }

    /// Containers that these processes tell of, and nothing else does.
    fn running(groups: &[(&str, &str)], node: &[String]) -> Running {
        let mut containers = Containers::default();
        for (id, mountinfo) in groups {
            containers.add(id, mountinfo);
        }
        let overlays = Overlays::of(node.iter().map(String::as_str));
        containers.running(&BTreeMap::new(), &overlays)
    }

    #[test]
    fn a_container_is_known_by_its_cgroup_and_its_termination_log() {
        for (below, id) in [
            ("c0ffee", Some("c0ffee")),
            ("c0ffee/init.scope", Some("c0ffee")),
            ("cri-containerd-c0ffee.scope", Some("c0ffee")),
            ("crio-c0ffee.scope/container", Some("c0ffee")),
            ("crio-conmon-c0ffee.scope", None),
            ("", Some("")),
        ] {
            assert_eq!(container_id(Path::new(below)), id, "{below}");
        }
        assert_eq!(container_name(MOUNTINFO).as_deref(), Some("web"));
        let unknown = "1 0 8:1 /srv/containers/web/x/y / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(container_name(unknown), None);
    }

    // R10: btrfs and zfs snapshots, devices of their own, FUSE, and what is not mounted into the agent's container.
    #[test]
    fn a_layer_that_cannot_be_found_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("fs");
        let overlay = format!("rw,lowerdir=/l,upperdir={},workdir=/w", upper.display());
        let of = |root: &str, node: &[String]| {
            let web = MOUNTINFO.replace("- overlay overlay", root);
            let found = running(&[("c0ffee", &web), ("5a", SANDBOX)], node);
            assert!(!found.is_hidden);
            (found.layers, found.unknown)
        };
        let node = [
            node_mount("c0ffee", 120, &overlay),
            node_mount("5a", 90, &overlay),
        ];
        let (found, unknown) = of("- overlay overlay", &node);
        assert!(found.is_empty() && unknown[0].0 == "web");
        assert!(unknown[0].1.contains("cannot be seen"), "{unknown:?}");
        fs::create_dir(&upper).unwrap();
        let (found, unknown) = of("- overlay overlay", &node);
        assert_eq!((found, unknown), (vec![("web".into(), upper)], vec![]));
        for kind in ["btrfs", "fuse.fuse-overlayfs"] {
            let (found, unknown) = of(&format!("- {kind} x"), &[]);
            assert!(found.is_empty());
            assert!(unknown[0].1.contains(kind), "{unknown:?}");
        }
        let (_, unknown) = of("- overlay overlay", &[]);
        assert!(unknown[0].1.contains("not among"), "{unknown:?}");
        let node = [
            node_mount("c0ffee", 120, "ro,lowerdir=/l"),
            node_mount("5a", 90, &overlay),
        ];
        let (_, unknown) = of("- overlay overlay", &node);
        assert!(unknown[0].1.contains("without an upper"), "{unknown:?}");
        assert_eq!(running(&[("5a", SANDBOX)], &[]), Running::default());
    }

    // R10: a container can mount an overlay in a user namespace, and chroot(2) leaves it without any mount.
    #[test]
    fn a_container_does_not_choose_its_writable_layer() {
        let dir = tempfile::tempdir().unwrap();
        let [own, forged] = ["own", "forged"].map(|name| dir.path().join(name));
        for path in [&own, &forged] {
            fs::create_dir(path).unwrap();
        }
        let node = |id: &str| {
            let options = format!("rw,upperdir={},workdir=/w", own.display());
            [
                node_mount(id, 120, &options),
                node_mount("5a", 90, "rw,upperdir=/pause"),
            ]
        };
        let told = format!(
            "{MOUNTINFO}4720 4711 0:130 / / rw - overlay x rw,upperdir={}\n",
            forged.display()
        );
        let of = |id: &str, mountinfo: &str| {
            running(&[(id, mountinfo), ("5a", SANDBOX)], &node("c0ffee"))
        };
        // Forged, and not.
        for mountinfo in [&told, MOUNTINFO] {
            assert_eq!(
                of("c0ffee", mountinfo).layers,
                [("web".to_owned(), own.clone())]
            );
        }
        // As CRI-O mounts it: only the superblock tells, and a forged one is not the node's.
        assert_eq!(
            of("77aa", MOUNTINFO).layers,
            [("web".to_owned(), own.clone())]
        );
        let forged = of("77aa", &told);
        assert_eq!((forged.layers.len(), forged.unknown.len()), (0, 1));
        // Hidden: told, and found once the pod's status names it.
        let hidden = of("c0ffee", "");
        assert!(hidden.is_hidden && hidden.layers.is_empty());
        assert!(hidden.unknown[0].1.contains("hides"), "{hidden:?}");
        let mut containers = Containers::default();
        containers.add("c0ffee", "");
        containers.add("5a", SANDBOX);
        let names = [("c0ffee".to_owned(), "web".to_owned())].into();
        let found = containers.running(
            &names,
            &Overlays::of(node("c0ffee").iter().map(String::as_str)),
        );
        assert_eq!(
            (found.layers, found.unknown),
            (vec![("web".to_owned(), own)], vec![])
        );
        assert!(!found.is_hidden);
    }

    /// With a process of this machine, whose mounts name no container.
    #[test]
    fn the_pods_status_names_containers() {
        let dir = tempfile::tempdir().unwrap();
        let (cgroup, upper) = (dir.path().join("podu1"), dir.path().join("upper"));
        for path in [&cgroup.join("cri-containerd-c0ffee.scope"), &upper] {
            fs::create_dir_all(path).unwrap();
        }
        let procs = cgroup.join("cri-containerd-c0ffee.scope/cgroup.procs");
        fs::write(procs, std::process::id().to_string()).unwrap();
        let pod = Pod {
            container_names: [("c0ffee".to_owned(), "web".to_owned())].into(),
            ..Pod::default()
        };
        let node = node_mount(
            "c0ffee",
            (1 << 20) - 1,
            &format!("rw,upperdir={}", upper.display()),
        );
        let mut mounts = MountPoints::default();
        mounts.overlays = Overlays::of([node.as_str()].into_iter());
        let at = |pod: &Pod| PodDirs::of_kubelet_pod(dir.path(), dir.path(), pod, &cgroup, &mounts);
        assert_eq!(at(&pod).layers, [("web".to_owned(), upper)]);
        let nameless = at(&Pod::default());
        assert_eq!((nameless.layers.len(), nameless.unknown.len()), (0, 1));
    }

    // R10: the kubelet's figures are those of containers that run.
    #[test]
    fn logs_of_containers_that_have_ended_do_not_count_beside_others() {
        let named = |name: &str| MOUNTINFO.replace("containers/web", &format!("containers/{name}"));
        let counted = |mounts: &[&str]| {
            let ids = ["a", "b", "c"].into_iter();
            let groups: Vec<_> = ids.zip(mounts.iter().copied()).collect();
            let running = running(&groups, &[]);
            let all = ["init", "web", "proxy"].into_iter();
            all.filter(|name| running.has_log(name)).collect::<Vec<_>>()
        };
        let (web, proxy) = (named("web"), named("proxy"));
        assert_eq!(counted(&[SANDBOX, &web, &proxy]), ["web", "proxy"]);
        // Its neighbour waits to be started again.
        assert_eq!(counted(&[SANDBOX, &proxy]), ["proxy"]);
        assert_eq!(counted(&[&proxy]), ["proxy"]);
        // Between two runs, or where no process tells a name.
        let all = ["init", "web", "proxy"];
        assert_eq!(counted(&[]), all);
        assert_eq!(counted(&[SANDBOX]), all);
        // A container that has left its mounts behind looks like a second sandbox.
        assert_eq!(counted(&[SANDBOX, "", &proxy]), all);
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
