//! What others count, asked for at each scrape.

use std::{fmt, iter, ptr, sync::Arc, time::Duration};

use evictd_engine::{
    Forecast, NodeCondition, Observation, Signal, SignalForecast, Threshold, hard_threshold,
    units::signed,
};
use evictd_kube::client::ApiClient;
use evictd_manager::{SharedStatus, Status};
use evictd_node::trigger::counter::Drift;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// The label with a signal's name.
const SIGNAL: &str = "signal";

/// The hook that watches a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookInfo {
    /// The signal, or `pods` for their coming and going.
    pub signal: String,
    /// The hook.
    pub hook: String,
}

/// A number as it is shown.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A whole one.
    Whole(i64),
    /// A fraction.
    Real(f64),
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(signed(number))
    }
}

impl From<bool> for Number {
    fn from(is_on: bool) -> Self {
        Self::Whole(is_on.into())
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// The labels of a series with their values, and its number.
type Series = (Vec<(&'static str, String)>, Number);

/// One metric with all of its series, read at each scrape.
pub struct Metric<'a> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: Box<dyn Fn() -> Vec<Series> + Send + Sync + 'a>,
}

impl<'a> Metric<'a> {
    /// A metric with any labels.
    fn new(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: impl Fn() -> Vec<Series> + Send + Sync + 'a,
    ) -> Self {
        Self {
            name,
            help,
            kind,
            read: Box::new(read),
        }
    }

    /// A metric without a label.
    fn plain<N: Into<Number>>(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: impl Fn() -> N + Send + Sync + 'a,
    ) -> Self {
        Self::new(kind, name, help, move || vec![(Vec::new(), read().into())])
    }

    /// A metric with one label, whose values `read` has with their numbers.
    pub fn labelled<N: Into<Number>>(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        read: impl Fn() -> Vec<(String, N)> + Send + Sync + 'a,
    ) -> Self {
        Self::new(kind, name, help, move || {
            let series = |(value, number): (_, N)| (vec![(label, value)], number.into());
            read().into_iter().map(series).collect()
        })
    }

    /// A gauge with a series for each of `all` states under its name: 1 while it is on, else 0.
    pub fn state_set<T: Copy + Send + Sync + 'a>(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        all: impl IntoIterator<Item = (&'static str, T)>,
        is_on: impl Fn(T) -> bool + Send + Sync + 'a,
    ) -> Self {
        let all: Vec<_> = all.into_iter().collect();
        Self::labelled(MetricType::Gauge, name, help, label, move || {
            let state = |(name, state): &(&str, T)| ((*name).to_owned(), is_on(*state));
            all.iter().map(state).collect()
        })
    }

    fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let series = (self.read)();
        for (name, help) in names(self.name, self.help, self.kind) {
            let mut family = encoder.encode_descriptor(name, &help, None, self.kind)?;
            for (labels, number) in &series {
                // An empty set would be shown as one.
                match labels.is_empty() {
                    true => self.encode_number(*number, &mut family)?,
                    false => self.encode_number(*number, &mut family.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }

    fn encode_number(&self, number: Number, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match (self.kind, number) {
            (MetricType::Counter, Number::Whole(n)) => {
                encoder.encode_counter::<NoLabelSet, _, u64>(&n.unsigned_abs(), None)
            }
            (_, Number::Whole(n)) => encoder.encode_gauge(&n),
            (_, Number::Real(n)) => encoder.encode_gauge(&n),
        }
    }
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
    /// Metrics of all other sources.
    pub metrics: Vec<Metric<'static>>,
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
        self.plain(MetricType::Counter, name, help, of, read);
    }

    /// Shows a number of `of` that may go down, asked for at each scrape.
    pub fn gauge<T: Send + Sync + 'static, N: Into<Number>>(
        &mut self,
        name: &'static str,
        help: &'static str,
        of: &Arc<T>,
        read: impl Fn(&T) -> N + Send + Sync + 'static,
    ) {
        self.plain(MetricType::Gauge, name, help, of, read);
    }

    fn plain<T: Send + Sync + 'static, N: Into<Number>>(
        &mut self,
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        of: &Arc<T>,
        read: impl Fn(&T) -> N + Send + Sync + 'static,
    ) {
        let of = Arc::clone(of);
        let metric = Metric::plain(kind, name, help, move || read(&of));
        self.metrics.push(metric);
    }

    /// What the agent is, and the hooks in use.
    fn of_agent(&self) -> [Metric<'_>; 3] {
        let gauge = MetricType::Gauge;
        [
            Metric::labelled(
                gauge,
                "build_info",
                "Always 1; the version of the agent",
                "version",
                || vec![(env!("CARGO_PKG_VERSION").to_owned(), 1_i64)],
            ),
            Metric::plain(
                gauge,
                "start_time_seconds",
                "When the agent started, in seconds since the epoch",
                || self.start_time,
            ),
            Metric::new(
                gauge,
                "hook_info",
                "The hook that watches each signal; the label rung is the former name of hook",
                || {
                    let series = |HookInfo { signal, hook }: &HookInfo| {
                        let labels = vec![
                            ("signal", signal.clone()),
                            ("hook", hook.clone()),
                            // The former name of `hook`, until the next release.
                            ("rung", hook.clone()),
                        ];
                        (labels, Number::Whole(1))
                    };
                    self.hooks.iter().map(series).collect()
                },
            ),
        ]
    }
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
fn names<'a>(name: &'a str, help: &str, kind: MetricType) -> Vec<(&'a str, String)> {
    let former = FORMER_NAMES.iter().filter(|(now, _)| *now == name);
    let suffix = match kind {
        MetricType::Counter => "_total",
        _ => "",
    };
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

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = self.status.get();
        let counters = self.connection.iter().flat_map(|way| way.counters.all());
        let counters = counters.map(|(name, help, value)| {
            Metric::plain(MetricType::Counter, name, help, move || value)
        });
        let fixed = of_status(&status).into_iter().chain(self.of_agent());
        for metric in fixed.chain(counters) {
            metric.encode(&mut encoder)?;
        }
        let mut metrics = self.metrics.iter();
        metrics.try_for_each(|metric| metric.encode(&mut encoder))
    }
}

