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
fn where_there_is_no_limit_to_set_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let v2 = pod(dir.path(), "pod", MIB, "max");
    assert_eq!(can_throttle(&v2), Ok(()));
    fs::remove_file(v2.path().join(HIGH)).unwrap();
    assert_eq!(can_throttle(&v2), Err("the cgroup has no memory.high"));
    fs::remove_file(v2.path().join("memory.current")).unwrap();
    fs::write(v2.path().join("memory.usage_in_bytes"), "0").unwrap();
    let v1 = MemoryCgroup::open(v2.path()).unwrap();
    assert_eq!(
        can_throttle(&v1),
        Err("cgroup v1 has no memory.high: needs cgroup v2")
    );
}

// R46
#[test]
fn a_throttle_is_at_the_usage_and_is_removed_again() {
    let dir = tempfile::tempdir().unwrap();
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    let free = pod(dir.path(), "free", 100 * MIB - 1, "max");
    let wide = pod(dir.path(), "wide", 50 * MIB, "209715200");
    let tight = pod(dir.path(), "tight", 50 * MIB, "1048576");
    for (name, cgroup) in [("free", &free), ("wide", &wide)] {
        let throttle = throttles.set(name, cgroup, || true).unwrap().unwrap();
        assert_eq!(high(cgroup), throttle.high.to_string());
    }
    assert_eq!(high(&free), (100 * MIB).to_string());
    // Its own limit is lower; and one throttle is enough.
    assert_eq!(throttles.set("tight", &tight, || true).unwrap(), None);
    assert_eq!(throttles.set("free", &free, || true).unwrap(), None);
    let released = throttles.release(|throttle| throttle.uid == "free");
    assert_eq!((released.len(), throttles.held().len()), (1, 1));
    assert_eq!((&*high(&free), &*high(&tight)), ("max", "1048576"));
    throttles.release(|_| true);
    assert_eq!(high(&wide), "209715200");
}

// R46: after a crash.
#[test]
fn the_next_start_unthrottles_what_a_crash_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let left = pod(dir.path(), "left", MIB, "max");
    let changed = pod(dir.path(), "changed", MIB, "max");
    let gone = pod(dir.path(), "gone", MIB, "max");
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    for (uid, cgroup) in [("left", &left), ("changed", &changed), ("gone", &gone)] {
        throttles.set(uid, cgroup, || true).unwrap().unwrap();
    }
    // No orderly end.
    drop(throttles);
    fs::write(changed.path().join(HIGH), "4096000").unwrap();
    fs::remove_dir_all(gone.path()).unwrap();
    // Another one under the old name is not the one that was throttled.
    fs::create_dir(dir.path().join("between")).unwrap();
    let other = pod(dir.path(), "gone", MIB, "max");
    let (throttles, found) = ThrottleList::open(dir.path()).unwrap();
    assert_eq!((found.released, throttles.held().len()), (3, 0));
    assert_eq!(
        (&*high(&left), &*high(&changed), &*high(&other)),
        ("max", "4096000", "max")
    );
    assert_eq!(ThrottleList::open(dir.path()).unwrap().1, Left::default());
}

/// Pods are throttled once the disk is free again, as it is here without the directory in the file's place.
#[test]
fn a_disk_that_is_full_at_the_start_refuses_no_later_throttle() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    throttles.set("free", &free, || true).unwrap().unwrap();
    drop(throttles);
    let full = dir.path().join(FILE).with_extension("new");
    fs::create_dir(&full).unwrap();
    let (throttles, left) = ThrottleList::open(dir.path()).unwrap();
    assert_eq!((left.released, &*high(&free)), (1, "max"));
    throttles.set("free", &free, || true).unwrap_err();
    fs::remove_dir(&full).unwrap();
    throttles.set("free", &free, || true).unwrap().unwrap();
}

#[test]
fn what_cannot_be_written_down_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let throttles = ThrottleList::of(&dir.path().join("nowhere"), None);
    let error = throttles
        .set("free", &free, || true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("brakes.json"), "{error}");
    assert_eq!((&*high(&free), throttles.held().len()), ("max", 0));
    let throttles = ThrottleList::refusing(dir.path(), "no disk".to_owned());
    let error = throttles
        .set("free", &free, || true)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("no disk"), "{error}");
    throttles.save().unwrap();
    assert!(!dir.path().join(FILE).exists());
}

/// It may name pods that are throttled.
#[test]
fn garbage_in_the_list_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    for n in 0..3 {
        fs::write(dir.path().join(FILE), format!("[{{ {n}")).unwrap();
        let (throttles, left) = ThrottleList::open(dir.path()).unwrap();
        assert_eq!((left.released, left.unreadable.len()), (0, n + 1));
        let kept = fs::read_to_string(&left.unreadable[n]).unwrap();
        assert_eq!(kept, format!("[{{ {n}"));
        throttles.set("free", &free, || true).unwrap().unwrap();
        throttles.close();
        throttles.save().unwrap();
    }
    // It is said as long as they are there.
    let (_, left) = ThrottleList::open(dir.path()).unwrap();
    assert_eq!(left.unreadable.len(), 3);
}

#[test]
fn a_pod_that_is_released_before_it_is_written_down_is_not_throttled() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    let throttle = throttles.begin("free", &free, || true).unwrap().unwrap();
    assert!(throttles.release(|_| true).is_empty());
    assert!(!throttles.finish(&throttle).unwrap());
    assert_eq!((&*high(&free), throttles.held().len()), ("max", 0));
}

#[test]
fn a_closed_list_throttles_no_pod() {
    let dir = tempfile::tempdir().unwrap();
    let free = pod(dir.path(), "free", MIB, "max");
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    throttles.set("free", &free, || true).unwrap().unwrap();
    assert_eq!(throttles.close().len(), 1);
    assert_eq!(throttles.set("free", &free, || true).unwrap(), None);
    assert_eq!(high(&free), "max");
}

/// A pipe that is opened to be written hangs until another process reads it, as a disk may.
// R46
#[test]
fn a_release_does_not_wait_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| pod(dir.path(), name, MIB, "max"));
    let throttles = ThrottleList::open(dir.path()).unwrap().0;
    throttles.set("one", &one, || true).unwrap().unwrap();
    let pipe = dir.path().join(FILE).with_extension("new");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    std::thread::scope(|threads| {
        let set = threads.spawn(|| throttles.set("other", &other, || true));
        while throttles.held().len() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(throttles.release(|_| true).len(), 1);
        assert_eq!(high(&one), "max");
        assert!(!set.is_finished(), "the disk hangs");
        drop(File::open(&pipe).unwrap());
        // Whether it could be written down or not.
        assert!(!matches!(set.join().unwrap(), Ok(Some(_))));
    });
    assert_eq!((&*high(&other), throttles.held().len()), ("max", 0));
}
