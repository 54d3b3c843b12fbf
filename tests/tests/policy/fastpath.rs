//! The fast path under policies, with real cgroups: which pods are denied, in what order the others go, and what limits do.

use evictd_engine::{
    CandidateState,
    accounting::MemoryThresholds,
    limiter::EvictionKind,
    model::settings::RankingStrategy,
    permit::{LastResort, Permission},
};
use evictd_fastpath::FastPathSettings;
use evictd_node::pods::{
    builder::{PodTableBuilder, PodUpdate},
    table::{PodEntry, PodTable},
};
use evictd_policy::{PolicyEvaluator, evaluator::PolicySettings, gate::Secrets};
use evictd_tests::{cgroup::holds, node::Options, prelude::*};

/// Pods of these sizes in MiB, all BestEffort, all at their size: hogs have their memory before the first look.
fn pods(name: &str, sizes: &[(&str, &str)]) -> (Node, Vec<Hog>) {
    let mut node = Node::new(name, 512).unwrap();
    let hogs = sizes.iter().map(|(name, mib)| {
        let dir = node.best_effort(name);
        let hog = Hog::start(&dir, &["--mib", mib]).unwrap();
        assert!(holds(&dir, mib.parse().unwrap()), "{name} stays small");
        hog
    });
    let hogs = hogs.collect();
    (node, hogs)
}

fn set(table: &PodTable, name: &str, permission: Permission, order: i16, quotas: &[u8]) {
    let entry = table.entries.iter().find(|e| e.pod.name == name).unwrap();
    entry.permit.set(permission, order, quotas);
}

/// The manager signals a pod of many processes, and another container of it is started meanwhile: its entry is made
/// anew, and the pod is a victim in that one too.
#[test]
fn a_pod_whose_entry_is_made_anew_while_it_is_killed_is_no_candidate() {
    let dir = tempfile::tempdir().unwrap();
    let uid = "027b1a11-f972-4ec6-943f-db9a81fa1086";
    let pod = dir.path().join(format!("kubepods/pod{uid}"));
    fs::create_dir_all(&pod).unwrap();
    for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
        fs::write(pod.join(file), "1").unwrap();
    }
    let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
    let mut builder = PodTableBuilder::new(dir.path(), Mode::Evictd);
    let mut entry = || {
        let table = builder.refresh(|_, _| PodUpdate::Unknown).table.unwrap();
        evaluator.set_pods(&table.entries);
        Arc::clone(&table.entries[0])
    };
    let state = |entry: &PodEntry, now| {
        let limiter = evaluator.limiter();
        limiter.state_of(entry, now, EvictionKind::Urgent, LastResort::Any, false)
    };
    let (before, now) = (entry(), monotonic_ns());
    assert_eq!(state(&before, now), CandidateState::Eligible);
    before.eviction_state.begin_kill(now);
    fs::create_dir(pod.join("c1")).unwrap();
    let anew = entry();
    assert!(!Arc::ptr_eq(&before, &anew));
    assert_eq!(state(&anew, now), CandidateState::Terminating);
    // What it was killed by tells of the end by its own entry.
    before.eviction_state.end_kill();
    assert_eq!(state(&anew, now), CandidateState::Eligible);
}

/// Two members of a database, of which one may go in so many nanoseconds, and another pod. Two pods are enough for 400 MiB, and
/// `db-2` uses more than `web`.
fn database(name: &str, period: u64) -> (Node, Vec<Hog>, Box<PodTable>) {
    let (node, hogs) = pods(name, &[("db-1", "100"), ("db-2", "90"), ("web", "50")]);
    let table = node.table();
    node.limiter.set_quota(7, Some(1), period, None);
    for name in ["db-1", "db-2"] {
        set(&table, name, Permission::Always, 0, &[0, 0, 7]);
    }
    (node, hogs, table)
}

// R12, R38
#[test]
fn a_pod_that_the_policies_deny_is_passed_over() {
    let (node, mut hogs) = as_root!(pods(
        "polspare",
        &[("big", "100"), ("late", "80"), ("small", "40")],
    ));
    let table = node.table();
    set(&table, "big", Permission::Never, 0, &[]);
    // Its permission has run out, and it was not renewed.
    let past = Permission::Until(monotonic_ns().saturating_sub(1));
    set(&table, "late", past, 0, &[]);
    let watched = node.watched_with(table, Options::at(400));
    watched.evicts("small");
    // That is not enough.
    let (_, held) = watched.has_no_candidates();
    assert_eq!((held.denied, held.paused), (2, false));
    assert!(hogs[0].is_alive() && hogs[1].is_alive());
}

