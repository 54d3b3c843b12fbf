//! `evictd replay`: the engine's decisions over a recorded sequence.

use std::path::{Path, PathBuf};

use evictd_config::kube::summary::Summary;
use evictd_engine::{
    EvictionDecision, Forecast, NodeBounds, NodeCondition, NodeReclaim, Planner, PlannerSettings,
    Pod, SignalForecast, Snapshot, message,
    model::settings::Mode,
    pace::{Decision, Urgency},
};
use evictd_store::{incident::files, record::PaceRecord};
use serde::Serialize;
use serde_json::Value;

use super::{
    CommandError, OutputFormat,
    input::{invalid, read_json},
    scenario::{self, Scenario, Step},
    table::{Table, or_dash, printable},
    to_json,
};

/// Arguments of `evictd replay`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The sequence: configuration, pods, and what was seen step by step, as JSON; or the file of an incident
    #[arg(value_name = "SCENARIO.json")]
    scenario: PathBuf,
    /// Decide in this mode; without it as `kubelet`, although an agent's default is `evictd`. An incident knows its
    /// mode
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// How to print the decisions; without it a table, and JSON for an incident
    #[arg(short, long, value_enum)]
    output: Option<OutputFormat>,
}

/// The engine's modes on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    /// Round by round what the kubelet does
    Kubelet,
    /// One pod in ten seconds, several at once only where that is urgent
    Evictd,
}

/// Outcome of a step, as programs read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepJson {
    t: Value,
    node_conditions: Vec<&'static str>,
    evicted: Vec<EvictedJson>,
    node_reclaim: Vec<&'static str>,
    /// Forecasts in the evictd mode: where signals are heading, if they are heading down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forecast: Vec<ForecastJson>,
}

/// Seconds until a signal's highest threshold is met and until nothing is left, at the present rate.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ForecastJson {
    signal: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_threshold_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_exhausted_seconds: Option<f64>,
}

/// An evicted pod and what its status says afterwards.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EvictedJson {
    pod: String,
    grace_period_seconds: i64,
    message: String,
    phase: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<ConditionJson>,
}

/// A condition in the status of a pod.
#[derive(Serialize)]
struct ConditionJson {
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
}

/// The decision of an incident, made again from its file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IncidentJson {
    /// The incident.
    id: String,
    /// Decision of the engine from the recorded numbers.
    decision: Decision,
    /// Whether the engine evicts for the recorded reason, and the pod that went was first in the order.
    agrees: bool,
    /// Whether the pod that went is the first one by the order of the file; absent where the file does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    went_first: Option<bool>,
    /// The pod that went.
    evicted: String,
}

/// Whether a file is an incident, even a damaged one: only a scenario has steps.
fn is_incident(document: &Value) -> bool {
    let mut fields = ["version", "eviction", "judged"].into_iter();
    document.get("steps").is_none() && fields.any(|field| document.get(field).is_some())
}

/// Makes the decision of an incident again.
fn replay_incident(path: &Path, document: &Value) -> Result<IncidentJson, CommandError> {
    let incident =
        files::decode(document.to_string().as_bytes()).map_err(|reason| invalid(path, reason))?;
    let pace_inputs = incident.pace_inputs.ok_or_else(|| {
        invalid(
            path,
            "judged: is not there: a pod above its own limit, one that the kernel program has killed, and what the \
            kubelet's mode evicts are recorded without it",
        )
    })?;
    let decision = pace_inputs.decide();
    let eviction = &incident.eviction;
    let recorded = eviction.pace.as_ref();
    let is_same = match (decision, recorded) {
        (Decision::Evict { urgency }, Some(recorded)) => {
            // A sample of the signal has neither the pod's usage nor the reason of the choice.
            let again = PaceRecord {
                expected: recorded.expected,
                shmem: recorded.shmem,
                out_of_order: recorded.out_of_order,
                ..PaceRecord::of_inputs(urgency, &pace_inputs)
            };
            let is_possible = (recorded.shmem..=eviction.working_set).contains(&recorded.expected);
            again == *recorded && is_possible
        }
        _ => false,
    };
    let went_first = incident.went_first();
    let agrees = is_same && went_first != Some(false);
    Ok(IncidentJson {
        id: eviction.id.clone(),
        decision,
        agrees,
        went_first,
        evicted: eviction.pod(),
    })
}

