//! The inodes that each cgroup has made and removed.

use std::sync::Arc;

use aya::maps::{HashMap, MapData};
use evictd_common::inodes::CgroupCountKey;

use crate::trigger::counter::CgroupCount;

/// The inodes that each cgroup has made and removed, for readers on other threads.
#[derive(Clone)]
pub struct CgroupCountReader(pub(super) Arc<HashMap<MapData, CgroupCountKey, CgroupCount>>);

impl CgroupCountReader {
    /// Inodes made and removed by a memory cgroup on a filesystem since the programs run; `None`: none seen.
    pub fn cgroup_count(&self, cgroup_id: u64, filesystem: usize) -> Option<CgroupCount> {
        let key = CgroupCountKey {
            cgroup_id,
            filesystem: filesystem as u64,
        };
        self.0.get(&key, 0).ok()
    }

    /// Inodes made less those removed by a memory cgroup on a filesystem; `None`: none seen.
    pub fn net(&self, cgroup_id: u64, filesystem: usize) -> Option<i64> {
        let count = self.cgroup_count(cgroup_id, filesystem)?;
        Some(count.made - count.gone)
    }
}
