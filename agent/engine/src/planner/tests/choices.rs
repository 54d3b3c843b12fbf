//! What becomes of a choice: which others it excludes at the same look, and what is left of one that is cancelled.

use super::*;
use crate::{
    BlockedThreshold, NodeCondition, RaisedValue, RestoredPending,
    limiter::{EvictionKind, EvictionLimiter},
    model::managed::tests::BarePod,
    permit::{LastResort, Permission},
    record::Departure,
};

const DISK: Signal = Signal::NodeFsAvailable;
const INODES: Signal = Signal::NodeFsInodesFree;
const IMAGES: Signal = Signal::ImageFsAvailable;
const TASKS: Signal = Signal::PidAvailable;

/// A node of pods with both files and processes, of which several signals can be short at once.
struct Node {
    planner: Planner,
    pods: Vec<Pod>,
    usages: Usages,
    observations: Observations,
    bounds: NodeBounds,
}

impl Node {
    fn new(thresholds: Vec<Threshold>, has_images: bool) -> Self {
        // Of one signal alone it would be a scene.
        let scene = Scene::with(Signal::PidAvailable, 0, thresholds, has_images);
        Self {
            planner: scene.planner,
            pods: Vec::new(),
            usages: Usages::new(),
            observations: Observations::default(),
            bounds: NodeBounds::default(),
        }
    }

    /// It has so many bytes, inodes and tasks.
    fn pod(&mut self, name: &str, [bytes, inodes, tasks]: [u64; 3]) {
        self.usages.insert(name.into(), usage(bytes, inodes, tasks));
        self.pods.push(Pod {
            uid: name.into(),
            namespace: "default".into(),
            name: name.into(),
            termination_grace_period_seconds: Some(600),
            ..Pod::default()
        });
    }

    fn see(&mut self, signal: Signal, available: i64) {
        let seen = Observation {
            available,
            capacity: i64::MAX,
            time: None,
        };
        self.observations.set(signal, seen);
    }

    /// The planner, and what it sees of the node.
    fn parts(&mut self) -> (&mut Planner, Snapshot<'_>) {
        let node = snapshot(&self.observations, &self.pods, &self.usages, self.bounds);
        (&mut self.planner, node)
    }

    fn look(&mut self, now: i64) -> Plan {
        let (planner, node) = self.parts();
        planner.plan(now, node)
    }

    /// The first of these seconds at which pods go.
    fn first(&mut self, mut seconds: std::ops::Range<i64>) -> Option<i64> {
        seconds.find(|second| !self.goes(second * SECOND).is_empty())
    }

    /// The fast path has evicted a pod for memory, or tried to.
    fn fastpath(&mut self, at: i64, uid: &str, outcome: KillOutcome) {
        let (planner, dip) = self.parts();
        planner.note_fastpath_eviction(at, dip, uid, Signal::MemoryAvailable, outcome);
    }

    /// Goes on where an agent has ended that has chosen this pod at the moment of its last eviction.
    fn restore(&mut self, now: i64, victim: RestoredPending) {
        let restored = RestoredState {
            last: vec![(DISK, now.min(victim.at))],
            victims: vec![victim],
            ..RestoredState::default()
        };
        self.planner.restore(now, &restored);
    }

    /// The pods that go at a look, after a reclaim that brings nothing where one is asked for.
    fn goes(&mut self, now: i64) -> Vec<EvictionDecision> {
        let mut plan = self.look(now);
        let evictions = std::mem::take(&mut plan.evictions);
        let after = self.after_reclaim(now, &plan);
        evictions.into_iter().chain(after).collect()
    }

    fn after_reclaim(&mut self, now: i64, plan: &Plan) -> Vec<EvictionDecision> {
        let (planner, node) = self.parts();
        planner.after_reclaim(now, plan, node, node)
    }
}

fn soft(signal: Signal, amount: u64) -> Threshold {
    Threshold {
        grace_period: Duration::from_secs(1),
        ..hard(signal, amount)
    }
}

/// A pod that has 900 of the disk, and was chosen when as much was left.
fn restored(uid: &str) -> RestoredPending {
    RestoredPending {
        uid: uid.into(),
        at: 0,
        is_requested: false,
        is_dead: false,
        signal: Some(DISK),
        usage: 900,
        available: 900,
        other_signals: Vec::new(),
    }
}

/// The pod, and for which signal.
fn chosen(evictions: &[EvictionDecision]) -> Vec<(&str, Signal)> {
    let both = evictions.iter().map(|e| match e.cause {
        Cause::Pressure(signal) => (e.name.as_str(), signal),
        Cause::LocalStorage(limit) => panic!("{limit}"),
    });
    both.collect()
}

#[test]
fn of_two_soft_thresholds_that_are_due_at_once_one_has_a_pod_asked() {
    for has_images in [false, true] {
        let mut node = Node::new(vec![soft(DISK, 1000), soft(TASKS, 1000)], has_images);
        node.pod("files", [10, 1, 1]);
        node.pod("tasks", [1, 1, 10]);
        node.see(DISK, 900);
        node.see(TASKS, 900);
        let first = node.look(SECOND);
        assert!(first.evictions.is_empty(), "the grace period");
        let plan = node.look(3 * SECOND);
        let mut evictions = plan.evictions.clone();
        if has_images {
            assert_eq!(chosen(&evictions), [("tasks", TASKS)]);
            // It is under way when the reclaim has ended.
            node.planner.set_soft_request_under_way(true);
            evictions.extend(node.after_reclaim(3 * SECOND, &plan));
        }
        assert_eq!(evictions.len(), 1, "{has_images} {:?}", chosen(&evictions));
        assert!(evictions[0].is_soft);
        // The other one is next.
        node.planner.set_soft_request_under_way(false);
        let later = node.look(4 * SECOND);
        let mut next = later.evictions.clone();
        next.extend(node.after_reclaim(4 * SECOND, &later));
        assert_eq!(next.len(), 1, "{has_images} {:?}", chosen(&next));
        assert_ne!(next[0].cause, evictions[0].cause);
    }
}

/// Two pods of one owner are chosen at one look, and its limit has room for the first of them.
#[test]
fn a_choice_that_is_cancelled_counts_for_no_pace() {
    let reclaims = Threshold {
        min_reclaim: Some(ThresholdValue::Quantity(Quantity::bytes(5000))),
        ..hard(INODES, 1000)
    };
    for is_short_still in [true, false] {
        let mut node = Node::new(vec![hard(DISK, 1000), reclaims.clone()], false);
        node.pod("bytes", [500, 0, 1]);
        node.pod("inodes", [0, 400, 1]);
        node.pod("other", [0, 300, 1]);
        node.see(DISK, 900);
        node.see(INODES, 900);
        let plan = node.look(SECOND);
        assert_eq!(
            chosen(&plan.evictions),
            [("bytes", DISK), ("inodes", INODES)]
        );
        node.planner.cancel_eviction("inodes");
        node.pods.remove(0);
        node.pods[0].is_denied = true;
        node.see(DISK, 2000);
        node.see(INODES, if is_short_still { 900 } else { 2000 });
        let plan = node.look(SECOND + SECOND / 4);
        let next: &[(&str, Signal)] = match is_short_still {
            true => &[("other", INODES)],
            false => &[],
        };
        assert_eq!(chosen(&plan.evictions), next);
        assert_eq!(node.planner.is_under_pressure(&reclaims), is_short_still);
    }
}

/// Budgets protect it, and so nothing has come of the choice.
#[test]
fn a_request_that_is_refused_is_paced_and_no_eviction() {
    let mut node = Node::new(vec![soft(DISK, 1000)], false);
    node.pod("files", [500, 0, 1]);
    node.see(DISK, 900);
    node.look(SECOND);
    let at = 3 * SECOND;
    assert_eq!(chosen(&node.look(at).evictions), [("files", DISK)]);
    let (planner, snapshot) = node.parts();
    planner.soft_eviction_finished(at, snapshot, "files", None);
    let (paces, mode) = (&node.planner.paces, Mode::Evictd);
    assert!(!paces.resolves(&soft(DISK, 1000), mode, at));
    assert!(node.look(at + SECOND).evictions.is_empty());
    assert_eq!(node.look(at + 10 * SECOND).evictions.len(), 1);
}

