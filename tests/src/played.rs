//! What a real cluster has beside its API server, as far as the end-to-end test needs it: the controllers of namespaces and
//! DaemonSets, and a kubelet. The pods are real processes in the cgroups of a [`Member`], and the DaemonSet's pod is a
//! real agent with the configuration of the applied ConfigMap.

mod agent;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{apiserver::State, hog::Hog, member::Member};
use agent::DaemonPod;

/// How often everything is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// When a kubelet that nobody has told of a deletion starts an ended container again. A real one takes about a second; on a
/// busy machine the agent may take longer to tell than it otherwise would.
const BACK: Duration = Duration::from_secs(60);

/// What this cluster does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// The kubelet starts an ended container again before it hears that its pod is deleted.
    Restarts,
    /// The kubelet says that the kernel has killed the hog.
    OomKill,
    /// A pod that does nothing wrong ends, when the hog has.
    SurvivorEnds,
    /// The agent's container starts and ends again.
    CrashLoop,
    /// The agent ends without cleaning up.
    KilledAgent,
    /// The kubelet evicts the hog before anybody else does.
    KubeletFirst,
}

/// A cluster that is played until it is dropped.
pub struct Played {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Played {
    /// Plays the rest of this member's cluster.
    ///
    /// # Errors
    /// No thread.
    pub fn start(member: Arc<Member>, flaw: Flaw) -> io::Result<Self> {
        // A deleted pod is there until its kubelet has ended it.
        member.server.state().linger = true;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("played".into())
            .spawn(move || {
                let mut stage = Stage {
                    member,
                    flaw,
                    running: BTreeMap::new(),
                    daemon: None,
                };
                while !stopped.load(Ordering::Relaxed) {
                    stage.namespaces();
                    stage.daemonset();
                    stage.pods();
                    std::thread::sleep(LOOK);
                }
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Namespace and name.
type Key = (String, String);

struct Stage {
    member: Arc<Member>,
    flaw: Flaw,
    running: BTreeMap<Key, Container>,
    daemon: Option<DaemonPod>,
}

/// A pod's only container.
struct Container {
    hog: Option<Hog>,
    restarts: i32,
    ended: Option<Instant>,
}

impl Stage {
    /// Accounts come with a namespace, and everything goes with it.
    fn namespaces(&self) {
        const AT: &str = "/api/v1/namespaces/";
        let mut state = self.member.server.state();
        let all = state.others.iter().filter_map(|(path, object)| {
            let name = path.strip_prefix(AT).filter(|name| !name.contains('/'))?;
            Some((
                name.to_owned(),
                object["metadata"]["deletionTimestamp"].is_string(),
            ))
        });
        let all: Vec<(String, bool)> = all.collect();
        for (name, ends) in all {
            if !ends {
                let account = format!("{AT}{name}/serviceaccounts/default");
                state
                    .others
                    .entry(account)
                    .or_insert_with(|| json!({"metadata": {"name": "default"}}));
                continue;
            }
            state
                .others
                .retain(|path, _| !path.starts_with(&format!("{AT}{name}/")));
            state.events.retain(|(namespace, _), _| *namespace != name);
            let pods = state
                .pods
                .values()
                .filter(|pod| pod["metadata"]["namespace"] == *name);
            let pods: Vec<Value> = pods.cloned().collect();
            if pods.is_empty() {
                state.others.remove(&format!("{AT}{name}"));
            }
            for mut pod in pods {
                if pod["metadata"]["deletionTimestamp"].is_null() {
                    pod["metadata"]["deletionTimestamp"] = "2026-11-21T02:53:10Z".into();
                    state.put_pod(pod);
                }
            }
        }
    }

    /// One pod of the DaemonSet on the only node.
    fn daemonset(&mut self) {
        let wanted = self
            .member
            .server
            .state()
            .others
            .keys()
            .any(|path| path.contains("/daemonsets/"));
        match (&mut self.daemon, wanted) {
            (None, true) => {
                let crashes = self.flaw == Flaw::CrashLoop;
                self.daemon = Some(DaemonPod::start(&self.member, crashes));
            }
            (Some(daemon), true) => daemon.look(&self.member),
            (Some(_), false) => {
                if let Some(daemon) = self.daemon.take() {
                    daemon.end(&self.member, self.flaw != Flaw::KilledAgent);
                }
            }
            (None, false) => {}
        }
    }

    /// The kubelet's part: starts what is bound to the node, starts it again, reports, ends what is deleted.
    fn pods(&mut self) {
        let pods = self.member.server.state().pods.clone();
        for (key, pod) in pods {
            if key.0 != agent::NAMESPACE {
                self.pod(key, &pod);
            }
        }
    }

    fn pod(&mut self, key: Key, pod: &Value) {
        let deleted = pod["metadata"]["deletionTimestamp"].is_string();
        let is_hog = key.1 == "hog";
        let Some(container) = self.running.get_mut(&key) else {
            if !deleted && pod["status"]["phase"] == "Pending" {
                let hog = run(&self.member, pod);
                let container = Container {
                    hog: hog.ok(),
                    restarts: 0,
                    ended: None,
                };
                report(&self.member, &key, "Running", &container, Value::Null);
                self.running.insert(key, container);
            }
            return;
        };
        let alive = container.hog.as_mut().is_some_and(Hog::is_alive);
        if deleted {
            // Whatever has been seen of its end is in the last version of the object.
            container.hog = None;
            let reason = if is_hog && self.flaw == Flaw::OomKill {
                "OOMKilled"
            } else {
                "Error"
            };
            let end = json!({"terminated": {"exitCode": 137, "reason": reason}});
            if self.flaw == Flaw::Restarts && is_hog {
                container.restarts = 1;
            }
            report(&self.member, &key, "Running", container, end);
            self.running.remove(&key);
            if is_hog && self.flaw == Flaw::SurvivorEnds {
                self.end_one();
            }
            // Last: whoever waits for this looks at the others at once.
            self.member.server.state().remove_pod(&key.0, &key.1);
            return;
        }
        if is_hog && self.flaw == Flaw::KubeletFirst && alive {
            container.hog = None;
            report(&self.member, &key, "Failed", container, Value::Null);
            let mut state = self.member.server.state();
            if let Some(mut pod) = state.pods.get(&key).cloned() {
                pod["status"]["reason"] = "Evicted".into();
                pod["status"]["message"] = "The node was low on resource: memory.".into();
                state.put_pod(pod);
            }
            return;
        }
        if alive || pod["status"]["phase"] == "Failed" {
            return;
        }
        if container.ended.get_or_insert_with(Instant::now).elapsed() > BACK {
            *container = Container {
                hog: run(&self.member, pod).ok(),
                restarts: container.restarts + 1,
                ended: None,
            };
            report(&self.member, &key, "Running", container, Value::Null);
        }
    }

    /// One of those that do nothing wrong ends and comes back.
    fn end_one(&mut self) {
        let Some((key, container)) = self.running.iter_mut().next() else {
            return;
        };
        container.restarts = 1;
        report(&self.member, key, "Running", container, Value::Null);
    }
}

/// Starts what the pod's only container runs: the arguments are the hog's, and its cgroup is where the kubelet would make it.
fn run(member: &Member, pod: &Value) -> io::Result<Hog> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let cgroup = member.cgroup_of(
        &text(&pod["metadata"]["uid"]),
        &text(&pod["status"]["qosClass"]),
    )?;
    let arguments = pod["spec"]["containers"][0]["args"].as_array();
    let arguments: Vec<String> = arguments.into_iter().flatten().map(text).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Hog::start(&cgroup, &arguments)
}

/// The kubelet's part of the status; conditions of others stay.
fn report(member: &Member, key: &Key, phase: &str, container: &Container, end: Value) {
    let mut state = member.server.state();
    if let Some(mut pod) = state.pods.get(key).cloned() {
        let name = pod["spec"]["containers"][0]["name"].clone();
        let now = match &end {
            Value::Null => json!({"running": {}}),
            end => end.clone(),
        };
        let status = &mut pod["status"];
        status["phase"] = phase.into();
        status["containerStatuses"] = json!([{
            "name": name, "image": "i", "imageID": "", "ready": true, "state": now,
            "restartCount": container.restarts,
        }]);
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        State::merge_conditions(&mut pod, &ready);
        state.put_pod(pod);
    }
}
