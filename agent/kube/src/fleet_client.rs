//! All agents of a cluster, as a user with a kubeconfig reaches them: by what the API server has, and by commands that
//! it runs in an agent's container. Agents listen nowhere for this.

use std::{collections::BTreeSet, io, path::PathBuf, time::Duration};

use evictd_config::{FleetConfig, parse_document};
use evictd_engine::{
    fleet::{FleetPace, FleetRules, FleetState},
    units::signed,
};
use evictd_policy::PAUSED;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, Pod},
    apimachinery::pkg::apis::meta::v1::Status,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{AttachParams, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{client::load, fleet_brake};

/// Labels of the agents' pods in the chart and in the manifests.
pub const AGENTS: &str = "app.kubernetes.io/name=evictd";
/// The agents' container, and the program in it.
const CONTAINER: &str = "evictd";
const PROGRAM: &str = "/evictd";
/// The volume of their pods that is the ConfigMap of their configuration.
const CONFIGURATION: &str = "config";
/// Name of the ConfigMap that pauses all agents, in the chart and in the manifests.
pub const PAUSE: &str = "evictd-pause";
/// Name of the ConfigMap by which all agents are slowed down, likewise.
pub const BRAKE: &str = "evictd-fleet";
/// The field manager of that ConfigMap for the API server.
const MANAGER: &str = "kubectl-evictd";
/// Time that a command in an agent's container may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Largest number of bytes that are read of what a command prints.
const MAX: u64 = 8 << 20;
/// Commands that run at the same time.
const AT_ONCE: usize = 8;
/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Names the exit code in a status.
const EXIT_CODE: &str = "ExitCode";

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The kubeconfig cannot be used.
    #[error("--kubeconfig: {0}")]
    Kubeconfig(String),
    /// An object that was named is not there.
    #[error("{what}: {reason}")]
    Missing {
        /// The name.
        what: String,
        /// Description of what is wrong with the name.
        reason: String,
    },
    /// The API server refuses, or does not answer.
    #[error("{what}: {reason}")]
    Api {
        /// Resource that the request was about.
        what: String,
        /// Explanation of the failure.
        reason: String,
    },
    /// The command in the agent's container failed.
    #[error("the agent on {node}: {reason}")]
    Agent {
        /// Name of the agent's node.
        node: String,
        /// Explanation of the failure.
        reason: String,
        /// Text that the command has printed on standard output before it failed.
        printed: String,
    },
}

impl FleetError {
    /// Whether an agent of another version does not know the command: clap's words.
    fn is_unknown_option(&self) -> bool {
        matches!(self, Self::Agent { reason, printed, .. }
            if printed.is_empty() && reason.starts_with("error: unexpected argument"))
    }

    /// Whether something that the user has named is wrong.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Kubeconfig(_) | Self::Missing { .. })
    }
}

/// Access to the cluster.
#[derive(Clone, Debug)]
pub struct Access {
    /// The kubeconfig; without it `$KUBECONFIG`, or the user's own.
    pub kubeconfig: Option<PathBuf>,
    /// A context of it; without it the current one.
    pub context: Option<String>,
    /// The namespace of the agents.
    pub namespace: String,
    /// A selector of the agents' pods in it.
    pub agents: String,
    /// The ConfigMap in it that pauses all agents.
    pub pause: String,
    /// The ConfigMap in it by which the fleet brake tells all agents.
    pub brake: String,
}

/// All agents of a cluster.
pub struct FleetClient {
    client: Client,
    namespace: String,
    agents: String,
    pause: String,
    brake: String,
}

/// The fleet brake while it is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Brake {
    /// `slow` or `paused`.
    pub pace: &'static str,
    /// End of that pace.
    pub until: Timestamp,
    /// After a pause nodes are slow until then; `None` where no configuration of an agent has the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_until: Option<Timestamp>,
}

/// A node with what it says about evictd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    /// Name of the object.
    pub name: String,
    /// Whether its annotation pauses its agent.
    pub is_paused: bool,
    /// The conditions of pressure that hold, evictd's and the kubelet's.
    pub pressure: Vec<String>,
}

