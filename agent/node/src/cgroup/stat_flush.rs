//! Statistics of cgroups that lie below each other, made to flush.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path, sync::Arc};

use super::{
    limited::LimitedCgroups,
    tree::{FollowedCgroup, FollowedCgroups},
};
use crate::kernfile::open_primed;

/// `memory.stat` of some cgroups, held open; those that lie below come before those above.
///
/// A cgroup with many changes that were never read hands none of them up (`memcg_rstat_updated`), and the one above
/// does not know that it has something to flush. To read the statistics from below to above makes it know.
#[derive(Debug, Default)]
pub struct StatFlusher(Vec<Statistics>);

#[derive(Debug)]
struct Statistics {
    /// The kernel's id of the cgroup; 0 where it is not asked for.
    id: u64,
    file: Arc<File>,
}

impl StatFlusher {
    /// Opens the statistics of `dirs`, which are given from below to above; one that vanishes is left out.
    pub fn of<'a>(dirs: impl Iterator<Item = &'a Path>) -> Self {
        Self(dirs.filter_map(|dir| Statistics::open(dir, 0)).collect())
    }

    /// Opens the statistics of these cgroups, parents before children. What is open of them in `limited` or `before` is
    /// shared.
    pub fn reopen(
        found: &FollowedCgroups,
        limited: &LimitedCgroups,
        before: Option<&Self>,
    ) -> Self {
        let before = before.map_or(&[][..], |before| &before.0);
        let statistics = |cgroup: &FollowedCgroup| {
            let id = cgroup.id;
            let known = limited.stat_of(id).or_else(|| {
                let same = before.iter().find(|statistics| statistics.id == id);
                same.map(|statistics| &statistics.file)
            });
            match known {
                Some(file) => Some(Statistics {
                    id,
                    file: Arc::clone(file),
                }),
                None => Statistics::open(&cgroup.path, id),
            }
        };
        Self(found.list.iter().rev().filter_map(statistics).collect())
    }

    /// Makes the kernel add them up. Does not allocate.
    pub fn flush(&self) {
        for Statistics { file, .. } in &self.0 {
            // Whatever is asked for, the kernel makes the whole text; a group that is gone has nothing to add.
            let _ = file.read_at(&mut [0], 0);
        }
    }
}

impl Statistics {
    fn open(dir: &Path, id: u64) -> Option<Self> {
        let file = open_primed(&dir.join("memory.stat")).ok()?;
        Some(Self {
            id,
            file: Arc::new(file),
        })
    }
}
