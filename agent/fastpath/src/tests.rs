//! The loop on a cgroup that is made of files.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
};

use evictd_engine::{
    Pod, SYSTEM_CRITICAL_PRIORITY, Signal,
    accounting::MemoryThresholds,
    model::settings::{MemoryHook, Mode, RankingStrategy},
    permit::{LastResort, Permission},
    round::MAX_IN_FLIGHT,
    shortage::Shortage,
    terminating::Terminating,
    units::{MS, SECOND},
};
use evictd_node::{
    cgroup::memory::MemoryCgroup,
    memory_scope::{Scope, ScopeKind},
    pods::table::{PodEntry, PodTable},
    trigger::memory::{self, KernelKill, KernelVictim, TriggerEvent, TriggerSet},
};
use evictd_sys::clock::monotonic_ns;

use super::{
    FastPathControl, FastPathEvent, FastPathEventQueue, FastPathSettings, FastPathSetup, KilledBy,
    OtherKill, RestoredVictim,
};
use crate::{
    control::KILLS,
    in_flight::{Eviction, KEPT_FOR_OWN, Victim},
    monitor::MemoryMonitor,
    scope::{DyingAround, SampleContext, ScopeTriggers},
    spin::Wait,
};

const MIB: u64 = 1 << 20;
const THRESHOLD: u64 = 100 * MIB;

/// A cgroup of 512 MiB, made of files.
struct Cgroup(tempfile::TempDir);

impl Cgroup {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn sets(&self, file: &str, bytes: u64) {
        fs::write(self.path().join(file), bytes.to_string()).unwrap();
    }

    /// So many bytes are left until the threshold is met.
    fn is_short_of_it_by(&self, bytes: u64) {
        self.uses(412 * MIB - bytes, 412 * MIB - bytes);
    }

    /// So many bytes are charged, and so many of them are in the statistics.
    fn uses(&self, usage: u64, listed: u64) {
        uses(self.path(), usage, listed, [0, 0]);
    }

    /// A cgroup in it, all of whose bytes are in the statistics.
    fn child_uses(&self, name: &str, bytes: u64) {
        uses(&self.path().join(name), bytes, bytes, [0, 0]);
    }

    fn watch(&self) -> MemoryMonitor {
        watch(self.setup())
    }

    fn setup(&self) -> FastPathSetup {
        self.sets("memory.max", 512 * MIB);
        self.is_short_of_it_by(200 * MIB);
        let cgroup = MemoryCgroup::open(self.path()).unwrap();
        let built = memory::build(&[&cgroup], Err("none"), Some(MemoryHook::Sampler));
        let thresholds = |_| MemoryThresholds {
            threshold: THRESHOLD,
            resolved: THRESHOLD,
            ..MemoryThresholds::default()
        };
        FastPathSetup {
            scopes: vec![Scope::open(cgroup, ScopeKind::Node, thresholds, false).unwrap()],
            trigger: built.unwrap().trigger,
            table: Box::default(),
            restored: Vec::new(),
            last_eviction: None,
            is_pinned: false,
            shadow: false,
            mode: Mode::Kubelet,
            strategy: RankingStrategy::Kubelet,
            limiter: Arc::default(),
            control: FastPathControl::new().unwrap(),
            events: FastPathEventQueue::new().unwrap(),
            status: Arc::default(),
        }
    }

    /// A pod that has processes, as its events tell, and none that a signal could reach.
    fn running_pod(&self, uid: &str) -> Arc<PodEntry> {
        let dir = self.path().join(uid);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("cgroup.events"), "populated 1\n").unwrap();
        self.pod(uid)
    }

    /// A pod without processes.
    fn pod(&self, uid: &str) -> Arc<PodEntry> {
        let dir = self.path().join(uid);
        fs::create_dir_all(&dir).unwrap();
        self.child_uses(uid, MIB);
        fs::write(dir.join("cgroup.procs"), "").unwrap();
        let pod = Pod {
            uid: uid.to_owned(),
            ..Pod::default()
        };
        Arc::new(PodEntry::open(pod, &dir, Mode::Evictd).unwrap())
    }
}

/// With bytes of page cache on the inactive and on the active list.
fn uses(cgroup: &Path, usage: u64, anon: u64, [inactive, active]: [u64; 2]) {
    let write = |name: &str, text: String| fs::write(cgroup.join(name), text).unwrap();
    write("memory.current", usage.to_string());
    let file = inactive + active;
    let lists = format!("inactive_file {inactive}\nactive_file {active}\n");
    write(
        "memory.stat",
        format!("anon {anon}\nfile {file}\nkernel 0\n{lists}"),
    );
}

