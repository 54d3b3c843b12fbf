//! `kubectl evictd`: the same program under the name of a kubectl plugin. It shows all nodes' agents to a user who has
//! a kubeconfig, and pauses them.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use evictd_engine::fleet::FleetPace;
use evictd_kube::fleet_client::{
    AGENTS, Access, AgentPod, BRAKE, Brake, FleetClient, FleetError, NodeSummary, PAUSE,
};
use serde_json::{Value, json};

use super::{
    CommandError, INSTALLED, OutputFormat,
    input::bad,
    policy,
    report::NOT_AGREED,
    table::{Alignment, Table, bytes, printable},
    to_json,
};

/// File name under which kubectl finds the plugin.
pub(super) const PROGRAM: &str = "kubectl-evictd";
/// Incidents that are listed without `--all`.
const NEWEST: usize = 20;

/// See and pause the evictd agents of a cluster.
#[derive(Parser)]
#[command(name = "kubectl-evictd", bin_name = "kubectl evictd", version)]
pub(super) struct Arguments {
    /// The kubeconfig; without it $KUBECONFIG, or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without it the current one
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the agents
    #[arg(
        short,
        long,
        global = true,
        default_value = "evictd",
        value_name = "NAME"
    )]
    namespace: String,
    /// A selector of the agents' pods, if other labels than the chart's name them
    #[arg(long, global = true, default_value = AGENTS, value_name = "SELECTOR")]
    selector: String,
    /// The ConfigMap that pauses all agents, as `cluster.pauseConfigMap` names it
    #[arg(long, global = true, default_value = PAUSE, value_name = "NAME")]
    pause_config_map: String,
    /// The ConfigMap of the fleet brake, as `cluster.fleetBrake.configMap` names it
    #[arg(long, global = true, default_value = BRAKE, value_name = "NAME")]
    fleet_config_map: String,
    /// How to print it
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show every node with its agent, its pressure and its pauses.
    Status,
    /// Say why something is as it is.
    Explain {
        #[command(subcommand)]
        what: Explain,
    },
    /// Show the evictions that the agents have on record, or one of them.
    Incidents {
        /// The eviction: its id, the last characters of the id if only one incident ends with them, or `latest`; needs
        /// --node
        #[arg(value_name = "ID", requires = "node")]
        incident: Option<String>,
        /// Of this node alone
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// All of them, not only the newest
        #[arg(long)]
        all: bool,
    },
    /// Pause evictions, on all nodes or on one.
    Pause {
        /// On this node alone
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
    /// Remove the pause set by `pause`; pauses set in other ways stay.
    Resume {
        /// On this node alone
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

#[derive(Subcommand)]
enum Explain {
    /// A pod: its place in the order of eviction, what policies say of it, and the OOM killer's choice.
    Pod {
        /// `namespace/name`
        #[arg(value_name = "NAMESPACE/NAME")]
        pod: String,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let text = runtime.block_on(answer(arguments))?;
    Ok(match arguments.output {
        OutputFormat::Table => printable(text),
        OutputFormat::Json => text,
    })
}

async fn answer(arguments: &Arguments) -> Result<String, CommandError> {
    // Checked before a request is sent: bad input changes nothing.
    let pod = match &arguments.command {
        Command::Explain {
            what: Explain::Pod { pod },
        } => {
            let parts = pod
                .split_once('/')
                .filter(|(ns, name)| !ns.is_empty() && !name.is_empty() && !name.contains('/'));
            Some(parts.ok_or_else(|| bad(pod, "must be namespace/name"))?)
        }
        _ => None,
    };
    let fleet = FleetClient::open(Access {
        kubeconfig: arguments.kubeconfig.clone(),
        context: arguments.context.clone(),
        namespace: arguments.namespace.clone(),
        agents: arguments.selector.clone(),
        pause: arguments.pause_config_map.clone(),
        brake: arguments.fleet_config_map.clone(),
    });
    let fleet = fleet.await?;
    let output = arguments.output;
    match &arguments.command {
        Command::Status => status(&fleet, output).await,
        Command::Explain { .. } => {
            let (namespace, name) = pod.unwrap_or_default();
            explain(&fleet, namespace, name, output).await
        }
        Command::Incidents {
            incident: Some(id),
            node: Some(node),
            ..
        } => {
            let agent = fleet.agent_on(node).await?;
            let form = match output {
                OutputFormat::Table => "table",
                OutputFormat::Json => "json",
            };
            match fleet.ask(&agent, &["report", id, "-o", form]).await {
                // Lines of a journal that cannot be read hide no incident.
                Err(FleetError::Agent {
                    node,
                    reason,
                    printed,
                }) if !printed.is_empty() => {
                    eprintln!("evictd: the agent on {node}: {reason}");
                    Ok(printed)
                }
                answer => Ok(answer?),
            }
        }
        Command::Incidents { node, all, .. } => {
            incidents(&fleet, node.as_deref(), *all, output).await
        }
        Command::Pause { node } => pause(&fleet, node.as_deref(), true, output).await,
        Command::Resume { node } => pause(&fleet, node.as_deref(), false, output).await,
    }
}

async fn status(fleet: &FleetClient, output: OutputFormat) -> Result<String, CommandError> {
    let (nodes, agents) = (fleet.nodes().await?, fleet.agents().await?);
    let (all_paused, brake) = (fleet.is_paused().await?, fleet.brake(&agents).await?);
    let agent_of = |node: &NodeSummary| agents.iter().find(|agent| agent.node == node.name);
    let paused_by = |node: &NodeSummary| {
        let words = [(all_paused, "configMap"), (node.is_paused, "node")];
        let words = words.into_iter().filter(|(is_set, _)| *is_set);
        words.map(|(_, by)| by).collect::<Vec<_>>()
    };
    if output == OutputFormat::Json {
        let nodes = nodes.iter().map(|node| {
            json!({
                "node": node.name,
                "agent": agent_of(node).map(|agent| json!({
                    "pod": agent.name, "phase": agent.phase, "ready": agent.is_ready, "version": agent.version,
                })),
                "pressure": node.pressure,
                "pausedBy": paused_by(node),
            })
        });
        return to_json(&json!({ "nodes": nodes.collect::<Vec<_>>(), "fleetBrake": brake }));
    }
    let mut table = Table::new(&[
        ("NODE", Alignment::Left),
        ("AGENT", Alignment::Left),
        ("VERSION", Alignment::Left),
        ("PRESSURE", Alignment::Left),
        ("PAUSED BY", Alignment::Left),
    ]);
    let or_dash = |words: Vec<&str>| match words.is_empty() {
        true => "-".to_owned(),
        false => words.join(", "),
    };
    for node in &nodes {
        let agent = agent_of(node);
        let state = agent.map_or("none", |agent| match agent {
            AgentPod { is_ready: true, .. } => "ready",
            AgentPod { phase, .. } if phase == "Running" => "not ready",
            AgentPod { phase, .. } => phase,
        });
        table.row([
            node.name.clone(),
            state.to_owned(),
            or_dash(
                agent
                    .map(|agent| agent.version.as_str())
                    .into_iter()
                    .collect(),
            ),
            or_dash(node.pressure.iter().map(String::as_str).collect()),
            or_dash(paused_by(node)),
        ]);
    }
    let ready = nodes
        .iter()
        .filter_map(agent_of)
        .filter(|agent| agent.is_ready);
    let brake = brake.map(|brake| {
        let Brake { pace, until, .. } = brake;
        let then = match brake.slow_until {
            Some(until) => format!(", then slow until {until}"),
            None if pace == FleetPace::Paused.as_str() => ", then slow for a window".to_owned(),
            None => String::new(),
        };
        format!("the fleet brake is active: {pace} until {until}{then}; urgent evictions go on\n")
    });
    Ok(format!(
        "{}\n{} of {} nodes have an agent that is ready\n{}",
        table.render(),
        ready.count(),
        nodes.len(),
        brake.unwrap_or_default()
    ))
}

/// What an agent knows of one of its pods.
struct Explained {
    pod: String,
    node: String,
    /// Place of the pod in the order of eviction, from 0 on.
    place: usize,
    /// Entry of the pod in what `evictd top` prints.
    top: Value,
    /// The output of `evictd policy explain`, or its error: an agent without policies has nothing to explain.
    policies: Result<Value, String>,
}

async fn explain(
    fleet: &FleetClient,
    namespace: &str,
    name: &str,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let explained = Explained::ask(fleet, namespace, name).await?;
    match output {
        OutputFormat::Json => explained.json(),
        OutputFormat::Table => Ok(explained.text()),
    }
}

impl Explained {
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
        let amount = |field: &str| {
            found[field]
                .as_u64()
                .map_or("-".to_owned(), |n| bytes(n.into()))
        };
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

/// Parses what an agent has printed as JSON.
fn json_of(agent: &AgentPod, text: &str) -> Result<Value, FleetError> {
    serde_json::from_str(text).map_err(|error| FleetError::Agent {
        printed: String::new(),
        node: agent.node.clone(),
        reason: format!("an answer that is no JSON: {error}"),
    })
}

/// The newest evictions of all nodes that have answered, oldest first.
#[derive(Default)]
struct Newest {
    found: Vec<Value>,
    /// Largest number of evictions to keep; all of them where there is no bound.
    most: Option<usize>,
    left_out: u64,
}

impl Newest {
    fn take(&mut self, agent: &AgentPod, evictions: Vec<Value>) {
        // An agent's oldest eviction tells how many older ones it has left out.
        let older = evictions.first().map(|first| &first["olderLeftOut"]);
        self.left_out += older.and_then(Value::as_u64).unwrap_or(0);
        self.found.extend(evictions.into_iter().map(|mut eviction| {
            if let Some(eviction) = eviction.as_object_mut() {
                eviction.remove("olderLeftOut");
                eviction.insert("node".to_owned(), agent.node.as_str().into());
            }
            eviction
        }));
        self.found
            .sort_by(|one, other| word(one, "time").cmp(word(other, "time")));
        let most = self.most.unwrap_or(usize::MAX);
        let too_many = self.found.len().saturating_sub(most);
        self.found.drain(..too_many);
        self.left_out += too_many as u64;
    }
}

fn word<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

async fn incidents(
    fleet: &FleetClient,
    node: Option<&str>,
    all: bool,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let agents = match node {
        Some(node) => vec![fleet.agent_on(node).await?],
        None => fleet.agents().await?,
    };
    let (newest, silent) = ask_for_incidents(fleet, &agents, all).await;
    let Newest {
        found, left_out, ..
    } = newest;
    if output == OutputFormat::Json {
        return to_json(&json!({ "incidents": found, "leftOut": left_out, "unanswered": silent }));
    }
    let mut shown = table_of(&found);
    if left_out > 0 {
        shown += &format!("\n{left_out} older ones are left out: --all shows them\n");
    }
    for reason in silent {
        shown += &format!("\nwithout {reason}\n");
    }
    Ok(shown)
}

/// The evictions of these agents, and why some are not among them.
async fn ask_for_incidents(
    fleet: &FleetClient,
    agents: &[AgentPod],
    all: bool,
) -> (Newest, Vec<String>) {
    let waits = agents.iter().filter(|agent| agent.phase != "Running");
    let waits =
        waits.map(|agent| format!("the agent on {}: its pod is {}", agent.node, agent.phase));
    let mut silent: Vec<String> = waits.collect();
    let mut newest = Newest {
        most: (!all).then_some(NEWEST),
        ..Newest::default()
    };
    let most = NEWEST.to_string();
    let every: &[&str] = &["report", "-o", "json"];
    // The agent's container runs the command within its memory limit. The version before has no such option.
    let bounded: &[&str] = &["report", "--newest", &most, "-o", "json"];
    let commands = match all {
        true => vec![every],
        false => vec![bounded, every],
    };
    let take = |agent: &AgentPod, answer: Result<String, FleetError>| {
        // Lines of a journal that cannot be read hide no others.
        let answer = answer.or_else(|error| match error {
            FleetError::Agent {
                reason, printed, ..
            } if !printed.is_empty() => {
                silent.push(format!(
                    "what the agent on {} cannot read: {reason}",
                    agent.node
                ));
                Ok(printed)
            }
            error => Err(error),
        });
        match answer.and_then(|text| json_of(agent, &text)) {
            Ok(Value::Array(evictions)) => newest.take(agent, evictions),
            Ok(_) => silent.push(format!("the agent on {}: no list", agent.node)),
            Err(error) => silent.push(error.to_string()),
        }
    };
    fleet.ask_each(agents, &commands, take).await;
    (newest, silent)
}

fn table_of(evictions: &[Value]) -> String {
    let mut table = Table::new(&[
        ("TIME", Alignment::Left),
        ("NODE", Alignment::Left),
        ("POD", Alignment::Left),
        ("SIGNAL", Alignment::Left),
        ("NOTE", Alignment::Left),
        ("INCIDENT", Alignment::Left),
    ]);
    for eviction in evictions {
        let text = |field: &str| word(eviction, field).to_owned();
        let note = match (eviction["error"].as_str(), eviction["shadow"] == true) {
            (Some(error), _) => format!("refused: {error}"),
            (None, true) => "shadow".to_owned(),
            (None, false) if eviction["agreed"] == false => NOT_AGREED.to_owned(),
            (None, false) => String::new(),
        };
        table.row([
            text("time").chars().take(19).collect(),
            text("node"),
            format!("{}/{}", text("namespace"), text("name")),
            text("signal"),
            note,
            text("id"),
        ]);
    }
    table.render()
}

async fn pause(
    fleet: &FleetClient,
    node: Option<&str>,
    is_paused: bool,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let mut note = None;
    match node {
        Some(node) => fleet.set_node_paused(node, is_paused).await?,
        None if is_paused => {
            note = pause_note(fleet).await?;
            fleet.set_paused(true).await?;
        }
        // Agents follow the pause by themselves: no request goes to them.
        None if fleet.set_paused(false).await? => {}
        None => {
            let mut notes = vec![format!(
                "there was no pause to lift: no ConfigMap {}",
                fleet.pause_config_map()
            )];
            notes.extend(pause_note(fleet).await?);
            note = Some(notes.join("\n"));
        }
    }
    if output == OutputFormat::Json {
        return to_json(&json!({ "node": node, "paused": is_paused, "note": note }));
    }
    let place = node.map_or("all nodes".to_owned(), |node| format!("the node {node}"));
    let done = if is_paused { "paused" } else { "resumed" };
    let note = note.map_or(String::new(), |note| format!("{note}\n"));
    Ok(format!("evictions are {done} on {place}\n{note}"))
}

/// Warnings about agents that a pause may not reach. A user who may not read that pauses all the same.
async fn pause_note(fleet: &FleetClient) -> Result<Option<String>, FleetError> {
    match fleet.agents_that_ignore_pause().await {
        Ok(ignoring) if ignoring.is_empty() => Ok(None),
        Ok(ignoring) => Ok(Some(format!(
            "but for agents with the configuration {}, which follow another ConfigMap",
            ignoring.join(", ")
        ))),
        Err(FleetError::Api { what, reason }) => Ok(Some(format!(
            "could not check that all agents follow this ConfigMap: {what}: {reason}"
        ))),
        Err(error) => Err(error),
    }
}
