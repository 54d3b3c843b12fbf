//! Cgroups below a cgroup.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone};

/// The ids of a cgroup and of all below it; of those that vanish meanwhile there is none.
pub fn descendant_ids(root: &Path) -> Vec<u64> {
    let dirs = descendants(root).unwrap_or_default();
    dirs.iter()
        .filter_map(|dir| fs::metadata(dir).map(|m| m.ino()).ok())
        .collect()
}

/// A cgroup directory and all below it, parents before children. What vanishes meanwhile is left out.
///
/// # Errors
/// The cgroup is not there, or one below it cannot be listed.
pub fn descendants(root: &Path) -> Result<Vec<PathBuf>, PathError> {
    fs::metadata(root).map_err(PathError::at(root))?;
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned() {
        next += 1;
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(e) if is_gone(&e) => continue,
            Err(e) => return Err(PathError::at(&dir)(e)),
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// The first process in a cgroup, not below it.
pub(crate) fn first_process(dir: &Path) -> Option<u32> {
    let procs = fs::read_to_string(dir.join("cgroup.procs")).ok()?;
    procs.lines().next()?.parse().ok()
}

/// The cgroups directly below one; none where it cannot be listed.
pub(crate) fn subdirectories(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|entry| entry.path())
}
