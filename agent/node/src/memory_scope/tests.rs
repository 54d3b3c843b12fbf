use std::{fs, path::Path};

use evictd_engine::pace::{Decision, Pace, Pending, Rule, Urgency};

use super::*;
use crate::proc::machine::MemAvailable;

const MIB: u64 = 1 << 20;

/// A machine of 1000 MiB on cgroup v2, of which the kubelet counts 600 as used and 200 of these as inactive page cache.
fn machine(dir: &Path, threshold: u64) -> Scope {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    write("cgroup.controllers", "memory".into());
    let (anon, file) = (400 * MIB, 200 * MIB);
    write(
        "memory.stat",
        format!("anon {anon}\nfile {file}\ninactive_file {file}\nactive_file 0\n"),
    );
    let limits = |_| MemoryThresholds {
        threshold,
        resolved: threshold,
        floor: None,
    };
    let root = MemoryCgroup::open(dir).unwrap();
    Scope::machine(root, 1000 * MIB, limits, false).unwrap()
}

/// So many of 1000 MiB are left.
fn left(dir: &Path, mib: u64) -> Option<MemAvailable> {
    write_meminfo(dir, 1000, mib);
    Some(MemAvailable::open(dir).unwrap())
}

fn write_meminfo(dir: &Path, total: u64, available: u64) {
    let [total, available] = [total, available].map(|mib| mib * 1024);
    let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
    fs::write(dir.join("meminfo"), text).unwrap();
}

// R2
#[test]
fn the_kubelets_count_holds_while_the_machine_has_more() {
    let dir = tempfile::tempdir().unwrap();
    let plain = machine(dir.path(), 100 * MIB).sample().unwrap();
    assert_eq!(plain.available, 600 * MIB);
    let guarded = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 700));
    let guarded = guarded.sample().unwrap();
    let shortage = plain.shortage;
    assert_eq!(
        MemorySample {
            shortage,
            ..guarded
        },
        plain
    );
    // What the machine has is another matter: slab and the like are in it.
    assert_eq!(guarded.shortage.room.at_once, 700 * MIB);
}

// R15: an accounting by which all page cache counts as available, and the kubelet's, by which the active part of it does not.
#[test]
fn active_page_cache_is_available_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    let [anon, inactive, active] = [300, 150, 50].map(|mib| mib * MIB);
    write("memory.current", (anon + inactive + active).to_string());
    write("memory.max", (1000 * MIB).to_string());
    let file = inactive + active;
    write(
        "memory.stat",
        format!("anon {anon}\nfile {file}\ninactive_file {inactive}\nactive_file {active}\n"),
    );
    let available = |counts_active_file| {
        let limits = |_| MemoryThresholds {
            threshold: 100 * MIB,
            resolved: 100 * MIB,
            floor: None,
        };
        let cgroup = MemoryCgroup::open(dir.path()).unwrap();
        let scope = Scope::of_pods(cgroup, limits, counts_active_file).unwrap();
        let sample = scope.sample().unwrap();
        // The trigger follows the same sum.
        let limit = scope.usage_limit(100 * MIB, sample.discounted);
        (sample.available / MIB, limit / MIB)
    };
    assert_eq!(available(false), (650, 1050));
    assert_eq!(available(true), (700, 1100));
}

#[test]
fn what_the_machine_lacks_is_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 90));
    let look = scope.sample().unwrap();
    assert_eq!(look.available, 90 * MIB);
    // The triggers follow the same sum.
    assert_eq!(
        scope.capacity() - (look.usage - look.discounted),
        look.available
    );
}

/// Memory that is plugged in, or that a balloon takes, is read before the capacity follows, and is no growth then either.
#[test]
fn memory_that_comes_or_goes_is_no_growth() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 90));
    for (total, available) in [(1000, 90), (3000, 2090), (950, 40)] {
        write_meminfo(dir.path(), total, available);
        let shortage = scope.sample().unwrap().shortage;
        assert_eq!(shortage.used, 910 * MIB);
        assert_eq!(shortage.room.at_once, available * MIB);
    }
}

/// A cgroup of v2 of 1000 MiB, 400 of them page cache, where so many are anonymous.
fn with_cache(dir: &Path, anon: u64) {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    let (anon, file) = (anon * MIB, 400 * MIB);
    write("memory.max", (1000 * MIB).to_string());
    write("memory.current", (anon + file).to_string());
    write(
        "memory.stat",
        format!("anon {anon}\nfile {file}\ninactive_file {file}\nactive_file 0\n"),
    );
}

