//! One topic, one file name: from the records that both sides share to the test.

use crate::prelude::*;

const RECORDS: &str = "common/src";
const PROGRAMS: &str = "ebpf/src";
const TRIGGERS: &str = "agent/node/src/trigger";
const TESTS: &str = "tests/tests/kernel";

/// Directories in which each topic must have a file or a directory of its name.
const PLACES: [&str; 4] = [RECORDS, PROGRAMS, TRIGGERS, TESTS];

/// Files that a topic does not need, with the reason.
const EXEMPT: [(&str, &str, &str); 3] = [
    (
        RECORDS,
        "pids",
        "tasks have no records but those of counter",
    ),
    (
        TESTS,
        "counter",
        "it counts tasks and inodes: tested by pids and inodes",
    ),
    (TESTS, "drops", "a full ring buffer is tested by its topic"),
];

/// Topics that lack a file, and exemptions of files that are there.
pub(super) fn violations(root: &Path) -> Vec<String> {
    let [records, programs, triggers, _] = PLACES.map(|place| names(&root.join(place)));
    // What has records, and what has a program and its reader.
    let topics = &records | &(&programs & &triggers);
    let mut found = Vec::new();
    for topic in &topics {
        for place in PLACES {
            let path = root.join(place).join(topic);
            let is_there = path.is_dir() || path.with_extension("rs").exists();
            let exempt = EXEMPT.iter().find(|(p, t, _)| *p == place && t == topic);
            match (is_there, exempt) {
                (false, None) => found.push(format!("{place}/{topic}.rs is missing")),
                (true, Some((_, _, reason))) => {
                    found.push(format!("{place}/{topic}.rs is there, and exempt: {reason}"))
                }
                _ => {}
            }
        }
    }
    found
}

/// The names of the modules in a directory.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.path().file_stem()?.to_str().map(str::to_owned));
    names
        .filter(|name| !["lib", "main", "mod"].contains(&name.as_str()))
        .collect()
}
