//! `/metrics` over HTTP or HTTPS, on a thread of its own.

use std::{
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
    exposition::exposition,
    health::{Health, healthz},
    http::{self, Answer, Limits, Request, Responder},
    listen::listen,
    registry::MetricsRegistry,
    scrapers::Scrapers,
    tls::Tls,
};

const LIMITS: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(2),
    answer: Duration::from_secs(10),
};
/// Responder at the metrics' address.
struct MetricsServer {
    metrics: Arc<MetricsRegistry>,
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
                match exposition(&self.metrics, request.accept) {
                    Ok(answer) => answer,
                    Err(error) => Answer::plain("500 Internal Server Error", error.to_string()),
                }
            }
            "/healthz" => healthz(&self.health),
            _ => Answer::plain("404 Not Found", "/metrics or /healthz\n"),
        })
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.scrapers.as_ref().map(Scrapers::ready_fd)
    }

    fn clear_ready(&self) {
        self.scrapers.iter().for_each(Scrapers::clear_ready);
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
        metrics: Arc<MetricsRegistry>,
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
