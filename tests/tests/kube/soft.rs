//! Soft evictions against the scripted API server: grace periods, budgets, overrides (R5).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evictd_config::Config;
use evictd_engine::{
    Cause, EvictionDecision, ManagedPod, Message, fleet::FleetPace, limiter::EvictionLimiter,
    permit::Permission, record::SignalReading,
};
use evictd_kube::{
    access,
    client::ApiClient,
    event_queue::EventQueue,
    events::EventSpec,
    eviction_api::PodRef,
    soft_eviction::{SoftCandidate, SoftEvictor, SoftOutcome, SoftRequest},
    soft_task,
};
use evictd_policy::{
    PolicyEvaluator,
    evaluator::{BlockReason, PolicySettings},
    gate::Secrets,
};
use evictd_store::{disk_queue::DiskThread, journal::Journal, record::RequestRecord};
use evictd_tests::{
    apiserver,
    policy_fixture::{BarePod, FLEET_RULES, charge},
    prelude::*,
};
use tokio::sync::mpsc;
use tracing_subscriber::{Layer, layer::Context, prelude::*};

struct Soft {
    server: ApiServer,
    events: EventQueue,
    sending: tokio::task::JoinHandle<()>,
    evictor: SoftEvictor,
    runtime: tokio::runtime::Runtime,
    connection: Arc<ApiClient>,
    policies: Arc<PolicyEvaluator>,
    /// Signal of the soft threshold that is met.
    signal: Signal,
}

/// The decision that a pod goes for a signal.
pub(super) fn decision(pod: &Pod, signal: Signal, is_soft: bool) -> EvictionDecision {
    EvictionDecision {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        grace_period_seconds: 5,
        message: Message {
            text: "The node was low on resource: memory. ".to_owned(),
            annotations: vec![("starved_resource", "memory".to_owned())],
        },
        cause: Cause::Pressure(signal),
        is_soft,
        timing: None,
        other_signals: Vec::new(),
    }
}

pub(super) fn reading(signal: Signal) -> SignalReading {
    SignalReading {
        signal,
        available: 90 << 20,
        threshold: 100 << 20,
        usage: 17 << 20,
    }
}

fn web(index: usize) -> Pod {
    Pod {
        namespace: "default".into(),
        name: format!("web-{}", index + 1),
        uid: format!("uid-{index}"),
        termination_grace_period_seconds: Some(30),
        ..Pod::default()
    }
}

/// Three pods, the first of them protected by a budget.
fn soft(cluster: Value) -> Soft {
    let server = ApiServer::start().unwrap();
    for (i, name) in ["web-1", "web-2", "web-3"].into_iter().enumerate() {
        let pod = apiserver::pod(name, &format!("uid-{i}"), "Burstable", 0, Some("16Mi"));
        server.state().put_pod(pod);
    }
    server.state().budgets.insert("web-1".into());
    let mut document = json!({"cluster": {"nodeName": NODE}});
    json_patch::merge(&mut document["cluster"], &cluster);
    let config = Config::from_values(document, None).unwrap();
    let runtime = current_thread().unwrap();
    let connection = runtime.block_on(server.client());
    let journal = Journal::open(&server.dir().join("state")).unwrap();
    let disk = DiskThread::start(journal).unwrap();
    let queue = disk.queue().clone();
    let policies = PolicyEvaluator::new(PolicySettings::default(), Secrets::default());
    let way = Arc::clone(&connection);
    let (events, sending) = runtime.block_on(async { EventQueue::start(&way, NODE) });
    let to_events = events.clone();
    let evictor = SoftEvictor::new(way, queue, Arc::clone(&policies), to_events, &config);
    Soft {
        server,
        events,
        sending,
        evictor,
        runtime,
        connection,
        policies,
        signal: Signal::MemoryAvailable,
    }
}

impl Soft {
    fn evict(&mut self, indices: &[usize], hard: bool) -> SoftOutcome {
        let pods: Vec<Pod> = indices.iter().map(|i| web(*i)).collect();
        self.evict_pods(&pods, hard)
    }