/// To ask for it took half a minute, in which a budget of another pod was asked for too.
#[test]
fn the_time_of_a_pod_that_is_asked_begins_with_the_answer() {
    let mut node = Node::new(vec![soft(DISK, 1000)], false);
    node.pod("files", [500, 0, 1]);
    node.pods[0].termination_grace_period_seconds = Some(5);
    node.pod("other", [400, 0, 1]);
    node.see(DISK, 900);
    node.look(SECOND);
    let plan = node.look(3 * SECOND);
    assert_eq!(chosen(&plan.evictions), [("files", DISK)]);
    node.planner.set_soft_request_under_way(true);
    for second in 4..33 {
        let plan = node.look(second * SECOND);
        assert!(plan.stuck.is_empty() && plan.evictions.is_empty());
    }
    let (planner, snapshot) = node.parts();
    let gone = (&plan.evictions[0], Departure::Requested);
    planner.soft_eviction_finished(33 * SECOND, snapshot, "files", Some(gone));
    let grace = plan.evictions[0].grace_to_ask(&node.pods[0]);
    assert_eq!(grace, 5);
    let stuck_at = 33 + grace + 10;
    for second in 34..stuck_at {
        let plan = node.look(second * SECOND);
        assert!(plan.stuck.is_empty() && plan.evictions.is_empty());
    }
    assert_eq!(node.look(stuck_at * SECOND).stuck, ["files"]);
}

/// The fast path has killed a pod at a dip that no look has seen: the minimum reclaim counts, unless the kubelet's count was
/// above the threshold.
// R11
#[test]
fn a_dip_between_two_looks_brings_the_minimum_reclaim_into_force() {
    let memory = Signal::MemoryAvailable;
    for (lowest, counts) in [(900, true), (1100, false)] {
        let reclaims = Threshold {
            min_reclaim: Some(ThresholdValue::Quantity(Quantity::bytes(500))),
            ..hard(memory, 1000)
        };
        let mut node = Node::new(vec![reclaims.clone()], false);
        node.pod("hog", [0, 0, 1]);
        node.see(memory, 5000);
        node.look(SECOND);
        node.see(memory, lowest);
        node.fastpath(2 * SECOND, "hog", KillOutcome::Killed);
        node.see(memory, 1200);
        node.look(3 * SECOND);
        assert_eq!(node.planner.is_under_pressure(&reclaims), counts);
    }
}

/// The fast path has killed it while it was asked for, and it has ended: the answer changes nothing. One that has ended by
/// itself has no time beyond that.
#[test]
fn an_answer_about_a_pod_that_has_ended_changes_nothing() {
    for is_killed in [true, false] {
        let mut node = Node::new(vec![soft(DISK, 1000)], false);
        node.pod("files", [500, 0, 1]);
        node.see(DISK, 900);
        node.look(SECOND);
        let plan = node.look(3 * SECOND);
        assert_eq!(chosen(&plan.evictions), [("files", DISK)]);
        node.planner.set_soft_request_under_way(true);
        if is_killed {
            node.fastpath(4 * SECOND, "files", KillOutcome::Killed);
        }
        node.pods.clear();
        node.look(5 * SECOND);
        let gone = plan.evictions.first().filter(|_| !is_killed);
        let gone = gone.map(|gone| (gone, Departure::GoneBefore));
        let (planner, seen) = node.parts();
        planner.soft_eviction_finished(9 * SECOND, seen, "files", gone);
        let pending = &node.planner.pending;
        assert_eq!(pending.is_of_kill("files"), is_killed);
        let awaited = |second: i64| pending.awaits_cleanup(second * SECOND, true);
        assert!(awaited(20) && !awaited(60), "{is_killed}");
    }
}

/// A budget protects the pod that was chosen, and what goes instead brings less than is missing: the next one waits for ten
/// seconds from the answer on.
#[test]
fn the_pace_begins_with_the_answer_for_another_pod_too() {
    let mut node = Node::new(vec![soft(DISK, 1000)], false);
    for name in ["chosen", "other", "third"] {
        node.pod(name, [300, 0, 1]);
    }
    node.see(DISK, 100);
    node.look(SECOND);
    let plan = node.look(3 * SECOND);
    assert_eq!(chosen(&plan.evictions), [("chosen", DISK)]);
    node.planner.set_soft_request_under_way(true);
    for second in 4..33 {
        node.look(second * SECOND);
    }
    let (planner, snapshot) = node.parts();
    let other = EvictionDecision {
        uid: "other".into(),
        name: "other".into(),
        ..plan.evictions[0].clone()
    };
    let gone = Some((&other, Departure::Requested));
    planner.soft_eviction_finished(33 * SECOND, snapshot, "chosen", gone);
    let next = node.first(34..60);
    assert_eq!(next, Some(43));
}

/// It is an attempt and no eviction, and the pod is not called stuck.
#[test]
fn a_pod_for_which_sigkill_is_refused_is_chosen_again_after_a_minute() {
    let refused = KillOutcome::Refused(1);
    for mode in [Mode::Evictd, Mode::Kubelet] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.planner.settings.mode = mode;
        node.pod("files", [500, 0, 1]);
        node.see(DISK, 900);
        let mut asked = Vec::new();
        for second in 1..=130 {
            let plan = node.look(second * SECOND);
            assert!(plan.stuck.is_empty());
            for _ in &plan.evictions {
                asked.push(second);
                node.planner.note_outcome("files", refused);
            }
        }
        // A minute, and the second of a hard eviction.
        assert_eq!(asked, [1, 62, 123], "{mode:?}");
    }
    // The fast path has asked: the pod may go for nothing else.
    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    node.pod("files", [500, 0, 1]);
    node.see(DISK, 900);
    node.fastpath(SECOND, "files", refused);
    assert!(
        node.planner
            .paces
            .of_resource(Resource::Memory)
            .all(|p| p.last_eviction().is_some() && !p.is_resolving(unsigned_ns(SECOND)))
    );
    assert!(node.look(2 * SECOND).evictions.is_empty());
    assert_eq!(node.look(61 * SECOND).evictions.len(), 1);
}

/// A pod that was asked is chosen at a hard threshold and may not be killed after all: it is still asked.
#[test]
fn a_hard_choice_that_is_cancelled_leaves_a_pod_asked() {
    for has_api_server in [true, false] {
        let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
        node.planner.settings.has_api_server = has_api_server;
        node.pod("asked", [900, 0, 1]);
        node.pod("innocent", [500, 0, 1]);
        node.see(DISK, 1900);
        node.look(SECOND);
        assert_eq!(chosen(&node.look(3 * SECOND).evictions), [("asked", DISK)]);
        node.see(DISK, 900);
        assert_eq!(chosen(&node.look(15 * SECOND).evictions), [("asked", DISK)]);
        node.planner.cancel_eviction("asked");
        node.bounds.rate.left = 0;
        // The rate does not count it before the API server has agreed, or before its end.
        assert_eq!(chosen(&node.look(30 * SECOND).evictions), []);
        node.planner.pending.note_answer("asked");
        let goes: &[_] = if has_api_server {
            &[("asked", DISK)]
        } else {
            &[]
        };
        assert_eq!(chosen(&node.look(31 * SECOND).evictions), goes);
    }
}

