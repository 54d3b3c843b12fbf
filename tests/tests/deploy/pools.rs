//! Node pools: every node has one agent, with the values of the first pool that names it.

use evictd_tests::{
    deploy::{self, Chart, all_objects, chart, helm::helm, takes},
    prelude::*,
};

fn render(values: &Value) -> Result<Chart, String> {
    Chart::of(values).map_err(|e| e.to_string())
}

fn of<'a>(chart: &'a Chart, kind: &str) -> BTreeMap<&'a str, &'a Value> {
    let name = |object: &'a Value| object["metadata"]["name"].as_str().unwrap();
    chart
        .kind(kind)
        .map(|object| (name(object), object))
        .collect()
}

/// A canary before the other nodes of a cloud's group, of which it takes some.
fn pools() -> Value {
    json!({
        "config": {"evictionHard": {"memory.available": "200Mi", "nodefs.available": "10%"}, "shadow": true},
        "nodePools": [
            {
                "name": "canary",
                "nodeLabel": {"key": "evictd.dev/canary", "values": ["true"]},
                "config": {"evictionHard": {"memory.available": "300Mi"}, "shadow": false},
                "image": {"tag": "0.2.0"},
                "minReadySeconds": 600,
            },
            {
                "name": "large",
                "nodeLabel": {"key": "cloud.google.com/gke-nodepool", "values": ["a", "b"]},
                "containerRuntime": {"root": "/mnt/disks/containerd"},
                "updateStrategy": {"maxUnavailable": "5%"},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                ]}}},
            },
        ],
    })
}

/// The DaemonSets' pod templates of a chart of this version.
fn templates(version: &str, values: &Value) -> BTreeMap<String, Value> {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("evictd");
    deploy::run(Command::new("cp").arg("-r").arg(chart()).arg(&copy)).unwrap();
    let file = copy.join("Chart.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let mut meta: Value = serde_saphyr::from_str(&text).unwrap();
    meta["version"] = version.into();
    meta["appVersion"] = version.into();
    fs::write(&file, meta.to_string()).unwrap();
    let files = helm().unwrap().render(&copy, values, "evictd", "evictd");
    let objects = Chart(all_objects(&files.unwrap()).unwrap());
    let daemonsets = of(&objects, "DaemonSet").into_iter();
    let template = |daemonset: &Value| daemonset["spec"]["template"].clone();
    daemonsets
        .map(|(name, d)| (name.to_owned(), template(d)))
        .collect()
}

fn only_the_canary_differs<K: Ord + AsRef<str>, V: PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) {
    for (name, one) in before {
        let is_canary = name.as_ref() == "evictd-canary";
        assert_eq!(*one == after[name], !is_canary, "{}", name.as_ref());
    }
}

/// A newer chart comes to the canary first: pods of the pinned image stay as they are.
#[test]
fn a_newer_chart_leaves_pinned_pools_alone() {
    skip_if!(helm().err());
    let mut values = pools();
    values["image"] = json!({"tag": "0.8.0"});
    values["nodePools"][0]["image"] = json!({"tag": ""});
    let (before, after) = (templates("0.8.0", &values), templates("0.9.0", &values));
    only_the_canary_differs(&before, &after);
    let version = &after["evictd-canary"]["metadata"]["labels"]["app.kubernetes.io/version"];
    assert_eq!(version, "0.9.0");
    // A digest pins as well.
    values["image"] = json!({"digest": format!("sha256:{}", "a".repeat(64))});
    let (before, after) = (templates("0.8.0", &values), templates("0.9.0", &values));
    assert_eq!(before["evictd"], after["evictd"]);
}

/// A pool's tag is not pinned by the digest of all, and a profile has what its type needs.
#[test]
fn a_pool_has_its_own_image_and_profiles() {
    skip_if!(helm().err());
    let mut values = pools();
    values["image"] = json!({"digest": format!("sha256:{}", "a".repeat(64))});
    let profile = json!({"type": "Localhost", "localhostProfile": "evictd.json"});
    values["security"] = json!({"seccompProfile": profile});
    let pool = &mut values["nodePools"][0];
    pool["name"] = "512".into();
    pool["security"] = json!({"seccompProfile": {"type": "Unconfined"}});
    let templates = templates("0.8.0", &values);
    let container = |pool: &str| templates[pool]["spec"]["containers"][0].clone();
    let (all, own) = (container("evictd"), container("evictd-512"));
    assert_eq!(own["image"], "localhost/evictd:0.2.0");
    assert!(all["image"].as_str().unwrap().contains("@sha256:"));
    let of = |container: &Value| container["securityContext"]["seccompProfile"].clone();
    assert_eq!(
        (of(&all), of(&own)),
        (profile, json!({"type": "Unconfined"}))
    );
    let labels = &templates["evictd-512"]["metadata"]["labels"];
    assert_eq!(labels["evictd.dev/pool"], "512");
    values["security"] = json!({});
    values["nodePools"][0]["security"] = json!({"appArmorProfile": {"type": "Localhost"}});
    let refused = render(&values).err().unwrap();
    assert!(
        refused.contains("appArmorProfile.localhostProfile of pool 512"),
        "{refused}"
    );
}

