//! Which superblock lies under a directory: what the kernel calls `s_dev`, and the type of the filesystem.
//!
//! `st_dev` is not always `s_dev`: btrfs gives each subvolume a number of its own, and overlay none of the filesystem
//! that its files are made on. `/proc/self/mountinfo` (proc_pid_mountinfo(5)) has the superblock's.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read as _, Seek as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Duration,
};

use evictd_sys::{
    fs::{PathError, read_lossy},
    poll::poll,
};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::{
    kernfile::malformed,
    proc::mountinfo::{MOUNTINFO, Mount, unescape},
};

pub use crate::proc::mountinfo::Superblock;

/// The table of the calling thread, which may have a mount namespace of its own.
const OF_THREAD: &str = "/proc/thread-self/mountinfo";
/// Filesystems whose files are in this machine: no server can keep a caller waiting. Any other one is not touched.
const OWN: [&str; 13] = [
    "bcachefs",
    "btrfs",
    "erofs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "overlay",
    "ramfs",
    "tmpfs",
    "xfs",
    "zfs",
];
/// Overlays on overlays: the kernel itself allows two (`FILESYSTEM_MAX_STACK_DEPTH`).
const MAX_STACK: usize = 3;

/// Where something is mounted, with the filesystem's type; the one that lies on top.
#[derive(Clone, Debug, Default)]
pub struct MountPoints(BTreeMap<PathBuf, String>);

impl MountPoints {
    pub(super) fn of(mountinfo: &str) -> Self {
        let mounts = Mount::all(mountinfo);
        Self(mounts.map(|m| (m.point, m.superblock.kind)).collect())
    }

    /// Whether a filesystem is mounted right here that may not answer. Nothing is asked of it.
    pub fn may_hang(&self, path: &Path) -> bool {
        let kind = self.0.get(&resolved(path));
        kind.is_some_and(|kind| !OWN.contains(&kind.as_str()))
    }

    /// Whether something is mounted right here.
    pub fn is_mounted(&self, path: &Path) -> bool {
        self.0.contains_key(&resolved(path))
    }

    /// The mount points below a directory, without itself, as the directory calls them.
    pub fn below(&self, directory: &Path) -> HashSet<PathBuf> {
        let place = resolved(directory);
        let below = self.0.range(place.clone()..).map(|(point, _)| point);
        let below = below.take_while(|point| point.starts_with(&place));
        let below = below.filter_map(|point| point.strip_prefix(&place).ok());
        let below = below.filter(|rest| !rest.as_os_str().is_empty());
        below.map(|rest| directory.join(rest)).collect()
    }
}

/// The path as mountinfo has it, with the links that lead to its directory resolved. Itself it is not touched.
fn resolved(path: &Path) -> PathBuf {
    let parts = path.parent().zip(path.file_name());
    let place = parts.and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name)));
    place.unwrap_or_else(|| path.to_owned())
}

/// The mount points that the calling thread sees. The table is read again when it has changed.
#[derive(Debug, Default)]
pub struct MountTable {
    file: Option<File>,
    points: MountPoints,
}

impl MountTable {
    /// Looks at what is mounted at this moment; whether the table was read anew.
    ///
    /// # Errors
    /// procfs cannot be read: what was known before is in [`Self::points`] still.
    pub fn refresh(&mut self) -> Result<bool, PathError> {
        let at = || PathError::at(Path::new(OF_THREAD));
        let (mut file, is_news) = match self.file.take() {
            // A change shows as an error (proc_pid_mounts(5)).
            Some(file) => {
                let [found] = poll([Some(file.as_fd())], Some(Duration::ZERO));
                (file, found & libc::POLLERR != 0)
            }
            None => (File::open(OF_THREAD).map_err(at())?, true),
        };
        if is_news {
            let mut bytes = Vec::new();
            file.rewind().map_err(at())?;
            file.read_to_end(&mut bytes).map_err(at())?;
            self.points = MountPoints::of(&String::from_utf8_lossy(&bytes));
        }
        self.file = Some(file);
        Ok(is_news)
    }

    /// What was mounted at the last look.
    pub fn points(&self) -> &MountPoints {
        &self.points
    }
}

/// The superblock under a directory; for an overlay that of its upper layer, where new files go.
///
/// # Errors
/// The directory is not there; the table does not list its mount; an overlay's upper layer cannot be seen from here.
pub fn superblock_of(path: &Path) -> Result<Superblock, PathError> {
    mount_of(path).map(|(superblock, _)| superblock)
}

