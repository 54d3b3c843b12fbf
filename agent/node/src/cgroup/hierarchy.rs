//! Mounted hierarchies: where the root of one of v1 is, and where cgroups lie below a mount by the paths that the
//! kernel's events have.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The id of every hierarchy's real root: the first one that is given away (`kernfs_create_root`).
const REAL_ROOT: u64 = 1;

/// A mounted hierarchy. Event paths start at the hierarchy's real root; the mount may show only a part below it (in a
/// container that is a node, as of kind and k3d).
#[derive(Debug)]
pub struct MountedHierarchy {
    mount: PathBuf,
    /// The path of what is mounted, as events have it; `None` while no event has shown it.
    mounted: Option<PathBuf>,
}

/// Place of the cgroup of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Path of the cgroup below the mount.
    Below(PathBuf),
    /// The cgroup does not lie below the mount: it is another container's.
    Outside,
    /// The place is not known yet: the cgroup is gone, or another container's.
    Unknown,
}

impl MountedHierarchy {
    /// The hierarchy that is mounted there.
    pub fn new(mount: PathBuf) -> Self {
        let is_real = fs::metadata(&mount).is_ok_and(|meta| meta.ino() == REAL_ROOT);
        Self {
            mount,
            mounted: is_real.then(PathBuf::new),
        }
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Finds the cgroup with this id and event path, which has no leading slash. The first one found tells the prefix
    /// that all paths have.
    pub fn locate(&mut self, path: &Path, id: u64) -> Place {
        if let Some(mounted) = &self.mounted {
            return match path.strip_prefix(mounted) {
                Ok(rest) => Place::Below(rest.to_owned()),
                Err(_) => Place::Outside,
            };
        }
        let mut before = PathBuf::new();
        let mut rest = path.components();
        while !rest.as_path().as_os_str().is_empty() {
            let found = fs::metadata(self.mount.join(rest.as_path()));
            if found.is_ok_and(|meta| meta.ino() == id) {
                self.mounted = Some(before);
                return Place::Below(rest.as_path().to_owned());
            }
            before.extend(rest.next());
        }
        Place::Unknown
    }
}

/// The root of the hierarchy of cgroup v1 that a cgroup is in; `None` on v2, and where the root is not mounted.
pub(super) fn v1_root(cgroup: &Path) -> Option<&Path> {
    // Only a root has one (cgroup_base_files of `kernel/cgroup/cgroup-v1.c`).
    let is_root = |dir: &&Path| dir.join("release_agent").exists();
    cgroup.ancestors().find(is_root)
}

/// The same cgroup in the hierarchy of another controller, of one in v1's memory hierarchy: a hierarchy is mounted at
/// the name of its controller, as the kubelet expects, and the container runtimes give a cgroup the same name in each.
pub(super) fn v1_sibling(cgroup: &Path, controller: &str) -> Option<PathBuf> {
    let root = cgroup.ancestors().find(|dir| dir.ends_with("memory"))?;
    let below = cgroup.strip_prefix(root).ok()?;
    Some(root.with_file_name(controller).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount with a pod's directory, and the id of that.
    fn mounted() -> (tempfile::TempDir, u64) {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("kubelet.slice/kubelet-kubepods.slice/pod1");
        fs::create_dir_all(&pod).unwrap();
        let id = fs::metadata(pod).unwrap().ino();
        (dir, id)
    }

    #[test]
    fn paths_from_the_real_root_are_found_below_a_containers_root() {
        let (dir, id) = mounted();
        let mut hierarchy = MountedHierarchy::new(dir.path().to_owned());
        let mut locate = |path: &str, id| hierarchy.locate(Path::new(path), id);
        let below = |path: &str| Place::Below(path.into());
        let pods = "kubelet.slice/kubelet-kubepods.slice";
        let node = "system.slice/docker-ab12.scope";
        // Another container's, or gone; and another one of the same name.
        let other = format!("system.slice/docker-cd34.scope/{pods}/pod2");
        assert_eq!(locate(&other, id + 1), Place::Unknown);
        let namesake = format!("system.slice/docker-cd34.scope/{pods}/pod1");
        assert_eq!(locate(&namesake, id + 1), Place::Unknown);
        let pod = format!("{node}/{pods}/pod1");
        assert_eq!(locate(&pod, id), below(&format!("{pods}/pod1")));
        // From now on what is gone has its place as well.
        let gone = format!("{node}/{pods}/pod3/c1");
        assert_eq!(locate(&gone, 7), below(&format!("{pods}/pod3/c1")));
        assert_eq!(locate(&other, id + 1), Place::Outside);
    }

    #[test]
    fn paths_below_the_real_root_are_what_they_are() {
        let (dir, id) = mounted();
        let pod = "kubelet.slice/kubelet-kubepods.slice/pod1";
        let mut hierarchy = MountedHierarchy::new(dir.path().to_owned());
        let below = Place::Below(pod.into());
        assert_eq!(hierarchy.locate(Path::new(pod), id), below);
        assert_eq!(hierarchy.mounted, Some(PathBuf::new()));
        // procfs numbers its root as a hierarchy does: of the real root no event has to show where it is.
        let mut real = MountedHierarchy::new("/proc".into());
        assert_eq!(real.locate(Path::new(pod), id), below);
    }
}
