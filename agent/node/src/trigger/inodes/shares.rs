//! Who made and removed inodes: the counts per cgroup.

use std::sync::Arc;

use aya::maps::{HashMap, MapData};
use evictd_common::inodes::CgroupCountKey;

use crate::trigger::counter::CgroupCount;

/// Who made and removed inodes, for readers on other threads.
#[derive(Clone)]
pub struct CgroupCountReader(pub(super) Arc<HashMap<MapData, CgroupCountKey, CgroupCount>>);

impl CgroupCountReader {
    /// Inodes made less inodes removed by a memory cgroup on a filesystem since the programs run; `None`: none seen.
    pub fn share(&self, cgroup_id: u64, filesystem: usize) -> Option<CgroupCount> {
        let key = CgroupCountKey {
            cgroup_id,
            filesystem: filesystem as u64,
        };
        self.0.get(&key, 0).ok()
    }

    /// Inodes made less those removed on a filesystem by several cgroups together, such as a pod's containers.
    pub fn net(&self, cgroups: &[u64], filesystem: usize) -> i64 {
        let of = |id: &u64| self.share(*id, filesystem).map_or(0, |s| s.made - s.gone);
        cgroups.iter().map(of).sum()
    }
}
