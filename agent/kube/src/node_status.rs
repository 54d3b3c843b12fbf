//! What the Node says: conditions of evictd's own, and a taint that leads new pods elsewhere.
//!
//! The kubelet owns `MemoryPressure`, `DiskPressure` and `PIDPressure`: it writes them with every heartbeat, from its
//! own polling, so that any other value would be overwritten within seconds, and the node controller derives its own
//! taints from them. evictd therefore has types (`EvictdMemoryPressure`, ...) and taint keys
//! (`evictd.dev/memory-pressure`, ...) of its own: nothing else writes them, and the kubelet and the node controller
//! leave what they do not know alone.
//!
//! Kubernetes adds tolerations for the kubelet's taints to pods by itself: of memory pressure to all that are not
//! BestEffort, of all three to those of DaemonSets. It knows no other taints. With the effect `NoSchedule` evictd's
//! would keep away pods that the kubelet's lets in; so it is `PreferNoSchedule` unless the configuration says
//! otherwise.
//!
//! At rest there is neither: nothing needs to be written for a node that is well. Conditions are patched by type.
//! Taints are one atomic list: applying one (server-side apply with force) takes all others away, as the recording
//! of a real server shows. So the list is read, changed, and written back under the condition that the node has not
//! changed in between.
//!
//! In shadow mode the Node stays as it is. When that is over it is read again: what stands there is taken over like
//! what an agent before has left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use evictd_config::{DEFAULT_TAINT_PREFIX, TaintConfig};
use evictd_engine::{NodeCondition, NodeState};
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    backoff::Backoff,
    client::{ApiClient, ApiError, ApiRequest, MERGE, STRATEGIC_MERGE},
};
pub use taints::Taints;

mod taints;

/// Attempts at the list of taints before a pause.
const CONFLICTS: usize = 5;
/// First and longest delay after a failure.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A taint of evictd's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnTaint {
    /// Prefix and name.
    pub key: String,
    /// Effect of the taint on pods that do not tolerate it.
    pub effect: String,
}

/// Conditions and taints that are on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviousStatus {
    /// The conditions.
    pub conditions: BTreeSet<NodeCondition>,
    /// The taints, also those that this configuration would write with another key or effect.
    pub taints: BTreeSet<OwnTaint>,
}

impl PreviousStatus {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.taints.is_empty()
    }
}

/// What an agent before this one has left on the node: it ended without cleaning up. Why it was set, and since when, is
/// not known any more, so that conditions stay for a whole transition period.
#[derive(Clone, Debug)]
pub struct StaleConditions {
    /// The conditions.
    pub conditions: BTreeSet<NodeCondition>,
    /// The taints, each for as long as its condition is there.
    pub taints: BTreeSet<OwnTaint>,
    /// End of the time for which the conditions stay.
    pub until: Instant,
}

impl StaleConditions {
    /// Conditions that were found, and stay for `stay` from now.
    pub fn new(there: PreviousStatus, stay: Duration) -> Self {
        Self {
            conditions: there.conditions,
            taints: there.taints,
            until: Instant::now() + stay,
        }
    }

    /// Conditions that still have to stay.
    fn now(&mut self) -> &BTreeSet<NodeCondition> {
        if Instant::now() >= self.until {
            self.conditions.clear();
        }
        &self.conditions
    }

    /// The end of its time; `None` where nothing is left.
    fn end(&self) -> Option<Instant> {
        (!self.conditions.is_empty()).then_some(self.until)
    }
}

/// Writes to one Node.
pub struct NodeWriter {
    client: Arc<ApiClient>,
    node: String,
    taint: Option<TaintConfig>,
    /// Prefixes of taints that an earlier configuration may have left.
    former_prefixes: Vec<String>,
    repeat: Duration,
}

