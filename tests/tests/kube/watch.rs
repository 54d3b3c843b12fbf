//! The watch of the node's pods against a server that is slow, silent, forgetful or away.

use std::ops::Deref;

use evictd_kube::watch::pods::{self, WatchedPods};
use evictd_tests::{apiserver::pod, prelude::*, watch_fixture::WatchFixture};
use jiff::{SignedDuration, Timestamp};

struct Watching {
    following: WatchFixture,
    shared: Arc<WatchedPods>,
}

impl Deref for Watching {
    type Target = WatchFixture;

    fn deref(&self) -> &WatchFixture {
        &self.following
    }
}

fn start(prepare: impl FnOnce(&mut ApiServer)) -> Watching {
    let following = WatchFixture::new(prepare).unwrap();
    let (connection, shared) = (Arc::clone(&following.connection), Arc::default());
    following.spawn(pods::run(connection, NODE.into(), Arc::clone(&shared)));
    Watching { following, shared }
}

/// A server that has a pod, `a`.
fn with_a(server: &mut ApiServer) {
    server.state().put_pod(pod("a", "ua", "Burstable", 0, None));
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
        let lists = state.all("GET", "/api/v1/pods");
        lists.filter(|r| !r.query.contains("watch")).count()
    }

    /// Waits for so many requests.
    fn has_asked(&self, times: usize) -> bool {
        self.server.wait(SOON, |s| s.requests.len() == times)
    }
}

/// One list from the cache, one watch with bookmarks, both of this node only; then changes as they come.
#[test]
fn one_list_and_one_watch_of_this_node() {
    let w = start(with_a);
    assert!(w.knows(&["ua"]));
    assert!(w.has_asked(2));
    w.put("b", "ub");
    assert!(w.knows(&["ua", "ub"]));
    w.server.state().remove(Collection::Pods, "default", "a");
    assert!(w.knows(&["ub"]));
    let state = w.server.state();
    assert_eq!(state.requests.len(), 2, "{:?}", state.requests);
    for (request, part) in [
        (0, "fieldSelector=spec.nodeName%3Dn2"),
        (0, "resourceVersion=0"),
        (1, "fieldSelector=spec.nodeName%3Dn2"),
        (1, "allowWatchBookmarks=true"),
        (1, "resourceVersion=600"),
    ] {
        let query = &state.requests[request].query;
        assert!(query.contains(part), "{query}");
    }
}

/// A watch that ends goes on from its last bookmark, without a list.
#[test]
fn bookmarks_spare_a_list() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.has_asked(2));
    w.server.state().bookmark();
    let version = w.server.state().version;
    // What the bookmark tells must have arrived before the watch ends.
    std::thread::sleep(Duration::from_millis(200));
    w.server.state().end_watches();
    assert!(w.has_asked(3));
    let query = w.server.state().requests[2].query.clone();
    let expected = format!("resourceVersion={version}");
    assert!(query.contains(&expected), "{query}");
    assert_eq!(w.lists(), 1);
}

/// 410 inside the stream: a new list, during which nothing is forgotten.
#[test]
fn too_old_means_a_new_list() {
    let w = start(with_a);
    assert!(w.knows(&["ua"]));
    assert!(w.has_asked(2));
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
    assert!(w.has_asked(2));
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
}

/// A server that is gone without a word is noticed by the kernel, long before a watch would have ended by itself.
#[test]
fn connections_are_kept_alive() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.has_asked(2));
    let port = format!(":{:04X}", w.server.address().port());
    // `get_tcp4_sock`: timer 2 of an established connection is the keepalive.
    let is_kept = || {
        let sockets = fs::read_to_string("/proc/self/net/tcp").unwrap();
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
    w.following.server.come_back().unwrap();
    w.put("a", "ua");
    assert!(w.knows(&["ua"]));
    w.following.server.go_away();
    w.put("b", "ub");
    let is_known = w.shared.with(|store| store.get("ua").is_some());
    assert!(is_known, "not forgotten");
    w.following.server.come_back().unwrap();
    assert!(w.knows(&["ua", "ub"]));
}

/// A proxy that closes each watch as soon as it is open is not asked without end.
#[test]
fn a_watch_that_ends_at_once_is_followed_by_a_pause() {
    let w = start(|_| {});
    assert!(w.knows(&[]));
    assert!(w.has_asked(2));
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
        use InjectedFault::{Slow, Status};
        let slow = Slow(Duration::from_millis(200));
        for what in [Status(500), Status(429), Status(403), slow] {
            state.fails("GET", "/pods", 1, what);
        }
    });
    assert!(w.knows(&["ua"]));
    assert_eq!(w.lists(), 4, "three refusals, then the slow one");
    assert_eq!(w.connection.counters.watch_errors.get(), 3);
    // A missing right is counted where it is alerted on.
    assert_eq!(w.connection.counters.forbidden.get(), 1);
}

/// A token that has expired is read again from its file.
#[test]
fn an_expired_token_is_read_again() {
    let w = start(|server| {
        server.state().token = Some("first".into());
        with_a(server);
    });
    assert!(w.knows(&["ua"]));
    w.server.state().token = Some("second".into());
    fs::write(w.server.dir().join("token"), "second").unwrap();
    w.server.state().end_watches();
    w.put("b", "ub");
    assert!(w.knows(&["ua", "ub"]));
    assert_eq!(w.connection.counters.unauthorized.get(), 1);
}

/// What the kubelet calls a static pod.
const HASH: &str = ClusterNode::HASH;

/// Pods that are odd: left out or taken for what they are, and counted.
// R12
#[test]
fn odd_pods_are_counted() {
    let w = start(|server| {
        let mut state = server.state();
        let mut put = |name, uid, qos, change: &dyn Fn(&mut Value)| {
            let mut pod = pod(name, uid, qos, 0, Some("16Mi"));
            change(&mut pod);
            state.put_pod(pod);
        };
        put("nobody", "", "Burstable", &|pod| {
            pod["metadata"].as_object_mut().unwrap().remove("uid");
        });
        put("broken", "ux", "Burstable", &|pod| {
            let resources = &mut pod["spec"]["containers"][0]["resources"];
            resources["requests"]["memory"] = json!("lots");
        });
        put("mirror", "um", "BestEffort", &|pod| {
            pod["metadata"]["annotations"] = json!({
                "kubernetes.io/config.mirror": HASH,
                "kubernetes.io/config.hash": HASH,
                "kubernetes.io/config.source": "file",
            });
        });
        put("going", "ug", "BestEffort", &|pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:53:10Z");
        });
        put("over", "uo", "BestEffort", &|pod| {
            pod["status"]["phase"] = json!("Succeeded");
        });
    });
    assert!(w.knows(&[HASH, "ug"]));
    let c = &w.connection.counters;
    let counted = [
        &c.pods_without_uid,
        &c.pods_unreadable,
        &c.mirror_pods,
        &c.terminating_pods,
    ];
    assert_eq!(counted.map(|c| c.get()), [1, 1, 1, 1]);
    let protected = |uid: &str| w.shared.with(|r| r.get(uid).unwrap().is_critical());
    assert!(protected(HASH));
    assert!(!protected("ug"));
}
