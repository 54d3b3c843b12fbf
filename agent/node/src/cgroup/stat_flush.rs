//! Statistics of cgroups that lie below each other, made to flush.

use std::{fs::File, os::unix::fs::FileExt as _, path::PathBuf};

use crate::kernfile::open_primed;

/// `memory.stat` of some cgroups, held open; those that lie below come before those above.
///
/// A cgroup with many changes that were never read hands none of them up (`memcg_rstat_updated`), and the one above
/// does not know that it has something to flush. To read the statistics from below to above makes it know.
#[derive(Debug, Default)]
pub struct StatFlusher(Vec<File>);

impl StatFlusher {
    /// Opens the statistics of `dirs`, which are given from below to above; one that vanishes is left out.
    pub fn of<'a>(dirs: impl Iterator<Item = &'a PathBuf>) -> Self {
        Self(
            dirs.filter_map(|dir| open_primed(&dir.join("memory.stat")).ok())
                .collect(),
        )
    }

    /// Makes the kernel add them up. Does not allocate.
    pub fn flush(&self) {
        for file in &self.0 {
            // Whatever is asked for, the kernel makes the whole text; a group that is gone has nothing to add.
            let _ = file.read_at(&mut [0], 0);
        }
    }
}
