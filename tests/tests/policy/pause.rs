//! Pauses: an annotation of the Node for its agent, a ConfigMap for all of them; and what outlives a restart while the API
//! server is away.

use evictd_config::ConfigMapName;
use evictd_kube::pause;
use evictd_policy::{PAUSED, PauseSource};
use evictd_tests::{prelude::*, watch_fixture::WatchFixture};

/// Puts the ConfigMap, which says this word.
fn put_map(f: &WatchFixture, paused: &str) {
    let mut state = f.server.state();
    state.put(Collection::ConfigMaps, config_map(paused));
}

fn config_map(paused: &str) -> Value {
    json!({"metadata": {"namespace": "evictd", "name": "evictd-pause"}, "data": {"paused": paused}})
}

fn follow_both() -> WatchFixture {
    let f = WatchFixture::new(|server| {
        let mut other = config_map("true");
        other["metadata"]["name"] = "another".into();
        server.state().put(Collection::ConfigMaps, other);
    })
    .unwrap();
    let map = ConfigMapName {
        namespace: "evictd".into(),
        name: "evictd-pause".into(),
    };
    let both = || (Arc::clone(&f.connection), Arc::clone(&f.pauses));
    let settled = || tokio::sync::watch::channel(false).0;
    let (connection, pauses) = both();
    f.spawn(pause::of_node(connection, NODE.into(), pauses, settled()));
    let (connection, pauses) = both();
    f.spawn(pause::of_config_map(connection, map, pauses, settled()));
    f
}

fn set_sources(f: &WatchFixture) -> Vec<&'static str> {
    let set = PauseSource::ALL.into_iter().filter(|b| f.pauses.is_set(*b));
    set.map(PauseSource::as_str).collect()
}

#[test]
fn the_node_and_the_config_map_are_obeyed() {
    let f = follow_both();
    f.server.state().annotate_node(PAUSED, Some("true"));
    assert!(f.wait(|f| set_sources(f) == ["node"]));
    put_map(&f, "true");
    assert!(f.wait(|f| set_sources(f) == ["node", "configMap"]));
    f.server.state().annotate_node(PAUSED, None);
    assert!(f.wait(|f| set_sources(f) == ["configMap"]));
    assert!(f.pauses.is_paused());
    put_map(&f, "false");
    assert!(f.wait(|f| set_sources(f).is_empty()));
    put_map(&f, "true");
    assert!(f.wait(|f| set_sources(f) == ["configMap"]));
    f.server
        .state()
        .remove(Collection::ConfigMaps, "evictd", "evictd-pause");
    assert!(f.wait(|f| set_sources(f).is_empty()));
    // A word that means nothing pauses nothing: the one after it is obeyed.
    f.server.state().annotate_node(PAUSED, Some("yes"));
    put_map(&f, "true");
    assert!(f.wait(|f| set_sources(f) == ["configMap"]));
    // Of the Node only itself, of that only the metadata; of the ConfigMaps only the one.
    let state = f.server.state();
    let nodes: Vec<_> = state.all("GET", "/api/v1/nodes").collect();
    assert_eq!(nodes.len(), 2);
    assert!(
        nodes
            .iter()
            .all(|n| n.query.contains("fieldSelector=metadata.name%3Dn2"))
    );
    let maps: Vec<_> = state.all("GET", "/configmaps").collect();
    assert!(
        maps.iter()
            .all(|m| m.query.contains("metadata.name%3Devictd-pause"))
    );
}

#[test]
fn the_last_word_holds_while_the_api_server_is_away() {
    let mut f = follow_both();
    f.server.state().annotate_node(PAUSED, Some("true"));
    assert!(f.wait(|f| set_sources(f) == ["node"]));
    f.server.go_away();
    assert!(f.wait(|f| f.connection.counters.watch_errors.get() > 0));
    assert_eq!(set_sources(&f), ["node"]);
    f.server.state().annotate_node(PAUSED, None);
    f.server.come_back().unwrap();
    assert!(f.wait(|f| set_sources(f).is_empty()));
}

