//! What `evictd run` opens at its start, beside the node: files, directories and addresses of the configuration. Nothing
//! is locked, made or served here: an agent may run, or start meanwhile.

use std::{net::SocketAddr, path::Path};

use evictd_config::{CertificateFiles, Config, pod_manifest};
use evictd_kube::client::{AccessError, test_access};
use evictd_node::cgroup::memory::MemoryCgroup;
use evictd_policy::file;
use evictd_store::journal::is_configured_wrong;
use evictd_sys::fs::test_directory;

use super::{Finding, State};
use crate::{
    daemon::{RunError, node_scope},
    telemetry::{is_free, test_files},
};

/// What would end the agent's start is missing.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let files = config
        .metrics_tls
        .as_ref()
        .and_then(|tls| tls.files.as_ref());
    let addresses = [
        ("metrics address", config.metrics_address),
        ("health address", config.health_address),
    ];
    let addresses = addresses
        .into_iter()
        .filter_map(|(topic, at)| Some(address(topic, at?)));
    std::iter::once(state_directory(&config.state_dir))
        .chain(policies(config))
        .chain(node_name(config))
        .chain(access(config))
        .chain(pods(config))
        .chain(deprecated(config))
        .chain(files.map(certificate))
        .chain(addresses)
        .collect()
}

fn policies(config: &Config) -> Option<Finding> {
    const TOPIC: &str = "policies";
    let files = &config.policy.files;
    (!files.is_empty()).then(|| match file::load(files) {
        Ok(policies) => Finding::new(TOPIC, State::Ok, format!("{} in files", policies.len())),
        Err(error) => Finding::new(TOPIC, State::Missing, error.to_string()),
    })
}

/// It may be in the environment of the agent alone.
fn node_name(config: &Config) -> Option<Finding> {
    let error = config.cluster.as_ref()?.required_node_name().err()?;
    let detail = format!("{error}: evictd run needs it");
    Some(Finding::new("node name", State::Degraded, detail))
}

/// The service account may be the agent's alone.
fn access(config: &Config) -> Option<Finding> {
    const TOPIC: &str = "API server access";
    let kubeconfig = config.cluster.as_ref()?.kubeconfig.as_ref();
    Some(match test_access(kubeconfig) {
        Ok(()) => {
            let from = kubeconfig.map(|path| path.display().to_string());
            let from = from.unwrap_or_else(|| "by the pod's service account".to_owned());
            Finding::new(TOPIC, State::Ok, from)
        }
        Err(error @ AccessError::InCluster(_)) => {
            let detail = format!("{error}: evictd run needs one");
            Finding::new(TOPIC, State::Degraded, detail)
        }
        Err(error) => Finding::new(TOPIC, State::Missing, error.to_string()),
    })
}

/// A file that does nothing but hold thresholds against the machine has no pods. What else a manifest may be wrong about
/// is told with the thresholds.
fn pods(config: &Config) -> Option<Finding> {
    const TOPIC: &str = "pods";
    let manifest = match (&config.cluster, &config.pod_manifest) {
        (Some(_), _) => return None,
        (None, Some(manifest)) => manifest,
        (None, None) => {
            let detail = "evictd run needs cluster or podManifest";
            return Some(Finding::new(TOPIC, State::Degraded, detail));
        }
    };
    let scope = node_scope(Some(config))?;
    let pods = pod_manifest::load(manifest, scope.cgroup().path(), &config.state_dir).ok()?;
    let missing = pods.iter().enumerate().find_map(|(index, pod)| {
        let source = MemoryCgroup::open(&pod.cgroup).err()?;
        Some(RunError::Pod { index, source })
    });
    Some(match missing {
        None => Finding::new(TOPIC, State::Ok, format!("{} in podManifest", pods.len())),
        Some(error) => Finding::new(TOPIC, State::Missing, error.to_string()),
    })
}

fn deprecated(config: &Config) -> Option<Finding> {
    let deprecated = config.deprecated?;
    Some(Finding::new("deprecated", State::Degraded, deprecated))
}

fn state_directory(path: &Path) -> Finding {
    const TOPIC: &str = "state directory";
    match test_directory(path) {
        Ok(()) => Finding::new(TOPIC, State::Ok, path.display().to_string()),
        Err(error) => {
            let state = match is_configured_wrong(&error.source) {
                true => State::Missing,
                false => State::Degraded,
            };
            Finding::new(TOPIC, state, format!("stateDir: {error}"))
        }
    }
}

fn certificate(files: &CertificateFiles) -> Finding {
    const TOPIC: &str = "metrics certificate";
    match test_files(files) {
        Ok(()) => Finding::new(TOPIC, State::Ok, files.certificate.display().to_string()),
        Err(error) => Finding::new(TOPIC, State::Missing, error.to_string()),
    }
}