/// The kernel has refused to kill a pod that was being asked to end, and the API server agreed meanwhile: it has its grace period,
/// and is stuck after that.
#[test]
fn a_pod_that_was_asked_and_cannot_be_killed_has_its_time() {
    let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
    node.pod("asked", [900, 0, 1]);
    node.see(DISK, 1900);
    node.look(SECOND);
    let asked = node.look(3 * SECOND).evictions;
    assert_eq!(chosen(&asked), [("asked", DISK)]);
    node.planner.set_soft_request_under_way(true);
    node.see(DISK, 900);
    assert_eq!(chosen(&node.look(15 * SECOND).evictions), [("asked", DISK)]);
    node.planner.note_outcome("asked", KillOutcome::Refused(1));
    let (planner, snapshot) = node.parts();
    let gone = (&asked[0], Departure::Requested);
    planner.soft_eviction_finished(16 * SECOND, snapshot, "asked", Some(gone));
    node.see(DISK, 5000);
    let grace = asked[0].grace_to_ask(&node.pods[0]);
    let is_stuck = |second: &i64| !node.look(second * SECOND).stuck.is_empty();
    assert_eq!((17..1000).find(is_stuck), Some(16 + grace + 10));
}

/// A soft threshold and a hard one choose the same pod at one look, and the hard choice comes to nothing: it was never asked.
#[test]
fn a_request_that_was_never_sent_is_none() {
    let mut node = Node::new(vec![soft(DISK, 2000), hard(INODES, 1000)], false);
    node.pod("both", [900, 500, 1]);
    node.see(DISK, 1900);
    node.see(INODES, 5000);
    node.look(SECOND);
    node.see(INODES, 900);
    let plan = node.look(3 * SECOND);
    assert_eq!(chosen(&plan.evictions), [("both", INODES)]);
    assert!(!node.planner.pending.is_requested("both"));
    node.planner.cancel_eviction("both");
    assert!(!node.planner.pending.is_requested("both"));
}

/// What was asked has used up the limits, and goes nevertheless; after a restart as well.
#[test]
fn limits_that_a_request_has_used_up_spare_no_pod_that_was_asked() {
    for is_restored in [false, true] {
        let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
        node.pod("asked", [900, 0, 1]);
        node.pod("innocent", [500, 0, 1]);
        let limiter = EvictionLimiter::default();
        limiter.set_quota(1, Some(1), 1000 * units::SECOND, None);
        let permitted: [BarePod; 2] = Default::default();
        permitted
            .iter()
            .for_each(|pod| pod.permit.set(Permission::Always, 0, &[1]));
        node.see(DISK, 1900);
        node.look(SECOND);
        let asked_at = 3 * SECOND;
        if is_restored {
            node.restore(
                asked_at,
                RestoredPending {
                    at: asked_at + 600 * SECOND,
                    is_requested: true,
                    ..restored("asked")
                },
            );
        } else {
            assert_eq!(chosen(&node.look(asked_at).evictions), [("asked", DISK)]);
            node.planner.pending.note_answer("asked");
        }
        limiter.set_node_quota(1);
        limiter.charge_request(&permitted[0], asked_at.unsigned_abs());
        let now = asked_at + 20 * SECOND;
        for (pod, permitted) in node.pods.iter_mut().zip(&permitted) {
            let at = now.unsigned_abs();
            pod.is_denied =
                !limiter.allows(permitted, at, EvictionKind::AnyCause, LastResort::None);
        }
        node.bounds = limiter.node_bounds(Mode::Evictd, now.unsigned_abs());
        assert_eq!(node.bounds.rate.left, 0);
        node.see(DISK, 900);
        let plan = node.look(now);
        let hard: Vec<_> = plan.evictions.iter().filter(|e| !e.is_soft).collect();
        assert_eq!(hard.len(), 1, "{:?}", chosen(&plan.evictions));
        assert_eq!(hard[0].name, "asked");
    }
}

/// Only the files of one that has died are still removed.
// R43
#[test]
fn the_files_of_a_stuck_victim_do_not_block_the_next() {
    for (dies, goes) in [
        (60, [12, 23, 34]),
        (1, [32, 43, 54]),
        // It is waited for from its end on, whenever that is.
        (9, [39, 50, 61]),
        (25, [12, 23, 55]),
        (30, [12, 23, 60]),
    ] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.pod("victim", [900, 0, 1]);
        for name in ["next", "third", "last"] {
            node.pod(name, [100, 0, 1]);
        }
        node.see(DISK, 900);
        assert_eq!(chosen(&node.look(SECOND).evictions), [("victim", DISK)]);
        let mut gone = Vec::new();
        for second in 2..64 {
            if second > dies {
                node.pods.retain(|pod| pod.uid != "victim");
            }
            let evictions = node.look(second * SECOND).evictions;
            gone.extend(evictions.iter().map(|_| second));
        }
        assert_eq!(gone, goes, "{dies}");
    }
}

/// A limit of a pod's own waits for policies, and hides no pod from a shortage of the node meanwhile.
// R43
#[test]
fn while_policies_are_awaited_a_pod_above_its_own_limit_goes_for_the_node() {
    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    for (name, bytes) in [("above", 900), ("other", 500)] {
        node.pod(name, [bytes, 0, 1]);
    }
    node.pods[0].storage_limit = Some(Quantity::bytes(100));
    node.bounds.allows_own_limits = false;
    node.see(DISK, 1100);
    assert!(node.look(SECOND).evictions.is_empty());
    node.see(DISK, 900);
    assert_eq!(chosen(&node.look(2 * SECOND).evictions), [("above", DISK)]);
}

/// The kubelet looks once in ten seconds, and waits up to thirty for the end of its victim and for its files.
// R43
#[test]
fn the_kubelets_mode_waits_for_its_victim() {
    let never = i64::MAX;
    for (signal, ends, removed, next_at) in [
        (DISK, 1, 2, 11 * SECOND),
        (DISK, 1, 20, 20 * SECOND),
        (DISK, 1, never, 31 * SECOND + SECOND / 4),
        // Its grace period is a second.
        (DISK, never, never, 32 * SECOND),
        (TASKS, 1, never, 11 * SECOND),
        (TASKS, never, never, 32 * SECOND),
    ] {
        let mut node = Node::new(vec![hard(signal, 3000)], true);
        node.planner.settings.mode = Mode::Kubelet;
        let used = if signal == DISK {
            [900, 0, 1]
        } else {
            [0, 0, 9]
        };
        node.pod("victim", used);
        node.pod("next", [500, 0, 1]);
        let went: Vec<i64> = (4..=4 * 32)
            .filter(|quarter| {
                let now = quarter * SECOND / 4;
                node.pods
                    .retain(|pod| pod.name != "victim" || now <= ends.saturating_mul(SECOND));
                let is_removed = now >= removed.saturating_mul(SECOND);
                node.see(signal, if is_removed { 1800 } else { 900 });
                let plan = node.look(now);
                let mut evictions = plan.evictions.clone();
                evictions.extend(node.after_reclaim(now, &plan));
                assert!(evictions.len() <= 1);
                !evictions.is_empty()
            })
            .collect();
        assert_eq!(
            went,
            [4, 4 * next_at / SECOND],
            "{signal:?} {ends} {removed}"
        );
    }
}

/// Another client deletes a pod, and its object is published again and again while the kubelet removes its files. The
/// kubelet waits for none that it has not evicted.
// R43
#[test]
fn files_of_a_pod_that_is_deleted_are_waited_for_once() {
    for (mode, goes_at) in [(Mode::Evictd, 35), (Mode::Kubelet, 5)] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.planner.settings.mode = mode;
        node.pod("deleted", [900, 0, 1]);
        node.pod("next", [500, 0, 1]);
        node.see(DISK, 1100);
        node.look(SECOND);
        let (all, deleted) = (node.pods.clone(), 5 * SECOND);
        node.pods.remove(0);
        node.see(DISK, 900);
        let mut goes = |second: &i64| {
            let seen = snapshot(&node.observations, &all, &node.usages, node.bounds);
            let at = deleted.max(second * SECOND);
            node.planner.note_end_of_deleted(at, seen, "deleted");
            !node.look(second * SECOND).evictions.is_empty()
        };
        assert_eq!((5..60).find(&mut goes), Some(goes_at), "{mode:?}");
    }
}

