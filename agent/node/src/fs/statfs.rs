//! Bytes and inodes of the filesystems that the kubelet knows as nodefs, imagefs and containerfs.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use evictd_engine::Layout;
use evictd_sys::fs::PathError;

use super::mounts::{Superblock, superblock_of};
use crate::kernfile::bad_message;

/// One reading of a filesystem (statfs(2), as cadvisor's `getVfsStats` reads it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemReading {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that an unprivileged user may still write (`f_bavail`): root's reserve counts as used.
    pub available: u64,
    /// Inodes in all; 0 where the filesystem makes them as it goes and has no limit (btrfs).
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

impl FilesystemReading {
    /// Whether the filesystem limits inodes at all: without a limit there is no `inodesFree` to run out of.
    pub fn limits_inodes(&self) -> bool {
        self.inodes != 0
    }
}

/// A mounted filesystem, known by one directory in it. Nothing is held open: an open directory would keep the
/// administrator from unmounting it.
#[derive(Debug)]
pub struct Filesystem {
    path: PathBuf,
    /// `path` as the system calls want it, so that reading allocates nothing.
    name: CString,
    device: u64,
}

impl Filesystem {
    /// Looks at a directory of the filesystem.
    ///
    /// # Errors
    /// The directory is not there.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let meta = fs::metadata(path).map_err(PathError::at(path))?;
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|e| PathError::at(path)(e.into()))?;
        Ok(Self {
            path: path.to_owned(),
            name,
            device: meta.dev(),
        })
    }

    /// The directory by which it is known.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells it from other filesystems: the device number of its superblock, in the kernel's own encoding. On
    /// btrfs all subvolumes have the same one, as for cAdvisor; stat(2) gives each another (`st_dev`), which serves
    /// where the superblock is not known.
    fn identity(&self) -> u32 {
        superblock_of(&self.path).map_or_else(|_| self.fallback_superblock().device, |s| s.device)
    }

    /// What stands for the superblock where that cannot be told: the device number of stat(2). An overlay whose upper
    /// layer cannot be seen from here has one of its own, and kernels before 5.8 do not tell which mount a path is on.
    pub fn fallback_superblock(&self) -> Superblock {
        Superblock {
            device: kernel_device(self.device),
            kind: "unknown".to_owned(),
        }
    }

    /// Bytes and inodes. Does not allocate.
    ///
    /// # Errors
    /// ENODEV when the filesystem was unmounted: the path then leads to what lies below the mount point.
    pub fn read(&self) -> io::Result<FilesystemReading> {
        let s = rustix::fs::statfs(&self.name)?;
        // Looked at afterwards: a filesystem that went away before or meanwhile is noticed either way.
        if rustix::fs::stat(&self.name)?.st_dev != self.device {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // f_frsize is the unit of the block counts; very old filesystems leave it at 0.
        let unit = u64::try_from(if s.f_frsize > 0 {
            s.f_frsize
        } else {
            s.f_bsize
        });
        let unit = unit.map_err(|_| bad_message())?;
        Ok(FilesystemReading {
            capacity: s.f_blocks.saturating_mul(unit),
            available: s.f_bavail.saturating_mul(unit),
            inodes: s.f_files,
            inodes_free: s.f_ffree,
        })
    }
}

/// The filesystems of a node. Signals of equal filesystems read the same one.
#[derive(Debug)]
pub struct NodeFilesystems {
    /// Layout of the filesystems: which of them are separate.
    pub layout: Layout,
    /// The kubelet's root directory: volumes and logs.
    pub nodefs: Filesystem,
    /// The images.
    pub imagefs: Filesystem,
    /// The writable layers: on nodefs or on imagefs.
    pub containerfs: Filesystem,
}

/// Why the filesystems of a node cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A directory is not there.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The writable layers lie on a third filesystem: no documented layout.
    #[error(
        "containerfs: {containers} is neither on the filesystem of {kubelet} nor on that of {images}; \
         writable layers must share one with the kubelet or with the images"
    )]
    ThirdFilesystem {
        /// The kubelet's root directory.
        kubelet: PathBuf,
        /// The images' directory.
        images: PathBuf,
        /// The writable layers' directory.
        containers: PathBuf,
    },
}

impl NodeFilesystems {
    /// Finds the layout by superblock, from the kubelet's root directory, the directory of the images and that of the
    /// writable layers (equal to the images' where the runtime does not split them).
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn find(kubelet: &Path, images: &Path, containers: &Path) -> Result<Self, LayoutError> {
        let nodefs = Filesystem::open(kubelet)?;
        let imagefs = Filesystem::open(images)?;
        let containerfs = Filesystem::open(containers)?;
        let [n, i, c] = [&nodefs, &imagefs, &containerfs].map(Filesystem::identity);
        let layout = layout(n, i, c).ok_or_else(|| LayoutError::ThirdFilesystem {
            kubelet: kubelet.to_owned(),
            images: images.to_owned(),
            containers: containers.to_owned(),
        })?;
        Ok(Self {
            layout,
            nodefs,
            imagefs,
            containerfs,
        })
    }
}

/// A device number of stat(2) as the kernel encodes it (`MKDEV`). What is neither btrfs nor an overlay has the
/// superblock's.
fn kernel_device(device: u64) -> u32 {
    libc::major(device) << 20 | libc::minor(device)
}

/// `None`: the writable layers lie on a third filesystem.
fn layout(nodefs: u32, imagefs: u32, containerfs: u32) -> Option<Layout> {
    let is_known = containerfs == nodefs || containerfs == imagefs;
    is_known.then_some(Layout {
        dedicated_image_fs: imagefs != nodefs,
        split_image_fs: containerfs != imagefs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // R3
    #[test]
    fn the_three_layouts_and_the_one_that_is_none() {
        let separate = |dedicated_image_fs, split_image_fs| {
            Some(Layout {
                dedicated_image_fs,
                split_image_fs,
            })
        };
        assert_eq!(layout(1, 1, 1), separate(false, false));
        assert_eq!(layout(1, 2, 2), separate(true, false));
        assert_eq!(layout(1, 2, 1), separate(true, true));
        assert_eq!(layout(1, 2, 3), None);
        assert_eq!(layout(1, 1, 3), None);
    }

    /// Where the superblock of one of two directories is not known, they are told apart all the same.
    #[test]
    fn a_device_number_is_that_of_the_superblock_in_another_encoding() {
        assert_eq!(kernel_device(libc::makedev(259, 300)), 259 << 20 | 300);
        // Device numbers are given for as long as the filesystem is there.
        let proc = Filesystem::open(Path::new("/proc/self")).unwrap();
        assert_eq!(proc.identity(), kernel_device(proc.device));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("images");
        let error = NodeFilesystems::find(dir.path(), &gone, dir.path()).unwrap_err();
        assert!(error.to_string().contains("images"), "{error}");
    }

    #[test]
    fn one_directory_three_times_is_one_filesystem() {
        let dir = tempfile::tempdir().unwrap();
        let found = NodeFilesystems::find(dir.path(), dir.path(), dir.path()).unwrap();
        assert_eq!(found.layout, Layout::default());
        let reading = found.nodefs.read().unwrap();
        assert!(reading.available <= reading.capacity && reading.capacity > 0);
        assert!(reading.inodes_free <= reading.inodes);
    }
}
