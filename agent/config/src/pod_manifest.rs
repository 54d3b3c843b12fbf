//! The manifest file: the pods of a node without an API server. YAML or JSON:
//!
//! ```yaml
//! pods:
//! - namespace: shop          # default: default
//!   name: cache
//!   uid: 6f1c...             # default: namespace/name
//!   qosClass: Burstable      # default: by the memory request and limit
//!   priority: 100            # default: 0
//!   restartPolicy: Always    # OnFailure, Never: without processes for ten seconds it is over
//!   static: false            # true: protected in `mode: kubelet`, otherwise as its priority says
//!   labels: {app: cache}     # for policies, as the next five fields
//!   annotations: {}
//!   owner: {kind: StatefulSet, name: cache, uid: 3f...}   # uid: kind/namespace/name by default
//!   phase: Running
//!   conditions: {Ready: "True"}
//!   ip: 10.0.0.7             # the server that its gates ask
//!   requests: {memory: 64Mi}
//!   limits: {memory: 128Mi}
//!   cgroup: burstable/cache  # below the scope, or absolute; no two overlap
//!   emptyDirs:               # emptied after an eviction, as by the kubelet; no two overlap
//!   - {name: scratch, path: /srv/cache/scratch, sizeLimit: 1Gi}
//! ```

use std::path::{Component, Path, PathBuf};

use evictd_engine::{
    Container, ContainerKind, EmptyDir, Owner, Pod, QosClass, Volume, model::quantity::Quantity,
};
use serde_json::Value;

use crate::{ConfigError, decode::ObjectDecoder, read_document};

/// A pod and its cgroup directory.
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestPod {
    /// The pod, as the engine needs it.
    pub pod: Pod,
    /// The absolute path of its cgroup directory.
    pub cgroup: PathBuf,
    /// The pod's emptyDir volumes.
    pub empty_dirs: Vec<NamedDirectory>,
}

/// A volume's name and its directory.
pub type NamedDirectory = (String, PathBuf);

/// Reads a manifest; relative cgroups lie below `scope`.
///
/// # Errors
/// A file that cannot be read, an unknown field, a value that cannot be used, two pods of the same UID; a cgroup that
/// is or contains the scope, or overlaps another pod's; an emptyDir that overlaps another one or `state_dir`. The error
/// names the field and the reason.
pub fn load(path: &Path, scope: &Path, state_dir: &Path) -> Result<Vec<ManifestPod>, ConfigError> {
    parse(read_document(path)?, scope, state_dir)
}

fn parse(document: Value, scope: &Path, state_dir: &Path) -> Result<Vec<ManifestPod>, ConfigError> {
    let mut fields = ObjectDecoder::open("", document)?;
    let items = match fields.optional("pods") {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(ConfigError::value("pods", &other, "must be a list of pods")),
        None => return Err(fields.missing("pods")),
    };
    fields.deny_unknown_fields()?;
    let mut pods: Vec<ManifestPod> = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let path = format!("pods[{i}]");
        let pod = pod(ObjectDecoder::open(&path, item)?, scope)?;
        if let Some(twin) = pods.iter().find(|p| p.pod.uid == pod.pod.uid) {
            let reason = format!("is the uid of {} already", twin.pod);
            return Err(ConfigError::text(
                format!("{path}.uid"),
                &pod.pod.uid,
                reason,
            ));
        }
        // An eviction kills all that runs below the cgroup, and removes all that lies below the emptyDirs.
        if let Some(other) = pods.iter().find(|p| overlap(&p.cgroup, &pod.cgroup)) {
            let reason = format!("is, contains or lies in the cgroup of {}", other.pod);
            return Err(wrong_path(format!("{path}.cgroup"), &pod.cgroup, reason));
        }
        for (i, (_, directory)) in pod.empty_dirs.iter().enumerate() {
            let of_others = pods.iter().flat_map(|p| &p.empty_dirs);
            let mut others = of_others.chain(&pod.empty_dirs[..i]);
            let reason = match others.find(|(_, other)| overlap(other, directory)) {
                Some((name, _)) => format!("is, contains or lies in the emptyDir {name}"),
                None if overlap(state_dir, directory) => {
                    "is, contains or lies in stateDir".to_owned()
                }
                None => continue,
            };
            let field = format!("{path}.emptyDirs[{i}].path");
            return Err(wrong_path(field, directory, reason));
        }
        pods.push(pod);
    }
    Ok(pods)
}

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn wrong_path(field: String, path: &Path, reason: impl ToString) -> ConfigError {
    ConfigError::text(field, &path.display().to_string(), reason)
}

