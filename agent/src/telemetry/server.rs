//! `/metrics` over HTTP or HTTPS, on a thread of its own.

use std::{
    collections::HashSet,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::BorrowedFd,
    sync::Arc,
    time::Duration,
};

use evictd_config::MetricsTls;
use evictd_kube::client::ApiClient;

use super::{
    error::ServeError,
    health::{Health, healthz},
    http::{self, Answer, Limits, Request, Responder},
    listen::listen,
    metrics::Metrics,
    scrapers::Scrapers,
    tls::Tls,
};

const LIMITS: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(2),
    answer: Duration::from_secs(10),
};
const OPEN_METRICS: &str = "application/openmetrics-text";

/// The format that a scraper asks for: OpenMetrics, or Prometheus' text format, which all of them read.
fn render(metrics: &Metrics, accept: &str) -> Result<Answer, std::fmt::Error> {
    let (kind, body) = match accept.contains(OPEN_METRICS) {
        true => (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            metrics.text()?,
        ),
        false => (
            "text/plain; version=0.0.4; charset=utf-8",
            prometheus_text(&metrics.text()?),
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

/// Responder for what is asked at the metrics' address.
struct MetricsServer {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// Clients that may read the metrics; without it every client that reaches the port.
    scrapers: Option<Scrapers>,
}

impl Responder for MetricsServer {
    fn answer(&mut self, request: Request<'_>) -> Option<Answer> {
        Some(match request.path {
            "/metrics" => {
                if let Some(scrapers) = &self.scrapers
                    && let Err(refusal) = scrapers.check(request.authorization)?
                {
                    return Some(refusal);
                }
                match render(&self.metrics, request.accept) {
                    Ok(answer) => answer,
                    Err(error) => Answer::plain("500 Internal Server Error", error.to_string()),
                }
            }
            "/healthz" => healthz(&self.health),
            _ => Answer::plain("404 Not Found", "/metrics or /healthz\n"),
        })
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.scrapers.as_ref().map(Scrapers::news)
    }

    fn take_news(&self) {
        self.scrapers.iter().for_each(Scrapers::take_news);
    }
}

/// The bound address of the metrics, with what TLS needs.
pub struct MetricsListener {
    address: SocketAddr,
    listener: TcpListener,
    tls: Option<Tls>,
}

impl MetricsListener {
    /// Takes the address, and reads the certificate and the key.
    ///
    /// # Errors
    /// The address is in use, or is none of this machine's; a certificate or key that cannot be used.
    pub fn bind(address: SocketAddr, tls: Option<&MetricsTls>) -> Result<Self, ServeError> {
        let failed = |e: io::Error| ServeError::new("metricsAddress", address, &e);
        let tls = tls.map(|tls| Tls::open(tls.files.as_ref())).transpose()?;
        let listener = listen(address).map_err(failed)?;
        Ok(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            tls,
        })
    }

    /// Serves `/metrics`, and `/healthz` as a deprecated alias of the one at `healthAddress`, for as long as the
    /// process lives. With `authority` that API server says which clients may read the metrics. Answers with the
    /// address that was bound.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn serve(
        self,
        authority: Option<&Arc<ApiClient>>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<SocketAddr, ServeError> {
        let failed = |e: io::Error| ServeError::new("metricsAddress", self.address, &e);
        let scrapers = authority.map(|api| Scrapers::start(Arc::clone(api)));
        let server = MetricsServer {
            metrics,
            health,
            scrapers: scrapers.transpose().map_err(failed)?,
        };
        http::spawn("metrics", self.listener, LIMITS, self.tls, server).map_err(failed)?;
        Ok(self.address)
    }
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
