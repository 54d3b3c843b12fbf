//! The struct offsets that `ebpf/src/kernel.rs` wants as globals.

use super::btf::{Btf, BtfError};

/// Global of the programs, struct, member.
type Member = (&'static str, &'static str, &'static str);

const CHARGED: [Member; 2] = [
    ("MEM_CGROUP_MEMORY", "mem_cgroup", "memory"),
    ("PAGE_COUNTER_USAGE", "page_counter", "usage"),
];

const CGROUPS: [Member; 5] = [
    ("CSS_CGROUP", "cgroup_subsys_state", "cgroup"),
    ("CSS_PARENT", "cgroup_subsys_state", "parent"),
    ("CGROUP_KN", "cgroup", "kn"),
    ("KERNFS_NODE_ID", "kernfs_node", "id"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
];

/// What `ebpf/src/place.rs` wants besides.
const PLACES: [Member; 6] = [
    ("INODE_SB", "inode", "i_sb"),
    ("INODE_NLINK", "inode", "i_nlink"),
    ("SUPER_BLOCK_DEV", "super_block", "s_dev"),
    ("CGROUP_ROOT", "cgroup", "root"),
    ("CGROUP_ROOT_HIERARCHY", "cgroup_root", "hierarchy_id"),
    ("CGROUP_SELF", "cgroup", "self"),
];

/// Resolves the globals of the memory object: name, bytes.
pub fn resolve(btf: &Btf) -> Result<Vec<(&'static str, u32)>, BtfError> {
    members(btf, CHARGED.into_iter().chain(CGROUPS))
}

/// Resolves the globals of the counting object: name, bytes.
pub fn resolve_counts(btf: &Btf) -> Result<Vec<(&'static str, u32)>, BtfError> {
    members(btf, PLACES.into_iter().chain(CGROUPS))
}

fn members(
    btf: &Btf,
    wanted: impl Iterator<Item = Member>,
) -> Result<Vec<(&'static str, u32)>, BtfError> {
    let mut globals = Vec::new();
    for (global, of, member) in wanted {
        globals.push((global, btf.offset(of, member)?));
    }
    let slot = btf.enumerator("cgroup_subsys_id", "memory_cgrp_id")?;
    let pointer = size_of::<u64>() as u32;
    globals.push((
        "CSS_SET_MEMORY",
        btf.offset("css_set", "subsys")? + slot * pointer,
    ));
    Ok(globals)
}