/// The path, if it can be compared with others: without `..`. Behind a slash at its end a link would be followed.
fn plain(field: String, path: PathBuf) -> Result<PathBuf, ConfigError> {
    match path.components().any(|part| part == Component::ParentDir) {
        true => Err(wrong_path(field, &path, "must not contain ..")),
        false => Ok(path.components().collect()),
    }
}

fn pod(mut fields: ObjectDecoder, scope: &Path) -> Result<ManifestPod, ConfigError> {
    const CLASSES: [(&str, QosClass); 3] = [
        ("BestEffort", QosClass::BestEffort),
        ("Burstable", QosClass::Burstable),
        ("Guaranteed", QosClass::Guaranteed),
    ];
    let namespace = fields
        .text("namespace")?
        .unwrap_or_else(|| "default".to_owned());
    let name = fields.required_text("name")?;
    let cgroup = fields.required_text("cgroup")?;
    let cgroup = scope.join(plain(fields.path_of("cgroup"), cgroup.into())?);
    if scope.starts_with(&cgroup) {
        let reason = "is or contains the scope, in which all pods are";
        return Err(wrong_path(fields.path_of("cgroup"), &cgroup, reason));
    }
    let request = memory(&mut fields, "requests")?;
    let limit = memory(&mut fields, "limits")?;
    // As in the API, a limit without a request is also the request.
    let request = request.or(limit);
    let derived = match (request, limit) {
        (None, None) => QosClass::BestEffort,
        (request, limit) if request == limit => QosClass::Guaranteed,
        _ => QosClass::Burstable,
    };
    // The manifest has no containers, but the kubelet's message names one.
    let container = Container {
        name: name.clone(),
        kind: ContainerKind::Regular,
        restartable: false,
        memory_request: Quantity::bytes(request.unwrap_or(0)),
        storage_request: Quantity::default(),
        storage_limit: None,
    };
    let (volumes, empty_dirs) = empty_dirs(&mut fields)?;
    let pod = Pod {
        containers: vec![container],
        volumes,
        uid: fields
            .text("uid")?
            .unwrap_or_else(|| format!("{namespace}/{name}")),
        priority: fields.int32("priority")?.unwrap_or(0),
        qos: fields.choice("qosClass", &CLASSES)?.unwrap_or(derived),
        is_static: fields.boolean("static")?.unwrap_or(false),
        may_complete: fields
            .choice(
                "restartPolicy",
                &[("Always", false), ("OnFailure", true), ("Never", true)],
            )?
            .unwrap_or(false),
        memory_request: request.unwrap_or(0),
        labels: fields.text_map("labels")?,
        annotations: fields.text_map("annotations")?,
        phase: fields
            .text("phase")?
            .unwrap_or_else(|| "Running".to_owned()),
        conditions: fields.text_map("conditions")?,
        ip: fields.text("ip")?.unwrap_or_default(),
        owner: owner(&mut fields, &namespace)?,
        namespace,
        name,
        ..Pod::default()
    };
    fields.deny_unknown_fields()?;
    Ok(ManifestPod {
        pod,
        cgroup,
        empty_dirs,
    })
}

