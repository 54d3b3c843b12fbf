//! The addresses of the cluster itself, from which gates are kept: the networks of ClusterIPs and the API server's
//! endpoints. In a pod its URL is a ClusterIP, and the control plane's own addresses are behind it.
//!
//! They are read only while gates ask servers. What cannot be read is as it was before, or as the surroundings of the
//! Service `kubernetes` suggest.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use evictd_policy::PolicyEvaluator;
use ipnet::IpNet;
use serde_json::Value;

use crate::client::{ApiClient, ApiError, ApiRequest, DEADLINE};

/// Interval at which the addresses are read again; a server that does not answer is asked sooner.
pub const REFRESH: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(30);
/// Gates wait for the first answer, and for no longer than this: half of a gate's own timeout by default.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Objects of networking.k8s.io/v1 since Kubernetes 1.33.
const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
/// Path of the EndpointSlice with the API server's own addresses.
const ENDPOINTS: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

/// Keeps them up to date for ever. Networks that are `configured` are those of ClusterIPs, and none is asked for.
pub async fn run(
    client: Arc<ApiClient>,
    evaluator: Arc<PolicyEvaluator>,
    configured: Vec<IpNet>,
    refresh: Duration,
) {
    let assumed = client.cluster_addresses(&configured);
    let mut known = assumed.clone();
    let mut deadline = FIRST_ANSWER;
    let [mut services, mut endpoints] = [SERVICE_CIDRS, ENDPOINTS].map(Source::new);
    loop {
        evaluator.cluster_addresses_wanted().await;
        let networks = async {
            match configured.is_empty() {
                true => services.read(&client, deadline).await,
                false => Found::Nothing,
            }
        };
        let (networks, servers) =
            futures::future::join(networks, endpoints.read(&client, deadline)).await;
        let is_late = [&networks, &servers].contains(&&Found::Late);
        if let Found::Object(list) = networks {
            known.services = networks_of(&list);
            known.assumed_services = match known.services.is_empty() {
                true => assumed.assumed_services.clone(),
                false => Vec::new(),
            };
        }
        if let Found::Object(slice) = servers {
            known.endpoints = endpoints_of(&slice);
        }
        evaluator.set_cluster_addresses(known.clone());
        deadline = DEADLINE;
        let pause = if is_late { refresh.min(RETRY) } else { refresh };
        // Agents that have started together do not ask together.
        tokio::time::sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// Outcome of a read.
#[derive(PartialEq)]
enum Found {
    Object(Value),
    /// There is no such object, or no right to it.
    Nothing,
    /// The server may answer later.
    Late,
}

/// An object that is read again and again.
struct Source {
    path: &'static str,
    /// Whether it was logged that it cannot be read.
    is_said: bool,
}

impl Source {
    fn new(path: &'static str) -> Self {
        Self {
            path,
            is_said: false,
        }
    }

    async fn read(&mut self, client: &ApiClient, deadline: Duration) -> Found {
        // From the API server's cache.
        let path = format!("{}?resourceVersion=0", self.path);
        let request = ApiRequest {
            deadline,
            ..ApiRequest::get(path)
        };
        match client.call(&request).await {
            Ok(object) => {
                self.is_said = false;
                Found::Object(object)
            }
            Err(error) => {
                self.say(&error);
                match error.is_retryable() {
                    true => Found::Late,
                    false => Found::Nothing,
                }
            }
        }
    }

    fn say(&mut self, error: &ApiError) {
        // A server before 1.33 has no ServiceCIDRs.
        let is_old = error.code() == 404 && self.path == SERVICE_CIDRS;
        if !std::mem::replace(&mut self.is_said, true) && !is_old {
            tracing::warn!(
                path = self.path, %error,
                "the cluster's own addresses cannot be read: gates are kept from those that are known"
            );
        }
    }
}

/// The networks of a list of ServiceCIDRs.
fn networks_of(list: &Value) -> Vec<IpNet> {
    let items = list["items"].as_array().into_iter().flatten();
    let networks = items.flat_map(|item| item["spec"]["cidrs"].as_array().into_iter().flatten());
    networks
        .filter_map(|network| network.as_str()?.parse().ok())
        .collect()
}

/// The addresses of an EndpointSlice, each with each of its ports.
fn endpoints_of(slice: &Value) -> Vec<SocketAddr> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let ports = list(&slice["ports"]);
    let ports = ports
        .iter()
        .filter_map(|p| p["port"].as_u64()?.try_into().ok());
    let ports: Vec<u16> = ports.collect();
    let endpoints = list(&slice["endpoints"]);
    let addresses = endpoints.iter().flat_map(|e| list(&e["addresses"]));
    let addresses = addresses.filter_map(|a| a.as_str()?.parse::<IpAddr>().ok());
    let both = addresses.flat_map(|a| ports.iter().map(move |port| (a.to_canonical(), *port)));
    both.map(SocketAddr::from).collect()
}
