use std::{fs, path::Path};

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
    let thresholds = |_| MemoryThresholds {
        threshold,
        resolved: threshold,
        ..MemoryThresholds::default()
    };
    let root = MemoryCgroup::open(dir).unwrap();
    let kind = ScopeKind::Machine { total: 1000 * MIB };
    Scope::open(root, kind, thresholds, false).unwrap()
}

/// So many of 1000 MiB are left.
fn left(dir: &Path, mib: u64) -> Option<MemAvailable> {
    let [total, available] = [1000, mib].map(|mib| mib * 1024);
    let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
    fs::write(dir.join("meminfo"), text).unwrap();
    Some(MemAvailable::open(dir).unwrap())
}

// R2
#[test]
fn the_kubelets_count_holds_while_the_machine_has_more() {
    let dir = tempfile::tempdir().unwrap();
    let plain = machine(dir.path(), 100 * MIB).sample().unwrap();
    assert_eq!(plain.guarded_available, 600 * MIB);
    let guarded = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 700), false);
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
    assert_eq!(guarded.shortage.headroom.immediate, 700 * MIB);
}

#[test]
fn without_the_machines_word_the_kubelets_count_remains() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(100 * MIB, left(dir.path(), 90), false);
    fs::write(dir.path().join("meminfo"), "nonsense\n").unwrap();
    assert_eq!(scope.sample().unwrap().guarded_available, 600 * MIB);
}

/// A cgroup of v1 with a limit of 500 MiB, 450 of them in use: 200 are inactive page cache, of which so many wait for a
/// disk.
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
    let cgroup = MemoryCgroup::open(dir).unwrap();
    let scope = Scope::open(cgroup, ScopeKind::Node, |_| threshold(), false).unwrap();
    scope.guarded(100 * MIB, None, false)
}

fn threshold() -> MemoryThresholds {
    MemoryThresholds {
        threshold: 100 * MIB,
        resolved: 100 * MIB,
        ..MemoryThresholds::default()
    }
}

#[test]
fn what_has_to_be_written_first_is_not_left() {
    let dir = tempfile::tempdir().unwrap();
    let available = |dirty, writeback| {
        let scope = with_writers(dir.path(), dirty, writeback);
        let look = scope.sample().unwrap();
        // The trigger at the threshold is as far from the counter as the threshold from what is available.
        let trigger = scope.usage_limit(100 * MIB, look.reclaimable_cache);
        assert_eq!(trigger + 100 * MIB, look.usage + look.guarded_available + 1);
        look.guarded_available / MIB
    };
    assert_eq!(available(0, 0), 250, "the kubelet's count");
    assert_eq!(available(60, 60), 130);
    assert_eq!(available(100, 60), 90);
    // Page cache of the active list and of tmpfs may be dirty as well.
    assert_eq!(available(300, 0), 50);
}

/// On v2 writers wait before that, unless the kernel has MGLRU.
#[test]
fn with_mglru_it_is_not_left_on_v2_either() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    write("memory.current", (450 * MIB).to_string());
    write("memory.max", (500 * MIB).to_string());
    let lines = [
        ("anon", 250),
        ("file", 200),
        ("inactive_file", 200),
        ("active_file", 0),
        ("slab_reclaimable", 0),
        ("file_dirty", 100),
        ("file_writeback", 60),
    ];
    let lines = lines.map(|(key, mib)| format!("{key} {}\n", mib * MIB));
    write("memory.stat", lines.concat());
    let left = |has_mglru| {
        let cgroup = MemoryCgroup::open(dir.path()).unwrap();
        let scope = Scope::open(cgroup, ScopeKind::Node, |_| threshold(), false).unwrap();
        let scope = scope.guarded(100 * MIB, None, has_mglru);
        scope.sample().unwrap().guarded_available / MIB
    };
    assert_eq!((left(false), left(true)), (250, 90));
}

/// The root of a container that is a node of 1000 MiB, with this limit. It uses 700 MiB: 400 anonymous, 200 inactive
/// page cache, 50 slab that can be reclaimed.
fn container(dir: &Path, limit: &str) -> Scope {
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    write("memory.current", &(700 * MIB).to_string());
    write("memory.max", limit);
    let (anon, file, slab) = (400 * MIB, 200 * MIB, 50 * MIB);
    let stat = format!(
        "anon {anon}\nfile {file}\nkernel {slab}\ninactive_file {file}\nactive_file 0\nslab_reclaimable {slab}\n"
    );
    write("memory.stat", &stat);
    let thresholds = |capacity| MemoryThresholds {
        threshold: capacity / 10,
        resolved: capacity / 10,
        ..MemoryThresholds::default()
    };
    let root = MemoryCgroup::open(dir).unwrap();
    let kind = ScopeKind::Machine { total: 1000 * MIB };
    Scope::open(root, kind, thresholds, false).unwrap()
}

