//! The fleet brake: many nodes that evict slow each other down and then pause, and what is urgent goes on.

use evictd_config::{ConfigMapName, FleetConfig};
use evictd_engine::{
    fleet::{FleetPace, FleetRules},
    limiter::{EvictionKind, EvictionLimiter},
    permit::LastResort,
};
use evictd_kube::fleet_brake::{FleetBrake, ReportTimes};
use evictd_tests::{
    apiserver::State,
    policy_fixture::{BarePod, charge},
    prelude::*,
    watch_fixture::WatchFixture,
};
use jiff::{SignedDuration, Timestamp};

use crate::manager::with_empty_dir;

const SPACE: &str = "evictd";
const NAME: &str = "evictd-fleet";
const EVICTIONS: &str = "evictd-fleet-evictions";

/// One node's agent, as far as the brake goes.
struct Node {
    limiter: Arc<EvictionLimiter>,
    fleet: Arc<FleetBrake>,
}

impl Node {
    fn new(following: &WatchFixture, name: &str) -> Self {
        Self::with_window(following, name, Duration::from_secs(600))
    }

    fn with_window(following: &WatchFixture, name: &str, window: Duration) -> Self {
        let config = FleetConfig {
            config_map: ConfigMapName {
                namespace: SPACE.into(),
                name: NAME.into(),
            },
            rules: FleetRules {
                window,
                slow_nodes: 2,
                pause_nodes: 3,
                pause: Duration::from_secs(600),
                slow_interval: Duration::from_secs(60),
            },
        };
        let limiter = Arc::new(EvictionLimiter::default());
        let times = ReportTimes {
            spread: Duration::ZERO,
            every: Duration::from_millis(200),
        };
        let connection = Arc::clone(&following.connection);
        let fleet = FleetBrake::with_times(connection, config, name, Arc::clone(&limiter), times);
        following.spawn(Arc::clone(&fleet).run());
        Self { limiter, fleet }
    }

    fn evicts(&self) {
        charge(&self.limiter, &BarePod::default());
    }

    fn pace(&self) -> FleetPace {
        self.limiter.fleet_pace(monotonic_ns())
    }
}

fn maps(state: &mut State) {
    state.put_config_map(SPACE, NAME, json!({}));
    state.put_config_map(SPACE, EVICTIONS, json!({}));
}

/// A server on which these nodes have told of evictions.
fn with_entries(entries: Value) -> WatchFixture {
    let start = |server: &mut ApiServer| {
        let mut state = server.state();
        maps(&mut state);
        state.put_config_map(SPACE, EVICTIONS, entries);
    };
    WatchFixture::new(start).unwrap()
}

/// Another node has published how fast the fleet may evict for ten minutes.
fn publish(state: &mut State, pace: &str) {
    maps(state);
    let until = (Timestamp::now() + SignedDuration::from_mins(10)).to_string();
    let published = json!({"pace": pace, "until": until, "nodes": "40", "by": "other"});
    state.put_config_map(SPACE, NAME, published);
}

/// A node of a fleet of that pace.
fn member(name: &str, pace: &str, slow_interval: &str) -> ClusterNode {
    let mut member = ClusterNode::new(name, 256).unwrap();
    let map = format!("{SPACE}/{NAME}");
    member.config["cluster"]["fleetBrake"] =
        json!({"configMap": map, "slowInterval": slow_interval});
    publish(&mut member.server.state(), pace);
    member
}

fn entries(state: &State) -> Vec<String> {
    let map = state.config_map(SPACE, EVICTIONS);
    let data = map["data"].as_object().cloned().unwrap_or_default();
    data.into_iter().map(|(node, _)| node).collect()
}

fn ago(minutes: i64) -> Value {
    let then = Timestamp::now() - SignedDuration::from_mins(minutes);
    then.to_string().into()
}