fn watch(setup: FastPathSetup) -> MemoryMonitor {
    let mut watch = MemoryMonitor::new(setup);
    watch.arm_scopes().unwrap();
    watch
}

/// A loop without a trigger that tells of a crossing in the same moment is awake when it comes, and sees it.
#[test]
fn without_a_program_a_crossing_is_waited_for_awake() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    cgroup.is_short_of_it_by(3 * MIB / 2);
    assert!(matches!(watch.run_once(1000 * MS), Wait::Sleep(_)));
    // Half of the way in a millisecond.
    cgroup.is_short_of_it_by(3 * MIB / 4);
    let waiting = watch.run_once(1001 * MS);
    assert!(matches!(waiting, Wait::Spin(_)), "{waiting:?}");
    assert!(!watch.sees_a_crossing());
    cgroup.is_short_of_it_by(0);
    assert!(!watch.sees_a_crossing(), "exactly the threshold is left");
    cgroup.sets("memory.current", 412 * MIB + 4096);
    assert!(watch.sees_a_crossing());
    cgroup.is_short_of_it_by(0);
    cgroup.sets("memory.current", 413 * MIB);
    watch.run_once(1002 * MS);
    // It is known now, and no pod is there to go: nothing is to be looked for.
    assert!(!watch.sees_a_crossing());
}

#[test]
fn a_threshold_far_away_is_not_waited_for() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    for ms in 0..10 {
        cgroup.is_short_of_it_by((100 - ms) * MIB);
        let waiting = watch.run_once((1000 + ms) * MS);
        assert!(matches!(waiting, Wait::Sleep(_)), "{waiting:?}");
    }
}

/// Other memory takes the place of page cache, and usage stays at the capacity: no trigger lies below that.
#[test]
fn a_growth_behind_page_cache_is_looked_at_more_often() {
    let waits = |grown: u64| {
        let cgroup = Cgroup::new();
        let mut setup = cgroup.setup();
        setup.trigger = Box::<Program>::default();
        let mut watch = watch(setup);
        let mut look = |left: u64| {
            let cache = THRESHOLD + left;
            uses(cgroup.path(), 512 * MIB, 512 * MIB - cache, [cache, 0]);
            watch.run_once(monotonic_ns())
        };
        look(4 * MIB + grown);
        std::thread::sleep(std::time::Duration::from_millis(20));
        match look(4 * MIB) {
            Wait::Sleep(interval) => interval,
            spin => panic!("{spin:?}"),
        }
    };
    let unhurried = std::time::Duration::from_millis(10);
    assert_eq!(waits(0), unhurried);
    assert!(waits(60 * MIB) < unhurried);
}

/// A pod that is evicted minutes after the crossing is not due to it.
// R48
#[test]
fn a_crossing_is_that_of_the_decisions_right_after_it() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    let scope = &mut watch.scopes[0];
    cgroup.uses(413 * MIB, 413 * MIB);
    let trip = TriggerEvent {
        time_ns: 999 * MS,
        ..TriggerEvent::default()
    };
    let mut crossing = |woken: u64, trip| {
        let triggers = ScopeTriggers {
            trip,
            ..ScopeTriggers::default()
        };
        let cycle = SampleContext {
            woken,
            dying: 0,
            triggers: &triggers,
            hook: MemoryHook::Tracepoint,
            fastest_growth: 1 << 30,
        };
        scope.sample(&cycle, || {}).unwrap();
        (scope.crossing.crossed, scope.crossing.woken)
    };
    assert_eq!(crossing(1000 * MS, Some(trip)), (999 * MS, 1000 * MS));
    assert_eq!(crossing(1900 * MS, None), (999 * MS, 1000 * MS));
    assert_eq!(crossing(12_000 * MS, None), (0, 12_000 * MS));
    let again = TriggerEvent {
        time_ns: 12_500 * MS,
        ..trip
    };
    assert_eq!(
        crossing(12_501 * MS, Some(again)),
        (12_500 * MS, 12_501 * MS)
    );
}

