//! `kubectl evictd explain`: what the agent of a pod's node knows of the pod.

use evictd_kube::fleet_client::{FleetClient, FleetError};
use serde_json::{Value, json};

use super::{json_of, word};
use crate::cli::{
    CommandError, INSTALLED, OutputFormat, policy,
    table::{bytes, or_dash},
    to_json,
};

/// What an agent knows of one of its pods.
struct ExplainedPod {
    pod: String,
    node: String,
    /// Place of the pod in the order of eviction, from 0 on.
    place: usize,
    /// Entry of the pod in what `evictd top` prints.
    top: Value,
    /// The output of `evictd policy explain`, or its error: an agent without policies has nothing to explain.
    policies: Result<Value, String>,
}

pub(super) async fn pod(
    fleet: &FleetClient,
    namespace: &str,
    name: &str,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let explained = ExplainedPod::ask(fleet, namespace, name).await?;
    match output {
        OutputFormat::Json => explained.json(),
        OutputFormat::Table => Ok(explained.text()),
    }
}

impl ExplainedPod {
    async fn ask(fleet: &FleetClient, namespace: &str, name: &str) -> Result<Self, FleetError> {
        let pod = format!("{namespace}/{name}");
        let node = fleet.node_of(namespace, name).await?;
        let agent = fleet.agent_on(&node).await?;
        let top = ["top", "--once", "--interval", "0.5", "-o", "json"];
        let top = json_of(&agent, &fleet.ask(&agent, &top).await?)?;
        let policies = [
            "policy", "explain", &pod, "--config", INSTALLED, "-o", "json",
        ];
        let policies = fleet.ask(&agent, &policies).await;
        let place = pods_of(&top).iter().position(|other| other["pod"] == pod);
        let Some(place) = place else {
            let reason = format!("the agent on {node} does not see it");
            return Err(FleetError::Missing { what: pod, reason });
        };
        let policies = match policies {
            Ok(text) => Ok(json_of(&agent, &text)?),
            Err(FleetError::Agent { reason, .. }) => Err(reason),
            Err(error) => return Err(error),
        };
        Ok(Self {
            pod,
            node,
            place,
            top,
            policies,
        })
    }

    fn json(&self) -> Result<String, CommandError> {
        to_json(&json!({
            "pod": self.top["pods"][self.place], "node": self.node, "place": self.place + 1,
            "of": pods_of(&self.top).len(),
            "signals": self.top["signals"], "policies": self.policies.as_ref().ok(),
            "policiesUnknown": self.top["policiesUnknown"],
        }))
    }

    fn text(&self) -> String {
        let found = &self.top["pods"][self.place];
        let amount = |field: &str| or_dash(found[field].as_u64().map(|n| bytes(n.into())));
        let mut text = format!(
            "{} on {}: {} of {} in the order of eviction for memory\n\
             uses {}, has requested {}, priority {}, {}\n",
            self.pod,
            self.node,
            self.place + 1,
            pods_of(&self.top).len(),
            amount("usage"),
            amount("request"),
            found["priority"],
            found["qosClass"].as_str().unwrap_or_default(),
        );
        let is = |field: &str| found[field] == true;
        let notes = [
            ("predictedEvictionVictim", "it would be evicted first"),
            ("predictedOomVictim", "the OOM killer would choose it"),
            ("protected", "it is protected: evictd never evicts it"),
        ];
        for (_, note) in notes.into_iter().filter(|(field, _)| is(field)) {
            text += &format!("{note}\n");
        }
        if let Some(seconds) = found["untilLimitSeconds"].as_f64() {
            text += &format!("at its present growth it meets its own limit in {seconds:.0} s\n");
        }
        if self.top["policiesUnknown"] == true {
            text +=
                "the agent does not answer now: policies are as they were, and not in this order\n";
        }
        match &self.policies {
            Err(reason) => text += &format!("policies: {reason}\n"),
            Ok(pods) => {
                let pods = pods.as_array().into_iter().flatten();
                text.extend(pods.map(words_of_policies));
            }
        }
        text
    }
}

fn pods_of(top: &Value) -> &[Value] {
    top["pods"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Describes whether policies let a pod go, with each of their rules.
fn words_of_policies(pod: &Value) -> String {
    let mut text = match (pod["mayGo"] == true, pod["reason"].as_str()) {
        (true, _) => "policies: it may be evicted now\n".to_owned(),
        (false, Some(why)) => format!("policies: its eviction is denied: {why}\n"),
        (false, None) => "policies: its eviction is denied\n".to_owned(),
    };
    for rule in pod["rules"].as_array().into_iter().flatten() {
        let says = if rule["saysYes"] == true { "yes" } else { "no" };
        let shadow = match rule["shadow"] == true {
            true => policy::SHADOW,
            false => "",
        };
        let (rule, evict) = (word(rule, "rule"), word(rule, "evict"));
        text += &format!("  rule {rule}{shadow}: {evict}: {says}\n");
    }
    text
}
