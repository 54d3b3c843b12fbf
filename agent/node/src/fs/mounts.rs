//! Which superblock lies under a directory: what the kernel calls `s_dev`, and the type of the filesystem.
//!
//! `st_dev` is not always `s_dev`: btrfs gives each subvolume a number of its own, and overlay none of the filesystem
//! that its files are made on. `/proc/self/mountinfo` (proc_pid_mountinfo(5)) has the superblock's.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _},
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
/// The table of the node's first process. containerd's shims, CRI-O and Docker mount the roots of containers there; a
/// container mounts nothing there.
const OF_NODE: &str = "/proc/1/mountinfo";
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

/// Mount points with the filesystem's type; of several at one place the one that lies on top.
#[derive(Clone, Debug, Default)]
pub struct MountPoints {
    kinds: BTreeMap<PathBuf, String>,
    /// The overlays that the node's first process sees.
    pub(crate) overlays: Overlays,
}

impl MountPoints {
    #[cfg(test)]
    pub(super) fn of(mountinfo: &str) -> Self {
        Self {
            kinds: kinds(mountinfo),
            overlays: Overlays::default(),
        }
    }

    /// Whether a filesystem is mounted right here that may not answer. Nothing is asked of it.
    pub fn may_hang(&self, path: &Path) -> bool {
        let kind = self.kinds.get(&resolved(path));
        kind.is_some_and(|kind| !OWN.contains(&kind.as_str()))
    }

    /// Whether something is mounted right here.
    pub fn is_mounted(&self, path: &Path) -> bool {
        self.kinds.contains_key(&resolved(path))
    }

    /// The mount points below a directory, without itself, as the directory calls them.
    pub fn below(&self, directory: &Path) -> HashSet<PathBuf> {
        let place = resolved(directory);
        let below = self.kinds.range(place.clone()..).map(|(point, _)| point);
        let below = below.take_while(|point| point.starts_with(&place));
        let below = below.filter_map(|point| point.strip_prefix(&place).ok());
        let below = below.filter(|rest| !rest.as_os_str().is_empty());
        below.map(|rest| directory.join(rest)).collect()
    }
}

fn kinds(mountinfo: &str) -> BTreeMap<PathBuf, String> {
    let mounts = Mount::all(mountinfo);
    mounts.map(|m| (m.point, m.superblock.kind)).collect()
}

/// Overlays, in the order in which they were mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlays {
    list: Vec<Overlay>,
    /// The superblock of the root of the process that sees them; it may be an overlay itself.
    pub root: Option<u32>,
}

/// An overlay that is mounted.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    point: PathBuf,
    /// Device number of the overlay's superblock: no two overlays share one.
    pub device: u32,
    /// Upper layer of the overlay, if it has one.
    pub upper: Option<PathBuf>,
}

impl Overlays {
    /// Collects the overlays among the lines of mountinfo.
    #[cfg(test)]
    pub fn of<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut overlays = Self::default();
        lines.for_each(|line| overlays.add(line));
        overlays
    }

    fn add(&mut self, line: &str) {
        self.list.extend(Overlay::of(line));
        // The last one lies on top.
        let is_root = line.split(' ').nth(4) == Some("/");
        if let Some(mount) = is_root.then(|| Mount::parse(line)).flatten() {
            self.root = Some(mount.superblock.device);
        }
    }

    /// Finds the overlay that containerd's shim has mounted as the root of a container: at `rootfs` in its bundle, a
    /// directory that is called by the container's id.
    pub fn of_container(&self, id: &str) -> Option<&Overlay> {
        let rootfs = Path::new(id).join("rootfs");
        let mut latest = self.list.iter().rev();
        latest.find(|overlay| !id.is_empty() && overlay.point.ends_with(&rootfs))
    }

    /// The one with this superblock: CRI-O and Docker mount a container's root at `merged` in the directory of its
    /// layer. The node's own root is no container's, though processes that are about to start one have it.
    pub fn of_device(&self, device: u32) -> Option<&Overlay> {
        let mut all = self.list.iter();
        all.find(|overlay| overlay.device == device && self.root != Some(device))
    }
}

