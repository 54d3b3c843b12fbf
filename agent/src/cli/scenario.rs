//! A scenario, the input of `evictd replay`: a configuration, pods, and the observations step by step.

use std::path::Path;

use evictd_config::{
    ConfigError, EvictionFields, cut,
    decode::ObjectDecoder,
    kube::{
        pod::read_pods,
        summary::{Summary, read_summary},
    },
};
use evictd_engine::{
    Layout, Pod,
    model::settings::{EvictionConfig, RankingStrategy},
};
use serde_json::{Map, Value};

use super::{CommandError, input::invalid};

/// A recorded sequence.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) eviction: EvictionConfig,
    pub(super) strategy: RankingStrategy,
    pub(super) layout: Layout,
    pub(super) steps: Vec<Step>,
}

/// The state at one time.
#[derive(Debug)]
pub(super) struct Step {
    /// The time as the document has it, in seconds.
    pub(super) t: Value,
    /// Time `t` in nanoseconds.
    pub(super) now: i64,
    pub(super) summary: Summary,
    /// The summary after node-level reclaim; without one it is the same as before.
    pub(super) after_reclaim: Option<Summary>,
    /// The pods that ran, each with the name that the step calls it by.
    pub(super) active: Vec<(String, Pod)>,
}

/// The fields of a scenario.
const FIELDS: [&str; 5] = [
    "config",
    "pods",
    "dedicatedImageFs",
    "splitContainerImageFs",
    "steps",
];
/// The fields of a step. `expect` is what recorded sequences say of the kubelet's decision.
const STEP_FIELDS: [&str; 5] = [
    "t",
    "summary",
    "summaryAfterReclaim",
    "activePods",
    "expect",
];

fn deny_unknown(prefix: &str, map: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    match map.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(format!("{prefix}{}: unknown field", cut(name))),
        None => Ok(()),
    }
}

/// Reads a scenario from the document in a file: one line of the recorded sequences.
pub(super) fn read(path: &Path, document: Value) -> Result<Scenario, CommandError> {
    let Value::Object(mut scenario) = document else {
        return Err(invalid(path, "must be a map of fields"));
    };
    deny_unknown("", &scenario, &FIELDS).map_err(|reason| invalid(path, reason))?;
    let (eviction, strategy) = configuration(scenario.remove("config").unwrap_or_default())?;
    let pods = read_pods(scenario.get("pods").unwrap_or(&Value::Null))
        .map_err(|error| invalid(path, error))?;
    let flag = |name: &str| match scenario.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(invalid(
            path,
            format!("{name}: {}: must be true or false", cut(&other.to_string())),
        )),
    };
    let layout = Layout {
        dedicated_image_fs: flag("dedicatedImageFs")?,
        split_image_fs: flag("splitContainerImageFs")?,
    };
    let Some(Value::Array(steps)) = scenario.get("steps") else {
        return Err(invalid(path, "steps: must be a list"));
    };
    let read = |(i, step)| {
        read_step(&format!("steps[{i}]"), step, &pods).map_err(|reason| invalid(path, reason))
    };
    let steps: Vec<Step> = steps
        .iter()
        .enumerate()
        .map(read)
        .collect::<Result<_, _>>()?;
    if let Some(step) = steps.first().filter(|step| step.now < 0) {
        let reason = format!("steps[0].t: {}: must not be below zero", step.t);
        return Err(invalid(path, reason));
    }
    for (i, (before, step)) in steps.iter().zip(steps.iter().skip(1)).enumerate() {
        if step.now < before.now {
            let (i, t, before) = (i + 1, &step.t, &before.t);
            let reason =
                format!("steps[{i}].t: {t}: is before {before}, the time of the last step");
            return Err(invalid(path, reason));
        }
    }
    Ok(Scenario {
        eviction,
        strategy,
        layout,
        steps,
    })
}

/// The eviction fields of a configuration file, but the transition period in seconds, and then zero is zero.
fn configuration(config: Value) -> Result<(EvictionConfig, RankingStrategy), ConfigError> {
    let mut fields = ObjectDecoder::open("config", config)?;
    let transition = fields.seconds("evictionPressureTransitionPeriodSeconds")?;
    let strategy = fields
        .choice("rankingStrategy", &RankingStrategy::CHOICES)?
        .unwrap_or_default();
    let eviction = EvictionFields::take(&mut fields)?
        .with_transition_period(transition)
        .resolve()?;
    fields.deny_unknown_fields()?;
    Ok((eviction, strategy))
}

fn read_step(name: &str, step: &Value, pods: &[Pod]) -> Result<Step, String> {
    let Value::Object(step) = step else {
        return Err(format!(
            "{name}: {}: must be a map of fields",
            cut(&step.to_string())
        ));
    };
    deny_unknown(&format!("{name}."), step, &STEP_FIELDS)?;
    let t = step.get("t").cloned().unwrap_or_default();
    let now = t
        .as_f64()
        .map(|seconds| seconds * 1e9)
        .filter(|nanos| nanos.abs() < i64::MAX as f64);
    let now = now.ok_or_else(|| {
        format!(
            "{name}.t: {}: must be a time in seconds",
            cut(&t.to_string())
        )
    })? as i64;
    let summary = |field: &str| match step.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(document) => read_summary(&format!("{name}.{field}"), document)
            .map(Some)
            .map_err(|error| error.to_string()),
    };
    let active = match step.get("activePods") {
        None | Some(Value::Null) => pods
            .iter()
            .map(|pod| (pod.name.clone(), pod.clone()))
            .collect(),
        Some(Value::Array(names)) => {
            let find = |(i, called)| {
                find(pods, called).ok_or_else(|| {
                    format!(
                        "{name}.activePods[{i}]: {}: no such pod",
                        cut(&called.to_string())
                    )
                })
            };
            names
                .iter()
                .enumerate()
                .map(find)
                .collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(format!(
                "{name}.activePods: {}: must be a list of names",
                cut(&other.to_string())
            ));
        }
    };
    Ok(Step {
        t,
        now,
        summary: summary("summary")?.unwrap_or_default(),
        after_reclaim: summary("summaryAfterReclaim")?,
        active,
    })
}

/// Finds a pod by `name`, or by `namespace/name`.
fn find(pods: &[Pod], called: &Value) -> Option<(String, Pod)> {
    let called = called.as_str()?;
    let pod = pods
        .iter()
        .find(|pod| pod.name == called || pod.to_string() == called)?;
    Some((called.to_owned(), pod.clone()))
}

impl Step {
    /// Drops the pods that were evicted earlier.
    pub(super) fn without(mut self, evicted: &[String]) -> Self {
        self.active.retain(|(_, pod)| !evicted.contains(&pod.uid));
        self
    }
}
