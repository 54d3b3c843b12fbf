//! `evictd top`: what is available of each signal and how long it lasts, and the pods in the order of their eviction.
//! It samples by itself, beside the agent or without one.

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
    time::Duration,
};

use evictd_config::Config;
use evictd_engine::{Ranking, Resource, Signal, Threshold, Trend, units::signed};
use evictd_policy::evaluator::Explanation;
use evictd_sys::clock::monotonic_ns;
use serde_json::json;

use super::{
    CommandError, OutputFormat,
    explained::PolicyReporting,
    or_installed, print_stand_in,
    rank::{self, PodJson},
    run::resolve_config,
    signals::{self, SignalJson},
    to_json,
};
use crate::daemon::node_view::{NodeSample, NodeView, is_in_force};

mod live;
mod view;

/// Time for which a sample counts towards the present rate.
const WINDOW: Duration = Duration::from_secs(30);
/// Moves the cursor to the top left, and empties the screen below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Arguments of `evictd top`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The agent's configuration file; without it the installed one, or the defaults for the whole machine
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A KubeletConfiguration whose eviction settings hold where the configuration file has none
    #[arg(long, value_name = "FILE", requires = "config")]
    kubelet_config: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// How often to print; without it a live view on a terminal, and once elsewhere
    #[arg(short = 'n', long, value_name = "COUNT")]
    iterations: Option<u64>,
    /// Print once and end, on a terminal too
    #[arg(long, conflicts_with = "iterations")]
    once: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    let seconds = seconds.and_then(Result::ok).filter(|s| !s.is_zero());
    seconds.ok_or_else(|| "is no positive number of seconds".to_owned())
}

/// Trends of the numbers that change.
#[derive(Default)]
struct Trends {
    signals: HashMap<Signal, Trend>,
    pods: HashMap<String, Trend>,
}

impl Trends {
    fn observe(&mut self, now: i64, seen: &NodeSample) {
        for signal in Signal::ALL {
            if let Some(observation) = seen.observations.get(signal) {
                let trend = self.signals.entry(signal);
                let trend = trend.or_insert_with(|| Trend::new(WINDOW));
                trend.observe(now, observation.available);
            }
        }
        self.pods.retain(|uid, _| seen.usages.contains_key(uid));
        for (uid, usage) in &seen.usages {
            let usage = usage.memory_working_set.and_then(|u| u.try_into().ok());
            if let Some(usage) = usage {
                let trend = self.pods.entry(uid.clone());
                let trend = trend.or_insert_with(|| Trend::new(WINDOW));
                trend.observe(now, usage);
            }
        }
    }
}

pub(super) fn run(arguments: &Arguments, stdout: &mut impl Write) -> Result<String, CommandError> {
    let config = config(arguments)?;
    let mut watch = Watch::open(&config)?;
    let is_terminal = io::stdout().is_terminal() && arguments.output == OutputFormat::Table;
    let count = arguments.iterations.or(arguments.once.then_some(1));
    if is_terminal && count.is_none() && view::is_capable() {
        live::run(&mut watch, arguments.interval)?;
        return Ok(String::new());
    }
    let mut left = count.or((!is_terminal).then_some(1));
    // A rate takes two samples.
    watch.sample()?;
    while left != Some(0) {
        std::thread::sleep(arguments.interval);
        let sample = watch.sample()?;
        let text = watch.print(&sample, arguments.output)?;
        let clear = if is_terminal && !arguments.once {
            CLEAR
        } else {
            ""
        };
        match write!(stdout, "{clear}{text}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
        left = left.map(|left| left - 1);
    }
    Ok(String::new())
}

/// View of a node that is sampled again and again, with its trends.
struct Watch<'a> {
    config: &'a Config,
    view: NodeView,
    trends: Trends,
    policies: PolicyReporting,
}

/// The node at one moment, with the policies' explanations by UID.
struct TopSample {
    node: NodeSample,
    explanations: HashMap<String, Explanation>,
}

impl<'a> Watch<'a> {
    /// Opens the node, and requests the status of the policies from the agent, if there is one.
    fn open(config: &'a Config) -> Result<Self, CommandError> {
        Ok(Self {
            config,
            view: NodeView::open(config)?,
            trends: Trends::default(),
            policies: PolicyReporting::ask(&config.state_dir),
        })
    }

