//! Asks the gates: one thread with a small runtime of its own, so that a name server that hangs delays only gates.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use evictd_engine::units::nanos;
use evictd_sys::{clock::monotonic_ns, mutex::locked};
use futures::FutureExt as _;
use tokio::sync::Semaphore;

use super::{
    super::gate::{Answer, Gate, HttpProbe, ObjectProbe, Probe, ProbeError},
    PolicyEvaluator, PolicySettings, State, pod_value,
};
use crate::{
    evaluator::gate_state::{GateKey, bodies},
    expression::variables,
};

/// Most questions at the same time.
const AT_ONCE: usize = 8;
/// Names that are looked up at the same time.
const LOOKUPS_AT_ONCE: usize = 4;
/// Longest time between two evaluations of all pods, where rules or rates hold.
const EVALUATION_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two evaluations, since each takes CPU time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// The thread's name. Servers' answers are handled on this thread alone, so a panic there ends one question and not the
/// process.
pub const THREAD: &str = "policy";

/// The thread that asks the gates. It ends when the worker is dropped.
pub struct Worker {
    stop: Arc<tokio::sync::Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// One question of a gate about a pod, with everything needed to ask it.
struct ProbeTask {
    uid: String,
    key: GateKey,
    /// Time at which the question was due, in nanoseconds of CLOCK_MONOTONIC. It tells the question from one of another
    /// version of the gate.
    requested_at: u64,
    gate: Gate,
    namespace: String,
    variables: [(&'static str, cel::Value); 2],
    keeps_body: bool,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or its runtime cannot be created.
    pub fn start(evaluator: Arc<PolicyEvaluator>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOKUPS_AT_ONCE)
            .build()?;
        let stop = Arc::new(tokio::sync::Notify::new());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || {
                runtime.block_on(async {
                    let working = async {
                        let work = || AssertUnwindSafe(work(Arc::clone(&evaluator))).catch_unwind();
                        while work().await.is_err() {
                            tokio::time::sleep(EVALUATION_INTERVAL).await;
                        }
                    };
                    tokio::select! {
                        () = working => {}
                        () = stopped.notified() => {}
                    }
                });
                // Does not wait for a name lookup that hangs.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks the gates has panicked");
        }
    }
}

async fn work(evaluator: Arc<PolicyEvaluator>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let (questions, next) = evaluator.due(monotonic_ns());
        for question in questions {
            let (evaluator, room) = (Arc::clone(&evaluator), Arc::clone(&room));
            tokio::spawn(async move {
                // The semaphore is never closed, so this cannot fail.
                let _place = room.acquire().await;
                // The answer does not age while the question waits for those of slow gates.
                let began = monotonic_ns();
                // A panic over a server's answer must end this question only.
                let results = AssertUnwindSafe(evaluator.probe(&question))
                    .catch_unwind()
                    .await;
                let results =
                    results.unwrap_or_else(|_| Err("its answer cannot be handled".to_owned()));
                evaluator.record_result(&question, began, results);
            });
        }
        let due = async {
            match evaluator.has_rules() {
                true => tokio::time::sleep(next.clamp(SHORTEST_PAUSE, EVALUATION_INTERVAL)).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = evaluator.changed.notified() => {}
        }
        evaluator.evaluate();
    }
}

impl PolicyEvaluator {
    /// Whether a policy or a rate holds for a pod of this node. If not, results do not change with time.
    fn has_rules(&self) -> bool {
        let PolicySettings {
            node_rate,
            owner_rate,
            ..
        } = self.settings;
        let has_rules = |held: &super::EvaluatedPod| !held.matched.is_empty();
        node_rate.is_some()
            || owner_rate.is_some()
            || locked(&self.state).pods.values().any(has_rules)
    }