    /// The pod that goes, by its place among the candidates, and what was asked of it.
    #[track_caller]
    fn evicts(&mut self, indices: &[usize], hard: bool) -> (usize, RequestRecord) {
        match self.evict(indices, hard) {
            SoftOutcome::Evicted { index, asked } => (index, *asked),
            outcome => panic!("{outcome:?}"),
        }
    }

    #[track_caller]
    fn is_protected_by_budgets(&mut self) {
        let outcome = self.evict(&[0], false);
        let is_protected = matches!(outcome, SoftOutcome::ProtectedByBudgets { .. });
        assert!(is_protected, "{outcome:?}");
    }

    fn fails(&self, path: &'static str, what: impl Into<InjectedFault>) {
        self.server.fails("POST", path, 1, what);
    }

    fn request(&self, pods: &[Pod], hard: bool) -> SoftRequest {
        let candidate = |pod: &Pod| SoftCandidate {
            pod: pod.clone(),
            decision: decision(pod, self.signal, true),
            reading: reading(self.signal),
        };
        SoftRequest {
            signal: self.signal,
            chosen: String::new(),
            candidates: pods.iter().map(candidate).collect(),
            is_hard_due: Arc::new(AtomicBool::new(hard)),
            shadow: false,
            is_needed: Arc::new(AtomicBool::new(true)),
        }
    }

    fn evict_pods(&mut self, pods: &[Pod], hard: bool) -> SoftOutcome {
        let request = self.request(pods, hard);
        let evicted = self.evictor.evict_soft(&request);
        self.runtime.block_on(evicted)
    }