/// The agent learns of a pause from the Node, and after a restart without the API server from its cache.
#[test]
fn a_paused_agent_kills_no_pod_until_the_pause_is_lifted() {
    const IS_PAUSED: &str = "evictd_paused{by=\"node\"} 1";
    for restarts in [false, true] {
        let mut member = as_root!(ClusterNode::new("pause", 256).unwrap());
        let address = listen(&mut member.config, "metricsAddress");
        let wild = member.best_effort("wild", 1);
        member.server.state().put_policy(
            "labelled",
            json!({"selector": {"matchLabels": {"app": "wild"}}, "rules": [{"name": "r", "evict": "Always"}]}),
        );
        member.server.state().annotate_node(PAUSED, Some("true"));
        let mut agent = member.start().unwrap();
        for line in [
            IS_PAUSED,
            "evictd_policy_pods{policy=\"labelled\"} 1",
            "evictd_policies_refused{source=\"api\"} 0",
        ] {
            assert!(until(SOON, || shows(&address, line)), "{line}");
        }
        if restarts {
            drop(agent);
            assert_eq!(pauses(&member), [word(true)]);
            member.server.go_away();
            agent = member.start().unwrap();
            assert!(shows(&address, IS_PAUSED), "from its very start");
        }
        let mut hog = Hog::start(&wild, &["--mib", "200"]).unwrap();
        assert!(member.cgroup.holds(195));
        std::thread::sleep(Duration::from_millis(500));
        assert!(hog.is_alive() && member.evictions().is_empty());
        member.server.state().annotate_node(PAUSED, None);
        if restarts {
            member.server.come_back().unwrap();
        }
        hog.killed();
        let is_lifted = || shows(&address, "evictd_paused{by=\"node\"} 0");
        assert!(until(SOON, is_lifted));
        drop(agent);
        // A second agent has found nothing new at its start.
        assert_eq!(pauses(&member), [word(true), word(false)]);
    }
}

/// The Node's word, which is the only one.
fn word(paused: bool) -> (String, bool, bool) {
    ("node".to_owned(), paused, paused)
}

/// What the journal says of pauses: whose word, whether it stops evictions, and whether they are stopped.
fn pauses(member: &ClusterNode) -> Vec<(String, bool, bool)> {
    records_of!(member.records(), Record::Paused(p) => (p.by, p.paused, p.evictions_paused))
}

/// `db` must never go; it is far bigger than `web`.
fn ruled(name: &str) -> (ClusterNode, PathBuf, PathBuf) {
    let member = ClusterNode::new(name, 256).unwrap();
    let db = member.best_effort("db", 1);
    let web = member.best_effort("web", 2);
    {
        let mut state = member.server.state();
        let gold = json!({"metadata": {"name": "default", "labels": {"tier": "gold"}}});
        state.put(Collection::Namespaces, gold);
        state.put_policy(
            "db",
            json!({
                "namespaceSelector": {"matchLabels": {"tier": "gold"}},
                "selector": {"matchLabels": {"app": "db"}},
                "rules": [{"name": "db", "evict": "Never"}],
            }),
        );
    }
    (member, db, web)
}

/// Fills the node: the policy decides which pod goes.
fn web_goes(member: &ClusterNode, db: &Path, web: &Path) {
    let mut big = Hog::start(db, &["--mib", "120"]).unwrap();
    assert!(member.cgroup.holds(115));
    Hog::until_killed(web, &["--mib", "100"]);
    assert!(big.is_alive());
    assert!(member.wait(SOON, |m| m.evictions().iter().any(|e| e.name == "web")));
    assert!(member.evictions().iter().all(|e| e.name == "web"));
}

// R12, R34
#[test]
fn a_policy_of_the_api_server_spares_a_pod() {
    let (member, db, web) = as_root!(ruled("apispare"));
    let _agent = member.start().unwrap();
    web_goes(&member, &db, &web);
}

// R12, R34: what was known of pods, policies and namespaces outlives a restart without the API server.
#[test]
fn a_restart_while_the_api_server_is_away_forgets_nothing() {
    let (mut member, db, web) = as_root!(ruled("restart"));
    let first = member.start().unwrap();
    let file = member.dir().join("state/cluster.jsonl");
    let written = || fs::read_to_string(&file).unwrap_or_default();
    // Written while it runs, since no agent knows its end.
    assert!(member.wait(SOON, |_| {
        let text = written();
        let all = ["\"Never\"", "gold", "\"web\"", "policiesKnown"];
        all.iter().all(|what| text.contains(what))
    }));
    drop(first);
    let text = written();
    member.server.go_away();
    let second = member.start().unwrap();
    web_goes(&member, &db, &web);
    drop(second);
    assert_eq!(
        written(),
        text,
        "an agent that has heard nothing does not write"
    );
    // Half a file is none, and no reason not to start.
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    drop(member.start().unwrap());
}
