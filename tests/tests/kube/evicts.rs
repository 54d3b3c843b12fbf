//! The whole path in a cluster: pressure, local SIGKILL, journal, DisruptionTarget, DELETE, Events; with the API server
//! there, away, slow, or forgetful. Real cgroups and processes below, a scripted API server above.

use evictd_sys::clock::boot_id;
use evictd_tests::{apiserver, cgroup::holds, held_in_exit::HeldInExit, prelude::*, scrape::value};

const WILD: [&str; 2] = ["--mib", "1024"];

// R45: kubernetes#69676. Nothing else says on the pod that its own limit was the reason.
#[test]
fn a_pod_at_its_own_limit_has_an_event() {
    let mut member = with_bpf!(ClusterNode::new("ownlimit", 512).unwrap());
    let address = listen(&mut member.config, "metricsAddress");
    let tight = member.pod("tight", 1, "Burstable", 0, None).unwrap();
    let uid = ClusterNode::uid(1);
    let pod = format!("kubepods/burstable/pod{uid}");
    member.cgroup.limit_child(&pod, 48 * MIB).unwrap();
    let agent = member.start().unwrap();
    let kills = |m: &ClusterNode| {
        let told = records_of!(m.records(), Record::OomKill(kill) => 1 + kill.more);
        told.into_iter().sum::<u64>()
    };
    for killed in 1..=3 {
        Hog::until_killed(&tight, &["--mib", "96"]);
        let seen = || value(&address, "evictd_oom_kills_at_pod_limit_total");
        assert!(until(SOON, || seen() == Some(killed)));
        assert!(member.wait(SOON, |m| kills(m) > 0));
    }
    let told = |m: &ClusterNode| events(m, "OOMKilledAtPodLimit", "Pod");
    assert!(member.wait(SOON, |m| !told(m).is_empty()));
    drop(agent);
    assert_eq!(kills(&member), 3, "the later ones together");
    // One in ten minutes.
    let event = only_event(&member, "OOMKilledAtPodLimit", "Pod");
    for (field, expected) in [
        ("/regarding/uid", &*uid),
        ("/regarding/name", "tight"),
        ("/type", "Warning"),
        ("/action", "Killing"),
        ("/reportingController", "evictd"),
    ] {
        assert_eq!(event.pointer(field).unwrap(), expected);
    }
    let note = event["note"].as_str().unwrap();
    has(note, &["killed hog", "limit of 48Mi", &pod]);
    assert!(member.evictions().is_empty());
    assert_eq!(member.server.count("DELETE", "/pods/"), 0);
}

/// A security module or a missing CAP_KILL. No kubelet has that, so that a DELETE would end them all.
// R43
#[test]
fn pods_whose_sigkill_is_refused_live_on() {
    const CAP_KILL: libc::c_ulong = 5;
    let member = as_root!(ClusterNode::new("held_in_exit", 256).unwrap());
    let mut hogs = [1, 2, 3, 4].map(|number| {
        let cgroup = member.best_effort(&format!("pod-{number}"), number);
        if cgroup.join("cgroup.kill").exists() {
            return None;
        }
        Some(Hog::start(&cgroup, &["--mib", "48", "--uid", "65534"]).unwrap())
    });
    skip_if!(
        hogs[0]
            .is_none()
            .then_some("cgroup.kill asks no permission")
    );
    let limit = |command: &mut Command| agent::limit_capabilities(command, |c| c != CAP_KILL);
    let agent = Agent::start_as(&member.write().unwrap(), &[], limit).unwrap();
    assert_eq!(member.outcomes(1).len(), 1, "{}", agent.log());
    has(
        &member.outcomes(1)[0],
        &["refused: SIGKILL: Operation not permitted"],
    );
    // Before the next attempt one of the kubelet's intervals passes.
    assert!(member.wait(SOON, |m| m.evictions().len() > 1));
    let attempts = member.evictions();
    let at = attempts.iter().map(|attempt| attempt.stages.signalled);
    let at: Vec<u64> = at.collect();
    assert!(at.is_sorted_by(|a, b| b - a >= 10_000_000_000), "{at:?}");
    let mut alive = hogs.iter_mut().flatten().map(Hog::is_alive);
    assert!(alive.all(|is_alive| is_alive));
    assert_eq!(member.server.count("DELETE", "/pods/"), 0);
    assert_eq!(member.server.count("PATCH", "/pods/"), 0);
    assert!(member.wait(SOON, |m| !events(m, "EvictionRefused", "Pod").is_empty()));
    let state = member.server.state();
    assert!(state.events_of("Evicted", "Pod").is_empty());
    assert!(state.events_of("EvictionThresholdMet", "Node").is_empty());
}

