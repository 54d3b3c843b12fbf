//! `/metrics` and `/healthz` over HTTP: a handful of readers at a time, each with little patience.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};

use super::metrics::Metrics;
use crate::reflex::thread::now_ns;

/// Readers at a time; more wait in the kernel's queue.
const READERS: usize = 8;
/// How long a reader may take for all that it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// The agent's loop beats once a second; so long without a beat, and it hangs.
const DEAD_NANOS: u64 = 30_000_000_000;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("metricsAddress: {address}: {source}")]
pub struct ServeError {
    /// The configured address.
    address: SocketAddr,
    /// The system's reason.
    source: io::Error,
}

/// Serves until the task is aborted. `beat` is the moment of the agent's last heartbeat, in nanoseconds of
/// CLOCK_MONOTONIC.
///
/// # Errors
/// The address is in use, or is none of this machine's.
pub async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    beat: Arc<AtomicU64>,
) -> Result<(SocketAddr, JoinHandle<()>), ServeError> {
    let failed = |source| ServeError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let readers = Arc::new(Semaphore::new(READERS));
    let task = tokio::spawn(async move {
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&readers).acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = listener.accept().await else {
                // No descriptor left, or a reader that is gone already.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (metrics, beat) = (Arc::clone(&metrics), Arc::clone(&beat));
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let answer = answer(&request, &metrics, &beat);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE)
                    .keep_alive(false)
                    .max_buf_size(16 << 10)
                    .serve_connection(TokioIo::new(stream), service);
                // A reader that goes away in the middle is nobody's trouble.
                let _ = tokio::time::timeout(PATIENCE, connection).await;
                drop(permit);
            });
        }
    });
    Ok((bound, task))
}

fn answer(
    request: &Request<Incoming>,
    metrics: &Metrics,
    beat: &AtomicU64,
) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match metrics.text() {
            Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        (&Method::GET, "/healthz") => {
            let silent = now_ns().saturating_sub(beat.load(Ordering::Relaxed));
            if silent < DEAD_NANOS {
                plain(StatusCode::OK, "ok\n".to_owned())
            } else {
                let seconds = silent / 1_000_000_000;
                let text = format!("the agent's loop has not run for {seconds} s\n");
                plain(StatusCode::SERVICE_UNAVAILABLE, text)
            }
        }
        (&Method::GET, _) => plain(StatusCode::NOT_FOUND, "/metrics or /healthz\n".to_owned()),
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn plain(status: StatusCode, text: String) -> (StatusCode, &'static str, String) {
    (status, "text/plain; charset=utf-8", text)
}
