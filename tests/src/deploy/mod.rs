//! What a cluster applies: the chart, and the plain manifests that it renders to.

pub mod helm;
pub mod promtool;

use std::ops::Index;

use walkdir::{DirEntry, WalkDir};

use crate::prelude::*;

/// Name of the release and of its namespace in the plain manifests.
pub const RELEASE: &str = "evictd";

/// Numbers of the capabilities that the DaemonSet asks for (`include/uapi/linux/capability.h`).
pub const CAPABILITIES: [(&str, u32); 6] = [
    ("DAC_READ_SEARCH", 2),
    ("KILL", 5),
    ("IPC_LOCK", 14),
    ("SYS_NICE", 23),
    ("PERFMON", 38),
    ("BPF", 39),
];

/// Those of them that nothing on this machine can have: a machine that is a container itself may lack some, and its
/// container runtime then refuses containers that ask for them. From the bounding set of the first process.
pub fn missing_capabilities() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/1/status").unwrap_or_default();
    let set = status.lines().find_map(|l| l.strip_prefix("CapBnd:"));
    let Some(set) = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()) else {
        return Vec::new();
    };
    let missing = CAPABILITIES
        .iter()
        .filter(|(_, number)| set >> number & 1 == 0);
    missing.map(|(name, _)| *name).collect()
}

/// Takes these capabilities out of a container of the DaemonSet.
pub fn without_capabilities(container: &mut Value, names: &[&str]) {
    let added = container.pointer_mut("/securityContext/capabilities/add");
    if let Some(added) = added.and_then(Value::as_array_mut) {
        added.retain(|name| !names.iter().any(|gone| name == gone));
    }
}

/// Runs a program; an error is its own words.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    bail!("{command:?}: {said}{}", error.trim())
}

/// A directory below `target/`, which is made when it is not there: beside and then renamed, so that an interrupted download is never
/// taken for a whole one.
fn fetched(name: &str, fetch: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let target = checkout().join("target");
    let whole = target.join(name);
    if !whole.exists() {
        let partial = target.join(format!("{name}-{}.partial", std::process::id()));
        fs::create_dir_all(&partial)?;
        fetch(&partial)?;
        // Another test may have been faster: then this copy is not needed.
        if fs::rename(&partial, &whole).is_err() {
            fs::remove_dir_all(&partial)?;
        }
    }
    Ok(whole)
}

pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
}

/// The files below a directory whose names end so.
pub fn files_below(directory: &Path, extension: &str) -> Result<BTreeSet<PathBuf>> {
    let has_extension = |path: &PathBuf| path.extension().is_some_and(|e| e == extension);
    let all: Result<Vec<_>, _> = WalkDir::new(directory).into_iter().collect();
    let all = all?.into_iter().filter(|entry| entry.file_type().is_file());
    Ok(all.map(DirEntry::into_path).filter(has_extension).collect())
}

/// `deploy/` of the checkout.
pub fn dir() -> PathBuf {
    checkout().join("deploy")
}

/// The policy of this file that is shipped.
pub fn policy(file: &str) -> PathBuf {
    dir().join("policies").join(file)
}

pub fn chart() -> PathBuf {
    dir().join("chart/evictd")
}

/// The values that make the plain manifests: the defaults, and the namespace, which Helm otherwise makes by itself.
pub fn plain_values() -> Value {
    json!({"namespace": {"create": true}})
}

/// The agent's configuration among the plain manifests, of which kustomize makes the ConfigMap.
pub const CONFIGURATION: &str = "config.yaml";

/// The label of configurations, by which old ones are found; its value is the node pool.
const CONFIGURATION_LABEL: &str = "evictd.dev/configuration";

/// The files of `deploy/manifests` as the chart renders them: name and content. Kustomize names the ConfigMap by its content
/// as the chart does, so that an overlay with another configuration is rolled out as well.
pub fn plain(rendered: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut config_map = None;
    for (template, text) in rendered {
        let name = template.rsplit('/').next().unwrap_or(template);
        let text = text.trim().trim_start_matches("---").trim();
        if !name.ends_with(".yaml") || text.is_empty() {
            continue;
        }
        if name == "configmap.yaml" {
            config_map = objects(text)?.pop();
            continue;
        }
        let head = "# Rendered from deploy/chart; see docs/deploy.md before changing it by hand.\n";
        files.insert(name.to_owned(), format!("{head}{text}\n"));
    }
    let config_map = config_map.context("no ConfigMap")?;
    let (Some(name), Some(data)) = (
        config_map["metadata"]["name"].as_str(),
        config_map["data"][CONFIGURATION].as_str(),
    ) else {
        bail!("no {CONFIGURATION} in {config_map}");
    };
    for text in files.values_mut() {
        *text = text.replace(name, RELEASE);
    }
    let resources: Vec<String> = files.keys().map(|name| format!("- {name}\n")).collect();
    files.insert(
        "kustomization.yaml".to_owned(),
        format!(
            "# kubectl apply -k deploy/manifests\n\
             # Another image or configuration: an overlay of your own with `images:`, `patches:` and a `configMapGenerator` with\n\
             # `behavior: replace`, or the chart. Leave the namespace and the names as they are (no `namespace:`, `namePrefix:`,\n\
             # `nameSuffix:`): the admission policies know the agents by them, in expressions that kustomize does not change.\n\
             apiVersion: kustomize.config.k8s.io/v1beta1\n\
             kind: Kustomization\n\
             resources:\n{1}\
             # Named by its content: another configuration is rolled out node after node.\n\
             configMapGenerator:\n\
             - name: {RELEASE}\n\
             {0}namespace: {RELEASE}\n\
             {0}files: [{CONFIGURATION}]\n\
             {0}options:\n\
             {0}  immutable: true\n\
             {0}  labels:\n\
             {0}    {CONFIGURATION_LABEL}: default\n",
            "  ",
            resources.concat(),
        ),
    );
    files.insert(CONFIGURATION.to_owned(), data.to_owned());
    Ok(files)
}

