//! What rules say besides gates: limits of groups, rates, precedence, and conditions on what a pod uses.

use evictd_engine::{
    fleet::FleetPace,
    limiter::{EvictionKind, MAX_QUOTAS, Rate, RestoredEviction, ShadowChooser},
    permit::LastResort,
};
use evictd_policy::{
    EvictionPolicy, PolicyEvaluator, PolicySet, evaluator::PolicySettings, gate::Secrets,
};
use evictd_tests::{
    policy_fixture::{
        BarePod, FLEET_RULES, PolicyFixture, always, charge, labels, may_go, owner, pod, policy,
    },
    prelude::*,
};

/// So many pods under policies.
fn keep(name: &str, pods: usize, policies: Vec<EvictionPolicy>) -> PolicyFixture {
    let pods = (0..pods).map(|i| Pod {
        name: pod(i),
        ..Pod::default()
    });
    PolicyFixture::new(name, pods.collect(), policies, Secrets::default())
}

fn rate(evictions: u32, hours: u64) -> Option<Rate> {
    let period = Duration::from_secs(hours * 3600);
    Some(Rate { evictions, period })
}

/// A condition on the usage holds when the pod has grown, and no longer when it has shrunk.
#[test]
fn usage_is_read_anew() {
    let spec = json!({"rules": [{"name": "r", "evict": "When", "when": "pod.usage.memory > 16 * 1024 * 1024"}]});
    let kept = as_root!(keep("limitusage", 1, vec![policy("p", spec)]));
    assert!(!may_go(&kept, 0));
    let dir = kept.entry(&pod(0)).killer.path().to_owned();
    let hog = Hog::start(&dir, &["--mib", "24"]).unwrap();
    kept.wait("it has grown", |k| may_go(k, 0));
    drop(hog);
    kept.wait("it uses nothing", |k| !may_go(k, 0));
}

// R38
#[test]
fn limits_keep_enough_of_a_group_here() {
    let limits = json!([{"groupBy": "app", "minAvailable": 2}]);
    let mut kept = as_root!(keep("gateleast", 4, vec![policy("p", always(&limits))]));
    assert!(
        (0..4).all(|pod| may_go(&kept, pod)),
        "four of them, two to stay"
    );
    charge(kept.evaluator.limiter(), &*kept.table.entries[0]);
    kept.evaluator.evaluate();
    assert!(may_go(&kept, 1));
    charge(kept.evaluator.limiter(), &*kept.table.entries[1]);
    // At once, and after the next count.
    assert!(!may_go(&kept, 2));
    kept.evaluator.evaluate();
    assert!(!may_go(&kept, 2));
    // A new table knows which pods were evicted.
    let table = kept.node.table_after(&kept.table);
    kept.evaluator.set_pods(&table.entries);
    kept.table = table;
    assert!(
        !may_go(&kept, 2) && kept.explain(&pod(2)).reason.as_deref() == Some("a limit has no room")
    );
}

/// The kubelet starts some pods again under their UID: static ones, and those whose DELETE is refused.
#[test]
fn a_pod_that_runs_anew_is_available_again() {
    let limits = json!([{"groupBy": "app", "minAvailable": 2}]);
    let kept = as_root!(keep("gateanew", 3, vec![policy("p", always(&limits))]));
    let first = kept.entry(&pod(0));
    charge(kept.evaluator.limiter(), &**first);
    kept.evaluator.refresh_evicted(true);
    kept.evaluator.evaluate();
    assert!(!may_go(&kept, 1), "nothing runs in the first");
    // The start of a process is known to 10 ms.
    std::thread::sleep(Duration::from_millis(50));
    let _anew = Hog::start(first.killer.path(), &["--mib", "1"]).unwrap();
    for is_reported in [false, true] {
        kept.evaluator.refresh_evicted(is_reported);
        kept.evaluator.evaluate();
        assert_eq!(may_go(&kept, 1), is_reported);
    }
}

