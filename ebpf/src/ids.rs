//! The ids by which the agent knows cgroups and filesystems.

use aya_ebpf::{
    Global,
    helpers::{bpf_get_current_cgroup_id, bpf_get_current_task},
};

use crate::kstruct::{
    Address, CGROUP_KN, CSS_CGROUP, CSS_PARENT, KERNFS_NODE_ID, cgroup_id, field, memcg_of,
};

/// Not 0 when the agent has found the struct offsets; without BTF it has not.
#[unsafe(no_mangle)]
static OFFSETS_KNOWN: Global<u32> = Global::new(0);
/// The id of the hierarchy that has the memory controller: 0 on cgroup v2.
#[unsafe(no_mangle)]
static MEMORY_HIERARCHY: Global<u32> = Global::new(0);
/// `inode.i_sb`.
#[unsafe(no_mangle)]
static INODE_SB: Global<u32> = Global::new(0);
/// `inode.i_nlink`.
#[unsafe(no_mangle)]
static INODE_NLINK: Global<u32> = Global::new(0);
/// `super_block.s_dev`.
#[unsafe(no_mangle)]
static SUPER_BLOCK_DEV: Global<u32> = Global::new(0);
/// `cgroup.root`.
#[unsafe(no_mangle)]
static CGROUP_ROOT: Global<u32> = Global::new(0);
/// `cgroup_root.hierarchy_id`.
#[unsafe(no_mangle)]
static CGROUP_ROOT_HIERARCHY: Global<u32> = Global::new(0);
/// `cgroup.self`.
#[unsafe(no_mangle)]
static CGROUP_SELF: Global<u32> = Global::new(0);

/// Id of a task's memory cgroup; 0 when it cannot be read.
#[inline(always)]
pub fn cgroup_of(task: Address) -> u64 {
    if OFFSETS_KNOWN.load() == 0 {
        return 0;
    }
    memcg_of(task).and_then(cgroup_id).unwrap_or(0)
}

/// Id of the current task's memory cgroup; 0 when it cannot be read. Without offsets only the id in the default
/// hierarchy is known: where memory is in another one, that is the number of another cgroup there.
#[inline(always)]
pub fn current_cgroup() -> u64 {
    if OFFSETS_KNOWN.load() == 0 {
        if !is_memory_hierarchy(0) {
            return 0;
        }
        // SAFETY: takes no arguments.
        return unsafe { bpf_get_current_cgroup_id() };
    }
    // SAFETY: takes no arguments.
    cgroup_of(unsafe { bpf_get_current_task() })
}

/// `s_dev` of the filesystem an inode is on.
#[inline(always)]
pub fn device_of(inode: Address) -> Option<u32> {
    Some(field(field(inode, &INODE_SB)?, &SUPER_BLOCK_DEV)? as u32)
}

/// Whether no name leads to an inode any more.
#[inline(always)]
pub fn is_unlinked(inode: Address) -> bool {
    field(inode, &INODE_NLINK).is_some_and(|nlink| nlink as u32 == 0)
}

/// Whether a hierarchy is the one in which pods are known.
#[inline(always)]
pub fn is_memory_hierarchy(hierarchy: u32) -> bool {
    hierarchy == MEMORY_HIERARCHY.load()
}

/// Id of a `struct cgroup` of the memory hierarchy; `None` for those of others, whose ids are other numbers.
#[inline(always)]
pub fn id_in_memory_hierarchy(cgroup: Address) -> Option<u64> {
    let hierarchy = field(field(cgroup, &CGROUP_ROOT)?, &CGROUP_ROOT_HIERARCHY)? as u32;
    if !is_memory_hierarchy(hierarchy) {
        return None;
    }
    field(field(cgroup, &CGROUP_KN)?, &KERNFS_NODE_ID)
}

/// Id of the cgroup above.
#[inline(always)]
pub fn parent_id(cgroup: Address) -> Option<u64> {
    let css = field(cgroup + u64::from(CGROUP_SELF.load()), &CSS_PARENT)?;
    field(
        field(field(css, &CSS_CGROUP)?, &CGROUP_KN)?,
        &KERNFS_NODE_ID,
    )
}
