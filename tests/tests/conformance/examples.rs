//! The worked examples of the source documents, with their own numbers.

use evictd_config::ThresholdTexts;
use evictd_engine::MemorySizing;
use evictd_tests::{prelude::*, vectors};

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

/// A pod of one container, with its numbers.
struct Example {
    name: &'static str,
    requests: Value,
    limits: Value,
    stats: Value,
}

impl Example {
    fn new(name: &'static str, requests: Value, limits: Value, stats: Value) -> Self {
        Self {
            name,
            requests,
            limits,
            stats,
        }
    }

    /// Of a pod that uses this much memory.
    fn memory(name: &'static str, requests: Value, limits: Value, bytes: u64) -> Self {
        let stats = json!({"memory": {"workingSetBytes": bytes}});
        Self::new(name, requests, limits, stats)
    }
}

/// Runs `evictd rank` over pods and returns its JSON.
fn rank(signal: &str, strategy: &str, node: Value, examples: &[Example]) -> Value {
    let pods: Vec<Value> = examples
        .iter()
        .map(|example| {
            json!({
                "metadata": {"name": example.name, "namespace": "n", "uid": example.name},
                "spec": {"containers": [{
                    "name": "c", "resources": {"requests": example.requests, "limits": example.limits}
                }]},
            })
        })
        .collect();
    let stats: Vec<Value> = examples
        .iter()
        .map(|example| {
            let mut stats = example.stats.clone();
            stats["podRef"] = json!({"uid": example.name});
            stats
        })
        .collect();
    let summary = json!({"node": node, "pods": stats});
    let arguments = ["--signal", signal, "--strategy", strategy, "-o", "json"];
    vectors::rank(Value::from(pods), summary, &arguments).json()
}

/// The names in the order in which they go.
fn order(signal: &str, strategy: &str, examples: &[Example]) -> String {
    let ranking = rank(signal, strategy, json!({}), examples);
    let names = ranking["order"].as_array().expect("an order").iter();
    let names = names.map(|name| name.as_str().expect("a name").trim_start_matches("n/"));
    names.collect::<Vec<_>>().join(" ")
}

/// The six pods that use a disk: class and usage in M.
fn disk_example() -> Vec<Example> {
    let guaranteed = json!({"memory": "1Gi", "cpu": "1"});
    [
        ("A", json!({}), json!({}), 800),
        ("B", guaranteed.clone(), guaranteed.clone(), 1300),
        ("C", json!({"memory": "1Gi"}), json!({}), 1200),
        ("D", json!({"memory": "1Gi"}), json!({}), 700),
        ("E", json!({}), json!({}), 500),
        ("F", guaranteed.clone(), guaranteed, 1000),
    ]
    .into_iter()
    .map(|(name, requests, limits, used)| {
        let rootfs = json!({"usedBytes": used * 1_000_000u64, "inodesUsed": used});
        let container = json!({"name": "c", "rootfs": rootfs, "logs": {"usedBytes": 0}});
        Example::new(name, requests, limits, json!({"containers": [container]}))
    })
    .collect()
}

/// The six pods that use memory: request, limit, usage, the last in units of `g` a tenth.
fn memory_example(g: u64) -> Vec<Example> {
    let both = |amount: &str| json!({"memory": amount, "cpu": "1"});
    [
        ("A", json!({}), json!({}), 7),
        ("B", both("2Gi"), both("2Gi"), 19),
        ("C", both("1Gi"), both("2Gi"), 18),
        ("D", both("1Gi"), both("2Gi"), 8),
        ("E", json!({}), json!({}), 3),
        ("F", both("2Gi"), both("2Gi"), 10),
    ]
    .into_iter()
    .map(|(name, requests, limits, tenths)| {
        Example::memory(name, requests, limits, tenths * g / 10)
    })
    .collect()
}

#[test]
fn disk_is_taken_by_usage() {
    // R25
    let order = order("nodefs.available", "usage", &disk_example());
    assert_eq!(order, "B C F A D E");
}

#[test]
fn memory_is_taken_by_what_exceeds_the_request() {
    // R26: the document's G, once as 10^9 and once as 2^30. Limits play no part.
    for g in [1_000_000_000, GI] {
        let order = order("memory.available", "kubelet", &memory_example(g));
        assert_eq!(order, "C A E B D F");
    }
    let examples = memory_example(GI);
    let ranking = rank("memory.available", "kubelet", json!({}), &examples);
    let excess: Vec<i64> = ranking["pods"]
        .as_array()
        .expect("pods")
        .iter()
        .map(|pod| pod["excess"].as_i64().expect("an excess"))
        .map(|bytes| (bytes as f64 / GI as f64 * 10.0).round() as i64 * 100)
        .collect();
    assert_eq!(excess, [800, 700, 300, -100, -200, -1000]);
}

