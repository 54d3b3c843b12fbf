//! The status of policies: the condition `Accepted`, with the place of the error where a policy cannot be used.
//!
//! Every agent comes to the same verdict, and one of them has to write it. Each waits for a random time; whoever is first
//! writes, the others see it in their watch and have nothing left to write. Who comes too late nevertheless meets the
//! resourceVersion that the first one has changed (409), and looks again. An agent writes about one generation once: two
//! versions of evictd with different opinions do not write against each other.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::{
    client::{ApiError, Call, Connection, MERGE},
    policies::{GROUP, PLURAL, VERSION},
};
use crate::policy::Verdict;

/// Within this time some agent writes; the more agents there are the sooner the first one does.
pub const SPREAD: Duration = Duration::from_secs(10);
/// Attempts that fail in a passing way before the next version of the policy is waited for.
const ATTEMPTS: u32 = 8;
/// The condition's type.
pub const ACCEPTED: &str = "Accepted";

/// Writes statuses.
pub struct StatusWriter {
    connection: Arc<Connection>,
    spread: Duration,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Default)]
struct State {
    /// By the policy's name.
    pending: BTreeMap<String, Pending>,
    /// Newest resourceVersion that was looked at, by name.
    seen: BTreeMap<String, Value>,
    /// UID and generation that were written about, by name.
    written: BTreeMap<String, (String, Option<i64>)>,
}

#[derive(Clone, Debug)]
struct Pending {
    due: Instant,
    attempts: u32,
    verdict: Verdict,
    /// Newest known version of the object.
    version: Value,
    /// The conditions that it has.
    conditions: Vec<Value>,
}

impl StatusWriter {
    /// Nothing is to be written yet; each write comes at a random time within `spread`.
    pub fn new(connection: Arc<Connection>, spread: Duration) -> Self {
        Self {
            connection,
            spread,
            state: Mutex::default(),
            bell: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panic has left is still the last that was known.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether the status of an object says what is thought of it; if not it will be written.
    pub fn consider(&self, document: &Value, verdict: &Verdict) {
        let conditions = document["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let about_this = conditions.iter().find(|c| {
            c["type"] == ACCEPTED && c["observedGeneration"] == json!(verdict.generation)
        });
        let key = (verdict.uid.clone(), verdict.generation);
        let version = &document["metadata"]["resourceVersion"];
        let mut state = self.state();
        state.seen.insert(verdict.name.clone(), version.clone());
        let said = about_this.is_some_and(|c| says(c, verdict));
        let written_once = state.written.get(&verdict.name) == Some(&key);
        if said || (about_this.is_some() && written_once) {
            state.pending.remove(&verdict.name);
            return;
        }
        let fresh = Pending {
            due: self.some_time(1),
            attempts: 0,
            verdict: verdict.clone(),
            version: version.clone(),
            conditions,
        };
        let pending = state
            .pending
            .entry(verdict.name.clone())
            .or_insert_with(|| fresh.clone());
        if pending.verdict == *verdict {
            // Somebody else has changed something else: its turn does not change.
            pending.version = fresh.version;
            pending.conditions = fresh.conditions;
        } else {
            *pending = fresh;
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Forgets all policies but these.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut state = self.state();
        state.pending.retain(|name, _| keep(name));
        state.seen.retain(|name, _| keep(name));
        state.written.retain(|name, _| keep(name));
    }

    fn some_time(&self, spreads: u32) -> Instant {
        Instant::now() + self.spread.mul_f64(fastrand::f64()) * spreads
    }

    /// Writes what is to be written, for ever.
    pub async fn run(&self) {
        loop {
            let due = self.state().pending.values().map(|p| p.due).min();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.bell.notified() => continue,
            }
            if let Some(pending) = self.take_due() {
                self.write(pending).await;
            }
        }
    }

    fn take_due(&self) -> Option<Pending> {
        let mut state = self.state();
        let first = state.pending.iter().min_by_key(|(_, p)| p.due)?;
        let name = (first.1.due <= Instant::now()).then(|| first.0.clone())?;
        state.pending.remove(&name)
    }

    async fn write(&self, mut pending: Pending) {
        let verdict = pending.verdict.clone();
        let name = &verdict.name;
        let body = json!({
            // Another object of the same name, or one that was changed meanwhile, refuses it.
            "metadata": {"uid": verdict.uid, "resourceVersion": pending.version},
            "status": {"conditions": merged(&pending.conditions, &verdict)},
        });
        let path = format!("/apis/{GROUP}/{VERSION}/{PLURAL}/{name}/status");
        let call = Call::new(Method::PATCH, path, MERGE, &body);
        match self.connection.call(&call).await {
            Ok(_) => {
                self.connection.counters.policy_statuses.add();
                let mut state = self.state();
                let key = (verdict.uid.clone(), verdict.generation);
                state.written.insert(name.clone(), key);
            }
            Err(error) if is_worth_another_look(&error) && pending.attempts < ATTEMPTS => {
                pending.attempts += 1;
                pending.due = self.some_time(pending.attempts);
                tracing::debug!(policy = name, %error, "its status is looked at again");
                let mut state = self.state();
                // What has come meanwhile was looked at already.
                if state.seen.get(name) == Some(&pending.version) {
                    state.pending.insert(name.clone(), pending);
                }
            }
            Err(error) => {
                tracing::warn!(policy = name, %error, "the status of a policy cannot be written");
            }
        }
    }
}

/// Somebody was faster, or the server did not answer.
fn is_worth_another_look(error: &ApiError) -> bool {
    error.code() == 409 || error.is_passing()
}

fn reason(verdict: &Verdict) -> (&'static str, &'static str, &str) {
    match &verdict.refused {
        None => ("True", "Compiled", "every rule and gate can be used"),
        Some(place) => ("False", "Invalid", place),
    }
}

/// Whether a condition of the right type and generation says what is thought.
fn says(condition: &Value, verdict: &Verdict) -> bool {
    let (status, reason, message) = reason(verdict);
    condition["status"] == status
        && condition["reason"] == reason
        && condition["message"] == message
}

/// All conditions with the verdict among them; those of other types stay.
fn merged(conditions: &[Value], verdict: &Verdict) -> Vec<Value> {
    let (status, reason, message) = reason(verdict);
    let old = conditions.iter().find(|c| c["type"] == ACCEPTED);
    let since = old
        .filter(|c| c["status"] == status)
        .map(|c| c["lastTransitionTime"].clone())
        .filter(Value::is_string);
    let since = since.unwrap_or_else(|| format!("{:.0}", jiff::Timestamp::now()).into());
    let ours = json!({
        "type": ACCEPTED,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": verdict.generation,
        "lastTransitionTime": since,
    });
    let others = conditions.iter().filter(|c| c["type"] != ACCEPTED).cloned();
    others.chain([ours]).collect()
}
