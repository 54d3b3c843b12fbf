//! `evictd rank`: the order of eviction, and why each pod stands where it stands.

use std::path::PathBuf;

use evictd_config::kube::{pod::read_pods, summary::read_summary};
use evictd_engine::{
    Layout, Ranked, Ranking, Resource, Signal, Usages,
    model::settings::{Mode, RankingStrategy},
    oom_badness,
};
use serde::Serialize;

use super::{
    CommandError, OutputFormat,
    input::{invalid, read_json},
    table::{Table, amount_of, or_dash},
    to_json,
};

/// Arguments of `evictd rank`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The signal that is low, such as memory.available
    #[arg(long, value_parser = |name: &str| name.parse::<Signal>())]
    signal: Signal,
    /// A v1 PodList, or an array of pods, as JSON
    #[arg(long, value_name = "PODS.json")]
    pods: PathBuf,
    /// The kubelet's /stats/summary, as JSON
    #[arg(long, value_name = "SUMMARY.json")]
    summary: PathBuf,
    /// Images lie on a filesystem of their own
    #[arg(long)]
    dedicated_image_fs: bool,
    /// Writable layers do not lie beside the images
    #[arg(long)]
    split_image_fs: bool,
    /// The order of eviction: kubelet, qos or usage
    #[arg(long, default_value = "kubelet", value_parser = strategy)]
    strategy: RankingStrategy,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

fn strategy(name: &str) -> Result<RankingStrategy, String> {
    let known = RankingStrategy::CHOICES
        .into_iter()
        .find(|(word, _)| *word == name);
    known
        .map(|(_, strategy)| strategy)
        .ok_or_else(|| "must be one of kubelet, qos, usage".to_owned())
}

/// The order as programs read it.
#[derive(Serialize)]
struct RankingJson {
    order: Vec<String>,
    pods: Vec<PodJson>,
}

/// Why a pod stands where it stands. Amounts are in the signal's unit: bytes, inodes or processes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodJson {
    pub(super) pod: String,
    pub(super) uid: String,
    /// Absent if there are no numbers for the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<u64>,
    request: u64,
    /// Growth of the usage per second, where it was sampled twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) growth: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) excess: Option<i128>,
    above_request: bool,
    pub(super) priority: i32,
    /// The pod is known by its cgroup only: it goes after all others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) priority_unknown: bool,
    pub(super) qos_class: &'static str,
    /// Whether the pod is passed over: critical pods, and by the kubelet static ones.
    protected: bool,
    /// Why policies do not let the pod go now, as an agent has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "spared")]
    denied: Option<String>,
    /// Absent if it depends on the node's memory, which the summary does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i32>,
    pub(super) predicted_oom_victim: bool,
    pub(super) predicted_eviction_victim: bool,
    /// Seconds until the pod meets its own limit at this growth; absent where it does not grow or was not sampled
    /// twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_limit_seconds: Option<f64>,
}