/// The pod of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// Name of the object.
    pub name: String,
    /// Name of the agent's node.
    pub node: String,
    /// Whether it is ready.
    pub is_ready: bool,
    /// Phase of the pod.
    pub phase: String,
    /// `app.kubernetes.io/version`; empty without it.
    pub version: String,
    /// The ConfigMap with its configuration.
    pub configuration: Option<String>,
}

impl AgentPod {
    /// The agent of a node among the pods of all agents: one that is ready, or else one that runs, or else any.
    pub fn on<'a>(agents: &'a [Self], node: &str) -> Option<&'a Self> {
        let here = agents.iter().filter(|agent| agent.node == node);
        here.min_by_key(|agent| (!agent.is_ready, !agent.is_running()))
    }

    /// Whether its phase is `Running`.
    pub fn is_running(&self) -> bool {
        self.phase == "Running"
    }

    /// The error of a command that has printed nothing that can be used.
    pub fn failed(&self, reason: impl Into<String>) -> FleetError {
        FleetError::Agent {
            node: self.node.clone(),
            reason: reason.into(),
            printed: String::new(),
        }
    }
}

impl FleetClient {
    /// Reads the kubeconfig; nothing is sent yet.
    ///
    /// # Errors
    /// [`FleetError::Kubeconfig`].
    pub async fn open(access: Access) -> Result<Self, FleetError> {
        let wrong = |reason: String| {
            // One line, whatever a parser says.
            FleetError::Kubeconfig(reason.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let kubeconfig = match &access.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .map_err(|error| wrong(format!("{}: {error}", path.display())))?,
            None => Kubeconfig::read().map_err(|error| wrong(error.to_string()))?,
        };
        let options = KubeConfigOptions {
            context: access.context,
            ..KubeConfigOptions::default()
        };
        let config = load(kubeconfig, &options).await;
        let mut config = config.map_err(|error| wrong(error.to_string()))?;
        config.read_timeout = Some(DEADLINE);
        Ok(Self {
            client: Client::try_from(config).map_err(|error| wrong(error.to_string()))?,
            namespace: access.namespace,
            agents: access.agents,
            pause: access.pause,
            brake: access.brake,
        })
    }

    /// All nodes, by name.
    ///
    /// # Errors
    /// [`FleetError::Api`].
    pub async fn nodes(&self) -> Result<Vec<NodeSummary>, FleetError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let mut states = list(&nodes, "nodes", "", |node| Some(state(node))).await?;
        states.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(states)
    }

    /// The agents that have a node, by its name.
    ///
    /// # Errors
    /// [`FleetError::Api`].
    pub async fn agents(&self) -> Result<Vec<AgentPod>, FleetError> {
        let mut agents = list(&self.agent_pods(), "pods", &self.agents, agent).await?;
        agents.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
        Ok(agents)
    }

    /// The agent that answers on this node.
    ///
    /// # Errors
    /// [`FleetError::Missing`] where none does, [`FleetError::Api`].
    pub async fn agent_on(&self, node: &str) -> Result<AgentPod, FleetError> {
        let agents = self.agents().await?;
        let running = AgentPod::on(&agents, node).filter(|agent| agent.is_running());
        running.cloned().ok_or_else(|| FleetError::Missing {
            what: node.to_owned(),
            reason: format!("no agent runs there, in the namespace {}", self.namespace),
        })
    }

    /// The node of a pod.
    ///
    /// # Errors
    /// [`FleetError::Missing`] where it has none or is not there, [`FleetError::Api`].
    pub async fn node_of(&self, namespace: &str, name: &str) -> Result<String, FleetError> {
        let missing = |reason: &str| FleetError::Missing {
            what: format!("{namespace}/{name}"),
            reason: reason.to_owned(),
        };
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(name).await;
        let pod = pod.map_err(|error| api("pods", &error))?;
        let pod = pod.ok_or_else(|| missing("no such pod"))?;
        let node = pod.spec.and_then(|spec| spec.node_name);
        node.ok_or_else(|| missing("it has no node yet"))
    }

