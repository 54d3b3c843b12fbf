//! `evictd top`: what is left of everything and how long it will last, and the pods in the order of their eviction, looked
//! at beside the agent or without one (R13, R44).

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    CommandError, OutputFormat, or_installed,
    rank::{self, PodJson},
    run::configured,
    table::{Alignment, Table, amount_of},
    to_json,
};
use crate::{
    config::Config,
    daemon::survey::{Seen, Survey},
    engine::{Forecast, Observation, Ranking, Resource, Signal, Threshold, Trend},
    reflex::thread::now_ns,
};

/// What is older says nothing of the present rate.
const WINDOW: Duration = Duration::from_secs(30);
/// Moves the cursor to the top left, and empties the screen below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// What `evictd top` is told.
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
    /// How often to print; without it for ever on a terminal, and once elsewhere
    #[arg(short = 'n', long, value_name = "COUNT")]
    iterations: Option<u64>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// What is left of one signal, held against one threshold. Amounts are in the signal's unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SignalJson {
    #[serde(serialize_with = "name")]
    signal: Signal,
    /// Absent if it cannot be read here.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<i64>,
    threshold: i64,
    grace_period_seconds: f64,
    /// Whether less than the threshold is left.
    met: bool,
    /// At the present rate (R44); absent when it is not heading there.
    #[serde(skip_serializing_if = "Option::is_none")]
    until_threshold_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_exhausted_seconds: Option<f64>,
}

fn name<S: Serializer>(signal: &Signal, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(signal)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    let seconds = seconds.and_then(Result::ok).filter(|s| !s.is_zero());
    seconds.ok_or_else(|| "is no positive number of seconds".to_owned())
}

/// What was seen of numbers that change.
#[derive(Default)]
struct Trends {
    signals: HashMap<Signal, Trend>,
    pods: HashMap<String, Trend>,
}

impl Trends {
    fn observe(&mut self, now: i64, seen: &Seen) {
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
    let mut survey = Survey::open(&config)?;
    let is_live = io::stdout().is_terminal() && arguments.output == OutputFormat::Table;
    let mut left = arguments.iterations.or((!is_live).then_some(1));
    let mut trends = Trends::default();
    let mut look = |survey: &mut Survey| {
        let now = i64::try_from(now_ns()).unwrap_or(i64::MAX);
        let seen = survey.look(now);
        trends.observe(now, &seen);
        frame(&config, survey, &seen, &trends, arguments.output)
    };
    // A rate takes two looks.
    look(&mut survey)?;
    while left != Some(0) {
        std::thread::sleep(arguments.interval);
        let text = look(&mut survey)?;
        let clear = if is_live { CLEAR } else { "" };
        match write!(stdout, "{clear}{text}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
        left = left.map(|left| left - 1);
    }
    Ok(String::new())
}

fn config(arguments: &Arguments) -> Result<Config, CommandError> {
    match or_installed(arguments.config.as_deref()) {
        Some(path) => Ok(configured(path, arguments.kubelet_config.as_deref(), false)?.0),
        None => Ok(Config::from_values(json!({}), None)?),
    }
}

/// One look as text.
fn frame(
    config: &Config,
    survey: &Survey,
    seen: &Seen,
    trends: &Trends,
    output: OutputFormat,
) -> Result<String, CommandError> {
    let ranking = Ranking {
        strategy: config.ranking_strategy,
        signal: Signal::MemoryAvailable,
        layout: survey.layout(),
    };
    let ranked = ranking.order(&seen.pods, &seen.usages);
    let mut pods = rank::explain(&ranked, &seen.usages, Some(survey.capacity()));
    for pod in &mut pods {
        pod.growth = trends.pods.get(&pod.uid).and_then(Trend::rate);
    }
    // As the agent: containerfs has no thresholds of its own.
    let thresholds = survey.layout().apply(&config.eviction.thresholds);
    let signals: Vec<_> = thresholds.iter().map(|t| signal(t, seen, trends)).collect();
    match output {
        OutputFormat::Json => to_json(&json!({
            "signals": signals,
            "pods": pods,
            "podsUnknownToTheApiServer": seen.unknown,
        })),
        OutputFormat::Table => Ok(text(&signals, &pods, seen.unknown)),
    }
}

fn signal(threshold: &Threshold, seen: &Seen, trends: &Trends) -> SignalJson {
    let observation: Option<Observation> = seen.observations.get(threshold.signal);
    let amount = threshold.amount(observation.map_or(0, |o| o.capacity));
    let forecast: Option<Forecast> = observation.and_then(|_| {
        let trend = trends.signals.get(&threshold.signal)?;
        Some(trend.forecast(amount))
    });
    let seconds = |until: fn(&Forecast) -> Option<Duration>| {
        forecast.as_ref().and_then(until).map(|d| d.as_secs_f64())
    };
    let amount = i64::try_from(amount).unwrap_or(i64::MAX);
    SignalJson {
        signal: threshold.signal,
        available: observation.map(|o| o.available),
        capacity: observation.map(|o| o.capacity),
        threshold: amount,
        grace_period_seconds: threshold.grace_period.as_secs_f64(),
        met: observation.is_some_and(|o| o.available < amount),
        until_threshold_seconds: seconds(|f| f.until_threshold),
        until_exhausted_seconds: seconds(|f| f.until_exhausted),
    }
}

fn text(signals: &[SignalJson], pods: &[PodJson], unknown: usize) -> String {
    let mut table = Table::new(&[
        ("SIGNAL", Alignment::Left),
        ("AVAILABLE", Alignment::Right),
        ("CAPACITY", Alignment::Right),
        ("THRESHOLD", Alignment::Right),
        ("THRESHOLD IN", Alignment::Right),
        ("NOTHING LEFT IN", Alignment::Right),
        ("NOTE", Alignment::Left),
    ]);
    for s in signals {
        let amount = |amount: Option<i64>| match amount {
            Some(amount) => amount_of(s.signal.resource(), amount.into()),
            None => "-".to_owned(),
        };
        let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), duration);
        let note = match (s.available, s.met, s.grace_period_seconds > 0.0) {
            (None, ..) => "not to be seen here".to_owned(),
            (_, met, soft) => {
                let soft = soft.then(|| format!("soft, {}", duration(s.grace_period_seconds)));
                let met = met.then(|| "met".to_owned());
                soft.into_iter().chain(met).collect::<Vec<_>>().join(", ")
            }
        };
        table.row([
            s.signal.to_string(),
            amount(s.available),
            amount(s.capacity),
            amount(Some(s.threshold)),
            time(s.until_threshold_seconds),
            time(s.until_exhausted_seconds),
            note,
        ]);
    }
    let mut text = format!(
        "{}\n{}",
        table.render(),
        rank::table(pods, Resource::Memory)
    );
    if unknown > 0 {
        text += &format!(
            "\n{unknown} of {} pods are known by their cgroups alone\n",
            pods.len()
        );
    }
    text
}

/// Seconds as people say them; a day is beyond every rate.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 86_400.0 => format!("{:.0} h", s / 3600.0),
        _ => "> 1 d".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shown = [0.0, 9.96, 60.0, 600.0, 7200.0, 1e9].map(duration);
        assert_eq!(shown, ["0.0 s", "10.0 s", "60 s", "10 min", "2 h", "> 1 d"]);
    }
}
