//! The addresses of the cluster itself, from which gates are kept: read from the API server, as the gates see them.

use evictd_kube::cluster_addresses;
use evictd_policy::{PolicySet, evaluator::Worker};
use evictd_tests::{
    apiserver::State,
    policy_fixture::{BarePod, gated},
    prelude::*,
    watch_fixture::WatchFixture,
};

const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
/// A ClusterIP of the second network, a control plane's address that no machine has, and a pod's of neither.
const SERVICE: &str = "10.99.7.7";
const SERVER: &str = "192.0.2.11";
const POD: &str = "127.0.0.61";
const REFRESH: Duration = Duration::from_millis(300);

fn cidrs(networks: &[&str]) -> Value {
    let items = networks
        .iter()
        .map(|network| json!({"metadata": {"name": "n"}, "spec": {"cidrs": [network]}}));
    json!({"kind": "ServiceCIDRList", "items": items.collect::<Vec<_>>()})
}

fn slice(servers: &[&str]) -> Value {
    let endpoints = servers.iter().map(|ip| json!({"addresses": [ip]}));
    // The port of the gates.
    json!({"kind": "EndpointSlice", "ports": [{"port": 1}], "endpoints": endpoints.collect::<Vec<_>>()})
}

/// What keeps gates that ask pods at these addresses, and their pods.
struct Gates {
    f: WatchFixture,
    _pods: Vec<Arc<BarePod>>,
    _worker: Worker,
}

impl Gates {
    fn new(prepare: impl FnOnce(&mut State), configured: &[&str]) -> Self {
        let f = WatchFixture::new(|server| prepare(&mut server.state())).unwrap();
        let evaluator = Arc::clone(f.store.evaluator());
        let pod = |ip: &&str| {
            Arc::new(BarePod::new(Pod {
                uid: (*ip).into(),
                namespace: "default".into(),
                name: (*ip).into(),
                ip: (*ip).into(),
                ..Pod::default()
            }))
        };
        let pods: Vec<_> = [SERVICE, SERVER, POD].iter().map(pod).collect();
        // No server listens at port 1.
        let policy = gated(json!({"timeout": "3s", "http": {"port": 1}}));
        evaluator.set_pods(&pods);
        evaluator.set_policies(PolicySet::new([policy]));
        let worker = Worker::start(Arc::clone(&evaluator)).unwrap();
        let networks = configured.iter().map(|n| n.parse().unwrap()).collect();
        let connection = Arc::clone(&f.connection);
        f.spawn(cluster_addresses::run(
            connection, evaluator, networks, REFRESH,
        ));
        Self {
            f,
            _pods: pods,
            _worker: worker,
        }
    }

    fn says(&self, pod: &str, reason: &str) {
        let name = format!("default/{pod}");
        let error = |f: &WatchFixture| {
            let all = f.store.evaluator().explain();
            let one = all.into_iter().find(|e| e.pod == name)?;
            one.rules[0].gates[0].error.clone()
        };
        let is_said = self
            .f
            .wait(|f| error(f).is_some_and(|e| e.contains(reason)));
        assert!(is_said, "{pod}: {:?}", error(&self.f));
    }

    fn put(&self, path: &str, object: Value) {
        self.f.server.state().objects.insert(path.into(), object);
    }

    fn asked(&self, path: &str) -> usize {
        self.f.server.state().count("GET", path)
    }
}

#[test]
fn gates_are_kept_from_the_networks_and_endpoints_that_the_api_server_names() {
    let prepare = |state: &mut State| {
        let networks = cidrs(&["10.43.0.0/16", "10.98.0.0/15"]);
        state.objects.insert(CIDRS.into(), networks);
        let servers = slice(&["192.0.2.10", SERVER]);
        state.objects.insert(SLICE.into(), servers);
    };
    let gates = Gates::new(prepare, &[]);
    gates.says(SERVICE, "is a ClusterIP");
    gates.says(SERVER, "is the API server's address");
    gates.says(POD, "Connection refused");
    let state = gates.f.server.state();
    let reads = [CIDRS, SLICE].map(|path| state.all("GET", path).next().unwrap().query.clone());
    assert_eq!(reads, ["resourceVersion=0"; 2], "from the cache");
    drop(state);
    // They change while the agent runs.
    gates.put(SLICE, slice(&[SERVICE]));
    gates.says(SERVICE, "is the API server's address");
    gates.put(CIDRS, cidrs(&["192.0.2.0/24"]));
    gates.says(SERVER, "is a ClusterIP");
}

/// An API server before 1.33, or no right: what is known without it counts, and gates ask.
#[test]
fn what_cannot_be_read_keeps_no_gate_from_asking() {
    let forbid = |state: &mut State| state.fails("GET", SLICE, 1000, 403);
    let prepare = |state: &mut State| {
        state.objects.insert(SLICE.into(), slice(&[SERVER]));
        forbid(state);
    };
    let gates = Gates::new(prepare, &[]);
    gates.says(POD, "Connection refused");
    assert!(gates.f.wait(|_| gates.asked(CIDRS) >= 2));
    gates.f.server.state().faults.clear();
    gates.says(SERVER, "is the API server's address");
    // What was known stays known.
    forbid(&mut gates.f.server.state());
    let asked = gates.asked(SLICE);
    assert!(gates.f.wait(|_| gates.asked(SLICE) >= asked + 2));
    gates.says(SERVER, "is the API server's address");
}

/// Those that are configured are not asked for; a server that does not answer holds gates up for a moment.
#[test]
fn configured_networks_and_a_server_that_hangs() {
    let hang = |state: &mut State| state.fails("GET", SLICE, 1000, InjectedFault::Hang);
    let gates = Gates::new(hang, &["10.96.0.0/12"]);
    gates.says(SERVICE, "is a ClusterIP");
    assert_eq!(gates.asked(CIDRS), 0);
    assert!(gates.asked(SLICE) > 0);
}

/// Without a gate that asks a server nothing is read.
#[test]
fn nothing_is_read_for_no_gate() {
    let f = WatchFixture::new(|_| {}).unwrap();
    let (connection, evaluator) = (Arc::clone(&f.connection), Arc::clone(f.store.evaluator()));
    f.spawn(cluster_addresses::run(
        connection,
        evaluator,
        Vec::new(),
        REFRESH,
    ));
    std::thread::sleep(REFRESH * 4);
    assert_eq!(f.server.state().requests.len(), 0);
}
