//! Scenes of disks, inodes and process ids, look by look.

mod choices;

use std::time::Duration;

use super::*;
use crate::{
    NodeBounds, PodUsage, ReclaimUnderWay, ThresholdValue, Usages,
    model::{
        quantity::Quantity,
        settings::{EvictionConfig, RankingStrategy},
    },
    node_reclaim::ReclaimBy,
    record::KillOutcome,
    units,
};

const MIB: u64 = 1 << 20;
const MS: i64 = units::MS.cast_signed();
const SECOND: i64 = units::SECOND.cast_signed();

/// A node of many pods, one resource of which is short.
struct Scene {
    planner: Planner,
    signal: Signal,
    capacity: i64,
    pods: Vec<Pod>,
    usages: Usages,
    bounds: NodeBounds,
    /// What comes back, and when.
    comes: Vec<(i64, i64)>,
    came: i64,
    /// When each pod went, its name, and whether that was urgent.
    gone: Vec<(i64, String, bool)>,
}

impl Scene {
    fn new(signal: Signal, threshold: u64, capacity: i64) -> Self {
        Self::with(signal, capacity, vec![hard(signal, threshold)], false)
    }

    fn with(signal: Signal, capacity: i64, thresholds: Vec<Threshold>, has_images: bool) -> Self {
        let settings = PlannerSettings {
            eviction: EvictionConfig {
                thresholds,
                max_pod_grace_period_seconds: 600,
                pressure_transition_period: Duration::from_secs(300),
                reserved_memory: 0,
                limits_local_storage: true,
            },
            // Where one filesystem is all, images are reclaimed for it.
            layout: Layout {
                dedicated_image_fs: !has_images,
                split_image_fs: false,
            },
            strategy: RankingStrategy::Kubelet,
            mode: Mode::Evictd,
            fastpath_signals: Vec::new(),
            kubelets_signals: Vec::new(),
            has_api_server: true,
        };
        Self {
            planner: Planner::new(settings),
            signal,
            capacity,
            pods: Vec::new(),
            usages: Usages::new(),
            bounds: NodeBounds::default(),
            comes: Vec::new(),
            came: 0,
            gone: Vec::new(),
        }
    }

    fn pod(&mut self, name: &str, tasks: u64) {
        self.pods.push(Pod {
            uid: name.into(),
            name: name.into(),
            namespace: "default".into(),
            ..Pod::default()
        });
        self.tasks(name, tasks);
    }

    /// A pod has so many tasks, and as many inodes.
    fn tasks(&mut self, name: &str, tasks: u64) {
        self.usages.insert(name.into(), usage(MIB, tasks, tasks));
    }

    /// A pod that has so many bytes of files, as a walk that began then has found.
    fn pod_of_files(&mut self, name: &str, bytes: u64, walk_began: i64) {
        self.pod(name, 0);
        self.walked(name, bytes, walk_began);
    }

    fn walked(&mut self, name: &str, bytes: u64, began: i64) {
        let usage = PodUsage {
            walk_began: Some(began.unsigned_abs()),
            ..usage(bytes, 0, 0)
        };
        self.usages.insert(name.into(), usage);
    }

    /// What has come back of victims by now.
    fn came(&mut self, now: i64) -> i64 {
        let (come, later) = self.comes.iter().partition(|(at, _)| *at <= now);
        self.comes = later;
        let come: Vec<(i64, i64)> = come;
        self.came += come.iter().map(|(_, amount)| amount).sum::<i64>();
        self.came
    }

    fn seen(&self, now: i64, available: i64) -> Observations {
        let mut observations = Observations::default();
        let seen = Observation {
            available,
            capacity: self.capacity,
            time: Some(now),
        };
        observations.set(self.signal, seen);
        observations
    }

    /// Looks every quarter of a second, by their number from when the threshold is `met`, until a pod goes: how many
    /// milliseconds after that, and its name. `free` tells what is available so many milliseconds after it.
    fn first_gone(
        &mut self,
        met: i64,
        quarters: std::ops::Range<i64>,
        mut free: impl FnMut(&mut Self, i64) -> i64,
    ) -> (i64, &str) {
        for ms in quarters.map(|quarter| quarter * 250) {
            let free = free(self, ms);
            self.look(met + ms * MS, free.max(0), 60 * SECOND);
            if !self.gone.is_empty() {
                break;
            }
        }
        let (at, name, _) = &self.gone[0];
        ((at - met) / MS, name)
    }

    /// A look that finds so much available; what is evicted comes back `after` that.
    fn look(&mut self, now: i64, available: i64, after: i64) -> Plan {
        let observations = self.seen(now, available);
        let node = snapshot(&observations, &self.pods, &self.usages, self.bounds);
        let plan = self.planner.plan(now, node);
        for eviction in plan.evictions.iter().filter(|e| !e.is_soft) {
            let pod = self.pods.iter().position(|pod| pod.uid == eviction.uid);
            let pod = self.pods.remove(pod.unwrap());
            let layout = self.planner.settings.layout;
            let used = layout.usage(self.signal, &pod, &self.usages[&pod.uid]);
            self.comes.push((now + after, i64::try_from(used).unwrap()));
            self.gone.push((now, pod.name, eviction.is_urgent()));
        }
        plan
    }

    /// The pods that go while the runtime removes what a plan has asked for.
    fn unhelped(
        &mut self,
        now: i64,
        available: i64,
        plan: &Plan,
        before: &Observations,
    ) -> Vec<EvictionDecision> {
        let observations = self.seen(now, available);
        let node = snapshot(&observations, &self.pods, &self.usages, self.bounds);
        let reclaim = ReclaimUnderWay {
            by: ReclaimBy::Runtime,
            what: &plan.node_reclaim,
            before,
        };
        self.planner.evict_without_reclaim(now, node, plan, reclaim)
    }

    fn urgent(&self) -> usize {
        self.gone.iter().filter(|(.., urgent)| *urgent).count()
    }
}