// R40
#[test]
fn growth_is_urgent_where_only_protected_cache_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let limits = |_| MemoryThresholds {
        threshold: 100 * MIB,
        resolved: 100 * MIB,
        floor: None,
    };
    let decide = |guard: bool, protected: u64| {
        with_cache(dir.path(), 500);
        let cgroup = MemoryCgroup::open(dir.path()).unwrap();
        let mut scope = Scope::new(cgroup, limits, false).unwrap();
        if guard {
            scope = scope.guarded(100 * MIB, None);
        }
        scope.protect(protected * MIB);
        let mut pace = Pace::default();
        for (ms, anon) in [(1, 520), (11, 540), (21, 560)] {
            with_cache(dir.path(), anon);
            let look = scope.sample().unwrap();
            pace.observe(ms * 1_000_000, &look.shortage);
        }
        let look = scope.sample().unwrap();
        // The trigger at the threshold is as far from the counter as the threshold from what is available.
        let trigger = scope.usage_limit(100 * MIB, look.discounted);
        assert_eq!(trigger + 100 * MIB, look.usage + look.available + 1);
        // The kubelet's count decides what is not urgent.
        assert_eq!(look.shortage.available, 440 * MIB);
        let is_urgent = matches!(
            pace.decide(
                21_000_000,
                &look.shortage,
                Pending::default(),
                Rule::Lasting
            ),
            Decision::Evict {
                urgency: Urgency::Urgent { .. },
                ..
            }
        );
        (
            look.available / MIB,
            look.shortage.room.at_once / MIB,
            is_urgent,
        )
    };
    assert_eq!(decide(true, 0), (440, 440, false));
    assert_eq!(decide(true, 300), (140, 140, false));
    assert_eq!(decide(true, 400), (40, 40, true));
    // The guard is switched off.
    assert_eq!(decide(false, 400), (440, 40, false));
    // A moment ago there was more of it.
    assert_eq!(decide(true, 700), (40, 40, true));
}

#[test]
fn what_the_machine_cannot_take_back_is_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut scope = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 250));
    scope.protect(200 * MIB);
    let look = scope.sample().unwrap();
    assert_eq!(look.available, 50 * MIB);
    assert_eq!(
        scope.capacity() - (look.usage - look.discounted),
        look.available
    );
    let shortage = look.shortage;
    assert_eq!(
        (shortage.used, shortage.room.at_once),
        (750 * MIB, 50 * MIB)
    );
    assert_eq!(shortage.available, 250 * MIB);
}

/// The guard is about the last bytes, not about the threshold.
#[test]
fn a_generous_threshold_stays_the_kubelets() {
    let dir = tempfile::tempdir().unwrap();
    let threshold = 500 * MIB;
    let above = machine(dir.path(), threshold).guarded(100 * MIB, left(dir.path(), 110));
    assert_eq!(above.sample().unwrap().available, threshold + 10 * MIB);
    let below = machine(dir.path(), threshold).guarded(100 * MIB, left(dir.path(), 90));
    assert_eq!(below.sample().unwrap().available, threshold - 10 * MIB);
    // A guard above the threshold would evict where nothing is short.
    let small = machine(dir.path(), 50 * MIB).guarded(100 * MIB, left(dir.path(), 60));
    assert_eq!(small.sample().unwrap().available, 60 * MIB);
}

#[test]
fn without_the_machines_word_the_kubelets_count_remains() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 90));
    fs::write(dir.path().join("meminfo"), "nonsense\n").unwrap();
    assert_eq!(scope.sample().unwrap().available, 600 * MIB);
}

/// A cgroup of v1 with a limit of 500 MiB, 450 of them in use: 200 are inactive page cache, of which so many wait for a disk.
fn with_writers(dir: &Path, dirty: u64, writeback: u64) -> Scope {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    write("memory.usage_in_bytes", (450 * MIB).to_string());
    write("memory.limit_in_bytes", (500 * MIB).to_string());
    let lines = [
        ("dirty", 1000),
        ("total_dirty", dirty * MIB),
        ("total_writeback", writeback * MIB),
        ("total_inactive_file", 200 * MIB),
        ("total_active_file", 0),
    ];
    let lines = lines.map(|(key, value)| format!("{key} {value}\n"));
    write("memory.stat", lines.concat());
    let limits = |_| MemoryThresholds {
        threshold: 100 * MIB,
        resolved: 100 * MIB,
        floor: None,
    };
    let cgroup = MemoryCgroup::open(dir).unwrap();
    let scope = Scope::new(cgroup, limits, false).unwrap();
    scope.guarded(100 * MIB, None)
}

#[test]
fn what_has_to_be_written_first_is_not_left() {
    let dir = tempfile::tempdir().unwrap();
    let available = |dirty, writeback| {
        let scope = with_writers(dir.path(), dirty, writeback);
        let look = scope.sample().unwrap();
        // The trigger at the threshold is as far from the counter as the threshold from what is available.
        let trigger = scope.usage_limit(100 * MIB, look.discounted);
        assert_eq!(trigger + 100 * MIB, look.usage + look.available + 1);
        look.available / MIB
    };
    assert_eq!(available(0, 0), 250, "the kubelet's count");
    assert_eq!(available(60, 60), 130);
    assert_eq!(available(100, 60), 90);
    // Page cache of the active list and of tmpfs may be dirty as well.
    assert_eq!(available(300, 0), 50);
}

