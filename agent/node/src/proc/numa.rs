//! NUMA nodes: memory that tasks bound to one of them can use (`cpuset.mems`, the kubelet's memory manager, `mbind`).
//!
//! No signal of the kubelet tells of one node: where it is used up, the OOM killer acts on the tasks bound to it,
//! however much the others have.

use std::{fs, path::Path};

use evictd_sys::fs::PathError;

use super::machine::meminfo;
use crate::kernfile::malformed;

/// Memory of one NUMA node, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the NUMA node.
    pub id: u32,
    /// All of its memory.
    pub total: u64,
    /// Free memory, page cache on the lists and slab that can be reclaimed: as `MemAvailable`, but for the watermarks'
    /// reserves.
    pub available: u64,
}

/// The NUMA nodes of the machine, by number, from `devices/system/node/nodeN/meminfo` below a sysfs mount. None where
/// the kernel has no NUMA.
///
/// # Errors
/// A file is not in the kernel's form.
pub fn nodes(sys: &Path) -> Result<Vec<NumaNode>, PathError> {
    let entries = fs::read_dir(sys.join("devices/system/node"));
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        let Some(id) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let path = entry.path().join("meminfo");
        let text = fs::read_to_string(&path).map_err(PathError::at(&path))?;
        let node = parse(id, &text);
        found.push(node.ok_or_else(|| PathError::at(&path)(malformed("no memory of a node")))?);
    }
    found.sort_by_key(|node| node.id);
    Ok(found)
}

/// Each line begins with the node: `Node 0 MemFree: 9410932 kB`.
fn parse(id: u32, text: &str) -> Option<NumaNode> {
    let prefix = format!("Node {id} ");
    let bytes = |name: &str| meminfo(text.as_bytes(), &format!("{prefix}{name}"));
    let slab = bytes("SReclaimable:").unwrap_or(0);
    Some(NumaNode {
        id,
        total: bytes("MemTotal:")?,
        available: bytes("MemFree:")? + bytes("Active(file):")? + bytes("Inactive(file):")? + slab,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn each_node_has_its_own_lines() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nodes(dir.path()).unwrap(), []);
        let all = dir.path().join("devices/system/node");
        for (id, free) in [(10, 5), (2, 7)] {
            let node = all.join(format!("node{id}"));
            fs::create_dir_all(&node).unwrap();
            let lines = [
                ("MemTotal", 100),
                ("MemFree", free),
                ("Active(file)", 20),
                ("Inactive(file)", 30),
                ("SReclaimable", 1),
            ];
            let lines = lines.map(|(name, kib)| format!("Node {id} {name}:   {kib} kB\n"));
            fs::write(node.join("meminfo"), lines.concat()).unwrap();
        }
        // Beside them lie files, and directories of other things.
        fs::create_dir_all(all.join("power")).unwrap();
        fs::write(all.join("online"), "2,10\n").unwrap();
        let node = |id, available: u64| NumaNode {
            id,
            total: 100 * KIB,
            available: available * KIB,
        };
        assert_eq!(nodes(dir.path()).unwrap(), [node(2, 58), node(10, 56)]);
        fs::write(all.join("node2/meminfo"), "Node 2 MemTotal: 1 kB\n").unwrap();
        let error = nodes(dir.path()).unwrap_err().to_string();
        assert!(error.contains("node2/meminfo"), "{error}");
    }
}