fn snapshot<'a>(
    observations: &'a Observations,
    pods: &'a [Pod],
    usages: &'a Usages,
    bounds: NodeBounds,
) -> Snapshot<'a> {
    Snapshot {
        observations,
        pods,
        usages,
        bounds,
    }
}

/// What a pod has: so many bytes and inodes of files, and so many tasks.
fn usage(bytes: u64, inodes: u64, tasks: u64) -> PodUsage {
    let mut container = crate::ContainerUsage::default();
    container.logs.bytes = Some(bytes);
    container.logs.inodes = Some(inodes);
    PodUsage {
        processes: Some(tasks),
        ephemeral_storage: Some(bytes),
        containers: vec![container],
        ..PodUsage::default()
    }
}

fn hard(signal: Signal, amount: u64) -> Threshold {
    Threshold {
        signal,
        value: ThresholdValue::Quantity(Quantity::bytes(amount)),
        grace_period: Duration::ZERO,
        min_reclaim: None,
    }
}

/// A hard threshold alone, and the same with a soft one above it, which is met for long before.
fn with_and_without_soft(hard: Threshold) -> [Vec<Threshold>; 2] {
    let ThresholdValue::Quantity(amount) = &hard.value else {
        panic!("{:?}", hard.value)
    };
    let soft = Threshold {
        value: ThresholdValue::Quantity(Quantity::bytes(2 * amount.value().unsigned_abs())),
        grace_period: Duration::from_secs(3600),
        ..hard.clone()
    };
    [vec![hard.clone()], vec![soft, hard]]
}

/// Process ids of forty pods, looked at as the manager does.
fn process_ids(threshold: u64) -> Scene {
    process_ids_under(vec![hard(Signal::PidAvailable, threshold)])
}

fn process_ids_under(thresholds: Vec<Threshold>) -> Scene {
    forty_pods(Signal::PidAvailable, thresholds)
}

fn forty_pods(signal: Signal, thresholds: Vec<Threshold>) -> Scene {
    let mut scene = Scene::with(signal, 55_601, thresholds, false);
    for number in 0..40 {
        scene.pod(&format!("x{number:02}"), 60);
    }
    scene
}

/// Process ids are short. A pod has gone at the kubelet's pace, and a daemon has taken what it gave; then a JVM starts
/// its threads.
// R43
#[test]
fn threads_that_start_together_take_no_pods_with_them() {
    for (threads, most) in [(100, 0), (300, 0), (400, 1), (1000, 1)] {
        let mut scene = process_ids(2000);
        scene.pod("jvm", 20);
        let begin = SECOND;
        let burst = begin + 13 * SECOND + 7 * MS;
        for ms in (0..18_000).step_by(20) {
            let now = begin + ms * MS;
            let started = ((now - burst) / MS * threads / 15).clamp(0, threads);
            scene.tasks("jvm", 20 + started.unsigned_abs());
            let taken = ((ms - 10_000) * 60 / 500).clamp(0, 60);
            let available = 1990 - taken - started + scene.came(now);
            scene.look(now, available, 50 * MS);
        }
        assert!(scene.urgent() <= most, "{threads}: {:?}", scene.gone);
    }
}

/// Tasks come and go, a hundred above the threshold on average.
// R43
#[test]
fn process_ids_that_come_and_go_take_no_pod_at_machine_speed() {
    let mut state = 7919_u64;
    // Between -1 and 1, 0 on average.
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    };
    let mut scene = process_ids(2000);
    let (mut noise, mut next, mut was_short) = (0.0_f64, 0, false);
    for ms in (0..60_000).step_by(5) {
        let now = SECOND + ms * MS;
        // It is about 100, and forgotten within 50 ms.
        noise += -noise / 10.0 + 76.0 * number();
        let taken = (ms / 50).min(scene.came(now));
        let available = 2100 + scene.came - taken - noise as i64;
        let is_short = available < 2000;
        if now >= next || is_short && !was_short {
            scene.look(now, available, 50 * MS);
            next = now + if is_short { 20 * MS } else { SECOND };
        }
        was_short = is_short;
    }
    assert_eq!(scene.urgent(), 0, "{:?}", scene.gone);
}

/// The hook wakes the manager at the crossing, which is over after 5 ms.
// R43
#[test]
fn a_dip_of_a_few_milliseconds_takes_no_pod() {
    for thresholds in with_and_without_soft(hard(Signal::PidAvailable, 2000)) {
        let mut scene = process_ids_under(thresholds);
        for dip in 0..100 {
            let now = (dip + 1) * SECOND;
            for (after, available) in [(0, 1995), (5 * MS, 2100), (SECOND / 2, 2100)] {
                scene.look(now + after, available, 50 * MS);
            }
        }
        assert!(scene.gone.is_empty(), "{:?}", scene.gone);
        // Every look for ten seconds finds it short, and so has the kubelet.
        for look in 0..=600 {
            scene.look(200 * SECOND + look * 20 * MS, 1995, 50 * MS);
        }
        let times: Vec<i64> = scene.gone.iter().map(|(time, ..)| *time).collect();
        assert_eq!(times, [210_060 * MS]);
    }
    // The minimum reclaim of a threshold that is no longer in force.
    let with_reclaim = |amount| Threshold {
        min_reclaim: Some(ThresholdValue::Quantity(Quantity::bytes(1000))),
        ..hard(Signal::PidAvailable, amount)
    };
    let mut scene = process_ids_under(vec![with_reclaim(2000)]);
    let mut settings = scene.planner.settings.clone();
    scene.pods.iter_mut().for_each(|pod| pod.is_denied = true);
    for (ms, available) in [(0, 2500), (20, 1995), (11_000, 2500)] {
        scene.look(SECOND + ms * MS, available, 50 * MS);
    }
    scene.pods.iter_mut().for_each(|pod| pod.is_denied = false);
    settings.eviction.thresholds = vec![with_reclaim(1800)];
    scene.planner.reconfigure(settings);
    for (second, available) in [(20, 2500), (30, 1795)] {
        scene.look(second * SECOND, available, 50 * MS);
    }
    assert!(scene.gone.is_empty(), "{:?}", scene.gone);
}