impl Overlay {
    fn of(line: &str) -> Option<Self> {
        // Most lines are of others.
        let mount = line.contains(" - overlay ").then(|| Mount::parse(line))??;
        // CRI-O names it from the directory of all layers where the options would be too long.
        let layers = mount.point.ancestors().nth(2).map(Path::to_owned);
        let upper = upper(&mount.options).zip(layers);
        Some(Self {
            point: mount.point,
            device: mount.superblock.device,
            upper: upper.map(|(upper, layers)| layers.join(upper)),
        })
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
    own: Option<File>,
    node: Option<File>,
    points: MountPoints,
}

impl MountTable {
    /// Looks at what is mounted at this moment; whether the table was read anew.
    ///
    /// # Errors
    /// procfs cannot be read: what was known before is in [`Self::points`] still.
    pub fn refresh(&mut self) -> Result<bool, PathError> {
        let Some(mut file) = news(&mut self.own, OF_THREAD)? else {
            return Ok(false);
        };
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.map_err(PathError::at(Path::new(OF_THREAD)))?;
        self.points.kinds = kinds(&String::from_utf8_lossy(&bytes));
        self.own = Some(file);
        Ok(true)
    }

    /// Looks at the overlays that the node's first process sees at this moment.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub fn refresh_overlays(&mut self) -> Result<(), PathError> {
        let Some(file) = news(&mut self.node, OF_NODE)? else {
            return Ok(());
        };
        let mut overlays = Overlays::default();
        // Line by line: the whole may be long, and most of it is of no use.
        for line in BufReader::new(&file).split(b'\n') {
            let line = line.map_err(PathError::at(Path::new(OF_NODE)))?;
            overlays.add(&String::from_utf8_lossy(&line));
        }
        self.points.overlays = overlays;
        self.node = Some(file);
        Ok(())
    }

    /// Mount points at the last look.
    pub fn points(&self) -> &MountPoints {
        &self.points
    }
}

/// A table of mounts from its start, if it has changed since it was read by `held`, which is taken then: a caller that
/// could not read it opens it anew.
fn news(held: &mut Option<File>, path: &str) -> Result<Option<File>, PathError> {
    let at = || PathError::at(Path::new(path));
    let Some(file) = held else {
        return File::open(path).map(Some).map_err(at());
    };
    // A change shows as an error (proc_pid_mounts(5)).
    let [found] = poll([Some(file.as_fd())], Some(Duration::ZERO));
    if found & libc::POLLERR == 0 {
        return Ok(None);
    }
    file.rewind().map_err(at())?;
    Ok(held.take())
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
    fn the_roots_of_containers_are_found_as_their_runtimes_mount_them() {
        let (shim, crio) = (
            "/run/containerd/io.containerd.runtime.v2.task",
            "/var/lib/containers/storage/overlay",
        );
        let lines = [
            format!(
                "50 40 0:70 / {shim}/k8s.io/c0ffee/rootfs rw - overlay overlay rw,lowerdir=/l,upperdir=/s/9/fs,workdir=/w"
            ),
            format!(
                "51 40 0:71 / {crio}/77aa/merged rw - overlay overlay rw,lowerdir=l/A,upperdir=77aa/diff,workdir=w"
            ),
            format!("52 40 0:72 / {shim}/k8s.io/beef/rootfs ro - overlay overlay ro,lowerdir=/l"),
            format!("53 40 254:1 / {shim}/k8s.io/feed/rootfs rw - ext4 /dev/vda1 rw,upperdir=/x"),
        ];
        let overlays = Overlays::of(lines.iter().map(String::as_str));
        let upper = |overlay: &Overlay| overlay.upper.clone();
        let by_id = |id: &str| overlays.of_container(id).map(upper);
        assert_eq!(by_id("c0ffee"), Some(Some("/s/9/fs".into())));
        assert_eq!(by_id("beef"), Some(None));
        assert_eq!([by_id("feed"), by_id("ee"), by_id("")], [None, None, None]);
        let by_device = |device| overlays.of_device(device).map(upper);
        let diff = PathBuf::from(format!("{crio}/77aa/diff"));
        assert_eq!(by_device(71), Some(Some(diff)));
        assert_eq!(by_device(73), None);
        assert_eq!(overlays.root, None);
        // On some nodes the root is an overlay: it is no container's.
        let root = "30 1 0:71 / / rw - overlay overlay rw,upperdir=/u,workdir=/w";
        let lines = lines.iter().map(String::as_str).chain([root]);
        let overlays = Overlays::of(lines);
        assert_eq!(overlays.root, Some(71));
        assert!(overlays.of_device(71).is_none() && overlays.of_device(70).is_some());
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
        table.refresh_overlays().unwrap();
        table.refresh_overlays().unwrap();
        assert!(table.points().is_mounted(Path::new("/proc")));
    }

    #[test]
    fn this_directory_lies_on_something() {
        let dir = tempfile::tempdir().unwrap();
        let found = superblock_of(dir.path()).unwrap();
        assert!(!found.kind.is_empty() && found.kind != "overlay");
    }
}
