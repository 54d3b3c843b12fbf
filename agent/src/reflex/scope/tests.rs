use std::{fs, path::Path};

use super::*;

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
    let limits = |_| Limits {
        threshold,
        resolved: threshold,
        floor: None,
    };
    let root = MemoryCgroup::open(dir).unwrap();
    Scope::machine(root, 1000 * MIB, limits, false).unwrap()
}

fn left(dir: &Path, mib: u64) -> MemAvailable {
    let kib = mib * 1024;
    fs::write(dir.join("meminfo"), format!("MemAvailable: {kib} kB\n")).unwrap();
    MemAvailable::open(dir).unwrap()
}

// R2
#[test]
fn the_kubelets_count_holds_while_the_machine_has_more() {
    let dir = tempfile::tempdir().unwrap();
    let plain = machine(dir.path(), 100 * MIB).look().unwrap();
    assert_eq!(plain.available, 600 * MIB);
    let guarded = machine(dir.path(), 100 * MIB).guarded(left(dir.path(), 700), 100 * MIB);
    assert_eq!(guarded.look().unwrap(), plain);
}

#[test]
fn what_the_machine_lacks_is_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(left(dir.path(), 90), 100 * MIB);
    let look = scope.look().unwrap();
    assert_eq!(look.available, 90 * MIB);
    // The wires follow the same sum.
    assert_eq!(
        scope.capacity() - (look.usage - look.discounted),
        look.available
    );
}

/// The guard is about the last bytes, not about the threshold.
#[test]
fn a_generous_threshold_stays_the_kubelets() {
    let dir = tempfile::tempdir().unwrap();
    let threshold = 500 * MIB;
    let above = machine(dir.path(), threshold).guarded(left(dir.path(), 110), 100 * MIB);
    assert_eq!(above.look().unwrap().available, threshold + 10 * MIB);
    let below = machine(dir.path(), threshold).guarded(left(dir.path(), 90), 100 * MIB);
    assert_eq!(below.look().unwrap().available, threshold - 10 * MIB);
    // A guard above the threshold would evict where nothing is short.
    let small = machine(dir.path(), 50 * MIB).guarded(left(dir.path(), 60), 100 * MIB);
    assert_eq!(small.look().unwrap().available, 60 * MIB);
}

#[test]
fn without_the_machines_word_the_kubelets_count_remains() {
    let dir = tempfile::tempdir().unwrap();
    let scope = machine(dir.path(), 100 * MIB).guarded(left(dir.path(), 90), 100 * MIB);
    fs::write(dir.path().join("meminfo"), "nonsense\n").unwrap();
    assert_eq!(scope.look().unwrap().available, 600 * MIB);
}