/// cadvisor takes the memory of the machine for that of a container that is a node.
#[test]
fn a_container_without_a_limit_has_the_kubelets_capacity() {
    let dir = tempfile::tempdir().unwrap();
    for limit in ["max\n", "2000000000\n"] {
        let scope = container(dir.path(), limit);
        assert_eq!(scope.capacity(), 1000 * MIB);
        assert!(scope.is_machine() && !scope.is_limited());
        let look = scope.sample().unwrap();
        assert_eq!(look.guarded_available, 500 * MIB, "the kubelet's count");
        // Its counter has slab in it, as a root's statistics have not.
        assert_eq!(look.reclaimable, 250 * MIB);
        let guarded = scope
            .guarded(100 * MIB, left(dir.path(), 90), false)
            .sample()
            .unwrap();
        assert_eq!(guarded.guarded_available, 90 * MIB);
        assert_eq!(guarded.kubelet_available, 500 * MIB);
        assert_eq!(guarded.shortage.headroom.immediate, 90 * MIB);
    }
}

/// The OOM killer acts at the limit, however much the machine has left; and for the machine, however much is left below
/// the limit.
#[test]
fn a_containers_limit_is_its_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let limited = || container(dir.path(), &format!("{}\n", 800 * MIB));
    let scope = limited();
    assert_eq!(
        (scope.capacity(), scope.thresholds().threshold),
        (800 * MIB, 80 * MIB)
    );
    assert!(scope.is_limited());
    let look = scope
        .guarded(100 * MIB, left(dir.path(), 900), false)
        .sample()
        .unwrap();
    assert_eq!((look.guarded_available, look.usage), (300 * MIB, 700 * MIB));
    let room = look.shortage.headroom;
    assert_eq!(
        (room.immediate, room.deferred),
        (300 * MIB, 50 * MIB),
        "slab"
    );
    // Free pages of the machine's CPUs are no headroom below the limit.
    let mut counting = limited().guarded(100 * MIB, left(dir.path(), 900), false);
    counting.count_pcp_free(true);
    assert_eq!(counting.sample().unwrap(), look);
    counting.count_pcp_free(false);
    assert_eq!(counting.uncounted_pcp_free(), 0);
    let look = limited()
        .guarded(100 * MIB, left(dir.path(), 70), false)
        .sample()
        .unwrap();
    assert_eq!(
        (look.guarded_available, look.shortage.headroom.immediate),
        (70 * MIB, 70 * MIB)
    );
}

/// Until another scope is handed over for the limit that the cgroup has by now.
#[test]
fn another_limit_counts_from_the_next_look_on() {
    let dir = tempfile::tempdir().unwrap();
    let limit = |text: &str| fs::write(dir.path().join("memory.max"), text).unwrap();
    for (kind, below_threshold, unlimited) in [
        (ScopeKind::Node, (1000, 100), (1000, 100)),
        (ScopeKind::Pods { limit: 1000 * MIB }, (80, 8), (1000, 0)),
    ] {
        container(dir.path(), &format!("{}\n", 1000 * MIB));
        let cgroup = MemoryCgroup::open(dir.path()).unwrap();
        let mut scope = Scope::open(cgroup, kind, |_| threshold(), false).unwrap();
        let mut seen = |text: &str| {
            limit(text);
            let is_other = scope.follow_limit();
            assert!(!scope.follow_limit(), "it is told once");
            let amounts = (scope.capacity() / MIB, scope.thresholds().threshold / MIB);
            let left = scope.sample().unwrap().guarded_available / MIB;
            assert_eq!(left, amounts.0.saturating_sub(500), "{text}");
            is_other.then_some(amounts)
        };
        assert_eq!(seen("1048576000\n"), None);
        assert_eq!(seen("734003200\n"), Some((700, 100)));
        assert_eq!(seen("2097152000\n"), Some((2000, 100)));
        // As where another scope is handed over.
        assert_eq!(seen("83886080\n"), Some(below_threshold));
        let changes = below_threshold != unlimited;
        assert_eq!(seen("max\n"), changes.then_some(unlimited));
        assert_eq!(scope.given(), (1000 * MIB, threshold()));
    }
    // The limit of a container that is a node is no more than the machine has.
    let mut scope = container(dir.path(), &format!("{}\n", 800 * MIB));
    limit("900000000000\n");
    assert!(scope.follow_limit());
    assert_eq!(scope.capacity(), 1000 * MIB);
}
