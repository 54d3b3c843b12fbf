//! What the Node says under pressure, and that it is clean again afterwards, whichever agent cleans up (R6, R7, R17, R24, R29).

use evictd_config::TaintConfig;
use evictd_engine::{NodeCondition, NodeState};
use evictd_kube::node_status::{NodeWriter, StaleConditions};
use evictd_tests::{apiserver::State, prelude::*};

fn has_condition(state: &State) -> bool {
    state.has_condition("EvictdMemoryPressure")
}

const TAINT: &str = "evictd.dev/memory-pressure";

fn says(state: &State) -> bool {
    let is_soft = state.node()["spec"]["taints"][1]["effect"] == "PreferNoSchedule";
    has_condition(state) && is_soft && state.taints() == ["example.org/kept", TAINT]
}

fn is_clean(state: &State) -> bool {
    !has_condition(state) && state.taints() == ["example.org/kept"]
}

/// A node whose pressure lasts for a period, with a taint, or none, so long after the condition; its hog is dead.
fn pressed_with(name: &str, period: &str, taint: Value) -> (ClusterNode, Agent) {
    let (mut member, wild) = ClusterNode::with_wild(name).unwrap();
    member.config["evictionPressureTransitionPeriod"] = period.into();
    member.config["cluster"]["taint"] = taint;
    let agent = member.start().unwrap();
    Hog::until_killed(&wild, &["--mib", "1024"]);
    (member, agent)
}

/// The same with a taint as soon as the condition: how long the pressure lasts depends on the machine.
fn under_pressure(name: &str, period: &str) -> (ClusterNode, Agent) {
    pressed_with(name, period, json!({"setAfter": "0s"}))
}

// R6, R7, R24: at once, for as long as the transition period, and without touching what is not ours.
#[test]
fn condition_and_taint_come_and_go() {
    let (member, _agent) = as_root!(under_pressure("comes", "2s"));
    assert!(member.server.wait(SOON, says), "it says so");
    // R17, R29: the pod that comes back at once finds the taint.
    std::thread::sleep(Duration::from_millis(500));
    assert!(says(&member.server.state()), "not for a moment only");
    // And no longer than needed.
    assert!(member.server.wait(SOON, is_clean));
    let state = member.server.state();
    let conditions = state.node()["status"]["conditions"].as_array().unwrap();
    let kubelets = conditions.iter().map(|condition| &condition["type"]);
    let kubelets: Vec<_> = kubelets.collect();
    assert_eq!(kubelets, ["MemoryPressure", "Ready"], "are left alone");
    let patches = state.all("PATCH", "/api/v1/nodes/n2");
    for patch in patches.filter(|r| !r.path.ends_with("status")) {
        let precondition = &patch.body["metadata"]["resourceVersion"];
        assert!(precondition.is_string());
    }
}

// An upgrade under pressure: what holds is taken over, and goes when its time is over.
#[test]
fn the_next_agent_takes_over_what_holds() {
    let (member, mut agent) = as_root!(under_pressure("takeover", "4s"));
    assert!(member.server.wait(SOON, says));
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert!(says(&member.server.state()), "the pressure is not over");
    let before = member.server.count("PATCH", "/api/v1/nodes/n2");
    let mut next = member.start().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let writes = member.server.count("PATCH", "/api/v1/nodes/n2");
    assert_eq!(writes, before, "taken over, not written again");
    assert!(member.server.wait(SOON, is_clean));
    assert_eq!(next.terminate().unwrap(), Some(0));
    assert!(is_clean(&member.server.state()));
}

// The pod is dead within milliseconds: the condition says so for its period, and no taint leads other pods away.
#[test]
fn a_pressure_of_a_moment_sets_no_taint() {
    let taint = json!({"setAfter": "2s"});
    let (member, _agent) = as_root!(pressed_with("moment", "4s", taint));
    assert!(member.server.wait(SOON, has_condition));
    assert!(member.server.wait(SOON, |s| !has_condition(s)));
    let state = member.server.state();
    let mut writes = state.all("PATCH", "/api/v1/nodes/n2");
    assert!(writes.all(|write| write.path.ends_with("/status")));
}