// R38: a permission counts from the moment it is given, without a new table.
#[test]
fn a_permission_counts_at_once() {
    let (node, mut hogs) = as_root!(pods("polflip", &[("big", "200")]));
    let table = node.table();
    let entry = Arc::clone(&table.entries[0]);
    entry.permit.set(Permission::Denied, 0, &[]);
    let watched = node.watched_with(table, Options::at(400));
    watched.has_no_candidates();
    assert!(hogs[0].is_alive());
    entry.permit.set(Permission::Until(u64::MAX - 1), 0, &[]);
    watched.evicts("big");
}

#[test]
fn a_lower_order_goes_first_among_those_above_their_request() {
    let (node, mut hogs) = as_root!(pods(
        "polorder",
        &[("big", "120"), ("middle", "80"), ("small", "60")],
    ));
    let table = node.table();
    set(&table, "big", Permission::Always, 10, &[]);
    set(&table, "small", Permission::Always, -10, &[]);
    let watched = node.watched_with(table, Options::at(330));
    watched.evicts("small");
    watched.evicts("middle");
    assert!(hogs[0].is_alive());
}

// R32: one DB server at a time.
#[test]
fn a_group_gives_no_more_than_its_limit() {
    let minute = 60_000_000_000;
    let (node, mut hogs, table) = as_root!(database("polgroup", minute));
    let watched = node.watched_with(table, Options::at(400));
    watched.evicts("db-1");
    watched.evicts("web");
    std::thread::sleep(Duration::from_millis(200));
    assert!(hogs[1].is_alive(), "the second one stays");
}

/// Shadow mode tells what live mode would do: no more pods than a limit lets go; live mode begins with an unused one.
#[test]
fn shadow_mode_is_held_back_by_limits_that_live_mode_finds_unused() {
    let hour = 3_600_000_000_000;
    let (node, mut hogs, table) = as_root!(database("polshadow", hour));
    let entries = table.entries.clone();
    let used = |name: &str| {
        let entry = entries.iter().find(|e| e.pod.name == name).unwrap();
        node.limiter.is_evicted_or_chosen(&entry.eviction_state)
    };
    let options = Options {
        shadow: true,
        ..Options::at(400)
    };
    let watched = node.watched_with(table, options);
    watched.evicts("db-1");
    watched.evicts("web");
    assert!(used("db-1") && !used("db-2"), "it does not count as there");
    assert_eq!(node.limiter.last_eviction(), None, "the fleet is not told");
    assert!(hogs.iter_mut().all(Hog::is_alive));
    let mib = |amount: u64| amount * MIB;
    watched.control.send_settings(FastPathSettings {
        capacity: mib(512),
        thresholds: MemoryThresholds {
            threshold: mib(400),
            resolved: mib(400),
            ..MemoryThresholds::default()
        },
        shadow: false,
        strategy: RankingStrategy::Kubelet,
    });
    assert!(!watched.evicts("db-1").outcome.is_shadow());
}

#[test]
fn a_pause_holds_all_pods() {
    let (node, mut hogs) = as_root!(pods("polpause", &[("big", "200")]));
    node.limiter.pause(true);
    node.limiter.set_last_resort(LastResort::Any);
    let watched = node.watched(Options::at(400));
    assert!(watched.has_no_candidates().1.paused);
    assert!(hogs[0].is_alive());
    node.limiter.pause(false);
    assert!(!watched.evicts("big").last_resort);
}

/// The reason is reported anew where it is another one by now.
// R38
#[test]
fn what_is_not_urgent_waits_for_policies() {
    let (node, mut hogs) = as_root!(pods("polawait", &[("big", "200")]));
    node.limiter.await_policies(u64::MAX);
    let watched = node.watched(Options::at(400));
    for is_paused in [false, true, false] {
        node.limiter.pause(is_paused);
        let held = watched.has_no_candidates().1;
        assert_eq!((held.paused, held.urgent_only), (is_paused, true));
    }
    assert!(hogs[0].is_alive());
    node.limiter.await_policies(0);
    watched.evicts("big");
}

#[test]
fn the_last_resort_takes_those_of_a_condition_before_those_of_a_never() {
    let (mut node, mut hogs) = as_root!(pods("pollast", &[("never", "150"), ("when", "60")]));
    let grows = node.best_effort("grows");
    node.limiter.set_last_resort(LastResort::Any);
    let table = node.table();
    set(&table, "never", Permission::Never, 0, &[]);
    set(&table, "when", Permission::Denied, 0, &[]);
    set(&table, "grows", Permission::Never, 0, &[]);
    let watched = node.watched_with(table, Options::at(320));
    // It is not urgent.
    watched.has_no_candidates();
    let _hog = Hog::start(&grows, &["--mib", "240", "--rate", "200"]).unwrap();
    assert!(watched.evicts("when").last_resort);
    std::thread::sleep(Duration::from_millis(200));
    assert!(hogs[0].is_alive(), "one was enough");
}