/// The ConfigMap of a configuration, as kustomize makes it but for its name's hash.
fn config_map(configuration: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": RELEASE, "namespace": RELEASE, "labels": {CONFIGURATION_LABEL: "default"},
        },
        "immutable": true,
        "data": {CONFIGURATION: configuration},
    })
}

pub fn objects(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

pub fn all_objects(files: &BTreeMap<String, String>) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (name, text) in files {
        let file = name.rsplit('/').next().unwrap_or(name);
        if file == CONFIGURATION {
            all.push(config_map(text));
        } else if name.ends_with(".yaml") && file != "kustomization.yaml" {
            all.extend(objects(text).with_context(|| name.clone())?);
        }
    }
    Ok(all)
}

/// Objects that a cluster applies: those of the chart, or of the plain manifests.
pub struct Chart(pub Vec<Value>);

impl Chart {
    /// Renders the chart with these values.
    pub fn of(values: &Value) -> Result<Self> {
        helm::objects(values).map(Self)
    }

    /// The plain manifests as they are in the checkout.
    pub fn plain() -> Result<Self> {
        all_objects(&manifests()?).map(Self)
    }

    pub fn kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The agent's configuration as it is written.
    pub fn config_text(&self) -> &str {
        let text = self["ConfigMap"]["data"][CONFIGURATION].as_str();
        text.expect("a configuration")
    }

    pub fn config(&self) -> Value {
        serde_saphyr::from_str(self.config_text()).expect("YAML")
    }

    /// Specification of the agents' pods: the DaemonSet's `spec.template.spec`.
    pub fn pod(&self) -> &Value {
        &self["DaemonSet"]["spec"]["template"]["spec"]
    }

    pub fn container(&self) -> &Value {
        &self.pod()["containers"][0]
    }

    /// Checks rows of a JSON pointer, which begins with `config`, `pod`, `container` or a kind, and what it leads to: `-` where
    /// nothing is to be there.
    pub fn has(&self, table: &str) {
        for [pointer, expected] in rows(table) {
            let (part, rest) = pointer.split_at(pointer.find('/').unwrap_or(pointer.len()));
            let part = match part {
                "config" => Some(self.config()),
                "pod" => Some(self.pod().clone()),
                "container" => Some(self.container().clone()),
                kind => self.kind(kind).next().cloned(),
            };
            let found = part.as_ref().and_then(|part| part.pointer(rest));
            let expected = (expected != "-").then(|| yaml(expected));
            assert_eq!(found, expected.as_ref(), "{pointer}");
        }
    }
}

/// The first object of a kind.
impl Index<&str> for Chart {
    type Output = Value;

    fn index(&self, kind: &str) -> &Value {
        let found = self.kind(kind).next();
        found.unwrap_or_else(|| panic!("no {kind}"))
    }
}

/// The files of `deploy/manifests`: name and content.
pub fn manifests() -> Result<BTreeMap<String, String>> {
    files_of(&dir().join("manifests"))
}

/// The files of a directory: name and content.
pub fn files_of(directory: &Path) -> Result<BTreeMap<String, String>> {
    let entries = fs::read_dir(directory)?;
    let read = |entry: io::Result<fs::DirEntry>| {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), fs::read_to_string(&path)?))
    };
    entries.map(read).collect()
}

/// Whether a node with these labels is one of the DaemonSet's, as the scheduler sees it (terms are ORed, their expressions ANDed).
pub fn takes(daemonset: &Value, labels: &BTreeMap<&str, &str>) -> bool {
    let spec = &daemonset["spec"]["template"]["spec"];
    let required =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else {
        return true;
    };
    let holds = |expression: &Value| {
        let key = expression["key"].as_str().unwrap_or_default();
        let value = labels.get(key);
        let listed = value.is_some_and(|v| {
            let values = expression["values"].as_array();
            values.is_some_and(|values| values.iter().any(|one| one == v))
        });
        match &expression["operator"] {
            operator if operator == "In" => listed,
            operator if operator == "NotIn" => !listed,
            operator if operator == "Exists" => value.is_some(),
            other => panic!("{other}"),
        }
    };
    terms.iter().any(|term| {
        // A term without an expression matches no node, and no node of a test has a name.
        let expressions = term["matchExpressions"].as_array();
        let hold = expressions.is_some_and(|all| all.iter().all(holds));
        term.get("matchFields").is_none() && hold
    })
}
