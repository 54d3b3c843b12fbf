//! What the agent shows of itself: metrics for Prometheus, and whether it is alive.

mod error;
mod health;
mod http;
mod listen;
mod metrics;
mod scrapers;
mod server;
mod state;
mod tls;

pub use health::{
    FAST_PATH_LIMIT, Health, Heartbeat, MANAGER, MANAGER_LIMIT, serve as serve_health,
};

pub use metrics::Metrics;

pub use error::ServeError;
pub use server::MetricsListener;
pub use state::{HookInfo, Metric, MetricsCollector};