/// One pod ends the shortage; all others together cannot give the minimum reclaim.
// R11, R43
#[test]
fn a_minimum_reclaim_that_no_pods_can_give_takes_one() {
    for (pods, gone) in [(3, 1), (40, 6)] {
        let short = Threshold {
            min_reclaim: Some(ThresholdValue::Quantity(Quantity::bytes(300))),
            ..hard(Signal::PidAvailable, 2000)
        };
        let mut scene = Scene::with(Signal::PidAvailable, 55_601, vec![short], false);
        for number in 0..pods {
            scene.pod(&format!("x{number:02}"), 60);
        }
        for ms in (0..120_000).step_by(100) {
            let now = SECOND + ms * MS;
            let available = 1950 + scene.came(now);
            scene.look(now, available, 50 * MS);
        }
        assert_eq!(scene.gone.len(), gone, "{:?}", scene.gone);
        assert_eq!(scene.urgent(), 0);
    }
}

/// A fork bomb of a higher priority, or a pod that makes inodes: twenty thousand a second. It goes within three looks of the first
/// pod by the order; the others have not enough between them. It may have requested bytes: these are no inodes.
// R43
#[test]
fn a_fork_bomb_is_ended_at_machine_speed() {
    for signal in [Signal::PidAvailable, Signal::NodeFsInodesFree] {
        let mut scene = forty_pods(signal, vec![hard(signal, 3000)]);
        scene.pod("bomb", 10);
        let bomb = scene.pods.last_mut().unwrap();
        bomb.priority = 100;
        bomb.storage_request = 1 << 30;
        for ms in (0..1000).step_by(20) {
            let now = SECOND + ms * MS;
            scene.tasks("bomb", 10 + 20 * ms.unsigned_abs());
            let available = 10_000 - 20 * ms + scene.came(now);
            assert!(available > 0, "{:?}", scene.gone);
            scene.look(now, available, 50 * MS);
            if scene.gone.iter().any(|(_, name, _)| name == "bomb") {
                break;
            }
        }
        let names: Vec<&str> = scene.gone.iter().map(|(_, name, _)| &**name).collect();
        assert_eq!(names, ["x00", "bomb"], "{signal}");
        assert_eq!(scene.urgent(), 2, "{signal}");
    }
}

/// Of so many process ids that are free without it a pod of a high priority uses as many as `forked` says at each millisecond. A
/// soft threshold has been met for long. The two pods that go first.
fn first_beside_bomb(free: i64, length: i64, forked: impl Fn(i64) -> i64) -> Vec<String> {
    let [_, below_soft] = with_and_without_soft(hard(Signal::PidAvailable, 3000));
    let mut scene = process_ids_under(below_soft);
    scene.pod("bomb", 10);
    scene.pods.last_mut().unwrap().priority = 100;
    for ms in (0..length).step_by(20) {
        if scene.gone.len() < 2 {
            scene.tasks("bomb", 10 + forked(ms).unsigned_abs());
            scene.look(SECOND + ms * MS, free - forked(ms), SECOND);
        }
    }
    scene.gone.into_iter().map(|(_, name, _)| name).collect()
}

/// Growth was known for long before. After an eviction that of the node is seen anew: over less time than that of the bomb.
// R43
#[test]
fn a_fork_bomb_that_has_just_begun_goes_second() {
    let gone = first_beside_bomb(3100, 2150, |ms| 20 * (ms - 2000).max(0));
    assert_eq!(gone, ["x00", "bomb"]);
}

/// It comes in waves, and every other pod stands still.
// R43
#[test]
fn a_fork_bomb_that_comes_in_waves_goes_second() {
    let gone = first_beside_bomb(4100, 4000, |ms| {
        let wave = 20 * (ms % 500).min(100) * i64::from(ms % 500 < 200);
        // The fourth wave is higher, and meets the threshold.
        if ms < 1500 { wave / 2 } else { wave }
    });
    assert_eq!(gone, ["x00", "bomb"]);
}

/// A fork bomb of a higher priority makes 700 a second. Another pod starts forty threads meanwhile, and no more.
// R43
#[test]
fn a_pod_that_has_started_threads_does_not_go_for_a_fork_bomb() {
    for start in (1000..1960).step_by(20) {
        let mut scene = process_ids(1000);
        scene.pod("bomb", 10);
        scene.pods.last_mut().unwrap().priority = 100;
        scene.pod("jvm", 10);
        for ms in (0..2000).step_by(20) {
            let now = SECOND + ms * MS;
            let threads = if ms >= start { 40 } else { 0 };
            scene.tasks("jvm", 10 + threads);
            let forked = ms / 20 * 14;
            scene.tasks("bomb", 10 + forked.unsigned_abs());
            let available = 1700 - forked - threads.cast_signed() + scene.came(now);
            scene.look(now, available, 50 * MS);
            if scene.gone.len() == 2 {
                break;
            }
        }
        let names: Vec<&str> = scene.gone.iter().map(|(_, name, _)| &**name).collect();
        assert_eq!(names, ["x00", "bomb"], "{start}: {:?}", scene.gone);
    }
}

/// A daemon that may not go makes a thousand a second. A pod of a higher priority has started as many threads as it ever does.
// R43
#[test]
fn a_growth_that_has_ended_makes_no_pod_the_main_grower() {
    let [_, below_soft] = with_and_without_soft(hard(Signal::PidAvailable, 3000));
    let mut scene = process_ids_under(below_soft);
    scene.pod("jvm", 60);
    scene.pods.last_mut().unwrap().priority = 100;
    for ms in (0..3500).step_by(20) {
        let threads = if ms < 500 { 0 } else { 1900 };
        if scene.gone.len() < 2 {
            scene.tasks("jvm", 60 + threads);
            let now = SECOND + ms * MS;
            let available = 5700 - ms - threads.cast_signed() + scene.came(now);
            scene.look(now, available, 50 * MS);
        }
    }
    let names: Vec<&str> = scene.gone.iter().map(|(_, name, _)| &**name).collect();
    assert_eq!(names, ["x00", "x01"], "{:?}", scene.gone);
}

