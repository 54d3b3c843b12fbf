//! What the Node says: conditions of evictd's own, and a taint that keeps new pods away.
//!
//! The kubelet owns `MemoryPressure`, `DiskPressure` and `PIDPressure`: it writes them with every heartbeat, from its own
//! polling, so that the value of another writer would be overwritten within seconds, and the node controller derives its own
//! taints from them. evictd therefore has types (`EvictdMemoryPressure`, ...) and taint keys (`evictd.dev/memory-pressure`,
//! ...) of its own: no other component writes them, and the kubelet and the node controller leave what they do not know alone.
//! Every pod needs a toleration to pass such a taint, those of DaemonSets too: that is what ends their ping-pong.
//!
//! At rest there is neither: nothing needs to be written for a node that is well. Conditions are patched by type.
//! Taints are one atomic list: applying one (server-side apply with force) takes those of others away, as the recording
//! of a real server shows. So the list is read, changed, and written back under the condition that no other writer has changed
//! the node in between.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use evictd_engine::NodeCondition;
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::client::{ApiClient, ApiError, ApiRequest, JSON, MERGE, STRATEGIC_MERGE};

/// Attempts at the list of taints before a pause.
const CONFLICTS: usize = 5;
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
const ALL: [NodeCondition; 3] = [
    NodeCondition::DiskPressure,
    NodeCondition::MemoryPressure,
    NodeCondition::PidPressure,
];

/// What the node should say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredStatus {
    /// The conditions that hold.
    pub conditions: BTreeSet<NodeCondition>,
    /// Why, for people.
    pub message: String,
}

/// What an agent before this one has left on the node: it ended without cleaning up. Why it was set, and since when, is not
/// knows any more, so that it stays for a whole transition period.
#[derive(Clone, Debug)]
pub struct StaleConditions {
    /// The conditions, with or without their taint.
    pub conditions: BTreeSet<NodeCondition>,
    /// When its time is over.
    pub until: Instant,
}

impl StaleConditions {
    /// What still has to stay.
    fn now(&mut self) -> &BTreeSet<NodeCondition> {
        if Instant::now() >= self.until {
            self.conditions.clear();
        }
        &self.conditions
    }

    /// Ends when its time is over; never where nothing is left.
    async fn over(&self) {
        if self.conditions.is_empty() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(self.until).await;
    }
}

/// Writes to one Node.
pub struct NodeWriter {
    connection: Arc<ApiClient>,
    node: String,
    taint: bool,
}

/// The condition's type.
pub fn condition_type(condition: NodeCondition) -> String {
    format!("Evictd{condition}")
}

/// The taint's key.
pub fn taint_key(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "evictd.dev/disk-pressure",
        NodeCondition::MemoryPressure => "evictd.dev/memory-pressure",
        NodeCondition::PidPressure => "evictd.dev/pid-pressure",
    }
}

impl NodeWriter {
    /// A writer to the Node of this name; without `taint` it sets conditions only.
    pub fn new(connection: Arc<ApiClient>, node: &str, taint: bool) -> Self {
        Self {
            connection,
            node: node.to_owned(),
            taint,
        }
    }

    fn path(&self, subresource: &str) -> String {
        format!("/api/v1/nodes/{}{subresource}", self.node)
    }

    async fn read(&self) -> Result<Value, ApiError> {
        let call = ApiRequest::new(Method::GET, self.path(""), JSON, &Value::Null);
        self.connection.call(&call).await
    }