    /// Status and reason of a pod's condition DisruptionTarget; null where it has none.
    fn disruption(&self, pod: &str) -> Value {
        let state = self.server.state();
        let pod = state.get(Collection::Pods, "default", pod);
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|c| c["type"] == "DisruptionTarget");
        found.map_or(Value::Null, |c| json!([c["status"], c["reason"]]))
    }

    fn forget_disruption(&self, pod: &str) {
        let mut state = self.server.state();
        state.change_pod(pod, |pod| pod["status"]["conditions"] = json!([]));
    }

    fn records(&self) -> Vec<Record> {
        let (records, _) = journal::read(&self.server.dir().join("state")).unwrap();
        records
    }

    /// Evictions that limits count.
    fn counted(&self) -> usize {
        records_of!(self.records(), Record::Counted(_)).len()
    }

    fn asked(&self) -> Vec<RequestRecord> {
        requests(self.records())
    }

    /// Reasons of the Events about pods, once all Events are sent.
    fn event_reasons(&self) -> Vec<String> {
        self.runtime.block_on(async {
            while self.events.waiting() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let state = self.server.state();
        let reasons = state
            .all_of(Collection::Events)
            .filter(|e| e["regarding"]["kind"] == "Pod")
            .filter_map(|e| e["reason"].as_str());
        reasons.map(str::to_owned).collect()
    }
}

// R5: the grace period is the smaller one; a 429 means the next candidate, not patience.
#[test]
fn a_budget_is_honoured_and_the_next_one_goes() {
    let mut soft = soft(json!({}));
    let (index, asked) = soft.evicts(&[0, 1, 2], false);
    assert_eq!(index, 1);
    assert_eq!(asked.grace_period_seconds, 5);
    assert_eq!(asked.working_set, 17 << 20);
    assert_eq!(soft.asked().last(), Some(&asked), "as the journal has it");
    let state = soft.server.state();
    let asked = |pod| state.count("POST", &format!("/{pod}/eviction"));
    assert_eq!(asked("web-1"), 1, "once, no retries");
    assert_eq!(asked("web-3"), 0, "one at a time");
    // Budgets are asked in a dry run; the DELETE is what an admission policy can hold to this node.
    let is_dry_run = |r: &apiserver::Seen| r.query == "dryRun=All";
    assert!(state.all("POST", "/eviction").all(is_dry_run));
    let request = state.all("POST", "/web-2/eviction").next().unwrap();
    assert_eq!(request.body["kind"], "Eviction");
    let options = json!({"gracePeriodSeconds": 5, "preconditions": {"uid": "uid-1"}});
    assert_eq!(request.body["deleteOptions"], options);
    let condition = state.all("PATCH", "/web-2/status").next().unwrap();
    assert_eq!(state.count("DELETE", ""), 1);
    let delete = state.all("DELETE", "/pods/web-2").next().unwrap();
    for (field, value) in options.as_object().unwrap() {
        assert_eq!(delete.body[field], *value);
    }
    assert!(request.at <= condition.at && condition.at <= delete.at);
    drop(state);
    assert_eq!(soft.event_reasons(), ["Evicted"]);
    let of_pod = soft.server.state().events_of("Evicted", "Pod");
    let annotations = &of_pod[0]["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"starved_resource": "memory"}));
    let note = "The node was low on resource: memory. evictd: memory.available 90Mi available, threshold 100Mi; \
                the pod used 17Mi and requested 0. It has 5 s to end.";
    assert_eq!(of_pod[0]["note"], note);
    let of_node = soft
        .server
        .state()
        .events_of("EvictionThresholdMet", "Node");
    let note =
        "Attempting to reclaim memory: asked default/web-2 to end, 90Mi available, 100Mi wanted";
    assert_eq!(of_node[0]["note"], note);
    // Both requests were on disk beforehand.
    assert_eq!((soft.asked().len(), soft.counted()), (2, 1));
    assert_eq!(soft.connection.counters.pdb_blocked.get(), 1);
    // The one that goes is not asked again, and the node has one Event for those that follow each other.
    assert_eq!(soft.evicts(&[1, 2], false).0, 1);
    assert_eq!(soft.event_reasons(), ["Evicted", "Evicted"]);
    let of_node = soft
        .server
        .state()
        .events_of("EvictionThresholdMet", "Node");
    assert_eq!(of_node.len(), 1);
}

// R12: the API server has only the mirror of a static pod; critical pods are protected here as on every path.
#[test]
fn a_pod_that_cannot_be_ended_is_not_asked() {
    let of_file = Pod {
        is_static: true,
        is_mirror: true,
        ..web(1)
    };
    let critical = Pod {
        priority: 2_000_000_000,
        ..web(1)
    };
    for passed_over in [of_file, critical] {
        let mut soft = soft(json!({}));
        let alone = std::slice::from_ref(&passed_over);
        assert_eq!(soft.evict_pods(alone, true), SoftOutcome::NoneRequested);
        let outcome = soft.evict_pods(&[passed_over, web(2)], false);
        let next = matches!(outcome, SoftOutcome::Evicted { index: 1, .. });
        assert!(next, "{outcome:?}");
        let state = soft.server.state();
        assert_eq!(state.count("POST", "/web-2/eviction"), 0);
        assert_eq!(state.count("POST", "/web-3/eviction"), 1);
        assert_eq!(
            state.count("DELETE", ""),
            state.count("DELETE", "/pods/web-3")
        );
    }
}

// R5: a budget holds for as long as is configured, and then an override is written down and told.
#[test]
fn an_override_comes_after_the_configured_time_and_is_audited() {
    let mut soft = soft(json!({"softOverrideAfter": "200ms"}));
    soft.is_protected_by_budgets();
    assert_eq!(soft.server.count("DELETE", ""), 0);
    std::thread::sleep(Duration::from_millis(250));
    let (index, asked) = soft.evicts(&[0], false);
    assert_eq!((index, asked.override_reason.is_some()), (0, true));
    let state = soft.server.state();
    let delete = state.all("DELETE", "/pods/web-1").next().unwrap();
    assert_eq!(delete.body["gracePeriodSeconds"], 5);
    assert_eq!(delete.body["preconditions"]["uid"], "uid-0");
    // R18: the Eviction API would have said it.
    let patch = state.all("PATCH", "/pods/web-1/status").next().unwrap();
    assert!(patch.at <= delete.at);
    let condition = &patch.body["status"]["conditions"][0];
    assert_eq!(condition["type"], "DisruptionTarget");
    drop(state);
    assert_eq!(soft.event_reasons(), ["EvictedDespiteBudget"]);
    let asked = soft.asked();
    let why = asked.last().unwrap().override_reason.as_deref().unwrap();
    begins(why, "budgets have protected every candidate for");
    // Asking again and again is written down once.
    assert_eq!(asked.len(), 2);
}

// R5: one signal's patience is no other one's.
#[test]
fn each_signal_has_its_own_patience() {
    let mut soft = soft(json!({"softOverrideAfter": "200ms"}));
    soft.is_protected_by_budgets();
    std::thread::sleep(Duration::from_millis(250));
    soft.signal = Signal::PidAvailable;
    soft.is_protected_by_budgets();
    assert_eq!(soft.evicts(&[1], false).0, 0);
    soft.signal = Signal::MemoryAvailable;
    let (_, asked) = soft.evicts(&[0], false);
    assert!(asked.override_reason.is_some());
}

#[test]
fn at_the_hard_threshold_budgets_no_longer_count() {
    let mut soft = soft(json!({}));
    let why = Some("the hard threshold is met");
    let (_, asked) = soft.evicts(&[0], true);
    assert_eq!(asked.override_reason.as_deref(), why);
    let asked = soft.asked();
    assert_eq!(asked.last().unwrap().override_reason.as_deref(), why);
}

/// Budgets that protect all pods of a full node do not fill the journal, and hold without a configured time.
#[test]
fn a_request_is_written_down_once_however_many_there_are() {
    let mut soft = soft(json!({}));
    let all: Vec<usize> = (0..260).collect();
    for Pod { name, uid, .. } in all.iter().map(|index| web(*index)) {
        let mut state = soft.server.state();
        state.put_pod(apiserver::pod(&name, &uid, "Burstable", 0, None));
        state.budgets.insert(name);
    }
    let is_protected = |outcome| matches!(outcome, SoftOutcome::ProtectedByBudgets { .. });
    assert!(is_protected(soft.evict(&all, false)));
    // Another signal's candidates take no places.
    soft.signal = Signal::PidAvailable;
    assert!(is_protected(soft.evict(&all[..1], false)));
    soft.signal = Signal::MemoryAvailable;
    assert!(is_protected(soft.evict(&all, false)));
    assert_eq!(soft.asked().len(), all.len());
    assert_eq!(soft.server.count("DELETE", ""), 0);
}

/// A pod that has completed since it was chosen keeps its object, status and logs.
// R5
#[test]
fn a_pod_that_has_completed_is_not_deleted() {
    for is_protected in [false, true] {
        let mut soft = soft(json!({}));
        let index = usize::from(!is_protected);
        let name = format!("web-{}", index + 1);
        let mut state = soft.server.state();
        state.change_pod(&name, |pod| pod["status"]["phase"] = "Succeeded".into());
        drop(state);
        let outcome = soft.evict(&[index], is_protected);
        assert_eq!(outcome, SoftOutcome::Gone { index: 0 });
        assert_eq!(soft.disruption(&name), Value::Null);
        assert_eq!((soft.server.count("DELETE", ""), soft.counted()), (0, 0));
        assert_eq!(soft.connection.counters.pdb_overrides.get(), 0);
        assert_eq!(soft.event_reasons(), [""; 0]);
    }
}

// A pod that is gone, or another one of its name: nothing is done to it, and no other pod goes for it.
#[test]
fn a_pod_that_is_gone_is_not_replaced_by_the_next_one() {
    let mut soft = soft(json!({}));
    let mut state = soft.server.state();
    state.remove(Collection::Pods, "default", "web-2");
    drop(state);
    assert_eq!(soft.evict(&[1, 2], false), SoftOutcome::Gone { index: 0 });
    let other = apiserver::pod("web-3", "uid-new", "Burstable", 0, None);
    soft.server.state().put_pod(other);
    assert_eq!(soft.evict(&[2], false), SoftOutcome::Gone { index: 0 });
    let state = soft.server.state();
    // web-1 and the new web-3.
    assert_eq!(state.all_of(Collection::Pods).count(), 2);
    drop(state);
    assert!(soft.event_reasons().is_empty());
    // No limit counts what evictd has not done.
    assert_eq!(soft.counted(), 0);
}

// R42: the pod is gone, and nothing else tells of it.
#[test]
fn an_event_is_sent_until_the_server_has_it() {
    let mut soft = soft(json!({}));
    // A 409 of the reason Conflict says nothing of an Event that is there.
    for code in [503, 429, 403, 409] {
        soft.fails("/events", code);
    }
    assert_eq!(soft.evicts(&[1], false).0, 0);
    assert_eq!(soft.event_reasons(), ["Evicted"]);
    assert_eq!(soft.connection.counters.reports_failed.get(), 0);
    // One that the server does not take at all is given up.
    soft.server.fails("POST", "/events", 8, 422);
    assert_eq!(soft.evicts(&[2], false).0, 0);
    assert_eq!(soft.event_reasons(), ["Evicted"]);
    assert_eq!(soft.connection.counters.reports_failed.get(), 1);
}

// R42
#[test]
fn new_events_use_up_no_attempts_of_a_refused_one() {
    let soft = soft(json!({}));
    soft.server
        .fails("POST", "/namespaces/shop/events", usize::MAX, 403);
    let send = |namespace, number: usize| {
        let pod = PodRef {
            namespace,
            name: "web",
            uid: "uid",
        };
        let time = jiff::Timestamp::now().to_string();
        soft.events.about_pod(&EventSpec {
            pod,
            id: &number.to_string(),
            time: &time,
            reason: "Evicted",
            note: String::new(),
            annotations: None,
        });
    };
    let wait = |condition: &dyn Fn() -> bool| {
        let met = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let met = async { tokio::time::timeout(SOON, met).await };
        assert!(soft.runtime.block_on(met).is_ok());
    };
    let told = || soft.server.state().events_of("Evicted", "Pod").len();
    send("shop", 0);
    for number in 1..=20 {
        send("default", number);
        wait(&|| told() == number);
    }
    wait(&|| soft.events.waiting() == 1);
    soft.server.state().faults.clear();
    wait(&|| told() == 21);
    assert_eq!(soft.connection.counters.reports_failed.get(), 0);
}

// At the end there are seconds for what waits.
#[test]
fn the_end_waits_for_an_event_that_is_not_taken_at_once() {
    let mut soft = soft(json!({}));
    soft.server.fails("POST", "/events", 3, 503);
    assert_eq!(soft.evicts(&[1], false).0, 0);
    // Nothing can fill the queue any more.
    let filling = (soft.events, soft.evictor);
    drop(filling);
    let sending = soft.sending;
    let ended = async { tokio::time::timeout(SOON, sending).await };
    assert!(soft.runtime.block_on(ended).is_ok());
    assert_eq!(soft.server.state().events_of("Evicted", "Pod").len(), 1);
}

// One pod's own failure concerns no other pod; a server that is away concerns all.
#[test]
fn trouble_with_one_and_trouble_with_all() {
    let mut soft = soft(json!({}));
    soft.fails("/web-2/eviction", 500);
    assert_eq!(soft.evicts(&[1, 2], false).0, 1);
    soft.server.go_away();
    assert_eq!(soft.evict(&[0, 1], false), SoftOutcome::NoneRequested);
}

// R18: what the server says about itself is no reason for another pod, and the one that stays is no target any more.
#[test]
fn a_busy_server_takes_no_other_pod() {
    let mut soft = soft(json!({}));
    for code in [401, 429, 502, 503, 504] {
        let times = if code == 401 { 2 } else { 1 };
        for (method, path) in [("POST", "/web-2/eviction"), ("DELETE", "/pods/web-2")] {
            soft.server.fails(method, path, times, code);
            let outcome = soft.evict(&[1, 2], false);
            assert_eq!(outcome, SoftOutcome::NoneRequested, "{method} {code}");
            let expected = match method {
                "DELETE" => json!(["False", null]),
                _ => Value::Null,
            };
            assert_eq!(soft.disruption("web-2"), expected, "{method} {code}");
            soft.forget_disruption("web-2");
        }
    }
    // A condition that is not taken back at once.
    let status = "/web-2/status";
    let at_once = InjectedFault::Slow(Duration::ZERO);
    soft.server.fails("PATCH", status, 1, at_once);
    soft.server.fails("PATCH", status, 2, 503);
    soft.server.fails("DELETE", "/pods/web-2", 1, 503);
    soft.evict(&[1, 2], false);
    assert_eq!(soft.disruption("web-2"), json!(["False", null]));
    let state = soft.server.state();
    assert_eq!(state.count("POST", "/web-3/eviction"), 0);
    assert_eq!(state.all_of(Collection::Pods).count(), 3);
    drop(state);
    assert_eq!(soft.evicts(&[1, 2], false).0, 0);
}

// R18: whether the DELETE is done the server does not tell.
#[test]
fn the_condition_stays_where_the_outcome_is_not_known() {
    let mut soft = soft(json!({}));
    soft.server.fails("DELETE", "/pods/web-2", 1, 504);
    // Before the DELETE, and after it.
    soft.server.fails("GET", "/default/pods", 2, 403);
    assert_eq!(soft.evict(&[1, 2], false), SoftOutcome::NoneRequested);
    let stays = json!(["True", "TerminationByKubelet"]);
    assert_eq!(soft.disruption("web-2"), stays);
}

// R42: the server has done it, and says so later; or the connection is lost before that.
#[test]
fn a_delete_whose_answer_is_lost_counts() {
    let late = InjectedFault::Late(Duration::from_secs(1));
    for (fault, refused) in [(InjectedFault::Cut, 3), (late, 0)] {
        let mut soft = soft(json!({}));
        soft.server.fails("DELETE", "/default/pods/web-2", 1, fault);
        soft.server.fails("GET", "/default/pods", refused, 503);
        assert_eq!(soft.evicts(&[1, 2], false).0, 0);
        assert_eq!(soft.server.count("DELETE", ""), 1);
        assert_eq!(soft.counted(), 1);
        assert_eq!(soft.event_reasons(), ["Evicted"]);
    }
}

// The default of a webhook's `timeoutSeconds` is 10 s, and the API server goes on after that if it may.
#[test]
fn a_webhook_has_its_time_before_a_pod_is_asked() {
    let mut soft = soft(json!({}));
    let slow = |seconds| InjectedFault::Slow(Duration::from_secs(seconds));
    soft.fails("/web-2/eviction", slow(11));
    // The pod was not killed: nothing restarts it meanwhile.
    let status = "/pods/web-2/status";
    soft.server.fails("PATCH", status, 1, slow(1));
    assert_eq!(soft.evicts(&[1, 2], false).0, 0);
    let state = soft.server.state();
    let at = |method| state.all(method, "/pods/web-2").next().unwrap().at;
    assert!(at("DELETE") - at("PATCH") > Duration::from_secs(1));
}

/// Counts what is logged on this thread.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let of = event.metadata();
        if *of.level() <= tracing::Level::WARN && of.target().starts_with("evictd") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// Without the right none of the candidates can be asked: one request a round, one line while pressure lasts, and no alert where the
// start has said it.
#[test]
fn a_missing_right_is_the_agents_own_trouble() {
    let mut soft = soft(json!({}));
    let lines = Lines::default();
    let _logged = tracing_subscriber::registry()
        .with(lines.clone())
        .set_default();
    let said = || lines.0.swap(0, Ordering::Relaxed);
    let mut state = soft.server.state();
    state.denied.insert("create pods/eviction".into());
    state.fails("POST", "/eviction", usize::MAX, InjectedFault::NoRight);
    drop(state);
    let rights = access::check(&soft.connection, access::AGAIN, None, None, []);
    let missing = soft.runtime.block_on(rights);
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(said(), 1, "it is said at the start");
    let asked = |soft: &Soft| soft.server.count("POST", "/eviction");
    for round in 1..=3 {
        assert_eq!(
            soft.evict(&[0, 1, 2, 3, 4], false),
            SoftOutcome::NoneRequested
        );
        assert_eq!(asked(&soft), round);
    }
    assert_eq!(said(), 1, "and once while pressure lasts");
    assert_eq!(soft.connection.counters.forbidden.get(), 0);
    soft.evictor.relieved();
    soft.evict(&[0, 1], false);
    soft.evict(&[0, 1], false);
    assert_eq!(said(), 1, "once more for the next pressure");

    // The right comes, and goes where nothing was said of it.
    soft.server.state().faults.clear();
    assert_eq!(soft.evicts(&[1, 2], false).0, 0);
    soft.fails("/eviction", InjectedFault::NoRight);
    assert_eq!(soft.evict(&[2], false), SoftOutcome::NoneRequested);
    assert_eq!(soft.connection.counters.forbidden.get(), 1);
}

// A policy or a webhook of another's may protect one pod, and says 403 too.
#[test]
fn a_pod_that_a_policy_protects_is_passed_over() {
    let mut soft = soft(json!({}));
    soft.fails("/web-2/eviction", 403);
    assert_eq!(soft.evicts(&[1, 2], false).0, 1);
    assert_eq!(soft.connection.counters.forbidden.get(), 1);
}

fn block_reason(by: BlockReason, denied: usize) -> SoftOutcome {
    SoftOutcome::Blocked { by, denied }
}

// R12, R38: what was decided before a pause, a slow fleet or the last eviction of a limit is not carried out after it.
#[test]
fn what_is_held_back_by_now_is_not_asked_to_go() {
    let mut soft = soft(json!({}));
    let here: Vec<_> = [1, 2].map(|i| Arc::new(BarePod::new(web(i)))).into();
    soft.policies.set_pods(&here);
    let limiter = Arc::clone(soft.policies.limiter());
    limiter.pause(true);
    assert_eq!(
        soft.evict(&[1, 2], true),
        block_reason(BlockReason::Paused, 0)
    );
    limiter.pause(false);
    let minute = Duration::from_secs(60);
    let pace = |pace| limiter.set_fleet(pace, minute, &FLEET_RULES, monotonic_ns());
    pace(FleetPace::Paused);
    assert_eq!(
        soft.evict(&[1, 2], true),
        block_reason(BlockReason::FleetBrake, 0)
    );
    pace(FleetPace::Normal);
    // One of a minute, and that was another one.
    limiter.set_quota(3, Some(1), u64::MAX, None);
    here.iter()
        .for_each(|pod| pod.permit().set(Permission::Always, 0, &[3]));
    charge(&limiter, &BarePod::default());
    limiter.charge_restored(3, i64::try_from(monotonic_ns()).unwrap());
    assert_eq!(
        soft.evict(&[1, 2], true),
        block_reason(BlockReason::Denied, 2)
    );
    let state = soft.server.state();
    assert_eq!(state.requests.len(), 0, "{:?}", state.requests);
    drop(state);
    assert!(soft.asked().is_empty());
    // Of two the other one.
    here[1].permit().set(Permission::Always, 0, &[]);
    assert_eq!(soft.evicts(&[1, 2], false).0, 1);
}

// With `paused=true` the runbook has an operator look for a pause.
#[test]
fn the_log_says_whether_a_pause_holds_back_a_request() {
    let pause: fn(&EvictionLimiter) = |limiter| limiter.pause(true);
    let brake: fn(&EvictionLimiter) = |limiter| {
        let minute = Duration::from_secs(60);
        limiter.set_fleet(FleetPace::Paused, minute, &FLEET_RULES, monotonic_ns());
    };
    let unknown: fn(&EvictionLimiter) = |limiter| limiter.await_policies(u64::MAX);
    let nothing: fn(&EvictionLimiter) = |_| {};
    for (hold, paused, urgent_only) in [
        (pause, true, false),
        (brake, false, true),
        (unknown, false, true),
        // A policy denies it.
        (nothing, false, false),
    ] {
        let soft = soft(json!({}));
        hold(soft.policies.limiter());
        let here = Arc::new(BarePod::new(web(1)));
        soft.policies.set_pods(&Arc::from([Arc::clone(&here)]));
        let is_denied = !paused && !urgent_only;
        here.permit().set(
            if is_denied {
                Permission::Never
            } else {
                Permission::Always
            },
            0,
            &[],
        );
        let log = tempfile::NamedTempFile::new().unwrap();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false);
        let layer = layer.with_writer(log.reopen().unwrap());
        let _logged = tracing_subscriber::registry().with(layer).set_default();
        let (requests, queue) = mpsc::channel(1);
        requests.try_send(soft.request(&[web(1)], false)).unwrap();
        let settle = |_, _| panic!("it is asked again after ten seconds");
        let task = soft_task::run(soft.evictor, queue, settle, mpsc::channel(1).0);
        let ended = async { tokio::time::timeout(Duration::from_millis(100), task).await };
        soft.runtime.block_on(ended).unwrap_err();
        let log = fs::read_to_string(log.path()).unwrap();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("no pod may be evicted"));
        let says = format!("paused={paused} urgent_only={urgent_only}");
        has(line.unwrap(), &[&says]);
    }
}