/// The kubelet removes them at once, but the pod that goes last writes more than that between two looks.
// R43
#[test]
fn what_a_writer_uses_up_is_no_sign_that_files_stay() {
    let mut node = Node::new(vec![hard(DISK, 100 << 30)], false);
    for name in ["a", "b", "c", "d", "e"] {
        node.pod(name, [20 << 20, 0, 1]);
    }
    node.pod("writer", [50 << 30, 0, 1]);
    node.pods[5].priority = 100;
    let mut left = 99 << 30;
    for look in 4..220 {
        left -= 25 << 20;
        node.see(DISK, left);
        let plan = node.look(look * SECOND / 4);
        assert!(!plan.files_stay);
        for eviction in &plan.evictions {
            node.pods.retain(|pod| pod.uid != eviction.uid);
            left += 20 << 20;
        }
    }
    assert_eq!(node.pods.len(), 0);
}

/// The one that was asked takes its time.
// R43
#[test]
fn in_the_kubelets_mode_a_hard_threshold_does_not_wait_for_a_soft_one() {
    let memory = Signal::MemoryAvailable;
    let mut node = Node::new(vec![soft(memory, 1000), hard(DISK, 1000)], false);
    node.planner.settings.mode = Mode::Kubelet;
    node.pod("asked", [0, 0, 1]);
    node.usages.get_mut("asked").unwrap().memory_working_set = Some(100);
    node.pod("files", [500, 0, 1]);
    node.see(memory, 900);
    node.see(DISK, 2000);
    node.look(SECOND);
    let plan = node.look(3 * SECOND);
    assert_eq!(chosen(&plan.evictions), [("asked", memory)]);
    node.see(DISK, 900);
    let plan = node.look(15 * SECOND);
    assert_eq!(chosen(&plan.evictions), [("files", DISK)]);
}

/// Two victims of an earlier agent, and of long ago: what they had has come back since, and was used up by others.
// R43
#[test]
fn what_was_removed_before_the_start_has_not_stayed() {
    let mut node = Node::new(vec![hard(DISK, 64 << 20)], false);
    node.pod("next", [40 << 20, 0, 1]);
    node.see(DISK, 30 << 20);
    for (uid, at) in [("one", 1), ("two", 11)] {
        let victim = RestoredPending {
            at: at * SECOND,
            is_dead: true,
            signal: Some(DISK),
            usage: 50 << 20,
            available: 40 << 20,
            ..restored(uid)
        };
        node.restore(500 * SECOND, victim);
    }
    assert_eq!(node.first(500..900), Some(510));
}

/// What the kubelet's victim leaves is on its way back, and the next pod goes ten seconds later.
// R43
#[test]
fn an_eviction_by_the_kubelet_counts_as_one_of_our_own() {
    for (bytes, resource, next_at) in [
        (900, Some(Resource::EphemeralStorage), 35),
        (900, None, 35),
        (0, Some(Resource::EphemeralStorage), 15),
        (0, Some(Resource::Pids), 6),
    ] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.pod("theirs", [bytes, 0, 1]);
        node.pod("next", [500, 0, 1]);
        node.see(DISK, 900);
        let (planner, seen) = node.parts();
        planner.note_kubelet_eviction(5 * SECOND, seen, "theirs", resource);
        node.pods.remove(0);
        assert_eq!(node.first(6..60), Some(next_at), "{bytes} {resource:?}");
    }
}

/// Images and writable layers lie on a disk of their own, which is short; the largest pod has its files on the other one.
fn two_disks() -> Node {
    let mut node = Node::new(vec![hard(IMAGES, 10 << 30), hard(DISK, 10 << 30)], false);
    for (name, logs) in [("layers", 1), ("large", 50 << 30), ("small", 1 << 30)] {
        node.pod(name, [logs, 0, 1]);
    }
    let layers = node.usages.get_mut("layers").unwrap();
    layers.containers[0].rootfs.bytes = Some(20 << 30);
    node.see(IMAGES, 9 << 30);
    node
}

/// Its growth was seen all the time, and no walk tells whose it is.
// R10, R43
#[test]
fn an_eviction_for_another_disk_slows_no_urgent_one_down() {
    const GIB: i64 = 1 << 30;
    // Right after a choice growth may be the first pod's own.
    for (crosses_after, goes_after) in [(5, 250), (250, 250), (1000, 1000)] {
        let mut node = two_disks();
        let mut gone = Vec::new();
        for ms in (-2000..=0)
            .step_by(250)
            .chain([5])
            .chain((250..3000).step_by(250))
        {
            node.see(DISK, 10 * GIB + (crosses_after - ms) * 2 * GIB / 1000 - 1);
            node.see(IMAGES, 10 * GIB - i64::from(ms >= 0));
            let goes = node.goes(10 * SECOND + ms * MS);
            gone.extend(goes.into_iter().map(|e| (ms, e.is_urgent(), e.name)));
        }
        let second = (goes_after, true, "large".to_owned());
        assert_eq!(gone[..2], [(0, false, "layers".to_owned()), second]);
    }
}

// R10, R43
#[test]
fn evictions_for_two_disks_keep_the_kubelets_pace() {
    for is_cancelled in [false, true] {
        let mut node = two_disks();
        assert_eq!(chosen(&node.goes(SECOND)), [("layers", IMAGES)]);
        if is_cancelled {
            node.see(IMAGES, 11 << 30);
            node.planner.cancel_eviction("layers");
        }
        node.see(DISK, 9 << 30);
        let goes = node.first(2..60);
        assert_eq!(goes, Some(if is_cancelled { 2 } else { 11 }));
    }
}

/// `statfs` answers late, or not for long.
// R5
#[test]
fn a_late_answer_begins_no_grace_period_anew() {
    for (unseen, due_at) in [(2..4, 11), (2..9, 19)] {
        let threshold = Threshold {
            grace_period: Duration::from_secs(10),
            ..hard(DISK, 1000)
        };
        let mut node = Node::new(vec![threshold.clone()], false);
        node.pod("files", [500, 0, 1]);
        let due = (1..30).find(|second| {
            match unseen.contains(second) {
                true => node.observations = Observations::default(),
                false => node.see(DISK, 900),
            }
            let evicts = !node.look(second * SECOND).evictions.is_empty();
            assert_eq!(
                node.planner.is_under_pressure(&threshold),
                !(7..9).contains(second) || due_at == 11
            );
            evicts
        });
        assert_eq!(due, Some(due_at));
    }
}

/// Without a look nothing could answer: one look without an answer after that is a late one.
#[test]
fn a_stall_before_a_late_answer_begins_no_grace_period_anew() {
    let threshold = Threshold {
        grace_period: Duration::from_secs(30),
        ..hard(DISK, 1000)
    };
    let mut node = Node::new(vec![threshold.clone()], false);
    node.pod("files", [500, 0, 1]);
    let looks = [(1, true), (20, false), (21, true), (30, true), (31, true)];
    let due = looks.into_iter().find(|(second, is_seen)| {
        match is_seen {
            true => node.see(DISK, 900),
            false => node.observations = Observations::default(),
        }
        let evicts = !node.look(second * SECOND).evictions.is_empty();
        assert!(node.planner.is_under_pressure(&threshold), "{second}");
        evicts
    });
    assert_eq!(due, Some((31, true)));
}

/// A soft threshold without a grace period is a hard one beside that of `evictionHard`.
// R4
#[test]
fn of_two_hard_thresholds_the_larger_one_evicts() {
    for amounts in [[1000, 1500], [1500, 1000]] {
        let mut node = Node::new(amounts.map(|amount| hard(DISK, amount)).to_vec(), false);
        node.pod("files", [500, 0, 1]);
        node.see(DISK, 1200);
        assert_eq!(chosen(&node.look(SECOND).evictions), [("files", DISK)]);
    }
}

