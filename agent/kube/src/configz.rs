//! The eviction settings of the running kubelet, from its `/configz` through the API server's node proxy.
//!
//! Only where `cluster.configz` asks for it: the right to `get nodes/proxy` opens all of the kubelet's API.

use std::time::Duration;

use evictd_config::{ClusterConfig, Config};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    backoff::Backoff,
    client::{ApiClient, ApiRequest},
};

/// The shortest and the longest delay between two requests for what has not been answered. The right to ask may be missing
/// on every node of a large cluster.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// Time after an answer until the kubelet is asked again: it is the kubelets' settings of a whole cluster that pass the API
/// server.
const INTERVAL: Duration = Duration::from_secs(600);

/// The KubeletConfiguration of this node, where it comes in time; `None` where it is not wanted, or where a file has it
/// already.
///
/// # Errors
/// Why there is no answer, in one line: then the file and the kubelet's defaults hold.
pub fn ask(config: &Config, has_file: bool, patience: Duration) -> Result<Option<Value>, String> {
    let wanted = config.cluster.as_ref().filter(|cluster| cluster.configz);
    let Some(cluster) = wanted.filter(|_| !has_file) else {
        return Ok(None);
    };
    // Gone before the agent's own runtime runs anything.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let answer = runtime.block_on(async { timeout(patience, configz(cluster)).await });
    // A name that is still looked up would be waited for.
    runtime.shutdown_background();
    let late = |_| Err(format!("no answer within {patience:?}"));
    answer.unwrap_or_else(late).map(Some)
}

/// The same for an agent that runs: asks again and again, and hands each answer to `take`. The kubelet may be started again
/// with other settings. `is_urgent`: there is no answer yet.
pub async fn follow(cluster: ClusterConfig, is_urgent: bool, take: impl Fn(Value) + Send) {
    if !is_urgent {
        tokio::time::sleep(INTERVAL).await;
    }
    loop {
        take(ask_until_answered(&cluster).await);
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn ask_until_answered(cluster: &ClusterConfig) -> Value {
    let mut backoff = Backoff::new(RETRY_DELAYS);
    loop {
        tokio::time::sleep(backoff.next_delay()).await;
        match configz(cluster).await {
            Ok(answer) => return answer,
            Err(error) => tracing::debug!(error, "the kubelet's /configz cannot be read yet"),
        }
    }
}

async fn configz(cluster: &ClusterConfig) -> Result<Value, String> {
    let name = cluster.required_node_name().map_err(|e| e.to_string())?;
    let client = ApiClient::open(cluster.kubeconfig.clone()).await;
    let client = client.map_err(|error| error.to_string())?;
    let path = format!("/api/v1/nodes/{name}/proxy/configz");
    let answer = client.call(&ApiRequest::get(path)).await;
    let mut answer: Value = answer.map_err(|error| error.to_string())?;
    match answer["kubeletconfig"].take() {
        config @ Value::Object(_) => Ok(config),
        _ => Err("it has no kubeletconfig".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, time::Instant};

    use serde_json::json;

    use super::*;
    use crate::client::PATIENCE_AT_START;

    #[test]
    fn a_server_that_does_not_answer_holds_up_no_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let kubeconfig = dir.path().join("kubeconfig");
        // Connections wait in its queue.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let server = format!("http://{}", silent.local_addr().expect("an address"));
        let written = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        fs::write(&kubeconfig, written.to_string()).expect("a file");
        let cluster = json!({"nodeName": "n1", "kubeconfig": kubeconfig, "configz": true});
        let config = Config::from_values(json!({ "cluster": cluster }), None);
        let config = config.expect("a configuration");
        let begun = Instant::now();
        let error = ask(&config, false, PATIENCE_AT_START).expect_err("it is silent");
        assert_eq!(error, "no answer within 500ms");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