    /// Runs `evictd` with these words in an agent's container, and returns what it prints.
    ///
    /// # Errors
    /// [`FleetError::Api`], and [`FleetError::Agent`] with what it said on standard error.
    pub async fn ask(&self, agent: &AgentPod, words: &[&str]) -> Result<String, FleetError> {
        let answer = tokio::time::timeout(DEADLINE, self.execute(agent, words)).await;
        answer.unwrap_or_else(|_| Err(agent.failed(format!("no answer within {DEADLINE:?}"))))
    }

    async fn ask_in(&self, agent: &AgentPod, commands: &[&[&str]]) -> Result<String, FleetError> {
        let [older @ .., last] = commands else {
            return Ok(String::new());
        };
        for words in older {
            match self.ask(agent, words).await {
                Err(error) if error.is_unknown_option() => {}
                answer => return answer,
            }
        }
        self.ask(agent, last).await
    }

    async fn execute(&self, agent: &AgentPod, words: &[&str]) -> Result<String, FleetError> {
        let parameters = AttachParams::default().container(CONTAINER).stderr(true);
        let command = [PROGRAM].iter().chain(words).copied();
        let pods = self.agent_pods();
        let process = pods.exec(&agent.name, command.collect::<Vec<_>>(), &parameters);
        let mut process = process.await.map_err(|error| api("pods/exec", &error))?;
        let status = process.take_status();
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let (stdout, stderr) = futures::join!(whole(stdout), whole(stderr));
        let stdout = stdout.map_err(|error| agent.failed(error.to_string()))?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        match status {
            Some(Status {
                status: Some(s), ..
            }) if s == "Success" => Ok(stdout),
            Some(status) => {
                let said = stderr.unwrap_or_default();
                let said = said.trim().strip_prefix("evictd: ").unwrap_or(said.trim());
                let reason = match (said, exit_code(&status)) {
                    ("", None) => status.message.unwrap_or_default(),
                    ("", Some(code)) => format!("ended with {code}"),
                    (said, _) => said.to_owned(),
                };
                Err(FleetError::Agent {
                    node: agent.node.clone(),
                    reason,
                    printed: stdout,
                })
            }
            None => Err(agent.failed("the connection ended before the command")),
        }
    }

    /// Asks all agents that run, several at a time; of several commands the first one that an agent's version knows.
    /// `take` has each answer as it comes, in the order of their nodes: no more than those of agents that are asked at
    /// the same time are kept here.
    pub async fn ask_each<'a>(
        &self,
        agents: &'a [AgentPod],
        commands: &[&[&str]],
        mut take: impl FnMut(&'a AgentPod, Result<String, FleetError>),
    ) {
        let running = agents.iter().filter(|agent| agent.is_running());
        let asked = running.map(|agent| async move { (agent, self.ask_in(agent, commands).await) });
        // Boxed, as each answer has a type of its own.
        let asked = asked.map(Box::pin).collect::<Vec<_>>();
        let mut answers = stream::iter(asked).buffered(AT_ONCE);
        while let Some((agent, answer)) = answers.next().await {
            take(agent, answer);
        }
    }

    async fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, FleetError> {
        let map = self.config_maps().get_opt(name).await;
        map.map_err(|error| api("configmaps", &error))
    }

    /// Whether the ConfigMap pauses all agents.
    ///
    /// # Errors
    /// [`FleetError::Api`].
    pub async fn is_paused(&self) -> Result<bool, FleetError> {
        let map = self.config_map(&self.pause).await?;
        let word = map.and_then(|map| map.data?.remove("paused"));
        Ok(word.as_deref() == Some("true"))
    }

    /// The fleet brake, if it is active, by the rules of these agents; where these differ, the strictest state.
    ///
    /// # Errors
    /// [`FleetError::Api`].
    pub async fn brake(&self, agents: &[AgentPod]) -> Result<Option<Brake>, FleetError> {
        let map = self.config_map(&self.brake).await?;
        let state = map.map(|map| fleet_brake::published(&map).state);
        let Some(published) = state.filter(|state| state.pace != FleetPace::Normal) else {
            return Ok(None);
        };
        let name = format!("{}/{}", self.namespace, self.brake);
        // Where they may not be read, what is published is shown.
        let configurations = self.configurations(agents).await.unwrap_or_default();
        let rules = configurations.iter().filter_map(|(_, config)| {
            let brake = FleetConfig::of(config)?;
            (brake.config_map.to_string() == name).then_some(brake.rules)
        });
        Ok(brake_at(published, rules, Timestamp::now().as_second()))
    }

