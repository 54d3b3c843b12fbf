//! The shipped policies, each rule of them: what ArangoDB's servers say decides which of them may be evicted.

use evictd_engine::permit::Permission;
use evictd_policy::{Evict, EvictionPolicy, Namespaces, PolicySet, Wait, file, gate::Secrets};
use evictd_tests::{
    deploy,
    policy_fixture::{PolicyFixture, labels},
    prelude::*,
    scripted::{Script, Scripted},
    tls::Authority,
};

const NUMBERS: &str = "/_admin/cluster/numberOfServers";
const HEALTH: &str = "/_admin/cluster/health";
const SHARDS: &str = "/_admin/cluster/shardDistribution";
const AGENCY: &str = "/_api/agency/config";
const APPLIER: &str = "/_api/replication/applier-state?global=true";

/// What the operator puts into every certificate of the deployment.
const SERVICE: &str = "db.default.svc";

/// The shipped policy, with the port of the scripted servers on loopback, an address in place of the coordinators' service, and
/// short intervals.
fn arangodb(port: u16, coordinator: &str) -> EvictionPolicy {
    let text = fs::read_to_string(deploy::policy("arangodb.yaml")).unwrap();
    let service = "pod.labels.arango_deployment + '.' + pod.namespace + '.svc'";
    let service = format!("      host: {service}\n");
    assert_eq!(text.matches(&service).count(), 3);
    let text = text.replace(&service, &format!("      host: \"'{coordinator}'\"\n"));
    let hosts = "['*.$(namespace).svc']";
    assert_eq!(text.matches(hosts).count(), 8);
    let text = text.replace(hosts, "['*.$(namespace).svc', 127.0.0.0/8]");
    let enabled = "{evictd.io/arangodb: enabled}";
    assert_eq!(text.matches(enabled).count(), 1);
    let text = text.replace(enabled, "{kubernetes.io/metadata.name: default}");
    let text = text.replace("port: 8529", &format!("port: {port}"));
    let mut text = text.replace("maxAge: 1h", "maxAge: 1s");
    for interval in ["2s", "5s", "30s"] {
        text = text.replace(&format!("interval: {interval}"), "interval: 100ms");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("arangodb.yaml");
    fs::write(&path, text).unwrap();
    file::load(&[path]).unwrap().remove(0)
}

fn member(name: &str, role: &str, ip: &str) -> Pod {
    Pod {
        name: name.into(),
        ip: ip.into(),
        labels: labels(&[
            ("app", "arangodb"),
            ("arango_deployment", "db"),
            ("role", role),
        ]),
        ..Pod::default()
    }
}

/// The servers' authority, and the directory with their token.
struct Trusted {
    authority: Authority,
    secrets: Secrets,
    _dir: tempfile::TempDir,
}

impl Trusted {
    fn new() -> Self {
        let authority = Authority::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("arangodb-jwt"), "a.b.c").unwrap();
        fs::write(dir.path().join("arangodb-ca.crt"), authority.pem()).unwrap();
        Self {
            secrets: Secrets::new(Some(dir.path().to_owned())),
            authority,
            _dir: dir,
        }
    }

    /// Pods under the shipped policy.
    fn keep(&self, name: &str, pods: Vec<Pod>, port: u16, coordinator: &str) -> PolicyFixture {
        let policy = arangodb(port, coordinator);
        PolicyFixture::new(name, pods, vec![policy], self.secrets.clone())
    }

    fn server(&self, host: u8, port: u16) -> Scripted {
        Scripted::start_tls_at(host, port, &self.authority, &[SERVICE]).unwrap()
    }
}