/// The emptyDirs, as volumes for the engine and with their directories.
fn empty_dirs(
    fields: &mut ObjectDecoder,
) -> Result<(Vec<Volume>, Vec<NamedDirectory>), ConfigError> {
    let path = fields.path_of("emptyDirs");
    let items = match fields.optional("emptyDirs") {
        None => return Ok((Vec::new(), Vec::new())),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(ConfigError::value(path, &other, "must be a list")),
    };
    let (mut volumes, mut places) = (Vec::new(), Vec::new());
    for (i, item) in items.into_iter().enumerate() {
        let mut item = ObjectDecoder::open(&format!("{path}[{i}]"), item)?;
        let name = item.required_text("name")?;
        let directory = item.absolute_path("path")?;
        let directory = directory.ok_or_else(|| item.missing("path"))?;
        let directory = plain(item.path_of("path"), directory)?;
        let size_limit = item.parsed("sizeLimit")?;
        item.deny_unknown_fields()?;
        volumes.push(Volume {
            name: name.clone(),
            is_local: true,
            empty_dir: Some(EmptyDir { size_limit }),
        });
        places.push((name, directory));
    }
    Ok((volumes, places))
}

fn owner(fields: &mut ObjectDecoder, namespace: &str) -> Result<Option<Owner>, ConfigError> {
    fields.section("owner", |owner| {
        let (kind, name) = (owner.required_text("kind")?, owner.required_text("name")?);
        let uid = owner.text("uid")?;
        let uid = uid.unwrap_or_else(|| format!("{kind}/{namespace}/{name}"));
        Ok(Owner { kind, name, uid })
    })
}

