//! What others count, asked for at each scrape.

use std::{fmt, iter, ptr, sync::Arc};

use evictd_engine::{Forecast, NodeCondition, hard_threshold, units::signed};
use evictd_kube::client::ApiClient;
use evictd_manager::{SharedStatus, Status};
use evictd_node::trigger::counter::Drift;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

/// The hook that watches a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookInfo {
    /// The signal, or `pods` for their coming and going.
    pub signal: String,
    /// The hook.
    pub hook: String,
}

/// Reads a number.
pub type Reading = Box<dyn Fn() -> u64 + Send + Sync>;

/// Numbers, each under a value of one label.
pub struct Labelled<N = i64> {
    /// Name of the metric.
    pub name: &'static str,
    /// Help text of the metric.
    pub help: &'static str,
    /// Name of the label.
    pub label: &'static str,
    /// The label's values with the numbers.
    pub read: Box<dyn Fn() -> Vec<(String, N)> + Send + Sync>,
}

/// Collector of the numbers from their sources.
#[derive(Default)]
pub struct MetricsCollector {
    /// Status that the manager saw last.
    pub status: Arc<SharedStatus>,
    /// The connection to the API server, if there is one.
    pub connection: Option<Arc<ApiClient>>,
    /// The hooks in use.
    pub hooks: Vec<HookInfo>,
    /// Gauges with one label.
    pub gauges: Vec<Labelled>,
    /// Gauges without a label, with their names and what they mean.
    pub plain_gauges: Vec<(&'static str, &'static str, Reading)>,
    /// Counters with their names and what they mean.
    pub counters: Vec<(&'static str, &'static str, Reading)>,
    /// Counters with one label.
    pub labelled_counters: Vec<Labelled<u64>>,
    /// When the agent started, in seconds since the epoch.
    pub start_time: u64,
}

impl MetricsCollector {
    /// Shows a counter of `of`, asked for at each scrape.
    pub fn counter<T: Send + Sync + 'static>(
        &mut self,
        name: &'static str,
        help: &'static str,
        of: &Arc<T>,
        read: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) {
        self.counters.push((name, help, reading(of, read)));
    }

    /// Shows a number of `of` that may go down, asked for at each scrape.
    pub fn gauge<T: Send + Sync + 'static>(
        &mut self,
        name: &'static str,
        help: &'static str,
        of: &Arc<T>,
        read: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) {
        self.plain_gauges.push((name, help, reading(of, read)));
    }
}

fn reading<T: Send + Sync + 'static>(
    of: &Arc<T>,
    read: impl Fn(&T) -> u64 + Send + Sync + 'static,
) -> Reading {
    let of = Arc::clone(of);
    Box::new(move || read(&of))
}

/// Metrics under their names, and the former names of these, which are shown until the next release.
const FORMER_NAMES: &[(&str, &str)] = &[
    ("api_node_restriction_not_enforced", "api_not_held_to_node"),
    ("api_pdb_blocked", "api_soft_blocked"),
    ("api_pdb_overrides", "api_soft_overrides"),
    ("api_reports_deferred", "api_report_dropped"),
    ("api_reports_failed", "api_report_refused"),
    ("cgroup_counts_dropped", "shares_dropped"),
    ("cgroup_events_dropped", "pod_life_dropped"),
    ("clock_jumps", "api_clock_jumps"),
    ("fastpath_events_dropped", "reports_dropped"),
    ("filesystem_stuck", "filesystem_hung"),
    ("incidents_dropped", "incidents_lost"),
    ("journal_records_dropped", "journal_records_lost"),
    ("manager_cycles", "rounds"),
    ("manager_stuck", "control_loop_stuck"),
    ("mitigation_reclaimed_bytes", "graduated_reclaimed_bytes"),
    (
        "mitigation_reclaimed_working_set_bytes",
        "graduated_reclaimed_working_set_bytes",
    ),
    ("mitigation_reclaims", "graduated_reclaims"),
    ("mitigation_refusals", "graduated_refusals"),
    ("mitigation_throttles", "graduated_brakes"),
    ("mitigation_unthrottles", "graduated_releases"),
    ("oom_records_dropped", "telemetry_dropped"),
    ("pod_open_failures", "pods_unopened"),
    ("policy_conflicts", "policy_contradictions"),
    ("recreations", "comebacks"),
    ("runtime_operations_errors", "cri_unavailable"),
    ("standby_decisions", "deputy_decisions"),
    ("trigger_events_dropped", "wakeups_dropped"),
];