// R30, R31, R34, R36, R37
#[test]
fn types_without_conditions() {
    let policy = file::load(&[deploy::policy("arangodb.yaml")]);
    let policy = policy.unwrap().remove(0);
    let set = PolicySet::new([policy]);
    let namespace = |labels| Namespaces {
        labels: BTreeMap::from([(member("m", "id", "").namespace, labels)]),
        keys: Some(BTreeSet::from(["evictd.io/arangodb".to_owned()])),
    };
    let enabled = namespace(labels(&[("evictd.io/arangodb", "enabled")]));
    let seconds = |s| Some(Wait::Seconds(s));
    for (role, evict, wait) in [
        ("id", Evict::Always, seconds(5)),
        ("coordinator", Evict::Always, seconds(15)),
        ("single", Evict::Never, Some(Wait::Forever)),
        ("syncmaster", Evict::Always, seconds(15)),
        ("syncworker", Evict::Always, seconds(60)),
    ] {
        let matched = set.match_pod(&member("m", role, ""), &enabled);
        let rule = matched.rules[0].rule();
        let waits = [rule.no_execute.unreachable, rule.no_execute.not_ready];
        assert_eq!((&rule.evict, waits), (&evict, [wait; 2]), "{role}");
    }
    for role in ["dbserver", "agent"] {
        let matched = set.match_pod(&member("m", role, ""), &enabled);
        let rule = matched.rules[0].rule();
        assert!(matches!(rule.evict, Evict::When(_)));
        assert_eq!(rule.no_execute.unreachable, seconds(300));
        assert_eq!(rule.limits[0].max_evicted_at_once, Some(1));
    }
    let mut other = member("m", "dbserver", "");
    other.labels.insert("app".into(), "postgres".into());
    assert!(set.match_pod(&other, &enabled).rules.is_empty());
    // The labels of a pod are not enough.
    let elsewhere = set.match_pod(&member("m", "single", ""), &namespace(BTreeMap::new()));
    assert!(elsewhere.rules.is_empty());
}

fn shards(plan: &str, current: &str) -> Value {
    let shard = |leader: &str| json!({"s1": {"leader": leader, "followers": ["DBServer0003"]}});
    json!({"error": false, "code": 200, "results": {"_users": {"Plan": shard(plan), "Current": shard(current)}}})
}

// R32
#[test]
fn a_db_server_goes_drained_and_leading_nothing() {
    let trusted = Trusted::new();
    let server = trusted.server(71, 0);
    let coordinator = trusted.server(72, server.port());
    server.json("/_admin/server/id", json!({"id": "PRMR-1"}));
    let numbers = |cleaned: &[&str]| json!({"numberOfDBServers": 3, "numberOfCoordinators": 2, "cleanedServers": cleaned});
    let health = json!({
        "ClusterId": "x",
        "Health": {
            "PRMR-1": {"Role": "DBServer", "ShortName": "DBServer0001", "Status": "GOOD", "CanBeDeleted": false},
            "PRMR-2": {"Role": "DBServer", "ShortName": "DBServer0002", "Status": "GOOD", "CanBeDeleted": false},
        },
    });
    coordinator.json(NUMBERS, numbers(&[]));
    coordinator.json(HEALTH, health);
    coordinator.json(SHARDS, shards("DBServer0001", "DBServer0001"));
    let pods = vec![member("prmr", "dbserver", &server.ip())];
    let kept = as_root!(trusted.keep("adbdrain", pods, server.port(), &coordinator.ip()));
    let gate = |k: &PolicyFixture, name: &str| {
        let explained = k.explain("prmr");
        explained.rules[0]
            .gates
            .iter()
            .find(|g| g.gate == name)
            .and_then(|g| g.answer)
    };
    kept.wait("a leader that is not drained", |k| {
        gate(k, "drained") == Some(false) && gate(k, "leadsNothing") == Some(false)
    });
    assert!(!kept.may_go("prmr"));
    coordinator.json(NUMBERS, numbers(&["PRMR-1"]));
    kept.wait("it is drained", |k| gate(k, "drained") == Some(true));
    assert!(!kept.may_go("prmr"), "it still leads a shard");
    coordinator.json(SHARDS, shards("DBServer0002", "DBServer0001"));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!kept.may_go("prmr"), "it leads until the new leader does");
    coordinator.json(SHARDS, shards("DBServer0002", "DBServer0002"));
    kept.wait("it leads nothing", |k| k.may_go("prmr"));
    assert!(
        server
            .asked()
            .iter()
            .all(|a| a.authorization.as_deref() == Some("Bearer a.b.c"))
    );
    coordinator.set(SHARDS, Script::Json(503, json!({"error": true})));
    kept.wait("the state is unknown", |k| !k.may_go("prmr"));
}

