//! The reporter against the scripted API server, without a node: what does not get through holds up nothing else (R42).

use evictd_config::EvictedPods;
use evictd_kube::{
    reporter::{Job, QUEUE, Reporter},
    watch::pods::{self, WatchedPods},
};
use evictd_store::{
    disk_queue::DiskThread,
    journal::Journal,
    record::{EvictionRecord, RequestRecord},
};
use evictd_sys::clock::boot_id;
use evictd_tests::{apiserver, prelude::*, watch_fixture::WatchFixture};
use tokio::sync::mpsc;

use crate::soft::{decision, reading};

/// Enough for what waits for nothing, and less than what is held up by a request without an answer.
const AT_ONCE: Duration = Duration::from_secs(6);

struct Reports {
    f: WatchFixture,
    queue: mpsc::Sender<Job>,
    _disk: DiskThread,
}

/// A reporter that has nothing to do.
fn reports(evicted_pods: EvictedPods) -> Reports {
    let f = WatchFixture::new(|_| {}).unwrap();
    let journal = Journal::open(&f.server.dir().join("state")).unwrap();
    let disk = DiskThread::start(journal).unwrap();
    let (client, pods) = (Arc::clone(&f.connection), Arc::new(WatchedPods::default()));
    f.spawn(pods::run(
        Arc::clone(&client),
        NODE.into(),
        Arc::clone(&pods),
    ));
    let known = (pods, Arc::clone(f.store.evaluator()));
    let journal = disk.queue().clone();
    let reporter = Reporter::new(client, journal, known, NODE, evicted_pods, Vec::new());
    let (queue, jobs) = mpsc::channel(QUEUE);
    f.spawn(reporter.run(jobs));
    Reports {
        f,
        queue,
        _disk: disk,
    }
}

fn running(namespace: &str, name: &str) -> Value {
    let mut pod = apiserver::pod(name, &format!("uid-of-{name}"), "BestEffort", 0, None);
    pod["metadata"]["namespace"] = namespace.into();
    pod
}

impl Reports {
    /// A pod of the API server that was killed.
    fn killed(&self, namespace: &str, name: &str) {
        self.killed_for(Signal::MemoryAvailable, namespace, name);
    }

    fn killed_for(&self, signal: Signal, namespace: &str, name: &str) {
        self.f.server.state().put_pod(running(namespace, name));
        let pod = Pod {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("uid-of-{name}"),
            ..Pod::default()
        };
        let request = RequestRecord::new(&pod, &decision(&pod, signal, false), reading(signal));
        let eviction = EvictionRecord {
            id: format!("{}-1-{name}", boot_id()),
            ..EvictionRecord::from(&request)
        };
        self.queue.try_send(Job::new(eviction, None)).unwrap();
    }

    fn fails(&self, method: &'static str, path: &'static str, what: impl Into<InjectedFault>) {
        self.f.server.fails(method, path, usize::MAX, what);
    }

    fn count(&self, method: &str, path: &str) -> usize {
        self.f.server.count(method, path)
    }

    fn reported(&self) -> u64 {
        self.f.connection.counters.reported.get()
    }

    #[track_caller]
    fn soon(&self, condition: impl Fn(&Self) -> bool) {
        assert!(
            until(AT_ONCE, || condition(self)),
            "{:?}",
            self.f.server.state().requests
        );
    }
}

// R42: a webhook of one namespace, for its pods or for their Events.
#[test]
fn a_namespace_that_hangs_holds_up_no_other() {
    let r = reports(EvictedPods::Delete);
    r.fails("DELETE", "/namespaces/shop/", InjectedFault::Hang);
    r.fails("POST", "/namespaces/silent/", InjectedFault::Hang);
    r.killed("silent", "mute");
    for number in 0..20 {
        r.killed("shop", &format!("web-{number}"));
    }
    r.soon(|r| r.count("DELETE", "/shop/") == 4 && r.count("POST", "/silent/") == 1);
    r.killed("default", "other");
    r.soon(|r| r.count("DELETE", "/default/pods/other") == 1);
    assert_eq!(r.count("DELETE", "/shop/"), 4, "not all places");
}