// After kill -9 the next agent keeps to the period and cleans up then.
// R7
#[test]
fn the_next_agent_cleans_up_after_a_crash() {
    let (member, agent) = as_root!(under_pressure("crashed", "3s"));
    assert!(member.server.wait(SOON, says));
    agent.kill();
    let _agent = member.start().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    // The transition period holds across a crash.
    assert!(says(&member.server.state()));
    assert!(member.server.wait(SOON, is_clean));
}

// R7: an API server that starts says by mistake that there is no such right, or no such Node.
#[test]
fn the_next_agent_cleans_up_after_a_refusal() {
    skip_if!(not_root());
    let (member, agent) = under_pressure("refused", "2s");
    assert!(member.server.wait(SOON, says));
    agent.kill();
    for code in [403, 404] {
        member.server.fails("GET", "/nodes/n2", 1, code);
    }
    let _agent = member.start().unwrap();
    assert!(member.server.wait(SOON, is_clean));
}

// R7: what an earlier agent has left may not be told for long; what this one says is written all the same.
#[test]
fn a_condition_does_not_wait_for_what_is_left() {
    skip_if!(not_root());
    let (mut member, wild) = ClusterNode::with_wild("untold").unwrap();
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    member.server.fails("GET", "/nodes/n2", usize::MAX, 403);
    let agent = member.start().unwrap();
    Hog::until_killed(&wild, &["--mib", "1024"]);
    assert!(member.server.wait(SOON, has_condition));
    member.server.state().faults.clear();
    assert!(member.server.wait(SOON, is_clean));
    let told = "what an earlier agent has left on it is not known yet";
    assert_eq!(agent.log().matches(told).count(), 1);
}

/// The configuration is another one from now on.
fn set_shadow(member: &mut ClusterNode, agent: &Agent, shadow: bool) {
    let changes = || agent.log().matches("has changed and is in force").count();
    let before = changes();
    member.config["shadow"] = shadow.into();
    member.write().unwrap();
    assert!(until(SOON, || changes() > before));
}

// R47: an agent that starts in shadow mode and leaves it cleans up as one that starts afterwards.
#[test]
fn what_was_left_goes_when_shadow_mode_is_over() {
    let (mut member, mut agent) = as_root!(under_pressure("unshadowed", "2s"));
    assert!(member.server.wait(SOON, says));
    assert_eq!(agent.terminate().unwrap(), Some(0));
    member.config["shadow"] = true.into();
    let mut agent = member.start().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(says(&member.server.state()), "it is left alone");
    set_shadow(&mut member, &agent, false);
    assert!(member.server.wait(SOON, is_clean));
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

// R47: shadow mode that comes while something is on the node tries to write nothing, and holds up no end.
#[test]
fn shadow_mode_leaves_alone_what_is_there() {
    let (mut member, agent) = as_root!(under_pressure("shadowed", "8s"));
    assert!(member.server.wait(SOON, says));
    drop(agent);
    let mut agent = member.start().unwrap();
    set_shadow(&mut member, &agent, true);
    std::thread::sleep(Duration::from_secs(9));
    assert!(says(&member.server.state()));
    assert!(!agent.log().contains("the Node cannot be updated"));
    let asked = Instant::now();
    assert_eq!(agent.terminate().unwrap(), Some(0));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

// R7: its own time takes it away: without a look or an event.
#[test]
fn what_was_left_goes_when_its_time_is_over() {
    let kept = PolicyFixture {
        taints: &[TAINT],
        with_condition: true,
        taint: Some(TaintConfig::default()),
        stays: Some(Duration::from_millis(300)),
        ..PolicyFixture::default()
    };
    kept.until(is_clean);
}

/// A node on which an earlier agent has left taints and a condition, and an agent that keeps it.
#[derive(Default)]
struct PolicyFixture<'a> {
    taints: &'a [&'a str],
    with_condition: bool,
    /// The agent's own taint, and prefixes of earlier ones.
    taint: Option<TaintConfig>,
    former: &'a [&'a str],
    /// One PATCH of this path is refused with this code.
    refusal: Option<(&'static str, u16)>,
    wanted: NodeState,
    /// For how long what was left stays; as long as the test without it.
    stays: Option<Duration>,
    /// After which time what holds is written again; never without it.
    repeat: Option<Duration>,
}