fn agency(own: &str, leader: &str, acked: Value, pool: &[(&str, String)]) -> Value {
    let pool: serde_json::Map<String, Value> = pool
        .iter()
        .map(|(id, e)| ((*id).to_owned(), e.clone().into()))
        .collect();
    json!({
        "term": 3,
        "leaderId": leader,
        "lastAcked": acked,
        "configuration": {"id": own, "agency size": 3, "pool size": 3, "pool": pool, "active": ["A1", "A2", "A3"]},
        "engine": "rocksdb",
    })
}

// R33
#[test]
fn an_agent_goes_when_the_agency_stands_without_it() {
    let trusted = Trusted::new();
    let own = trusted.server(73, 0);
    let leader = trusted.server(74, own.port());
    let pool = [
        ("A1", format!("ssl://{}:{}", own.ip(), own.port())),
        ("A2", format!("ssl://{}:{}", leader.ip(), leader.port())),
        ("A3", "ssl://127.0.0.75:1".to_owned()),
    ];
    let acked = |a1: f64, a3: f64| {
        let ack = |t: f64| json!({"lastAckedTime": t, "lastAckedIndex": 7});
        json!({"A1": ack(a1), "A2": ack(0.0), "A3": ack(a3)})
    };
    own.json(AGENCY, agency("A1", "A1", acked(0.0, 0.2), &pool));
    leader.json(AGENCY, agency("A2", "A2", acked(0.2, 0.2), &pool));
    let pods = vec![member("agnt", "agent", &own.ip())];
    let kept = as_root!(trusted.keep("adbagent", pods, own.port(), "127.0.0.1"));
    let gate = |k: &PolicyFixture, at: usize| k.explain("agnt").rules[0].gates[at].answer;
    kept.wait("it is the leader", |k| gate(k, 0) == Some(false));
    assert!(!kept.may_go("agnt"));
    own.json(AGENCY, agency("A1", "A2", json!({}), &pool));
    kept.wait("it follows, and so does another", |k| k.may_go("agnt"));
    leader.json(AGENCY, agency("A2", "A2", acked(0.1, 3000.0), &pool));
    kept.wait("no other member follows", |k| {
        !k.may_go("agnt") && gate(k, 1) == Some(false)
    });
    // Older servers tell the time alone.
    leader.json(
        AGENCY,
        agency("A2", "A2", json!({"A1": 0.2, "A2": 0, "A3": 0.4}), &pool),
    );
    kept.wait("another one follows again", |k| k.may_go("agnt"));
    leader.set(AGENCY, Script::Hang);
    kept.wait("the leader does not respond", |k| !k.may_go("agnt"));
    leader.json(AGENCY, agency("A2", "A3", acked(0.1, 0.1), &pool));
    kept.wait("it leads no longer", |k| gate(k, 1) == Some(false));
    own.json(AGENCY, agency("A1", "", json!({}), &pool));
    kept.wait("there is no leader", |k| gate(k, 0) == Some(false));
    assert!(!kept.may_go("agnt"));
}

// R34, R35
#[test]
fn a_single_server_goes_only_as_a_follower_of_a_pair() {
    let trusted = Trusted::new();
    let server = trusted.server(76, 0);
    let mode = |mode: &str| {
        let answer = json!({"role": "SINGLE", "mode": mode});
        server.json("/_admin/server/role", answer);
    };
    mode("resilient");
    server.json(
        APPLIER,
        json!({"state": {"running": false}, "server": {"version": "3.11"}}),
    );
    let mut paired = member("pair", "single", &server.ip());
    paired
        .labels
        .insert("evictd.io/arangodb-mode".into(), "active-failover".into());
    let alone = member("alone", "single", &server.ip());
    let pods = vec![paired, alone];
    let kept = as_root!(trusted.keep("adbsingle", pods, server.port(), "127.0.0.1"));
    let follows = |k: &PolicyFixture| k.explain("pair").rules[0].gates[1].answer;
    kept.wait("it leads the pair", |k| follows(k) == Some(false));
    assert!(!kept.may_go("pair"));
    server.json(
        APPLIER,
        json!({"state": {"running": true}, "endpoint": "tcp://other:8529"}),
    );
    kept.wait("it follows", |k| k.may_go("pair"));
    assert_eq!(
        kept.entry("alone").permit.permission(monotonic_ns()),
        Permission::Never
    );
    mode("single");
    kept.wait("it is no pair at all", |k| !k.may_go("pair"));
}