#[test]
fn nodes_that_evict_slow_all_down_and_then_pause_them() {
    let f = WatchFixture::new(|server| maps(&mut server.state())).unwrap();
    let (one, two, calm) = (
        Node::new(&f, "n1"),
        Node::new(&f, "n2"),
        Node::new(&f, "n3"),
    );
    one.evicts();
    assert!(f.wait(|f| entries(&f.server.state()) == ["n1"]));
    assert_eq!(one.pace(), FleetPace::Normal);
    two.evicts();
    // It has evicted nothing itself.
    assert!(f.wait(|_| calm.pace() == FleetPace::Slow));
    assert!(f.wait(|_| one.pace() == FleetPace::Slow));
    let now = monotonic_ns();
    assert!(calm.limiter.allows_paced(now), "its first one");
    // Its next one comes a minute later.
    assert!(!one.limiter.allows_paced(now));
    // A node that another agent speaks for, and one from long ago that does not count.
    {
        let mut state = f.server.state();
        let mut data = state.config_map(SPACE, EVICTIONS)["data"].clone();
        data["other"] = ago(1);
        data["gone"] = ago(60);
        state.put_config_map(SPACE, EVICTIONS, data);
    }
    one.evicts();
    let nodes = [&one, &two, &calm];
    assert!(f.wait(|_| nodes.iter().all(|n| n.pace() == FleetPace::Paused)));
    for node in nodes {
        let (pod, now) = (BarePod::default(), monotonic_ns());
        assert!(
            node.limiter
                .allows(&pod, now, EvictionKind::Urgent, LastResort::None),
            "urgent"
        );
        assert!(!node.limiter.allows_paced(now));
    }
    assert!(f.wait(|f| f.server.count("POST", "/events") == 2));
    let state = f.server.state();
    // There were enough already: nothing more was written, and old ones wait for the next write.
    assert_eq!(entries(&state), ["gone", "n1", "n2", "other"]);
    let told = state
        .all("POST", "/events")
        .map(|e| e.body["reason"].clone());
    assert_eq!(told.collect::<Vec<_>>(), ["FleetBrakePulled"; 2]);
}

/// When there are enough entries no other one is needed; nothing watches them.
#[test]
fn enough_entries_take_no_more_writes() {
    let f = with_entries(json!({"a": ago(1), "b": ago(2), "c": ago(3)}));
    let nodes: Vec<Node> = (0..5).map(|i| Node::new(&f, &format!("n{i}"))).collect();
    nodes.iter().for_each(Node::evicts);
    assert!(f.wait(|_| nodes.iter().all(|n| n.pace() == FleetPace::Paused)));
    let state = f.server.state();
    assert_eq!(state.count("PATCH", EVICTIONS), 0);
    let mut reads = state.all("GET", EVICTIONS);
    assert!(reads.all(|r| !r.query.contains("watch")));
    // Those that were late have heard that another one was faster.
    assert!(state.count("PATCH", NAME) <= nodes.len());
}

/// A node that is restarted within the window has told of its eviction, and others as well. The brake was released since.
#[test]
fn a_restart_pulls_no_brake_that_was_released() {
    let before = i64::try_from(monotonic_ns()).unwrap() - 60_000_000_000;
    let f = with_entries(json!({"n0": ago(1), "a": ago(1), "b": ago(2), "c": ago(3)}));
    // The second one found enough entries when it had evicted.
    let nodes = ["n0", "n1"].map(|name| Node::new(&f, name));
    let restored = |n: &Node| n.limiter.note_restored(before);
    nodes.iter().for_each(restored);
    // Each looks at the start, and for its report.
    assert!(f.wait(|f| f.server.count("GET", EVICTIONS) >= 4));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(f.server.count("PATCH", ""), 0);
    // One that is new pulls it.
    nodes[1].evicts();
    assert!(f.wait(|_| nodes.iter().all(|n| n.pace() == FleetPace::Paused)));
}

/// A large incident has left more than are taken: the next one finds room all the same.
#[test]
fn old_entries_keep_no_new_one_away() {
    let old = (0..2500).map(|node| (format!("old-{node}"), ago(60)));
    let f = with_entries(Value::Object(old.collect()));
    Node::new(&f, "n1").evicts();
    let is_reported = |f: &WatchFixture| entries(&f.server.state()).contains(&"n1".to_owned());
    assert!(f.wait(is_reported));
    assert!(entries(&f.server.state()).len() < 2500);
}

/// By this node's clock all of them are old: it is an hour ahead. Only what others have outlasted goes.
#[test]
fn a_wrong_clock_removes_no_entry_that_counts_for_others() {
    let f = with_entries(json!({"a": ago(60), "b": ago(61), "gone": ago(75)}));
    Node::new(&f, "n1").evicts();
    assert!(f.wait(|f| entries(&f.server.state()).contains(&"n1".to_owned())));
    assert_eq!(entries(&f.server.state()), ["a", "b", "n1"]);
}

/// What cannot be reported changes nothing, and is reported later.
#[test]
fn without_the_api_server_each_node_goes_on_by_itself() {
    let f = WatchFixture::new(|server| {
        let mut state = server.state();
        state.fails("GET", EVICTIONS, 2, 503);
    })
    .unwrap();
    let node = Node::new(&f, "n1");
    node.evicts();
    // 404 at last.
    assert!(f.wait(|f| f.server.count("GET", EVICTIONS) >= 3));
    assert_eq!(node.pace(), FleetPace::Normal);
    assert!(node.limiter.allows_paced(monotonic_ns()));
    maps(&mut f.server.state());
    assert!(f.wait(|f| entries(&f.server.state()) == ["n1"]));
}