impl PolicyFixture<'_> {
    /// Keeps the node until the condition holds.
    fn until(self, done: impl Fn(&State) -> bool) -> ApiServer {
        let Self {
            taint,
            wanted,
            stays,
            ..
        } = self;
        let server = ApiServer::start().unwrap();
        server.state().is_agents_alone = true;
        if let Some((path, code)) = self.refusal {
            server.fails("PATCH", path, 1, code);
        }
        {
            let mut state = server.state();
            let node = state.node_mut();
            let soft = |key| json!({"key": key, "effect": "PreferNoSchedule"});
            let taints = node["spec"]["taints"].as_array_mut().unwrap();
            taints.extend(self.taints.iter().map(soft));
            let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.extend(self.with_condition.then_some(condition));
        }
        let former = self.former.iter().map(|&prefix| prefix.to_owned());
        let (long, former) = (SOON * 10, former.collect());
        let repeat = self.repeat.unwrap_or(long);
        current_thread().unwrap().block_on(async {
            let writer = NodeWriter::new(server.client().await, NODE, taint, former, repeat);
            let found = writer.previous_status().await.unwrap();
            let until = tokio::time::Instant::now() + stays.unwrap_or(long);
            if stays.is_some() {
                assert!(says(&server.state()));
                assert_eq!((found.conditions.len(), found.taints.len()), (1, 1));
            }
            let stale = StaleConditions {
                conditions: found.conditions,
                taints: found.taints,
                until,
            };
            let (_silent, mut desired) = tokio::sync::watch::channel(wanted);
            let reached = async {
                while !done(&server.state()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = writer.run(stale, &mut desired) => panic!("it keeps the node for as long as there is a sender"),
                reached = tokio::time::timeout(SOON, reached) => {
                    reached.unwrap_or_else(|_| panic!("{:?}", server.state().taints()));
                }
            }
            let is_over = tokio::time::Instant::now() >= until;
            assert_eq!(is_over, stays.is_some(), "the transition period holds");
        });
        server
    }
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
    let (left, custom_left) = (TAINT, "example.com/memory-pressure");
    let (kept, default) = ("example.org/kept", TaintConfig::default());
    let former = &["example.com/"][..];
    for (there, with_condition, taint, former, expected) in [
        (left, true, Some(custom()), &[][..], vec![kept, custom_left]),
        (left, false, Some(custom()), &[], vec![kept]),
        (left, true, None, &[], vec![kept]),
        (custom_left, true, None, former, vec![kept]),
        (custom_left, true, Some(default), former, vec![kept, left]),
    ] {
        let node = PolicyFixture {
            taints: &[there],
            with_condition,
            taint,
            former,
            ..PolicyFixture::default()
        };
        let server = node.until(|s| s.taints() == expected);
        assert_eq!(has_condition(&server.state()), with_condition, "{there}");
    }
    // One that no configuration has named belongs to another component.
    let node = PolicyFixture {
        taints: &[custom_left],
        wanted: wanted(),
        ..PolicyFixture::default()
    };
    let server = node.until(has_condition);
    assert_eq!(server.state().taints(), [kept, custom_left]);
}

