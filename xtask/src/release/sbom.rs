//! What the binary is made of: every crate that is compiled into it, as CycloneDX 1.6.

use super::VERSION;
use crate::{
    image::{Arch, Provenance},
    prelude::*,
};

/// Crates of the agent for one architecture, as cargo knows them.
pub struct Crates {
    /// Packages and their dependencies, with the features of all of the workspace.
    metadata: Value,
    /// `NAME vVERSION` of what is linked, with the features of the agent alone and without procedural macros.
    linked: BTreeSet<String>,
}

/// Asks cargo.
pub fn crates(root: &Path, arch: Arch) -> Result<Crates> {
    let ask = |arguments: &[&str]| {
        let mut cargo = cargo();
        output(cargo.current_dir(root).args(arguments).arg("--locked"))
    };
    let target = arch.rust_target();
    let metadata = ask(&[
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        target,
    ])?;
    let tree = ask(&[
        "tree",
        "--package",
        "evictd",
        "--edges",
        "normal,no-proc-macro",
        "--target",
        target,
        "--prefix",
        "none",
    ])?;
    let names = tree.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    });
    Ok(Crates {
        metadata: serde_json::from_str(&metadata).context("cargo metadata is not JSON")?,
        linked: names.collect(),
    })
}

/// The document for the agent's binary. What only builds or tests need is not in it.
pub fn of(crates: &Crates, arch: Arch, provenance: &Provenance) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&crates.metadata["packages"])
        .into_iter()
        .filter(|p| {
            let name = format!("{} v{}", text(&p["name"]), text(&p["version"]));
            crates.linked.contains(&name)
        })
        .map(|package| (text(&package["id"]), package))
        .collect();
    ensure!(
        packages.len() == crates.linked.len(),
        "cargo tree and cargo metadata name different packages"
    );
    let mut linked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(&crates.metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]);
        if packages.contains_key(&id) {
            let dependencies = list(&node["deps"]).into_iter().filter(|dependency| {
                let kinds = list(&dependency["dep_kinds"]);
                kinds.iter().any(|kind| kind["kind"].is_null())
            });
            let dependencies = dependencies.map(|d| text(&d["pkg"]));
            let dependencies = dependencies.filter(|id| packages.contains_key(id));
            linked.insert(id, dependencies.collect());
        }
    }
    let agent = packages
        .iter()
        .find(|(_, package)| package["name"] == "evictd")
        .map(|(id, _)| id.clone())
        .context("cargo metadata names no package evictd")?;
    let reference = |id: &str| packages.get(id).map(purl).unwrap_or_default();
    let components: Vec<Value> = linked
        .keys()
        .filter(|id| **id != agent)
        .filter_map(|id| packages.get(id))
        .map(component)
        .collect();
    let dependencies: Vec<Value> = linked
        .iter()
        .map(|(id, on)| {
            let on: BTreeSet<String> = on.iter().map(|id| reference(id)).collect();
            json!({"ref": reference(id), "dependsOn": on})
        })
        .collect();
    let main = packages.get(&agent).map(component);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": provenance.created,
            "component": main,
            "properties": [
                {"name": "evictd:version", "value": VERSION},
                {"name": "evictd:target", "value": arch.rust_target()},
            ],
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// A package's address in the ecosystem of its registry.
fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value) -> Value {
    let mut component = json!({
        "type": if package["name"] == "evictd" { "application" } else { "library" },
        "bom-ref": purl(package),
        "purl": purl(package),
        "name": package["name"],
        "version": package["version"],
    });
    if let Some(license) = package["license"].as_str() {
        // The deprecated way of saying OR.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    component
}