// R5, R42: what limits count and what users see is not lost because the agent ends between the DELETE and its answer.
#[test]
fn the_end_waits_for_a_delete_that_is_out() {
    let (mut member, wild) = as_root!(ClusterNode::with_wild("softend").unwrap());
    set_soft(&mut member.config, "150Mi");
    let slow = InjectedFault::Slow(Duration::from_secs(2));
    member.server.fails("DELETE", "/pods/wild", 1, slow);
    let mut agent = member.start().unwrap();
    let _hog = Hog::start(&wild, &["--mib", "130"]).unwrap();
    let is_out = |m: &ClusterNode| m.server.count("DELETE", "/pods/wild") == 1;
    assert!(member.wait(SOON, is_out));
    assert_eq!(agent.terminate().unwrap(), Some(0));
    let counted = records_of!(member.records(), Record::Counted(c) if c.name == "wild");
    assert!(!counted.is_empty());
    assert_eq!(member.server.state().events_of("Evicted", "Pod").len(), 1);
}

// R28: the pods were chosen for a shortage that ends while the API server takes its time over the first one.
#[test]
fn a_request_is_taken_back_when_the_pressure_is_over() {
    skip_if!(not_root());
    let mut member = ClusterNode::new("softover", 256).unwrap();
    set_soft(&mut member.config, "150Mi");
    let (one, two) = (member.best_effort("one", 1), member.best_effort("two", 2));
    member.server.state().budgets.insert("one".into());
    let slow = InjectedFault::Slow(Duration::from_secs(5));
    let asked = "/pods/one/eviction";
    member.server.fails("POST", asked, 1, slow);
    let agent = member.start().unwrap();
    let _small = Hog::start(&two, &["--mib", "20"]).unwrap();
    let hog = Hog::start(&one, &["--mib", "120"]).unwrap();
    let is_asked = |m: &ClusterNode| m.server.count("POST", asked) == 1;
    assert!(member.wait(SOON, is_asked));
    drop(hog);
    assert!(agent.says("the threshold is not met any more: no pod needs to go"));
    let mut state = member.server.state();
    let is_touched = |r: &apiserver::Seen| r.path.contains("/pods/two") || r.method == "DELETE";
    assert!(!state.requests.iter().any(is_touched));
    state.budgets.clear();
    drop(state);
    // The next shortage is another one.
    let _hog = Hog::start(&one, &["--mib", "120"]).unwrap();
    assert!(member.wait(SOON, |m| m.server.count("DELETE", "/pods/one") == 1));
}

