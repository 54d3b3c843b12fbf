//! What the agent shows of itself: metrics for Prometheus, and whether it is alive.

mod health;
mod http;
mod metrics;
mod server;
mod state;

pub use health::{CONTROL_LOOP_LIMIT, FAST_PATH_LIMIT, Health, Heart, serve as serve_health};

pub use metrics::Metrics;

#[doc(hidden)]
pub use evictd_store::{
    incidents::read as read_incident,
    picture::{Axes, Picture},
};
pub use server::{ServeError, serve};
pub use state::{Hook, Labelled, Sources};
