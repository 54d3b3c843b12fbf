//! The inode trigger: inodes made and removed, per filesystem and per cgroup.

/// Filesystems with a count of their own: nodefs, imagefs, containerfs, and one to spare.
pub const MAX_FILESYSTEMS: u32 = 4;

/// Key of a count of inodes: a memory cgroup and a filesystem.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupCountKey {
    /// Id of the memory cgroup of the task that made or removed them.
    pub cgroup_id: u64,
    /// Index of the filesystem, below [`MAX_FILESYSTEMS`].
    pub filesystem: u64,
}

crate::plain_old_data!(CgroupCountKey = 2 * 8);
