//! `/metrics` over HTTP, on a thread of its own.

use crate::telemetry::http::ServeError;
use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use super::{
    health::{Health, healthz},
    http::{self, Answer, Limits},
    metrics::Metrics,
};

const LIMITS: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(2),
    answer: Duration::from_secs(10),
};
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `/metrics`, and `/healthz` as a deprecated alias of the one at `healthAddress`, for as long as the process lives. The
/// address that was bound.
///
/// # Errors
/// The address is in use, or is none of this machine's.
pub fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
) -> Result<SocketAddr, ServeError> {
    let failed = |source| ServeError {
        field: "metricsAddress",
        address,
        source,
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let answer = move |path: &str| match path {
        "/metrics" => match metrics.text() {
            Ok(body) => Answer {
                status: "200 OK",
                kind: OPEN_METRICS,
                body,
            },
            Err(error) => Answer::plain("500 Internal Server Error", error.to_string()),
        },
        "/healthz" => healthz(&health),
        _ => Answer::plain("404 Not Found", "/metrics or /healthz\n"),
    };
    http::spawn("metrics", listener, LIMITS, answer).map_err(failed)?;
    Ok(bound)
}
