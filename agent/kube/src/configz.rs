//! The eviction settings of the running kubelet, from its `/configz` through the API server's node proxy.
//!
//! Only where `cluster.configz` asks for it: the right to `get nodes/proxy` opens all of the kubelet's API.

use evictd_config::Config;
use http::Method;
use serde_json::Value;

use super::client::{ApiClient, ApiRequest, JSON};
use crate::session::StartError;

/// The KubeletConfiguration of this node; `None` where it is not wanted, where a file has it already, or where the
/// kubelet does not answer: then evictd's own file and the kubelet's defaults hold, and that is logged.
///
/// # Errors
/// A kubeconfig that cannot be used.
pub fn ask(config: &Config, has_file: bool) -> Result<Option<Value>, StartError> {
    let wanted = config.cluster.as_ref().filter(|cluster| cluster.configz);
    let Some(cluster) = wanted.filter(|_| !has_file) else {
        return Ok(None);
    };
    // Gone before the agent's own runtime starts.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = ApiClient::open(cluster.kubeconfig.clone()).await?;
        let path = format!("/api/v1/nodes/{}/proxy/configz", cluster.node_name);
        let request = ApiRequest::new(Method::GET, path, JSON, &Value::Null);
        match client.call(&request).await {
            Ok(mut answer) if answer["kubeletconfig"].is_object() => {
                Ok(Some(answer["kubeletconfig"].take()))
            }
            Ok(_) => {
                tracing::warn!("the kubelet's /configz has no kubeletconfig: it is left alone");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%error, "the kubelet's /configz cannot be read: the file and the defaults hold");
                Ok(None)
            }
        }
    })
}