/// A fork bomb is killed for memory, or above a limit of its own. Its tasks are there still when process IDs are short as well.
// R43
#[test]
fn a_fork_bomb_that_was_killed_for_another_reason_takes_no_pod_with_it() {
    for by_fastpath in [false, true] {
        let mut scene = process_ids(3000);
        scene.pod("bomb", 10);
        for ms in (0..800_i64).step_by(20) {
            scene.tasks("bomb", 10 + 20 * ms.unsigned_abs());
            if ms == 780 && !by_fastpath {
                scene.pods.last_mut().unwrap().storage_limit = Some(Quantity::bytes(1));
            }
            scene.look(SECOND + ms * MS, 18_910 - 20 * ms, SECOND);
        }
        match by_fastpath {
            true => {
                let observations = scene.seen(1790 * MS, 3130);
                let node = snapshot(&observations, &scene.pods, &scene.usages, scene.bounds);
                scene.planner.note_fastpath_kill(1790 * MS, node, "bomb");
            }
            false => scene.planner.note_outcome("bomb", KillOutcome::Killed),
        }
        for ms in (800..2000).step_by(20) {
            let taken = if ms < 860 { 16_000 } else { 0 };
            scene.look(SECOND + ms * MS, 18_900 - taken, SECOND);
        }
        let own: &[&str] = if by_fastpath { &[] } else { &["bomb"] };
        let gone = scene.gone.iter().map(|(_, name, _)| &**name);
        assert_eq!(gone.collect::<Vec<_>>(), own);
    }
}

/// The node's rate is used up.
// R38, R43
#[test]
fn beyond_the_nodes_rate_the_fork_bomb_goes_and_no_other_pod() {
    for (is_exempt, gone) in [(false, None), (true, Some("bomb"))] {
        let mut scene = process_ids(3000);
        (scene.bounds.rate.left, scene.bounds.rate.exempts_growers) = (0, is_exempt);
        scene.pod("bomb", 10);
        scene.pods.last_mut().unwrap().priority = 100;
        for ms in (0..450).step_by(20) {
            let now = SECOND + ms * MS;
            if scene.gone.is_empty() {
                scene.tasks("bomb", 10 + 20 * ms.unsigned_abs());
            }
            let available = 10_000 - 20 * ms + scene.came(now);
            scene.look(now, available, 50 * MS);
        }
        let names = scene.gone.iter().map(|(_, name, _)| name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), Vec::from_iter(gone));
    }
    // What is not urgent waits.
    let mut scene = process_ids(3000);
    (scene.bounds.rate.left, scene.bounds.rate.exempts_growers) = (0, true);
    for look in 0..1200 {
        scene.look(SECOND + look * 20 * MS, 2900, 50 * MS);
    }
    assert!(scene.gone.is_empty());
}

/// A thousand a second: three seconds are left when the first pod goes, and its tasks would be enough. Growth is seen
/// anew then.
// R43
#[test]
fn a_pod_that_may_not_be_killed_is_not_waited_for() {
    for (is_refused, within) in [(false, 2000..3000), (true, 0..800)] {
        let mut scene = process_ids(3000);
        scene.pod("bomb", 10);
        for ms in (0..5900).step_by(20) {
            let now = SECOND + ms * MS;
            scene.tasks("bomb", 10 + ms.unsigned_abs());
            let bomb = scene.pods.last().filter(|pod| pod.name == "bomb").cloned();
            let gone = scene.gone.len();
            // It goes on either way.
            scene.look(now, 6000 - ms, 60 * SECOND);
            if scene.gone.len() > gone && scene.gone[gone].1 == "bomb" {
                scene.pods.extend(bomb);
                if is_refused {
                    scene.planner.note_outcome("bomb", KillOutcome::Refused(1));
                }
            }
            if scene.gone.len() == 2 {
                break;
            }
        }
        assert_eq!(scene.gone[0].1, "bomb");
        let waited = (scene.gone[1].0 - scene.gone[0].0) / MS;
        assert!(within.contains(&waited), "{is_refused}: {:?}", scene.gone);
    }
}

// R46
#[test]
fn both_steps_before_an_eviction_are_of_pods_that_may_go() {
    let signal = Signal::MemoryAvailable;
    let mut scene = Scene::new(signal, MIB, 100 << 20);
    for name in [
        "idle", "spared", "killed", "small", "large", "static", "deleting",
    ] {
        scene.pod(name, 0);
        let usage = scene.usages.get_mut(name).unwrap();
        let used = ["idle", "small", "large"].iter().position(|n| *n == name);
        usage.memory_working_set = Some(used.unwrap_or(5) as u64 * MIB);
    }
    scene.pods[1].is_denied = true;
    scene.pods[5].is_static = true;
    scene.pods[6].is_deleting = true;
    let observations = Observations::default();
    let mut bounds = NodeBounds::default();
    bounds.rate.left = 0;
    // No step evicts a pod.
    let node = snapshot(&observations, &scene.pods, &scene.usages, bounds);
    scene.planner.note_fastpath_kill(SECOND, node, "killed");
    let names = |pods: Vec<&Pod>| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let reclaimable = scene.planner.reclaimable(node).collect();
    assert_eq!(names(reclaimable), ["idle", "small", "large", "static"]);
    // A soft threshold asks the API server, which does not end a static pod.
    let throttled = scene.planner.candidates(node, signal);
    assert_eq!(names(throttled), ["large", "small"]);
}