/// The superblock under a directory, as [`superblock_of`] finds it, and where it is mounted. A disk that is unmounted
/// and mounted again may have another device number; its mount point tells it from what lies below.
///
/// # Errors
/// As [`superblock_of`].
pub fn mount_of(path: &Path) -> Result<(Superblock, PathBuf), PathError> {
    let mut at = path.to_owned();
    for _ in 0..MAX_STACK {
        let text = read_lossy(MOUNTINFO).map_err(PathError::at(Path::new(MOUNTINFO)))?;
        let id = mount_id(&at).map_err(PathError::at(&at))?;
        let mount = Mount::all(&text).find(|m| m.id == id);
        let mount =
            mount.ok_or_else(|| PathError::at(&at)(malformed("its mount is not listed")))?;
        if mount.superblock.kind != "overlay" {
            return Ok((mount.superblock, mount.point));
        }
        at = upper(&mount.options)
            .ok_or_else(|| PathError::at(&at)(malformed("an overlay without an upper layer")))?;
    }
    Err(PathError::at(path)(malformed("overlays nested too deep")))
}

/// The upper layer of the overlay that is mounted at `/` in a process's mountinfo: a container's writable layer.
///
/// # Errors
/// The root is something else, in words for the log.
pub fn upper_of_root(mountinfo: &str) -> Result<PathBuf, String> {
    let mut mounts = Mount::all(mountinfo);
    // The last one lies on top.
    let Some(root) = mounts.rfind(|mount| mount.point == Path::new("/")) else {
        return Err("its root is not among its mounts".to_owned());
    };
    match root.superblock.kind.as_str() {
        "overlay" => upper(&root.options)
            .ok_or_else(|| "its root is an overlay without an upper layer".to_owned()),
        other => Err(format!(
            "its root is a filesystem of type {other}, not an overlay"
        )),
    }
}

/// The mount's id in mountinfo (statx(2), `STATX_MNT_ID`, 5.8 and later).
fn mount_id(path: &Path) -> io::Result<u64> {
    let answer = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    match StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::MNT_ID) {
        true => Ok(answer.stx_mnt_id),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The `upperdir` among an overlay's options, with mountinfo's octal escapes undone.
fn upper(options: &str) -> Option<PathBuf> {
    let raw = options
        .split(',')
        .find_map(|o| o.strip_prefix("upperdir="))?;
    Some(PathBuf::from(unescape(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_names_its_upper_layer() {
        let options = r"rw,lowerdir=/a:/b,upperdir=/var/my\040disk/upper,workdir=/w";
        assert_eq!(upper(options), Some("/var/my disk/upper".into()));
        assert_eq!(upper("rw,lowerdir=/a:/b"), None);
    }

    #[test]
    fn mount_points_are_found_by_their_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("kubelet")).unwrap();
        std::os::unix::fs::symlink(real.join("kubelet"), real.join("link")).unwrap();
        let at = |rest: &str| format!("{}/kubelet/{rest}", real.display());
        let line = |rest: &str, kind: &str| format!("36 35 0:41 / {} rw - {kind} x rw\n", at(rest));
        let table = [
            line("v", "tmpfs"),
            line("v/deep/mount", "ext4"),
            line("v/other", "fuse.sshfs"),
            line("vv", "nfs4"),
        ];
        let points = MountPoints::of(&table.concat());
        let link = real.join("link/v");
        let mut below: Vec<_> = points.below(&link).into_iter().collect();
        below.sort();
        assert_eq!(below, ["deep/mount", "other"].map(|rest| link.join(rest)));
        let is = |rest: &str| {
            let path = PathBuf::from(at(rest));
            (points.is_mounted(&path), points.may_hang(&path))
        };
        assert_eq!(is("v"), (true, false));
        assert_eq!(is("vv"), (true, true));
        assert_eq!(is("w"), (false, false));
        assert!(points.below(Path::new(&at("vv"))).is_empty());
    }

    #[test]
    fn the_table_of_this_thread_is_read() {
        let mut table = MountTable::default();
        assert!(table.refresh().unwrap());
        assert!(table.points().is_mounted(Path::new("/proc")));
        // Other processes of this machine may mount something meanwhile.
        table.refresh().unwrap();
        assert!(table.points().is_mounted(Path::new("/proc")));
    }

    #[test]
    fn this_directory_lies_on_something() {
        let dir = tempfile::tempdir().unwrap();
        let found = superblock_of(dir.path()).unwrap();
        assert!(!found.kind.is_empty() && found.kind != "overlay");
    }
}