/// An API server that was away for a while hears of evictions of that time, not of all nodes' evictions at once.
#[test]
fn an_eviction_of_an_outage_is_reported_with_its_own_time() {
    let away = |f: &WatchFixture| {
        let mut state = f.server.state();
        state.fails("", EVICTIONS, usize::MAX, 503);
    };
    let is_back = |f: &WatchFixture| f.server.state().faults.clear();
    let f = WatchFixture::new(|server| maps(&mut server.state())).unwrap();
    away(&f);
    let window = Duration::from_secs(8);
    let node = Node::with_window(&f, "n1", window);
    let evicted = Timestamp::now();
    node.evicts();
    std::thread::sleep(Duration::from_secs(3));
    is_back(&f);
    assert!(f.wait(|f| entries(&f.server.state()) == ["n1"]));
    let map = f.server.state().config_map(SPACE, EVICTIONS);
    let told: Timestamp = map["data"]["n1"].as_str().unwrap().parse().unwrap();
    let late = told.duration_since(evicted);
    assert!(late < SignedDuration::from_secs(2), "{late:?}");

    // One that no longer counts is not told at all, and the brake can be pulled nevertheless.
    away(&f);
    node.evicts();
    assert!(f.wait(|_| !node.fleet.is_available()));
    std::thread::sleep(window);
    is_back(&f);
    assert!(f.wait(|_| node.fleet.is_available()));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(f.server.state().config_map(SPACE, EVICTIONS), map);
    node.evicts();
    assert!(f.wait(|f| f.server.state().config_map(SPACE, EVICTIONS) != map));
}

/// An agent that ends at once after an eviction has not told of it.
#[test]
fn an_eviction_of_an_earlier_agent_is_reported_while_it_counts() {
    let f = WatchFixture::new(|server| maps(&mut server.state())).unwrap();
    let restarted = |name: &str, minutes: i64| {
        let node = Node::new(&f, name);
        let ago = i64::try_from(monotonic_ns()).unwrap() - minutes * 60_000_000_000;
        node.limiter.note_restored(ago);
        node
    };
    let _old = restarted("old", 11);
    let node = restarted("n1", 9);
    assert!(f.wait(|f| entries(&f.server.state()) == ["n1"]));
    let map = f.server.state().config_map(SPACE, EVICTIONS);
    let told: Timestamp = map["data"]["n1"].as_str().unwrap().parse().unwrap();
    let age = Timestamp::now().duration_since(told);
    assert!(age.as_mins() == 9, "{age:?}");
    // Its own is newer.
    node.evicts();
    assert!(f.wait(|f| f.server.state().config_map(SPACE, EVICTIONS) != map));
    assert_eq!(entries(&f.server.state()), ["n1"]);
}

/// An unavailable brake is noticed before it is needed, and so is its return.
#[test]
fn a_missing_config_map_is_noticed_without_an_eviction() {
    for missing in [NAME, EVICTIONS] {
        let f = WatchFixture::new(|server| {
            let mut state = server.state();
            let there = if missing == NAME { EVICTIONS } else { NAME };
            state.put_config_map(SPACE, there, json!({}));
        })
        .unwrap();
        let node = Node::new(&f, "n1");
        let asked = |f: &WatchFixture| {
            let state = f.server.state();
            state.count("GET", EVICTIONS) > 0 && state.count("GET", "/configmaps") > 1
        };
        assert!(f.wait(asked));
        assert!(!node.fleet.is_available(), "{missing}");
        maps(&mut f.server.state());
        assert!(f.wait(|_| node.fleet.is_available()), "{missing}");
        assert_eq!(f.server.count("PATCH", ""), 0);
    }
}

/// The last report counts.
#[test]
fn a_report_that_fails_is_noticed() {
    let f = WatchFixture::new(|server| maps(&mut server.state())).unwrap();
    let node = Node::new(&f, "n1");
    assert!(f.wait(|_| node.fleet.is_available()));
    f.server.fails("PATCH", EVICTIONS, 2, 403);
    node.evicts();
    assert!(f.wait(|_| !node.fleet.is_available()));
    assert!(f.wait(|f| entries(&f.server.state()) == ["n1"]));
    assert!(f.wait(|_| node.fleet.is_available()));
}