fn address(topic: &'static str, address: SocketAddr) -> Finding {
    match is_free(address) {
        Ok(true) => Finding::new(topic, State::Ok, address.to_string()),
        // By the agent that runs here, most likely.
        Ok(false) => Finding::new(topic, State::Ok, format!("{address}, in use now")),
        Err(error) => Finding::new(topic, State::Missing, format!("{address}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    /// What is missing with this configuration.
    fn missing(own: Value) -> Vec<&'static str> {
        let config = Config::from_values(own, None).unwrap();
        let found = findings(&config).into_iter();
        found
            .filter(|f| f.state == State::Missing)
            .map(|f| f.topic)
            .collect()
    }

    #[test]
    fn what_run_refuses_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let with = |field: &str, value: Value| {
            let mut own = json!({ "stateDir": at("state/deeper") });
            own[field] = value;
            missing(own)
        };
        assert_eq!(with("shadow", json!(true)), [""; 0]);
        assert!(!at("state").exists(), "nothing is made");
        assert_eq!(with("policies", json!([at("nope")])), ["policies"]);
        let binary = at("binary");
        fs::write(&binary, b"\xff\xfe").unwrap();
        assert_eq!(with("policies", json!([binary])), ["policies"]);
        assert_eq!(
            with("stateDir", json!(binary.join("x"))),
            ["state directory"]
        );
        assert_eq!(with("stateDir", json!(binary)), ["state directory"]);
        assert_eq!(
            with("metricsAddress", json!("192.0.2.1:9393")),
            ["metrics address"]
        );
        assert_eq!(
            with("healthAddress", json!("192.0.2.1:9393")),
            ["health address"]
        );
        let tls = json!({ "certificateFile": at("tls.crt"), "privateKeyFile": at("tls.key") });
        let served =
            json!({ "stateDir": at("state"), "metricsAddress": "127.0.0.1:0", "metricsTls": tls });
        assert_eq!(missing(served), ["metrics certificate"]);
    }

    #[test]
    fn a_name_that_may_be_the_agents_own_is_degraded() {
        let found = |name: &str| {
            let config = json!({ "cluster": { "nodeName": name } });
            node_name(&Config::from_values(config, None).unwrap()).map(|f| f.state)
        };
        assert_eq!(found(""), Some(State::Degraded));
        assert_eq!(found("n2"), None);
    }

    #[test]
    fn an_agent_has_pods_and_a_way_to_its_api_server() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let found = |own: Value, topic: &str| {
            let config = Config::from_values(own, None).unwrap();
            let found = findings(&config).into_iter().find(|f| f.topic == topic);
            found.map(|f| (f.state, f.detail))
        };
        let (state, detail) = found(json!({}), "pods").unwrap();
        assert_eq!(state, State::Degraded);
        assert_eq!(detail, "evictd run needs cluster or podManifest");
        assert_eq!(found(json!({ "cluster": {} }), "pods"), None);

        let pod = |name: &str| json!({ "name": name, "cgroup": name });
        let manifest = json!({ "pods": [pod("here"), pod("gone")] });
        fs::write(at("pods.json"), manifest.to_string()).unwrap();
        for (file, text) in [
            ("memory.current", "0"),
            ("memory.max", "1048576"),
            ("memory.stat", "anon 0\nfile 0\n"),
        ] {
            for cgroup in ["", "here", "gone"] {
                fs::create_dir_all(at(cgroup)).unwrap();
                fs::write(at(cgroup).join(file), text).unwrap();
            }
        }
        let own = json!({ "scope": { "cgroup": dir.path() }, "podManifest": at("pods.json") });
        let all = (State::Ok, "2 in podManifest".to_owned());
        assert_eq!(found(own.clone(), "pods"), Some(all));
        fs::remove_dir_all(at("gone")).unwrap();
        let (state, detail) = found(own, "pods").unwrap();
        assert_eq!(state, State::Missing);
        assert!(detail.starts_with("pods[1].cgroup: "), "{detail}");

        let access = |kubeconfig: Value| {
            let own = json!({ "cluster": { "kubeconfig": kubeconfig } });
            found(own, "API server access").unwrap()
        };
        let kubeconfig = at("kubeconfig");
        for text in [None, Some("{"), Some("kind: Config")] {
            if let Some(text) = text {
                fs::write(&kubeconfig, text).unwrap();
            }
            let (state, detail) = access(json!(kubeconfig));
            assert_eq!(state, State::Missing, "{text:?}");
            assert!(detail.starts_with("cluster.kubeconfig: "), "{detail}");
        }
        let written = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"exec": {"command": "/nowhere", "interactiveMode": "Never"}}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&kubeconfig, written.to_string()).unwrap();
        let (state, detail) = access(json!(kubeconfig));
        assert_eq!(state, State::Ok, "{detail}");
        // A service account may be the agent's own.
        assert_ne!(access(Value::Null).0, State::Missing);
    }

    #[test]
    fn a_deprecated_name_is_told_of() {
        let own = json!({ "graduatedAction": { "brake": {} } });
        let config = Config::from_values(own, None).unwrap();
        let found = deprecated(&config).unwrap();
        assert!(
            found
                .detail
                .contains("former name of graduatedAction.throttle")
        );
        assert_eq!(found.state, State::Degraded);
    }

    #[test]
    fn an_agent_that_runs_is_no_hindrance() {
        let dir = tempfile::tempdir().unwrap();
        let journal = evictd_store::journal::Journal::open(dir.path()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(
            missing(json!({ "stateDir": dir.path(), "metricsAddress": address })),
            [""; 0]
        );
        drop(journal);
    }
}
