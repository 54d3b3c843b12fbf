//! The manifests, changed as the command line asks.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use evictd_tests::deploy::objects;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// Name of the container that is evictd.
pub const CONTAINER: &str = "evictd";

/// What is different from the manifests.
#[derive(Default)]
pub struct Changes {
    /// The image.
    pub image: String,
    /// All capabilities instead of those that are listed.
    pub privileged: bool,
    /// `evictionHard["memory.available"]`.
    pub threshold: Option<String>,
    /// The kubelet's configuration file; empty: none.
    pub kubelet_config: Option<String>,
}

/// The objects of a directory, those first that others need.
pub fn read(dir: &Path, changes: &Changes) -> Result<Vec<DynamicObject>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|path| {
        path.extension().is_some_and(|e| e == "yaml") && !path.ends_with("kustomization.yaml")
    });
    files.sort();
    let (mut all, mut containers) = (Vec::new(), 0);
    for path in files {
        let text = fs::read_to_string(&path)?;
        for mut object in objects(&text).with_context(|| path.display().to_string())? {
            containers += change(&mut object, changes)?;
            let object: Result<DynamicObject, _> = serde_json::from_value(object);
            all.push(object.with_context(|| path.display().to_string())?);
        }
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
    match object.types.as_ref().map(|t| t.kind.as_str()) {
        Some("Namespace") => 0,
        Some("DaemonSet") => 2,
        _ => 1,
    }
}

/// How many containers were changed.
fn change(object: &mut Value, changes: &Changes) -> Result<usize> {
    if object["kind"] == "ConfigMap" {
        let text = object["data"]["config.yaml"].as_str().unwrap_or_default();
        let mut config = objects(text)?
            .pop()
            .context("the ConfigMap has no config.yaml")?;
        if let Some(threshold) = &changes.threshold {
            config["evictionHard"] = json!({"memory.available": threshold});
        }
        if let Some(path) = &changes.kubelet_config {
            config["cluster"] = match path.as_str() {
                "" => json!({}),
                path => json!({"kubeletConfig": path}),
            };
        }
        // JSON is YAML.
        object["data"]["config.yaml"] = config.to_string().into();
    }
    if object["kind"] != "DaemonSet" {
        return Ok(0);
    }
    let containers = object.pointer_mut("/spec/template/spec/containers");
    let containers = containers.and_then(Value::as_array_mut);
    let mut changed = 0;
    for container in containers
        .into_iter()
        .flatten()
        .filter(|c| c["name"] == CONTAINER)
    {
        container["image"] = changes.image.clone().into();
        if changes.privileged {
            container["securityContext"] =
                json!({"privileged": true, "readOnlyRootFilesystem": true});
        }
        changed += 1;
    }
    Ok(changed)
}

/// The directories of the node without which the kubelet does not start the pod.
pub fn required_directories(objects: &[DynamicObject]) -> Vec<String> {
    let volumes = objects
        .iter()
        .filter_map(|o| o.data.pointer("/spec/template/spec/volumes")?.as_array())
        .flatten();
    volumes
        .filter(|v| v["hostPath"]["type"] == "Directory")
        .filter_map(|v| Some(v["hostPath"]["path"].as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use evictd_tests::deploy;
    use kube::ResourceExt as _;

    use super::*;

    fn manifests(changes: &Changes) -> Vec<DynamicObject> {
        read(&deploy::dir().join("manifests"), changes).unwrap()
    }

    #[test]
    fn the_manifests_are_ordered_and_changed() {
        let objects = manifests(&Changes {
            image: "new:1".into(),
            privileged: true,
            threshold: Some("2Gi".into()),
            kubelet_config: Some(String::new()),
        });
        let kinds: Vec<_> = objects
            .iter()
            .map(|o| o.types.clone().unwrap().kind)
            .collect();
        assert_eq!(kinds.first().unwrap(), "Namespace");
        assert_eq!(kinds.last().unwrap(), "DaemonSet");
        let daemonset = &objects.last().unwrap().data;
        let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "new:1");
        assert_eq!(container["securityContext"]["privileged"], true);
        let config = kinds.iter().position(|k| k == "ConfigMap").unwrap();
        let config: Value = serde_json::from_str(
            objects[config].data["data"]["config.yaml"]
                .as_str()
                .unwrap(),
        )
        .unwrap();
        assert_eq!(config["evictionHard"], json!({"memory.available": "2Gi"}));
        assert_eq!(config["cluster"], json!({}));
        assert_eq!(config["stateDir"], "/var/lib/evictd");
        assert!(objects.iter().all(|o| !o.name_any().is_empty()));
    }

    #[test]
    fn nothing_else_is_changed() {
        let objects = manifests(&Changes {
            image: "i".into(),
            ..Changes::default()
        });
        let daemonset = &objects.last().unwrap().data;
        let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["securityContext"]["privileged"], false);
        let needed = required_directories(&objects);
        assert!(needed.contains(&"/sys/fs/cgroup".to_owned()), "{needed:?}");
        assert!(
            !needed.contains(&"/var/lib/evictd".to_owned()),
            "{needed:?}"
        );
    }

    #[test]
    fn a_directory_without_evictd_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("a.yaml"),
            "kind: Namespace\napiVersion: v1\nmetadata: {name: x}\n",
        )
        .unwrap();
        let error = read(dir.path(), &Changes::default()).unwrap_err();
        assert!(
            error.to_string().contains("0 containers called evictd"),
            "{error}"
        );
    }
}
