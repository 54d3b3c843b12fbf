//! What the journal keeps of a reclaim from the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The node has given back what was no longer needed.
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
