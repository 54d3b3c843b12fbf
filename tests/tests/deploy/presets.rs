//! The presets of the chart, rendered against what is recorded of each distribution in `distributions.yaml`.

use evictd_tests::{
    deploy::{Chart, chart, helm::helm, takes},
    prelude::*,
};
use serde::Deserialize;

/// What is known of the nodes of one distribution.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Distribution {
    name: String,
    sources: Vec<String>,
    config_file: Option<String>,
    config_dir: Option<String>,
    runtime_root: String,
    socket: String,
    cgroup_driver: String,
    #[serde(default)]
    se_linux_type: Option<String>,
    #[serde(default)]
    security_context_constraints: Option<String>,
    #[serde(default)]
    quota_for_critical_pods: bool,
    directories: Vec<String>,
    /// Empty: the root can be written to.
    #[serde(default)]
    writable: Vec<String>,
    /// Labels of nodes beside them on which no agent can run.
    #[serde(default)]
    no_agent: BTreeMap<String, String>,
    #[serde(flatten)]
    node: Node,
    #[serde(default)]
    variants: Vec<Node>,
}

impl Distribution {
    /// What its preset renders to.
    fn rendered(&self) -> Chart {
        let preset = chart().join(format!("presets/{}.yaml", self.name));
        Chart::of(&yaml(&fs::read_to_string(preset).unwrap())).expect(&self.name)
    }
}

/// The kubelet's files on a node, and the thresholds that follow.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    kubelet: Option<String>,
    #[serde(default)]
    drop_ins: BTreeMap<String, String>,
    thresholds: Vec<String>,
}

