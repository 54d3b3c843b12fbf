//! The DaemonSet's pod: an agent with the applied configuration, as far as it can hold for a cgroup that plays the node.

use std::{fs, io};

use serde_json::{Value, json};

use crate::{
    agent::Agent,
    apiserver::{NODE, State},
    deploy::objects,
    member::Member,
};

/// Where the manifests put it.
pub const NAMESPACE: &str = "evictd";
const NAME: &str = "evictd-x7k2p";

/// A running agent and its pod.
pub struct DaemonPod {
    agent: Option<Agent>,
}

impl DaemonPod {
    /// Makes the pod and starts the agent; one that `crashes` ends before it watches.
    pub fn start(member: &Member, crashes: bool) -> Self {
        let pod = json!({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "uid": Member::uid(1),
                "labels": {"app.kubernetes.io/name": "evictd"},
            },
            "spec": {
                "containers": [{"name": "evictd", "image": "evictd"}],
                "nodeName": NODE,
                "priority": 2_000_001_000,
            },
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        });
        member.server.state().put_pod(pod);
        let started = configure(member, crashes).and_then(|path| Agent::start(&path, &[]));
        let (status, log) = match &started {
            Ok(agent) => (
                json!({"ready": true, "state": {"running": {}}}),
                agent.log(),
            ),
            Err(error) => (
                json!({"ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}),
                error.to_string(),
            ),
        };
        tell(&mut member.server.state(), &status);
        let pod = Self {
            agent: started.ok(),
        };
        keep(&mut member.server.state(), log);
        pod
    }

    /// Hands its log on.
    pub fn look(&self, member: &Member) {
        if let Some(agent) = &self.agent {
            keep(&mut member.server.state(), agent.log());
        }
    }

    /// Ends it as the kubelet does, or without any notice.
    pub fn end(mut self, member: &Member, cleanly: bool) {
        if let Some(agent) = self.agent.as_mut().filter(|_| cleanly) {
            // Whatever its exit code is, it is gone.
            let _ = agent.terminate();
        }
        self.agent = None;
        let mut state = member.server.state();
        state.others.remove(&log_path());
        state.remove_pod(NAMESPACE, NAME);
    }
}

fn log_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{NAME}/log")
}

fn keep(state: &mut State, log: String) {
    state.others.insert(log_path(), Value::String(log));
}

fn tell(state: &mut State, container: &Value) {
    let key = (NAMESPACE.to_owned(), NAME.to_owned());
    if let Some(mut pod) = state.pods.get(&key).cloned() {
        let mut status = json!({"name": "evictd", "image": "i", "imageID": "", "restartCount": 0});
        for (field, value) in container.as_object().into_iter().flatten() {
            status[field] = value.clone();
        }
        pod["status"]["phase"] = "Running".into();
        pod["status"]["containerStatuses"] = json!([status]);
        state.put_pod(pod);
    }
}

/// The ConfigMap's file, with what a cgroup that plays the node needs instead of the machine.
fn configure(member: &Member, crashes: bool) -> io::Result<std::path::PathBuf> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/evictd");
    let map = member
        .server
        .state()
        .others
        .get(&path)
        .cloned()
        .unwrap_or_default();
    let text = map["data"]["config.yaml"].as_str().unwrap_or_default();
    let mut config = objects(text)?.pop().unwrap_or_default();
    for (field, value) in member.config.as_object().into_iter().flatten() {
        match (field.as_str(), value.as_object()) {
            // What was applied is what is tried.
            ("evictionHard", _) => {}
            ("cluster", Some(parts)) => {
                for (part, value) in parts {
                    config["cluster"][part] = value.clone();
                }
            }
            _ => config[field] = value.clone(),
        }
    }
    if let Some(config) = config.as_object_mut() {
        config.remove("metricsAddress");
        config.remove("healthAddress");
        config.remove("filesystems");
    }
    if crashes {
        config["evictionHard"] = json!({"memory.available": "much"});
    }
    let path = member.dir().join("applied.json");
    fs::write(&path, config.to_string())?;
    Ok(path)
}