#[test]
fn a_pods_usage_is_the_sum_over_its_containers() {
    // R26, R10
    let containers: Vec<Value> = [300, 500]
        .map(|used| json!({"name": "c", "rootfs": {"usedBytes": used}, "logs": {"usedBytes": 1}}))
        .into();
    let stats = json!({"containers": containers});
    let example = Example::new("A", json!({}), json!({}), stats);
    let ranking = rank("nodefs.available", "kubelet", json!({}), &[example]);
    assert_eq!(ranking["pods"][0]["usage"], 802);
}

#[test]
fn the_qos_strategy_takes_the_classes_in_turn() {
    // R20: in a class those above their request first, by excess, then the others by usage.
    let memory = order("memory.available", "qos", &memory_example(GI));
    assert_eq!(memory, "A E C D B F");
    // R21: disk by usage inside a class, inodes the lowest class first.
    for signal in ["nodefs.available", "nodefs.inodesFree"] {
        assert_eq!(order(signal, "qos", &disk_example()), "A E C D B F");
    }
}

#[test]
fn the_oom_killers_choice_is_shown_beside_the_eviction() {
    // R13, R27: a node of 30Gi, a Burstable pod that requests 4Gi.
    let node = json!({"memory": {"availableBytes": GI, "workingSetBytes": 29 * GI}});
    let nine = json!({"memory": "9Gi", "cpu": "1"});
    let four = json!({"memory": "4Gi"});
    let examples = [
        Example::memory("burstable", four, json!({}), 5 * GI),
        Example::memory("besteffort", json!({}), json!({}), 100 * MI),
        Example::memory("guaranteed", nine.clone(), nine, 8 * GI),
    ];
    let ranking = rank("memory.available", "kubelet", node, &examples);
    let shown = |name: &str| {
        let pods = ranking["pods"].as_array().expect("pods");
        let pod = pods
            .iter()
            .find(|pod| pod["pod"] == format!("n/{name}"))
            .expect("the pod");
        (
            pod["oomScoreAdj"].as_i64(),
            pod["predictedOomVictim"] == true,
            pod["predictedEvictionVictim"] == true,
        )
    };
    // 867 + 5/30 of 1000 is more than 1000 + 0.1/30 of 1000: the kernel would take the Burstable pod, and so would
    // eviction, which goes by excess.
    assert_eq!(shown("burstable"), (Some(867), true, true));
    assert_eq!(shown("besteffort"), (Some(1000), false, false));
    assert_eq!(shown("guaranteed"), (Some(-997), false, false));
}

#[test]
fn reservations_must_cover_the_largest_threshold() {
    // R16: 10Gi, a tenth of it reserved, a tenth of it the threshold: 8Gi are left for pods.
    let one = |value: &str| BTreeMap::from([("memory.available".to_owned(), value.to_owned())]);
    let thresholds = |hard: &str, soft: &str| {
        let texts = ThresholdTexts {
            hard: one(hard),
            soft: one(soft),
            soft_grace_period: one("30s"),
            ..Default::default()
        };
        texts.parse().expect("thresholds")
    };
    let sizing = MemorySizing::new(10 * GI, GI, &thresholds("1Gi", "100Mi"));
    assert_eq!((sizing.allocatable(), sizing.shortfall()), (8 * GI, 0));
    // In percent it is the same, but for the 16 bytes by which the kubelet's 10 % is more than a tenth.
    let sizing = MemorySizing::new(10 * GI, GI, &thresholds("10%", "5%"));
    assert_eq!((sizing.allocatable(), sizing.shortfall()), (8 * GI - 16, 0));
    // A soft threshold above the reservation is not covered.
    let sizing = MemorySizing::new(10 * GI, GI, &thresholds("500Mi", "1.5Gi"));
    assert_eq!(
        (sizing.allocatable(), sizing.shortfall()),
        (9 * GI - 500 * MI, 512 * MI)
    );
}

#[test]
fn minimum_reclaim_adds_to_the_threshold() {
    // R11: nodefs 1Gi + 500Mi; eviction goes on until 1.5Gi (the document rounds) are available.
    let one = |value: &str| BTreeMap::from([("nodefs.available".to_owned(), value.to_owned())]);
    let texts = ThresholdTexts {
        hard: one("1Gi"),
        minimum_reclaim: one("500Mi"),
        ..Default::default()
    };
    let thresholds = texts.parse().expect("thresholds");
    assert_eq!(thresholds[0].signal, Signal::NodeFsAvailable);
    assert_eq!(thresholds[0].resolved_amount(0), 1524 * MI);
}