/// containerd unpacks an image, or a pod fills a volume of the host: no pod that is known has it.
// R43
#[test]
fn files_that_no_pod_has_take_one_pod_in_ten_seconds() {
    // MiB in a second, and KiB of each pod: what a few small files give back comes later than the disk is full.
    for (rate, each, count) in [
        (200, 200 << 10, 40),
        (400, 400 << 10, 40),
        (150, 50 << 10, 8),
        (150, 50, 8),
    ] {
        let mut scene = Scene::new(Signal::NodeFsAvailable, 5 << 30, 50 << 30);
        for number in 0..count {
            scene.pod_of_files(&format!("x{number:02}"), each << 10, 0);
        }
        let (mut free, mut came) = (6_i64 << 30, 0);
        for quarter in 0..240 {
            let now = SECOND + quarter * SECOND / 4;
            free += scene.came(now) - came;
            came = scene.came;
            free = (free - rate * MIB as i64 / 4).max(0);
            // A walk each two seconds.
            for (name, usage) in &mut scene.usages {
                assert!(name.starts_with('x'));
                usage.walk_began = Some((now - now % (2 * SECOND)).unsigned_abs());
            }
            scene.look(now, free, 5 * SECOND);
        }
        let times = scene.gone.iter().map(|(time, ..)| *time);
        let times: Vec<i64> = times.collect();
        let apart = times
            .windows(2)
            .all(|pair| pair[1] - pair[0] >= 10 * SECOND);
        assert!(apart && (2..=6).contains(&times.len()), "{:?}", scene.gone);
    }
}

/// When the second of two pods goes for files, in seconds after the first, whose files stay. `each` is told the time of
/// each look in seconds, and says whether it is taken.
fn second_goes_after(each: impl Fn(&mut Scene, i64) -> bool) -> i64 {
    let mut scene = Scene::new(Signal::NodeFsAvailable, 5 << 30, 50 << 30);
    for name in ["first", "second"] {
        scene.pod_of_files(name, 2 << 30, SECOND);
    }
    let mut now = SECOND;
    while scene.gone.len() < 2 {
        if each(&mut scene, (now - SECOND) / SECOND) {
            let usages = scene.usages.values_mut();
            usages.for_each(|usage| usage.walk_began = Some(now.unsigned_abs()));
            scene.look(now, 4 << 30, 1000 * SECOND);
        }
        now += SECOND / 4;
    }
    let [(first, ..), (second, ..)] = scene.gone[..] else {
        panic!("{:?}", scene.gone);
    };
    (second - first) / SECOND
}

/// The kubelet removes the files of a pod that is deleted, and has its time for that from then on.
// R40, R43
#[test]
fn files_are_waited_for_from_when_their_pod_is_deleted() {
    assert_eq!(second_goes_after(|_, _| true), 30);
    let deleted_after = |seconds: i64| {
        second_goes_after(move |scene, now| {
            scene.bounds.awaits_removals = !scene.gone.is_empty() && now < seconds;
            true
        })
    };
    assert_eq!(deleted_after(10), 40 - 1);
    assert_eq!(deleted_after(45), 75 - 1);
    // Another pod's DELETE, when this one's was accepted long ago.
    let of_another = second_goes_after(|scene, now| {
        scene.bounds.awaits_removals = (20..25).contains(&now);
        true
    });
    assert_eq!(of_another, 30);
}

/// The machine stands still, and the kubelet with it: no look was taken in that time.
// R43
#[test]
fn a_time_without_looks_is_no_time_of_a_victim() {
    let stands_still = |is_noted: bool| {
        let stood = std::cell::Cell::new(false);
        second_goes_after(|scene, now| {
            if now == 40 && !stood.replace(true) && is_noted {
                scene.planner.exclude_gap(35 * units::SECOND, SECOND * 41);
            }
            !(5..40).contains(&now)
        })
    };
    assert_eq!(stands_still(false), 40);
    assert_eq!(stands_still(true), 65);
}

/// Something outside of pods makes inodes, while each pod makes a few. Only walks count these, and one lands now and then.
// R10, R43
#[test]
fn inodes_that_no_pod_makes_take_one_pod_in_ten_seconds() {
    for counts_inodes in [true, false] {
        let mut scene = Scene::new(Signal::NodeFsInodesFree, 160_000, 3_200_000);
        let names: Vec<_> = (0..10).map(|number| format!("x{number:02}")).collect();
        for name in &names {
            scene.pod(name, 20_000);
        }
        for quarter in 0..160 {
            let now = SECOND + quarter * SECOND / 4;
            for (name, place) in names.iter().zip(0..) {
                // A walk of each in ten seconds, one after the other.
                let walked = now - (now + place * SECOND) % (10 * SECOND);
                let made_at = if counts_inodes { now } else { walked };
                if scene.usages.contains_key(name) {
                    let made = 40 * made_at.max(0) / SECOND;
                    scene.tasks(name, 20_000 + made.unsigned_abs());
                    let usage = scene.usages.get_mut(name).unwrap();
                    usage.walk_began = Some(walked.max(1).unsigned_abs());
                    usage.counts_inodes = counts_inodes;
                }
            }
            scene.look(now, (30_000 - 400 * quarter).max(0), 30 * SECOND);
        }
        let times: Vec<_> = scene.gone.iter().map(|(time, ..)| *time).collect();
        let mut pairs = times.windows(2);
        let apart = pairs.all(|pair| pair[1] - pair[0] >= 10 * SECOND);
        assert!(
            apart && times.len() >= 2,
            "{counts_inodes} {:?}",
            scene.gone
        );
    }
}

