//! The agent and an API server.

mod access;
mod admission;
mod chaos;
mod container_node;
mod evicts;
mod fleet;
mod hanging_disk;
mod kubectl;
mod load;
mod manager;
mod memory;
mod node;
mod recreation;
mod reports;
mod scrapers;
mod server;
mod shadow;
mod soft;
mod tls;
mod watch;
