//! What the journal keeps of a reclaim from the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The node has given back what was no longer needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReclaimed {
    /// Time of the reclaim, as RFC 3339.
    pub time: String,
    /// Kinds of reclaim that were to help the disk: `containers`, `images`.
    pub what: Vec<String>,
    /// Containers removed.
    pub containers: u64,
    /// Sandboxes removed.
    pub sandboxes: u64,
    /// Images removed.
    pub images: u64,
    /// Size of the removed images in bytes, as the runtime counts it.
    pub image_bytes: u64,
    /// Number of requests that the runtime refused.
    pub refused: u64,
    /// There was more to remove than time.
    pub is_cut_short: bool,
    /// Amount by which more is available, by signal, in its unit.
    pub freed: BTreeMap<String, i64>,
    /// No pod had to go.
    pub is_enough: bool,
    /// Time that the reclaim took, in nanoseconds.
    pub took: u64,
}
