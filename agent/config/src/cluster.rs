//! `cluster`: how to reach the API server, and what the agent does there.

use std::{env, fmt, path::PathBuf, time::Duration};

use ipnet::IpNet;

use super::ConfigError;
use crate::decode::ObjectDecoder;

mod fleet;
mod taint;

pub use fleet::FleetConfig;
pub use taint::{DEFAULT_TAINT_PREFIX, TaintConfig, TaintEffect};

/// Environment variable with the node's name; a DaemonSet sets it from `spec.nodeName`.
const NODE_NAME: &str = "NODE_NAME";

/// The cluster that the node belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `cluster.nodeName`: the Node object of this machine; `$NODE_NAME` by default, and empty without either.
    pub node_name: String,
    /// `cluster.kubeconfig`: how to reach the API server; the pod's service account by default.
    pub kubeconfig: Option<PathBuf>,
    /// `cluster.kubeletConfig`: a KubeletConfiguration for eviction settings that this file lacks. While it cannot be
    /// read, `/configz` or the kubelet's defaults stand in for it.
    pub kubelet_config: Option<PathBuf>,
    /// `cluster.kubeletConfigDir`: the kubelet's `--config-dir`, whose files are merged into `kubeletConfig`. A missing
    /// directory counts as empty.
    pub kubelet_config_dir: Option<PathBuf>,
    /// `cluster.configz`: ask the running kubelet for these settings, through the API server's node proxy. Off by
    /// default: it needs the right to `get nodes/proxy`, which is far more than evictd needs otherwise.
    pub configz: bool,
    /// `cluster.admissionPolicies`: whether admission policies restrict each agent's token to its own node; the agent
    /// then tests this. By default on where the agent has the service account's token.
    pub admission_policies: bool,
    /// `cluster.softOverrideAfter`: how long PodDisruptionBudgets may refuse soft evictions; `None`, the default: until
    /// the hard threshold is met, for memory and process ids for ten seconds or more.
    pub soft_override_after: Option<Duration>,
    /// `cluster.evictedPods`: what happens to an evicted pod's object.
    pub evicted_pods: EvictedPods,
    /// `cluster.taint`: the taint that keeps new pods away while a condition holds; `None` where the field is `false`.
    pub taint: Option<TaintConfig>,
    /// `cluster.formerTaintKeyPrefixes`: earlier values of `taint.keyPrefix`; the agent removes taints with these from
    /// its node.
    pub former_taint_prefixes: Vec<String>,
    /// `cluster.pauseConfigMap`, as `namespace/name`: while its entry `paused` is `true`, no agent evicts; `None` by
    /// default.
    pub pause_config_map: Option<ConfigMapName>,
    /// `cluster.serviceCIDRs`: the networks of ClusterIPs, which gates may ask only where their policy says so. Empty:
    /// the network around the address of the Service `kubernetes`.
    pub service_networks: Vec<IpNet>,
    /// `cluster.fleetBrake`: slows down and pauses evictions when many nodes evict; `None` by default.
    pub fleet_brake: Option<FleetConfig>,
    /// `cluster.tenantPolicies.maxGrace`: the agent follows PodEvictionPolicies and grants at most this grace; `None`,
    /// the default: it ignores them.
    pub tenant_grace: Option<Duration>,
}

impl ClusterConfig {
    pub(super) fn take(fields: &mut ObjectDecoder) -> Result<Option<Self>, ConfigError> {
        let Some(mut cluster) = fields.object("cluster")? else {
            return Ok(None);
        };
        let name = cluster.text("nodeName")?;
        let name = name.or_else(|| env::var(NODE_NAME).ok());
        let node_name = name.unwrap_or_default();
        if !node_name.is_empty() {
            check_node_name(&node_name)?;
        }
        let kubeconfig = cluster.absolute_path("kubeconfig")?;
        let taken = Self {
            node_name,
            admission_policies: cluster
                .boolean("admissionPolicies")?
                .unwrap_or(kubeconfig.is_none()),
            kubeconfig,
            kubelet_config: cluster.absolute_path("kubeletConfig")?,
            kubelet_config_dir: cluster.absolute_path("kubeletConfigDir")?,
            configz: cluster.boolean("configz")?.unwrap_or(false),
            soft_override_after: cluster.duration("softOverrideAfter")?,
            evicted_pods: cluster
                .choice("evictedPods", &EvictedPods::CHOICES)?
                .unwrap_or_default(),
            taint: taint::take(&mut cluster)?,
            former_taint_prefixes: taint::take_former(&mut cluster)?,
            pause_config_map: config_map(&mut cluster, "pauseConfigMap")?,
            service_networks: networks(&mut cluster, "serviceCIDRs")?,
            fleet_brake: fleet::take(&mut cluster)?,
            tenant_grace: tenant_grace(&mut cluster)?,
        };
        cluster.deny_unknown_fields()?;
        Ok(Some(taken))
    }

    /// The name of the node, for what cannot do without: a running agent, and a question to the API server about it.
    ///
    /// # Errors
    /// It is set neither here nor in the environment.
    pub fn required_node_name(&self) -> Result<&str, ConfigError> {
        check_node_name(&self.node_name)?;
        Ok(&self.node_name)
    }
}

fn check_node_name(name: &str) -> Result<(), ConfigError> {
    match is_subdomain(name) {
        true => Ok(()),
        false => {
            let reason = "must be the name of a Node; $NODE_NAME is not set to one either";
            Err(ConfigError::text("cluster.nodeName", name, reason))
        }
    }
}

fn tenant_grace(cluster: &mut ObjectDecoder) -> Result<Option<Duration>, ConfigError> {
    cluster.section("tenantPolicies", |tenants| {
        Ok(tenants.duration("maxGrace")?.unwrap_or_default())
    })
}