/// A threshold for which every pod is denied is reported once for as long as it is met, and again the next time.
#[test]
fn a_threshold_that_no_pod_may_go_for_is_reported_once() {
    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    node.pod("denied", [500, 0, 1]);
    node.pod("critical", [500, 0, 1]);
    node.pods[0].is_denied = true;
    node.pods[1].priority = crate::model::pod::SYSTEM_CRITICAL_PRIORITY;
    let mut blocked = |seconds: i64, available: i64, is_denied: bool| {
        node.pods[0].is_denied = is_denied;
        node.see(DISK, available);
        let plan = node.look(seconds * SECOND);
        let denied: Vec<usize> = plan.blocked.iter().map(|blocked| blocked.denied).collect();
        (denied, plan.evictions.len())
    };
    assert_eq!(blocked(1, 2000, true), (vec![], 0));
    assert_eq!(blocked(2, 900, true), (vec![1], 0));
    assert_eq!(blocked(3, 900, true), (vec![], 0));
    assert_eq!(blocked(4, 2000, true), (vec![], 0));
    assert_eq!(blocked(5, 900, true), (vec![1], 0));
    assert_eq!(blocked(6, 900, false), (vec![], 1));
    assert_eq!(blocked(7, 900, false), (vec![], 0), "one is on its way");

    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    node.pod("free", [500, 0, 1]);
    node.bounds.rate.left = 0;
    node.see(DISK, 900);
    assert_eq!(node.look(SECOND).blocked[0].denied, 1, "by the rate");
}

/// The fleet brake, policies that are awaited, or an API server that takes no DELETE hold back what is not urgent.
#[test]
fn a_threshold_for_which_no_pod_may_go_at_the_kubelets_pace_is_reported_once() {
    for (mode, held) in [
        (Mode::Evictd, "paced"),
        (Mode::Evictd, "removals"),
        (Mode::Kubelet, "paced"),
    ] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.planner.settings.mode = mode;
        node.pod("free", [500, 0, 1]);
        node.bounds.allows_paced = held != "paced";
        node.bounds.awaits_removals = held == "removals";
        node.see(DISK, 900);
        let plan = node.look(SECOND);
        assert!(plan.evictions.is_empty());
        let blocked = |blocked: &BlockedThreshold| (blocked.denied, blocked.urgent_only);
        let blocked: Vec<_> = plan.blocked.iter().map(blocked).collect();
        assert_eq!(blocked, [(0, true)], "{mode:?} {held}");
        assert!(node.look(2 * SECOND).blocked.is_empty());
        node.bounds = NodeBounds::default();
        assert_eq!(node.look(3 * SECOND).evictions.len(), 1);
    }
}

/// A pod that cannot be killed, or does not end, goes for nothing: the others are denied all the same.
#[test]
fn a_pod_that_does_not_go_silences_no_threshold() {
    for is_refused in [true, false] {
        let mut node = Node::new(vec![hard(TASKS, 1000)], false);
        node.pod("stays", [0, 0, 500]);
        node.pod("denied", [0, 0, 500]);
        node.pods[1].is_denied = true;
        node.see(TASKS, 900);
        let went = node.first(1..15).unwrap();
        if is_refused {
            node.planner.note_outcome("stays", KillOutcome::Refused(1));
        }
        let reported = (went + 1..60).find(|s| !node.look(s * SECOND).blocked.is_empty());
        // Its second of grace, and ten that it may be late.
        let expected = if is_refused { went + 10 } else { went + 11 };
        assert_eq!(reported, Some(expected), "{is_refused}");
    }
}

/// A dip below the hard threshold overrides no budget.
// R5, R43
#[test]
fn the_hard_threshold_is_due_after_the_kubelets_interval() {
    for (signal, after) in [
        (Signal::MemoryAvailable, 10_050),
        (TASKS, 10_050),
        (DISK, 0),
    ] {
        let mut node = Node::new(vec![soft(signal, 2000), hard(signal, 1000)], false);
        node.planner.settings.fastpath_signals = vec![Signal::MemoryAvailable];
        let mut is_due = |ms: i64, available| {
            node.see(signal, available);
            node.look(ms * MS);
            node.planner
                .is_hard_due(ms * MS, &node.observations, signal)
        };
        assert!(!is_due(1000, 1500));
        let first = (20_000..40_000).step_by(50).find(|ms| is_due(*ms, 900));
        assert_eq!(first, Some(20_000 + after), "{signal:?}");
        assert!(!is_due(50_000, 1500));
        assert_eq!(is_due(50_050, 900), after == 0);
    }
}

/// At the kubelet's own threshold its pod is seen to end first, and no budget is overridden before. Disks do not wait so long,
/// nor does a threshold that a step raises.
// R5, R43
#[test]
fn at_the_kubelets_own_threshold_the_kubelet_has_its_turn() {
    let raised = |signal| Threshold {
        value: ThresholdValue::Raised(Box::new(RaisedValue {
            base: "900".parse().unwrap(),
            step: "100".parse().unwrap(),
            most: 1.0,
            soft: None,
        })),
        ..hard(signal, 1000)
    };
    for (threshold, is_due_after, goes_after) in [
        (hard(Signal::MemoryAvailable, 1000), 14_050, None),
        (hard(TASKS, 1000), 14_050, Some(14_050)),
        (raised(TASKS), 10_050, Some(10_050)),
        (hard(DISK, 1000), 0, Some(0)),
    ] {
        let signal = threshold.signal;
        let mut node = Node::new(vec![threshold], false);
        node.planner.settings.fastpath_signals = vec![Signal::MemoryAvailable];
        node.planner.settings.kubelets_signals = vec![Signal::MemoryAvailable, TASKS, DISK];
        node.pod("a", [900, 900, 900]);
        node.see(signal, 1500);
        node.look(SECOND);
        node.see(signal, 900);
        let (mut due, mut goes) = (None, None);
        for ms in (0..20_000).step_by(50) {
            let now = 20 * SECOND + ms * MS;
            let evictions = node.look(now).evictions;
            if node.planner.is_hard_due(now, &node.observations, signal) {
                due = due.or(Some(ms));
            }
            if !evictions.is_empty() {
                goes = goes.or(Some(ms));
            }
        }
        assert_eq!((due, goes), (Some(is_due_after), goes_after), "{signal:?}");
    }
}

/// The kubelet has many files to remove, and is at it.
// R43
#[test]
fn files_that_come_slowly_are_waited_for() {
    for (until, next_at) in [(0, 32), (60, 66), (1000, 602)] {
        let mut node = Node::new(vec![hard(INODES, 1_500_000)], false);
        node.pod("victim", [0, 1_000_000, 1]);
        node.pod("next", [0, 900_000, 1]);
        node.see(INODES, 1_000_000);
        let evictions = node.look(SECOND).evictions;
        assert_eq!(chosen(&evictions), [("victim", INODES)]);
        node.pods.remove(0);
        let goes = |second: &i64| {
            let come = *second.min(&until) * 600;
            node.see(INODES, 1_000_000 + come);
            !node.look(second * SECOND).evictions.is_empty()
        };
        assert_eq!((2..900).find(goes), Some(next_at), "until {until} s");
    }
}

/// A pod that was asked to end has ended, and the kubelet has yet to unmount its memory-backed volume.
// R43
#[test]
fn memory_that_a_volume_holds_is_waited_for() {
    let memory = Signal::MemoryAvailable;
    for (shared, unmounted, next_at) in [(0, 100, Some(12)), (400, 20, None), (400, 100, Some(33))]
    {
        let mut node = Node::new(vec![soft(memory, 1000 * MIB)], false);
        for (name, own, shared) in [("victim", 301, shared), ("next", 300, 0)] {
            node.pod(name, [0, 0, 1]);
            let usage = node.usages.get_mut(name).unwrap();
            usage.memory_working_set = Some((own + shared) * MIB);
            usage.memory_shared = shared * MIB;
        }
        let mut goes_at = |seconds: std::ops::Range<i64>, available: &dyn Fn(i64) -> u64| {
            for second in seconds {
                node.see(memory, signed(available(second) * MIB));
                let evictions = node.look(second * SECOND).evictions;
                if let Some(goes) = evictions.first() {
                    node.pods.retain(|pod| pod.uid != goes.uid);
                    return Some((second, goes.uid.clone()));
                }
            }
            None
        };
        assert_eq!(goes_at(1..10, &|_| 700), Some((2, "victim".into())));
        // Others take some of what its processes give back.
        let after = |second| 800 + u64::from(second >= unmounted) * shared;
        let next = goes_at(3..90, &after).map(|(at, _)| at);
        assert_eq!(next, next_at, "{shared} MiB until {unmounted} s");
    }
}

