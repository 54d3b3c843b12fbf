//! `kubectl evictd`: the same program under the name of a kubectl plugin. It shows all nodes' agents to a user who has
//! a kubeconfig, and pauses them.

mod explain;
mod incidents;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use evictd_engine::fleet::FleetPace;
use evictd_kube::fleet_client::{
    AGENTS, Access, AgentPod, BRAKE, Brake, FleetClient, FleetError, NodeSummary, PAUSE,
};
use serde_json::{Value, json};

use super::{
    CommandError, OutputFormat,
    input::bad,
    table::{Table, or_dash, printable},
    to_json,
};

/// File name under which kubectl finds the plugin.
pub(super) const PROGRAM: &str = "kubectl-evictd";
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
            explain::pod(&fleet, namespace, name, output).await
        }
        Command::Incidents {
            incident: Some(id),
            node: Some(node),
            ..
        } => incidents::one(&fleet, node, id, output).await,
        Command::Incidents { node, all, .. } => {
            incidents::list(&fleet, node.as_deref(), *all, output).await
        }
        Command::Pause { node } => pause(&fleet, node.as_deref(), true, output).await,
        Command::Resume { node } => pause(&fleet, node.as_deref(), false, output).await,
    }
}

async fn status(fleet: &FleetClient, output: OutputFormat) -> Result<String, CommandError> {
    let (nodes, agents) = (fleet.nodes().await?, fleet.agents().await?);
    let (all_paused, brake) = (fleet.is_paused().await?, fleet.brake(&agents).await?);
    let agent_of = |node: &NodeSummary| AgentPod::on(&agents, &node.name);
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
    let mut table = Table::new("NODE  AGENT  VERSION  PRESSURE  PAUSED BY");
    let joined = |words: Vec<&str>| or_dash((!words.is_empty()).then(|| words.join(", ")));
    for node in &nodes {
        let agent = agent_of(node);
        let state = agent.map_or("none", |agent| match agent {
            AgentPod { is_ready: true, .. } => "ready",
            agent if agent.is_running() => "not ready",
            AgentPod { phase, .. } => phase,
        });
        table.row([
            node.name.clone(),
            state.to_owned(),
            or_dash(agent.map(|agent| &agent.version)),
            joined(node.pressure.iter().map(String::as_str).collect()),
            joined(paused_by(node)),
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

/// Parses what an agent has printed as JSON.
fn json_of(agent: &AgentPod, text: &str) -> Result<Value, FleetError> {
    let parsed = serde_json::from_str(text);
    parsed.map_err(|error| agent.failed(format!("an answer that is no JSON: {error}")))
}

fn word<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

async fn pause(
    fleet: &FleetClient,
    node: Option<&str>,
    is_paused: bool,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let mut note = None;
    let map = fleet.pause_config_map();
    let done = match (node, is_paused) {
        (Some(node), _) => {
            fleet.set_node_paused(node, is_paused).await?;
            match is_paused {
                true => format!("evictions are paused on the node {node}"),
                false => format!(
                    "the pause of the node {node} is lifted; one of all nodes stays if there is one"
                ),
            }
        }
        (None, true) => {
            note = pause_note(fleet).await?;
            fleet.set_paused(true).await?;
            "evictions are paused on all nodes".to_owned()
        }
        // Agents follow the pause by themselves: no request goes to them.
        (None, false) if fleet.set_paused(false).await? => {
            format!("the pause by the ConfigMap {map} is lifted; pauses of single nodes stay")
        }
        (None, false) => {
            let mut notes = vec![format!("there was no pause to lift: no ConfigMap {map}")];
            notes.extend(pause_note(fleet).await?);
            note = Some(notes.join("\n"));
            "nothing has changed".to_owned()
        }
    };
    if output == OutputFormat::Json {
        return to_json(&json!({ "node": node, "paused": is_paused, "note": note }));
    }
    let note = note.map_or(String::new(), |note| format!("{note}\n"));
    Ok(format!("{done}\n{note}"))
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