/// A walk of the runtime's takes as long as inodes are left. How many of these a quarter of a second uses is known a look
/// after the threshold was met; and which pods use them, where a pod has gone before.
// R8, R43
#[test]
fn what_pods_use_up_in_a_moment_is_not_waited_for() {
    let signal = Signal::NodeFsInodesFree;
    for (per_quarter, was_evicted, writes, goes_at) in [
        (50_000, false, false, Some(250_000)),
        (30_000, false, false, None),
        (50_000, true, true, Some(250_000)),
        (50_000, true, false, None),
    ] {
        let thresholds = vec![hard(signal, 325_000)];
        let mut scene = Scene::with(signal, 6_500_000, thresholds, true);
        scene.pod("writer", 0);
        let mut before = None;
        let went_at = (0..).find_map(|quarter| {
            let (now, left) = (
                SECOND + quarter * SECOND / 4,
                600_000 - quarter * per_quarter,
            );
            if was_evicted && left == 400_000 {
                scene.planner.note_eviction_for(now, signal);
            }
            let inodes = if writes { 6_500_000 - left } else { 1000 };
            scene.tasks("writer", inodes.unsigned_abs());
            let plan = scene.look(now, left, 5 * SECOND);
            assert_eq!(plan.node_reclaim.is_empty(), left >= 325_000);
            let seen = scene.seen(now, left);
            let before = match left < 325_000 {
                true => *before.get_or_insert(seen),
                false => seen,
            };
            match scene.unhelped(now, left, &plan, &before)[..] {
                [] => (left < 250_000).then_some(None),
                _ => Some(Some(left)),
            }
        });
        let case = (per_quarter, was_evicted, writes);
        assert_eq!(went_at, Some(goes_at), "{case:?}");
    }
    // A burst that meets the threshold, and is over.
    let mut scene = Scene::with(signal, 6_500_000, vec![hard(signal, 325_000)], true);
    scene.pod("writer", 0);
    let before = scene.seen(SECOND + 270 * MS, 310_000);
    for (ms, left) in [(0, 600_000), (270, 310_000), (520, 309_000)] {
        let now = SECOND + ms * MS;
        let plan = scene.look(now, left, 5 * SECOND);
        assert_eq!(scene.unhelped(now, left, &plan, &before), []);
    }
}

/// A pod of a high priority writes 500 MiB a second: by its second walk it is known.
// R43
#[test]
fn a_writer_that_walks_have_found_goes_at_machine_speed() {
    let mut scene = Scene::new(Signal::NodeFsAvailable, 5 << 30, 50 << 30);
    for number in 0..40 {
        scene.pod_of_files(&format!("x{number:02}"), 20 * MIB, 0);
    }
    scene.pod_of_files("writer", 0, 0);
    scene.pods.last_mut().unwrap().priority = 100;
    let is_ended = |scene: &Scene| scene.gone.iter().any(|(_, name, _)| name == "writer");
    let mut quarters = 0..60;
    while let Some(quarter) = quarters.next()
        && !is_ended(&scene)
    {
        let now = SECOND + quarter * SECOND / 4;
        let written = quarter * 125 * MIB as i64;
        if quarter % 8 == 0 {
            scene.walked("writer", written.unsigned_abs(), now);
        }
        let free = (5_500 << 20) - written + scene.came(now);
        scene.look(now, free.max(0), 5 * SECOND);
    }
    assert!(is_ended(&scene), "{:?}", scene.gone);
    assert!(scene.gone.len() <= 3, "{:?}", scene.gone);
}

/// A pod of a high priority has written 850 MiB a second on average since its walk of a minute before. It has ended twenty
/// seconds ago, and one of a lower priority writes now; or it goes on. Its second walk tells, unless too little is left.
// R10, R43
#[test]
fn a_pod_that_has_written_does_not_go_for_one_that_writes() {
    for (has_ended, walks_every, goes, at) in [
        (true, 2000, "writer", 2500),
        (false, 2000, "large", 2500),
        (false, 60_000, "large", 6000),
    ] {
        let mut scene = Scene::new(Signal::NodeFsAvailable, 7 << 30, 500 << 30);
        let met = 100 * SECOND;
        let pods = [
            ("x0", -100),
            ("x1", -100),
            ("x2", -100),
            ("writer", 0),
            ("large", 100),
        ];
        for (name, priority) in pods {
            scene.pod(name, 0);
            scene.pods.last_mut().unwrap().priority = priority;
        }
        let written = |name: &str, ms: i64| {
            let (rate, from, to) = match (name, has_ended) {
                ("writer", true) => (800, -5000, i64::MAX),
                ("large", true) => (1275, -60_000, -20_000),
                ("large", false) => (800, -60_000, i64::MAX),
                _ => return 20 * MIB,
            };
            MIB + MIB * rate * (ms.min(to) - from).max(0).unsigned_abs() / 1000
        };
        for ms in (-2000..9000).step_by(250) {
            let walked = match ms {
                ..500 => -60_000,
                _ => ms - (ms - 500) % walks_every,
            };
            for (name, _) in pods {
                let began = met + walked * MS;
                scene.walked(name, written(name, walked), began);
            }
            let now = met + ms * MS;
            let free = (7 << 30) - 1 - ms * 800 * MIB.cast_signed() / 1000;
            let available = free + scene.came(now);
            scene.look(now, available, 250 * MS);
            if scene.gone.len() == 2 {
                break;
            }
        }
        let went = scene
            .gone
            .iter()
            .map(|(at, name, _)| (&**name, (at - met) / MS));
        assert_eq!(went.collect::<Vec<_>>(), [("x0", 500), (goes, at)]);
    }
}

/// Below the threshold for three seconds, then above it and below the minimum reclaim.
// R11
#[test]
fn a_short_dip_does_not_press_until_the_minimum_reclaim_is_there() {
    const GIB: i64 = 1 << 30;
    let signal = Signal::NodeFsAvailable;
    let threshold = Threshold {
        min_reclaim: Some(ThresholdValue::Quantity(Quantity::bytes(5 << 30))),
        ..hard(signal, 10 << 30)
    };
    let [alone, below_soft] = with_and_without_soft(threshold);
    for (dip, ends, thresholds) in [
        (3, true, &alone),
        (12, false, &alone),
        (3, true, &below_soft),
        (12, false, &below_soft),
    ] {
        let mut scene = Scene::with(signal, 100 * GIB, thresholds.clone(), true);
        let (mut reclaims, mut last) = (0, Plan::default());
        for quarter in -4 * 60..4 * 900 {
            let now = 61 * SECOND + quarter * SECOND / 4;
            let is_short = (0..4 * dip).contains(&quarter);
            let free = if is_short { 9 * GIB } else { 12 * GIB };
            last = scene.look(now, free, 5 * SECOND);
            if quarter >= 4 * dip && !last.node_reclaim.is_empty() {
                reclaims += 1;
            }
        }
        assert_eq!(reclaims == 0, ends);
        // The soft one is met all the time.
        let is_over = ends && thresholds.len() == 1;
        assert_eq!(last.conditions.is_empty(), is_over);
    }
}