/// Shortly before a threshold looks follow each other too closely to be kept all; the one that decides is.
#[test]
fn the_look_that_decides_is_recorded() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    cgroup.is_short_of_it_by(MIB);
    watch.run_once(monotonic_ns());
    cgroup.sets("memory.current", 413 * MIB);
    watch.run_once(monotonic_ns());
    // The newest may be half written, and is not handed out.
    std::thread::sleep(std::time::Duration::from_millis(2));
    watch.run_once(monotonic_ns());
    let seen = watch.status.recorder().since(0);
    let left: Vec<u64> = seen.iter().map(|sample| sample.available / MIB).collect();
    assert_eq!(left, [101, 99]);
}

/// A process that ends leaves the statistics before its pages are freed: a look between the two would take what a
/// victim still holds for page cache, and the next one would find that others have grown by as much.
// R42
#[test]
fn what_a_victim_still_holds_is_no_page_cache() {
    let cgroup = Cgroup::new();
    let used = |dying: u64| {
        let mut watch = cgroup.watch();
        let scope = &mut watch.scopes[0];
        let mut sample = |dying| {
            let cycle = SampleContext {
                woken: 1,
                dying,
                triggers: &ScopeTriggers::default(),
                hook: MemoryHook::Sampler,
                fastest_growth: 1 << 30,
            };
            scope.sample(&cycle, || {}).unwrap();
            let (before, after) = (dying, dying);
            let around = DyingAround { before, after };
            scope.shortage(0, dying, around).used / MIB
        };
        sample(0);
        cgroup.uses(480 * MIB, 480 * MIB);
        assert_eq!(sample(0), 480);
        cgroup.uses(480 * MIB, 420 * MIB);
        sample(dying)
    };
    assert_eq!(used(80 * MIB), 480, "the victim's");
    assert!((420..=440).contains(&used(0)), "page cache");
    assert!((440..=460).contains(&used(20 * MIB)), "some of each");
}

/// Memory comes and goes while the threshold is met (a balloon): the amounts follow, and the pod that is due need not
/// wait for the end of it.
#[test]
fn another_capacity_leaves_the_pace() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    cgroup.sets("memory.current", 450 * MIB);
    watch.run_once(1000 * MS);
    let pace = watch.scopes[0].pace;
    assert!(watch.scopes[0].under_pressure && pace.is_met());
    let met_in_force = |watch: &MemoryMonitor| {
        let events = std::iter::from_fn(|| watch.events.next());
        let met = |event: &FastPathEvent| matches!(event, FastPathEvent::MetInForce { .. });
        events.filter(met).count()
    };
    met_in_force(&watch);

    let thresholds = |capacity: u64| MemoryThresholds {
        threshold: capacity / 4,
        resolved: capacity / 4,
        ..MemoryThresholds::default()
    };
    cgroup.sets("memory.max", 480 * MIB);
    let open = || MemoryCgroup::open(cgroup.path()).unwrap();
    let scope = Scope::open(open(), ScopeKind::Node, thresholds, false).unwrap();
    watch.control.send_node_scope(Box::new(scope));
    watch.apply_updates();
    let watched = &watch.scopes[0];
    assert_eq!(
        (watched.scope.capacity(), watched.scope.thresholds()),
        (480 * MIB, thresholds(480 * MIB))
    );
    assert_eq!(
        (watched.pace, watched.sample.guarded_available),
        (pace, 30 * MIB)
    );
    assert_eq!(met_in_force(&watch), 0, "it was told");
    // Settings from before have amounts for another capacity.
    let settings = |capacity| FastPathSettings {
        thresholds: thresholds(capacity),
        capacity,
        shadow: false,
        strategy: RankingStrategy::Kubelet,
    };
    watch.control.send_settings(settings(512 * MIB));
    watch.apply_updates();
    assert_eq!(watch.scopes[0].scope.thresholds(), thresholds(480 * MIB));
    let lower = FastPathSettings {
        thresholds: thresholds(400 * MIB),
        ..settings(480 * MIB)
    };
    // Another minimum reclaim is no other threshold: what was seen of this one counts.
    let resolved = MemoryThresholds {
        resolved: 200 * MIB,
        ..thresholds(480 * MIB)
    };
    watch.control.send_settings(FastPathSettings {
        thresholds: resolved,
        ..settings(480 * MIB)
    });
    watch.apply_updates();
    assert_eq!(watch.scopes[0].scope.thresholds(), resolved);
    assert!(watch.scopes[0].pace == pace && !watch.scopes[0].comes_into_force);
    watch.control.send_settings(lower);
    watch.apply_updates();
    assert_eq!(watch.scopes[0].scope.thresholds(), thresholds(400 * MIB));
    assert!(!watch.scopes[0].pace.is_met() && watch.scopes[0].comes_into_force);

    // A limit has gone: what is used is measured in another way.
    let total = 470 * MIB;
    let machine = Scope::open(open(), ScopeKind::Machine { total }, thresholds, false).unwrap();
    watch.control.send_node_scope(Box::new(machine));
    watch.apply_updates();
    let watched = &watch.scopes[0];
    assert_eq!(watched.scope.capacity(), 470 * MIB);
    assert!(!watched.pace.is_met());
}

