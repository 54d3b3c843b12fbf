//! Where a pod's files lie on the node.
//!
//! The kubelet asks the container runtime; the agent asks the kernel, and of it no more than it must of what a pod can
//! change: the mounts of a process are empty after chroot(2), and in a user namespace it mounts what it likes.
//!
//! - A writable layer is that of the overlay which the node's first process has as the container's root: the cgroup has
//!   the container's id; where the runtime does not mount by that (CRI-O, Docker), the root has the same superblock.
//!   What was found once holds ([`SeenContainers`]).
//! - A container's name is in the pod's status, by its id. Else its mounts tell: each container mounts its termination
//!   log from `<kubelet>/pods/<uid>/containers/<name>/<id>` (`dockershim`'s heritage, kept by every kubelet since). A
//!   container without a known name goes by its id.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use evictd_engine::Pod;
use evictd_sys::{fs::lossy, pi_mutex::PiMutex};

use crate::{
    cgroup::tree::{FollowedCgroups, first_process},
    fs::mounts::{MountPoints, Overlay, Overlays},
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
const MAX_MOUNTS: u64 = 1 << 20;

/// Directories of one kind, with the name of the container or volume that they belong to.
pub type Named = Vec<(String, PathBuf)>;

/// The directories of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDirs {
    /// Writable layers, by container: by its id where it has no name, as a sandbox has none.
    pub layers: Named,
    /// Ids in `layers` of containers that should have a name: others may know a container by that.
    pub nameless: Vec<String>,
    /// Whether a container runs whose name is known.
    pub has_named: bool,
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
    /// static pod's is not that of its mirror in the API. What is mounted is not looked at. `seen` is what earlier
    /// looks at the pod have told.
    pub fn resolve(
        kubelet: &Path,
        logs: &Path,
        pod: &Pod,
        cgroup: &Path,
        mounts: &MountPoints,
        seen: &SeenContainers,
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
        let running = seen.look(pod, uid, cgroup, &mounts.overlays);
        let listed = pod.containers.iter().map(|c| &c.name);
        let counted = listed.filter(|name| running.has_log(name));
        // The specification that is read lists no ephemeral containers.
        let counted: BTreeSet<_> = counted.chain(&running.names).collect();
        let logs = counted
            .into_iter()
            .map(|name| (name.clone(), logs.join(name)));
        Self {
            volumes: volumes.collect(),
            logs: logs.filter(|(_, path)| is_there(path)).collect(),
            layers: running.layers,
            has_named: !running.names.is_empty(),
            nameless: running.nameless,
            unknown: running.unknown,
            runtime_uid: uid.clone(),
        }
    }
}

/// What was seen of a pod's containers, by their ids, which are never used again. A container that leaves its root
/// later, by chroot(2), keeps what it had. One thread looks; the pod's entries share it.
#[derive(Debug, Default)]
pub struct SeenContainers(PiMutex<BTreeMap<String, Seen>>);

/// A container that was seen with its own root.
#[derive(Clone, Debug)]
struct Seen {
    name: Option<String>,
    overlay: Overlay,
}

impl SeenContainers {
    /// The containers that run, with the UID that the kubelet has for the pod and the overlays of the node.
    fn look(&self, pod: &Pod, uid: &str, cgroup: &Path, overlays: &Overlays) -> Running {
        let mut seen = self.0.lock();
        let groups = FollowedCgroups::find(cgroup).unwrap_or_default();
        let ids = groups.paths().filter_map(|group| {
            let id = container_id(group.strip_prefix(cgroup).ok()?)?;
            Some((id, group))
        });
        let ids: Vec<_> = ids.collect();
        // Not where the cgroups could not be listed at this moment.
        if !groups.list.is_empty() {
            seen.retain(|id, _| ids.iter().any(|(there, _)| there == id));
        }
        let mut containers = Containers::new(uid, &pod.container_names, overlays, &mut seen);
        for (id, group) in ids {
            if let Some(pid) = first_process(group) {
                containers.add(id, || mounts_of(pid));
            }
        }
        containers.add_mounted();
        containers.running()
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
        let _ = file.take(MAX_MOUNTS).read_to_end(&mut bytes);
    }
    lossy(bytes)
}

/// What is known of a pod's containers, and what the mounts of their processes tell, by container id.
struct Containers<'a> {
    /// The UID that the kubelet has for the pod.
    uid: &'a str,
    /// Names that the pod's status has.
    names: &'a BTreeMap<String, String>,
    /// The overlays of the node.
    overlays: &'a Overlays,
    seen: &'a mut BTreeMap<String, Seen>,
    told: BTreeMap<String, NamedRoot>,
}