#[test]
fn every_node_has_one_agent() {
    skip_if!(helm().err());
    let objects = render(&pools()).unwrap();
    let daemonsets = of(&objects, "DaemonSet");
    assert_eq!(
        daemonsets.keys().copied().collect::<Vec<_>>(),
        ["evictd", "evictd-canary", "evictd-large"]
    );
    let (canary, group) = ("evictd.dev/canary", "cloud.google.com/gke-nodepool");
    for (labels, expected) in [
        (vec![], "evictd"),
        (vec![(canary, "false")], "evictd"),
        (vec![(canary, "true")], "evictd-canary"),
        (vec![(group, "c"), ("x", "")], "evictd"),
        (vec![(group, "b"), ("x", "")], "evictd-large"),
        (
            vec![(group, "a"), ("x", ""), (canary, "true")],
            "evictd-canary",
        ),
    ] {
        let mut labels: BTreeMap<&str, &str> = labels.into_iter().collect();
        let taking = |labels: &BTreeMap<&str, &str>| -> Vec<&str> {
            let taking = daemonsets.iter().filter(|(_, d)| takes(d, labels));
            taking.map(|(name, _)| *name).collect()
        };
        assert_eq!(taking(&labels), [expected], "{labels:?}");
        // On no node that has no kubelet of its own, in whatever pool it is.
        labels.insert("type", "virtual-kubelet");
        assert!(taking(&labels).is_empty(), "{labels:?}");
        labels.insert("type", "a");
        assert_eq!(taking(&labels), [expected], "{labels:?}");
        labels.insert("eks.amazonaws.com/compute-type", "fargate");
        assert!(taking(&labels).is_empty(), "{labels:?}");
    }
    // Neither takes the other's pods for its own.
    let selectors: Vec<String> = daemonsets
        .values()
        .map(|d| {
            let selector = &d["spec"]["selector"]["matchLabels"];
            let labels = &d["spec"]["template"]["metadata"]["labels"];
            for (key, value) in selector.as_object().unwrap() {
                assert_eq!(labels[key], *value);
            }
            selector["evictd.dev/pool"].to_string()
        })
        .collect();
    assert_eq!(selectors, ["\"default\"", "\"canary\"", "\"large\""]);
}

#[test]
fn admission_lets_each_pool_set_its_own_taints() {
    skip_if!(helm().err());
    let mut values = pools();
    values["nodePools"][0]["config"]["cluster"] = json!({"taint": {"keyPrefix": "example.com/"}});
    let rules = |values: &Value| {
        let objects = render(values).unwrap();
        let policies = of(&objects, "ValidatingAdmissionPolicy");
        policies["evictd-nodes"]["spec"]["validations"].to_string()
    };
    let own = "(t.key.startsWith('evictd.dev/') || t.key.startsWith('example.com/'))";
    has(&rules(&values), &[own]);

    // What an earlier configuration has left has to go, whatever all pools have now.
    let taint = json!({"taint": {"keyPrefix": "example.com/"}});
    let none = json!({"taint": false, "formerTaintKeyPrefixes": ["example.com/"]});
    for cluster in [taint, none] {
        has(&rules(&json!({"config": {"cluster": cluster}})), &[own]);
    }
}

#[test]
fn a_pool_has_its_own_values_on_top_of_all() {
    skip_if!(helm().err());
    let objects = render(&pools()).unwrap();
    let maps = of(&objects, "ConfigMap");
    let is_configuration = |map: &&&Value| map["data"]["config.yaml"].is_string();
    assert_eq!(maps.values().filter(is_configuration).count(), 3);
    // Each pool as a chart of its own.
    let pool = |name: &str| {
        let daemonset = of(&objects, "DaemonSet")[name].clone();
        let map = &daemonset["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"];
        let map = maps[map.as_str().unwrap()].clone();
        Chart(vec![daemonset, map])
    };
    let (canary, all, large) = (pool("evictd-canary"), pool("evictd"), pool("evictd-large"));
    canary.has(
        "config/evictionHard | {memory.available: 300Mi, nodefs.available: 10%}
        config/shadow | false
        DaemonSet/spec/minReadySeconds | 600
        container/image | localhost/evictd:0.2.0",
    );
    all.has(
        "config/evictionHard/memory.available | 200Mi
        config/shadow | true
        DaemonSet/spec/minReadySeconds | 30
        DaemonSet/spec/updateStrategy/rollingUpdate/maxUnavailable | 1",
    );
    large.has(
        "config/filesystems/imagefs | /mnt/disks/containerd
        DaemonSet/spec/updateStrategy/rollingUpdate/maxUnavailable | 5%",
    );
    assert_eq!(
        large.config()["evictionRates"],
        all.config()["evictionRates"]
    );
    assert_ne!(all.container()["image"], canary.container()["image"]);
}

