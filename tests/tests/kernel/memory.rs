//! The memory trigger against the files that show the same numbers, on every hook this kernel has.

use aya::util::KernelVersion;
use evictd_engine::accounting::KillLimits;
use evictd_node::{
    bpf::object::ObjectError,
    cgroup::memory::Version,
    trigger::{
        hook::HookUnavailable,
        memory::{
            ANY_SLOT, Action, Direction, KernelVictim, Trigger, TriggerEvent, TriggerSet, load,
            slot, slot_of,
        },
    },
};
use evictd_sys::page::page_size;
use evictd_tests::prelude::*;

/// A scope of 256 MiB with a pod, and a trigger on what the scope uses.
struct Watched {
    trigger: Box<dyn TriggerSet>,
    _object: Result<BpfObject, ObjectError>,
    scope: MemoryCgroup,
    pod: PathBuf,
    _cgroup: TestCgroup,
}

impl Watched {
    /// Fails where the kernel refuses the hook.
    fn new(name: &str, hook: Option<MemoryHook>) -> Result<Self, HookUnavailable> {
        let cgroup = TestCgroup::new(name, 256 * MIB).unwrap();
        let pod = cgroup.child("burstable/pod1").unwrap();
        let scope = MemoryCgroup::open(cgroup.path()).unwrap();
        let (object, built) = load(BpfObject::load(), &[&scope], hook);
        Ok(Self {
            trigger: built?.trigger,
            _object: object,
            scope,
            pod,
            _cgroup: cgroup,
        })
    }

    fn trips_within(&mut self, timeout: Duration) -> Option<TriggerEvent> {
        wait_for(timeout, || self.trigger.next_crossing())
    }

    fn is_silent(&mut self) -> bool {
        self.trigger.next_crossing().is_none()
    }

    fn arm(&mut self, slot: usize, trigger: Trigger) {
        self.trigger.arm(slot, trigger).unwrap();
    }

    fn hog(&self, arguments: &[&str]) -> Hog {
        Hog::start(&self.pod, arguments).unwrap()
    }

    fn usage(&self) -> u64 {
        self.scope.usage().unwrap()
    }
}

const UP_TO_100_MIB: Trigger = Trigger {
    limit: 100 * MIB,
    direction: Direction::Rising,
    action: Action::Wake,
    ..Trigger::DISABLED
};

/// `BPF_COMPLEXITY_LIMIT_INSNS` (include/linux/bpf.h).
const VERIFIED_AT_MOST: u64 = 1_000_000;

/// What the kernel says of the files that this process holds.
fn fdinfo() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    entries.filter_map(|entry| fs::read_to_string(entry.path()).ok())
}

/// What the kernel's verifier has looked at of each program that this process holds, before it let it in. It gives up
/// at a million instructions, and kernels differ in what they look at of the same program: one that is close to that
/// runs on one kernel only, and is slow to load on every one. Kernels before 5.16 do not tell (`bpf_prog_show_fdinfo`).
fn programs_are_far_from_the_limit(hook: MemoryHook) {
    let counts = fdinfo().filter_map(|info| {
        let mut lines = info.lines();
        let count = lines.find_map(|line| line.strip_prefix("verified_insns:"))?;
        Some(count.trim().parse::<u64>().unwrap())
    });
    let counts: Vec<u64> = counts.collect();
    let programs = fdinfo().filter(|info| info.contains("prog_tag:")).count();
    assert_eq!(programs > 0, hook.has_program(), "{hook}: {programs}");
    println!("{hook}: {counts:?} instructions verified");
    let most = counts.into_iter().max().unwrap_or(0);
    assert!(most < VERIFIED_AT_MOST / 10, "{hook}: {most}");
}