impl PodJson {
    /// Notes on the pod, beside its numbers.
    pub(super) fn notes(&self) -> Vec<String> {
        let denied = self.denied.as_ref().map(|why| format!("denied: {why}"));
        let notes = [
            (self.predicted_eviction_victim, "evicted first"),
            (self.predicted_oom_victim, "the OOM killer's choice"),
            (self.protected, "protected"),
            (denied.is_some(), denied.as_deref().unwrap_or_default()),
            (self.usage.is_none(), "no numbers"),
        ];
        let notes = notes.into_iter().filter(|(applies, _)| *applies);
        notes.map(|(_, note)| note.to_owned()).collect()
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let pods =
        read_pods(&read_json(&arguments.pods)?).map_err(|error| invalid(&arguments.pods, error))?;
    let summary = read_summary("summary", &read_json(&arguments.summary)?)
        .map_err(|error| invalid(&arguments.summary, error))?;
    let layout = Layout {
        dedicated_image_fs: arguments.dedicated_image_fs,
        split_image_fs: arguments.split_image_fs,
    };
    let ranking = Ranking {
        strategy: arguments.strategy,
        signal: arguments.signal,
        layout,
    };
    let ranked = ranking.order(&pods, &summary.pods);
    // As the kubelet.
    let (mode, capacity) = (Mode::Kubelet, summary.memory_capacity());
    let pods = explain(mode, &ranked, &summary.pods, capacity, |_| None);
    match arguments.output {
        OutputFormat::Json => to_json(&RankingJson {
            order: pods.iter().map(|pod| pod.pod.clone()).collect(),
            pods,
        }),
        OutputFormat::Table => Ok(table(&pods, arguments.signal.resource())),
    }
}

/// Adds to each pod of the order what the OOM killer would do, and why policies deny its eviction (`denied`, by UID).
/// The first pod whose eviction no policy denies goes.
pub(super) fn explain(
    mode: Mode,
    ranked: &[Ranked<'_>],
    usages: &Usages,
    capacity: Option<u64>,
    denied: impl Fn(&str) -> Option<String>,
) -> Vec<PodJson> {
    let may_go = |r: &Ranked<'_>| !r.pod.is_protected(mode) && denied(&r.pod.uid).is_none();
    let first = ranked.iter().position(may_go);
    let adjusts: Vec<Option<i32>> = ranked.iter().map(|r| adjust(r, capacity)).collect();
    let badness = |position: usize| {
        let memory = usages.get(&ranked[position].pod.uid)?.memory_working_set?;
        let points = oom_badness(memory, adjusts[position]?, capacity?);
        Some((points, memory))
    };
    let oom_victim = (0..ranked.len())
        .filter_map(|i| Some((badness(i)?, i)))
        .max_by_key(|(badness, _)| *badness);
    let row = |(position, ranked): (usize, &Ranked<'_>)| {
        let excess = ranked
            .usage
            .map(|usage| i128::from(usage) - i128::from(ranked.inputs.request));
        PodJson {
            pod: ranked.pod.to_string(),
            uid: ranked.pod.uid.clone(),
            usage: ranked.usage,
            growth: None,
            request: ranked.inputs.request,
            excess,
            above_request: excess.is_some_and(|excess| excess > 0),
            priority: ranked.inputs.priority,
            priority_unknown: ranked.inputs.priority_unknown,
            qos_class: ranked.inputs.qos.as_str(),
            protected: ranked.pod.is_protected(mode),
            denied: denied(&ranked.pod.uid),
            oom_score_adj: adjusts[position],
            predicted_oom_victim: oom_victim.is_some_and(|(_, victim)| victim == position),
            predicted_eviction_victim: first == Some(position),
            until_limit_seconds: None,
        }
    };
    ranked.iter().enumerate().map(row).collect()
}

fn adjust(ranked: &Ranked<'_>, capacity: Option<u64>) -> Option<i32> {
    let pod = ranked.pod;
    let depends = pod.qos == evictd_engine::QosClass::Burstable && !pod.is_node_critical();
    if depends && capacity.is_none() {
        return None;
    }
    Some(pod.oom_score_adj(capacity.unwrap_or(0)))
}

/// The order for people. Growth has a column where pods were sampled twice.
pub(super) fn table(pods: &[PodJson], resource: Resource) -> String {
    let amount = |amount: i128| amount_of(resource, amount);
    let is_watched = pods.iter().any(|pod| pod.growth.is_some());
    let growth = if is_watched { "GROWTH/s>  " } else { "" };
    let mut table = Table::new(&format!(
        "#>  POD  USAGE>  {growth}REQUEST>  EXCESS>  PRIORITY>  QOS  OOM ADJ>  NOTE"
    ));
    for (position, pod) in pods.iter().enumerate() {
        let mut row = vec![
            (position + 1).to_string(),
            pod.pod.clone(),
            or_dash(pod.usage.map(|usage| amount(usage.into()))),
            amount(pod.request.into()),
            or_dash(pod.excess.map(amount)),
            or_dash((!pod.priority_unknown).then_some(pod.priority)),
            pod.qos_class.to_owned(),
            or_dash(pod.oom_score_adj),
            pod.notes().join(", "),
        ];
        if is_watched {
            row.insert(3, or_dash(pod.growth.map(|rate| amount(rate as i128))));
        }
        table.row(row);
    }
    table.render()
}