/// One more agent, which has its list and its watch of the pods.
fn connected(member: &ClusterNode) -> Agent {
    let lists = member.server.count("GET", "/api/v1/pods");
    let agent = member.start().unwrap();
    assert!(until(SOON, || member.server.count("GET", "/api/v1/pods")
        >= lists + 2));
    agent
}

fn events(member: &ClusterNode, reason: &str, kind: &str) -> Vec<Value> {
    member.server.state().events_of(reason, kind)
}

/// The Event of a reason, which must be the only one.
#[track_caller]
fn only_event(member: &ClusterNode, reason: &str, kind: &str) -> Value {
    let mut told = events(member, reason, kind);
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

// R9, R14, R18, R42: which pod goes is decided on what the API says of the pods, and the API hears of it in the right order.
#[test]
fn killed_first_then_told() {
    let member = as_root!(ClusterNode::new("told", 256).unwrap());
    let pod = |name, number, qos, priority, request| {
        let pod = member.pod(name, number, qos, priority, request);
        pod.unwrap()
    };
    let quiet = pod("quiet", 1, "Burstable", 0, Some("64Mi"));
    let important = pod("important", 2, "BestEffort", 1000, None);
    let wild = pod("wild", 3, "Burstable", 0, Some("16Mi"));
    // It has ended: the container's part is the pod's.
    member.server.state().change_pod("wild", |pod| {
        pod["spec"]["initContainers"] = json!([{"name": "setup", "image": "x"}]);
        let initialized = json!({"type": "Initialized", "status": "True"});
        pod["status"]["conditions"] = json!([initialized]);
    });
    let mut bystanders = [
        Hog::start(&quiet, &["--mib", "40"]).unwrap(),
        Hog::start(&important, &["--mib", "30"]).unwrap(),
    ];
    let _agent = member.start().unwrap();
    member.evicts(&wild, "deleted");
    assert!(bystanders.iter_mut().all(Hog::is_alive), "nobody else dies");
    assert_eq!(member.cgroup.oom_kills().unwrap(), 0);

    let records = member.records();
    let of_pods = records.iter().filter_map(|record| match record {
        Record::Evicted(_) => Some("evicted"),
        Record::Reported(reported) => Some(&*reported.outcome),
        _ => None,
    });
    assert_eq!(of_pods.collect::<Vec<_>>(), ["evicted", "deleted"]);

    let uid = ClusterNode::uid(3);
    {
        let state = member.server.state();
        let first = |method, path| state.all(method, path).next().expect("a request");
        let patch = first("PATCH", "/pods/wild/status");
        let delete = first("DELETE", "/pods/wild");
        assert!(patch.at <= delete.at && delete.at <= first("POST", "/events").at);
        let condition = &patch.body["status"]["conditions"][0];
        assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
        assert_eq!(patch.body["metadata"]["uid"], uid);
        let said = ["type", "status", "reason"].map(|field| &condition[field]);
        assert_eq!(said, ["DisruptionTarget", "True", "TerminationByKubelet"]);
        assert_eq!(delete.body["gracePeriodSeconds"], 1);
        assert_eq!(delete.body["preconditions"]["uid"], uid);
        assert_eq!(state.count("DELETE", ""), 1, "nobody else is deleted");
    }
    let event = only_event(&member, "Evicted", "Pod");
    let note = event["note"].as_str().unwrap();
    begins(note, OF_MEMORY);
    has(note, &["requested 16Mi", "Container c was using"]);
    assert_eq!(event["regarding"]["uid"], uid);
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(annotations["starved_resource"], "memory");
    assert_eq!(annotations["offending_containers"], "c");
    assert_eq!(events(&member, "EvictionThresholdMet", "Node").len(), 1);
}

/// The kubelet's own words come first.
const OF_MEMORY: &str = "The node was low on resource: memory. ";

/// A node whose evicted pods stay, its status perhaps refused, after the end of a hog that was reported so.
fn with_failed_pod(name: &str, refused: Option<u16>, outcome: &str) -> (ClusterNode, Agent) {
    let (mut member, wild) = ClusterNode::with_wild(name).unwrap();
    member.config["cluster"]["evictedPods"] = "Fail".into();
    if let Some(code) = refused {
        member.server.fails("PATCH", STATUS, 2, code);
    }
    let agent = member.start().unwrap();
    member.evicts(&wild, outcome);
    (member, agent)
}

const STATUS: &str = "/pods/wild/status";

// R18: what looks for pods that the kubelet has evicted finds those of evictd.
#[test]
fn an_evicted_pod_stays_where_that_is_wanted() {
    let (member, agent) = as_root!(with_failed_pod("failed", None, "failed"));
    {
        let state = member.server.state();
        assert_eq!(state.count("DELETE", ""), 0);
        let patches: Vec<_> = state.all("PATCH", STATUS).collect();
        // Where the disk is late, the condition is sent alone before that.
        assert!(matches!(patches.len(), 1 | 2), "{patches:?}");
        let patch = patches.last().unwrap();
        assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
        assert_eq!(patch.body["metadata"]["uid"], ClusterNode::uid(1));
        let pod = state.get(Collection::Pods, "default", "wild");
        let status = &pod["status"];
        let said = [&status["phase"], &status["reason"]];
        assert_eq!(said, ["Failed", "Evicted"]);
        begins(status["message"].as_str().unwrap(), OF_MEMORY);
        assert_eq!(status["conditions"][0]["type"], "DisruptionTarget");
    }
    assert_eq!(events(&member, "Evicted", "Pod").len(), 1);
    // It is none of the kubelet's.
    assert!(!agent.log().contains("the kubelet has evicted a pod"));
    // The next agent finds it as it is.
    drop(agent);
    let agent = connected(&member);
    std::thread::sleep(Duration::from_millis(500));
    drop(agent);
    assert!(records_of!(member.records(), Record::KubeletEvicted(_)).is_empty());
    assert_eq!(member.server.count("DELETE", ""), 0);
}

/// A conflict is no refusal of this cluster: the next pod may fail again.
#[test]
fn a_status_that_is_refused_gives_way_to_the_delete() {
    skip_if!(not_root());
    for (code, name, told) in [(422, "unfailed", 1), (409, "conflicts", 0)] {
        let (member, agent) = with_failed_pod(name, Some(code), "deleted");
        assert_eq!(member.server.count("DELETE", "/pods/wild"), 1);
        let said = "refuses phase Failed for an evicted pod";
        assert_eq!(agent.log().matches(said).count(), told, "{code}");
    }
}

/// The kubelet has written a status of its own before it saw the eviction's: the killed containers would start again.
#[test]
fn a_pod_that_the_kubelet_takes_back_is_deleted() {
    let (member, agent) = as_root!(with_failed_pod("takenback", None, "failed"));
    let pod = apiserver::pod("wild", &ClusterNode::uid(1), "BestEffort", 0, None);
    member.server.state().put_pod(pod);
    assert!(member.wait(SOON, |m| m.server.count("DELETE", "/pods/wild") == 1));
    assert!(agent.says("has taken an evicted pod back"));
    assert_eq!(member.reported().len(), 1);
}

/// A node whose pod was killed while no API server was there.
fn evicted_in_an_outage(name: &str) -> (ClusterNode, Agent) {
    let (mut member, wild) = ClusterNode::with_wild(name).unwrap();
    let agent = member.start().unwrap();
    member.server.go_away();
    Hog::until_killed(&wild, &WILD);
    assert_eq!(member.evicted(1), ["wild"]);
    assert!(member.reported().is_empty());
    (member, agent)
}

/// The pod was deleted with so many requests, and one Event tells of it.
#[track_caller]
fn is_reported_once(member: &ClusterNode, deletes: usize) {
    assert_eq!(member.outcomes(1), ["deleted"]);
    let path = "/namespaces/default/pods/wild";
    assert_eq!(member.server.count("DELETE", path), deletes);
    assert_eq!(events(member, "Evicted", "Pod").len(), 1);
}

// R42: nothing is lost when the API is away, and nothing is told twice.
#[test]
fn an_outage_delays_the_report_and_nothing_else() {
    let (mut member, _agent) = as_root!(evicted_in_an_outage("outage"));
    member.server.come_back().unwrap();
    is_reported_once(&member, 1);
}

// R42: killed between the journal and the API, the next agent goes on; the one after it has nothing left to say.
#[test]
fn a_crash_in_between_costs_nothing() {
    let (mut member, agent) = as_root!(evicted_in_an_outage("crash"));
    agent.kill();
    member.server.come_back().unwrap();
    let agent = member.start().unwrap();
    is_reported_once(&member, 1);
    agent.kill();
    let agent = connected(&member);
    std::thread::sleep(Duration::from_millis(500));
    drop(agent);
    is_reported_once(&member, 1);
    assert_eq!(member.server.count("DELETE", ""), 1);
}

/// What the journal of [`evicted_in_an_outage`] says of the eviction is changed from one text to another.
fn rewrite_journal(member: &ClusterNode, from: &str, to: &str) {
    let path = member.dir().join("state/journal.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replace(from, to)).unwrap();
}

/// The next agent tells of an eviction of before, and leaves the pod alone.
fn is_reported_and_no_more(mut member: ClusterNode) {
    member.server.come_back().unwrap();
    let mut agent = member.start().unwrap();
    assert_eq!(member.outcomes(1), ["restarted"]);
    assert_eq!(member.server.count("DELETE", ""), 0);
    assert_eq!(member.server.count("PATCH", "/pods/"), 0);
    assert_eq!(events(&member, "Evicted", "Pod").len(), 1);
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

// The machine was started anew before the API server had heard of it, and the kubelet runs the pod again.
#[test]
fn an_eviction_of_another_boot_ends_no_pod() {
    let (member, agent) = as_root!(evicted_in_an_outage("reboot"));
    drop(agent);
    let other = "00000000-0000-4000-8000-000000000000";
    rewrite_journal(&member, &boot_id(), other);
    is_reported_and_no_more(member);
}

#[test]
fn an_old_eviction_ends_no_pod_that_runs_anew() {
    skip_if!(not_root());
    let ago = 700_000_000_000;
    let is_new = monotonic_ns() < ago + 60_000_000_000;
    skip_if!(is_new.then_some("this machine has not run for long enough"));
    for (name, runs) in [("anew", true), ("still", false)] {
        let (mut member, agent) = evicted_in_an_outage(name);
        drop(agent);
        let signalled = member.evictions()[0].stages.signalled;
        let field = |at| format!("\"signalled\":{at}");
        rewrite_journal(&member, &field(signalled), &field(signalled - ago));
        let pod = member.cgroup_of(&ClusterNode::uid(1), "BestEffort");
        let _hog = runs.then(|| Hog::start(&pod.unwrap(), &["--mib", "20"]).unwrap());
        if runs {
            is_reported_and_no_more(member);
            continue;
        }
        member.server.come_back().unwrap();
        let _agent = member.start().unwrap();
        is_reported_once(&member, 1);
    }
}

// R42: the server has done it and its answer is lost, then the agent is; the second time changes nothing.
#[test]
fn a_lost_answer_is_asked_for_again_without_harm() {
    let (member, wild) = as_root!(ClusterNode::with_wild("lost").unwrap());
    let lost = InjectedFault::Lost;
    member.server.fails("POST", "/default/events", 1, lost);
    let agent = member.start().unwrap();
    Hog::until_killed(&wild, &WILD);
    assert!(member.wait(SOON, |m| !events(m, "Evicted", "Pod").is_empty()));
    assert!(member.reported().is_empty(), "the answer is lost");
    agent.kill();
    let _agent = member.start().unwrap();
    // The pod was gone already: that is success.
    assert_eq!(member.outcomes(1), ["gone"]);
    assert_eq!(events(&member, "Evicted", "Pod").len(), 1, "told once");
}

// A new pod of the same name is never touched.
#[test]
fn a_pod_of_the_same_name_is_left_alone() {
    let (mut member, _agent) = as_root!(evicted_in_an_outage("samename"));
    let uid = ClusterNode::uid(2);
    {
        let mut state = member.server.state();
        state.remove(Collection::Pods, "default", "wild");
        state.put_pod(apiserver::pod("wild", &uid, "BestEffort", 0, None));
    }
    member.server.come_back().unwrap();
    assert_eq!(member.outcomes(1), ["replaced"]);
    let state = member.server.state();
    let pod = state.get(Collection::Pods, "default", "wild");
    assert_eq!(pod["metadata"]["uid"], uid);
    assert!(pod["metadata"]["deletionTimestamp"].is_null());
    let conditions = pod["status"]["conditions"].to_string();
    assert!(!conditions.contains("DisruptionTarget"), "{conditions}");
}

// R42: overloaded, failing, silent: asked again until it works.
#[test]
fn trouble_is_outlasted() {
    let (member, wild) = as_root!(ClusterNode::with_wild("trouble").unwrap());
    for code in [429, 500, 503] {
        member.server.fails("DELETE", "/pods/wild", 1, code);
    }
    // A condition that does not get through must not hold up the DELETE.
    member
        .server
        .fails("PATCH", STATUS, 100, InjectedFault::Hang);
    let _agent = member.start().unwrap();
    Hog::until_killed(&wild, &WILD);
    is_reported_once(&member, 4);
}

// R12, R42: no API server from the start. The cgroups tell which pods run here; static pods stay protected; the name
// comes later.
#[test]
fn without_an_api_server_the_cgroups_tell() {
    let mut member = as_root!(ClusterNode::new("blind", 256).unwrap());
    let wild = member.pod("wild", 1, "Burstable", 0, Some("16Mi")).unwrap();
    let file = member.cgroup_of(ClusterNode::HASH, "BestEffort").unwrap();
    let mut of_file = Hog::start(&file, &["--mib", "60"]).unwrap();
    member.server.go_away();
    let _agent = member.start().unwrap();
    Hog::until_killed(&wild, &WILD);
    assert!(of_file.is_alive(), "a static pod is not evicted");
    assert_eq!(member.evicted(1).len(), 1);
    let eviction = &member.evictions()[0];
    assert_eq!(eviction.uid, ClusterNode::uid(1));
    assert_eq!(eviction.namespace, "", "nobody has told its name");
    member.server.come_back().unwrap();
    is_reported_once(&member, 1);
}

// R42: a pod that the API server has not told of may be of any priority. It goes when nothing else is left, although it uses
// most from the start.
#[test]
fn a_pod_that_is_not_known_yet_goes_after_all_others() {
    let member = as_root!(ClusterNode::new("notknown", 256).unwrap());
    let important = member.pod("important", 1, "Burstable", 1000, Some("100Mi"));
    let important = important.unwrap();
    let uids = [1, 2].map(ClusterNode::uid);
    let new = member.cgroup_of(&uids[1], "BestEffort").unwrap();
    let mut of_important = Hog::start(&important, &["--mib", "60"]).unwrap();
    let _agent = member.start().unwrap();
    let mut of_new = Hog::start(&new, &["--mib", "140", "--head", "100", "--wait"]).unwrap();
    of_new.take_head().unwrap();
    of_new.go().unwrap();
    of_important.killed();
    assert_eq!(member.outcomes(1).len(), 1);
    assert!(of_new.is_alive(), "the other one was enough");
    let mut second = Hog::start(&new, &["--mib", "100"]).unwrap();
    of_new.killed();
    second.killed();
    let evicted: Vec<_> = member.evictions().into_iter().map(|e| e.uid).collect();
    assert_eq!(evicted, uids);
}

/// A node with a static pod of priority 0, which uses most of all, and another pod; both at work.
fn with_static_pod(name: &str, mode: &str) -> (ClusterNode, Agent, [Hog; 2]) {
    let mut member = ClusterNode::new(name, 256).unwrap();
    member.config["mode"] = mode.into();
    let of_file = member.static_pod(9);
    let other = member.best_effort("other", 1);
    // Slow enough that what the first victim gives back is there in time.
    let slow = ["--mib", "100", "--head", "40", "--rate", "200", "--wait"];
    let mut hogs = [
        Hog::start(&of_file, &["--mib", "120"]).unwrap(),
        Hog::start(&other, &slow).unwrap(),
    ];
    assert!(holds(&of_file, 120));
    let agent = member.start().unwrap();
    hogs[1].take_head().unwrap();
    hogs[1].go().unwrap();
    (member, agent, hogs)
}

// R12: on the fast path as everywhere. The API server has only the mirror pod, and to delete that ends nothing.
#[test]
fn a_static_pod_goes_by_its_priority() {
    let (member, _agent, mut hogs) = as_root!(with_static_pod("static", "evictd"));
    hogs[0].killed();
    assert_eq!(member.outcomes(1), ["static"]);
    assert_eq!(member.evictions()[0].uid, ClusterNode::uid(9));
    assert_eq!(events(&member, "Evicted", "Pod").len(), 1);
    assert!(hogs[1].is_alive());
    assert_eq!(member.server.count("DELETE", ""), 0);
    assert_eq!(member.server.count("PATCH", "/pods/"), 0);
}

/// The kubelet takes every pod of the API server for one of the API server's, whatever that pod's author has written on it.
#[test]
fn a_pod_that_calls_itself_static_is_deleted() {
    let (member, wild) = as_root!(ClusterNode::with_wild("callsitself").unwrap());
    let mut pod = apiserver::pod("wild", &ClusterNode::uid(1), "BestEffort", 0, None);
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"});
    member.server.state().put_pod(pod);
    let mut agent = member.start().unwrap();
    member.evicts(&wild, "deleted");
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

// R12
#[test]
fn the_kubelets_mode_evicts_no_static_pod() {
    let (member, _agent, mut hogs) = as_root!(with_static_pod("staticno", "kubelet"));
    hogs[1].killed();
    assert_eq!(member.outcomes(1).len(), 1);
    assert_eq!(member.evictions()[0].uid, ClusterNode::uid(1));
    assert!(hogs[0].is_alive());
}

/// Both see the same shortage, which is there as evictd starts, and the kubelet evicts first: what its pod holds is
/// pending, no second pod goes for it, and the pod itself is the kubelet's to end.
// R42, R43
#[test]
fn a_pod_that_the_kubelet_evicts_is_enough() {
    let member = as_root!(ClusterNode::new("beside", 256).unwrap());
    let first = member.best_effort("first", 1);
    let second = member.best_effort("second", 2);
    let mut hogs = [first, second].map(|pod| Hog::start(&pod, &["--mib", "105"]).unwrap());
    assert!(member.cgroup.holds(205));
    let agent = member.start().unwrap();
    std::thread::sleep(Duration::from_secs(5));
    let mut evicted = apiserver::pod("first", &ClusterNode::uid(1), "BestEffort", 0, None);
    evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
    member.server.state().put_pod(evicted);
    // By its own count evictd's turn would have come after ten.
    std::thread::sleep(Duration::from_secs(7));
    assert!(hogs.iter_mut().all(Hog::is_alive));
    let told = |m: &ClusterNode| events(m, "EvictionThresholdMetInForce", "Node");
    assert!(member.wait(SOON, |m| !told(m).is_empty()));
    drop(hogs);
    drop(agent);
    assert!(member.evictions().is_empty());
    let event = only_event(&member, "EvictionThresholdMetInForce", "Node");
    let note = event["note"].as_str().unwrap();
    let says = [
        "memory.available was already met",
        "64Mi wanted; one pod is evicted at a time, the next one after 10 s or more",
    ];
    has(note, &says);
}

/// A node with the kubelet's own threshold in force, which two pods meet: evictd would take `first`. With the agent, and when it
/// was started, in nanoseconds of CLOCK_MONOTONIC.
fn at_the_kubelets_threshold(name: &str) -> Result<(ClusterNode, [Hog; 2], Agent, u64)> {
    let mut member = ClusterNode::new(name, 256)?;
    let kubelet = member.dir().join("kubelet.yaml");
    fs::write(&kubelet, "evictionHard: {memory.available: 64Mi}\n")?;
    member.config["evictionHard"].take();
    member.config["cluster"]["kubeletConfig"] = json!(kubelet);
    let pods = [("first", 1, "110"), ("second", 2, "100")];
    let hogs = pods.map(|(name, number, mib)| {
        let pod = member.best_effort(name, number);
        Hog::start(&pod, &["--mib", mib]).unwrap()
    });
    assert!(member.cgroup.holds(205));
    let started = monotonic_ns();
    let agent = member.start()?;
    Ok((member, hogs, agent, started))
}

/// The kubelet has looked last before evictd's ten seconds are over, and its pod is seen to have failed after them: what takes
/// so long is the end of the containers.
// R43
#[test]
fn a_pod_that_the_kubelet_is_ending_is_enough() {
    let (member, hogs, agent, started) = as_root!(at_the_kubelets_threshold("ending").unwrap());
    let [mut first, mut second] = hogs;
    sleep_from(started, Duration::from_secs(12));
    second.kill().unwrap();
    sleep_from(started, Duration::from_millis(12_500));
    let mut evicted = apiserver::pod("second", &ClusterNode::uid(2), "BestEffort", 0, None);
    evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
    member.server.state().put_pod(evicted);
    sleep_from(started, Duration::from_secs(25));
    assert!(first.is_alive());
    drop(agent);
    assert!(member.evictions().is_empty());
}

/// It has evicted none in its turn.
// R43
#[test]
fn where_the_kubelet_evicts_none_a_pod_goes_after_its_turn() {
    let (member, hogs, agent, started) = as_root!(at_the_kubelets_threshold("turn").unwrap());
    let [mut first, mut second] = hogs;
    first.killed();
    assert_eq!(member.evicted(1), ["first"]);
    sleep_from(started, Duration::from_secs(25));
    assert!(second.is_alive());
    drop(agent);
    let evictions = member.evictions();
    assert_eq!(evictions.len(), 1);
    assert!(!evictions[0].pace.as_ref().unwrap().urgent);
    let waited = evictions[0].stages.signalled - started;
    assert!(waited >= 14_000_000_000, "{waited}");
}

/// A server that answers for pods and not for policies: no agent of this node has known any.
#[test]
fn on_a_new_node_what_is_not_urgent_waits_for_policies() {
    let member = as_root!(ClusterNode::new("unruled", 256).unwrap());
    let pods = [("first", 1), ("second", 2)].map(|(name, number)| member.best_effort(name, number));
    let mut hogs = pods.map(|pod| Hog::start(&pod, &["--mib", "105"]).unwrap());
    assert!(member.cgroup.holds(205));
    {
        let mut state = member.server.state();
        let rules = json!([{"name": "never", "evict": "Never"}]);
        state.put_policy("all", json!({"allNamespaces": "a test", "rules": rules}));
        let slow = InjectedFault::Slow(Duration::from_secs(16));
        state.fails("GET", "/evictionpolicies", 1, slow);
    }
    let agent = member.start().unwrap();
    // One would have been due after ten.
    std::thread::sleep(Duration::from_secs(20));
    assert!(hogs.iter_mut().all(Hog::is_alive));
    drop(agent);
    assert!(member.evictions().is_empty());
}

/// The fast path sees that it does not die: its pod has one Event, and it is counted once.
// R42
#[test]
fn an_evicted_pod_that_does_not_die_has_an_event() {
    let (mut member, wild) = as_root!(ClusterNode::with_wild("held").unwrap());
    let shown = listen(&mut member.config, "metricsAddress");
    let agent = member.start().unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "220", "--rate", "200", "--wait"]).unwrap();
    let held = HeldInExit::hold(hog.pid()).unwrap();
    hog.go().unwrap();
    let told = |m: &ClusterNode| events(m, "EvictedPodStuck", "Pod");
    assert!(member.wait(SOON, |m| !told(m).is_empty()));
    // The manager takes its own victims for stuck ten seconds after SIGKILL.
    let signalled = member.evictions()[0].stages.signalled;
    sleep_from(signalled, Duration::from_secs(13));
    let counted = value(&shown, "evictd_evicted_pods_stuck_total");
    drop(held);
    hog.killed();
    drop(agent);
    assert_eq!(counted, Some(1));
    let event = only_event(&member, "EvictedPodStuck", "Pod");
    assert_eq!(event["regarding"]["uid"], ClusterNode::uid(1));
    has(
        event["note"].as_str().unwrap(),
        &["its processes do not end"],
    );
    assert_eq!(member.evicted(1), ["wild"]);
    assert_eq!(member.server.count("DELETE", ""), 1);
}

/// A pod that both evict is evictd's, and is not counted as the kubelet's.
#[test]
fn a_pod_that_both_evict_is_not_counted_as_the_kubelets() {
    let (mut member, wild) = as_root!(ClusterNode::with_wild("both").unwrap());
    let shown = listen(&mut member.config, "metricsAddress");
    let mut agent = member.start().unwrap();
    member.evicts(&wild, "deleted");
    for (name, number) in [("wild", 1), ("other", 2)] {
        let mut evicted = apiserver::pod(name, &ClusterNode::uid(number), "BestEffort", 0, None);
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
        member.server.state().put_pod(evicted);
    }
    let of_kubelet =
        |m: &ClusterNode| records_of!(m.records(), Record::KubeletEvicted(evicted) => evicted.name);
    assert!(member.wait(SOON, |m| !of_kubelet(m).is_empty()));
    assert_eq!(of_kubelet(&member), ["other"]);
    let counted = value(&shown, "evictd_api_kubelet_evictions_total");
    assert_eq!(counted, Some(1));
    let log = agent.log();
    assert_eq!(log.matches("the kubelet has evicted a pod").count(), 1);
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

/// A pod that came while the watch was away has only a cgroup; its name is asked for, and it is deleted.
#[test]
fn a_pod_of_which_no_watch_has_told_is_deleted() {
    let member = as_root!(ClusterNode::new("unwatched", 256).unwrap());
    let _agent = member.start().unwrap();
    assert!(member.wait(SOON, |m| m.server.state().watches() > 0));
    {
        let mut state = member.server.state();
        state.fails("GET", "/api/v1/pods", 1, InjectedFault::Hang);
        state.expire();
    }
    let is_hung = |m: &ClusterNode| m.server.state().faults.iter().all(|f| f.times == 0);
    assert!(member.wait(SOON, is_hung));
    let wild = member.best_effort("wild", 1);
    member.evicts(&wild, "deleted");
    assert_eq!(member.server.count("DELETE", "/pods/wild"), 1);
    // A list of whole pods takes more memory than the agent has.
    let state = member.server.state();
    let mut lists = state.all("GET", "/api/v1/pods");
    let of_metadata = lists.find(|r| r.accept.contains("as=PartialObjectMetadataList"));
    assert!(of_metadata.is_some(), "{:?}", state.requests);
}

/// A namespace that is being deleted takes no Event: that is no refusal, and the node's Event tells.
#[test]
fn a_namespace_that_is_being_deleted_takes_no_event() {
    let (member, wild) = as_root!(ClusterNode::with_wild("terminating").unwrap());
    let terminating = InjectedFault::Terminating;
    member.server.fails("POST", "/events", 1, terminating);
    let _agent = member.start().unwrap();
    member.evicts(&wild, "deleted");
    assert!(events(&member, "Evicted", "Pod").is_empty());
    let is_reported = |m: &ClusterNode| !events(m, "EvictionThresholdMet", "Node").is_empty();
    assert!(member.wait(SOON, is_reported));
}

/// What the API server has against the DELETE, it need not have against the Event, which is then all that is told.
// R42
#[test]
fn a_refused_delete_uses_up_no_attempts_of_the_event() {
    skip_if!(not_root());
    let (mut member, wild) = ClusterNode::with_wild("deniedevent").unwrap();
    let address = listen(&mut member.config, "metricsAddress");
    member.server.fails("DELETE", "/pods/wild", 8, 403);
    member.server.fails("POST", "/default/events", 1, 503);
    let agent = member.start().unwrap();
    member.evicts(&wild, "refused: 403 Forbidden: scripted");
    assert_eq!(events(&member, "Evicted", "Pod").len(), 1);
    let refusals = "the API server does not take the report";
    assert_eq!(agent.log().matches(refusals).count(), 1);
    let counted = "evictd_api_reports_failed_total 1";
    assert!(shows(&address, counted));
}

/// A namespace whose Events are refused for now keeps no other eviction from being told.
#[test]
fn one_namespaces_events_hold_up_no_other() {
    let member = as_root!(ClusterNode::new("crowded", 256).unwrap());
    let uid = ClusterNode::uid(1);
    let mut shop = apiserver::pod("first", &uid, "BestEffort", 0, None);
    shop["metadata"]["namespace"] = "shop".into();
    member.server.state().put_pod(shop);
    let events = "/namespaces/shop/events";
    member.server.fails("POST", events, usize::MAX, 429);
    let first = member.cgroup_of(&uid, "BestEffort").unwrap();
    let second = member.best_effort("second", 2);
    let _agent = member.start().unwrap();
    for (pod, evicted) in [(first, 1), (second, 2)] {
        Hog::until_killed(&pod, &WILD);
        assert_eq!(member.evicted(evicted).len(), evicted);
    }
    assert_eq!(member.outcomes(1).len(), 1);
    assert_eq!(member.reported()[0].id, member.evictions()[1].id);
}

fn limit_files(agent: &Agent, limit: Option<&libc::rlimit>) -> libc::rlimit {
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let new = limit.map_or(std::ptr::null(), std::ptr::from_ref);
    let pid = agent.pid().cast_signed();
    // SAFETY: a limit or none, and room for the one before.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, new, &raw mut before) };
    assert_eq!(set, 0);
    before
}

/// A pod that cannot be opened is told, counted, and evicted once it can be.
#[test]
fn a_pod_that_cannot_be_opened_is_told_and_tried_again() {
    let mut member = as_root!(ClusterNode::new("unopened", 256).unwrap());
    let address = listen(&mut member.config, "metricsAddress");
    let calm = member.pod("calm", 1, "Guaranteed", 0, Some("64Mi"));
    let calm = calm.unwrap();
    let agent = member.start().unwrap();
    let before = limit_files(&agent, None);
    let open = || {
        fs::read_dir(format!("/proc/{}/fd", agent.pid()))
            .unwrap()
            .count() as u64
    };
    // Some are open for a moment: a connection, a file that is read.
    let some = (0..10).map(|_| (std::thread::sleep(Duration::from_millis(50)), open()).1);
    let open = some.min().unwrap();
    let allow = |more| {
        let few = libc::rlimit {
            rlim_cur: open + more,
            ..before
        };
        limit_files(&agent, Some(&few));
    };
    // Enough for the directories, which lie in each other, and not for a pod.
    allow(4);
    let wild = member.best_effort("wild", 2);
    assert!(agent.says("a pod cannot be opened"));
    // Enough for nothing: those that are known stay.
    allow(0);
    let uid = ClusterNode::uid(3);
    member.cgroup_of(&uid, "BestEffort").unwrap();
    assert!(agent.says(&format!("pod{uid}")));
    Hog::until_killed(&calm, &WILD);
    limit_files(&agent, Some(&before));
    // Connections were refused as well, and their pauses have grown to half a minute.
    assert_eq!(member.outcomes(1).len(), 1, "{:?}", member.records());
    assert_eq!(member.evictions()[0].name, "calm");
    // These two; the calm one if what the API server tells of it has changed meanwhile, since it is opened anew then; and a
    // list of all, if one was due meanwhile.
    let is_counted = |_: &ClusterNode| {
        let count = value(&address, "evictd_pod_open_failures_total");
        count.is_some_and(|count| (2..=4).contains(&count))
    };
    assert!(member.wait(SOON, is_counted), "{:?}", metrics(&address));
    // The kubelet removes what has ended; those that could not be opened are tried again each second.
    for dir in [&calm, calm.parent().unwrap()] {
        fs::remove_dir(dir).unwrap();
    }
    let is_open = |_: &ClusterNode| value(&address, "evictd_pods_not_open") == Some(0);
    assert!(member.wait(SOON, is_open), "{:?}", metrics(&address));
    Hog::until_killed(&wild, &["--mib", "1024", "--rate", "400"]);
    assert_eq!(member.outcomes(2).len(), 2);
    assert_eq!(member.evictions()[1].name, "wild");
}

/// The agent has listed the cgroups, and its hook for them is not attached yet.
#[test]
fn a_pod_that_starts_while_the_agent_starts_is_known_at_once() {
    let member = as_root!(ClusterNode::new("meanwhile", 256).unwrap());
    let listed = "allocatableMemory.available is not watched";
    let agent = Agent::begin(&member.write().unwrap(), listed).unwrap();
    agent.stop().unwrap();
    let late = member.best_effort("late", 1);
    agent.go_on().unwrap();
    assert!(agent.says("the agent is watching"));
    let began = Instant::now();
    Hog::until_killed(&late, &["--mib", "210"]);
    assert_eq!(member.evicted(1), ["late"]);
    // All cgroups are compared again after a minute.
    assert!(began.elapsed() < Duration::from_secs(30), "{}", agent.log());
}
