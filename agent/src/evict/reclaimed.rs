//! What the journal keeps of a reclaim from the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rounds::Reclaimed;

/// The node has given back what nobody needed (R8).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReclaimed {
    /// When, as RFC 3339.
    pub time: String,
    /// What the disk was to be helped by: `containers`, `images`.
    pub what: Vec<String>,
    /// Containers removed.
    pub containers: u64,
    /// Sandboxes removed.
    pub sandboxes: u64,
    /// Images removed.
    pub images: u64,
    /// Their size in bytes, as the runtime counts it.
    pub image_bytes: u64,
    /// What the runtime refused to remove.
    pub refused: u64,
    /// There was more to remove than time.
    pub is_cut_short: bool,
    /// How much more is available by signal, in its unit.
    pub freed: BTreeMap<String, i64>,
    /// No pod had to go.
    pub is_enough: bool,
    /// How long it took, in nanoseconds.
    pub took: u64,
}

impl NodeReclaimed {
    /// The record of a reclaim that has just ended.
    pub fn of(reclaimed: &Reclaimed) -> Self {
        let removed = &reclaimed.removed;
        let freed = reclaimed.freed.iter();
        Self {
            time: jiff::Timestamp::now().to_string(),
            what: reclaimed
                .what
                .iter()
                .map(|w| w.as_str().to_owned())
                .collect(),
            containers: removed.containers,
            sandboxes: removed.sandboxes,
            images: removed.images,
            image_bytes: removed.image_bytes,
            refused: removed.refused,
            is_cut_short: removed.is_cut_short,
            freed: freed.map(|(signal, n)| (signal.to_string(), *n)).collect(),
            is_enough: reclaimed.is_enough,
            took: u64::try_from(reclaimed.took.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
