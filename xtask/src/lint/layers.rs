//! What each crate may depend on.

use crate::prelude::*;

/// From the bottom up: a crate, the crates of this workspace that it may import, and the others; docs/architecture.md says
/// what each owns. `evictd` and `evictd-tests`, which are not here, may import whatever they like.
const LAYERS: &str = "\
evictd-common: | aya
evictd-ebpf: common | aya-ebpf aya-log-ebpf
evictd-sys: | crossbeam-utils libc rustix thiserror
evictd-engine: | serde thiserror
evictd-config: engine | ipnet jiff json-patch serde serde-saphyr serde_json serde_path_to_error thiserror
evictd-node: common engine sys | aya aya-log libc log rustix serde serde_json thiserror tracing triple_buffer
evictd-store: engine sys | jiff plotters serde serde_json serde_path_to_error thiserror tracing
evictd-policy: config engine sys | cel futures http http-body-util hyper hyper-util ipnet jiff \
    rustls serde serde-saphyr serde_json thiserror tokio tokio-rustls tracing
evictd-cri: config engine sys | http prost serde_json thiserror tokio tonic tonic-prost tracing
evictd-fastpath: engine node sys | crossbeam-queue libc nix
evictd-manager: engine node sys | tracing
evictd-judge: engine | clap fastrand serde_json
evictd-kube: config engine policy store sys | backon bytes fastrand futures http hyper-timeout hyper-util \
    ipnet jiff k8s-openapi kube serde serde_json thiserror tokio tower tracing
xtask: | anyhow clap cpio flate2 nix ra-ap-rustc_lexer serde serde-saphyr serde_json sha2 syn \
    tar tempfile walkdir";

/// Dependencies that are not in the table. A dev-dependency on another crate of the workspace is one as well: cargo would
/// compile the library twice.
pub(super) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut cargo = cargo();
    let metadata = "metadata --format-version 1 --no-deps --offline".split(' ');
    let metadata = output(cargo.args(metadata).current_dir(root))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    Ok(check(&metadata))
}

fn check(metadata: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((own, others)) = layer(name) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            let is_allowed = match (target.strip_prefix("evictd-"), kind) {
                (Some(target), "normal") => names(own, target),
                (Some(_), _) => false,
                (None, "normal") => names(others, target),
                (None, _) => true,
            };
            if !is_allowed {
                found.push(format!(
                    "{name} -> {target}: not a {kind} dependency of this layer"
                ));
            }
        }
    }
    found
}

fn layer(name: &str) -> Option<(&'static str, &'static str)> {
    let mut layers = LAYERS.lines().filter_map(|line| line.split_once(": "));
    layers.find(|layer| layer.0 == name)?.1.split_once("| ")
}

fn names(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|other| other == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dependency_outside_the_table_is_named() {
        let metadata = json!({"packages": [{"name": "evictd-engine", "dependencies": [
            {"name": "serde", "kind": null},
            {"name": "tokio", "kind": null},
            {"name": "evictd-sys", "kind": null},
            {"name": "evictd-config", "kind": "dev"},
            {"name": "proptest", "kind": "dev"},
        ]}]});
        assert_eq!(
            check(&metadata),
            [
                "evictd-engine -> tokio: not a normal dependency of this layer",
                "evictd-engine -> evictd-sys: not a normal dependency of this layer",
                "evictd-engine -> evictd-config: not a dev dependency of this layer",
            ]
        );
    }
}
