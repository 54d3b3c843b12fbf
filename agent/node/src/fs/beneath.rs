//! Entries of a directory, looked at and opened by the directory's descriptor. A pod may rename, replace and link its
//! files at any moment: a path leads through what it has put there meanwhile, a descriptor does not.

use std::{
    ffi::CStr,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, statx,
    },
    io::{Errno, Result},
};

/// st_blocks is in units of 512 bytes, whatever the filesystem's block size is (stat(2)).
pub(super) const STAT_BLOCK: u64 = 512;
/// To list a directory, and nothing else.
const LIST: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Flags for a look at an inode without access to it.
const INODE_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Neither a link nor a mount point is passed.
const STAY: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_XDEV);

/// A filesystem, and the mount that leads to it: a directory that is bound to another place has its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub device: (u32, u32),
    /// 0 where the kernel does not tell (before 5.8).
    mount: u64,
}

/// Known properties of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inode {
    pub number: u64,
    pub place: Place,
    pub is_dir: bool,
    pub links: u64,
    /// Size of the allocated blocks, in bytes.
    pub bytes: u64,
}

impl Inode {
    /// What a name in a directory leads to. A link is not followed, and nothing is mounted for the look.
    pub fn at(dir: impl AsFd, name: &CStr) -> Result<Self> {
        Self::look(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
    }

    /// Reads the inode that a descriptor leads to.
    pub fn of(file: impl AsFd) -> Result<Self> {
        Self::look(file, c"", AtFlags::EMPTY_PATH)
    }

    fn look(dir: impl AsFd, name: &CStr, flags: AtFlags) -> Result<Self> {
        let wanted = StatxFlags::TYPE
            | StatxFlags::INO
            | StatxFlags::NLINK
            | StatxFlags::BLOCKS
            | StatxFlags::MNT_ID;
        Ok(Self::from(&statx(dir, name, flags, wanted)?))
    }
}

impl From<&Statx> for Inode {
    fn from(stat: &Statx) -> Self {
        let has_mount = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        Self {
            number: stat.stx_ino,
            place: Place {
                device: (stat.stx_dev_major, stat.stx_dev_minor),
                mount: if has_mount { stat.stx_mnt_id } else { 0 },
            },
            is_dir: FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory,
            links: stat.stx_nlink.into(),
            bytes: stat.stx_blocks * STAT_BLOCK,
        }
    }
}

/// An entry that was looked at.
pub(super) struct Entry {
    pub inode: Inode,
    /// Opened directory, or why it could not be opened; `None` for other files.
    pub opened: Option<Result<OwnedFd>>,
}

/// Method by which entries are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Looks up by openat2(2): the kernel stops at a mount point before the filesystem there is touched.
    Confined,
    /// Where a seccomp filter refuses that call, and before 5.6. A mount point is known by the table of mounts, and
    /// otherwise by its device and mount once it was looked at.
    ByName,
}

impl Lookup {
    /// Chooses the method that the kernel allows.
    pub fn of(dir: impl AsFd) -> Self {
        match openat2(
            dir,
            c".",
            INODE_ONLY,
            Mode::empty(),
            STAY | ResolveFlags::BENEATH,
        ) {
            // For want of a descriptor or of memory other calls fail as well.
            Ok(_) | Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Self::Confined,
            Err(_) => Self::ByName,
        }
    }

    /// Looks at an entry of a directory in a place, and opens it if it is a directory in the same place. XDEV: a
    /// filesystem is mounted there. `kind` is what the listing has, which may be outdated; `has_mounts`: there are
    /// mount points somewhere below, of which a file may be one as well, and one that mounts when it is opened.
    pub fn entry(
        self,
        dir: impl AsFd,
        name: &CStr,
        kind: FileType,
        place: Place,
        has_mounts: bool,
    ) -> Result<Entry> {
        let dir = dir.as_fd();
        let inode = || match self {
            Self::Confined if has_mounts => Inode::of(self.open(dir, name, INODE_ONLY)?),
            Self::Confined | Self::ByName => Inode::at(dir, name),
        };
        let may_be_dir = matches!(kind, FileType::Directory | FileType::Unknown);
        if !may_be_dir || has_mounts || self == Self::ByName {
            let inode = inode()?;
            if !inode.is_dir || inode.place != place {
                let was_moved = kind == FileType::Directory && !inode.is_dir;
                let opened = was_moved.then_some(Err(Errno::NOTDIR));
                return Ok(Entry { inode, opened });
            }
        }
        let refused = match self.open(dir, name, LIST) {
            Ok(opened) => {
                let inode = Inode::of(&opened)?;
                let opened = Some(Ok(opened));
                return Ok(Entry { inode, opened });
            }
            Err(error @ (Errno::NOENT | Errno::XDEV)) => return Err(error),
            Err(Errno::NOTDIR | Errno::LOOP) if kind == FileType::Unknown => None,
            Err(error) => Some(Err(error)),
        };
        Ok(Entry {
            inode: inode()?,
            opened: refused,
        })
    }

    /// The directory that an open one lies in at this moment, to be listed.
    pub fn parent(self, dir: impl AsFd) -> Result<OwnedFd> {
        match self {
            Self::Confined => openat2(dir, c"..", LIST, Mode::empty(), STAY),
            Self::ByName => openat(dir, c"..", LIST, Mode::empty()),
        }
    }

    fn open(self, dir: impl AsFd, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
        match self {
            Self::Confined => {
                let stay = STAY | ResolveFlags::BENEATH;
                openat2(dir, name, flags, Mode::empty(), stay)
            }
            Self::ByName => openat(dir, name, flags, Mode::empty()),
        }
    }
}
