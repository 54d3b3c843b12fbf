use super::*;

const MIB: u64 = 1 << 20;

/// A directory that looks like a pod's cgroup of version 2.
fn pod(dir: &Path, name: &str, usage: u64, high: &str) -> MemoryCgroup {
    let path = dir.join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("memory.current"), format!("{usage}\n")).unwrap();
    fs::write(path.join("memory.stat"), "inactive_file 0\nactive_file 0\n").unwrap();
    fs::write(path.join(HIGH), format!("{high}\n")).unwrap();
    MemoryCgroup::open(&path).unwrap()
}

fn high(pod: &MemoryCgroup) -> String {
    fs::read_to_string(pod.path().join(HIGH))
        .unwrap()
        .trim()
        .to_owned()
}

// R46
#[test]
fn a_throttle_is_at_the_usage_and_is_removed_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut throttles = ThrottleList::open(dir.path()).unwrap().0;
    let free = pod(dir.path(), "free", 100 * MIB - 1, "max");
    let wide = pod(dir.path(), "wide", 50 * MIB, "209715200");
    let tight = pod(dir.path(), "tight", 50 * MIB, "1048576");
    for (name, cgroup) in [("free", &free), ("wide", &wide)] {
        let throttle = throttles.set(name, cgroup).unwrap().unwrap();
        assert_eq!(high(cgroup), throttle.high.to_string());
    }
    assert_eq!(high(&free), (100 * MIB).to_string());
    // Its own limit is lower; and one throttle is enough.
    assert_eq!(throttles.set("tight", &tight).unwrap(), None);
    assert_eq!(throttles.set("free", &free).unwrap(), None);
    let released = throttles
        .release(|throttle| throttle.uid == "free")
        .unwrap();
    assert_eq!((released.len(), throttles.held().len()), (1, 1));
    assert_eq!((&*high(&free), &*high(&tight)), ("max", "1048576"));
    throttles.release(|_| true).unwrap();
    assert_eq!(high(&wide), "209715200");
}

// R46: after a crash.
#[test]
fn the_next_start_unthrottles_what_a_crash_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let left = pod(dir.path(), "left", MIB, "max");
    let changed = pod(dir.path(), "changed", MIB, "max");
    let gone = pod(dir.path(), "gone", MIB, "max");
    let mut throttles = ThrottleList::open(dir.path()).unwrap().0;
    for (uid, cgroup) in [("left", &left), ("changed", &changed), ("gone", &gone)] {
        throttles.set(uid, cgroup).unwrap().unwrap();
    }
    // No orderly end.
    drop(throttles);
    fs::write(changed.path().join(HIGH), "4096000").unwrap();
    fs::remove_dir_all(gone.path()).unwrap();
    // Another one under the old name is not the one that was throttled.
    fs::create_dir(dir.path().join("between")).unwrap();
    let other = pod(dir.path(), "gone", MIB, "max");
    let (throttles, count) = ThrottleList::open(dir.path()).unwrap();
    assert_eq!((count, throttles.held().len()), (3, 0));
    assert_eq!(
        (&*high(&left), &*high(&changed), &*high(&other)),
        ("max", "4096000", "max")
    );
    assert_eq!(ThrottleList::open(dir.path()).unwrap().1, 0);
}

#[test]
fn what_cannot_be_written_down_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let mut throttles = ThrottleList::empty(&dir.path().join("nowhere"));
    let error = throttles.set("free", &free).unwrap_err().to_string();
    assert!(error.contains("brakes.json"), "{error}");
    assert_eq!((&*high(&free), throttles.held().len()), ("max", 0));
    fs::write(dir.path().join(FILE), "[{").unwrap();
    assert!(
        ThrottleList::open(dir.path())
            .unwrap_err()
            .to_string()
            .contains("brakes.json")
    );
}

#[test]
fn a_closed_list_throttles_no_pod() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let mut throttles = ThrottleList::empty(dir.path());
    throttles.set("free", &free).unwrap().unwrap();
    assert_eq!(throttles.close().unwrap().len(), 1);
    assert_eq!(throttles.set("free", &free).unwrap(), None);
    assert_eq!(high(&free), "max");
}