/// What the mounts of a container's processes tell: its name and the filesystem of its root.
#[derive(Debug, Default)]
struct NamedRoot {
    name: Option<String>,
    root: Option<Superblock>,
}

impl<'a> Containers<'a> {
    fn new(
        uid: &'a str,
        names: &'a BTreeMap<String, String>,
        overlays: &'a Overlays,
        seen: &'a mut BTreeMap<String, Seen>,
    ) -> Self {
        Self {
            uid,
            names,
            overlays,
            seen,
            told: BTreeMap::new(),
        }
    }

    /// A container that runs. It may have groups below its own, each with a process whose mounts tell of it; they are
    /// read as long as something is missing.
    fn add(&mut self, id: &str, mountinfo: impl FnOnce() -> String) {
        let seen = self.seen.get(id);
        let has_name = self.names.contains_key(id) || seen.is_some_and(|seen| seen.name.is_some());
        let has_overlay = seen.is_some() || self.overlays.of_container(id).is_some();
        let told = self.told.entry(id.to_owned()).or_default();
        if has_name && has_overlay || told.name.is_some() && told.root.is_some() {
            return;
        }
        let mountinfo = mountinfo();
        // The last one lies on top.
        let root = || Mount::all(&mountinfo).rfind(|mount| mount.point == Path::new("/"));
        let uid = self.uid;
        told.name = told.name.take().or_else(|| container_name(&mountinfo, uid));
        told.root = told.root.take().or_else(|| Some(root()?.superblock));
    }

    /// gVisor has the processes of all containers in the sandbox's cgroup. A container that the pod's status names runs as
    /// long as its root is mounted.
    fn add_mounted(&mut self) {
        let (names, overlays) = (self.names, self.overlays);
        let mounted = names
            .keys()
            .filter(|id| overlays.of_container(id).is_some());
        mounted.for_each(|id| self.add(id, String::new));
    }

    fn running(self) -> Running {
        let mut running = Running::default();
        let (mut hidden, mut sandboxes, mut found_any) = (Vec::new(), Vec::new(), false);
        for (id, NamedRoot { name, root }) in self.told {
            let device = root.as_ref().map(|root| root.device);
            let seen = self.seen.get(&id);
            let by_root = || self.overlays.of_device(device?);
            let by_id = self.overlays.of_container(&id);
            let overlay = by_id.or(seen.map(|seen| &seen.overlay)).or_else(by_root);
            let overlay = overlay.cloned();
            found_any |= overlay.is_some();
            let is_root = |overlay: &Overlay| Some(overlay.device) == device;
            let own_root = overlay.clone().filter(is_root);
            let has_own_root = own_root.is_some();
            let known = self
                .names
                .get(&id)
                .or(seen.and_then(|seen| seen.name.as_ref()));
            let has_nodes_root = device.is_some() && device == self.overlays.root;
            let is_new = known.is_none() && seen.is_none();
            if is_new && overlay.is_some() && has_nodes_root {
                // Kata: the hypervisor is in the sandbox's cgroup, and the overlay is that of the pause image.
                let reason =
                    "it has the node's root: it runs in a virtual machine, or is about to start";
                running
                    .unknown
                    .push((name.unwrap_or(id), reason.to_owned()));
                running.is_hidden = true;
                continue;
            }
            let name = known.cloned().or(name);
            if let Some(overlay) = own_root {
                let name = name.clone();
                self.seen.insert(id.clone(), Seen { name, overlay });
            }
            let layer = layer_of(overlay, root);
            let Some(name) = name else {
                // The sandbox has no name, and the root that it was given.
                match (has_own_root, &layer) {
                    (true, _) => sandboxes.push(id.clone()),
                    (false, Ok(_)) => running.nameless.push(id.clone()),
                    (false, Err(_)) => hidden.push(id.clone()),
                }
                running.layers.extend(layer.ok().map(|layer| (id, layer)));
                continue;
            };
            running.names.insert(name.clone());
            match layer {
                Ok(layer) => running.layers.push((name, layer)),
                Err(reason) => running.unknown.push((name, reason)),
            }
        }
        if !found_any {
            // Nothing tells the sandbox from others: it is one of them.
            hidden.pop();
        }
        if sandboxes.len() > 1 {
            // A pod has one. What it has written to its root is next to nothing.
            running.nameless.extend(sandboxes);
        }
        running.is_hidden |= !running.nameless.is_empty() || !hidden.is_empty();
        let reason = || "it hides its name and its root".to_owned();
        let hidden = hidden.into_iter().map(|id| (id, reason()));
        running.unknown.extend(hidden);
        running
    }
}

