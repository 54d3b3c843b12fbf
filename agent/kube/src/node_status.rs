//! What the Node says: conditions of evictd's own, and a taint that leads new pods elsewhere.
//!
//! The kubelet owns `MemoryPressure`, `DiskPressure` and `PIDPressure`: it writes them with every heartbeat, from its own
//! polling, so that any other value would be overwritten within seconds, and the node controller derives its own
//! taints from them. evictd therefore has types (`EvictdMemoryPressure`, ...) and taint keys (`evictd.dev/memory-pressure`,
//! ...) of its own: nothing else writes them, and the kubelet and the node controller leave what they do not know alone.
//!
//! Kubernetes adds tolerations for the kubelet's taints to pods by itself: of memory pressure to all that are not BestEffort,
//! of all three to those of DaemonSets. It knows no other taints. With the effect `NoSchedule` evictd's would keep away pods that
//! the kubelet's lets in; so it is `PreferNoSchedule` unless the configuration says otherwise.
//!
//! At rest there is neither: nothing needs to be written for a node that is well. Conditions are patched by type.
//! Taints are one atomic list: applying one (server-side apply with force) takes all others away, as the recording
//! of a real server shows. So the list is read, changed, and written back under the condition that the node has not changed
//! in between.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use evictd_config::{DEFAULT_TAINT_PREFIX, TaintConfig};
use evictd_engine::NodeCondition;
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::client::{ApiClient, ApiError, ApiRequest, JSON, MERGE, STRATEGIC_MERGE};
pub use taints::Taints;

mod taints;

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
    /// Those of them whose thresholds are met at this moment.
    pub pressed: BTreeSet<NodeCondition>,
    /// Why, for people.
    pub message: String,
}

/// What an agent before this one has left on the node: it ended without cleaning up. Why it was set, and since when, is not
/// knows any more, so that it stays for a whole transition period.
#[derive(Clone, Debug)]
pub struct StaleConditions {
    /// The conditions, with or without their taint.
    pub conditions: BTreeSet<NodeCondition>,
    /// Those with a taint.
    pub taints: BTreeSet<NodeCondition>,
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
    taint: Option<TaintConfig>,
}

/// The condition's type.
pub fn condition_type(condition: NodeCondition) -> String {
    format!("Evictd{condition}")
}

/// The taint's key behind its prefix.
fn taint_name(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::DiskPressure => "disk-pressure",
        NodeCondition::MemoryPressure => "memory-pressure",
        NodeCondition::PidPressure => "pid-pressure",
    }
}

impl NodeWriter {
    /// A writer to the Node of this name; without `taint` it sets conditions only.
    pub fn new(connection: Arc<ApiClient>, node: &str, taint: Option<TaintConfig>) -> Self {
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

    /// The condition that a taint of this key stands for, if it is one of ours: the default prefix is, whatever is configured now.
    fn condition_of(&self, key: &str) -> Option<NodeCondition> {
        let configured = self.taint.as_ref().map(|taint| taint.key_prefix.as_str());
        let prefixes = configured.into_iter().chain([DEFAULT_TAINT_PREFIX]);
        let names: Vec<&str> = prefixes.filter_map(|p| key.strip_prefix(p)).collect();
        ALL.into_iter().find(|c| names.contains(&taint_name(*c)))
    }

    /// The conditions of an agent before this one that are still on the node, and those of them with a taint.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn left_over(
        &self,
    ) -> Result<(BTreeSet<NodeCondition>, BTreeSet<NodeCondition>), ApiError> {
        let node = self.read().await?;
        let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let taints = items(&node["spec"]["taints"]).into_iter();
        let taints: BTreeSet<_> = taints
            .filter_map(|t| self.condition_of(t["key"].as_str()?))
            .collect();
        let conditions = items(&node["status"]["conditions"]);
        let is_there = |c: &NodeCondition| {
            taints.contains(c) || conditions.iter().any(|i| i["type"] == condition_type(*c))
        };
        Ok((ALL.into_iter().filter(is_there).collect(), taints))
    }

    /// Makes the conditions what is wanted; `before` are those that are there.
    async fn write_conditions(
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
        let body = json!({"status": {"conditions": conditions}});
        let call = ApiRequest::new(Method::PATCH, self.path("/status"), STRATEGIC_MERGE, &body);
        self.connection.call(&call).await.map(drop)
    }

    /// Makes our taints those of these conditions.
    async fn write_taints(
        &self,
        taint: &TaintConfig,
        wanted: &BTreeSet<NodeCondition>,
    ) -> Result<(), ApiError> {
        let mut last = ApiError::Unanswered("the node changes too fast".to_owned());
        for _ in 0..CONFLICTS {
            let node = self.read().await?;
            let old = node["spec"]["taints"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_ours = |taint: &Value| {
                let key = taint["key"].as_str().unwrap_or_default();
                self.condition_of(key).is_some()
            };
            let mut new: Vec<Value> = old.iter().filter(|t| !is_ours(t)).cloned().collect();
            let ours = |c: &NodeCondition| {
                let key = format!("{}{}", taint.key_prefix, taint_name(*c));
                json!({"key": key, "effect": taint.effect.as_str()})
            };
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

    /// Keeps the node as it is wanted until the sender is gone. What holds then stays: an upgrade under pressure is not the end of
    /// the pressure, and the next agent takes it over. Starts from what the node says already, and takes that away when its time is
    /// over, whether or not anything else happens.
    pub async fn run(self, mut left: StaleConditions, mut wanted: watch::Receiver<DesiredStatus>) {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(PAUSES.0)
            .with_max_delay(PAUSES.1)
            .with_jitter()
            .without_max_times();
        let mut backoff = pauses.build();
        let (mut before, mut tainted) = (left.conditions.clone(), left.taints.clone());
        let times = self.taint.as_ref().map(|t| (t.set_after, t.remove_after));
        let (set_after, remove_after) = times.unwrap_or_default();
        let mut taints = Taints::new(set_after, remove_after, &left.taints);
        let (mut ending, mut unsure) = (false, false);
        loop {
            let mut target = wanted.borrow_and_update().clone();
            target.conditions.extend(left.now());
            let (set, next) = taints.update(Instant::now(), &target);
            if target.conditions == before && set == tainted && !unsure {
                if ending {
                    return;
                }
                let due = async {
                    match next {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = wanted.changed() => ending = changed.is_err(),
                    () = left.over() => {}
                    () = due => {}
                }
                continue;
            }
            let written = async {
                if let Some(taint) = self.taint.as_ref().filter(|_| set != tainted || unsure) {
                    self.write_taints(taint, &set).await?;
                }
                if target.conditions != before || unsure {
                    self.write_conditions(&before, &target).await?;
                }
                Ok::<_, ApiError>(())
            };
            match written.await {
                Ok(()) => {
                    let names = |set: &BTreeSet<NodeCondition>| {
                        let names: Vec<&str> = set.iter().map(|c| c.as_str()).collect();
                        names.join(",")
                    };
                    let (conditions, taints) = (names(&target.conditions), names(&set));
                    tracing::info!(conditions, taints, "the node says so");
                    (before, tainted) = (target.conditions, set);
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