// R38
#[test]
fn rates_hold_for_the_node_and_for_each_owner() {
    let mut node = as_root!(Node::new("gaterates", 64).unwrap());
    for (name, set) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        node.pod(name, QosClass::Burstable, 0, 0);
        node.edit(name, |pod| pod.owner = Some(owner("StatefulSet", set)));
    }
    let settings = PolicySettings {
        node_rate: rate(2, 1),
        owner_rate: rate(1, 1),
        ..PolicySettings::default()
    };
    let evaluator = PolicyEvaluator::new(settings, Secrets::default());
    let table = node.table();
    evaluator.set_pods(&table.entries);
    let limiter = evaluator.limiter();
    let free = || {
        let allows = |e: &&Arc<evictd_node::pods::table::PodEntry>| {
            limiter.allows(&***e, monotonic_ns(), EvictionKind::Urgent, LastResort::Any)
        };
        table
            .entries
            .iter()
            .filter(allows)
            .map(|e| e.pod.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(free(), ["a1", "a2", "b1", "b2"]);
    charge(limiter, &*table.entries[0]);
    assert_eq!(free(), ["b1", "b2"], "one of an owner");
    charge(limiter, &*table.entries[2]);
    assert!(free().is_empty(), "two of the node");
}

/// A pod of this owner, without a cgroup.
fn owned(name: &str, job: usize) -> Arc<BarePod> {
    Arc::new(BarePod::new(Pod {
        name: name.to_owned(),
        uid: name.to_owned(),
        namespace: "default".to_owned(),
        phase: "Running".to_owned(),
        labels: labels(&[("app", "db")]),
        owner: Some(owner("Job", &job.to_string())),
        ..Pod::default()
    }))
}

/// All limits of all rules that hold for a pod count, whichever policy they are in.
#[test]
fn no_limit_of_a_pod_is_left_out() {
    let pace = always(&json!([
        {"maxEvictedAtOnce": 1},
        {"groupBy": "app", "maxEvictedAtOnce": 1},
    ]));
    let quorum = always(&json!([{"groupBy": "app", "minAvailable": 2}]));
    let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
    evaluator.set_policies(PolicySet::new([
        policy("a-pace", pace.clone()),
        policy("b-quorum", quorum),
    ]));
    let pods = [owned("one", 1), owned("two", 2)];
    evaluator.set_pods(&pods);
    let limiter = evaluator.limiter();
    let may_go =
        |pod: &BarePod| limiter.allows(pod, monotonic_ns(), EvictionKind::Urgent, LastResort::None);
    assert!(!may_go(&pods[0]) && !may_go(&pods[1]));
    // More than a pod has places for: it is spared.
    let many = ["a", "b", "c", "d"].map(|name| policy(name, pace.clone()));
    evaluator.set_policies(PolicySet::new(many));
    assert!(!may_go(&pods[0]));
    let why = evaluator.explain().remove(0).reason.unwrap();
    assert!(why.contains("more limits"), "{why}");
    evaluator.set_policies(PolicySet::new([policy("a", pace)]));
    assert!(may_go(&pods[0]));
}

/// A node keeps so many limits. Those of pods that are gone make room for others unless they count.
#[test]
fn limits_that_do_not_count_any_more_make_room() {
    let settings = PolicySettings {
        node_rate: rate(1, 1),
        owner_rate: rate(1, 24),
        ..PolicySettings::default()
    };
    let evaluator = PolicyEvaluator::new(settings, Secrets::default());
    let limiter = evaluator.limiter();
    let allows =
        |pod: &BarePod, resort| limiter.allows(pod, monotonic_ns(), EvictionKind::Urgent, resort);
    // One owner after the other, as of a CronJob.
    for owner in 0..600 {
        let pod = owned("job", owner);
        evaluator.set_pods(&[Arc::clone(&pod)]);
        assert!(allows(&pod, LastResort::None), "owner {owner}");
    }
    let all: Vec<_> = (0..MAX_QUOTAS)
        .map(|owner| owned(&format!("pod-{owner:03}"), owner))
        .collect();
    let never = json!({
        "selector": {"matchLabels": {"app": "db"}},
        "rules": [{"name": "r", "evict": "Never"}],
    });
    evaluator.set_pods(&all);
    evaluator.set_policies(PolicySet::new([policy("p", never)]));
    let [first, .., last] = &all[..] else {
        panic!("pods")
    };
    assert!(!allows(first, LastResort::Conditional), "it says Never");
    assert!(
        !allows(last, LastResort::Conditional),
        "it says Never, and has no place"
    );
    assert!(allows(last, LastResort::Any));
    // The node's rate has a place, and holds for the pod that has none for its owner's.
    charge(limiter, &**first);
    assert!(!allows(last, LastResort::Any));
    // What counts is kept when its pods are gone: the place of the first owner, and the node's.
    evaluator.set_pods::<BarePod>(&[]);
    evaluator.evaluate();
    let back = [owned("back", 0), owned("other", 1)];
    evaluator.set_pods(&back);
    assert!(!allows(&back[1], LastResort::Any), "the node's rate");
}

/// What shadow mode has chosen is not there for as long as its pressure lasts, and the next agent does not know of it.
#[test]
fn what_shadow_mode_has_chosen_is_not_available() {
    let limits = json!([{"groupBy": "app", "minAvailable": 2}]);
    let mut kept = as_root!(keep("limitshadow", 3, vec![policy("p", always(&limits))]));
    let limiter = Arc::clone(kept.evaluator.limiter());
    let now = monotonic_ns();
    limiter.charge_in_shadow(
        EvictionKind::Urgent,
        &**kept.entry(&pod(0)),
        now,
        ShadowChooser::Manager,
    );
    assert!(!may_go(&kept, 1), "at once");
    kept.evaluator.evaluate();
    assert!(!may_go(&kept, 1), "after the next count");
    let table = kept.node.table_after(&kept.table);
    kept.evaluator.set_pods(&table.entries);
    kept.table = table;
    assert!(!may_go(&kept, 1), "in a new table");
    limiter.forget_shadow_victims(ShadowChooser::FastPath);
    kept.evaluator.evaluate();
    assert!(!may_go(&kept, 1), "another pressure is over");
    limiter.forget_shadow_victims(ShadowChooser::Manager);
    kept.evaluator.evaluate();
    assert!(may_go(&kept, 1), "this one is over");
}

/// Policies that say different things: the higher precedence decides, among equals the more sparing one.
// R38, R47
#[test]
fn the_more_sparing_of_equals_decides() {
    skip_if!(not_root());
    let always = |precedence| json!({"precedence": precedence, "rules": [{"name": "r", "evict": "Always", "order": -5}]});
    let never = |precedence| json!({"precedence": precedence, "rules": [{"name": "r", "evict": "Never", "order": 5}]});
    for (i, (a, b, expected, order)) in [(0, 0, false, 5), (1, 0, true, -5), (0, 1, false, 5)]
        .into_iter()
        .enumerate()
    {
        let policies = vec![policy("a", always(a)), policy("b", never(b))];
        let kept = keep(&format!("gateprec{i}"), 1, policies);
        let found = (may_go(&kept, 0), kept.explain(&pod(0)).order);
        assert_eq!(found, (expected, order), "{i}");
    }
    let mut shadow = never(5);
    shadow["shadow"] = true.into();
    let kept = keep("gateshadow", 1, vec![policy("s", shadow)]);
    assert!(may_go(&kept, 0), "a policy in shadow mode changes nothing");
    let uid = &kept.table.entries[0].pod.uid;
    assert_eq!(
        kept.evaluator.shadow_objection(uid).as_deref(),
        Some("s/r: the rule says Never")
    );
}

/// It has ended early, and runs anew before the time that it was given is over.
#[test]
fn a_pod_that_runs_anew_is_not_asked_to_go_any_more() {
    let mut node = as_root!(Node::new("askedanew", 64).unwrap());
    let cgroup = node.best_effort("a");
    let _runs = Hog::start(&cgroup, &["--mib", "1", "--wait"]).unwrap();
    let (table, now) = (node.table(), i64::try_from(monotonic_ns()).unwrap());
    let entry = &table.entries[0];
    let asked = |begun: i64| RestoredEviction {
        begun,
        at: begun + 300_000_000_000,
        is_same_boot: true,
        pod: entry.pod.clone(),
        is_requested: true,
        ..RestoredEviction::default()
    };
    let is_asked = |restored: Vec<RestoredEviction>| {
        let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
        evaluator.restore(restored);
        evaluator.set_pods(&table.entries);
        entry.eviction_state.is_requested()
    };
    let before = asked(now - 60_000_000_000);
    assert!(!is_asked(vec![before.clone()]));
    assert!(is_asked(vec![asked(now)]));
    assert_eq!(entry.eviction_state.evicted_at(), now.unsigned_abs());
    // It was killed since, before the time that it was first given is over.
    let killed = RestoredEviction {
        at: now + 1,
        is_requested: false,
        ..asked(now + 1)
    };
    assert!(!is_asked(vec![before, killed]));
    assert_eq!(entry.eviction_state.evicted_at(), now.unsigned_abs() + 1);
}

/// What an earlier agent has evicted counts as if this one had done it, also for policies that come later.
#[test]
fn what_was_evicted_before_counts() {
    let mut node = as_root!(Node::new("limitpast", 64).unwrap());
    for (name, app) in [("a", "db"), ("b", "db"), ("c", "web"), ("gone", "db")] {
        node.pod(name, QosClass::Burstable, 0, 0);
        node.edit(name, |pod| {
            pod.phase = "Running".into();
            pod.namespace = "default".into();
            pod.labels = labels(&[("app", app)]);
        });
    }
    let table = node.table();
    let gone = table.entries.iter().find(|e| e.pod.name == "gone").unwrap();
    let now = i64::try_from(monotonic_ns()).unwrap();
    let restored = |ago: i64, is_workload_known| RestoredEviction {
        begun: now - ago * 1_000_000_000,
        at: now - ago * 1_000_000_000,
        is_same_boot: true,
        pod: gone.pod.clone(),
        is_workload_known,
        at_own_limit: false,
        is_requested: false,
    };
    let new = || PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
    let may_go = |evaluator: Arc<PolicyEvaluator>, limit: serde_json::Value| {
        let table = node.table();
        evaluator.set_pods(&table.entries);
        evaluator.set_policies(PolicySet::new([policy("p", always(&json!([limit])))]));
        let all = evaluator.explain().into_iter().filter(|e| e.may_go);
        let mut names: Vec<String> = all.map(|e| e.pod).collect();
        names.sort();
        names
    };
    let free = |restored: Vec<RestoredEviction>, limit| {
        let evaluator = new();
        evaluator.restore(restored);
        may_go(evaluator, limit)
    };
    let once = json!({"groupBy": "app", "maxEvictedAtOnce": 1, "period": "1m"});
    let all = ["default/a", "default/b", "default/c", "default/gone"];
    assert_eq!(free(vec![], once.clone()), all);
    assert_eq!(free(vec![restored(59, true)], once.clone()), ["default/c"]);
    assert_eq!(free(vec![restored(61, true)], once.clone()), all);
    // This agent has evicted it since.
    let (evaluator, own) = (new(), vec![restored(59, true)]);
    evaluator.set_history(move || own.clone());
    assert_eq!(may_go(evaluator, once.clone()), ["default/c"]);
    // Whose it was is not known: any group's.
    assert_eq!(free(vec![restored(30, false)], once.clone()), [""; 0]);
    // The fleet does not count a pod that was above its own limit, although its group does.
    let start = now.unsigned_abs();
    let in_slow_fleet = |restored: Vec<RestoredEviction>| {
        let evaluator = new();
        let minute = Duration::from_secs(60);
        let limiter = Arc::clone(evaluator.limiter());
        limiter.set_fleet(FleetPace::Slow, minute, &FLEET_RULES, start);
        assert!(limiter.allows_paced(start));
        evaluator.restore(restored);
        (evaluator, limiter)
    };
    let (evaluator, limiter) = in_slow_fleet(vec![RestoredEviction {
        at_own_limit: true,
        ..restored(10, true)
    }]);
    assert_eq!(may_go(evaluator, once), ["default/c"]);
    assert!(limiter.allows_paced(start));
    // A restart lets no node evict sooner while the fleet is slow, whether it has limits or none.
    let latest = restored(20, true).at;
    let (_, limiter) = in_slow_fleet(vec![restored(20, true), restored(90, true)]);
    let later = |seconds: u64| start + seconds * 1_000_000_000;
    assert!(!limiter.allows_paced(later(39)) && limiter.allows_paced(later(41)));
    assert_eq!(limiter.last_eviction(), Some(latest));
    // It does not count as available: of three that are there only two stay.
    let least = json!({"groupBy": "app", "minAvailable": 2});
    assert_eq!(free(vec![], least.clone()).len(), 3);
    assert_eq!(free(vec![restored(61, true)], least), [""; 0]);
    // A later table takes nothing back of what has happened since.
    let evaluator = new();
    evaluator.restore(vec![restored(30, true)]);
    let table = node.table();
    let gone = table.entries.iter().find(|e| e.pod.name == "gone").unwrap();
    let state = &gone.eviction_state;
    evaluator.set_pods(&table.entries);
    let before = state.evicted_at();
    assert_eq!(before, restored(30, true).at.unsigned_abs());
    state.mark_evicted(before + 1);
    evaluator.set_pods(&table.entries);
    assert_eq!(state.evicted_at(), before + 1);
}

/// What was said of a pod that is gone stays said, and is not shown any longer.
// R38
#[test]
fn a_contradiction_is_shown_while_its_pod_is_here() {
    let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
    let rule = |evict: &str| json!({"rules": [{"name": "r", "evict": evict}]});
    let policies = [policy("a", rule("Never")), policy("b", rule("Always"))];
    evaluator.set_policies(PolicySet::new(policies));
    let shown = || {
        evaluator.evaluate();
        let counts = [evaluator.conflicts(), evaluator.present_conflicts()];
        counts.map(|rules| rules.len())
    };
    evaluator.set_pods(&[owned("web", 0)]);
    assert_eq!(shown(), [1, 1]);
    evaluator.set_pods::<BarePod>(&[]);
    assert_eq!(shown(), [1, 0]);
    evaluator.set_pods(&[owned("web", 0)]);
    assert_eq!(shown(), [1, 1]);
}
