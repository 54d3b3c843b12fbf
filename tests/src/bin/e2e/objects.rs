//! The manifests, changed as the command line asks.

use evictd_tests::{
    deploy::{all_objects, files_of, objects, without_capabilities},
    prelude::*,
};
use kube::api::DynamicObject;

use super::{apply::kind, node::USUAL_RUNTIME_ROOT};

/// Name of the container that is evictd.
pub const CONTAINER: &str = "evictd";
/// `evictionPressureTransitionPeriod`: long enough for the verdicts to see the condition, and then its end is waited for.
pub const TRANSITION: Duration = Duration::from_secs(120);

#[derive(Default)]
pub struct Changes {
    pub image: String,
    /// The only node that gets an agent.
    pub node: String,
    /// All capabilities instead of those that are listed.
    pub privileged: bool,
    /// `evictionHard["memory.available"]`.
    pub threshold: Option<String>,
    /// The kubelet's configuration file; empty: none.
    pub kubelet_config: Option<String>,
    pub host_network: bool,
    /// The container runtime's directory instead of the usual one.
    pub runtime_root: Option<String>,
    /// Directories that the node has not got: their mounts are left out.
    pub left_out: Vec<String>,
    /// Capabilities that nothing on the node can have.
    pub no_capabilities: Vec<&'static str>,
    /// The node's mounts are not handed on to containers.
    pub no_propagation: bool,
}

/// The objects of a directory, those first that others need.
pub fn read(dir: &Path, changes: &Changes) -> Result<Vec<DynamicObject>> {
    let mut files = files_of(dir).with_context(|| dir.display().to_string())?;
    if let Some(root) = &changes.runtime_root {
        for text in files.values_mut() {
            *text = text.replace(USUAL_RUNTIME_ROOT, root);
        }
    }
    let (mut all, mut containers) = (Vec::new(), 0);
    for mut object in all_objects(&files)? {
        containers += change(&mut object, changes)?;
        let title = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let object: DynamicObject = serde_json::from_value(object).context(title)?;
        all.push(object);
    }
    ensure!(
        containers == 1,
        "{}: {containers} containers called {CONTAINER}",
        dir.display()
    );
    all.sort_by_key(rank);
    Ok(all)
}

fn rank(object: &DynamicObject) -> u8 {
    match kind(object) {
        "Namespace" => 0,
        "DaemonSet" => 2,
        _ => 1,
    }
}

/// How many containers were changed.
fn change(object: &mut Value, changes: &Changes) -> Result<usize> {
    // Those of the fleet brake are empty.
    if object["kind"] == "ConfigMap" && !object["data"].is_null() {
        let text = object["data"]["config.yaml"].as_str().unwrap_or_default();
        let mut config = objects(text)?
            .pop()
            .context("the ConfigMap has no config.yaml")?;
        // The hog is dead before the pressure has lasted.
        config["cluster"]["taint"] = json!({"setAfter": "0s"});
        // An agent that ends before it is over leaves condition and taint to the next one, and here none comes.
        config["evictionPressureTransitionPeriod"] = format!("{}s", TRANSITION.as_secs()).into();
        if let Some(threshold) = &changes.threshold {
            config["evictionHard"] = json!({"memory.available": threshold});
        }
        if let Some(path) = &changes.kubelet_config {
            match (path.as_str(), config["cluster"].as_object_mut()) {
                ("", Some(cluster)) => drop(cluster.remove("kubeletConfig")),
                (path, _) => config["cluster"]["kubeletConfig"] = path.into(),
            }
        }
        if let Some(places) = config["filesystems"].as_object_mut() {
            places.retain(|_, path| {
                let path = path.as_str().unwrap_or_default();
                !changes.left_out.iter().any(|gone| gone == path)
            });
        }
        // JSON is YAML.
        object["data"]["config.yaml"] = config.to_string().into();
        // Its name has no hash here: an earlier run's must take another configuration.
        if let Some(fields) = object.as_object_mut() {
            fields.remove("immutable");
        }
    }
    if object["kind"] != "DaemonSet" {
        return Ok(0);
    }
    let spec = &mut object["spec"]["template"]["spec"];
    if changes.host_network {
        spec["hostNetwork"] = true.into();
        spec["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    }
    // Threshold, directories and image are one node's: an agent elsewhere would evict by them.
    let only = json!({"key": "metadata.name", "operator": "In", "values": [changes.node]});
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [{"matchFields": [only]}]});
    let gone = leave_out(spec, &changes.left_out);
    let containers = spec["containers"].as_array_mut();
    let mut changed = 0;
    for container in containers
        .into_iter()
        .flatten()
        .filter(|c| c["name"] == CONTAINER)
    {
        container["image"] = changes.image.clone().into();
        let mounts = container["volumeMounts"].as_array_mut();
        if let Some(mounts) = mounts {
            mounts.retain(|mount| !gone.contains(&mount["name"]));
            for mount in mounts.iter_mut().filter_map(Value::as_object_mut) {
                if changes.no_propagation {
                    mount.remove("mountPropagation");
                }
            }
        }
        // The guard outlives its agent for the next one's sake. What is attached stays so until the agent itself ends.
        container["lifecycle"] = json!({"preStop": {"exec": {"command": ["/evictd", "detach"]}}});
        without_capabilities(container, &changes.no_capabilities);
        if changes.privileged {
            container["securityContext"] =
                json!({"privileged": true, "readOnlyRootFilesystem": true});
        }
        changed += 1;
    }
    Ok(changed)
}

