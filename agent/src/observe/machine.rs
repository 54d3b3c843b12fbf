//! The machine as a whole.

use std::{fs, path::Path};

use super::{
    cgroup::PathError,
    text::{malformed, value_of},
};

/// Memory of the machine in bytes: `MemTotal` of meminfo, which is the kubelet's capacity of `memory.available`.
///
/// # Errors
/// Not there, or not in the kernel's form.
pub fn memory_total(proc: &Path) -> Result<u64, PathError> {
    let path = proc.join("meminfo");
    let text = fs::read_to_string(&path).map_err(PathError::at(&path))?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map(|kib| kib * 1024)
        .ok_or_else(|| PathError::at(&path)(malformed("no MemTotal")))
}

/// Tasks that the OOM killer has killed since the boot, for whatever reason (`oom_kill` of vmstat, 4.13+).
///
/// # Errors
/// Not there, or not in the kernel's form.
pub fn oom_kills(proc: &Path) -> Result<u64, PathError> {
    let path = proc.join("vmstat");
    let bytes = fs::read(&path).map_err(PathError::at(&path))?;
    value_of(&bytes, "oom_kill").ok_or_else(|| PathError::at(&path)(malformed("no oom_kill")))
}
