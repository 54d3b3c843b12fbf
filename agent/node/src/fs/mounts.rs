//! Which superblock lies under a directory: what the kernel calls `s_dev`, and the type of the filesystem.
//!
//! `st_dev` is not always `s_dev`: btrfs gives each subvolume a number of its own, and overlay none of the filesystem
//! that its files are made on. `/proc/self/mountinfo` (proc_pid_mountinfo(5)) has the superblock's.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read as _, Seek as _},
    mem::MaybeUninit,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use evictd_sys::{
    fs::{PathError, read_lossy},
    poll::poll,
};

use crate::kernfile::malformed;

/// The table of this process's mounts.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";
/// The same for the calling thread, which may have a mount namespace of its own.
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

/// The filesystem on which files below a directory are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// `s_dev` in the kernel's own encoding (`MKDEV`: major << 20 | minor), as tracepoints and structs have it.
    pub device: u32,
    /// Its type: `ext4`, `xfs`, `btrfs`, `tmpfs`.
    pub kind: String,
}

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    point: String,
    superblock: Superblock,
    options: String,
}

/// Where something is mounted, with the filesystem's type; the one that lies on top.
#[derive(Clone, Debug, Default)]
pub struct MountPoints(BTreeMap<PathBuf, String>);

impl MountPoints {
    pub(super) fn of(mountinfo: &str) -> Self {
        let mounts = mountinfo.lines().filter_map(parse);
        let mounts = mounts.map(|m| (PathBuf::from(unescape(&m.point)), m.superblock.kind));
        Self(mounts.collect())
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

/// The superblock under a directory, as [`superblock_of`] finds it, and where it is mounted. A disk that is unmounted and
/// mounted again may have another device number; its mount point tells it from what lies below.
///
/// # Errors
/// As [`superblock_of`].
pub fn mount_of(path: &Path) -> Result<(Superblock, PathBuf), PathError> {
    let mut at = path.to_owned();
    for _ in 0..MAX_STACK {
        let text = read_lossy(MOUNTINFO).map_err(PathError::at(Path::new(MOUNTINFO)))?;
        let id = mount_id(&at).map_err(PathError::at(&at))?;
        let mount = text.lines().filter_map(parse).find(|m| m.id == id);
        let mount =
            mount.ok_or_else(|| PathError::at(&at)(malformed("its mount is not listed")))?;
        if mount.superblock.kind != "overlay" {
            return Ok((mount.superblock, unescape(&mount.point).into()));
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
    let mut mounts = mountinfo.lines().filter_map(parse);
    // The last one lies on top.
    let Some(root) = mounts.rfind(|mount| mount.point == "/") else {
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
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut buffer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: a C string and room for the answer.
    let done = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            name.as_ptr(),
            0,
            libc::STATX_MNT_ID,
            buffer.as_mut_ptr(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, then filled by the kernel; integers only.
    let answer = unsafe { buffer.assume_init() };
    if answer.stx_mask & libc::STATX_MNT_ID == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(answer.stx_mnt_id)
}

/// `36 35 98:0 /root /mount/point options [optional ...] - type source super-options`
fn parse(line: &str) -> Option<Mount> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut fields = mount.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let point = fields.nth(1)?.to_owned();
    let mut fields = filesystem.splitn(3, ' ');
    let kind = fields.next()?.to_owned();
    Some(Mount {
        id,
        point,
        superblock: Superblock {
            device: major << 20 | minor,
            kind,
        },
        options: fields.nth(1).unwrap_or_default().to_owned(),
    })
}

/// The `upperdir` among an overlay's options, with mountinfo's octal escapes undone.
fn upper(options: &str) -> Option<PathBuf> {
    let raw = options
        .split(',')
        .find_map(|o| o.strip_prefix("upperdir="))?;
    Some(PathBuf::from(unescape(raw)))
}

fn unescape(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after.get(..3).and_then(|o| u8::from_str_radix(o, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_and_without_optional_fields() {
        let line = r"36 35 254:3 / /var/lib rw,noatime shared:1 master:2 - ext4 /dev/vda3 rw,errors=remount-ro";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.superblock.device), (36, 254 << 20 | 3));
        assert_eq!(mount.point, "/var/lib");
        assert_eq!(mount.superblock.kind, "ext4");
        assert!(parse("36 35 0:41 / / rw - tmpfs none rw").is_some());
        assert!(parse("36 35 0:41 / / rw").is_none());
        assert!(parse("").is_none());
    }

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