/// A database has 4 GiB. A batch job was last walked nine seconds ago, and has written more since.
// R10, R40
#[test]
fn bytes_are_those_of_walks_that_began_when_the_disk_was_short() {
    let signal = Signal::NodeFsAvailable;
    for thresholds in with_and_without_soft(hard(signal, 10 << 30)) {
        for (rate, walked_after, expected) in [
            (150, Some(1000), (1000, "batch")),
            (1024, Some(1000), (1000, "batch")),
            // A walk that takes long is not waited for for ever, and not until nothing is left.
            (1024, None, (7000, "database")),
            (150, None, (30_000, "database")),
        ] {
            let mut scene = Scene::with(signal, 100 << 30, thresholds.clone(), false);
            let met = 51 * SECOND;
            for (name, mib) in [("batch", 200), ("database", 4096), ("web", 100)] {
                scene.pod_of_files(name, mib * MIB, met - 9 * SECOND);
            }
            let (after, name) = scene.first_gone(met, -36..160, |scene, ms| {
                if walked_after.is_some_and(|after| ms >= after) {
                    for (name, mib) in [("batch", 8000), ("database", 4096), ("web", 100)] {
                        scene.walked(name, mib * MIB, met + ms * MS);
                    }
                }
                (10 << 30) - 1 - rate * ms * MIB as i64 / 1000
            });
            assert_eq!(name, expected.1, "{rate} {after}");
            assert!((after - expected.0).abs() <= 250, "{rate} {after}");
        }
    }
}

/// A batch job fills the disk within two seconds. It was never walked, or long before.
// R10, R40
#[test]
fn walks_are_waited_for_however_little_is_left() {
    let signal = Signal::NodeFsAvailable;
    let met = 51 * SECOND;
    for thresholds in with_and_without_soft(hard(signal, 10 << 30)) {
        for walked_before in [None, Some(met - 9 * SECOND)] {
            for (walked_after, expected) in
                [(Some(1000), (1000, "batch")), (None, (3000, "database"))]
            {
                let mut scene = Scene::with(signal, 100 << 30, thresholds.clone(), false);
                scene.pod("batch", 0);
                scene.usages.insert("batch".into(), PodUsage::default());
                if let Some(began) = walked_before {
                    scene.walked("batch", MIB, began);
                }
                scene.pod_of_files("database", 100 * MIB, met - SECOND);
                let first = scene.first_gone(met, -8..20, |scene, ms| {
                    if walked_after.is_some_and(|after| ms >= after) {
                        scene.walked("batch", 80 << 30, met + ms * MS);
                    }
                    (10 << 30) - 1 - 5 * 1024 * ms * MIB as i64 / 1000
                });
                assert_eq!(first, expected);
            }
        }
    }
}

/// A hook counts the inodes that a job has made since its last walk, or none does.
// R8, R10
#[test]
fn inodes_that_no_hook_counts_are_those_of_recent_walks() {
    let signal = Signal::NodeFsInodesFree;
    let met = 51 * SECOND;
    for (counts_inodes, expected) in [(true, 0), (false, 1000)] {
        let mut scene = Scene::new(signal, 10_000, 100_000);
        for (name, inodes) in [("job", 10), ("web", 100)] {
            scene.pod(name, inodes);
            let usage = scene.usages.get_mut(name).unwrap();
            usage.walk_began = Some((met - 9 * SECOND).unsigned_abs());
            usage.counts_inodes = counts_inodes;
        }
        let first = scene.first_gone(met, -8..20, |scene, ms| {
            if ms >= 0 && counts_inodes || ms >= 1000 {
                scene.tasks("job", 80_000);
                scene.tasks("web", 100);
            }
            if ms < 0 { 12_000 } else { 9999 - ms }
        });
        assert_eq!(first, (expected, "job"));
    }
}

/// A job has filled the disk, and dies of that: it may be over, and may be started again.
// R10, R40
#[test]
fn a_pod_that_has_just_ended_is_waited_for_where_it_has_filled_the_disk() {
    let signal = Signal::NodeFsAvailable;
    let met = 51 * SECOND;
    // What another pod writes per second from then on, in MiB; what the job has, in MiB, and when a walk shows that.
    for (rate, used, shown, expected) in [
        (0, 8000, -8000, (10_000, "job")),
        (0, 8000, 1000, (10_000, "job")),
        (0, 50, -8000, (0, "web")),
        (2000, 8000, -8000, (250, "web")),
    ] {
        let mut scene = Scene::new(signal, 10 << 30, 100 << 30);
        for (name, mib) in [("job", 1), ("web", 100)] {
            scene.pod_of_files(name, mib * MIB, met - 9 * SECOND);
        }
        let first = scene.first_gone(met, -8..60, |scene, ms| {
            let now = met + ms * MS;
            let job = scene.pods.iter_mut().find(|pod| pod.uid == "job");
            if let Some(job) = job {
                job.may_be_over = (0..10_000).contains(&ms);
                if ms >= shown {
                    scene.walked("job", used * MIB, now);
                }
            }
            let written = rate * ms.max(0) * MIB as i64 / 1000;
            scene.walked("web", 100 * MIB + written.unsigned_abs(), now);
            let before = if ms < 0 { 2 << 30 } else { -1 };
            (10 << 30) + before - written
        });
        assert_eq!(first, expected, "{rate} {used} {shown}");
    }
}

