//! The struct offsets that `ebpf/src/kstruct.rs` wants as globals.

use super::btf::{Btf, BtfError};

/// Global of the programs, struct, member.
type Member = (&'static str, &'static str, &'static str);

/// Struct members that `ebpf/src/memcg.rs` wants besides the common ones.
const CHARGED: [Member; 4] = [
    ("MEM_CGROUP_MEMORY", "mem_cgroup", "memory"),
    ("PAGE_COUNTER_USAGE", "page_counter", "usage"),
    ("PAGE_COUNTER_MAX", "page_counter", "max"),
    ("PAGE_COUNTER_HIGH", "page_counter", "high"),
];

const CGROUPS: [Member; 5] = [
    ("CSS_CGROUP", "cgroup_subsys_state", "cgroup"),
    ("CSS_PARENT", "cgroup_subsys_state", "parent"),
    ("CGROUP_KN", "cgroup", "kn"),
    ("KERNFS_NODE_ID", "kernfs_node", "id"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
];

/// Struct members that `ebpf/src/oom.rs` wants besides the common ones.
const VICTIMS: [Member; 6] = [
    ("OOM_CONTROL_MEMCG", "oom_control", "memcg"),
    ("TASK_TGID", "task_struct", "tgid"),
    ("TASK_COMM", "task_struct", "comm"),
    ("TASK_SIGNAL", "task_struct", "signal"),
    ("SIGNAL_OOM_SCORE_ADJ", "signal_struct", "oom_score_adj"),
    ("TASK_MM", "task_struct", "mm"),
];

/// Struct members that `ebpf/src/ids.rs` wants besides the common ones.
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

/// Resolves what only the evidence of the OOM killer wants: without it the trigger works all the same.
pub fn resolve_victims(btf: &Btf) -> Result<Vec<(&'static str, u32)>, BtfError> {
    let mut globals = offsets_of(btf, VICTIMS.into_iter())?;
    // A kernel that counts in a third way leaves the victim's memory unknown.
    if let Some((first, stride)) = rss_counters(btf) {
        globals.extend([("MM_RSS", first), ("MM_RSS_STRIDE", stride)]);
    }
    // Before Linux 4.19 there are no groups.
    if let Ok(group) = btf.offset("mem_cgroup", "oom_group") {
        globals.push(("MEM_CGROUP_OOM_GROUP", group));
    }
    Ok(globals)
}

/// Where `mm_struct.rss_stat` has its first counter, and how far it is to the next one: plain words up to 6.1, per-CPU
/// counters since 6.2.
fn rss_counters(btf: &Btf) -> Option<(u32, u32)> {
    let first = btf.offset("mm_struct", "rss_stat").ok()?;
    if let Ok(count) = btf.offset("mm_struct", "rss_stat.count") {
        return Some((count, size_of::<u64>() as u32));
    }
    if btf.element("mm_struct", "rss_stat")? != "percpu_counter" {
        return None;
    }
    let count = btf.offset("percpu_counter", "count").ok()?;
    Some((first + count, btf.size("percpu_counter").ok()?))
}

/// Resolves the globals of the counting object: name, bytes.
pub fn resolve_counts(btf: &Btf) -> Result<Vec<(&'static str, u32)>, BtfError> {
    members(btf, PLACES.into_iter().chain(CGROUPS))
}

fn offsets_of(
    btf: &Btf,
    wanted: impl Iterator<Item = Member>,
) -> Result<Vec<(&'static str, u32)>, BtfError> {
    wanted
        .map(|(global, of, member)| Ok((global, btf.offset(of, member)?)))
        .collect()
}

/// Resolves the offsets of the wanted members and the place of a task's memory cgroup, which every object wants.
fn members(
    btf: &Btf,
    wanted: impl Iterator<Item = Member>,
) -> Result<Vec<(&'static str, u32)>, BtfError> {
    let mut globals = offsets_of(btf, wanted)?;
    let slot = btf.enumerator("cgroup_subsys_id", "memory_cgrp_id")?;
    let pointer = size_of::<u64>() as u32;
    globals.push((
        "CSS_SET_MEMORY",
        btf.offset("css_set", "subsys")? + slot * pointer,
    ));
    Ok(globals)
}