/// Where a container's writable layer lies, or why that is not known.
fn layer_of(overlay: Option<Overlay>, root: Option<Superblock>) -> Result<PathBuf, String> {
    let layer = match (overlay, root) {
        (Some(overlay), _) => overlay
            .upper
            .ok_or_else(|| "its root is an overlay without an upper layer".to_owned()),
        (None, Some(root)) if root.kind != "overlay" => Err(format!(
            "its root is a filesystem of type {}, not an overlay",
            root.kind
        )),
        (None, _) => Err("its root is not among the node's mounts".to_owned()),
    }?;
    match layer.is_dir() {
        true => Ok(layer),
        false => Err("the upper layer of its overlay cannot be seen from here".to_owned()),
    }
}

/// The containers that run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Running {
    /// Their writable layers, by name, or by id where there is none.
    layers: Named,
    /// Containers whose writable layers cannot be found, with the reason.
    unknown: Vec<(String, String)>,
    /// The names that are known.
    names: BTreeSet<String>,
    /// Ids in `layers` of containers without a name, but for the sandbox's.
    nameless: Vec<String>,
    /// At least one of all has no name but its id, and is not the sandbox.
    is_hidden: bool,
}

impl Running {
    /// Whether the log of a container counts: the kubelet counts only those of containers that run
    /// (`removeTerminatedContainers`). All count where no container runs, because the pod goes for its files between
    /// two runs, and where a container hides its name.
    fn has_log(&self, container: &str) -> bool {
        self.names.contains(container) || self.names.is_empty() || self.is_hidden
    }
}

