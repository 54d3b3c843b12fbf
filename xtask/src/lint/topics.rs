//! One topic, one file name: from the records that both sides share to the test.

use std::path::Path;

/// Directories in which each topic of `common/src` must have a file or a directory of its name.
const PLACES: [&str; 2] = ["ebpf/src", "agent/node/src/trigger"];

/// Topics that lack a file.
pub(super) fn violations(root: &Path) -> Vec<String> {
    let topics = std::fs::read_dir(root.join("common/src"))
        .into_iter()
        .flatten()
        .flatten();
    let names = topics.filter_map(|e| e.path().file_stem()?.to_str().map(str::to_owned));
    let mut missing = Vec::new();
    for topic in names.filter(|name| name != "lib") {
        for place in PLACES {
            let path = root.join(place).join(&topic);
            if !path.is_dir() && !path.with_extension("rs").exists() {
                missing.push(format!("common/src/{topic}.rs has no {place}/{topic}.rs"));
            }
        }
    }
    missing.sort();
    missing
}