/// A change of a pool's configuration restarts that pool's agents and no others.
#[test]
fn a_canary_is_changed_alone() {
    skip_if!(helm().err());
    let mut values = pools();
    let before = render(&values).unwrap();
    values["nodePools"][0]["config"]["evictionHard"]["memory.available"] = "400Mi".into();
    let after = render(&values).unwrap();
    let (before, after) = (of(&before, "DaemonSet"), of(&after, "DaemonSet"));
    only_the_canary_differs(&before, &after);
    // An image's version is its pool's alone, and so is the version that its pods are labelled with.
    values["nodePools"][0]["image"]["tag"] = "0.3.0".into();
    let newer = render(&values).unwrap();
    let newer = of(&newer, "DaemonSet");
    only_the_canary_differs(&after, &newer);
    let version = |daemonset: &Value| {
        let labels = &daemonset["spec"]["template"]["metadata"]["labels"];
        labels["app.kubernetes.io/version"].clone()
    };
    assert_eq!(version(newer["evictd-canary"]), "0.3.0");
    assert_ne!(version(newer["evictd"]), "0.3.0");
    // What holds for all restarts all.
    values["config"]["evictionRates"] = json!({"node": {"evictions": 1}});
    let last = render(&values).unwrap();
    let last = of(&last, "DaemonSet");
    assert!(after.iter().all(|(name, d)| *d != last[name]));
}

/// Nodes change pools at once. In a pool that is still empty they find what they had, and others restart for a new pool, as
/// docs/deploy.md says.
#[test]
fn an_empty_pool_has_the_values_of_all() {
    skip_if!(helm().err());
    let empty = |name: &str| {
        let label = json!({"key": "pool", "values": [name]});
        json!({"name": name, "nodeLabel": label})
    };
    let mut values = json!({"config": {"shadow": true}, "nodePools": [empty("a")]});
    let before = render(&values).unwrap();
    let data = |chart: &Chart, pool: &str| {
        let is_it = |o: &&Value| o["metadata"]["labels"]["evictd.dev/configuration"] == pool;
        chart.0.iter().find(is_it).unwrap()["data"].clone()
    };
    assert_eq!(data(&before, "a"), data(&before, "default"));
    let template = |chart: &Chart, name: &str| {
        let daemonset = of(chart, "DaemonSet")[name];
        daemonset["spec"]["template"].clone()
    };
    // But for its nodes, its label and its ConfigMap's name, so is its pod.
    let mut of_all = template(&before, "evictd");
    let of_pool = template(&before, "evictd-a");
    for path in [
        "/metadata/labels/evictd.dev~1pool",
        "/spec/affinity",
        "/spec/volumes/0/configMap/name",
    ] {
        *of_all.pointer_mut(path).unwrap() = of_pool.pointer(path).unwrap().clone();
    }
    assert_eq!(of_all, of_pool);

    let pools = values["nodePools"].as_array_mut().unwrap();
    pools.push(empty("b"));
    let after = render(&values).unwrap();
    for (name, is_same) in [("evictd", false), ("evictd-a", true)] {
        let same = template(&before, name) == template(&after, name);
        assert_eq!(same, is_same, "{name}");
    }
}

#[test]
fn contradicting_pools_are_refused_by_name() {
    skip_if!(helm().err());
    for [pointer, value, expected] in rows(
        r#"
        /nodePools/1/name | canary | nodePools[1].name: "canary" is the name of nodePools[0]
        /nodePools/0/name | default | nodePools[0].name: "default" is the name of the nodes
        /nodePools/1/nodeLabel | {key: evictd.dev/canary, values: [maybe, "true"]} | nodePools[1].nodeLabel.values: nodes with evictd.dev/canary=true are in nodePools[0]
        /nodePools/0/name | Canary | name
        /nodePools/0/nodeLabel/values | [] | values
        /nodePools/0/metrics | {port: 1} | metrics
        /nodePools/0/config | {stateDir: /x} | stateDir
        /nodePools/0/kubelet | {configFil: /x} | configFil
        "#,
    ) {
        let mut values = pools();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        values.pointer_mut(parent).unwrap()[field] = yaml(value);
        has(&render(&values).err().expect(pointer), &[expected]);
    }
}