fn distributions() -> Vec<Distribution> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/distributions.yaml");
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_preset_has_its_facts_and_every_fact_its_source() {
    let mut presets: Vec<String> = fs::read_dir(chart().join("presets"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut known: Vec<String> = distributions()
        .iter()
        .map(|d| {
            let links = d
                .sources
                .iter()
                .filter(|s| s.starts_with("https://"))
                .count();
            assert!(links > 1 && links == d.sources.len(), "{}", d.name);
            assert!(["systemd", "cgroupfs"].contains(&d.cgroup_driver.as_str()));
            format!("{}.yaml", d.name)
        })
        .collect();
    presets.sort();
    known.sort();
    assert_eq!(presets, known);
    // What the documentation says of presets names each.
    let docs = fs::read_to_string(chart().join("../../../docs/deploy.md")).unwrap();
    for preset in presets {
        has(&docs, &[&format!("`{}`", preset.trim_end_matches(".yaml"))]);
    }
}

#[test]
fn a_preset_names_what_the_node_has() {
    skip_if!(helm().err());
    for d in distributions() {
        let name = &d.name;
        let objects = d.rendered();
        let config = objects.config();
        let cluster = &config["cluster"];
        for (field, expected) in [
            ("kubeletConfig", &d.config_file),
            ("kubeletConfigDir", &d.config_dir),
        ] {
            assert_eq!(cluster[field].as_str(), expected.as_deref(), "{name}");
        }
        assert_eq!(config["filesystems"]["imagefs"], *d.runtime_root, "{name}");
        assert_eq!(config["cri"]["socket"], *d.socket, "{name}");

        for volume in objects.pod()["volumes"].as_array().unwrap() {
            let Some(path) = volume["hostPath"]["path"].as_str() else {
                continue;
            };
            match volume["hostPath"]["type"].as_str().unwrap() {
                // The pod does not start without it.
                "Directory" => assert!(d.directories.iter().any(|p| p == path), "{name}: {path}"),
                "DirectoryOrCreate" => {
                    let below = |parent: &String| path.starts_with(&format!("{parent}/"));
                    let can = d.directories.iter().any(|p| p == path)
                        || d.writable.is_empty()
                        || d.writable.iter().any(below);
                    assert!(can, "{name}: {path} is on a read-only file system");
                }
                other => panic!("{name}: {other}"),
            }
        }
        // Where the agent looks for the files and the socket, the node's are mounted.
        let mounts = objects.container()["volumeMounts"].as_array().unwrap();
        let looked_for = [&d.config_file, &d.config_dir, &Some(d.socket.clone())];
        for path in looked_for.into_iter().flatten() {
            let mounted = mounts.iter().any(|m| {
                let at = m["mountPath"].as_str().unwrap();
                path == at || path.starts_with(&format!("{at}/"))
            });
            assert!(mounted, "{name}: {path} is not in the container");
        }
        let context = &objects.container()["securityContext"];
        assert_eq!(context["privileged"], false, "{name}");
        if let Some(kind) = &d.se_linux_type {
            assert_eq!(context["seLinuxOptions"]["type"], **kind, "{name}");
        }
    }
}

/// The DaemonSet tolerates every taint: a pod there would stay Pending, and count as unavailable in each rollout.
#[test]
fn no_agent_is_wanted_where_none_can_run() {
    skip_if!(helm().err());
    let mut kinds = BTreeMap::new();
    for d in distributions() {
        let objects = d.rendered();
        let daemonset = &objects["DaemonSet"];
        assert!(takes(daemonset, &BTreeMap::new()), "{}", d.name);
        for (label, value) in d.no_agent {
            let node = BTreeMap::from([(label.as_str(), value.as_str())]);
            assert!(!takes(daemonset, &node), "{}: {label}={value}", d.name);
            kinds.insert(label, value);
        }
    }
    assert_eq!(kinds.len(), 2, "{kinds:?}");
}

#[test]
fn a_preset_brings_what_the_api_server_asks_for() {
    skip_if!(helm().err());
    for d in distributions() {
        let objects = d.rendered();
        let quota = objects.kind("ResourceQuota").next();
        assert_eq!(quota.is_some(), d.quota_for_critical_pods, "{}", d.name);
        if let Some(quota) = quota {
            let spec = objects.pod();
            let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
            assert_eq!(scope["scopeName"], "PriorityClass");
            assert_eq!(scope["values"][0], spec["priorityClassName"]);
        }
        let scc = objects.0.iter().find(|o| {
            let role = o["roleRef"]["name"].as_str().unwrap_or_default();
            role.starts_with("system:openshift:scc:")
        });
        let expected = d.security_context_constraints.as_ref();
        let expected = expected.map(|scc| format!("system:openshift:scc:{scc}"));
        let role = scc.and_then(|binding| binding["roleRef"]["name"].as_str());
        assert_eq!(role, expected.as_deref(), "{}", d.name);
        if let Some(binding) = scc {
            let account = &objects["ServiceAccount"]["metadata"]["name"];
            assert_eq!(binding["subjects"][0]["name"], *account);
        }
    }
}

/// The agent's own reading of the recorded files, by the rendered configuration.
#[test]
fn the_thresholds_on_each_distribution_are_the_recorded_ones() {
    skip_if!(helm().err());
    for d in distributions() {
        let config = d.rendered().config();
        for node in [&d.node].into_iter().chain(&d.variants) {
            assert_eq!(
                thresholds(config.clone(), node),
                node.thresholds,
                "{}: {:?}, {:?}",
                d.name,
                node.kubelet,
                node.drop_ins
            );
        }
    }
}

/// What the agent makes of a configuration on such a node.
fn thresholds(mut config: Value, node: &Node) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let place = |(field, file): (&str, &str)| {
        if config["cluster"].get(field).is_some() {
            let path = dir.path().join(file);
            config["cluster"][field] = path.to_str().unwrap().into();
            return Some(path);
        }
        None
    };
    let [file, drop_ins] = [
        ("kubeletConfig", "kubelet"),
        ("kubeletConfigDir", "kubelet.d"),
    ]
    .map(place);
    if let (Some(path), Some(text)) = (file, &node.kubelet) {
        fs::write(path, text).unwrap();
    }
    if let Some(path) = drop_ins {
        fs::create_dir(&path).unwrap();
        for (name, text) in &node.drop_ins {
            fs::write(path.join(name), text).unwrap();
        }
    }
    config["cluster"]["nodeName"] = "n1".into();
    let path = dir.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let out = agent::evictd(&["thresholds", "-o", "json"], &[("--config", &path)]);
    let found = agent::json(&out);
    let of_node = |t: &&Value| t["signal"] != "allocatableMemory.available";
    let found = found.as_array().unwrap().iter().filter(of_node);
    let text = |t: &Value| format!("{}<{}", t["signal"].as_str().unwrap(), amount(&t["value"]));
    let mut found: Vec<String> = found.map(text).collect();
    found.sort();
    found
}

/// As a KubeletConfiguration has it.
fn amount(value: &Value) -> String {
    let raised = &value["raised"];
    if raised.is_object() {
        return format!("{}+{}", amount(&raised["value"]), amount(&raised["by"]));
    }
    match (value["percentage"].as_f64(), value["quantity"].as_u64()) {
        (Some(share), _) => format!("{}%", (share * 100.0).round()),
        (_, Some(bytes)) if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        (_, Some(number)) => number.to_string(),
        _ => panic!("{value}"),
    }
}
