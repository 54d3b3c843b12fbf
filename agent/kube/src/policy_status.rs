//! The status of policies: whether each can be used, with the place of the error; what it says otherwise than others;
//! and whether any agent has seen a pod that it selects.
//!
//! Every agent comes to the same status, and one of them has to write it. Each waits for a random time; the agent that
//! is first writes, the others see it in their watch and have nothing left to write. An agent that comes too late
//! nevertheless meets the resourceVersion that the first one has changed (409), and looks again. What has stood there
//! once, whichever agent wrote it, is not written again: two versions of evictd that differ do not write against each
//! other. What agents see differently, since each has other pods, goes one way only: from no agent has seen any to an
//! agent has.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use evictd_policy::PolicyStatus;
use evictd_sys::mutex::locked;
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::client::{ApiClient, ApiError, ApiRequest, MERGE};
use crate::policy_document::{ClusterPolicies, GROUP, PolicyKind as _, VERSION};

mod conditions;

pub use conditions::{ACCEPTED, CONTRADICTS, SELECTS_PODS};

/// Within this time some agent writes; the more agents there are the sooner the first one does.
pub const SPREAD: Duration = Duration::from_secs(10);
/// Attempts that fail in a passing way before the next version of the policy is waited for.
const ATTEMPTS: u32 = 8;

/// Writes statuses.
pub struct StatusWriter {
    client: Arc<ApiClient>,
    spread: Duration,
    state: Mutex<State>,
    event: Notify,
}

/// All by the policy's name.
#[derive(Default)]
struct State {
    pending: BTreeMap<String, Pending>,
    /// Objects as they were when they were looked at last.
    seen: BTreeMap<String, Seen>,
    /// Opinions of this agent, each with whether it has stood in the object.
    own_statuses: BTreeMap<String, (PolicyStatus, bool)>,
}

/// Version of an object with its conditions: what counts of it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// The object's resourceVersion.
    version: Value,
    conditions: Vec<Value>,
}

#[derive(Clone, Debug)]
struct Pending {
    due: Instant,
    attempts: u32,
    status: PolicyStatus,
}

impl StatusWriter {
    /// Creates a writer that has nothing to write yet; each write comes at a random time within `spread`.
    pub fn new(client: Arc<ApiClient>, spread: Duration) -> Self {
        Self {
            client,
            spread,
            state: Mutex::default(),
            event: Notify::new(),
        }
    }

    /// Takes note of an object's newest version.
    pub fn see(&self, document: &Value) {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let conditions = document["status"]["conditions"].as_array();
        let seen = Seen {
            version: document["metadata"]["resourceVersion"].clone(),
            conditions: conditions.cloned().unwrap_or_default(),
        };
        locked(&self.state).seen.insert(name.to_owned(), seen);
    }

    /// Looks whether the statuses of objects that were seen say what is thought of them; what does not will be written.
    pub fn consider(&self, statuses: &[PolicyStatus]) {
        let mut state = locked(&self.state);
        for status in statuses {
            let due = self.some_time(1);
            state.consider(status, due);
        }
        drop(state);
        self.event.notify_one();
    }

    /// Forgets all policies but these.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut state = locked(&self.state);
        state.pending.retain(|name, _| keep(name));
        state.seen.retain(|name, _| keep(name));
        state.own_statuses.retain(|name, _| keep(name));
    }

    fn some_time(&self, spreads: u32) -> Instant {
        Instant::now() + self.spread.mul_f64(fastrand::f64()) * spreads
    }

    /// Writes what is to be written, for ever.
    pub async fn run(&self) {
        loop {
            let due = locked(&self.state).pending.values().map(|p| p.due).min();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.event.notified() => continue,
            }
            if let Some((pending, seen)) = self.take_due() {
                self.write(pending, seen).await;
            }
        }
    }

    fn take_due(&self) -> Option<(Pending, Seen)> {
        let mut state = locked(&self.state);
        let first = state.pending.iter().min_by_key(|(_, p)| p.due)?;
        let name = (first.1.due <= Instant::now()).then(|| first.0.clone())?;
        let pending = state.pending.remove(&name)?;
        Some((pending, state.seen.get(&name)?.clone()))
    }

    async fn write(&self, mut pending: Pending, seen: Seen) {
        if self.client.is_shadow() {
            return;
        }
        let status = pending.status.clone();
        let name = &status.name;
        let body = json!({
            // Another object of the same name, or one that was changed meanwhile, refuses it.
            "metadata": {"uid": status.uid, "resourceVersion": seen.version},
            "status": {"conditions": conditions::merged(&seen.conditions, &status)},
        });
        let plural = ClusterPolicies::PLURAL;
        let path = format!("/apis/{GROUP}/{VERSION}/{plural}/{name}/status");
        let request = ApiRequest::new(Method::PATCH, path, MERGE, &body);
        match self.client.send(&request).await {
            Ok(()) => {
                self.client.counters.policy_statuses.add();
                let mut state = locked(&self.state);
                if let Some((opinion, was_there)) = state.own_statuses.get_mut(name) {
                    *was_there |= *opinion == status;
                }
            }
            Err(error) if is_worth_a_retry(&error) && pending.attempts < ATTEMPTS => {
                pending.attempts += 1;
                pending.due = self.some_time(pending.attempts);
                tracing::debug!(policy = name, %error, "the policy status is written again later");
                let mut state = locked(&self.state);
                // What has come meanwhile was looked at already.
                if state.seen.get(name) == Some(&seen) {
                    state.pending.entry(name.clone()).or_insert(pending);
                }
            }
            Err(error) => {
                tracing::warn!(policy = name, %error, "the status of a policy cannot be written");
            }
        }
    }
}

impl State {
    fn consider(&mut self, status: &PolicyStatus, due: Instant) {
        let name = &status.name;
        let Some(seen) = self.seen.get(name) else {
            return;
        };
        let first = || (status.clone(), false);
        let own = self.own_statuses.entry(name.clone()).or_insert_with(first);
        if own.0 != *status {
            *own = first();
        }
        let was_there = &mut own.1;
        // A status that was lost may be written again.
        *was_there &= conditions::is_about(&seen.conditions, status);
        *was_there |= conditions::say(&seen.conditions, status);
        if *was_there {
            self.pending.remove(name);
            return;
        }
        let fresh = || Pending {
            due,
            attempts: 0,
            status: status.clone(),
        };
        let pending = self.pending.entry(name.clone()).or_insert_with(fresh);
        // When another agent has changed another field, the turn does not change.
        if pending.status != *status {
            *pending = fresh();
        }
    }
}

/// Another agent was faster, or the server did not answer.
fn is_worth_a_retry(error: &ApiError) -> bool {
    error.code() == 409 || error.is_retryable()
}

#[cfg(test)]
mod tests {
    use super::{conditions::tests::status, *};

    // Two versions of evictd on thousands of nodes: one word of each, not one of each node.
    #[test]
    fn what_has_stood_there_is_not_written_again() {
        let (own, other) = (status(None, false), status(Some("is unknown"), false));
        let mut state = State::default();
        let mut writes_after = |conditions: Vec<Value>| {
            let version = Value::Null;
            let seen = Seen {
                version,
                conditions,
            };
            state.seen.insert(own.name.clone(), seen);
            state.consider(&own, Instant::now());
            !state.pending.is_empty()
        };
        let said = |status| conditions::merged(&[], status);
        assert!(writes_after(said(&other)), "it has never stood there");
        assert!(!writes_after(said(&own)), "another agent has written it");
        assert!(!writes_after(said(&other)));
        assert!(writes_after(Vec::new()), "a status that was lost");
    }
}
