//! What is shipped: chart, manifests, image, documents.

mod admission;
mod book;
mod capabilities;
mod chart;
mod container;
mod e2e;
mod monitoring;
mod pools;
mod presets;
mod requirements;
mod schema;
