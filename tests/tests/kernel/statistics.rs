//! `memory.stat` of a cgroup lags behind its counter, on kernels that hand changes up only to a cgroup that has not
//! many already; and it can be made to flush.

use std::thread;

use evictd_node::pods::table::{PodEntry, PodTable};
use evictd_tests::prelude::*;

/// More than what CPUs keep to themselves, huge pages on their way, and what is charged between two reads of one look.
const LAG: u64 = 24 * MIB;

/// Reads the cgroup of all pods while a container in one of them allocates: the most that was missing, in MiB.
fn watch(node: &Path, container: &Path, way: &str, each: &mut dyn FnMut(u64, u64)) -> u64 {
    let cgroup = MemoryCgroup::open(node).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let mut hog = Hog::start(container, &["--mib", "240", "--way", way, "--dir", dir]).unwrap();
    let mut most = 0;
    while hog.is_alive() {
        let reading = cgroup.read().unwrap();
        each(reading.usage, reading.uncategorized);
        most = most.max(reading.uncategorized);
        if reading.usage >= 236 * MIB {
            break;
        }
        thread::sleep(Duration::from_micros(300));
    }
    most / MIB
}

/// What had been charged when the statistics were made to flush is in them as soon as a little more is charged.
// R28
#[test]
fn a_lag_is_added_up() {
    skip_if!(no_memory_cgroups());
    let scope = TestCgroup::new("statistics", 400 * MIB).unwrap();
    let pods = ["one", "two", "three", "four", "five", "six"];
    let pods = pods.map(|pod| scope.child(&format!("burstable/{pod}")).unwrap());
    let containers = ["one", "six"];
    let containers =
        containers.map(|pod| scope.child(&format!("burstable/{pod}/container")).unwrap());
    let mut compared = 0;
    for way in ["touch", "threads", "cache"] {
        for container in &containers {
            let entry = |path: &PathBuf| {
                Arc::new(PodEntry::open(Pod::default(), path, Mode::Evictd).unwrap())
            };
            let mut table = PodTable::new(pods.iter().map(entry).collect());
            let mut asked = Vec::new();
            let added_up = watch(scope.path(), container, way, &mut |usage, unlisted| {
                if unlisted < LAG {
                    asked.clear();
                    return;
                }
                // The allocating process has gone on meanwhile, however long this test was kept from running; and once
                // it may be that another reader was in the middle of it.
                if let Some(&before) = asked.iter().rev().nth(2)
                    && usage > before + LAG
                {
                    let listed = usage - unlisted;
                    compared += 1;
                    assert!(
                        listed + LAG > before,
                        "{way}: {listed} of {usage}, asked at {asked:?}"
                    );
                }
                asked.push(usage);
                table.flush_statistics();
            });
            let detail = format!("{added_up} MiB missing at most when added up");
            matrix("memory.stat", way, &detail);
        }
    }
    skip_if!((compared == 0).then_some("these statistics do not lag"));
}