/// Under pressure, at this moment.
fn wanted() -> NodeState {
    let memory = BTreeSet::from([NodeCondition::MemoryPressure]);
    NodeState {
        conditions: memory.clone(),
        under_pressure: memory,
        message: "short".to_owned(),
    }
}

// R24: each kind of pressure has a taint of its own.
#[test]
fn each_condition_has_its_taint() {
    let all = BTreeSet::from([
        NodeCondition::DiskPressure,
        NodeCondition::MemoryPressure,
        NodeCondition::PidPressure,
    ]);
    let node = PolicyFixture {
        taint: Some(TaintConfig {
            set_after: Duration::ZERO,
            ..TaintConfig::default()
        }),
        wanted: NodeState {
            conditions: all.clone(),
            under_pressure: all,
            message: "short".to_owned(),
        },
        ..PolicyFixture::default()
    };
    let keys = ["disk", "memory", "pid"].map(|name| format!("evictd.dev/{name}-pressure"));
    let has = |s: &State| keys.iter().all(|key| s.taints().contains(&&**key));
    let server = node.until(has);
    assert_eq!(server.state().taints().len(), 1 + keys.len());
}

// An admission policy that refuses the taint leaves the condition.
#[test]
fn the_condition_is_written_when_the_taint_is_refused() {
    let taint = TaintConfig {
        set_after: Duration::ZERO,
        ..TaintConfig::default()
    };
    let node = PolicyFixture {
        taint: Some(taint),
        refusal: Some(("/nodes/n2", 403)),
        wanted: wanted(),
        ..PolicyFixture::default()
    };
    let server = node.until(says);
    let state = server.state();
    let patched = state.all("PATCH", "/nodes/n2");
    let patched: Vec<_> = patched.filter_map(|r| r.path.rsplit('/').next()).collect();
    assert_eq!(patched, ["n2", "status", "n2"], "only the taint again");
}

/// A Node that is made anew under its name says nothing: what holds is written again.
#[test]
fn what_holds_is_said_again() {
    let node = PolicyFixture {
        taint: Some(custom()),
        wanted: wanted(),
        repeat: Some(Duration::from_millis(200)),
        ..PolicyFixture::default()
    };
    node.until(|state| {
        let patches = state.count("PATCH", "/nodes/n2/status");
        patches >= 3 && state.count("GET", "/nodes/n2") >= 3
    });
}

// A lost answer: what was asked for may be there or not, and has the same time in either case.
#[test]
fn a_condition_that_is_written_again_has_its_time() {
    let node = PolicyFixture {
        refusal: Some(("/nodes/n2/status", 500)),
        wanted: wanted(),
        ..PolicyFixture::default()
    };
    let server = node.until(has_condition);
    let state = server.state();
    let patches = state.all("PATCH", "/nodes/n2/status");
    let times = patches.map(|r| &r.body["status"]["conditions"][0]["lastTransitionTime"]);
    let times: Vec<_> = times.collect();
    assert_eq!(times.len(), 2);
    assert!(times[0].is_string() && times[0] == times[1], "{times:?}");
}

// Another writer changes the node between reading and writing, and the server fails for a while.
#[test]
fn conflicts_and_failures_are_outlasted() {
    let (mut member, wild) = as_root!(ClusterNode::with_wild("conflict").unwrap());
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    member.config["evictionPressureTransitionPeriod"] = "5m".into();
    let _agent = member.start().unwrap();
    for code in [409, 500] {
        member.server.fails("PATCH", "/nodes/n2", 1, code);
    }
    Hog::until_killed(&wild, &["--mib", "1024"]);
    assert!(member.server.wait(SOON, says));
}

#[test]
fn the_taint_can_be_switched_off() {
    let (member, _agent) = as_root!(pressed_with("notaint", "5m", false.into()));
    assert!(member.server.wait(SOON, has_condition));
    assert_eq!(member.server.state().taints(), ["example.org/kept"]);
}