/// The container's name, from where its termination log is mounted from. The kubelet's directory may be a mount itself:
/// the path begins there then. Other pods' logs are among the mounts of a process that has the node's root.
fn container_name(mountinfo: &str, uid: &str) -> Option<String> {
    let own = format!("/pods/{uid}/");
    Mount::all(mountinfo).find_map(|mount| {
        // The first: what lies in a volume of the pod's is its own to name.
        let (_, rest) = mount.root.to_str()?.split_once(&own)?;
        let (name, id) = rest.strip_prefix("containers/")?.split_once('/')?;
        (!id.contains('/')).then(|| name.to_owned())
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

    const UID: &str = "027b1a11";

    /// The root of the node's own processes.
    const NODE_ROOT: &str = "30 1 254:1 / / rw - ext4 /dev/vda1 rw\n";

    /// Containers that these processes tell of, and nothing else does.
    fn running(groups: &[(&str, &str)], node: &[String]) -> Running {
        look(groups, node, &[], &mut BTreeMap::new())
    }

    /// Containers that these processes tell of, with names in the pod's status, and what was seen earlier.
    fn look(
        groups: &[(&str, &str)],
        node: &[String],
        names: &[(&str, &str)],
        seen: &mut BTreeMap<String, Seen>,
    ) -> Running {
        let owned = |(id, name): &(&str, &str)| ((*id).to_owned(), (*name).to_owned());
        let names = names.iter().map(owned).collect();
        let overlays = Overlays::of(node.iter().map(String::as_str));
        let mut containers = Containers::new(UID, &names, &overlays, seen);
        for (id, mountinfo) in groups {
            containers.add(id, || (*mountinfo).to_owned());
        }
        containers.add_mounted();
        containers.running()
    }

    fn named(layers: &[(&str, &Path)]) -> Named {
        let owned = |(name, path): &(&str, &Path)| ((*name).to_owned(), (*path).to_owned());
        layers.iter().map(owned).collect()
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
        assert_eq!(container_name(MOUNTINFO, UID).as_deref(), Some("web"));
        // Of another pod, deeper, and in a volume of its own.
        assert_eq!(container_name(MOUNTINFO, "other"), None);
        let forged = "volumes/kubernetes.io~empty-dir/v/pods/027b1a11/containers/db/1";
        for root in ["containers/web/x/y", forged] {
            let line = format!("1 0 8:1 /k/pods/{UID}/{root} /dev/x rw - ext4 /dev/sda1 rw\n");
            assert_eq!(container_name(&line, UID), None, "{root}");
        }
        // A disk of the kubelet's.
        let line = format!("1 0 8:1 /pods/{UID}/containers/web/x /l rw - ext4 /dev/sda1 rw\n");
        assert_eq!(container_name(&line, UID).as_deref(), Some("web"));
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
            node_mount("5a", 90, "rw,upperdir=/pause"),
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
            node_mount("5a", 90, "rw,upperdir=/pause"),
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
            assert_eq!(of("c0ffee", mountinfo).layers, named(&[("web", &own)]));
        }
        // As CRI-O mounts it: only the superblock tells, and a forged one is not the node's.
        assert_eq!(of("77aa", MOUNTINFO).layers, named(&[("web", &own)]));
        let forged = of("77aa", &told);
        assert_eq!((forged.layers.len(), forged.unknown.len()), (0, 1));
    }

    // R10: no mounts after chroot(2), a bind mount in a user namespace, a container that is about to start.
    #[test]
    fn a_container_without_a_name_counts_by_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let [own, pause] = ["own", "pause"].map(|name| dir.path().join(name));
        for path in [&own, &pause] {
            fs::create_dir(path).unwrap();
        }
        let options = |upper: &Path| format!("rw,upperdir={},workdir=/w", upper.display());
        let node = [
            node_mount("c0ffee", 120, &options(&own)),
            node_mount("5a", 90, &options(&pause)),
        ];
        let same_superblock = "4711 4000 0:120 /dir / rw - overlay overlay rw\n";
        let elsewhere = "4711 4000 0:77 / / rw - tmpfs tmpfs rw\n";
        for mountinfo in ["", same_superblock, elsewhere] {
            let groups = [("c0ffee", mountinfo), ("5a", SANDBOX)];
            let found = running(&groups, &node);
            assert_eq!(found.layers, named(&[("5a", &pause), ("c0ffee", &own)]));
            assert!(found.unknown.is_empty(), "{mountinfo}");
            assert!(found.is_hidden && !found.nameless.is_empty() && found.has_log("any"));
            // Once the pod's status names it.
            let found = look(&groups, &node, &[("c0ffee", "web")], &mut BTreeMap::new());
            assert_eq!(found.layers, named(&[("5a", &pause), ("web", &own)]));
            assert!(!found.is_hidden && found.nameless.is_empty() && !found.has_log("any"));
        }
        // The sandbox alone: the pod is between two runs.
        let found = running(&[("5a", SANDBOX)], &node);
        assert!(!found.is_hidden && found.nameless.is_empty() && found.has_log("any"));
        // As CRI-O mounts it there is no more than the superblock.
        let found = running(&[("77aa", same_superblock), ("5a", SANDBOX)], &node);
        assert_eq!(found.layers, named(&[("5a", &pause), ("77aa", &own)]));
        let found = running(&[("77aa", ""), ("5a", SANDBOX)], &node);
        assert!(found.is_hidden && found.nameless.is_empty());
        assert!(found.unknown[0].1.contains("hides"), "{found:?}");
    }

    // R10: Kata's hypervisor runs in the sandbox's cgroup, with the node's root and mounts.
    #[test]
    fn the_sandbox_of_a_virtual_machine_does_not_stand_for_its_containers() {
        let dir = tempfile::tempdir().unwrap();
        let overlay = node_mount("5a", 90, &format!("rw,upperdir={}", dir.path().display()));
        let node = [NODE_ROOT.trim_end().to_owned(), overlay];
        let log = |uid: &str, name: &str| {
            format!("40 30 254:1 /k/pods/{uid}/containers/{name}/1 /s rw - ext4 /dev/vda1 rw\n")
        };
        let mounts = format!("{NODE_ROOT}{}{}", log("other", "db"), log(UID, "web"));
        for (mountinfo, name) in [(&*mounts, "web"), (NODE_ROOT, "5a")] {
            let found = running(&[("5a", mountinfo)], &node);
            assert!(found.layers.is_empty());
            assert_eq!(found.unknown[0].0, name);
            assert!(found.unknown[0].1.contains("virtual machine"), "{found:?}");
            assert!(found.is_hidden && found.nameless.is_empty() && found.has_log("any"));
        }
        // A container that has entered the node's root is known by its status.
        let found = look(
            &[("5a", NODE_ROOT)],
            &node,
            &[("5a", "web")],
            &mut BTreeMap::new(),
        );
        assert_eq!(found.layers, named(&[("web", dir.path())]));
    }

    // R10
    #[test]
    fn a_container_that_leaves_its_root_keeps_the_layer_that_it_had() {
        let dir = tempfile::tempdir().unwrap();
        let overlay = |device| {
            node_mount(
                "by-layer",
                device,
                &format!("rw,upperdir={}", dir.path().display()),
            )
        };
        let mut seen = BTreeMap::new();
        let mut look = |mountinfo: &str, names: &[(&str, &str)]| {
            look(&[("77aa", mountinfo)], &[overlay(120)], names, &mut seen)
        };
        // Before runc has changed the root nothing is learnt.
        look(NODE_ROOT, &[]);
        let own = named(&[("web", dir.path())]);
        assert_eq!(look(MOUNTINFO, &[]).layers, own);
        for names in [&[][..], &[("77aa", "web")]] {
            let found = look("", names);
            assert_eq!((&found.layers, &found.unknown), (&own, &vec![]));
        }
        // Nothing is missing: its mounts are not read.
        let (names, overlays) = (BTreeMap::new(), Overlays::default());
        let mut containers = Containers::new(UID, &names, &overlays, &mut seen);
        containers.add("77aa", || unreachable!("its mounts are read"));
        assert_eq!(containers.running().layers, own);
    }

    /// As gVisor has it; the container that has ended is not mounted.
    #[test]
    fn a_container_without_a_process_of_its_own_is_known_by_its_mount() {
        let dir = tempfile::tempdir().unwrap();
        let web = node_mount("web1", 91, &format!("rw,upperdir={}", dir.path().display()));
        let pause = node_mount("pause1", 90, "rw,upperdir=/nowhere");
        let names = [("web1", "web"), ("ended1", "init")];
        let groups = [("pause1", "4711 4000 0:90 / / rw - overlay overlay rw\n")];
        let running = look(&groups, &[pause, web], &names, &mut BTreeMap::new());
        assert!(
            running
                .layers
                .contains(&("web".to_owned(), dir.path().to_owned()))
        );
        assert_eq!(running.names, ["web".to_owned()].into());
    }

    /// With a process of this machine, whose mounts name no container.
    // R10
    #[test]
    fn the_pods_status_names_containers() {
        let dir = tempfile::tempdir().unwrap();
        let (cgroup, upper) = (dir.path().join("podu1"), dir.path().join("upper"));
        let log = dir.path().join("shop_web-0_u1/debugger");
        for path in [&cgroup.join("cri-containerd-c0ffee.scope"), &upper, &log] {
            fs::create_dir_all(path).unwrap();
        }
        let procs = cgroup.join("cri-containerd-c0ffee.scope/cgroup.procs");
        fs::write(procs, std::process::id().to_string()).unwrap();
        let pod = Pod {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "web-0".into(),
            container_names: [("c0ffee".to_owned(), "debugger".to_owned())].into(),
            ..Pod::default()
        };
        let node = node_mount(
            "c0ffee",
            (1 << 20) - 1,
            &format!("rw,upperdir={}", upper.display()),
        );
        let mut mounts = MountPoints::default();
        mounts.overlays = Overlays::of([node.as_str()].into_iter());
        let seen = SeenContainers::default();
        let overlay = mounts.overlays.of_container("c0ffee").unwrap().clone();
        let gone = Seen {
            name: None,
            overlay,
        };
        seen.0.lock().insert("gone".into(), gone);
        let at = |pod: &Pod| PodDirs::resolve(dir.path(), dir.path(), pod, &cgroup, &mounts, &seen);
        assert_eq!(at(&pod).layers, named(&[("debugger", &upper)]));
        // The specification does not list it: it is an ephemeral container.
        assert_eq!(at(&pod).logs, named(&[("debugger", &log)]));
        assert!(seen.0.lock().is_empty(), "what is gone is forgotten");
        let nameless = at(&Pod::default());
        assert_eq!(nameless.layers, named(&[("c0ffee", &upper)]));
        assert_eq!(nameless.nameless, ["c0ffee"]);
    }

    // R10: the kubelet's figures are those of containers that run.
    #[test]
    fn logs_of_containers_that_have_ended_do_not_count_beside_others() {
        let with = |name: &str| MOUNTINFO.replace("containers/web", &format!("containers/{name}"));
        let counted = |mounts: &[&str]| {
            let ids = ["a", "b", "c"].into_iter();
            let groups: Vec<_> = ids.zip(mounts.iter().copied()).collect();
            let running = running(&groups, &[]);
            let all = ["init", "web", "proxy"].into_iter();
            all.filter(|name| running.has_log(name)).collect::<Vec<_>>()
        };
        let (web, proxy) = (with("web"), with("proxy"));
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
            restartable: false,
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
            let seen = SeenContainers::default();
            let places = PodDirs::resolve(&kubelet, &logs, &pod, cgroup, &mounts, &seen);
            assert_eq!(places.volumes, [("scratch".to_owned(), scratch.clone())]);
            assert_eq!(places.logs, [("web".to_owned(), web.clone())]);
            assert!(places.layers.is_empty());
        }
    }
}
