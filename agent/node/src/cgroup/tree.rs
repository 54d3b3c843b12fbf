//! Cgroups below a cgroup.
//!
//! A pod with a writable cgroup tree (privileged, Docker or systemd within a pod) makes as many cgroups below its
//! containers as it likes. What it makes there costs the agent a constant: so many of them are followed, the containers
//! first. The others are still killed (`walk.rs`), and their memory is in the counters of the pod's own cgroup.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone, lacks_descriptor};

/// Largest number of cgroups of a pod that are followed, its own and its containers' among them. systemd in a container
/// makes about 60.
const FOLLOWED: usize = 128;

/// Largest number of containers of a pod that are followed all the same: etcd takes no object with many more.
const CONTAINERS: usize = 512;

/// So many levels below the pod are followed: a container runtime makes one or two, systemd in a container some more.
/// The path of so many names of 255 bytes is one that the kernel takes (PATH_MAX).
const DEEPEST: usize = 8;

/// A cgroup that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedCgroup {
    /// Directory of the cgroup.
    pub path: PathBuf,
    /// The kernel's id of it: a container that is started again has another one.
    pub id: u64,
}

/// A cgroup and those below it that are followed, parents before children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowedCgroups {
    /// Cgroups that are followed, the topmost first.
    pub list: Vec<FollowedCgroup>,
    /// Whether there are more cgroups than are followed.
    pub is_cut: bool,
}

impl FollowedCgroups {
    /// Looks at a cgroup and those below it, level by level. What vanishes meanwhile is left out, and so is what cannot
    /// be looked at below a container.
    ///
    /// # Errors
    /// The cgroup is not there or cannot be listed, or no descriptor or memory is left.
    pub fn find(root: &Path) -> Result<Self, PathError> {
        let id = |dir: &Path| fs::metadata(dir).map(|meta| meta.ino());
        let mut found = Self {
            list: vec![FollowedCgroup {
                path: root.to_owned(),
                id: id(root).map_err(PathError::at(root))?,
            }],
            is_cut: false,
        };
        // The level of each: the pod's own is 0.
        let mut levels = vec![0];
        let mut next = 0;
        while let (Some(dir), Some(level)) = (found.list.get(next), levels.get(next).copied()) {
            let dir = dir.path.clone();
            next += 1;
            let most = if level == 0 { CONTAINERS } else { FOLLOWED };
            let listed = each_directory(&dir, &mut |path| {
                if level == DEEPEST || found.list.len() >= most {
                    found.is_cut = true;
                    return Ok(false);
                }
                match id(&path) {
                    Ok(id) => {
                        found.list.push(FollowedCgroup { path, id });
                        levels.push(level + 1);
                    }
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
                Ok(true)
            });
            match listed {
                Ok(()) => {}
                Err(e) if is_gone(&e) => {}
                // The pod has made it so.
                Err(e) if level > 0 && !is_lacking(&e) => found.is_cut = true,
                Err(e) => return Err(PathError::at(&dir)(e)),
            }
        }
        Ok(found)
    }

    /// Directories of the cgroups.
    pub fn paths(&self) -> impl DoubleEndedIterator<Item = &Path> + Clone {
        self.list.iter().map(|cgroup| &*cgroup.path)
    }

    /// Kernel's ids of the cgroups.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.list.iter().map(|cgroup| cgroup.id)
    }
}

/// The ids of a cgroup and of those below it that are followed; none where it cannot be looked at.
pub fn followed_ids(root: &Path) -> Vec<u64> {
    let found = FollowedCgroups::find(root).unwrap_or_default();
    found.ids().collect()
}

/// Whether an error says that the agent lacks descriptors or memory: others give theirs back in time.
pub(super) fn is_lacking(error: &io::Error) -> bool {
    lacks_descriptor(error) || error.raw_os_error() == Some(libc::ENOMEM)
}

/// Calls `each` for the directories in one, until it says false.
fn each_directory(dir: &Path, each: &mut dyn FnMut(PathBuf) -> io::Result<bool>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type().is_ok_and(|t| t.is_dir()) && !each(entry.path())? {
            break;
        }
    }
    Ok(())
}

/// The first process in a cgroup, not below it.
pub(crate) fn first_process(dir: &Path) -> Option<u32> {
    let procs = fs::read_to_string(dir.join("cgroup.procs")).ok()?;
    procs.lines().next()?.parse().ok()
}

/// Whether a process is in a pod's cgroup or below it.
pub(crate) fn has_process(pod: &Path) -> bool {
    let cgroups = FollowedCgroups::find(pod).unwrap_or_default();
    cgroups.paths().any(|dir| first_process(dir).is_some())
}

/// The cgroups directly below one; none where it cannot be listed.
pub(crate) fn subdirectories(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(dirs: impl IntoIterator<Item = String>) -> (tempfile::TempDir, FollowedCgroups) {
        let pod = tempfile::tempdir().unwrap();
        for dir in dirs {
            fs::create_dir_all(pod.path().join(dir)).unwrap();
        }
        let found = FollowedCgroups::find(pod.path()).unwrap();
        (pod, found)
    }

    #[test]
    fn what_a_pod_makes_below_its_containers_is_followed_so_far() {
        let few = (0..60).map(|n| format!("a/system.slice/{n}.service"));
        let (_pod, few) = made(few);
        assert_eq!((few.list.len(), few.is_cut), (63, false));
        // Wide, beside another container.
        let many = (0..1000).map(|n| format!("a/{n}"));
        let (pod, many) = made(many.chain(["b/c".to_owned()]));
        assert_eq!((many.list.len(), many.is_cut), (FOLLOWED, true));
        assert!(many.paths().any(|path| path == pod.path().join("b")));
        // Deep.
        let (_pod, deep) = made(["a/".repeat(DEEPEST)]);
        assert_eq!((deep.list.len(), deep.is_cut), (1 + DEEPEST, false));
        let (_pod, deep) = made(["a/".repeat(300)]);
        assert_eq!((deep.list.len(), deep.is_cut), (1 + DEEPEST, true));
    }

    #[test]
    fn all_containers_are_followed_before_what_is_below_them() {
        let containers = |count| (0..count).map(|n| format!("{n}/below"));
        let (_pod, found) = made(containers(300));
        assert_eq!((found.list.len(), found.is_cut), (301, true));
        let (_pod, found) = made(containers(CONTAINERS + 1));
        assert_eq!((found.list.len(), found.is_cut), (CONTAINERS, true));
        let (_pod, found) = made(containers(20));
        assert_eq!((found.list.len(), found.is_cut), (41, false));
    }

    #[test]
    fn parents_come_before_children_and_ids_are_their_inodes() {
        let (pod, found) = made(["a/b".to_owned(), "c".to_owned()]);
        let mut seen = Vec::new();
        for cgroup in &found.list {
            assert_eq!(fs::metadata(&cgroup.path).unwrap().ino(), cgroup.id);
            let parent = cgroup.path.parent().unwrap().to_owned();
            assert!(cgroup.path == pod.path() || seen.contains(&parent));
            seen.push(cgroup.path.clone());
        }
        assert!(FollowedCgroups::find(&pod.path().join("gone")).is_err());
    }
}
