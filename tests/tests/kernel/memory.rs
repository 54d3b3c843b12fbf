//! The memory trigger against the files that show the same numbers, on every hook this kernel has.

use aya::util::KernelVersion;
use evictd_node::{
    cgroup::memory::Version,
    trigger::memory::{
        ANY_SLOT, Action, Direction, KernelVictim, Trigger, TriggerEvent, TriggerSet, build, load,
        page_size, slot, slot_of,
    },
};
use evictd_tests::prelude::*;

fn wait_for_trip(trigger: &mut dyn TriggerSet, timeout: Duration) -> Option<TriggerEvent> {
    wait_for(timeout, || trigger.next_crossing())
}

const UP_TO_100_MIB: Trigger = Trigger {
    limit: 100 * MIB,
    direction: Direction::Rising,
    action: Action::Wake,
    ..Trigger::DISABLED
};

/// One trigger at 100 MiB, a hog of 160: what the record says must lie between what the file says before and after.
fn crosses_on(hook: MemoryHook) {
    let scope_dir = TestCgroup::new("wire", 256 * MIB).unwrap();
    let pod = scope_dir.child("burstable/pod1").unwrap();
    let scope = MemoryCgroup::open(scope_dir.path()).unwrap();
    let (_object, built) = load(&[&scope], Some(hook), false);
    let mut trigger = or_skip!(built).trigger;
    trigger.arm(0, UP_TO_100_MIB).unwrap();

    let mut hog = Hog::start(&pod, &["--mib", "160", "--wait"]).unwrap();
    assert!(
        trigger.next_crossing().is_none(),
        "far below the limit nothing trips"
    );
    let (before, t0) = (scope.usage().unwrap(), monotonic_ns());
    hog.go().unwrap();
    let trip = wait_for_trip(&mut *trigger, SOON).expect("the wire trips");
    let (after, t1) = (scope.usage().unwrap(), monotonic_ns());

    assert!(
        after >= UP_TO_100_MIB.limit - 2 * MIB,
        "woken below the limit, at {after}"
    );
    if trip.slot != ANY_SLOT {
        // Read file, read map, read file; the map lies between.
        let usage = trip.usage * page_size();
        assert!(
            (before..=after).contains(&usage),
            "{before} <= {usage} <= {after}"
        );
        assert!(usage >= UP_TO_100_MIB.limit, "tripped at {usage}");
        // A batch for the charge, one for a hook at the entry, and one huge page: no hook lets more pass.
        let past = usage - UP_TO_100_MIB.limit;
        assert!(
            past <= (2 * 64 + 512) * page_size(),
            "{past} bytes past the limit"
        );
        assert!(
            (t0..=t1).contains(&trip.time_ns),
            "{t0} <= {} <= {t1}",
            trip.time_ns
        );
        assert_eq!(trip.tgid, hog.pid(), "charged by the hog");
        assert_eq!(
            trip.cgroup_id,
            MemoryCgroup::open(&pod).unwrap().id(),
            "charged to its pod"
        );
    }
    std::thread::sleep(Duration::from_millis(50));
    if hook != MemoryHook::Eventfd {
        assert!(
            trigger.next_crossing().is_none(),
            "a wire trips once per arming"
        );
    }

    let usage = if trip.slot == ANY_SLOT {
        after
    } else {
        trip.usage * page_size()
    };
    let past = usage.saturating_sub(UP_TO_100_MIB.limit) >> 10;
    let detail = format!("crossed, seen {past} KiB past the limit");

    // Armed anew above the present usage it stays silent, below it the next charge trips it.
    trigger
        .arm(
            0,
            Trigger {
                limit: 240 * MIB,
                ..UP_TO_100_MIB
            },
        )
        .unwrap();
    let mut second = Hog::start(&pod, &["--mib", "10"]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(second.is_alive());
    assert!(
        trigger.next_crossing().is_none(),
        "the old limit is forgotten"
    );
    matrix("memory.available", &hook.to_string(), &detail);
}

/// Links of tracing programs that this process holds.
fn tracing_links() -> usize {
    let entries = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let infos = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    infos
        .filter(|info| info.contains("link_type:\ttracing"))
        .count()
}

/// Before 5.13 a fexit program is attached only once, and to attach it has the kernel wait for every task of the machine: what
/// sees memory that is given back is attached at the start there, not while memory is short.
#[test]
fn nothing_is_attached_late_where_that_takes_long() {
    skip_if!(no_bpf());
    let is_new = KernelVersion::current().unwrap() >= KernelVersion::new(5, 13, 0);
    skip_if!(is_new.then_some("this kernel attaches programs at once"));
    let cgroup = TestCgroup::new("late", 256 * MIB).unwrap();
    let scope = MemoryCgroup::open(cgroup.path()).unwrap();
    let begun = Instant::now();
    let (_object, built) = load(&[&scope], Some(MemoryHook::Fexit), false);
    let mut trigger = or_skip!(built).trigger;
    println!("built in {:?}", begun.elapsed());
    let before = tracing_links();
    let falling = Trigger {
        direction: Direction::Falling,
        ..UP_TO_100_MIB
    };
    let begun = Instant::now();
    trigger.arm(slot::RECOVERY as usize, falling).unwrap();
    println!("armed in {:?}", begun.elapsed());
    assert_eq!(tracing_links(), before, "attached at the start");
}

/// A rising trigger sees the way up, a falling one the way back; neither says anything before.
fn comes_back_on(hook: MemoryHook) {
    let cgroup = TestCgroup::new("back", 256 * MIB).unwrap();
    let pod = cgroup.child("burstable/pod1").unwrap();
    let scope = MemoryCgroup::open(cgroup.path()).unwrap();
    let (_object, built) = load(&[&scope], Some(hook), false);
    let mut trigger = or_skip!(built).trigger;
    let (rising, falling) = (slot_of(0, slot::HARD), slot_of(0, slot::RECOVERY));
    for slot in 0..=falling {
        trigger.arm(slot, Trigger::DISABLED).unwrap();
    }
    trigger.arm(rising, UP_TO_100_MIB).unwrap();
    let mut hog = Hog::start(&pod, &["--mib", "160"]).unwrap();
    let up = wait_for_trip(&mut *trigger, SOON).expect("the way up");
    while scope.usage().unwrap() < 160 * MIB {
        assert!(hog.is_alive());
    }
    let down_to_80 = Trigger {
        limit: 80 * MIB,
        direction: Direction::Falling,
        action: Action::Wake,
        ..Trigger::DISABLED
    };
    trigger.arm(falling, down_to_80).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    if hook == MemoryHook::Eventfd {
        // Its thresholds stay armed, and one that is past its limit rings when it has been registered.
        wait_for_trip(&mut *trigger, SOON).expect("the rising one is past");
        while trigger.next_crossing().is_some() {}
    } else {
        assert!(trigger.next_crossing().is_none(), "it is still above");
    }
    drop(hog);
    // Hooks that see charges alone trip with the next one.
    let by_itself = wait_for_trip(&mut *trigger, Duration::from_secs(1));
    let seen_by = if by_itself.is_some() {
        "what was given back"
    } else {
        "the next charge"
    };
    let down = by_itself.or_else(|| {
        let _charge = Hog::start(&pod, &["--mib", "1"]).unwrap();
        wait_for_trip(&mut *trigger, SOON)
    });
    let down = down.expect("the way back");
    if hook != MemoryHook::Eventfd {
        assert_eq!((up.slot as usize, down.slot as usize), (rising, falling));
        assert!(down.usage * page_size() <= 80 * MIB);
    }
    matrix(
        "memory.available",
        &hook.to_string(),
        &format!("recovery seen by {seen_by}"),
    );
}

#[test]
fn both_ways_tracepoint() {
    skip_if!(no_bpf());
    comes_back_on(MemoryHook::Tracepoint);
}

#[test]
fn both_ways_fexit() {
    skip_if!(no_bpf());
    comes_back_on(MemoryHook::Fexit);
}

#[test]
fn both_ways_kprobe() {
    skip_if!(no_bpf());
    comes_back_on(MemoryHook::Kprobe);
}

#[test]
fn both_ways_eventfd() {
    skip_if!(not_root());
    comes_back_on(MemoryHook::Eventfd);
}

// R39, R40
#[test]
fn tracepoint_hook() {
    skip_if!(no_bpf());
    crosses_on(MemoryHook::Tracepoint);
}

// R39, R40
#[test]
fn fexit_hook() {
    skip_if!(no_bpf());
    crosses_on(MemoryHook::Fexit);
}

#[test]
fn kprobe_hook() {
    skip_if!(no_bpf());
    crosses_on(MemoryHook::Kprobe);
}

#[test]
fn eventfd_hook() {
    skip_if!(not_root());
    let probe = TestCgroup::new("version", 64 * MIB).unwrap();
    skip_if!((probe.version() == Version::V2).then_some("cgroup v2 has no usage notification"));
    crosses_on(MemoryHook::Eventfd);
}

/// The floor lies where the last look has left it, and page cache may pass it: it takes a task that holds memory, and spares a writer
/// of files.
#[test]
fn the_floor_spares_a_writer_of_files() {
    skip_if!(no_bpf());
    let cgroup = TestCgroup::new("floor", 256 * MIB).unwrap();
    let pod = cgroup.child("burstable/pod1").unwrap();
    let scope = MemoryCgroup::open(cgroup.path()).unwrap();
    let (_object, built) = load(&[&scope], None, false);
    let mut trigger = or_skip!(built).trigger;
    let (hard, floor) = (slot_of(0, slot::HARD), slot_of(0, slot::FLOOR));
    for slot in 0..=floor {
        trigger.arm(slot, Trigger::DISABLED).unwrap();
    }
    let id = MemoryCgroup::open(&pod).unwrap().id();
    let victim = KernelVictim {
        cgroup_id: id,
        enough: 150 * MIB,
        most: 200 * MIB,
    };
    trigger.set_victims(0, &[victim]).unwrap();
    let mut arm = || {
        trigger.arm(hard, UP_TO_100_MIB).unwrap();
        let last = Trigger {
            limit: 200 * MIB,
            action: Action::Kill,
            ..UP_TO_100_MIB
        };
        trigger.arm(floor, last).unwrap();
    };

    arm();
    let files = tempfile::tempdir().unwrap();
    let dir = files.path().to_str().unwrap();
    let writes = [
        "--mib", "1024", "--way", "write", "--size", "230", "--rate", "400", "--dir", dir,
    ];
    let mut writer = Hog::start(&pod, &writes).unwrap();
    let is_full = || scope.usage().unwrap() >= 220 * MIB;
    assert!(wait_for(SOON, || is_full().then_some(())).is_some());
    assert!(writer.is_alive());
    drop((writer, files));

    arm();
    let mut hog = Hog::start(&pod, &["--mib", "1024", "--rate", "400"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert_eq!(scope.oom_kills().unwrap(), 0);
}

/// A charge outside the scope never trips its trigger.
#[test]
fn charges_elsewhere_do_not_trip() {
    skip_if!(no_bpf());
    let (watched, other) = (
        TestCgroup::new("watched", 256 * MIB).unwrap(),
        TestCgroup::new("other", 256 * MIB).unwrap(),
    );
    let scope = MemoryCgroup::open(watched.path()).unwrap();
    let mut object = BpfObject::load().unwrap();
    let mut built = build(&[&scope], Ok(&mut object), None).unwrap();
    built
        .trigger
        .arm(
            0,
            Trigger {
                limit: 32 * MIB,
                ..UP_TO_100_MIB
            },
        )
        .unwrap();
    let (inside, outside) = (watched.child("pod").unwrap(), other.child("pod").unwrap());
    let _other = Hog::start(&outside, &["--mib", "64"]).unwrap();
    assert!(wait_for_trip(&mut *built.trigger, Duration::from_millis(300)).is_none());
    let _hog = Hog::start(&inside, &["--mib", "64"]).unwrap();
    assert!(wait_for_trip(&mut *built.trigger, SOON).is_some());
}

/// The per-page hook comes and goes; while it is away nothing trips, and once it is back the next charge does.
#[test]
fn the_per_page_hook_is_switched() {
    skip_if!(no_bpf());
    let cgroup = TestCgroup::new("switch", 256 * MIB).unwrap();
    let scope = MemoryCgroup::open(cgroup.path()).unwrap();
    let mut object = BpfObject::load().unwrap();
    let built = build(&[&scope], Ok(&mut object), Some(MemoryHook::Tracepoint));
    let mut trigger = match built {
        Ok(built) => built.trigger,
        Err(refused) => return skip_if!(Some(refused)),
    };
    let mut took = Vec::new();
    for _ in 0..20 {
        for near in [false, true] {
            let start = Instant::now();
            assert!(trigger.set_near(near).unwrap());
            took.push((near, start.elapsed()));
        }
    }
    for near in [true, false] {
        let longest = took
            .iter()
            .filter(|(n, _)| *n == near)
            .map(|(_, t)| *t)
            .max();
        println!("near={near}: at most {longest:?}");
    }
    assert!(!trigger.set_near(true).unwrap(), "it is near already");

    trigger.set_near(false).unwrap();
    assert!(!trigger.is_attached());
    trigger.arm(0, UP_TO_100_MIB).unwrap();
    let pod = cgroup.child("pod").unwrap();
    let _hog = Hog::start(&pod, &["--mib", "120"]).unwrap();
    assert!(wait_for_trip(&mut *trigger, Duration::from_millis(300)).is_none());
    trigger.set_near(true).unwrap();
    assert!(trigger.is_attached());
    let _more = Hog::start(&pod, &["--mib", "1"]).unwrap();
    assert!(wait_for_trip(&mut *trigger, SOON).is_some());
}
