//! What the agent shows of itself: metrics for Prometheus, and whether it is alive.

mod metrics;
mod server;
mod state;

pub use metrics::Metrics;
pub use server::{ServeError, serve};
pub use state::{Hook, Labelled, Sources};