/// On XFS and ZFS a full disk has no inodes either.
// R43
#[test]
fn inodes_that_want_room_wait_for_bytes() {
    let mut node = Node::new(vec![hard(DISK, 1000), hard(INODES, 1000)], false);
    node.pod("bytes", [500, 0, 1]);
    node.pod("inodes", [0, 400, 1]);
    let see = |node: &mut Node, bytes: i64, inodes: i64, capacity: i64| {
        node.see(DISK, bytes);
        let seen = Observation {
            available: inodes,
            capacity,
            time: None,
        };
        node.observations.set(INODES, seen);
    };
    see(&mut node, 2000, 9000, 10_000);
    assert_eq!(chosen(&node.look(SECOND).evictions), []);
    see(&mut node, 900, 900, 1900);
    let evictions = node.look(2 * SECOND).evictions;
    assert_eq!(chosen(&evictions), [("bytes", DISK)]);
    // There is room, and inodes are short still.
    see(&mut node, 2000, 900, 2900);
    let evictions = node.look(3 * SECOND).evictions;
    assert_eq!(chosen(&evictions), [("inodes", INODES)]);
}

/// No pod has the bytes, or room alone would not be enough: inodes are short all the same.
// R43
#[test]
fn inodes_do_not_wait_for_room_that_does_not_come() {
    for (bytes, most) in [(0, 10_000), (500, 1950)] {
        let mut node = Node::new(vec![hard(DISK, 1000), hard(INODES, 1000)], false);
        node.pod("bytes", [bytes, 0, 1]);
        node.pod("inodes", [0, 400, 1]);
        node.see(DISK, 2000);
        let seen = |available, capacity| Observation {
            available,
            capacity,
            time: None,
        };
        node.observations.set(INODES, seen(1500, most));
        node.look(SECOND);
        node.see(DISK, 900);
        node.observations.set(INODES, seen(900, 1900));
        let evictions = node.look(2 * SECOND).evictions;
        let goes = chosen(&evictions);
        assert_eq!(goes.last(), Some(&("inodes", INODES)), "{goes:?}");
    }
}

/// While the runtime removes images the disk was not short for a moment.
// R5
#[test]
fn a_soft_threshold_that_is_met_anew_during_a_reclaim_has_its_grace_period() {
    for (meanwhile, goes) in [(900, true), (2000, false)] {
        let mut node = Node::new(vec![soft(DISK, 1000)], true);
        node.pod("a", [500, 0, 1]);
        node.see(DISK, 900);
        node.look(SECOND);
        let plan = node.look(2 * SECOND);
        assert!(!plan.node_reclaim.is_empty());
        node.see(DISK, meanwhile);
        node.look(3 * SECOND);
        node.see(DISK, 900);
        node.look(4 * SECOND - 1);
        let evictions = node.after_reclaim(4 * SECOND, &plan);
        assert_eq!(!evictions.is_empty(), goes, "{meanwhile}");
    }
}

/// The kubelet removes the files of a pod that died before the agent was started again. One filesystem has several names,
/// each with a threshold.
// R43
#[test]
fn files_of_a_victim_that_died_before_the_start_are_waited_for() {
    const IMAGES: Signal = Signal::ImageFsAvailable;
    const LAYERS: Signal = Signal::ContainerFsAvailable;
    for (signal, has_images, names) in [
        (DISK, true, &[DISK, IMAGES, LAYERS][..]),
        (IMAGES, false, &[IMAGES, LAYERS]),
    ] {
        for (usage, next_at) in [(900, 31), (0, 11)] {
            let thresholds = vec![hard(DISK, 1000), hard(IMAGES, 1000)];
            let mut node = Node::new(thresholds, has_images);
            node.pod("next", [500, 0, 1]);
            let files = node.usages.get_mut("next").unwrap();
            files.containers[0].rootfs = files.containers[0].logs;
            names.iter().for_each(|name| node.see(*name, 900));
            let victim = RestoredPending {
                at: SECOND,
                is_dead: true,
                signal: Some(signal),
                usage,
                ..restored("victim")
            };
            node.restore(SECOND, victim);
            let goes = |second: &i64| {
                let plan = node.look(second * SECOND);
                !node.after_reclaim(second * SECOND, &plan).is_empty()
            };
            assert_eq!((3..60).find(goes), Some(next_at), "{signal}");
        }
    }
}

/// A victim for bytes gives inodes back as well, and the next agent is short of those.
// R43
#[test]
fn what_a_victim_gives_of_other_signals_is_waited_for_after_a_restart() {
    let thresholds = vec![hard(DISK, 1000), hard(INODES, 1000)];
    let mut node = Node::new(thresholds.clone(), false);
    node.pod("victim", [900, 700, 1]);
    node.see(DISK, 900);
    node.see(INODES, 1000);
    let mut evictions = node.look(SECOND).evictions;
    assert_eq!(chosen(&evictions), [("victim", DISK)]);
    let other_signals = std::mem::take(&mut evictions[0].other_signals);
    for (other_signals, next_at) in [(other_signals, 31), (Vec::new(), 3)] {
        let mut node = Node::new(thresholds.clone(), false);
        node.pod("next", [1, 500, 1]);
        node.see(DISK, 1000);
        node.see(INODES, 900);
        let victim = RestoredPending {
            at: SECOND,
            is_dead: true,
            other_signals,
            ..restored("victim")
        };
        node.restore(SECOND, victim);
        assert_eq!(node.first(3..60), Some(next_at));
    }
}

/// Of what had come by the time that the third one was chosen nothing was its own.
// R43
#[test]
fn what_earlier_victims_had_given_before_the_start_counts_once() {
    let mut node = Node::new(vec![hard(DISK, 1300)], false);
    let victim = |uid: &str, at: i64, usage: u64, available: i64| RestoredPending {
        at: at * SECOND,
        is_dead: true,
        signal: Some(DISK),
        usage,
        available,
        ..restored(uid)
    };
    let victims = [
        victim("a", 1, 600, 100),
        victim("b", 2, 500, 500),
        victim("c", 3, 250, 700),
    ];
    let restored = RestoredState {
        victims: victims.to_vec(),
        ..RestoredState::default()
    };
    node.planner.restore(4 * SECOND, &restored);
    node.pod("next", [500, 0, 1]);
    // 750 are on their way, and 600 are missing.
    node.see(DISK, 700);
    assert_eq!(node.first(5..60), Some(32));
}

/// A pod that was asked has ended long before its time is over; before a restart of the agent as well.
// R43
#[test]
fn what_an_asked_pod_leaves_is_waited_for_from_its_end() {
    for is_restored in [false, true] {
        let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
        node.pod("asked", [900, 0, 1]);
        node.see(DISK, 1900);
        let at = 3 * SECOND;
        if is_restored {
            let victim = RestoredPending {
                at: at + 600 * SECOND,
                is_requested: true,
                is_dead: true,
                ..restored("asked")
            };
            node.restore(5 * SECOND, victim);
        } else {
            node.look(SECOND);
            assert_eq!(chosen(&node.look(at).evictions), [("asked", DISK)]);
        }
        node.pods.clear();
        node.pod("next", [500, 0, 1]);
        node.see(DISK, 900);
        node.planner.set_soft_request_under_way(true);
        assert_eq!(node.first(5..600), Some(35));
    }
}

/// The fast path follows its own victims and says which are stuck; those of an earlier agent as well.
// R43
#[test]
fn a_victim_of_the_fast_path_that_dies_slowly_is_not_stuck_here() {
    let of = |signal| RestoredPending {
        signal: Some(signal),
        ..restored("victim")
    };
    for (restored, is_reported) in [
        (None, false),
        (Some(of(Signal::MemoryAvailable)), false),
        (Some(of(DISK)), true),
    ] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.planner.settings.fastpath_signals = vec![Signal::MemoryAvailable];
        node.pod("victim", [0, 0, 1]);
        node.see(DISK, 2000);
        match restored {
            Some(victim) => node.restore(0, victim),
            None => {
                let (planner, seen) = node.parts();
                planner.note_fastpath_kill(0, seen, "victim");
            }
        }
        let stuck = node.look(11 * SECOND).stuck;
        assert_eq!(stuck.is_empty(), !is_reported, "{stuck:?}");
    }
}