    /// The configurations of these agents that can be read, with the names of their ConfigMaps.
    async fn configurations(
        &self,
        agents: &[AgentPod],
    ) -> Result<Vec<(String, Value)>, FleetError> {
        let named = agents.iter().filter_map(|a| a.configuration.clone());
        let mut found = Vec::new();
        for name in named.collect::<BTreeSet<_>>() {
            let map = self.config_map(&name).await?;
            let text = map.and_then(|map| map.data?.remove("config.yaml"));
            let config = text.and_then(|text| parse_document(&text).ok());
            found.extend(config.map(|config| (name, config)));
        }
        Ok(found)
    }

    /// The configurations of agents that do not follow the ConfigMap of the pause.
    ///
    /// # Errors
    /// [`FleetError::Missing`] where there is no agent, or none follows it; [`FleetError::Api`].
    pub async fn agents_that_ignore_pause(&self) -> Result<Vec<String>, FleetError> {
        let agents = self.agents().await?;
        if agents.is_empty() {
            return Err(FleetError::Missing {
                what: self.agents.clone(),
                reason: format!("no agent in the namespace {}", self.namespace),
            });
        }
        let expected = self.pause_config_map();
        let (mut ignoring, mut followed) = (Vec::new(), String::new());
        // What cannot be read says nothing either way.
        for (name, config) in self.configurations(&agents).await? {
            let of_it = config["cluster"]["pauseConfigMap"].as_str();
            if of_it != Some(&expected) {
                followed = of_it.unwrap_or("none").to_owned();
                ignoring.push(name);
            }
        }
        let ignores = |agent: &AgentPod| {
            let name = agent.configuration.as_ref();
            name.is_some_and(|name| ignoring.contains(name))
        };
        if agents.iter().all(ignores) {
            return Err(FleetError::Missing {
                what: expected,
                reason: format!("no agent follows it: their cluster.pauseConfigMap is {followed}"),
            });
        }
        Ok(ignoring)
    }

    /// The namespace and the name of the ConfigMap by which all agents are paused.
    pub fn pause_config_map(&self) -> String {
        format!("{}/{}", self.namespace, self.pause)
    }

    /// Pauses all agents, or lifts that; false where there was no pause to lift.
    ///
    /// # Errors
    /// [`FleetError::Api`].
    pub async fn set_paused(&self, is_paused: bool) -> Result<bool, FleetError> {
        let maps = self.config_maps();
        let done = if is_paused {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self.pause},
                "data": {"paused": "true"},
            });
            let how = PatchParams::apply(MANAGER).force();
            let applied = maps.patch(&self.pause, &how, &Patch::Apply(map)).await;
            applied.map(|_| true)
        } else {
            match maps.delete(&self.pause, &Default::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
                deleted => deleted.map(|_| true),
            }
        };
        done.map_err(|error| api("configmaps", &error))
    }

    /// Pauses the agent of one node, or lifts that.
    ///
    /// # Errors
    /// [`FleetError::Missing`] where there is no such node, [`FleetError::Api`].
    pub async fn set_node_paused(&self, node: &str, is_paused: bool) -> Result<(), FleetError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let word = is_paused.then_some("true");
        let patch = json!({"metadata": {"annotations": {PAUSED: word}}});
        let how = PatchParams::default();
        match nodes.patch_metadata(node, &how, &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(FleetError::Missing {
                what: node.to_owned(),
                reason: "no such node".to_owned(),
            }),
            Err(error) => Err(api("nodes", &error)),
        }
    }

    fn agent_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// What a published state of the brake means now; without rules it is taken as it stands.