/// Takes the volumes of these directories away, and answers with their names.
fn leave_out(spec: &mut Value, directories: &[String]) -> Vec<Value> {
    let mut gone = Vec::new();
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.retain(|volume| {
            let path = volume["hostPath"]["path"].as_str().unwrap_or_default();
            let out = directories.iter().any(|directory| directory == path);
            if out {
                gone.push(volume["name"].clone());
            }
            !out
        });
    }
    gone
}

/// The directories of the node without which the kubelet does not start the pod.
pub fn required_directories(objects: &[DynamicObject]) -> Vec<String> {
    volumes(objects)
        .filter(|v| v["hostPath"]["type"] == "Directory")
        .filter_map(path_of)
        .collect()
}

/// Those into which mounts that come later are handed on.
pub fn propagated_directories(objects: &[DynamicObject]) -> Vec<String> {
    let containers = lists(objects, "/spec/template/spec/containers");
    let mounts = containers
        .filter_map(|c| c["volumeMounts"].as_array())
        .flatten();
    let names: Vec<&Value> = mounts
        .filter(|m| !m["mountPropagation"].is_null())
        .map(|m| &m["name"])
        .collect();
    let volumes = volumes(objects).filter(|v| names.contains(&&v["name"]));
    volumes.filter_map(path_of).collect()
}

fn path_of(volume: &Value) -> Option<String> {
    Some(volume["hostPath"]["path"].as_str()?.to_owned())
}

fn volumes(objects: &[DynamicObject]) -> impl Iterator<Item = &Value> {
    lists(objects, "/spec/template/spec/volumes")
}

fn lists<'a>(objects: &'a [DynamicObject], at: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = objects
        .iter()
        .filter_map(move |o| o.data.pointer(at)?.as_array());
    all.flatten()
}

#[cfg(test)]
mod tests {
    use evictd_tests::deploy::{self, Chart};
    use kube::ResourceExt as _;

    use super::*;

    fn manifests(changes: &Changes) -> Vec<DynamicObject> {
        read(&deploy::dir().join("manifests"), changes).unwrap()
    }

    /// As a cluster has them.
    fn applied(objects: &[DynamicObject]) -> Chart {
        let value = |object| serde_json::to_value(object).unwrap();
        Chart(objects.iter().map(value).collect())
    }

    #[test]
    fn the_manifests_are_ordered_and_changed() {
        let objects = manifests(&Changes {
            image: "new:1".into(),
            node: "node-1".into(),
            privileged: true,
            threshold: Some("2Gi".into()),
            kubelet_config: Some(String::new()),
            ..Changes::default()
        });
        assert_eq!(kind(objects.first().unwrap()), "Namespace");
        assert_eq!(kind(objects.last().unwrap()), "DaemonSet");
        let chart = applied(&objects);
        chart.has(
            "
            container/image | new:1
            container/lifecycle/preStop/exec/command | [/evictd, detach]
            pod/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values | [node-1]
            config/evictionPressureTransitionPeriod | 120s
            container/securityContext/privileged | true
            config/evictionHard | {memory.available: 2Gi}
            config/cluster/pauseConfigMap | evictd/evictd-pause
            config/cluster/kubeletConfig | -
            config/stateDir | /var/lib/evictd
            ",
        );
        let mut on_a_node = chart.config();
        on_a_node["cluster"]["nodeName"] = json!("node-1");
        evictd_config::Config::from_values(on_a_node, None).expect("agents take it");
        assert!(objects.iter().all(|o| !o.name_any().is_empty()));
    }

    #[test]
    fn nothing_else_is_changed() {
        let objects = manifests(&Changes {
            image: "i".into(),
            ..Changes::default()
        });
        applied(&objects).has("container/securityContext/privileged | false");
        let handed_on = propagated_directories(&objects);
        assert_eq!(handed_on, ["/var/lib/kubelet", "/var/lib/containerd"]);
        let needed = required_directories(&objects);
        assert!(needed.contains(&"/sys/fs/cgroup".to_owned()), "{needed:?}");
        assert!(
            !needed.contains(&"/var/lib/evictd".to_owned()),
            "{needed:?}"
        );
    }

    #[test]
    fn an_unusual_node_gets_what_it_can_have() {
        let objects = manifests(&Changes {
            image: "i".into(),
            host_network: true,
            runtime_root: Some("/elsewhere".into()),
            left_out: vec!["/elsewhere".into(), "/sys/kernel/tracing".into()],
            no_capabilities: vec!["SYS_NICE"],
            no_propagation: true,
            ..Changes::default()
        });
        let chart = applied(&objects);
        chart.has(
            "
            pod/hostNetwork | true
            config/filesystems | {nodefs: /var/lib/kubelet}
            ",
        );
        let spec = chart.pod();
        let text = spec.to_string();
        let gone = [
            "/elsewhere",
            "tracing",
            "/var/lib/containerd",
            "HostToContainer",
            "SYS_NICE",
        ];
        for gone in gone {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
        assert!(text.contains("PERFMON"));
        // Every mount has its volume still, and the essential ones are there.
        let names = |list: &Value| -> Vec<String> {
            let list = list.as_array().unwrap().iter();
            list.map(|v| v["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let mounts = names(&spec["containers"][0]["volumeMounts"]);
        assert_eq!(mounts, names(&spec["volumes"]));
        assert!(mounts.contains(&"cgroup".to_owned()));
    }

    #[test]
    fn a_directory_without_evictd_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let namespace = "kind: Namespace\napiVersion: v1\nmetadata: {name: x}\n";
        fs::write(dir.path().join("a.yaml"), namespace).unwrap();
        let error = read(dir.path(), &Changes::default()).unwrap_err();
        assert!(
            error.to_string().contains("0 containers called evictd"),
            "{error}"
        );
    }
}