fn networks(cluster: &mut ObjectDecoder, field: &str) -> Result<Vec<IpNet>, ConfigError> {
    let path = cluster.path_of(field);
    let texts = cluster.texts(field)?.unwrap_or_default();
    let texts = texts.iter().enumerate();
    let parsed = texts.map(|(i, text)| {
        let reason = "must be a network such as 10.96.0.0/12";
        let wrong = |_| ConfigError::text(format!("{path}[{i}]"), text, reason);
        text.parse().map_err(wrong)
    });
    parsed.collect()
}

fn config_map(
    cluster: &mut ObjectDecoder,
    field: &str,
) -> Result<Option<ConfigMapName>, ConfigError> {
    cluster.text_as(field, |text| match text.split_once('/') {
        Some((namespace, name)) if is_subdomain(namespace) && is_subdomain(name) => {
            Ok(ConfigMapName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        }
        _ => Err("must be the namespace and the name of a ConfigMap: namespace/name"),
    })
}

/// Whether a name is an RFC 1123 subdomain: the name becomes part of URLs and selectors.
fn is_subdomain(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    name.len() <= 253
        && bytes.iter().copied().all(good)
        && ends(bytes.first())
        && ends(bytes.last())
}

/// What happens to an evicted pod's object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictedPods {
    /// The agent deletes it.
    #[default]
    Delete,
    /// Leaves the object in place, as after an eviction by the kubelet: phase `Failed`, reason `Evicted`.
    Fail,
}

impl EvictedPods {
    const CHOICES: [(&'static str, Self); 2] = [("Delete", Self::Delete), ("Fail", Self::Fail)];
}

/// The namespace and the name of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMapName {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Name of the ConfigMap.
    pub name: String,
}

impl fmt::Display for ConfigMapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Config;
    use super::*;

    fn read(cluster: Value) -> Result<ClusterConfig, String> {
        let config = Config::from_values(json!({ "cluster": cluster }), None);
        config
            .map(|c| c.cluster.expect("it is set"))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn everything_but_the_name_has_a_default() {
        let least = read(json!({"nodeName": "n2"})).expect("a configuration");
        let expected = ClusterConfig {
            node_name: "n2".into(),
            kubeconfig: None,
            kubelet_config: None,
            kubelet_config_dir: None,
            configz: false,
            admission_policies: true,
            soft_override_after: None,
            evicted_pods: EvictedPods::Delete,
            taint: Some(TaintConfig::default()),
            former_taint_prefixes: Vec::new(),
            pause_config_map: None,
            service_networks: Vec::new(),
            fleet_brake: None,
            tenant_grace: None,
        };
        assert_eq!(least, expected);
        // The admission policies know only the service account's token.
        let own = json!({"nodeName": "n2", "kubeconfig": "/k"});
        assert!(!read(own).expect("a configuration").admission_policies);
    }

    #[test]
    fn only_what_needs_the_name_refuses_its_absence() {
        let unnamed = read(json!({"nodeName": ""})).expect("a configuration");
        let error = unnamed.required_node_name().expect_err("it is missing");
        let expected = "cluster.nodeName: \"\": must be the name of a Node";
        assert!(error.to_string().starts_with(expected), "{error}");
        let named = read(json!({"nodeName": "n2"})).expect("a configuration");
        assert_eq!(named.required_node_name().expect("its name"), "n2");
        let unknown = json!({"cluster": {"nodeName": ""}, "colour": "red"});
        let error = Config::from_values(unknown, None).expect_err("an unknown field");
        assert_eq!(error.to_string(), "colour: unknown field");
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (cluster, expected) in [
            (
                json!({"nodeName": "N/2"}),
                "cluster.nodeName: \"N/2\": must be",
            ),
            (
                json!({"nodeName": "n2", "color": 1}),
                "cluster.color: unknown field",
            ),
            (
                json!({"nodeName": "n2", "softOverrideAfter": "5"}),
                "cluster.softOverrideAfter: \"5\": a unit is missing",
            ),
            (
                json!({"nodeName": "n2", "evictedPods": "Keep"}),
                "cluster.evictedPods: \"Keep\": must be one of Delete, Fail",
            ),
            (
                json!({"nodeName": "n2", "pauseConfigMap": "pause"}),
                "cluster.pauseConfigMap: \"pause\": must be the namespace and the name",
            ),
            (
                json!({"nodeName": "n2", "pauseConfigMap": "a/b/c"}),
                "cluster.pauseConfigMap: \"a/b/c\": must be the namespace and the name",
            ),
            (
                json!({"nodeName": "n2", "serviceCIDRs": ["10.96.0.0/12", "10.96.0.0"]}),
                "cluster.serviceCIDRs[1]: \"10.96.0.0\": must be a network",
            ),
            (
                json!({"nodeName": "n2", "formerTaintKeyPrefixes": ["a.example/", "kubernetes.io/"]}),
                "cluster.formerTaintKeyPrefixes[1]: \"kubernetes.io/\": must be a domain",
            ),
            (
                json!({"nodeName": "n2", "tenantPolicies": {"maxGrace": "5"}}),
                "cluster.tenantPolicies.maxGrace: \"5\": a unit is missing",
            ),
            (
                json!({"nodeName": "n2", "kubeconfig": "config"}),
                "cluster.kubeconfig: \"config\": must be an absolute path",
            ),
        ] {
            let error = read(cluster).expect_err("it is wrong");
            assert!(error.starts_with(expected), "{error}");
        }
        let both = json!({"cluster": {"nodeName": "n"}, "podManifest": "/m"});
        let error = Config::from_values(both, None).expect_err("it is wrong");
        assert!(error.to_string().starts_with("podManifest: \"/m\": cannot"));
    }
}