/// The disk is short by turns: each of them waits for walks of its own.
// R10, R43
#[test]
fn a_disk_that_is_short_by_turns_is_judged_by_walks_of_now() {
    let signal = Signal::NodeFsAvailable;
    for thresholds in with_and_without_soft(hard(signal, 10 << 30)) {
        for is_walked in [true, false] {
            let mut scene = Scene::with(signal, 100 << 30, thresholds.clone(), false);
            scene.pod_of_files("batch", 4096 * MIB, SECOND);
            let (short, enough) = (9 << 30, 11 << 30);
            for (second, available) in [(40, enough), (50, short), (51, enough)] {
                scene.look(second * SECOND, available, 60 * SECOND);
            }
            assert!(scene.gone.is_empty(), "it is not walked yet");
            scene.walked("batch", 4096 * MIB, 52 * SECOND);
            for (second, available) in [(60, enough), (85, short), (86, enough), (90, short)] {
                scene.look(second * SECOND, available, 60 * SECOND);
            }
            assert!(scene.gone.is_empty(), "walked before this turn");
            if is_walked {
                scene.walked("batch", 4096 * MIB, 91 * SECOND);
            }
            scene.look(92 * SECOND, short, 60 * SECOND);
            assert_eq!(scene.gone.len(), usize::from(is_walked));
            scene.look(120 * SECOND, short, 60 * SECOND);
            assert_eq!(scene.gone.len(), 1);
        }
    }
}

/// One disk has been short for long when the other one becomes it.
// R10, R43
#[test]
fn walks_are_wanted_since_the_newest_shortage() {
    let signals = [Signal::ImageFsAvailable, Signal::NodeFsAvailable];
    let thresholds = signals.map(|signal| hard(signal, 1000));
    for mode in [Mode::Evictd, Mode::Kubelet] {
        let mut scene = Scene::with(signals[0], 10_000, thresholds.to_vec(), false);
        scene.planner.settings.mode = mode;
        for (second, available, since) in [
            (1, [2000, 2000], None),
            (2, [900, 2000], Some(2)),
            (50, [900, 2000], Some(2)),
            (100, [900, 900], Some(100)),
            (101, [900, 2000], Some(2)),
            (102, [900, 900], Some(102)),
            (103, [2000, 2000], None),
        ] {
            let mut seen = Observations::default();
            for (signal, available) in signals.into_iter().zip(available) {
                let observation = scene.seen(second * SECOND, available);
                seen.set(signal, observation.get(signals[0]).unwrap());
            }
            let node = snapshot(&seen, &[], &scene.usages, scene.bounds);
            scene.planner.plan(second * SECOND, node);
            let since = since.map(|since: u64| since * units::SECOND);
            assert_eq!(scene.planner.files_short_since(), since, "{second}");
        }
    }
}

/// It writes on through SIGTERM, and has ten minutes to end.
// R5, R43
#[test]
fn a_pod_that_was_only_asked_is_the_first_that_goes_at_the_hard_threshold() {
    const GIB: i64 = 1 << 30;
    let signal = Signal::NodeFsAvailable;
    let soft = Threshold {
        grace_period: Duration::from_secs(120),
        ..hard(signal, 30 << 30)
    };
    let thresholds = vec![hard(signal, 20 << 30), soft];
    let mut scene = Scene::with(signal, 200 * GIB, thresholds, false);
    scene.pod_of_files("writer", 0, 0);
    scene.pods[0].termination_grace_period_seconds = Some(600);
    for number in 0..10 {
        scene.pod_of_files(&format!("x{number}"), 400 * MIB, 0);
    }
    let mut asked = Vec::new();
    for quarter in 0..4 * 400 {
        let now = SECOND + quarter * SECOND / 4;
        let written = quarter * 50 * MIB as i64 / 4;
        if scene.gone.is_empty() {
            scene.walked("writer", (60 * GIB + written).unsigned_abs(), now);
        }
        for number in 0..10 {
            scene.walked(&format!("x{number}"), 400 * MIB, now);
        }
        let plan = scene.look(now, 30 * GIB - written, 60 * SECOND);
        for eviction in plan.evictions.into_iter().filter(|e| e.is_soft) {
            // SIGTERM was sent.
            scene.planner.set_soft_request_under_way(true);
            asked.push(eviction.name);
        }
        if !scene.gone.is_empty() {
            assert!((19 * GIB..20 * GIB).contains(&(30 * GIB - written)));
            break;
        }
    }
    assert_eq!(asked, ["writer"]);
    assert_eq!(scene.gone.len(), 1);
    assert_eq!(scene.gone[0].1, "writer");

    // The answer to the request comes late: nothing was deleted. It dies still.
    let writer = Pod {
        uid: "writer".into(),
        ..Pod::default()
    };
    scene.pods.push(writer);
    let unseen = Observations::default();
    let node = snapshot(&unseen, &scene.pods, &scene.usages, scene.bounds);
    let now = scene.gone[0].0 + SECOND / 4;
    scene
        .planner
        .soft_eviction_finished(now, node, "writer", None);
    assert!(scene.planner.pending.was_killed("writer"));
}

/// Another dataset of the pool is written to: what this one has available falls, and with it what it may hold in all.
// R43
#[test]
fn a_growth_in_another_dataset_of_zfs_is_seen() {
    let mut scene = Scene::new(Signal::NodeFsAvailable, 5 << 30, 50 << 30);
    scene.pod_of_files("a", 3000 * MIB, 0);
    for quarter in 0..4 * 12 {
        let now = SECOND + quarter * SECOND / 4;
        scene.walked("a", 3000 * MIB, now);
        let written = quarter * 125 * MIB as i64;
        scene.capacity = (50 << 30) - written;
        scene.look(now, (6 << 30) - written, 5 * SECOND);
    }
    assert_eq!(scene.urgent(), 1, "{:?}", scene.gone);
    // A disk that becomes larger has not grown in use.
    let mut scene = Scene::new(Signal::NodeFsAvailable, 5 << 30, 50 << 30);
    scene.pod_of_files("a", 3000 * MIB, 0);
    scene.look(SECOND, 49 << 30, 5 * SECOND);
    scene.capacity = 500 << 30;
    for quarter in 4..40 {
        scene.look(SECOND + quarter * SECOND / 4, 499 << 30, 5 * SECOND);
    }
    assert!(!scene.planner.paces.is_any_met(scene.signal));
    assert_eq!(
        scene.planner.capacities[scene.signal as usize],
        Some(500 << 30)
    );
}