/// The kubelet keeps the layers and logs of a pod that is over until it is deleted.
#[test]
fn a_pod_that_went_for_a_disk_is_deleted_with_its_files() {
    let r = reports(EvictedPods::Fail);
    r.killed("default", "memory");
    r.killed_for(Signal::NodeFsAvailable, "default", "disk");
    r.soon(|r| r.reported() == 2);
    let counts = ["memory", "disk"].map(|name| {
        let path = format!("/pods/{name}");
        (
            r.count("DELETE", &path),
            r.count("PATCH", &format!("{path}/status")),
        )
    });
    // The other patch is the condition DisruptionTarget.
    assert_eq!(counts, [(0, 1), (1, 1)]);
}

// R42: its DELETE is never given up. The Events of others are told, and a pod that the kubelet takes back is noticed.
#[test]
fn a_pod_that_cannot_be_deleted_holds_up_no_other() {
    let r = reports(EvictedPods::Fail);
    for (method, path) in [("PATCH", "/pods/stuck/status"), ("DELETE", "/pods/stuck")] {
        r.fails(method, path, 500);
    }
    r.killed("default", "stuck");
    // The pauses are long by now.
    assert!(r.f.wait(|f| f.server.count("DELETE", "/pods/stuck") >= 4));
    let names: Vec<String> = (0..20).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| r.killed("default", name));
    r.soon(|r| r.reported() == 20);
    r.f.server.state().put_pod(running("default", "web-3"));
    r.soon(|r| r.count("DELETE", "/pods/web-3") == 1);
    assert_eq!(r.reported(), 20);
}

// The API server does not carry out what is not waited for, and the default of a webhook's `timeoutSeconds` is 10 s.
#[test]
fn a_webhook_has_its_time() {
    let slow = InjectedFault::Slow(Duration::from_secs(11));
    // A connection that is dead holds up no Event for so long: only what follows the first has this time, the pod's anew and the
    // node's.
    let all = [
        (EvictedPods::Delete, "DELETE", "/pods/web", 1),
        (EvictedPods::Fail, "PATCH", "/pods/web", 1),
        (EvictedPods::Delete, "POST", "/events", 3),
    ]
    .map(|(evicted_pods, method, path, times)| {
        let r = reports(evicted_pods);
        r.f.server.fails(method, path, usize::MAX, slow);
        r.killed("default", "web");
        (r, method, path, times)
    });
    for (r, method, path, times) in all {
        assert!(r.f.wait(|_| r.reported() == 1));
        assert_eq!(r.count(method, path), times);
    }
}

// R42: a webhook refuses for some seconds. What succeeds meanwhile has the refused request sent again at once.
#[test]
fn refusals_in_a_burst_are_not_the_last_word() {
    let r = reports(EvictedPods::Delete);
    let server = &r.f.server;
    server.fails("DELETE", "/shop/", 12, 403);
    r.killed("shop", "web");
    for number in 0..40 {
        r.killed("default", &format!("other-{number}"));
    }
    assert!(r.f.wait(|_| r.reported() == 41), "{}", r.reported());
    assert_eq!(r.count("DELETE", "/shop/"), 13);
}

// R42: Events have a database of their own, which is full. No more wait for it than have room.
#[test]
fn events_that_are_never_taken_hold_up_no_delete() {
    let r = reports(EvictedPods::Delete);
    r.fails("POST", "/events", 500);
    let beyond = 40;
    for number in 1..=QUEUE + beyond {
        r.killed("default", &format!("web-{number}"));
        if number % beyond == 0 {
            assert!(r.f.wait(|_| r.count("DELETE", "/pods/web-") >= number - beyond));
        }
    }
    assert!(r.f.wait(|_| r.count("DELETE", "/pods/web-") == QUEUE + beyond));
    let given_up = || r.f.connection.counters.reports_failed.get();
    assert!(r.f.wait(|_| given_up() == beyond as u64), "{}", given_up());
}

// R42: its quota of Events is used up.
#[test]
fn a_namespace_without_room_for_events_takes_none_from_the_node() {
    let r = reports(EvictedPods::Delete);
    r.fails("POST", "/namespaces/shop/", 403);
    r.killed("shop", "web");
    r.soon(|r| r.count("POST", "/namespaces/default/events") == 1);
    assert!(r.f.wait(|_| r.count("POST", "/namespaces/shop/") >= 8));
    assert_eq!(
        r.count("POST", "/namespaces/default/events"),
        1,
        "told once"
    );
    assert_eq!(r.reported(), 0);
}