/// The metric's name with its help, then its former names, whose help points to the present one.
fn names<'a>(name: &'a str, help: &str, suffix: &str) -> Vec<(&'a str, String)> {
    let former = FORMER_NAMES.iter().filter(|(now, _)| *now == name);
    let deprecated = format!("Deprecated: evictd_{name}{suffix}");
    iter::once((name, help.to_owned()))
        .chain(former.map(|(_, former)| (*former, deprecated.clone())))
        .collect()
}

impl fmt::Debug for MetricsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsCollector").finish_non_exhaustive()
    }
}

#[derive(EncodeLabelSet)]
struct Signal {
    signal: String,
}

#[derive(EncodeLabelSet)]
struct Threshold {
    signal: String,
    hard: bool,
}

#[derive(EncodeLabelSet)]
struct Condition {
    condition: &'static str,
}

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = self.status.get();
        signals(&mut encoder, &status)?;
        forecasts(&mut encoder, &status)?;
        conditions(&mut encoder, &status)?;
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1_i64)];
        gauges(
            &mut encoder,
            "build_info",
            "Always 1; the version of the agent",
            build,
        )?;
        gauge(
            &mut encoder,
            "start_time_seconds",
            "When the agent started, in seconds since the epoch",
            self.start_time,
        )?;
        let hooks = self.hooks.iter().map(|hook| {
            let labels = [
                ("signal", hook.signal.as_str()),
                ("hook", hook.hook.as_str()),
                // The former name of `hook`, until the next release.
                ("rung", hook.hook.as_str()),
            ];
            (labels, 1_i64)
        });
        gauges(
            &mut encoder,
            "hook_info",
            "The hook that watches each signal; the label rung is the former name of hook",
            hooks,
        )?;
        counter(
            &mut encoder,
            "manager_cycles",
            "Cycles of the manager",
            status.cycles,
        )?;
        counter(
            &mut encoder,
            "recreations",
            "Evicted pods whose owner has put another one on this node",
            status.recreations,
        )?;
        for gauge in &self.gauges {
            let read = (gauge.read)().into_iter();
            let values = read.map(|(value, number)| ([(gauge.label, value)], number));
            gauges(&mut encoder, gauge.name, gauge.help, values)?;
        }
        for (name, help, read) in &self.plain_gauges {
            gauge(&mut encoder, name, help, read())?;
        }
        for (name, help, read) in &self.counters {
            counter(&mut encoder, name, help, read())?;
        }
        for counter in &self.labelled_counters {
            let read = (counter.read)().into_iter();
            let values = read.map(|(value, number)| ([(counter.label, value)], number));
            counters(&mut encoder, counter.name, counter.help, values)?;
        }
        if let Some(connection) = &self.connection {
            for (name, help, value) in connection.counters.all() {
                counter(&mut encoder, name, help, value)?;
            }
        }
        Ok(())
    }
}

fn signals(encoder: &mut DescriptorEncoder, status: &Status) -> Result<(), fmt::Error> {
    let seen: Vec<_> = evictd_engine::Signal::ALL
        .into_iter()
        .filter_map(|signal| Some((signal, status.observations.get(signal)?)))
        .collect();
    let label = |signal: evictd_engine::Signal| Signal {
        signal: signal.to_string(),
    };
    let available = seen.iter().map(|(s, o)| (label(*s), o.available));
    gauges(
        encoder,
        "signal_available",
        "What is available, in the signal's unit",
        available,
    )?;
    let capacity = seen.iter().map(|(s, o)| (label(*s), o.capacity));
    gauges(
        encoder,
        "signal_capacity",
        "How much there is in all",
        capacity,
    )?;
    let thresholds = status.thresholds.iter().filter_map(|t| {
        let capacity = status.observations.get(t.signal)?.capacity;
        // One series for a signal: that of the threshold that is met first.
        let first = hard_threshold(&status.thresholds, t.signal, capacity);
        if t.is_hard() && !first.is_some_and(|first| ptr::eq(first, t)) {
            return None;
        }
        let labels = Threshold {
            signal: t.signal.to_string(),
            hard: t.is_hard(),
        };
        let amount = signed(t.amount(capacity));
        Some((labels, amount))
    });
    gauges(encoder, "threshold", "What should be available", thresholds)?;
    let drift = |value: fn(&Drift) -> u64| {
        let of = move |(s, d): &(evictd_engine::Signal, _)| (label(*s), value(d));
        status.drift.iter().map(of).collect::<Vec<_>>()
    };
    counters(
        encoder,
        "count_corrections",
        "Samples that found a hook's count off",
        drift(|d| d.corrections),
    )?;
    counters(
        encoder,
        "count_drift",
        "By how much they were off, added up without sign",
        drift(|d| d.total),
    )
}

