//! The collector: metric families that are read at each scrape, from what other parts of the agent count.

use std::{fmt, ptr, sync::Arc, time::Duration};

use evictd_engine::{
    Forecast, NodeCondition, Observation, Signal, SignalForecast, Threshold, hard_threshold,
};
use evictd_kube::client::ApiClient;
use evictd_manager::{SharedStatus, Status};
use evictd_node::trigger::counter::Drift;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::family::{MetricFamily, Number, Series};

/// The label with a signal's name.
const SIGNAL: &str = "signal";

/// The hook that watches a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookInfo {
    /// The signal, or `pods` for cgroup events.
    pub signal: String,
    /// The hook.
    pub hook: String,
}

/// Collector of the families from their sources.
#[derive(Default)]
pub struct MetricsCollector {
    /// Status of the manager, as of its last cycle.
    pub status: Arc<SharedStatus>,
    /// The connection to the API server, if there is one.
    pub connection: Option<Arc<ApiClient>>,
    /// The hooks in use.
    pub hooks: Vec<HookInfo>,
    /// Families of all other sources.
    pub families: Vec<MetricFamily<'static>>,
    /// When the agent started, in seconds since the epoch.
    pub start_time: u64,
}

impl MetricsCollector {
    /// Adds a counter of `of`, read at each scrape.
    pub fn counter<T: Send + Sync + 'static>(
        &mut self,
        name: &'static str,
        help: &'static str,
        of: &Arc<T>,
        read: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) {
        self.plain(MetricType::Counter, name, help, of, read);
    }

    /// Adds a gauge of `of`, read at each scrape.
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
        let family = MetricFamily::plain(kind, name, help, move || read(&of));
        self.families.push(family);
    }

    /// Families of the agent: version, start, hooks.
    fn of_agent(&self) -> [MetricFamily<'_>; 3] {
        let gauge = MetricType::Gauge;
        [
            MetricFamily::labelled(
                gauge,
                "build_info",
                "Always 1; the version of the agent",
                "version",
                || vec![(env!("CARGO_PKG_VERSION").to_owned(), 1_i64)],
            ),
            MetricFamily::plain(
                gauge,
                "start_time_seconds",
                "When the agent started, in seconds since the epoch",
                || self.start_time,
            ),
            MetricFamily::new(
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
            MetricFamily::plain(MetricType::Counter, name, help, move || value)
        });
        let fixed = of_status(&status).into_iter().chain(self.of_agent());
        for family in fixed.chain(counters) {
            family.encode(&mut encoder)?;
        }
        let mut families = self.families.iter();
        families.try_for_each(|family| family.encode(&mut encoder))
    }
}

/// Families of the manager's status.
fn of_status(status: &Status) -> Vec<MetricFamily<'_>> {
    let observed = |name, help, pick: fn(&Observation) -> i64| {
        MetricFamily::labelled(MetricType::Gauge, name, help, SIGNAL, move || {
            let seen = |signal| {
                let observed = status.observations.get(signal)?;
                Some((signal.to_string(), pick(&observed)))
            };
            Signal::ALL.into_iter().filter_map(seen).collect()
        })
    };
    let drift = |name, help, pick: fn(&Drift) -> u64| {
        MetricFamily::labelled(MetricType::Counter, name, help, SIGNAL, move || {
            let of = |(signal, drift): &(Signal, Drift)| (signal.to_string(), pick(drift));
            status.drift.iter().map(of).collect()
        })
    };
    let until = |name, help, pick: fn(&Forecast) -> Option<Duration>| {
        MetricFamily::labelled(MetricType::Gauge, name, help, SIGNAL, move || {
            let of =
                |f: &SignalForecast| Some((f.signal.to_string(), pick(&f.forecast)?.as_secs_f64()));
            status.forecasts.iter().filter_map(of).collect()
        })
    };
    vec![
        observed(
            "signal_available",
            "What is available, in the signal's unit",
            |o| o.available,
        ),
        observed("signal_capacity", "How much there is in all", |o| {
            o.capacity
        }),
        MetricFamily::new(
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
        MetricFamily::state_set(
            "condition",
            "1 while the node has the condition",
            "condition",
            NodeCondition::ALL.map(|condition| (condition.as_str(), condition)),
            |condition| status.conditions.contains(&condition),
        ),
        MetricFamily::plain(
            MetricType::Counter,
            "manager_cycles",
            "Cycles of the manager",
            || status.cycles,
        ),
        MetricFamily::plain(
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