/// The root of a container that plays a node of 1000 MiB, with this limit. It uses 700 MiB: 400 anonymous, 200 inactive page cache, 50
/// slab that can be reclaimed.
fn container(dir: &Path, limit: &str) -> Scope {
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    write("memory.current", &(700 * MIB).to_string());
    write("memory.max", limit);
    let (anon, file, slab) = (400 * MIB, 200 * MIB, 50 * MIB);
    let stat = format!(
        "anon {anon}\nfile {file}\nkernel {slab}\ninactive_file {file}\nactive_file 0\nslab_reclaimable {slab}\n"
    );
    write("memory.stat", &stat);
    let limits = |capacity| MemoryThresholds {
        threshold: capacity / 10,
        resolved: capacity / 10,
        floor: None,
    };
    let root = MemoryCgroup::open(dir).unwrap();
    Scope::machine(root, 1000 * MIB, limits, false).unwrap()
}

/// cadvisor takes the memory of the machine for a container's that plays a node.
#[test]
fn a_container_without_a_limit_has_the_kubelets_capacity() {
    let dir = tempfile::tempdir().unwrap();
    for limit in ["max\n", "2000000000\n"] {
        let scope = container(dir.path(), limit);
        assert_eq!(scope.capacity(), 1000 * MIB);
        assert!(scope.is_machine() && !scope.is_limited());
        let look = scope.sample().unwrap();
        assert_eq!(look.available, 500 * MIB, "the kubelet's count");
        // Its counter has slab in it, as a root's statistics have not.
        assert_eq!(look.reclaimable, 250 * MIB);
        let guarded = scope
            .guarded(100 * MIB, left(dir.path(), 90))
            .sample()
            .unwrap();
        assert_eq!(guarded.available, 90 * MIB);
        assert_eq!(guarded.shortage.room.at_once, 90 * MIB);
    }
}

/// The OOM killer acts at the limit, however much the machine has left; and for the machine, however much is left below the limit.
#[test]
fn a_containers_limit_is_its_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let limited = || container(dir.path(), &format!("{}\n", 800 * MIB));
    let scope = limited();
    assert_eq!(
        (scope.capacity(), scope.limits().threshold),
        (800 * MIB, 80 * MIB)
    );
    assert!(scope.is_limited());
    let look = scope
        .guarded(100 * MIB, left(dir.path(), 900))
        .sample()
        .unwrap();
    assert_eq!((look.available, look.usage), (300 * MIB, 700 * MIB));
    let room = look.shortage.room;
    assert_eq!((room.at_once, room.slowly), (300 * MIB, 50 * MIB), "slab");
    // Free pages of the machine's CPUs are no room below the limit.
    let mut counting = limited().guarded(100 * MIB, left(dir.path(), 900));
    counting.count_free_lists(true);
    assert_eq!(counting.sample().unwrap(), look);
    counting.count_free_lists(false);
    assert_eq!(counting.uncounted_free_lists(), 0);
    let look = limited()
        .guarded(100 * MIB, left(dir.path(), 70))
        .sample()
        .unwrap();
    assert_eq!(
        (look.available, look.shortage.room.at_once),
        (70 * MIB, 70 * MIB)
    );
}

/// The kernel does not tell slab that it can give back from slab in use: no fast growth counts on it.
#[test]
fn slab_of_a_cgroup_is_room_for_a_slow_growth_only() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("memory.current", &(900 * MIB).to_string());
    write("memory.max", &(1000 * MIB).to_string());
    let (anon, file, slab) = (650 * MIB, 100 * MIB, 150 * MIB);
    write(
        "memory.stat",
        &format!(
            "anon {anon}\nfile {file}\nkernel {slab}\ninactive_file {file}\nactive_file 0\nslab_reclaimable {slab}\n"
        ),
    );
    let limits = |capacity| MemoryThresholds {
        threshold: capacity / 10,
        resolved: capacity / 10,
        floor: None,
    };
    let pods = MemoryCgroup::open(dir.path()).unwrap();
    let look = Scope::new(pods, limits, false).unwrap().sample().unwrap();
    let room = look.shortage.room;
    assert_eq!((look.shortage.used, look.available), (650 * MIB, 200 * MIB));
    assert_eq!((room.at_once, room.slowly), (200 * MIB, 150 * MIB));
    assert_eq!(
        look.reclaimable,
        100 * MIB,
        "the floor counts on none of it"
    );
}