/// The condition's type.
fn condition_type(condition: NodeCondition) -> String {
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
    /// A writer to the Node of this name; without `taint` it sets conditions only, and takes away the taints that are
    /// there. What holds is written again after each `repeat`.
    pub fn new(
        client: Arc<ApiClient>,
        node: &str,
        taint: Option<TaintConfig>,
        former_prefixes: Vec<String>,
        repeat: Duration,
    ) -> Self {
        Self {
            client,
            node: node.to_owned(),
            taint,
            former_prefixes,
            repeat,
        }
    }

    fn path(&self, subresource: &str) -> String {
        format!("/api/v1/nodes/{}{subresource}", self.node)
    }

    async fn read(&self) -> Result<Value, ApiError> {
        self.client.call(&ApiRequest::get(self.path(""))).await
    }

    /// The condition that a taint of this key stands for, if it is one of ours: the default prefix is, whatever is
    /// configured now. The chart's admission policy allows the same prefixes.
    fn condition_of(&self, key: &str) -> Option<NodeCondition> {
        let configured = self.taint.as_ref().map(|taint| taint.key_prefix.as_str());
        let former = self.former_prefixes.iter().map(String::as_str);
        let prefixes = configured
            .into_iter()
            .chain([DEFAULT_TAINT_PREFIX])
            .chain(former);
        let names: Vec<&str> = prefixes.filter_map(|p| key.strip_prefix(p)).collect();
        NodeCondition::ALL
            .into_iter()
            .find(|c| names.contains(&taint_name(*c)))
    }

    /// The taints of these conditions, as the configuration wants them.
    fn taints_of(&self, conditions: &BTreeSet<NodeCondition>) -> BTreeSet<OwnTaint> {
        let of = |taint: &TaintConfig| {
            let one = |condition: &NodeCondition| OwnTaint {
                key: format!("{}{}", taint.key_prefix, taint_name(*condition)),
                effect: taint.effect.as_str().to_owned(),
            };
            conditions.iter().map(one).collect()
        };
        self.taint.as_ref().map(of).unwrap_or_default()
    }

    /// Reads the conditions and taints that an agent before this one has left on the node.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn previous_status(&self) -> Result<PreviousStatus, ApiError> {
        let node = self.read().await?;
        let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let conditions = items(&node["status"]["conditions"]);
        let is_there =
            |c: &NodeCondition| conditions.iter().any(|i| i["type"] == condition_type(*c));
        let taints = items(&node["spec"]["taints"]).into_iter();
        let own = taints.filter_map(|taint| {
            let key = taint["key"].as_str()?;
            self.condition_of(key)?;
            Some(OwnTaint {
                key: key.to_owned(),
                effect: taint["effect"].as_str().unwrap_or_default().to_owned(),
            })
        });
        Ok(PreviousStatus {
            conditions: NodeCondition::ALL.into_iter().filter(is_there).collect(),
            taints: own.collect(),
        })
    }

    /// Makes the conditions what is wanted; `before` are those that may be there, `since` has when each came that is
    /// this agent's own.
    async fn write_conditions(
        &self,
        before: &BTreeSet<NodeCondition>,
        desired: &NodeState,
        since: &Transitions,
    ) -> Result<(), ApiError> {
        let touched = before.union(&desired.conditions);
        let now = timestamp();
        let conditions: Vec<Value> = touched
            .map(|c| {
                let kind = condition_type(*c);
                if !desired.conditions.contains(c) {
                    return json!({"$patch": "delete", "type": kind});
                }
                let mut condition = json!({
                    "type": kind,
                    "status": "True",
                    "reason": "ThresholdMet",
                    "message": desired.message,
                    "lastHeartbeatTime": now,
                });
                if let Some(time) = since.of(*c) {
                    condition["lastTransitionTime"] = time.into();
                }
                condition
            })
            .collect();
        if conditions.is_empty() {
            return Ok(());
        }
        let body = json!({"status": {"conditions": conditions}});
        let request = ApiRequest::new(Method::PATCH, self.path("/status"), STRATEGIC_MERGE, &body);
        self.client.send(&request).await
    }

    /// Makes our taints these.
    async fn write_taints(&self, wanted: &BTreeSet<OwnTaint>) -> Result<(), ApiError> {
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
            let form = |taint: &OwnTaint| json!({"key": taint.key, "effect": taint.effect});
            new.extend(wanted.iter().map(form));
            if new == old {
                return Ok(());
            }
            let body = json!({
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": if new.is_empty() { Value::Null } else { new.into() }},
            });
            let request = ApiRequest::new(Method::PATCH, self.path(""), MERGE, &body);
            match self.client.call(&request).await {
                Err(e) if e.code() == 409 => last = e,
                answer => return answer.map(drop),
            }
        }
        Err(last)
    }

    /// Whether nothing may be written.
    pub fn is_shadow(&self) -> bool {
        self.client.is_shadow()
    }

    /// Waits until the node may be written to, or the sender is gone.
    pub async fn wait_for_live(&self, desired: &mut watch::Receiver<NodeState>) {
        tokio::select! {
            () = self.client.shadow_is(false) => {}
            () = async { while desired.changed().await.is_ok() {} } => {}
        }
    }

    /// Keeps the node as it is wanted until the sender is gone, or shadow mode begins. What holds then stays: an
    /// upgrade under pressure is not the end of the pressure, and the next agent takes it over. Starts from what the
    /// node says already, and takes that away when its time is over, whether or not anything else happens.
    pub async fn run(&self, left: StaleConditions, desired: &mut watch::Receiver<NodeState>) {
        let never = std::future::pending::<()>();
        self.run_until(never, left, desired).await;
    }

    /// Runs as [`Self::run`] until `stop` resolves, and returns its value; a write that has begun is finished first.
    /// `None`: the sender is gone, or shadow mode has begun.
    pub async fn run_until<T>(
        &self,
        stop: impl Future<Output = T>,
        mut left: StaleConditions,
        desired: &mut watch::Receiver<NodeState>,
    ) -> Option<T> {
        let mut stop = std::pin::pin!(stop);
        let mut backoff = Backoff::new(RETRY_DELAYS);
        let mut written = Written::new(&left);
        let mut since = Transitions::new(&left.conditions);
        let times = self.taint.as_ref().map(|t| (t.set_after, t.remove_after));
        let (set_after, remove_after) = times.unwrap_or_default();
        let of = left.taints.iter().filter_map(|t| self.condition_of(&t.key));
        let mut taints = Taints::new(set_after, remove_after, &of.collect());
        // What this agent wants as well ends with that.
        let own = desired.borrow().conditions.clone();
        left.conditions.retain(|condition| !own.contains(condition));
        let mut ending = false;
        let mut repeat_at = Instant::now() + self.repeat;
        while !self.is_shadow() {
            let mut target = desired.borrow_and_update().clone();
            target.conditions.extend(left.now());
            since.update(&target.conditions);
            let (set, next) = taints.update(Instant::now(), &target);
            let set = self.taints_of(&set);
            let is_written = written.has_conditions(&target.conditions) && written.has_taints(&set);
            let wake = if is_written {
                if ending {
                    return None;
                }
                let repeat = (!written.is_empty()).then_some(repeat_at);
                [next, left.end(), repeat].into_iter().flatten().min()
            } else if self.write(&mut written, target, set, &since).await {
                tracing::info!(
                    conditions = %join(written.conditions.iter().map(|c| c.as_str())),
                    taints = %join(written.taints.iter().map(|t| t.key.as_str())),
                    "the node's conditions and taints are written"
                );
                backoff = Backoff::new(RETRY_DELAYS);
                continue;
            } else {
                Some(Instant::now() + backoff.next_delay())
            };
            tokio::select! {
                value = &mut stop => return Some(value),
                changed = desired.changed(), if !ending => ending = changed.is_err(),
                () = self.client.shadow_is(true) => {}
                () = tokio::time::sleep_until(wake.unwrap_or(repeat_at)), if wake.is_some() => {
                    // The Node may have been made anew, or another client has taken it away.
                    if is_written && !written.is_empty() && repeat_at <= Instant::now() {
                        written.invalidate();
                        repeat_at = Instant::now() + self.repeat;
                    }
                }
            }
        }
        None
    }

    /// Writes what is not there. Each by itself: an admission policy may refuse one and not the other.
    async fn write(
        &self,
        written: &mut Written,
        target: NodeState,
        set: BTreeSet<OwnTaint>,
        since: &Transitions,
    ) -> bool {
        let (mut are_set, mut are_conditions) = (Ok(()), Ok(()));
        if !written.has_taints(&set) {
            are_set = self.write_taints(&set).await;
            written.tried_taints(set, are_set.is_ok());
        }
        if !written.has_conditions(&target.conditions) {
            let before = &written.conditions;
            are_conditions = self.write_conditions(before, &target, since).await;
            written.tried_conditions(target.conditions, are_conditions.is_ok());
        }
        let mut is_written = true;
        for (what, result) in [("taints", are_set), ("conditions", are_conditions)] {
            if let Err(error) = result {
                tracing::warn!(what, %error, "the Node cannot be updated");
                is_written = false;
            }
        }
        is_written
    }
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(",")
}

