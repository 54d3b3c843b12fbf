//! What a cluster applies: the chart, and the plain manifests that it renders to.

pub mod helm;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// Name of the release and of its namespace in the plain manifests.
pub const RELEASE: &str = "evictd";

/// `deploy/` of the checkout.
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The chart's directory.
pub fn chart() -> PathBuf {
    dir().join("chart/evictd")
}

/// The values that make the plain manifests: the defaults, and the namespace, which Helm otherwise makes by itself.
pub fn plain_values() -> Value {
    json!({"namespace": {"create": true}})
}

/// The files of `deploy/manifests` as the chart renders them: name and content.
pub fn plain(rendered: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for (template, text) in rendered {
        let name = template.rsplit('/').next().unwrap_or(template);
        if name.ends_with(".yaml") && !text.trim().is_empty() {
            let head =
                "# Rendered from deploy/chart; see docs/deploy.md before changing it by hand.\n";
            files.insert(name.to_owned(), format!("{head}{}\n", text.trim()));
        }
    }
    let resources: Vec<String> = files.keys().map(|name| format!("- {name}\n")).collect();
    files.insert(
        "kustomization.yaml".to_owned(),
        format!(
            "# kubectl apply -k deploy/manifests\n\
             # Another image or configuration: an overlay of your own with `images:` and `patches:`, or the chart.\n\
             apiVersion: kustomize.config.k8s.io/v1beta1\n\
             kind: Kustomization\n\
             resources:\n{}",
            resources.concat()
        ),
    );
    files
}

/// The objects in a YAML stream.
///
/// # Errors
/// It is not YAML.
pub fn objects(text: &str) -> io::Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(io::Error::other)?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// The objects of all files together.
///
/// # Errors
/// One is not YAML.
pub fn all_objects(files: &BTreeMap<String, String>) -> io::Result<Vec<Value>> {
    let mut all = Vec::new();
    for (name, text) in files {
        if name.ends_with(".yaml") && !name.ends_with("kustomization.yaml") {
            let found = objects(text).map_err(|e| io::Error::other(format!("{name}: {e}")))?;
            all.extend(found);
        }
    }
    Ok(all)
}

/// The first object of a kind.
pub fn one<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
    objects.iter().find(|o| o["kind"] == kind)
}