/// Evictions were paused, or shadow mode has only chosen pods.
// R43
#[test]
fn a_threshold_that_comes_into_force_is_met_from_then_on() {
    for is_shadow in [false, true] {
        let mut node = Node::new(vec![hard(TASKS, 2000)], false);
        node.pod("tasks", [0, 0, 900]);
        node.pods[0].is_denied = true;
        node.see(TASKS, 1500);
        let mut settings = node.planner.settings.clone();
        let goes = |node: &mut Node, from: i64| {
            let ms = (from..from + 20_000).step_by(50);
            let mut looks = ms.map(|ms| (ms - from, node.look(ms * MS).evictions.len()));
            looks.find(|(_, count)| *count > 0).map(|(after, _)| after)
        };
        assert_eq!(goes(&mut node, 1000), None);
        match is_shadow {
            true => node.planner.change_shadow_mode(),
            false => {
                settings.eviction.thresholds = vec![hard(TASKS, 1800)];
                node.planner.reconfigure(settings);
            }
        }
        node.pods[0].is_denied = false;
        assert_eq!(goes(&mut node, 30_000), Some(10_050), "{is_shadow}");
    }
}

/// Another minimum reclaim is known in the middle of a grace period.
// R20, R21
#[test]
fn another_minimum_reclaim_begins_no_grace_period_anew() {
    let threshold = Threshold {
        grace_period: Duration::from_secs(60),
        ..soft(DISK, 2000)
    };
    let mut node = Node::new(vec![threshold], false);
    node.pod("files", [900, 0, 1]);
    node.see(DISK, 1500);
    assert_eq!(node.first(1..60), None);
    let mut settings = node.planner.settings.clone();
    let min_reclaim = Some(ThresholdValue::Quantity(Quantity::bytes(100)));
    settings.eviction.thresholds[0].min_reclaim = min_reclaim.clone();
    node.planner.reconfigure(settings);
    assert_eq!(node.first(60..180), Some(61));
    let mut thresholds = node.planner.thresholds();
    assert!(thresholds.all(|threshold| threshold.min_reclaim == min_reclaim));
}

/// The same while evictions wait for a reclaim.
// R8, R21
#[test]
fn another_minimum_reclaim_ends_no_wait_for_a_reclaim() {
    let mut node = Node::new(vec![hard(DISK, 2000)], true);
    node.pod("files", [900, 0, 1]);
    node.see(DISK, 1500);
    let plan = node.look(SECOND);
    assert!(!plan.awaiting_reclaim.is_empty());
    let mut settings = node.planner.settings.clone();
    settings.eviction.thresholds[0].min_reclaim =
        Some(ThresholdValue::Quantity(Quantity::bytes(100)));
    node.planner.reconfigure(settings);
    let after = node.after_reclaim(2 * SECOND, &plan);
    assert_eq!(chosen(&after), [("files", DISK)]);
}

/// A victim stays one while an operator switches shadow mode on and off.
// R43, R47
#[test]
fn shadow_mode_makes_no_victim_a_pod_like_any_other() {
    for is_soft in [false, true] {
        let threshold = match is_soft {
            true => soft(DISK, 1000),
            false => hard(DISK, 1000),
        };
        let mut node = Node::new(vec![threshold], false);
        node.pod("victim", [900, 0, 1]);
        node.pod("next", [500, 0, 1]);
        node.see(DISK, 900);
        let first = (1..20).find_map(|second| {
            let evictions = node.goes(second * SECOND);
            (!evictions.is_empty()).then_some((second, evictions))
        });
        let (second, evictions) = first.unwrap();
        assert_eq!(chosen(&evictions), [("victim", DISK)]);
        for _ in 0..2 {
            node.planner.change_shadow_mode();
        }
        for second in second + 1..120 {
            let evictions = node.goes(second * SECOND);
            let names = chosen(&evictions);
            assert!(names.iter().all(|(name, _)| *name == "next"), "{names:?}");
        }
    }
}

/// The kubelet evicts the pod that shadow mode had chosen; or the pod was asked to end before. Then an operator ends shadow mode.
// R43, R47
#[test]
fn what_others_have_done_to_a_pod_that_shadow_mode_chose_stays_known() {
    for (by_kubelet, is_deleted) in [(false, false), (true, false), (true, true)] {
        let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
        node.pod("first", [1900, 0, 1]);
        node.pod("next", [500, 0, 1]);
        let first = |node: &mut Node, available: i64, from: i64| {
            node.see(DISK, available);
            let all = (from..from + 20).find_map(|second| {
                let evictions = node.goes(second * SECOND);
                (!evictions.is_empty()).then_some((second, evictions))
            });
            let (second, evictions) = all.unwrap();
            assert_eq!(chosen(&evictions), [("first", DISK)]);
            second
        };
        let asked = if by_kubelet {
            0
        } else {
            first(&mut node, 1500, 1)
        };
        let at = first(&mut node, 900, asked + 1);
        node.planner.note_outcome("first", KillOutcome::Shadow);
        if by_kubelet {
            let (planner, seen) = node.parts();
            let (now, resource) = ((at + 1) * SECOND, Some(Resource::EphemeralStorage));
            match is_deleted {
                true => planner.note_end_of_deleted(now, seen, "first"),
                false => planner.note_kubelet_eviction(now, seen, "first", resource),
            }
            node.pods.remove(0);
            node.look((at + 2) * SECOND);
        }
        node.planner.change_shadow_mode();
        if by_kubelet {
            let mut goes = (at + 3..at + 30).map(|second| node.goes(second * SECOND));
            assert!(goes.all(|evictions| evictions.is_empty()));
        } else {
            assert!(node.planner.pending.is_requested("first"));
        }
    }
}

/// Shadow mode chooses a pod for the soft threshold, and then for the hard one.
// R43, R47
#[test]
fn what_shadow_mode_has_chosen_twice_is_a_pod_again() {
    for by_fastpath in [false, true] {
        let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
        node.pod("first", [900, 0, 1]);
        let goes = |node: &mut Node, available: i64, from: i64| {
            node.see(DISK, available);
            node.first(from..from + 20)
        };
        let mut at = goes(&mut node, 1500, 1).unwrap();
        node.planner.note_outcome("first", KillOutcome::Shadow);
        if by_fastpath {
            node.fastpath(at * SECOND, "first", KillOutcome::Shadow);
        } else {
            at = goes(&mut node, 900, at + 1).unwrap();
            node.planner.note_outcome("first", KillOutcome::Shadow);
        }
        node.planner.change_shadow_mode();
        assert!(!node.planner.pending.contains("first"), "{by_fastpath}");
        assert!(goes(&mut node, 1500, at + 11).is_some());
    }
}

/// The fast path finds that SIGKILL is refused for a pod that was asked to end: it has its time.
// R43
#[test]
fn a_refused_kill_of_the_fast_path_leaves_a_pod_asked() {
    let mut node = Node::new(vec![soft(DISK, 2000)], false);
    node.pod("asked", [900, 0, 1]);
    node.see(DISK, 1500);
    let at = node.first(1..20).unwrap() + 1;
    node.fastpath(at * SECOND, "asked", KillOutcome::Refused(1));
    node.look((at + 90) * SECOND);
    assert!(node.planner.pending.is_requested("asked"));
}

/// An agent starts while the victim of the one before is slow to die: its files are waited for from its end.
// R43
#[test]
fn the_files_of_a_victim_that_dies_after_a_restart_are_waited_for() {
    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    node.pod("next", [500, 0, 1]);
    node.see(DISK, 900);
    let victim = RestoredPending {
        at: SECOND,
        signal: Some(DISK),
        usage: 900,
        available: 900,
        ..restored("victim")
    };
    node.restore(29 * SECOND, victim);
    assert_eq!(node.first(30..90), Some(59));
}

