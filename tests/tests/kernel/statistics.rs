//! `memory.stat` of a cgroup lags behind its counter, on kernels that hand changes up only to a cgroup that has not
//! many already; and it can be made to flush.

use std::thread;

use evictd_node::pods::table::{PodEntry, PodTable};
use evictd_tests::prelude::*;

/// More than what CPUs keep to themselves, and huge pages on their way.
const LAG: u64 = 24 * MIB;
const MIB_EACH: u64 = 240;
/// Whether the statistics of a new cgroup lag is chance: so many lags are waited for, and so long.
const LAGS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads the cgroup of all pods while a container in one of them allocates, and has the statistics flushed where they lag: how often
/// that was, and the most that was missing.
fn watch(way: &str) -> (u32, u64) {
    let scope = TestCgroup::new("statistics", 400 * MIB).unwrap();
    let container = scope.child("burstable/six/container").unwrap();
    let pods = ["one", "two", "three", "four", "five", "six"];
    let pods = pods.map(|pod| scope.child(&format!("burstable/{pod}")).unwrap());
    let entry =
        |path: &PathBuf| Arc::new(PodEntry::open(Pod::default(), path, Mode::Evictd).unwrap());
    let mut table = PodTable::new(pods.iter().map(entry).collect());
    let cgroup = MemoryCgroup::open(scope.path()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let mib = MIB_EACH.to_string();
    let mut hog = Hog::start(&container, &["--mib", &mib, "--way", way, "--dir", dir]).unwrap();
    let (mut usage, mut lags, mut most) = (0, 0, 0);
    // What was charged when the first flush was asked for, and how many there were since.
    let mut asked: Option<(u64, u32)> = None;
    while hog.is_alive() && usage < (MIB_EACH - 4) * MIB {
        // Before the statistics: what is charged meanwhile, however long this test is kept from running, is not missing.
        usage = cgroup.usage().unwrap();
        let reading = cgroup.read().unwrap();
        let listed = reading.usage - reading.uncategorized;
        let missing = usage.saturating_sub(listed);
        most = most.max(missing);
        match asked {
            // The allocating process has gone on; and once it may be that another reader was in the middle of it.
            Some((before, 3..)) if usage > before + LAG => {
                assert!(listed + LAG > before, "{way}: {listed} of {before}");
                lags += 1;
                asked = None;
            }
            None if missing >= LAG => asked = Some((usage, 0)),
            _ => {}
        }
        if let Some((_, flushes)) = &mut asked {
            table.flush_statistics();
            *flushes += 1;
        }
        thread::sleep(Duration::from_micros(300));
    }
    (lags, most)
}

/// What had been charged when the statistics were made to flush is in them as soon as a little more is charged.
// R28
#[test]
fn a_lag_is_added_up() {
    skip_if!(no_memory_cgroups());
    let (begin, mut lags, mut most) = (Instant::now(), 0, 0);
    for way in ["touch", "threads", "cache"].into_iter().cycle() {
        let (seen, missing) = watch(way);
        (lags, most) = (lags + seen, most.max(missing));
        if lags >= LAGS || begin.elapsed() > PATIENCE {
            break;
        }
    }
    let detail = format!("{lags} lags added up, {} MiB missing at most", most / MIB);
    matrix("memory.stat", "flush", &detail);
    skip_if!((lags == 0).then_some("the statistics did not lag"));
}
