//! `kubectl evictd incidents`: the evictions that agents have on record.

use evictd_kube::fleet_client::{AgentPod, FleetClient, FleetError};
use serde_json::{Value, json};

use super::{json_of, word};
use crate::cli::{CommandError, OutputFormat, report::NOT_AGREED, table::Table, to_json};

/// Incidents that are listed without `--all`.
const NEWEST: usize = 20;

/// Shows one incident of a node's agent.
pub(super) async fn one(
    fleet: &FleetClient,
    node: &str,
    id: &str,
    output: OutputFormat,
) -> Result<String, CommandError> {
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

/// Lists the newest evictions, or all, of one node or of all nodes.
pub(super) async fn list(
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
    let mut table = Table::new("TIME  NODE  POD  SIGNAL  NOTE  INCIDENT");
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