/// What the Node says of conditions and taints. What was written last may or may not have been carried out.
struct Written {
    /// Conditions that may be on the node.
    conditions: BTreeSet<NodeCondition>,
    are_conditions_sure: bool,
    taints: BTreeSet<OwnTaint>,
    are_taints_sure: bool,
}

impl Written {
    fn new(left: &StaleConditions) -> Self {
        Self {
            conditions: left.conditions.clone(),
            are_conditions_sure: true,
            taints: left.taints.clone(),
            are_taints_sure: true,
        }
    }

    fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.taints.is_empty()
    }

    fn has_conditions(&self, wanted: &BTreeSet<NodeCondition>) -> bool {
        self.are_conditions_sure && self.conditions == *wanted
    }

    fn has_taints(&self, wanted: &BTreeSet<OwnTaint>) -> bool {
        self.are_taints_sure && self.taints == *wanted
    }

    /// All of it is written again.
    fn invalidate(&mut self) {
        (self.are_conditions_sure, self.are_taints_sure) = (false, false);
    }

    fn tried_conditions(&mut self, wanted: BTreeSet<NodeCondition>, is_done: bool) {
        self.are_conditions_sure = is_done;
        if is_done {
            self.conditions = wanted;
        } else {
            self.conditions.extend(wanted);
        }
    }

    fn tried_taints(&mut self, wanted: BTreeSet<OwnTaint>, is_done: bool) {
        self.are_taints_sure = is_done;
        if is_done {
            self.taints = wanted;
        }
    }
}

/// The time as the API server writes it.
fn timestamp() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

/// When each condition came: a write that is repeated says the same time again, since the one before may be lost or
/// not.
struct Transitions(BTreeMap<NodeCondition, Option<String>>);

impl Transitions {
    /// Conditions that are on the node already, with a time that stays.
    fn new(there: &BTreeSet<NodeCondition>) -> Self {
        Self(there.iter().map(|condition| (*condition, None)).collect())
    }

    /// Takes note of the conditions that hold now.
    fn update(&mut self, conditions: &BTreeSet<NodeCondition>) {
        self.0.retain(|condition, _| conditions.contains(condition));
        for condition in conditions {
            self.0
                .entry(*condition)
                .or_insert_with(|| Some(timestamp()));
        }
    }

    fn of(&self, condition: NodeCondition) -> Option<String> {
        self.0.get(&condition)?.clone()
    }
}
