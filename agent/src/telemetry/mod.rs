//! What the agent shows of itself: metrics for Prometheus, and probes for the kubelet.
//!
//! Metrics are counted in the `registry` by events, or read by the `collector` at each scrape; the `exposition`
//! is their text. `server` answers scrapers, with TLS and authorization (`tls`, `scrapers`); `health` answers
//! probes.

mod collector;
mod error;
mod exposition;
mod family;
mod health;
mod http;
mod listen;
mod registry;
mod scrapers;
mod server;
mod tls;

pub use collector::{HookInfo, MetricsCollector};
pub use error::ServeError;
pub use family::MetricFamily;
pub use health::{
    FAST_PATH_LIMIT, Health, Heartbeat, MANAGER, MANAGER_LIMIT, serve as serve_health,
};
pub use listen::is_free;
pub use registry::MetricsRegistry;
pub use server::MetricsListener;
pub use tls::test_files;