    /// The conditions of an agent before this one that are still on the node.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn left_over(&self) -> Result<BTreeSet<NodeCondition>, ApiError> {
        let node = self.read().await?;
        let has = |list: &Value, field: &str, value: &str| {
            let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().any(|item| item[field] == value)
        };
        let left = ALL.into_iter().filter(|c| {
            has(&node["status"]["conditions"], "type", &condition_type(*c))
                || has(&node["spec"]["taints"], "key", taint_key(*c))
        });
        Ok(left.collect())
    }

    /// Makes the node say what is wanted; `before` is what it says.
    ///
    /// # Errors
    /// No answer, or a refusal. Doing it again is harmless.
    pub async fn write(
        &self,
        before: &BTreeSet<NodeCondition>,
        wanted: &DesiredStatus,
    ) -> Result<(), ApiError> {
        let touched = before.union(&wanted.conditions);
        let now = format!("{:.0}", jiff::Timestamp::now());
        let conditions: Vec<Value> = touched
            .map(|c| {
                let kind = condition_type(*c);
                if !wanted.conditions.contains(c) {
                    return json!({"$patch": "delete", "type": kind});
                }
                let mut condition = json!({
                    "type": kind,
                    "status": "True",
                    "reason": "ThresholdMet",
                    "message": wanted.message,
                    "lastHeartbeatTime": now,
                });
                if !before.contains(c) {
                    condition["lastTransitionTime"] = now.clone().into();
                }
                condition
            })
            .collect();
        if conditions.is_empty() {
            return Ok(());
        }
        if self.taint {
            self.write_taints(&wanted.conditions).await?;
        }
        let body = json!({"status": {"conditions": conditions}});
        let call = ApiRequest::new(Method::PATCH, self.path("/status"), STRATEGIC_MERGE, &body);
        self.connection.call(&call).await.map(drop)
    }

    async fn write_taints(&self, wanted: &BTreeSet<NodeCondition>) -> Result<(), ApiError> {
        let mut last = ApiError::Unanswered("the node changes too fast".to_owned());
        for _ in 0..CONFLICTS {
            let node = self.read().await?;
            let old = node["spec"]["taints"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_ours = |taint: &Value| ALL.iter().any(|c| taint["key"] == taint_key(*c));
            let mut new: Vec<Value> = old.iter().filter(|t| !is_ours(t)).cloned().collect();
            let ours = |c: &NodeCondition| json!({"key": taint_key(*c), "effect": "NoSchedule"});
            new.extend(wanted.iter().map(ours));
            if new == old {
                return Ok(());
            }
            let body = json!({
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": if new.is_empty() { Value::Null } else { new.into() }},
            });
            let call = ApiRequest::new(Method::PATCH, self.path(""), MERGE, &body);
            match self.connection.call(&call).await {
                Err(e) if e.code() == 409 => last = e,
                answer => return answer.map(drop),
            }
        }
        Err(last)
    }

    /// Keeps the node as it is wanted until the sender is gone; then takes everything away and ends. Starts from what the
    /// node says already, and takes that away when its time is over, without a trigger from outside.
    pub async fn run(self, mut left: StaleConditions, mut wanted: watch::Receiver<DesiredStatus>) {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(PAUSES.0)
            .with_max_delay(PAUSES.1)
            .with_jitter()
            .without_max_times();
        let mut backoff = pauses.build();
        let mut before = left.conditions.clone();
        let (mut ending, mut unsure) = (false, false);
        loop {
            let mut target = DesiredStatus::default();
            if !ending {
                target = wanted.borrow_and_update().clone();
                target.conditions.extend(left.now());
            }
            if target.conditions == before && !unsure {
                if ending {
                    return;
                }
                tokio::select! {
                    changed = wanted.changed() => ending = changed.is_err(),
                    () = left.over() => {}
                }
                continue;
            }
            match self.write(&before, &target).await {
                Ok(()) => {
                    let names: Vec<&str> = target.conditions.iter().map(|c| c.as_str()).collect();
                    tracing::info!(conditions = names.join(","), "the node says so");
                    before = target.conditions;
                    unsure = false;
                    backoff = pauses.build();
                }
                Err(error) => {
                    tracing::warn!(%error, "the node cannot be written");
                    // A write may have been carried out although its answer was lost.
                    before.extend(&target.conditions);
                    unsure = true;
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next().unwrap_or(PAUSES.1)) => {}
                        changed = wanted.changed(), if !ending => ending = changed.is_err(),
                    }
                }
            }
        }
    }
}
