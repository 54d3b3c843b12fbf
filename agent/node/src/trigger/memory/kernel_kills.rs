//! Pods from which the kernel programs have killed by themselves, until the agent takes note of it.

use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};
use evictd_common::memory::KernelKillRecord;
use evictd_sys::{clock::monotonic_ns, page::page_size};

use crate::bpf::{
    object::chain,
    pin::{KILLED, PinDirectory},
};

/// The programs have killed a process of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelKill {
    /// Id of the pod's cgroup.
    pub cgroup_id: u64,
    /// Index of the scope that was short.
    pub scope: usize,
    /// Time of the kill, in nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// Bytes that were missing to the scope's threshold then, as if no page cache counted as available; at least a page.
    pub missing: u64,
}

/// The programs' map of them.
pub(super) struct KernelKills(Map);

impl KernelKills {
    pub(super) fn new(map: Map) -> Self {
        Self(map)
    }

    /// Takes one of them out of the map; `None` when it is empty. Does not allocate.
    pub(super) fn take(&mut self) -> Option<KernelKill> {
        let mut kills = HashMap::<_, u64, KernelKillRecord>::try_from(&mut self.0).ok()?;
        let cgroup_id = kills.keys().next()?.ok()?;
        let record = kills.get(&cgroup_id, 0);
        kills.remove(&cgroup_id).ok()?;
        let record = record.ok()?;
        Some(KernelKill {
            cgroup_id,
            scope: usize::try_from(record.scope).ok()?,
            time: record.time_ns,
            // At the limit itself less than the threshold is available.
            missing: (u64::from(record.pages_past) + 1) * page_size(),
        })
    }

    /// Pins the map, so that the next agent hears of what the programs kill without this one.
    ///
    /// # Errors
    /// What `bpf(2)` answers.
    pub(super) fn pin(&self, pins: &PinDirectory) -> Result<(), String> {
        self.0.pin(pins.path_for(KILLED)).map_err(|e| chain(&e))
    }
}

/// Moves what the programs of earlier agents have killed from their maps into this agent's; how many pods that are. An
/// agent that has pinned no map of its own only logs them.
///
/// # Errors
/// A map cannot be read or written; the others were moved.
pub fn inherit(pins: &PinDirectory) -> Result<usize, MapError> {
    let open = |path| {
        HashMap::<_, u64, KernelKillRecord>::try_from(Map::HashMap(MapData::from_pin(path)?))
    };
    let path = pins.path_for(KILLED);
    let is_pinned = path.try_exists().unwrap_or(true);
    let mut own = is_pinned.then(|| open(path)).transpose()?;
    let (mut count, mut result) = (0, Ok(()));
    for path in pins.earlier(KILLED) {
        let moved = open(path.to_owned()).and_then(|mut earlier| {
            while let Some(cgroup_id) = earlier.keys().next() {
                let cgroup_id = cgroup_id?;
                let kill = earlier.get(&cgroup_id, 0)?;
                if let Some(own) = &mut own {
                    let is_newest = |known: KernelKillRecord| known.time_ns < kill.time_ns;
                    if own.get(&cgroup_id, 0).map_or(true, is_newest) {
                        own.insert(cgroup_id, kill, 0)?;
                    }
                    count += 1;
                } else {
                    let ago = Duration::from_nanos(monotonic_ns().saturating_sub(kill.time_ns));
                    tracing::warn!(
                        cgroup_id,
                        ?ago,
                        "the pinned guard of an earlier agent has killed from this pod: that is not reported, and the pod is not deleted"
                    );
                }
                earlier.remove(&cgroup_id)?;
            }
            Ok(())
        });
        result = result.and(moved);
    }
    result.map(|()| count)
}
