//! The watch of the node's pods against a server that is slow, silent, forgetful or away.

use evictd_kube::{
    client::ApiClient,
    watch::pods::{self, Shared},
};
use evictd_tests::{apiserver::pod, prelude::*};
use jiff::{SignedDuration, Timestamp};

struct Watching {
    server: ApiServer,
    shared: Arc<Shared>,
    connection: Arc<ApiClient>,
    dir: tempfile::TempDir,
    // The watch ends when this is dropped.
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn start(prepare: impl FnOnce(&mut ApiServer)) -> Watching {
    let mut server = ApiServer::start().unwrap();
    prepare(&mut server);
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(dir.path()).unwrap();
    let runtime = current_thread().unwrap();
    let (connection, shared) = (
        runtime.block_on(ApiClient::open(Some(kubeconfig))).unwrap(),
        Arc::new(Shared::default()),
    );
    let connection = Arc::new(connection);
    let watch = pods::run(Arc::clone(&connection), NODE.into(), Arc::clone(&shared));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = watch => {}
                _ = stopped => {}
            }
        });
    });
    Watching {
        server,
        shared,
        connection,
        dir,
        _stop: stop,
    }
}

impl Watching {
    /// Waits until exactly these UIDs are known.
    fn knows(&self, uids: &[&str]) -> bool {
        let known = || {
            self.shared.with(|store| {
                store.is_synced() && store.uids().into_iter().eq(uids.iter().copied())
            })
        };
        self.server.wait(SOON, |_| known())
    }

    fn put(&self, name: &str, uid: &str) {
        let pod = pod(name, uid, "Burstable", 0, Some("16Mi"));
        self.server.state().put_pod(pod);
    }

    fn lists(&self) -> usize {
        let state = self.server.state();
        state
            .requests
            .iter()
            .filter(|r| r.path == "/api/v1/pods" && !r.query.contains("watch"))
            .count()
    }
}

/// One list from the cache, one watch with bookmarks, both of this node only; then changes as they come.
#[test]
fn one_list_and_one_watch_of_this_node() {
    let w = start(|server| {
        server.state().put_pod(pod("a", "ua", "Burstable", 0, None));
    });
    assert!(w.knows(&["ua"]));
    w.server.wait(SOON, |s| s.requests.len() == 2);
    w.put("b", "ub");
    assert!(w.knows(&["ua", "ub"]));
    w.server.state().remove_pod("default", "a");
    assert!(w.knows(&["ub"]));
    let state = w.server.state();
    assert_eq!(state.requests.len(), 2, "{:?}", state.requests);
    let [list, watch] = &state.requests[..] else {
        unreachable!()
    };
    for part in ["fieldSelector=spec.nodeName%3Dn2", "resourceVersion=0"] {
        assert!(list.query.contains(part), "{}", list.query);
    }
    for part in [
        "fieldSelector=spec.nodeName%3Dn2",
        "allowWatchBookmarks=true",
        "resourceVersion=600",
    ] {
        assert!(watch.query.contains(part), "{}", watch.query);
    }
}

/// A watch that ends goes on from its last bookmark, without a list.
#[test]
fn bookmarks_spare_a_list() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.server.wait(SOON, |s| s.requests.len() == 2));
    w.server.state().bookmark();
    let version = w.server.state().version;
    // What the bookmark tells must have arrived before the watch ends.
    std::thread::sleep(Duration::from_millis(200));
    w.server.state().end_watches();
    assert!(w.server.wait(SOON, |s| s.requests.len() == 3));
    let query = w.server.state().requests[2].query.clone();
    assert!(
        query.contains(&format!("resourceVersion={version}")),
        "{query}"
    );
    assert_eq!(w.lists(), 1);
}

/// 410 inside the stream: a new list, during which nothing is forgotten.
#[test]
fn too_old_means_a_new_list() {
    let w = start(|server| {
        server.state().put_pod(pod("a", "ua", "Burstable", 0, None));
    });
    assert!(w.knows(&["ua"]));
    assert!(w.server.wait(SOON, |s| s.requests.len() == 2));
    w.server.state().expire();
    w.put("b", "ub");
    assert!(w.knows(&["ua", "ub"]));
    assert_eq!(w.lists(), 2);
    assert!(w.connection.counters.watch_errors.get() >= 1);
}

/// What the kubelet has evicted while the watch was away is news when the new list tells of it; what was over at the start is not.
#[test]
fn evictions_during_an_outage_are_seen() {
    let evicted = |name: &str, uid: &str| {
        let mut pod = pod(name, uid, "Burstable", 0, None);
        let since = Timestamp::now() - SignedDuration::from_hours(1);
        let target = json!({"type": "DisruptionTarget", "status": "True", "lastTransitionTime": format!("{since:.0}")});
        pod["status"] = json!({
            "phase": "Failed", "reason": "Evicted", "message": "low", "conditions": [target],
        });
        pod
    };
    let w = start(|server| {
        let mut state = server.state();
        state.put_pod(evicted("old", "uo"));
        state.put_pod(pod("a", "ua", "Burstable", 0, None));
    });
    assert!(w.knows(&["ua"]));
    assert!(w.server.wait(SOON, |s| s.requests.len() == 2));
    {
        let mut state = w.server.state();
        // No watcher hears of it.
        state.end_watches();
        state.put_pod(evicted("a", "ua"));
        state.expire();
    }
    assert!(w.knows(&[]));
    let news: Vec<_> = w.shared.kubelet_evictions();
    assert_eq!(news.iter().map(|e| &e.uid).collect::<Vec<_>>(), ["ua"]);
    let time: Timestamp = news[0].time.parse().unwrap();
    let age = Timestamp::now().duration_since(time).as_mins();
    assert!((59..62).contains(&age), "{age}");
    assert_eq!(w.connection.counters.kubelet_evictions.get(), 1);
}