/// One trigger at 100 MiB, a hog of 160: what the record says must lie between what the file says before and after.
/// Then one for the way back, at 80 MiB.
fn crosses_on(hook: MemoryHook) {
    let mut watched = or_skip!(Watched::new("trigger", Some(hook)));
    programs_are_far_from_the_limit(hook);
    let (rising, falling) = (slot_of(0, slot::HARD), slot_of(0, slot::RECOVERY));
    for slot in 0..=falling {
        watched.arm(slot, Trigger::DISABLED);
    }
    watched.arm(rising, UP_TO_100_MIB);

    let other = TestCgroup::new("other", 256 * MIB).unwrap();
    let elsewhere = Hog::start(&other.child("pod").unwrap(), &["--mib", "120"]).unwrap();
    assert!(other.holds(120));
    let trip = watched.trips_within(Duration::from_millis(300));
    assert!(trip.is_none(), "a charge outside of the scope: {trip:?}");
    drop(elsewhere);

    let mut hog = watched.hog(&["--mib", "160", "--wait"]);
    assert!(watched.is_silent(), "far below the limit nothing trips");
    let (before, t0) = (watched.usage(), monotonic_ns());
    hog.go().unwrap();
    let trip = watched.trips_within(SOON).expect("the trigger trips");
    let (after, t1) = (watched.usage(), monotonic_ns());

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
            MemoryCgroup::open(&watched.pod).unwrap().id(),
            "charged to its pod"
        );
    }
    std::thread::sleep(Duration::from_millis(50));
    if hook != MemoryHook::Eventfd {
        assert!(watched.is_silent(), "a trigger trips once per arming");
    }

    let usage = if trip.slot == ANY_SLOT {
        after
    } else {
        trip.usage * page_size()
    };
    let past = usage.saturating_sub(UP_TO_100_MIB.limit) >> 10;
    let detail = format!("crossed, seen {past} KiB past the limit");

    // Armed anew above the present usage it stays silent, below it the next charge trips it.
    let up_to_240 = Trigger {
        limit: 240 * MIB,
        ..UP_TO_100_MIB
    };
    watched.arm(rising, up_to_240);
    let mut second = watched.hog(&["--mib", "10"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(second.is_alive());
    assert!(watched.is_silent(), "the old limit is forgotten");
    matrix("memory.available", &hook.to_string(), &detail);
    drop(second);

    let down_to_80 = Trigger {
        limit: 80 * MIB,
        direction: Direction::Falling,
        ..UP_TO_100_MIB
    };
    watched.arm(falling, down_to_80);
    let early = watched.trips_within(Duration::from_millis(50));
    if hook == MemoryHook::Eventfd {
        // A threshold that is past its limit rings when it has been registered.
        while !watched.is_silent() {}
    } else {
        assert!(early.is_none(), "it is still above: {early:?}");
    }
    drop(hog);
    // Hooks that see charges alone trip with the next one.
    let by_itself = watched.trips_within(Duration::from_secs(1));
    let seen_by = match by_itself {
        Some(_) => "what was given back",
        None => "the next charge",
    };
    let down = by_itself.or_else(|| {
        let _charge = watched.hog(&["--mib", "1"]);
        watched.trips_within(SOON)
    });
    let down = down.expect("the way back");
    if hook != MemoryHook::Eventfd {
        assert_eq!((trip.slot as usize, down.slot as usize), (rising, falling));
        assert!(down.usage * page_size() <= 80 * MIB);
    }
    let detail = format!("recovery seen by {seen_by}");
    matrix("memory.available", &hook.to_string(), &detail);
}

/// Links of tracing programs that this process holds.
fn tracing_links() -> usize {
    let links = fdinfo().filter(|info| info.contains("link_type:\ttracing"));
    links.count()
}

/// Before 5.13 a fexit program is attached only once, and to attach it has the kernel wait for every task of the
/// machine: what sees memory that is given back is attached at the start there, not while memory is short.
#[test]
fn nothing_is_attached_late_where_that_takes_long() {
    skip_if!(no_bpf());
    let is_new = KernelVersion::current().unwrap() >= KernelVersion::new(5, 13, 0);
    skip_if!(is_new.then_some("this kernel attaches programs at once"));
    let begun = Instant::now();
    let mut watched = or_skip!(Watched::new("late", Some(MemoryHook::Fexit)));
    println!("built in {:?}", begun.elapsed());
    let before = tracing_links();
    let falling = Trigger {
        direction: Direction::Falling,
        ..UP_TO_100_MIB
    };
    let begun = Instant::now();
    watched.arm(slot::RECOVERY as usize, falling);
    println!("armed in {:?}", begun.elapsed());
    assert_eq!(tracing_links(), before, "attached at the start");
}

scenes! {
    // R39, R40
    fn tracepoint_hook() unless no_bpf() => crosses_on(MemoryHook::Tracepoint);
    // R39, R40
    fn fexit_hook() unless no_bpf() => crosses_on(MemoryHook::Fexit);
    fn kprobe_hook() unless no_bpf() => crosses_on(MemoryHook::Kprobe);
}

#[test]
fn eventfd_hook() {
    let probe = as_root!(TestCgroup::new("version", 64 * MIB).unwrap());
    skip_if!((probe.version() == Version::V2).then_some("cgroup v2 has no usage notification"));
    crosses_on(MemoryHook::Eventfd);
}

/// The floor lies where the last look has left it, and page cache may pass it: it takes a task that holds memory, and
/// spares a writer of files.
#[test]
fn the_floor_spares_a_writer_of_files() {
    skip_if!(no_bpf());
    let mut watched = Watched::new("floor", None).unwrap();
    assert!(watched.trigger.has_program(), "this kernel takes none");
    let (hard, floor) = (slot_of(0, slot::HARD), slot_of(0, slot::FLOOR));
    for slot in 0..=floor {
        watched.arm(slot, Trigger::DISABLED);
    }
    let id = MemoryCgroup::open(&watched.pod).unwrap().id();
    let victim = KernelVictim {
        cgroup_id: id,
        limits: KillLimits {
            min_task_bytes: 150 * MIB,
            max_task_bytes: 200 * MIB,
            min_pod_bytes: 150 * MIB,
        },
    };
    watched.trigger.set_victims(0, &[victim]).unwrap();
    let arm = |watched: &mut Watched| {
        watched.arm(hard, UP_TO_100_MIB);
        let last = Trigger {
            limit: 200 * MIB,
            action: Action::Kill,
            ..UP_TO_100_MIB
        };
        watched.arm(floor, last);
    };

    arm(&mut watched);
    let files = tempfile::tempdir().unwrap();
    let dir = files.path().to_str().unwrap();
    let writes = [
        "--mib", "1024", "--way", "write", "--size", "230", "--rate", "400", "--dir", dir,
    ];
    let mut writer = watched.hog(&writes);
    assert!(until(SOON, || watched.usage() >= 220 * MIB));
    assert!(writer.is_alive());
    drop((writer, files));

    arm(&mut watched);
    watched.hog(&["--mib", "1024", "--rate", "400"]).killed();
    assert_eq!(watched.scope.oom_kills().unwrap(), 0);
}

/// The per-page hook comes and goes; while it is away nothing trips, and once it is back the next charge does.
#[test]
fn the_per_page_hook_is_switched() {
    skip_if!(no_bpf());
    let mut watched = or_skip!(Watched::new("switch", Some(MemoryHook::Tracepoint)));
    let mut took = Vec::new();
    for _ in 0..20 {
        for near in [false, true] {
            let start = Instant::now();
            assert!(watched.trigger.set_near(near).unwrap());
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
    assert!(
        !watched.trigger.set_near(true).unwrap(),
        "it is near already"
    );

    watched.trigger.set_near(false).unwrap();
    assert!(!watched.trigger.is_attached());
    watched.arm(0, UP_TO_100_MIB);
    let _hog = watched.hog(&["--mib", "120"]);
    assert!(watched.trips_within(Duration::from_millis(300)).is_none());
    watched.trigger.set_near(true).unwrap();
    assert!(watched.trigger.is_attached());
    let _more = watched.hog(&["--mib", "1"]);
    assert!(watched.trips_within(SOON).is_some());
}