fn forecasts(encoder: &mut DescriptorEncoder, status: &Status) -> Result<(), fmt::Error> {
    let until = |pick: fn(&Forecast) -> Option<std::time::Duration>| {
        let of = move |f: &evictd_engine::SignalForecast| {
            let labels = Signal {
                signal: f.signal.to_string(),
            };
            Some((labels, pick(&f.forecast)?.as_secs_f64()))
        };
        status.forecasts.iter().filter_map(of).collect::<Vec<_>>()
    };
    gauges(
        encoder,
        "until_threshold_seconds",
        "Time until the highest threshold is met at the present rate; absent when it is not coming nearer",
        until(|f| f.until_threshold),
    )?;
    gauges(
        encoder,
        "until_exhausted_seconds",
        "Time until nothing is left at the present rate",
        until(|f| f.until_exhausted),
    )
}

fn conditions(encoder: &mut DescriptorEncoder, status: &Status) -> Result<(), fmt::Error> {
    let all = [
        NodeCondition::DiskPressure,
        NodeCondition::MemoryPressure,
        NodeCondition::PidPressure,
    ];
    let shown = all.into_iter().map(|condition| {
        let labels = Condition {
            condition: condition.as_str(),
        };
        (labels, i64::from(status.conditions.contains(&condition)))
    });
    gauges(
        encoder,
        "condition",
        "1 while the node has the condition",
        shown,
    )
}

fn gauge(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    for (name, help) in names(name, help, "") {
        let metric = encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)?;
    }
    Ok(())
}

fn gauges<L, N>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, N)>,
) -> Result<(), fmt::Error>
where
    L: EncodeLabelSet,
    N: Copy,
    ConstGauge<N>: EncodeMetric,
{
    let values: Vec<(L, N)> = values.into_iter().collect();
    for (name, help) in names(name, help, "") {
        let mut family = encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?;
        for (labels, value) in &values {
            ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
        }
    }
    Ok(())
}

fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, u64)>,
) -> Result<(), fmt::Error> {
    let values: Vec<(L, u64)> = values.into_iter().collect();
    for (name, help) in names(name, help, "_total") {
        let mut family = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
        for (labels, value) in &values {
            ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
        }
    }
    Ok(())
}

fn counter(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    for (name, help) in names(name, help, "_total") {
        let family = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(family)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn a_metric_has_its_former_name_beside_it() {
        let mut sources = MetricsCollector::default();
        let number = Arc::new(3);
        sources.counter("standby_decisions", "Decided", &number, |n| *n);
        sources.gauge("manager_stuck", "Stuck", &number, |n| *n);
        sources.gauges.push(Labelled {
            name: "filesystem_stuck",
            help: "Stuck",
            label: "filesystem",
            read: Box::new(|| vec![("nodefs".to_owned(), 7)]),
        });
        let text = Metrics::new(sources).text().unwrap();
        for line in [
            "evictd_standby_decisions_total 3",
            "# HELP evictd_deputy_decisions Deprecated: evictd_standby_decisions_total",
            "# TYPE evictd_deputy_decisions counter",
            "evictd_deputy_decisions_total 3",
            "evictd_manager_stuck 3",
            "# HELP evictd_control_loop_stuck Deprecated: evictd_manager_stuck",
            "# TYPE evictd_control_loop_stuck gauge",
            "evictd_control_loop_stuck 3",
            "evictd_filesystem_stuck{filesystem=\"nodefs\"} 7",
            "# HELP evictd_filesystem_hung Deprecated: evictd_filesystem_stuck",
            "# TYPE evictd_filesystem_hung gauge",
            "evictd_filesystem_hung{filesystem=\"nodefs\"} 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