/// What the manager has seen.
fn of_status(status: &Status) -> Vec<Metric<'_>> {
    let observed = |name, help, pick: fn(&Observation) -> i64| {
        Metric::labelled(MetricType::Gauge, name, help, SIGNAL, move || {
            let seen = |signal| {
                let observed = status.observations.get(signal)?;
                Some((signal.to_string(), pick(&observed)))
            };
            Signal::ALL.into_iter().filter_map(seen).collect()
        })
    };
    let drift = |name, help, pick: fn(&Drift) -> u64| {
        Metric::labelled(MetricType::Counter, name, help, SIGNAL, move || {
            let of = |(signal, drift): &(Signal, Drift)| (signal.to_string(), pick(drift));
            status.drift.iter().map(of).collect()
        })
    };
    let until = |name, help, pick: fn(&Forecast) -> Option<Duration>| {
        Metric::labelled(MetricType::Gauge, name, help, SIGNAL, move || {
            let of =
                |f: &SignalForecast| Some((f.signal.to_string(), pick(&f.forecast)?.as_secs_f64()));
            status.forecasts.iter().filter_map(of).collect()
        })
    };
    let conditions = [
        NodeCondition::DiskPressure,
        NodeCondition::MemoryPressure,
        NodeCondition::PidPressure,
    ];
    vec![
        observed(
            "signal_available",
            "What is available, in the signal's unit",
            |o| o.available,
        ),
        observed("signal_capacity", "How much there is in all", |o| {
            o.capacity
        }),
        Metric::new(
            MetricType::Gauge,
            "threshold",
            "What should be available",
            || thresholds(status),
        ),
        drift(
            "count_corrections",
            "Samples that found a hook's count off",
            |d| d.corrections,
        ),
        drift(
            "count_drift",
            "By how much they were off, added up without sign",
            |d| d.total,
        ),
        until(
            "until_threshold_seconds",
            "Time until the highest threshold is met at the present rate; absent when it is not coming nearer",
            |f| f.until_threshold,
        ),
        until(
            "until_exhausted_seconds",
            "Time until nothing is left at the present rate",
            |f| f.until_exhausted,
        ),
        Metric::state_set(
            "condition",
            "1 while the node has the condition",
            "condition",
            conditions.map(|condition| (condition.as_str(), condition)),
            |condition| status.conditions.contains(&condition),
        ),
        Metric::plain(
            MetricType::Counter,
            "manager_cycles",
            "Cycles of the manager",
            || status.cycles,
        ),
        Metric::plain(
            MetricType::Counter,
            "recreations",
            "Evicted pods whose owner has put another one on this node",
            || status.recreations,
        ),
    ]
}

fn thresholds(status: &Status) -> Vec<Series> {
    let series = |t: &Threshold| {
        let capacity = status.observations.get(t.signal)?.capacity;
        // One series for a signal: that of the threshold that is met first.
        let first = hard_threshold(&status.thresholds, t.signal, capacity);
        if t.is_hard() && !first.is_some_and(|first| ptr::eq(first, t)) {
            return None;
        }
        let labels = vec![
            (SIGNAL, t.signal.to_string()),
            ("hard", t.is_hard().to_string()),
        ];
        Some((labels, t.amount(capacity).into()))
    };
    status.thresholds.iter().filter_map(series).collect()
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
        sources.metrics.push(Metric::labelled(
            MetricType::Gauge,
            "filesystem_stuck",
            "Stuck",
            "filesystem",
            || vec![("nodefs".to_owned(), 7_i64)],
        ));
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