    fn sample(&mut self) -> Result<TopSample, CommandError> {
        let now = signed(monotonic_ns());
        let mut node = self.view.sample(now);
        self.trends.observe(now, &node);
        let explanations = self.policies.read(&self.config.state_dir)?;
        for pod in &mut node.pods {
            pod.order = explanations
                .get(&pod.uid)
                .map_or(0, |explanation| explanation.order);
        }
        Ok(TopSample { node, explanations })
    }

    fn print(&self, sample: &TopSample, output: OutputFormat) -> Result<String, CommandError> {
        let (signals, unknown) = (self.signals(sample), sample.node.unknown);
        let pods = self.pods(sample, Signal::MemoryAvailable);
        let is_unknown = self.policies == PolicyReporting::Unknown;
        if output == OutputFormat::Json {
            return to_json(&json!({
                "signals": signals,
                "pods": pods,
                "podsUnknownToTheApiServer": unknown,
                "policiesUnknown": is_unknown,
            }));
        }
        let mut text = text(&signals, &pods, unknown);
        if self.config.shadow {
            text += "\nshadow mode: no pod is evicted\n";
        }
        if is_unknown {
            text += "\nno agent answers: what policies say is not in this order\n";
        }
        Ok(text)
    }

    /// Every threshold that is in force as it is configured, with what is available.
    fn signals(&self, sample: &TopSample) -> Vec<SignalJson> {
        // As the agent: containerfs has no thresholds of its own.
        let layout = self.view.layout();
        let thresholds = layout.apply(&self.config.eviction.thresholds);
        let signal = |threshold: &Threshold| {
            let observations = sample.node.observations_for(threshold);
            let observation = observations.get(threshold.signal);
            let trend = self.trends.signals.get(&threshold.signal);
            SignalJson::new(threshold, observation, trend)
        };
        let observations = &sample.node.observations;
        let in_force = thresholds.iter().filter(|t| is_in_force(t, observations));
        in_force.map(signal).collect()
    }

    /// The pods in the order in which this signal evicts them. Only the agent knows what pods use of disks.
    fn pods(&self, sample: &TopSample, signal: Signal) -> Vec<PodJson> {
        let ranking = Ranking {
            strategy: self.config.ranking_strategy,
            signal,
            layout: self.view.layout(),
        };
        let ranked = ranking.order(&sample.node.pods, &sample.node.usages);
        let capacity = Some(self.view.capacity());
        let denied = |uid: &str| {
            let explanation = sample
                .explanations
                .get(uid)
                .filter(|explanation| !explanation.may_go)?;
            let reason = explanation.reason.as_deref().unwrap_or("by a policy");
            Some(reason.to_owned())
        };
        let mode = self.config.mode;
        let mut pods = rank::explain(mode, &ranked, &sample.node.usages, capacity, denied);
        for pod in &mut pods {
            pod.growth = self.trends.pods.get(&pod.uid).and_then(Trend::rate);
            let room = sample.node.until_limit.get(&pod.uid);
            let growth = pod.growth.filter(|growth| *growth > 0.0);
            pod.until_limit_seconds = room.zip(growth).map(|(room, rate)| *room as f64 / rate);
        }
        pods
    }
}

fn config(arguments: &Arguments) -> Result<Config, CommandError> {
    match or_installed(arguments.config.as_deref()) {
        Some(path) => {
            let file = arguments.kubelet_config.as_deref();
            let (config, kubelet) = resolve_config(path, file)?;
            print_stand_in(&kubelet);
            Ok(config)
        }
        None => Ok(Config::from_values(json!({}), None)?),
    }
}

fn text(signals: &[SignalJson], pods: &[PodJson], unknown: usize) -> String {
    let signals = signals::table(signals);
    let mut text = format!("{signals}\n{}", rank::table(pods, Resource::Memory));
    if unknown > 0 {
        text += &format!(
            "\n{unknown} of {} pods are known by their cgroups alone\n",
            pods.len()
        );
    }
    text
}
