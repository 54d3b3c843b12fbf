//! The exposition: the registry's metrics in the format that a scraper reads.

use std::collections::HashSet;

use super::{http::Answer, registry::MetricsRegistry};

const OPEN_METRICS: &str = "application/openmetrics-text";

/// The exposition in the format that a scraper asks for: OpenMetrics, or Prometheus' text format, which all of them
/// read.
pub(super) fn exposition(
    metrics: &MetricsRegistry,
    accept: &str,
) -> Result<Answer, std::fmt::Error> {
    let (kind, body) = match accept.contains(OPEN_METRICS) {
        true => (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.exposition()?,
        ),
        false => (
            "text/plain; version=0.0.4; charset=utf-8",
            prometheus_text(&metrics.exposition()?),
        ),
    };
    Ok(Answer {
        status: "200 OK",
        kind,
        body: body.into(),
    })
}

/// OpenMetrics as Prometheus' text format: a counter is described under the name that its series has, and nothing marks
/// the end.
fn prometheus_text(text: &str) -> String {
    let counters: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut out = String::with_capacity(text.len() + 64 * counters.len());
    for line in text.lines() {
        let described = line.strip_prefix("# ").and_then(|rest| {
            let (keyword, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            Some((keyword, name, rest))
        });
        match described {
            Some((keyword @ ("HELP" | "TYPE"), name, rest)) => {
                let suffix = if counters.contains(name) {
                    "_total"
                } else {
                    ""
                };
                out.extend(["# ", keyword, " ", name, suffix, " ", rest, "\n"]);
            }
            _ if line.starts_with('#') => {}
            _ => out.extend([line, "\n"]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_described_under_the_name_of_its_series() {
        let text = "# HELP evictd_evictions Pods killed.\n# TYPE evictd_evictions counter\n\
            evictd_evictions_total{signal=\"a\"} 1\n# HELP evictd_stage_seconds Time.\n\
             # TYPE evictd_stage_seconds histogram\n\
            # UNIT evictd_stage_seconds seconds\nevictd_stage_seconds_sum{stage=\"wake\"} 0.5\n# EOF\n";
        assert_eq!(
            prometheus_text(text),
            "# HELP evictd_evictions_total Pods killed.\n# TYPE evictd_evictions_total counter\n\
            evictd_evictions_total{signal=\"a\"} 1\n# HELP evictd_stage_seconds Time.\n\
             # TYPE evictd_stage_seconds histogram\n\
            evictd_stage_seconds_sum{stage=\"wake\"} 0.5\n"
        );
    }
}
