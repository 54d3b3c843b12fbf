//! What the Node says under pressure, and that it is clean again afterwards, whichever agent cleans up (R6, R7, R17, R24, R29).

use evictd_config::TaintConfig;
use evictd_engine::NodeCondition;
use evictd_kube::{
    client::ApiClient,
    node_status::{DesiredStatus, NodeWriter, StaleConditions},
};
use evictd_tests::{apiserver::State, prelude::*};

fn has_condition(state: &State) -> bool {
    state.has_condition("EvictdMemoryPressure")
}

fn says(state: &State) -> bool {
    let taints_of = &state.node["spec"]["taints"];
    let is_soft = taints_of[1]["effect"] == "PreferNoSchedule";
    has_condition(state)
        && is_soft
        && state.taints() == ["example.org/kept", "evictd.dev/memory-pressure"]
}

fn is_clean(state: &State) -> bool {
    !has_condition(state) && state.taints() == ["example.org/kept"]
}

/// A node under pressure, whose hog is dead.
fn pressed(name: &str, period: &str) -> (ClusterNode, evictd_tests::agent::Agent) {
    let mut member = ClusterNode::new(name, 256).unwrap();
    member.config["evictionPressureTransitionPeriod"] = period.into();
    // As soon as the condition: how long the pressure lasts depends on the machine.
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    let wild = member.pod("wild", 1, "BestEffort", 0, None).unwrap();
    let agent = member.start().unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    (member, agent)
}

// R6, R7, R24: at once, for as long as the transition period, and without touching what is not ours.
#[test]
fn condition_and_taint_come_and_go() {
    skip_if!(not_root());
    let (member, _agent) = pressed("comes", "2s");
    assert!(member.server.wait(SOON, says), "it says so");
    // R17, R29: the pod that comes back at once finds the taint.
    std::thread::sleep(Duration::from_millis(500));
    assert!(says(&member.server.state()), "not for a moment only");
    assert!(
        member.server.wait(SOON, is_clean),
        "and no longer than needed"
    );
    let state = member.server.state();
    let conditions = state.node["status"]["conditions"].as_array().unwrap();
    let kubelets: Vec<_> = conditions
        .iter()
        .filter_map(|c| c["type"].as_str())
        .collect();
    assert_eq!(
        kubelets,
        ["MemoryPressure", "Ready"],
        "the kubelet's are left alone"
    );
    for patch in state
        .all("PATCH", "/api/v1/nodes/n2")
        .filter(|r| !r.path.ends_with("status"))
    {
        assert!(
            patch.body["metadata"]["resourceVersion"].is_string(),
            "a precondition"
        );
    }
}

// An upgrade under pressure: what holds is taken over, and goes when its time is over.
#[test]
fn the_next_agent_takes_over_what_holds() {
    skip_if!(not_root());
    let (member, mut agent) = pressed("takeover", "4s");
    assert!(member.server.wait(SOON, says));
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert!(says(&member.server.state()), "the pressure is not over");
    let before = member.server.state().count("PATCH", "/api/v1/nodes/n2");
    let mut next = member.start().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let writes = member.server.state().count("PATCH", "/api/v1/nodes/n2");
    assert_eq!(writes, before, "taken over, not written again");
    assert!(member.server.wait(SOON, is_clean));
    assert_eq!(next.terminate().unwrap(), Some(0));
    assert!(is_clean(&member.server.state()));
}

// The pod is dead within milliseconds: the condition says so for its period, and no taint leads other pods away.
#[test]
fn a_pressure_of_a_moment_sets_no_taint() {
    skip_if!(not_root());
    let mut member = ClusterNode::new("moment", 256).unwrap();
    member.config["evictionPressureTransitionPeriod"] = "4s".into();
    member.config["cluster"]["taint"] = json!({"setAfter": "2s"});
    let wild = member.pod("wild", 1, "BestEffort", 0, None).unwrap();
    let agent = member.start().unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(member.server.wait(SOON, has_condition), "{}", agent.log());
    assert!(member.server.wait(SOON, |s| !has_condition(s)));
    let state = member.server.state();
    let mut writes = state.all("PATCH", "/api/v1/nodes/n2");
    assert!(writes.all(|write| write.path.ends_with("/status")));
}

