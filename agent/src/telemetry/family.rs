//! A metric family as the collector has it, and the former names of families.

use std::{fmt, iter};

use evictd_engine::units::signed;
use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Value of a series.
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
pub(super) type Series = (Vec<(&'static str, String)>, Number);

/// One metric family: its name, help and type, and what reads its series at each scrape.
pub struct MetricFamily<'a> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: Box<dyn Fn() -> Vec<Series> + Send + Sync + 'a>,
}

impl<'a> MetricFamily<'a> {
    /// A family with any labels.
    pub(super) fn new(
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

    /// A family of one series without labels.
    pub(super) fn plain<N: Into<Number>>(
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: impl Fn() -> N + Send + Sync + 'a,
    ) -> Self {
        Self::new(kind, name, help, move || vec![(Vec::new(), read().into())])
    }

    /// A family with one label, whose values `read` has with their numbers.
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

    /// Writes the series under the family's name, and under its former names.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
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

/// Names of families with their former names, which are shown until the next release.
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

/// The family's name with its help, then its former names, whose help points to the present one.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::{MetricsCollector, MetricsRegistry};

    #[test]
    fn a_metric_has_its_former_name_beside_it() {
        let mut collector = MetricsCollector::default();
        let number = Arc::new(3);
        collector.counter("standby_decisions", "Decided", &number, |n| *n);
        collector.gauge("manager_stuck", "Stuck", &number, |n| *n);
        collector.families.push(MetricFamily::labelled(
            MetricType::Gauge,
            "filesystem_stuck",
            "Stuck",
            "filesystem",
            || vec![("nodefs".to_owned(), 7_i64)],
        ));
        let text = MetricsRegistry::new(collector).exposition().unwrap();
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