impl IncidentJson {
    /// Formats the incident for people.
    fn text(&self) -> String {
        let decision = match self.decision {
            Decision::Evict {
                urgency: Urgency::Urgent { .. },
                ..
            } => "evict at once: urgent",
            Decision::Evict { .. } => "evict, not urgent",
            _ => "evict no pod",
        };
        let agrees = match self.agrees {
            true => "as it was recorded",
            false if self.went_first == Some(false) => "the pod was not the first in the order",
            false => "not what was recorded",
        };
        format!(
            "incident {}\nevicted: {}\ndecided again: {decision}; {agrees}\n",
            self.id, self.evicted
        )
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let path = &arguments.scenario;
    let document = read_json(path)?;
    if is_incident(&document) {
        let incident = replay_incident(path, &document)?;
        return match arguments.output {
            None | Some(OutputFormat::Json) => to_json(&incident),
            Some(OutputFormat::Table) => Ok(printable(incident.text())),
        };
    }
    let scenario = scenario::read(path, document)?;
    let mode = match arguments.mode {
        None | Some(ModeName::Kubelet) => Mode::Kubelet,
        Some(ModeName::Evictd) => Mode::Evictd,
    };
    let steps = replay(scenario, mode);
    match arguments.output {
        Some(OutputFormat::Json) => to_json(&steps),
        None | Some(OutputFormat::Table) => Ok(table(&steps)),
    }
}

fn replay(scenario: Scenario, mode: Mode) -> Vec<StepJson> {
    let Scenario {
        eviction,
        strategy,
        layout,
        steps,
    } = scenario;
    let mut planner = Planner::new(PlannerSettings {
        eviction,
        layout,
        strategy,
        mode,
        fastpath_signals: Vec::new(),
        kubelets_signals: Vec::new(),
        has_api_server: false,
    });
    let mut evicted: Vec<String> = Vec::new();
    let mut results = Vec::with_capacity(steps.len());
    for step in steps {
        let step = step.without(&evicted);
        let (result, victims) = run_step(&mut planner, step, mode);
        evicted.extend(victims);
        results.push(result);
    }
    results
}

/// Runs one step; returns what it came to and the UIDs of its victims.
fn run_step(planner: &mut Planner, step: Step, mode: Mode) -> (StepJson, Vec<String>) {
    let Step {
        t,
        now,
        summary,
        after_reclaim,
        active,
    } = step;
    let (names, pods): (Vec<String>, Vec<Pod>) = active.into_iter().unzip();
    let before = snapshot(&summary, &pods);
    if mode == Mode::Kubelet {
        // The recorded kubelet has waited for its victims before each round.
        planner.forget_victims();
    }
    let plan = planner.plan(now, before);
    let mut evictions = plan.evictions.clone();
    if !plan.node_reclaim.is_empty() {
        let after = snapshot(after_reclaim.as_ref().unwrap_or(&summary), &pods);
        evictions.extend(planner.after_reclaim(now, &plan, before, after));
    }
    let victims = evictions
        .iter()
        .map(|eviction| eviction.uid.clone())
        .collect();
    let name_of = |eviction: &EvictionDecision| {
        let position = pods.iter().position(|pod| pod.uid == eviction.uid);
        position
            .and_then(|position| names.get(position))
            .cloned()
            .unwrap_or_else(|| eviction.name.clone())
    };
    let result = StepJson {
        t,
        node_conditions: plan
            .conditions
            .iter()
            .copied()
            .map(NodeCondition::as_str)
            .collect(),
        evicted: evictions
            .iter()
            .map(|eviction| EvictedJson::new(name_of(eviction), eviction))
            .collect(),
        node_reclaim: plan
            .node_reclaim
            .iter()
            .copied()
            .map(NodeReclaim::as_str)
            .collect(),
        forecast: match mode {
            Mode::Kubelet => Vec::new(),
            Mode::Evictd => plan
                .forecasts
                .iter()
                .filter_map(ForecastJson::new)
                .collect(),
        },
    };
    (result, victims)
}

fn snapshot<'a>(summary: &'a Summary, pods: &'a [Pod]) -> Snapshot<'a> {
    Snapshot {
        observations: &summary.observations,
        pods,
        usages: &summary.pods,
        bounds: NodeBounds::default(),
    }
}

impl ForecastJson {
    /// Builds the forecast; `None` for a signal that is not heading down.
    fn new(heading: &SignalForecast) -> Option<Self> {
        let Forecast {
            until_threshold,
            until_exhausted,
        } = heading.forecast;
        until_threshold.or(until_exhausted)?;
        Some(Self {
            signal: heading.signal.as_str(),
            until_threshold_seconds: until_threshold.map(|time| time.as_secs_f64()),
            until_exhausted_seconds: until_exhausted.map(|time| time.as_secs_f64()),
        })
    }
}

impl EvictedJson {
    fn new(pod: String, eviction: &EvictionDecision) -> Self {
        let disruption = eviction
            .cause
            .announces_disruption()
            .then_some(ConditionJson {
                kind: message::DISRUPTION_TARGET,
                status: "True",
                reason: message::TERMINATION_BY_KUBELET,
            });
        Self {
            pod,
            grace_period_seconds: eviction.grace_period_seconds,
            message: eviction.message.text.clone(),
            phase: message::PHASE,
            reason: message::EVICTED,
            conditions: disruption.into_iter().collect(),
        }
    }
}

fn table(steps: &[StepJson]) -> String {
    let mut table = Table::new("T>  NODE CONDITIONS  RECLAIM  EVICTED  GRACE>  MESSAGE");
    let joined = |words: &[&str]| or_dash((!words.is_empty()).then(|| words.join(",")));
    for step in steps {
        // Only the first row of a step has these.
        let mut start = [
            step.t.to_string(),
            joined(&step.node_conditions),
            joined(&step.node_reclaim),
        ];
        if step.evicted.is_empty() {
            let [t, conditions, reclaim] = std::mem::take(&mut start);
            let (grace, message) = (String::new(), String::new());
            table.row([t, conditions, reclaim, joined(&[]), grace, message]);
        }
        for evicted in &step.evicted {
            let [t, conditions, reclaim] = std::mem::take(&mut start);
            let grace = format!("{}s", evicted.grace_period_seconds);
            table.row([
                t,
                conditions,
                reclaim,
                evicted.pod.clone(),
                grace,
                evicted.message.trim().to_owned(),
            ]);
        }
    }
    table.render()
}