    /// The questions that are due, and the time until the next one will be.
    fn due(&self, now: u64) -> (Vec<ProbeTask>, Duration) {
        let mut state = locked(&self.state);
        let mut questions = Vec::new();
        let mut next = nanos(EVALUATION_INTERVAL);
        for (uid, held) in &mut state.pods {
            let mut value = None;
            for (applied, gate) in held.matched.gates() {
                let key: GateKey = (applied.policy.name.clone(), gate.name.clone());
                let known = held.answers.get(&key);
                let due = known.map_or(now, |k| k.due(gate));
                if known.is_some_and(|k| k.pending) {
                    continue;
                }
                if now < due {
                    next = next.min(due - now);
                    continue;
                }
                let answers = bodies(applied, &held.answers, now);
                let waits_for = gate
                    .needs()
                    .into_iter()
                    .find(|needed| variables::field(&answers, needed).is_none());
                if let Some(other) = waits_for {
                    let known = held.answers.entry(key).or_default();
                    known.error = Some(format!("waits for the answer of {other}"));
                    // Look again soon: the question follows the other gate's answer.
                    next = next.min(nanos(SHORTEST_PAUSE));
                    continue;
                }
                let pod = value.get_or_insert_with(|| pod_value(&*held.pod)).clone();
                questions.push(ProbeTask {
                    uid: uid.clone(),
                    key: key.clone(),
                    requested_at: now,
                    gate: gate.clone(),
                    namespace: held.pod.pod().namespace.clone(),
                    variables: [("pod", pod), ("answers", answers)],
                    keeps_body: applied
                        .policy
                        .gates
                        .iter()
                        .any(|g| g.needs().contains(&gate.name.as_str())),
                });
                let known = held.answers.entry(key).or_default();
                (known.requested_at, known.pending) = (now, true);
            }
        }
        (questions, Duration::from_nanos(next))
    }

    async fn probe(&self, question: &ProbeTask) -> Result<(bool, Answer), String> {
        let limit = question.gate.timeout;
        let asked = tokio::time::timeout(limit, async {
            match &question.gate.probe {
                Probe::Http(probe) => self.ask_server(probe, question).await,
                Probe::Object(probe) => self.ask_cluster(probe, question).await,
            }
        });
        let answer = asked.await;
        let answer = answer.unwrap_or(Err(ProbeError::TimedOut(limit).to_string()))?;
        let Some(check) = &question.gate.check else {
            return Ok((answer.is_success(), answer));
        };
        let [pod, answers] = question.variables.clone();
        let body = variables::value(&answer.body);
        let variables = [
            pod,
            answers,
            ("answer", body),
            ("status", cel::Value::Int(answer.status.into())),
        ];
        match check.is_true(&variables) {
            Ok(yes) => Ok((yes, answer)),
            Err(error) => Err(format!("status {}: {error}", answer.status)),
        }
    }

    async fn ask_server(&self, probe: &HttpProbe, question: &ProbeTask) -> Result<Answer, String> {
        let ip = match variables::field(&question.variables[0].1, "ip") {
            Some(cel::Value::String(ip)) => ip.as_str(),
            _ => "",
        };
        let target = probe
            .target(&question.variables, ip, &question.namespace)
            .map_err(|e| format!("host: {e}"))?;
        self.cluster_wanted.notify_one();
        let mut cluster = self.cluster.subscribe();
        // The sender lives as long as the evaluator. The caller's timeout bounds the wait.
        let cluster = match cluster.wait_for(Option::is_some).await {
            Ok(known) => known.clone().unwrap_or_default(),
            Err(error) => return Err(error.to_string()),
        };
        probe
            .ask(&target, &cluster, &self.secrets)
            .await
            .map_err(|e| e.to_string())
    }

    async fn ask_cluster(
        &self,
        probe: &ObjectProbe,
        question: &ProbeTask,
    ) -> Result<Answer, String> {
        let objects = self.objects.get().ok_or("there is no cluster to ask")?;
        let path = probe
            .path(&question.variables, &question.namespace)
            .map_err(|e| e.to_string())?;
        objects.get(path).await
    }

    /// Takes in what a question that was asked at `began` has brought.
    fn record_result(
        &self,
        question: &ProbeTask,
        began: u64,
        results: Result<(bool, Answer), String>,
    ) {
        let mut state = locked(&self.state);
        let State { pods, .. } = &mut *state;
        let Some(held) = pods.get_mut(&question.uid) else {
            return;
        };
        // The rule or the gate may have changed meanwhile.
        let known = held.answers.get_mut(&question.key);
        let Some(known) = known.filter(|known| known.requested_at == question.requested_at) else {
            return;
        };
        known.pending = false;
        match results {
            Ok((yes, answer)) => {
                let changed = known.answer.map(|(_, before)| before) != Some(yes);
                // The answer's age counts from the question: it may have been true only then.
                known.answer = Some((began, yes));
                known.error = None;
                known.body = question.keeps_body.then(|| variables::value(&answer.body));
                if changed {
                    let pod = held.pod.pod();
                    tracing::debug!(%pod, gate = question.key.1, yes, "a gate has changed");
                }
            }
            Err(error) => {
                if known.error.as_ref() != Some(&error) {
                    let pod = held.pod.pod();
                    tracing::warn!(%pod, gate = question.key.1, error, "a gate has no answer");
                }
                known.error = Some(error);
            }
        }
        drop(state);
        self.changed.notify_one();
    }
}