fn by_manager(pod: &Arc<PodEntry>, signalled: u64) -> OtherKill {
    OtherKill {
        pod: Arc::clone(pod),
        signalled,
        by: KilledBy::Manager,
        is_for_pressure: true,
    }
}

/// Each is followed, or another pod would be evicted for the memory that it is about to give back.
#[test]
fn kills_by_the_manager_wait_until_there_is_room() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    let pods: Vec<_> = (0..MAX_IN_FLIGHT + 6)
        .map(|n| cgroup.pod(&n.to_string()))
        .collect();
    let now = monotonic_ns();
    for pod in &pods {
        pod.eviction_state.begin_kill(now);
        watch.control.note_kill(by_manager(pod, now));
    }
    watch.apply_updates();
    let (followed, waiting) = pods.split_at(MAX_IN_FLIGHT - KEPT_FOR_OWN);
    assert!(followed.iter().all(|pod| watch.in_flight.contains(pod)));
    assert!(
        waiting
            .iter()
            .all(|pod| pod.eviction_state.is_being_killed(now))
    );
    // Those that are followed have ended.
    watch.run_once(now);
    assert!(waiting.iter().all(|pod| watch.in_flight.contains(pod)));
    assert_eq!(watch.in_flight.free_slots(), MAX_IN_FLIGHT - waiting.len());
}

/// The scope is read first, and its victims after it.
// R40
#[test]
fn what_victims_give_back_within_a_look_is_available() {
    let cgroup = Cgroup::new();
    let watch = cgroup.watch();
    // What they gave back before is in the sample.
    let around = DyingAround {
        before: 500 * MIB,
        after: 400 * MIB,
    };
    let at = |dying| watch.scopes[0].shortage(0, dying, around);
    let (all_held, given) = (at(400 * MIB), at(100 * MIB));
    assert_eq!(given.available - all_held.available, 300 * MIB);
    let immediate = |seen: &Shortage| seen.headroom.immediate;
    assert_eq!(immediate(&given) - immediate(&all_held), 300 * MIB);
}

/// A tenant may have any number of pods that exceed a limit of their own, one after the other.
// R43
#[test]
fn a_pod_above_its_own_limit_delays_no_eviction_for_memory() {
    for is_for_pressure in [true, false] {
        let cgroup = Cgroup::new();
        let mut watch = cgroup.watch();
        let pod = cgroup.pod("over");
        let now = monotonic_ns();
        watch.control.note_kill(OtherKill {
            is_for_pressure,
            ..by_manager(&pod, now)
        });
        watch.apply_updates();
        assert!(watch.in_flight.contains(&pod));
        let pace = watch.scopes[0].pace;
        assert_eq!(pace.has_evicted_lately(now), is_for_pressure);
    }
}

/// The newest kills matter most; that one is missing is counted.
#[test]
fn kills_that_find_no_place_are_counted() {
    let pod = Cgroup::new().pod("a");
    let control = FastPathControl::new().unwrap();
    for signalled in 0..KILLS as u64 + 2 {
        control.note_kill(by_manager(&pod, signalled));
    }
    assert_eq!(control.kills_dropped(), 2);
    let kept = std::iter::from_fn(|| control.take_kill());
    let kept: Vec<u64> = kept.map(|kill| kill.signalled).collect();
    assert_eq!(kept, (2..KILLS as u64 + 2).collect::<Vec<_>>());
}

/// Its page cache is headroom already, as that of any pod.
#[test]
fn a_chosen_pod_gives_back_what_is_no_page_cache() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    let (pod, at) = (cgroup.pod("chosen"), cgroup.path().join("chosen"));
    uses(&at, 300 * MIB, 50 * MIB, [250 * MIB, 0]);
    let now = monotonic_ns();
    let terminating = Terminating::new(now, 50 * MIB, 0);
    let eviction = Eviction {
        number: 1,
        scope: 0,
        shadow: true,
    };
    let chosen = Victim::new(pod, eviction, terminating, 0);
    watch.in_flight.push(chosen);
    let memory = watch.in_flight.memory(&watch.scopes[0].scope, now);
    assert_eq!((memory.shadow, memory.dying), (50 * MIB, 0));
    assert_eq!(memory.pending.amount, 50 * MIB);
}

