//! The struct offsets that `ebpf/src/kernel.rs` wants as globals.

use super::btf::{Btf, BtfError};

/// Global of the programs, struct, member.
const MEMBERS: [(&str, &str, &str); 7] = [
    ("MEM_CGROUP_MEMORY", "mem_cgroup", "memory"),
    ("PAGE_COUNTER_USAGE", "page_counter", "usage"),
    ("CSS_CGROUP", "cgroup_subsys_state", "cgroup"),
    ("CSS_PARENT", "cgroup_subsys_state", "parent"),
    ("CGROUP_KN", "cgroup", "kn"),
    ("KERNFS_NODE_ID", "kernfs_node", "id"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
];

/// Resolves every global's value: name, bytes.
pub fn resolve(btf: &Btf) -> Result<Vec<(&'static str, u32)>, BtfError> {
    let mut globals = Vec::with_capacity(MEMBERS.len() + 1);
    for (global, of, member) in MEMBERS {
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
