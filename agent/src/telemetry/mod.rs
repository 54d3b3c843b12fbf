//! What the agent shows of itself: metrics for Prometheus, and whether it is alive.

mod health;
mod http;
mod incident;
mod incidents;
mod metrics;
mod picture;
mod server;
mod state;

pub use crate::engine::recorder::{Recorder, Sample};
pub use health::{CONTROL_LOOP_LIMIT, FAST_PATH_LIMIT, Health, Heart, serve as serve_health};
pub use incident::{BEFORE_NS, Incident, Standing};
pub use incidents::{Incidents, Kept, read as read_incident};
pub use metrics::Metrics;
pub use picture::{Axes, Picture};
pub use server::{ServeError, serve};
pub use state::{Hook, Labelled, Sources};