// After kill -9 the next agent keeps to the period and cleans up then.
// R7
#[test]
fn the_next_agent_cleans_up_after_a_crash() {
    skip_if!(not_root());
    let (member, agent) = pressed("crashed", "3s");
    assert!(member.server.wait(SOON, says));
    drop(agent);
    let _agent = member.start().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        says(&member.server.state()),
        "the transition period holds across a crash"
    );
    assert!(member.server.wait(SOON, is_clean));
}

// R7: its own time takes it away: without a look or an event.
#[test]
fn what_was_left_goes_when_its_time_is_over() {
    let server = ApiServer::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(dir.path()).unwrap();
    {
        let mut state = server.state();
        let taint = json!({"key": "evictd.dev/memory-pressure", "effect": "PreferNoSchedule"});
        let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
        let node = &mut state.node;
        node["spec"]["taints"].as_array_mut().unwrap().push(taint);
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(condition);
        assert!(says(&state));
    }
    let runtime = current_thread().unwrap();
    runtime.block_on(async {
        let connection = ApiClient::open(Some(kubeconfig)).await.unwrap();
        let taint = Some(TaintConfig::default());
        let writer = NodeWriter::new(Arc::new(connection), NODE, taint, Vec::new(), SOON);
        let left = writer.left_over().await.unwrap();
        assert_eq!((left.conditions.len(), left.taints.len()), (1, 1));
        let until = tokio::time::Instant::now() + Duration::from_millis(300);
        let (_silent, wanted) = tokio::sync::watch::channel(DesiredStatus::default());
        let keeping = writer.run(
            StaleConditions {
                conditions: left.conditions,
                taints: left.taints,
                until,
            },
            wanted,
        );
        let cleaned = async {
            while !is_clean(&server.state()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = keeping => panic!("it keeps the node for as long as there is a sender"),
            cleaned = tokio::time::timeout(SOON, cleaned) => cleaned.expect("it goes by itself"),
        }
        assert!(
            tokio::time::Instant::now() >= until,
            "the transition period holds"
        );
    });
}

/// A node on which an earlier agent has left these taints, and the condition too if it was still there; an agent with this taint
/// keeps it while `wanted` is what it should say, until `done`. One PATCH may be refused.
fn kept(
    left: (&[&str], bool),
    taint: (Option<TaintConfig>, &[&str]),
    refusal: Option<(&'static str, u16)>,
    wanted: DesiredStatus,
    done: impl Fn(&State) -> bool,
) -> ApiServer {
    kept_again(SOON * 10, left, taint, refusal, wanted, done)
}

/// The same, written again after each `repeat`.
fn kept_again(
    repeat: Duration,
    (left, with_condition): (&[&str], bool),
    (taint, former): (Option<TaintConfig>, &[&str]),
    refusal: Option<(&'static str, u16)>,
    wanted: DesiredStatus,
    done: impl Fn(&State) -> bool,
) -> ApiServer {
    let server = ApiServer::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(dir.path()).unwrap();
    {
        let mut state = server.state();
        if let Some((path, code)) = refusal {
            state.fails("PATCH", path, 1, InjectedFault::Status(code));
        }
        let node = &mut state.node;
        let taints = node["spec"]["taints"].as_array_mut().unwrap();
        taints.extend(
            left.iter()
                .map(|key| json!({"key": key, "effect": "PreferNoSchedule"})),
        );
        let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.extend(with_condition.then_some(condition));
    }
    let former = former.iter().map(|&prefix| prefix.to_owned()).collect();
    let runtime = current_thread().unwrap();
    runtime.block_on(async {
        let connection = ApiClient::open(Some(kubeconfig)).await.unwrap();
        let writer = NodeWriter::new(Arc::new(connection), NODE, taint, former, repeat);
        let found = writer.left_over().await.unwrap();
        let stale = StaleConditions {
            conditions: found.conditions,
            taints: found.taints,
            // For as long as the test.
            until: tokio::time::Instant::now() + SOON * 10,
        };
        let (_silent, desired) = tokio::sync::watch::channel(wanted);
        let reached = async {
            while !done(&server.state()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = writer.run(stale, desired) => panic!("it keeps the node for as long as there is a sender"),
            reached = tokio::time::timeout(SOON, reached) => {
                reached.unwrap_or_else(|_| panic!("{:?}", server.state().taints()));
            }
        }
    });
    server
}

fn custom() -> TaintConfig {
    TaintConfig {
        key_prefix: "example.com/".to_owned(),
        ..TaintConfig::default()
    }
}

// R7: a taint of an earlier configuration is no agent's any more.
#[test]
fn taints_of_an_earlier_configuration_go() {
    let left = "evictd.dev/memory-pressure";
    let custom_left = "example.com/memory-pressure";
    let kept_one = "example.org/kept";
    let default = TaintConfig::default;
    for (there, with_condition, taint, former, expected) in [
        (
            left,
            true,
            Some(custom()),
            &[][..],
            vec![kept_one, custom_left],
        ),
        (left, false, Some(custom()), &[], vec![kept_one]),
        (left, true, None, &[], vec![kept_one]),
        (custom_left, true, None, &["example.com/"], vec![kept_one]),
        (
            custom_left,
            true,
            Some(default()),
            &["example.com/"],
            vec![kept_one, left],
        ),
    ] {
        let wanted = DesiredStatus::default();
        let before = (&[there][..], with_condition);
        let server = kept(before, (taint, former), None, wanted, |s| {
            s.taints() == expected
        });
        assert_eq!(has_condition(&server.state()), with_condition, "{there}");
    }
    // One that no configuration has named belongs to another component.
    let stays = |s: &State| s.count("GET", "/nodes/n2") > 0;
    let before = (&[custom_left][..], false);
    let server = kept(before, (None, &[]), None, DesiredStatus::default(), stays);
    assert_eq!(server.state().taints(), [kept_one, custom_left]);
}

/// Under pressure, at this moment.
fn wanted() -> DesiredStatus {
    let memory = BTreeSet::from([NodeCondition::MemoryPressure]);
    DesiredStatus {
        conditions: memory.clone(),
        pressed: memory,
        message: "short".to_owned(),
    }
}

// An admission policy that refuses the taint leaves the condition.
#[test]
fn the_condition_is_written_when_the_taint_is_refused() {
    let taint = TaintConfig {
        set_after: Duration::ZERO,
        ..TaintConfig::default()
    };
    let refusal = Some(("/nodes/n2", 403));
    let server = kept((&[], false), (Some(taint), &[]), refusal, wanted(), says);
    let state = server.state();
    let patched: Vec<&str> = state
        .all("PATCH", "/nodes/n2")
        .map(|r| r.path.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(patched, ["n2", "status", "n2"], "only the taint again");
}

/// A Node that is made anew under its name says nothing: what holds is written again.
#[test]
fn what_holds_is_said_again() {
    let taint = Some(custom());
    let is_said_again = |state: &State| {
        let patches = state.count("PATCH", "/nodes/n2/status");
        patches >= 3 && state.count("GET", "/nodes/n2") >= 3
    };
    let often = Duration::from_millis(200);
    kept_again(
        often,
        (&[], false),
        (taint, &[]),
        None,
        wanted(),
        is_said_again,
    );
}

// A lost answer: what was asked for may be there or not, and has the same time in either case.
#[test]
fn a_condition_that_is_written_again_has_its_time() {
    let refusal = Some(("/nodes/n2/status", 500));
    let server = kept((&[], false), (None, &[]), refusal, wanted(), has_condition);
    let state = server.state();
    let times: Vec<_> = state
        .all("PATCH", "/nodes/n2/status")
        .map(|r| r.body["status"]["conditions"][0]["lastTransitionTime"].clone())
        .collect();
    assert_eq!(times.len(), 2);
    assert!(times[0].is_string() && times[0] == times[1], "{times:?}");
}

// Another writer changes the node between reading and writing, and the server fails for a while.
#[test]
fn conflicts_and_failures_are_outlasted() {
    skip_if!(not_root());
    let mut member = ClusterNode::new("conflict", 256).unwrap();
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    member.config["evictionPressureTransitionPeriod"] = "5m".into();
    let wild = member.pod("wild", 1, "BestEffort", 0, None).unwrap();
    let _agent = member.start().unwrap();
    for code in [409, 500] {
        member
            .server
            .state()
            .fails("PATCH", "/nodes/n2", 1, InjectedFault::Status(code));
    }
    let mut hog = Hog::start(&wild, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(member.server.wait(SOON, says));
}

#[test]
fn the_taint_can_be_switched_off() {
    skip_if!(not_root());
    let mut member = ClusterNode::new("notaint", 256).unwrap();
    member.config["cluster"]["taint"] = false.into();
    member.config["evictionPressureTransitionPeriod"] = "5m".into();
    let wild = member.pod("wild", 1, "BestEffort", 0, None).unwrap();
    let _agent = member.start().unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(member.server.wait(SOON, has_condition));
    assert_eq!(member.server.state().taints(), ["example.org/kept"]);
}