/// Lists are answered, and no watch: this node would hear of no pause.
#[test]
fn a_watch_that_is_forbidden_is_noticed() {
    let f = WatchFixture::new(|server| maps(&mut server.state())).unwrap();
    let node = Node::new(&f, "n1");
    assert!(f.wait(|_| node.fleet.is_available()));
    f.server.fails("GET", "/configmaps", usize::MAX, 403);
    f.server.state().end_watches();
    assert!(f.wait(|_| !node.fleet.is_available()));
    f.server.state().faults.clear();
    assert!(f.wait(|_| node.fleet.is_available()));
}

/// Its list is not answered: it knows nothing of a pause, which the entries alone would weaken.
#[test]
fn what_a_node_has_not_heard_of_is_not_weakened() {
    let f = WatchFixture::new(|server| {
        let mut state = server.state();
        publish(&mut state, "paused");
        state.put_config_map(SPACE, EVICTIONS, json!({"other": ago(1)}));
        state.fails("GET", "/configmaps", 1, InjectedFault::Hang);
    })
    .unwrap();
    let node = Node::new(&f, "n1");
    assert!(f.wait(|f| f.server.count("GET", "/configmaps") > 0));
    for times in 1..=2 {
        node.evicts();
        assert!(f.wait(|f| f.server.count("PATCH", EVICTIONS) == times));
    }
    let published = f.server.state().config_map(SPACE, NAME);
    assert_eq!(published["data"]["pace"], "paused");
}

/// Through the running agent: while other nodes have paused the fleet, a slow shortage waits; when they have not any more, it
/// does not.
#[test]
fn a_paused_fleet_holds_back_what_is_not_urgent() {
    let member = as_root!(member("fleet", "paused", "1s"));
    let base = member.best_effort("base", 1);
    let slow = member.best_effort("slow", 2);
    let _base = Hog::start(&base, &["--mib", "100"]).unwrap();
    let grows = ["--mib", "105", "--head", "85", "--rate", "3", "--wait"];
    let mut slow = Hog::start(&slow, &grows).unwrap();
    slow.take_head().unwrap();
    assert!(member.cgroup.holds(180));
    // It sees none of that grow.
    let agent = member.start().unwrap();
    assert!(agent.says("the fleet brake is active"));
    // What is left lasts for fifteen seconds at this rate, with room for a hog that catches up.
    slow.go().unwrap();
    let is_short = member.wait(SOON * 2, |m| m.cgroup.usage().unwrap() > 200 * MIB);
    assert!(is_short);
    // Without the pause a pod would go after ten seconds.
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(member.evictions(), []);
    member.server.state().put_config_map(SPACE, NAME, json!({}));
    assert!(member.wait(SOON * 2, |m| m.evictions().len() == 1));
    let entered = member.server.wait(SOON, |s| entries(s) == ["n2"]);
    assert!(entered, "it tells of its own");
}

#[test]
fn a_paused_fleet_outlives_a_restart_while_the_api_server_is_away() {
    let mut member = as_root!(member("fleetkept", "paused", "1s"));
    let first = member.start().unwrap();
    assert!(first.says("the fleet brake is active"));
    let file = member.dir().join("state/cluster.jsonl");
    let written = || fs::read_to_string(&file).unwrap_or_default();
    assert!(member.wait(SOON, |_| written().contains("fleet paused ")));
    drop(first);
    member.server.go_away();
    let second = member.start().unwrap();
    assert!(second.log().contains("the fleet brake is active"));
}

/// Bytes and inodes are short at one look, and the kubelet's reclaim has helped neither.
#[test]
fn a_slow_fleet_lets_one_pod_of_a_look_go() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let mut member = member("fleetslow", "slow", "1h");
    member.config["evictionHard"]["nodefs.available"] = json!("90%");
    member.config["evictionHard"]["nodefs.inodesFree"] = json!("90%");
    member.config["filesystems"] = json!({ "nodefs": disk.path() });
    let mut forkers = Vec::new();
    let dirs = [("bytes", 1), ("files", 2)].map(|(name, number)| {
        let cgroup = member.pod(name, number, "Burstable", 0, None).unwrap();
        forkers.push(Forker::start(Some(&cgroup)).unwrap());
        with_empty_dir(&member, &disk, name, number, &json!({}))
    });
    // More than half of both thresholds is left.
    fs::write(dirs[0].join("data"), vec![1; 16 << 20]).unwrap();
    forkers[1].files("make", &dirs[1], 1000);
    let agent = member.start().unwrap();
    assert!(agent.says("the fleet brake is active"));
    assert_eq!(member.evicted(1).len(), 1);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(member.evictions().len(), 1, "{:?}", member.evictions());
    let alive = forkers.iter_mut().filter_map(|f| f.order("hold 0").ok());
    assert_eq!(alive.count(), 1);
}