/// Nothing is expected of a stuck victim, and nothing that comes to it may pass for memory on its way back.
// R43
#[test]
fn what_a_container_takes_beside_a_stuck_process_is_growth() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    let pod = cgroup.running_pod("again");
    let uses = |mib: u64| cgroup.child_uses("again", mib * MIB);
    uses(50);
    watch.in_flight.push(Victim::by_other(by_manager(&pod, 1)));
    let mut dying = |second: u64, mib| {
        uses(mib);
        let (now, at) = (second * SECOND, |_| Default::default());
        watch.in_flight.observe(now, false, at, |_| ());
        let memory = watch.in_flight.memory(&watch.scopes[0].scope, now);
        memory.dying / MIB
    };
    assert_eq!([dying(1, 50), dying(11, 60), dying(12, 90)], [50, 60, 60]);
    assert_eq!([dying(13, 20), dying(14, 70)], [20, 20]);
}

/// The record says what the decision counted on: page cache on the active list is in the working set, and comes anyway.
// R49
#[test]
fn what_is_expected_of_a_victim_is_in_its_report() {
    let cgroup = Cgroup::new();
    let pod = cgroup.running_pod("reader");
    let (at, anon) = (cgroup.path().join("reader"), 50 * MIB);
    uses(&at, 250 * MIB, anon, [0, 200 * MIB]);
    let mut setup = cgroup.setup();
    // It has more, and no process: no SIGKILL would bring that back, and live mode takes the next one as well.
    let between_runs = cgroup.pod("between-runs");
    cgroup.child_uses("between-runs", 300 * MIB);
    setup.table = Box::new(PodTable::new(vec![between_runs, pod]));
    (setup.shadow, setup.mode) = (true, Mode::Evictd);
    let mut watch = watch(setup);
    for used in [400, 415, 430, 445] {
        cgroup.uses(used * MIB, used * MIB);
        watch.run_once(monotonic_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut events = std::iter::from_fn(|| watch.events.next());
    let report = events.find_map(|event| match event {
        FastPathEvent::Evicted(report) => Some(report),
        _ => None,
    });
    let report = report.unwrap();
    assert_eq!((report.working_set, report.expected), (250 * MIB, anon));
    // No memory guard leaves less.
    assert!(report.available > 0);
    assert_eq!(report.kubelet_available, Some(report.available));
}

/// The pressure goes on, and one pod was told.
// R47
#[test]
fn other_settings_leave_what_shadow_mode_has_chosen() {
    let cgroup = Cgroup::new();
    let pods = ["a", "b"].map(|name| cgroup.running_pod(name));
    for pod in &pods {
        cgroup.child_uses(&pod.pod.uid, 100 * MIB);
    }
    let mut setup = cgroup.setup();
    setup.table = Box::new(PodTable::new(pods.to_vec()));
    (setup.shadow, setup.mode) = (true, Mode::Evictd);
    let mut watch = watch(setup);
    let mut used = 385;
    let mut told = |watch: &mut MemoryMonitor, grows: u64| {
        for _ in 0..4 {
            used += grows;
            cgroup.uses(used * MIB, used * MIB);
            watch.run_once(monotonic_ns());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let events = std::iter::from_fn(|| watch.events.next());
        let is_told = |event: &FastPathEvent| matches!(event, FastPathEvent::Evicted(_));
        events.filter(is_told).count()
    };
    assert_eq!(told(&mut watch, 15), 1);
    let settings = |shadow| FastPathSettings {
        thresholds: watch.scopes[0].scope.thresholds(),
        capacity: 512 * MIB,
        shadow,
        strategy: RankingStrategy::Kubelet,
    };
    let (same, live) = (settings(true), settings(false));
    watch.control.send_settings(same);
    assert_eq!(told(&mut watch, 0), 0);
    let is_chosen = |watch: &MemoryMonitor| pods.iter().any(|pod| watch.in_flight.contains(pod));
    assert!(is_chosen(&watch));
    watch.control.send_settings(live);
    watch.apply_updates();
    assert!(!is_chosen(&watch));
}

/// A program that kills from the pods which are published to it.
#[derive(Default)]
struct Program {
    killed: Option<KernelKill>,
    published: Arc<Mutex<Vec<u64>>>,
    crossing: Option<TriggerEvent>,
    leases: Arc<Mutex<Vec<u64>>>,
}

impl TriggerSet for Program {
    fn hook(&self) -> MemoryHook {
        MemoryHook::Fexit
    }

    fn next_crossing(&mut self) -> Option<TriggerEvent> {
        self.crossing.take()
    }

    fn renew_lease(&mut self, lease_ns: u64) {
        self.leases.lock().unwrap().push(lease_ns);
    }

    fn set_victims(&mut self, _: usize, victims: &[KernelVictim]) -> io::Result<()> {
        *self.published.lock().unwrap() = victims.iter().map(|victim| victim.cgroup_id).collect();
        Ok(())
    }

    fn next_kernel_kill(&mut self) -> Option<KernelKill> {
        self.killed.take()
    }
}

/// The agent before has written down that it evicted a pod, and its pinned guard has killed from the pod as well. At the first
/// look the pod is still a victim of the agent before, although its processes are gone.
#[test]
fn what_the_guard_has_killed_of_an_earlier_victim_is_no_other_eviction() {
    let evictions = |earlier_victim: Option<u64>, is_being_killed: bool| {
        let cgroup = Cgroup::new();
        let mut setup = cgroup.setup();
        let pod = cgroup.pod("a");
        if is_being_killed {
            pod.eviction_state.begin_kill(monotonic_ns());
        }
        setup.table = Box::new(PodTable::new(vec![Arc::clone(&pod)]));
        setup.trigger = Box::new(Program {
            killed: Some(KernelKill {
                cgroup_id: pod.memory.id(),
                scope: 0,
                time: monotonic_ns(),
                missing: MIB,
            }),
            ..Program::default()
        });
        if let Some(signalled) = earlier_victim {
            setup.restored.push(RestoredVictim {
                pod,
                signalled,
                signal: Some(Signal::MemoryAvailable),
                is_stuck: false,
            });
        }
        let mut watch = watch(setup);
        watch.run_once(monotonic_ns());
        let events: Vec<_> = std::iter::from_fn(|| watch.events.next()).collect();
        let is_eviction =
            |event: &&FastPathEvent| matches!(event, FastPathEvent::Evicted(e) if e.by_kernel);
        let is_told = |event: &&FastPathEvent| matches!(event, FastPathEvent::KernelKill(..));
        let count = |is: &dyn Fn(&&FastPathEvent) -> bool| events.iter().filter(is).count();
        (count(&is_eviction), count(&is_told))
    };
    assert_eq!(evictions(None, false), (1, 0));
    assert_eq!(evictions(Some(monotonic_ns()), false), (0, 0));
    // It has run again since, and that no eviction follows is told.
    assert_eq!(evictions(Some(1), false), (0, 1));
    // The manager reports it.
    assert_eq!(evictions(None, true), (0, 0));
}

/// A loop whose pinned guard has killed a process of its pod for this scope, so many nanoseconds before its first look, and when
/// that was. The pod is a victim.
fn after_kill_by_guard(cgroup: &Cgroup, scope: usize, ago: u64) -> (MemoryMonitor, u64) {
    let mut setup = cgroup.setup();
    let pod = cgroup.running_pod("a");
    setup.table = Box::new(PodTable::new(vec![Arc::clone(&pod)]));
    let now = monotonic_ns();
    setup.trigger = Box::new(Program {
        killed: Some(KernelKill {
            cgroup_id: pod.memory.id(),
            scope,
            time: now - ago,
            missing: MIB,
        }),
        ..Program::default()
    });
    let mut watch = watch(setup);
    watch.run_once(now);
    assert!(watch.in_flight.contains(&pod));
    (watch, now)
}

/// An earlier agent has watched the pods' cgroup too, which this one does not.
#[test]
fn what_the_guard_has_killed_for_a_scope_that_is_not_watched_is_an_eviction() {
    let cgroup = Cgroup::new();
    let (watch, _) = after_kill_by_guard(&cgroup, 1, 0);
    let mut events = std::iter::from_fn(|| watch.events.next());
    let told = events.find_map(|event| match event {
        FastPathEvent::Evicted(report) => Some((
            report.by_kernel,
            report.signal,
            report.available,
            report.kubelet_available,
        )),
        _ => None,
    });
    // What was left at the kill, and not at the look.
    let left = THRESHOLD - MIB;
    assert_eq!(told, Some((true, Signal::MemoryAvailable, left, None)));
}

/// The agent goes on three seconds after its pinned guard has killed a pod's largest process. What is left of the pod, its
/// sandbox at least, is signalled only then.
// R43
#[test]
fn what_the_guard_has_left_of_a_pod_is_not_overdue() {
    let cgroup = Cgroup::new();
    let (watch, now) = after_kill_by_guard(&cgroup, 0, 3000 * MS);
    let memory = watch.in_flight.memory(&watch.scopes[0].scope, now);
    assert_eq!(memory.pending.soon, MIB);
}

/// What it still holds is the others' from then on, which have not grown by that.
// R43
#[test]
fn the_end_of_a_victim_that_holds_nothing_leaves_growth_known() {
    let is_known = |held: u64| {
        let cgroup = Cgroup::new();
        let others = cgroup.path().join("others");
        let mut setup = cgroup.setup();
        fs::create_dir(&others).unwrap();
        cgroup.child_uses("others", MIB);
        let others = MemoryCgroup::open(&others).unwrap();
        let kind = ScopeKind::Pods { limit: 400 * MIB };
        let none = |_| MemoryThresholds::default();
        let scope = Scope::open(others, kind, none, false).unwrap();
        setup.scopes.push(scope);
        setup.trigger = Box::<Program>::default();
        let mut watch = watch(setup);
        let pod = cgroup.pod("victim");
        cgroup.child_uses("victim", held);
        let now = monotonic_ns();
        watch.control.note_kill(by_manager(&pod, now));
        watch.run_once(now);
        assert!(!watch.in_flight.contains(&pod));
        // To free it is main's.
        let pod = (Arc::downgrade(&pod), drop(pod)).0;
        assert!(pod.upgrade().is_some());
        watch.control.free_retired();
        assert!(pod.upgrade().is_none());
        [0, 1].map(|scope: usize| {
            let mut pace = watch.scopes[scope].pace;
            pace.forget_growth();
            pace != watch.scopes[scope].pace
        })
    };
    assert_eq!(is_known(50 * MIB), [false, true], "one scope counts it");
    assert_eq!(is_known(4096), [true, true]);
}

/// A victim takes seconds to die: which pods grow then is known all the same.
// R43
#[test]
fn pods_are_read_while_a_victim_ends() {
    let cgroup = Cgroup::new();
    let mut setup = cgroup.setup();
    let pods = ["victim", "b"].map(|name| cgroup.running_pod(name));
    setup.table = Box::new(PodTable::new(pods.to_vec()));
    setup.trigger = Box::<Program>::default();
    let mut watch = watch(setup);
    let now = monotonic_ns();
    watch.control.note_kill(by_manager(&pods[0], now));
    cgroup.uses(450 * MIB, 450 * MIB);
    watch.run_once(now);
    assert_eq!(watch.in_flight.terminating_count(), 1);
    assert!(!watch.pods.are_growers_old(now, 1));
}

/// It has to be killed before the fast path has heard of it: its threads are many. No other pod goes in its stead which
/// policies spare.
#[test]
fn while_the_manager_kills_a_pod_the_last_resort_takes_none() {
    let taken = |is_another_killed: bool| {
        let cgroup = Cgroup::new();
        let (spared, other) = (cgroup.running_pod("spared"), cgroup.running_pod("other"));
        for pod in [&spared, &other] {
            cgroup.child_uses(&pod.pod.uid, 100 * MIB);
            pod.permit.set(Permission::Denied, 0, &[]);
        }
        let mut setup = cgroup.setup();
        setup.table = Box::new(PodTable::new(vec![spared, Arc::clone(&other)]));
        (setup.shadow, setup.mode) = (true, Mode::Evictd);
        setup.limiter.set_last_resort(LastResort::Conditional);
        let mut watch = watch(setup);
        for used in [400, 415, 430, 445] {
            cgroup.uses(used * MIB, used * MIB);
            if is_another_killed {
                other.eviction_state.begin_kill(monotonic_ns());
            }
            watch.run_once(monotonic_ns());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let events = std::iter::from_fn(|| watch.events.next());
        let is_taken =
            |event: &FastPathEvent| matches!(event, FastPathEvent::Evicted(e) if e.last_resort);
        events.filter(is_taken).count()
    };
    assert_ne!(taken(false), 0);
    assert_eq!(taken(true), 0);
}

/// A loop that has published a pod to a pinned program, and the ids of the cgroups that are published.
fn publishing(cgroup: &Cgroup, pod: Arc<PodEntry>) -> (MemoryMonitor, Arc<Mutex<Vec<u64>>>) {
    let published = Arc::<Mutex<Vec<u64>>>::default();
    let mut setup = cgroup.setup();
    setup.table = Box::new(PodTable::new(vec![pod]));
    setup.trigger = Box::new(Program {
        published: Arc::clone(&published),
        ..Program::default()
    });
    setup.is_pinned = true;
    let mut watch = watch(setup);
    watch.run_once(monotonic_ns());
    (watch, published)
}

/// A pod was known by its cgroup alone, and another table says that it is critical. Nothing is published anew while a
/// victim is dying.
#[test]
fn a_kernel_victim_that_is_critical_by_now_is_revoked() {
    let cgroup = Cgroup::new();
    let pod = cgroup.pod("a");
    let (id, at) = (pod.memory.id(), cgroup.path().join("a"));
    let critical = Pod {
        uid: "a".to_owned(),
        priority: SYSTEM_CRITICAL_PRIORITY,
        ..Pod::default()
    };
    let critical = Arc::new(PodEntry::open(critical, &at, Mode::Evictd).unwrap());
    let (mut watch, published) = publishing(&cgroup, pod);
    assert_eq!(*published.lock().unwrap(), [id]);
    assert!(!watch.revoke_kernel_victims());
    *watch.pods.table = PodTable::new(vec![critical]);
    assert!(watch.revoke_kernel_victims());
    assert!(published.lock().unwrap().is_empty());
}

/// Shadow mode begins while a victim is dying: nothing is published anew then.
// R47
#[test]
fn in_shadow_mode_the_kernel_has_no_victims() {
    let cgroup = Cgroup::new();
    let (mut watch, published) = publishing(&cgroup, cgroup.pod("a"));
    assert_eq!(published.lock().unwrap().len(), 1);
    assert!(!watch.revoke_kernel_victims());
    watch.shadow = true;
    assert!(watch.revoke_kernel_victims());
    assert!(published.lock().unwrap().is_empty());
}

/// The fast path does not come, and the standby decides in its place: the pinned guard has no other rule beside it.
// R41
#[test]
fn a_standby_that_decides_renews_the_lease() {
    let cgroup = Cgroup::new();
    let leases = Arc::<Mutex<Vec<u64>>>::default();
    let mut setup = cgroup.setup();
    setup.trigger = Box::new(Program {
        crossing: Some(TriggerEvent {
            slot: memory::slot::HARD,
            ..TriggerEvent::default()
        }),
        leases: Arc::clone(&leases),
        ..Program::default()
    });
    let mut watch = watch(setup);
    cgroup.uses(415 * MIB, 415 * MIB);
    assert!(watch.take_over(monotonic_ns()));
    let renewed = leases.lock().unwrap().len();
    assert_eq!(renewed, 1);
    assert!(watch.take_over(monotonic_ns()));
    assert_eq!(leases.lock().unwrap().len(), 2);
    // No threshold is met any more: an agent that does not look leaves the pinned guard to act.
    cgroup.uses(100 * MIB, 100 * MIB);
    watch.take_over(monotonic_ns());
    assert_eq!(leases.lock().unwrap().len(), 2);
}

/// The minimum reclaim counts once the kubelet has seen the threshold met for certain, or a pod was evicted for it.
#[test]
fn a_dip_is_over_where_the_threshold_is() {
    let cgroup = Cgroup::new();
    let mut watch = cgroup.watch();
    watch.scopes[0].scope.set_thresholds(MemoryThresholds {
        threshold: THRESHOLD,
        resolved: THRESHOLD + 50 * MIB,
        ..MemoryThresholds::default()
    });
    let under_pressure = |watch: &mut MemoryMonitor, left: i64| {
        let used = (412 * MIB).saturating_add_signed(-left * MIB.cast_signed());
        cgroup.uses(used, used);
        watch.run_once(monotonic_ns());
        watch.scopes[0].under_pressure
    };
    assert!(under_pressure(&mut watch, -10));
    assert!(!under_pressure(&mut watch, 20));
    assert!(under_pressure(&mut watch, -10));
    watch.scopes[0].pace.note_own_eviction(true);
    assert!(under_pressure(&mut watch, 20), "a pod went for it");
    assert!(!under_pressure(&mut watch, 50));
}
