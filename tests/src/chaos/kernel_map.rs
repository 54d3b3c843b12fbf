//! The maps of a running agent, as another program of the machine could reach them.

use aya::maps::{Array, Map, MapData};
use evictd_common::memory::{MemoryTrigger, NEVER};

use crate::prelude::*;

/// Puts every memory trigger of this process out of reach; how many there were.
pub fn disable_triggers(process: u32) -> Result<u32> {
    for id in ids(process)? {
        let map = MapData::from_id(id)?;
        let info = map.info()?;
        if info.name_as_str() != Some("TRIGGERS") {
            continue;
        }
        let map = Map::Array(map);
        let mut triggers = Array::<_, MemoryTrigger>::try_from(map)?;
        for index in 0..triggers.len() {
            let trigger = triggers.get(&index, 0)?;
            let disabled = MemoryTrigger {
                limit: NEVER,
                ..trigger
            };
            triggers.set(index, disabled, 0)?;
        }
        return Ok(triggers.len());
    }
    bail!("no map of triggers")
}

/// The ids of the maps that a process holds open.
fn ids(process: u32) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for file in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        // One that was closed meanwhile is none of its maps.
        let text = fs::read_to_string(file?.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"));
        ids.extend(id.and_then(|id| id.trim().parse::<u32>().ok()));
    }
    Ok(ids)
}