/// An agent starts long after the kill, and the API server takes the pod's DELETE later still: the files are waited for from then.
// R40, R43
#[test]
fn the_files_of_an_earlier_agents_victim_are_waited_for_from_its_delete() {
    for (restored_at, deleted_at, next_at) in [(15, 60, 89), (45, 60, 89), (15, 15, 31)] {
        let mut node = Node::new(vec![hard(DISK, 1000)], false);
        node.pod("next", [500, 0, 1]);
        node.see(DISK, 900);
        let victim = RestoredPending {
            at: SECOND,
            is_dead: true,
            signal: Some(DISK),
            usage: 900,
            available: 900,
            ..restored("victim")
        };
        node.restore(restored_at * SECOND, victim);
        let goes = |&second: &i64| {
            node.bounds.awaits_removals = second < deleted_at;
            !node.goes(second * SECOND).is_empty()
        };
        let first = (restored_at + 1..120).find(goes);
        assert_eq!(first, Some(next_at), "{restored_at} {deleted_at}");
    }
}

/// A pod that was asked to end is killed, or would be, and the API server refuses the request meanwhile: the next look may ask again.
// R43, R47
#[test]
fn a_request_that_is_refused_behind_a_hard_choice_is_none() {
    let mut node = Node::new(vec![soft(DISK, 2000), hard(DISK, 1000)], false);
    node.pod("victim", [900, 0, 1]);
    let goes = |node: &mut Node, available: i64, from: i64| {
        node.see(DISK, available);
        node.first(from..from + 20)
    };
    let asked = goes(&mut node, 1500, 1).unwrap();
    let at = goes(&mut node, 900, asked + 1).unwrap();
    node.planner.note_outcome("victim", KillOutcome::Shadow);
    let (planner, seen) = node.parts();
    planner.soft_eviction_finished(at * SECOND, seen, "victim", None);
    planner.change_shadow_mode();
    assert!(!planner.pending.is_requested("victim"));
    assert!(goes(&mut node, 1500, at + 11).is_some());
}

/// What shadow mode has chosen for a threshold keeps no other one from a decision, be it of the same signal or of another one
/// of the same resource.
// R47
#[test]
fn shadow_mode_decides_once_for_each_threshold() {
    const IMAGES: Signal = Signal::ImageFsAvailable;
    for mode in [Mode::Evictd, Mode::Kubelet] {
        let thresholds = vec![soft(DISK, 2000), hard(DISK, 1000), hard(IMAGES, 1000)];
        let mut node = Node::new(thresholds, false);
        node.planner.settings.mode = mode;
        node.pod("logs", [700, 0, 1]);
        node.pod("layer", [1, 0, 1]);
        let usage = node.usages.get_mut("layer").unwrap();
        usage.containers[0].rootfs.bytes = Some(600);
        let see = |node: &mut Node, disk: i64, images: i64, seconds: std::ops::Range<i64>| {
            node.see(DISK, disk);
            node.see(IMAGES, images);
            let mut decided = Vec::new();
            for second in seconds {
                let mut plan = node.look(second * SECOND);
                node.planner.forget_shadow_reports();
                let mut evictions = std::mem::take(&mut plan.evictions);
                if !plan.node_reclaim.is_empty() {
                    evictions.extend(node.after_reclaim(second * SECOND, &plan));
                }
                for (eviction, (_, signal)) in evictions.iter().zip(chosen(&evictions)) {
                    let is_hard = !eviction.is_soft;
                    node.planner
                        .note_outcome(&eviction.uid, KillOutcome::Shadow);
                    node.planner.note_reported_in_shadow(signal, is_hard);
                    decided.push((eviction.name.clone(), signal, is_hard));
                }
            }
            decided
        };
        let on = |name: &str, signal, is_hard| vec![(name.to_owned(), signal, is_hard)];
        let soft = see(&mut node, 1500, 2000, 1..60);
        assert_eq!(soft, on("logs", DISK, false), "{mode:?}");
        let hard = see(&mut node, 900, 2000, 60..120);
        assert_eq!(hard, on("logs", DISK, true), "{mode:?}");
        let other = see(&mut node, 900, 900, 120..180);
        assert_eq!(other, on("layer", IMAGES, true), "{mode:?}");
        // The soft threshold stays met.
        assert_eq!(see(&mut node, 1500, 900, 180..240), [], "{mode:?}");
        let again = see(&mut node, 900, 900, 240..300);
        assert_eq!(again, on("logs", DISK, true), "{mode:?}");
    }
}

/// The threshold of the pods' cgroup is cut where its limit is not above it: then the manager does not observe it.
// R6
#[test]
fn a_kill_of_the_fast_path_makes_the_condition_true_without_an_observation() {
    let signal = Signal::AllocatableMemoryAvailable;
    for (outcome, conditions) in [
        (KillOutcome::Killed, vec![NodeCondition::MemoryPressure]),
        (KillOutcome::Refused(1), vec![]),
    ] {
        let mut node = Node::new(vec![hard(signal, 1000)], false);
        node.pod("hog", [0, 0, 1]);
        let (planner, dip) = node.parts();
        planner.note_fastpath_eviction(SECOND, dip, "hog", signal, outcome);
        assert_eq!(node.look(2 * SECOND).conditions, conditions, "{outcome:?}");
        assert!(node.look(302 * SECOND).conditions.is_empty());
    }
}

/// The place of the first pod was taken elsewhere: what comes here holds the condition that keeps the next one away.
// R17
#[test]
fn a_pod_that_comes_back_holds_the_condition_of_the_last_eviction() {
    let mut node = Node::new(vec![hard(TASKS, 1000), hard(DISK, 1000)], false);
    let owner = crate::Owner {
        uid: "set".into(),
        ..crate::Owner::default()
    };
    for (second, name, short, calm) in [(1, "first", TASKS, DISK), (300, "second", DISK, TASKS)] {
        node.pods.clear();
        node.pod(name, [500, 0, 10]);
        node.pods[0].owner = Some(owner.clone());
        node.see(short, 900);
        node.see(calm, 5000);
        let mut evictions = node.look(second * SECOND).evictions;
        // Processes have to be short for as long as the kubelet needs to see it.
        evictions.extend(node.look((second + 11) * SECOND).evictions);
        assert_eq!(chosen(&evictions), [(name, short)]);
    }
    node.see(DISK, 5000);
    node.pods[0].uid = "third".into();
    let recreations = node.look(320 * SECOND).recreations;
    let conditions: Vec<_> = recreations.iter().map(|r| r.condition).collect();
    assert_eq!(conditions, [NodeCondition::DiskPressure]);
}

/// The next one goes when the first has come back already, and none of those that came back goes.
// R17
#[test]
fn pods_that_go_one_after_the_other_in_one_incident_come_back_once() {
    let mut node = Node::new(vec![hard(DISK, 1000)], false);
    let owner = crate::Owner {
        uid: "set".into(),
        ..crate::Owner::default()
    };
    for replica in 0..4 {
        node.pod(&format!("old-{replica}"), [500, 0, 1]);
        node.pods[replica].owner = Some(owner.clone());
    }
    let mut counts = Vec::new();
    for replica in 0..4 {
        let at = (1 + 100 * replica) * SECOND;
        node.see(DISK, 900);
        let mut looks = (0..60).map(|second| node.look(at + second * SECOND).evictions);
        let gone = looks.find(|gone| !gone.is_empty()).unwrap();
        drop(looks);
        node.see(DISK, 5000);
        let place = node.pods.iter().position(|pod| pod.uid == gone[0].uid);
        let pod = &mut node.pods[place.unwrap()];
        pod.uid = format!("new-{replica}");
        // The last one of all.
        pod.priority = 1000;
        let recreations = node.look(at + 63 * SECOND).recreations;
        counts.extend(recreations.iter().map(|r| (r.count, r.hold.as_secs())));
    }
    assert_eq!(counts, [(1, 60); 4]);
}