fn brake_at(
    published: FleetState,
    rules: impl Iterator<Item = FleetRules>,
    now: i64,
) -> Option<Brake> {
    let by_rules = rules.map(|rules| {
        let state = rules.in_force(published, now);
        let window = signed(rules.window.as_secs());
        let is_paused = state.pace == FleetPace::Paused;
        (state, is_paused.then(|| state.until.saturating_add(window)))
    });
    let strictest = by_rules.max_by_key(|(state, slow)| (state.pace, state.until, *slow));
    let (state, slow) = strictest.unwrap_or((published, None));
    let time = |seconds| Timestamp::from_second(seconds).ok();
    let is_active = state.pace != FleetPace::Normal && state.until > now;
    is_active.then_some(Brake {
        pace: state.pace.as_str(),
        until: time(state.until)?,
        slow_until: slow.and_then(time),
    })
}

/// Lists what is wanted of all objects with these labels, page by page: a Node alone may have 100 KiB.
async fn list<K, T>(
    objects: &Api<K>,
    what: &str,
    labels: &str,
    take: impl Fn(&K) -> Option<T>,
) -> Result<Vec<T>, FleetError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut wanted = ListParams::default().limit(PAGE);
    if !labels.is_empty() {
        wanted = wanted.labels(labels);
    }
    let mut all = Vec::new();
    loop {
        let page = objects.list(&wanted).await;
        let page = page.map_err(|error| api(what, &error))?;
        all.extend(page.items.iter().filter_map(&take));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => wanted = wanted.continue_token(&token),
            None => return Ok(all),
        }
    }
}

fn state(node: &Node) -> NodeSummary {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let holds = conditions
        .into_iter()
        .flatten()
        .filter(|c| c.status == "True");
    let pressure = holds.filter(|c| c.type_.ends_with("Pressure"));
    NodeSummary {
        name: node.name_any(),
        is_paused: node
            .annotations()
            .get(PAUSED)
            .is_some_and(|word| word == "true"),
        pressure: pressure.map(|c| c.type_.clone()).collect(),
    }
}

fn agent(pod: &Pod) -> Option<AgentPod> {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    Some(AgentPod {
        name: pod.name_any(),
        node: pod.spec.as_ref()?.node_name.clone()?,
        is_ready: conditions.any(|c| c.type_ == "Ready" && c.status == "True"),
        phase: status.and_then(|s| s.phase.clone()).unwrap_or_default(),
        version: pod
            .labels()
            .get("app.kubernetes.io/version")
            .cloned()
            .unwrap_or_default(),
        configuration: pod.spec.as_ref().and_then(|spec| {
            let volumes = spec.volumes.iter().flatten();
            let mut maps = volumes.filter(|v| v.name == CONFIGURATION);
            Some(maps.next()?.config_map.as_ref()?.name.clone())
        }),
    })
}

/// Reads a stream to its end, as far as it is not too long.
async fn whole(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let Some(stream) = stream else {
        return Ok(String::new());
    };
    let mut bytes = Vec::new();
    stream.take(MAX + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > MAX {
        return Err(io::Error::other(format!("prints more than {MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// The exit code that a status tells of.
fn exit_code(status: &Status) -> Option<String> {
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let code = causes
        .iter()
        .find(|cause| cause.reason.as_deref() == Some(EXIT_CODE))?;
    code.message.clone()
}

fn api(what: &str, error: &kube::Error) -> FleetError {
    let reason = match error {
        kube::Error::Api(status) => {
            format!("{} {}: {}", status.code, status.reason, status.message)
        }
        error => error.to_string(),
    };
    FleetError::Api {
        what: what.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_agents_on_a_node_the_ready_one_counts() {
        let agent = |name: &str, phase: &str, is_ready| AgentPod {
            name: name.to_owned(),
            node: "n1".to_owned(),
            is_ready,
            phase: phase.to_owned(),
            version: String::new(),
            configuration: None,
        };
        let mut agents = vec![
            agent("a", "Failed", false),
            agent("b", "Running", false),
            agent("c", "Running", true),
        ];
        let chosen = |agents: &[AgentPod]| AgentPod::on(agents, "n1").map(|a| a.name.clone());
        for expected in ["c", "b", "a"] {
            assert_eq!(chosen(&agents).as_deref(), Some(expected));
            agents.pop();
        }
        assert_eq!(chosen(&agents), None);
    }
}