/// A server that is gone without a word is noticed by the kernel, long before a watch would have ended by itself.
#[test]
fn connections_are_kept_alive() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.server.wait(SOON, |s| s.requests.len() == 2));
    let port = format!(":{:04X}", w.server.address().port());
    // `get_tcp4_sock`: timer 2 of an established connection is the keepalive.
    let is_kept = || {
        let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        sockets.lines().any(|socket| {
            let fields: Vec<&str> = socket.split_whitespace().collect();
            fields.get(2).is_some_and(|peer| peer.ends_with(&port))
                && fields.get(3) == Some(&"01")
                && fields.get(5).is_some_and(|timer| timer.starts_with("02:"))
        })
    };
    assert!(w.server.wait(SOON, |_| is_kept()));
}

/// Away at the start and away later: what was known stays known, and what has changed is learnt.
#[test]
fn an_outage_is_outlasted() {
    let mut w = start(ApiServer::go_away);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!w.shared.with(|store| store.is_synced()));
    w.server.come_back().unwrap();
    w.put("a", "ua");
    assert!(w.knows(&["ua"]));
    w.server.go_away();
    w.put("b", "ub");
    assert!(
        w.shared.with(|store| store.get("ua").is_some()),
        "not forgotten"
    );
    w.server.come_back().unwrap();
    assert!(w.knows(&["ua", "ub"]));
}

/// A proxy that closes each watch as soon as it is open is not asked without end.
#[test]
fn a_watch_that_ends_at_once_is_followed_by_a_pause() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.server.wait(SOON, |s| s.requests.len() == 2));
    {
        let mut state = w.server.state();
        state.fails("GET", "/pods", usize::MAX, InjectedFault::Empty);
        state.end_watches();
    }
    assert!(w.server.wait(SOON, |s| s.requests.len() >= 3));
    std::thread::sleep(Duration::from_secs(3));
    let asked = w.server.state().requests.len();
    assert!(asked <= 6, "{asked}");
    assert!(w.connection.counters.watch_errors.get() >= 2);
    assert_eq!(w.lists(), 1, "a watch goes on where it was");
    w.server.state().faults.clear();
    w.put("a", "ua");
    assert!(w.knows(&["ua"]));
}

/// Errors, delays and half an answer are followed by a pause, not by a storm.
#[test]
fn failures_are_followed_by_pauses() {
    let w = start(|server| {
        let mut state = server.state();
        state.put_pod(pod("a", "ua", "Burstable", 0, None));
        for what in [
            InjectedFault::Status(500),
            InjectedFault::Status(429),
            InjectedFault::Status(403),
            InjectedFault::Slow(Duration::from_millis(200)),
        ] {
            state.fails("GET", "/pods", 1, what);
        }
    });
    assert!(w.knows(&["ua"]));
    assert_eq!(w.lists(), 4, "three refusals, then the slow one");
    assert_eq!(w.connection.counters.watch_errors.get(), 3);
    assert_eq!(
        w.connection.counters.forbidden.get(),
        1,
        "a missing right is counted where it is alerted on"
    );
}

/// A token that has expired is read again from its file.
#[test]
fn an_expired_token_is_read_again() {
    let w = start(|server| {
        server.state().token = Some("first".into());
        server.state().put_pod(pod("a", "ua", "Burstable", 0, None));
    });
    assert!(w.knows(&["ua"]));
    w.server.state().token = Some("second".into());
    std::fs::write(w.dir.path().join("token"), "second").unwrap();
    w.server.state().end_watches();
    w.put("b", "ub");
    assert!(w.knows(&["ua", "ub"]));
    assert_eq!(w.connection.counters.unauthorized.get(), 1);
}

/// Pods that are odd: left out or taken for what they are, and counted.
// R12
#[test]
fn odd_pods_are_counted() {
    let w = start(|server| {
        let mut state = server.state();
        let mut unknown = pod("nobody", "", "Burstable", 0, None);
        unknown["metadata"].as_object_mut().unwrap().remove("uid");
        state.put_pod(unknown);
        let mut broken = pod("broken", "ux", "Burstable", 0, Some("16Mi"));
        broken["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("lots");
        state.put_pod(broken);
        let mut mirror = pod("mirror", "um", "BestEffort", 0, None);
        mirror["metadata"]["annotations"] = json!({
            "kubernetes.io/config.mirror": "d4ae8de11a3b28dc31b9c89edbd7f90a",
            "kubernetes.io/config.hash": "d4ae8de11a3b28dc31b9c89edbd7f90a",
            "kubernetes.io/config.source": "file",
        });
        state.put_pod(mirror);
        let mut going = pod("going", "ug", "BestEffort", 0, None);
        going["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:53:10Z");
        state.put_pod(going);
        let mut over = pod("over", "uo", "BestEffort", 0, None);
        over["status"]["phase"] = json!("Succeeded");
        state.put_pod(over);
    });
    assert!(w.knows(&["d4ae8de11a3b28dc31b9c89edbd7f90a", "ug"]));
    let c = &w.connection.counters;
    let counted = [
        &c.pods_without_uid,
        &c.pods_unreadable,
        &c.mirror_pods,
        &c.terminating_pods,
    ];
    assert_eq!(counted.map(|c| c.get()), [1, 1, 1, 1]);
    let protected = |uid: &str| w.shared.with(|r| r.get(uid).unwrap().is_critical());
    assert!(protected("d4ae8de11a3b28dc31b9c89edbd7f90a"));
    assert!(!protected("ug"));
}