// R5, R12, R18: the API server takes its time over the dry run, over the condition, or over a budget that is overridden, and evictions
// are paused meanwhile. A pod that stays is no target of a disruption.
#[test]
fn a_pause_meanwhile_comes_before_the_delete() {
    for (method, path, indices, hard, patches) in [
        ("POST", "/web-2/eviction", &[1, 2][..], false, 0),
        ("PATCH", "/web-2/status", &[1, 2], false, 2),
        ("POST", "/web-1/eviction", &[0], true, 0),
    ] {
        let mut soft = soft(json!({}));
        let slow = InjectedFault::Slow(Duration::from_secs(1));
        soft.server.fails(method, path, 1, slow);
        let limiter = Arc::clone(soft.policies.limiter());
        let paused = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            limiter.pause(true);
        });
        let outcome = soft.evict(indices, hard);
        paused.join().unwrap();
        assert_eq!(outcome, block_reason(BlockReason::Paused, 0), "{path}");
        let asked = ["POST", "PATCH", "DELETE"].map(|method| soft.server.count(method, ""));
        assert_eq!(asked, [1, patches, 0], "{path}");
        let condition = if patches > 0 {
            json!(["False", null])
        } else {
            Value::Null
        };
        let pod = web(indices[0]).name;
        assert_eq!(soft.disruption(&pod), condition, "{path}");
        assert_eq!(soft.connection.counters.pdb_overrides.get(), 0);
    }
}