/// `requests.memory` or `limits.memory`, in bytes.
fn memory(fields: &mut ObjectDecoder, name: &str) -> Result<Option<u64>, ConfigError> {
    let Some(mut resources) = fields.object(name)? else {
        return Ok(None);
    };
    let path = resources.path_of("memory");
    let quantity: Option<Quantity> = resources.parsed("memory")?;
    resources.deny_unknown_fields()?;
    match quantity {
        Some(q) if q.sign() < 0 => Err(ConfigError::text(
            path,
            &q.to_string(),
            "must not be negative",
        )),
        other => Ok(other.map(|q| q.floor())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_pods(pods: Value) -> Result<Vec<ManifestPod>, String> {
        let [scope, state_dir] = ["/top/scope", "/var/lib/evictd"].map(Path::new);
        parse(json!({ "pods": pods }), scope, state_dir).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_the_apis() {
        let pods = parse_pods(json!([
            {"name": "a", "cgroup": "besteffort/a"},
            {"name": "b", "namespace": "n", "cgroup": "/elsewhere/b", "limits": {"memory": "1Gi"}},
            {"name": "c", "cgroup": "c", "requests": {"memory": "1.5Mi"}, "priority": -5, "static": true, "restartPolicy": "Never"},
        ]))
        .unwrap();
        let [a, b, c] = &pods[..] else {
            panic!("{pods:?}")
        };
        assert_eq!(
            (a.pod.uid.as_str(), a.pod.qos),
            ("default/a", QosClass::BestEffort)
        );
        assert_eq!(a.cgroup, Path::new("/top/scope/besteffort/a"));
        assert_eq!(
            (b.pod.qos, b.pod.memory_request),
            (QosClass::Guaranteed, 1 << 30)
        );
        assert_eq!(b.cgroup, Path::new("/elsewhere/b"));
        assert_eq!(
            (c.pod.qos, c.pod.memory_request, c.pod.priority),
            (QosClass::Burstable, 3 << 19, -5)
        );
        assert!(c.pod.is_critical());
        assert!(c.pod.may_complete && !a.pod.may_complete);
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (pods, expected) in [
            (json!({}), "pods: {}: must be a list of pods"),
            (json!([{"cgroup": "a"}]), "pods[0].name: null: is missing"),
            (json!([{"name": "a"}]), "pods[0].cgroup: null: is missing"),
            (
                json!([{"name": "a", "cgroup": "a", "color": 1}]),
                "pods[0].color: unknown field",
            ),
            (
                json!([{"name": "a", "cgroup": "a", "qosClass": "Gold"}]),
                "pods[0].qosClass: \"Gold\": must be one of BestEffort, Burstable, Guaranteed",
            ),
            (
                json!([{"name": "a", "cgroup": "a", "requests": {"memory": "-1"}}]),
                "pods[0].requests.memory: \"-1\": must not be negative",
            ),
            (
                json!([{"name": "a", "cgroup": "a", "emptyDirs": [{"name": "s"}]}]),
                "pods[0].emptyDirs[0].path: null: is missing",
            ),
            (
                json!([{"name": "a", "cgroup": "a", "emptyDirs": [{"name": "s", "path": "x"}]}]),
                "pods[0].emptyDirs[0].path: \"x\": must be an absolute path",
            ),
            (
                json!([{"name": "a", "cgroup": "a"}, {"name": "a", "cgroup": "b"}]),
                "pods[1].uid: \"default/a\": is the uid of default/a already",
            ),
            (
                json!([{"name": "a", "cgroup": "a"}, {"name": "b", "cgroup": "a"}]),
                "pods[1].cgroup: \"/top/scope/a\": is, contains or lies in the cgroup of default/a",
            ),
        ] {
            assert_eq!(parse_pods(pods.clone()).unwrap_err(), expected, "{pods}");
        }
    }

    /// An eviction of one pod must end no other pod, and must remove nothing of it or of the agent.
    #[test]
    fn what_an_eviction_would_take_beyond_its_pod_is_refused() {
        let pod = |name: &str, cgroup: &str, dirs: &[&str]| {
            let dirs = dirs.iter().map(|path| json!({"name": "s", "path": path}));
            json!({"name": name, "cgroup": cgroup, "emptyDirs": dirs.collect::<Value>()})
        };
        for cgroup in [".", "/", "/top", "/top/scope/", "/top//scope/./"] {
            let error = parse_pods(json!([pod("a", cgroup, &[])])).unwrap_err();
            assert!(
                error.ends_with(": is or contains the scope, in which all pods are"),
                "{error}"
            );
        }
        for cgroup in ["..", "../x", "x/../x", "/top/scope/../scope/x"] {
            let error = parse_pods(json!([pod("a", cgroup, &[])])).unwrap_err();
            assert!(error.ends_with(": must not contain .."), "{error}");
        }
        for cgroups in [
            ["app", "app/vital"],
            ["app/vital", "/top/scope/app"],
            ["app", "./app/"],
        ] {
            let [one, two] = cgroups;
            let error = parse_pods(json!([pod("a", one, &[]), pod("b", two, &[])])).unwrap_err();
            let expected = ": is, contains or lies in the cgroup of default/a";
            assert!(
                error.starts_with("pods[1].cgroup: ") && error.ends_with(expected),
                "{error}"
            );
        }
        for (of_a, of_b, field, reason) in [
            (
                vec!["/"],
                vec![],
                "[0].emptyDirs[0]",
                "is, contains or lies in stateDir",
            ),
            (
                vec!["/var/lib/evictd/incidents"],
                vec![],
                "[0].emptyDirs[0]",
                "is, contains or lies in stateDir",
            ),
            (
                vec!["/x/../y"],
                vec![],
                "[0].emptyDirs[0]",
                "must not contain ..",
            ),
            (
                vec!["/srv"],
                vec!["/tmp/b", "/srv"],
                "[1].emptyDirs[1]",
                "is, contains or lies in the emptyDir s",
            ),
            (
                vec!["/srv/a"],
                vec!["/srv"],
                "[1].emptyDirs[0]",
                "is, contains or lies in the emptyDir s",
            ),
            (
                vec!["/srv", "/srv/a"],
                vec![],
                "[0].emptyDirs[1]",
                "is, contains or lies in the emptyDir s",
            ),
        ] {
            let error =
                parse_pods(json!([pod("a", "a", &of_a), pod("b", "b", &of_b)])).unwrap_err();
            assert!(
                error.starts_with(&format!("pods{field}.path: ")) && error.ends_with(reason),
                "{error}"
            );
        }
        let apart = json!([
            pod("a", "app", &["/srv//a/./"]),
            pod("b", "app-2", &["/srv/ab", "/srv/b"])
        ]);
        let apart = parse_pods(apart).unwrap();
        assert_eq!(apart.len(), 2);
        assert_eq!(apart[0].empty_dirs[0].1.as_os_str(), "/srv/a");
    }
}
