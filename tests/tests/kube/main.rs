//! The agent and an API server.

mod access;
mod comeback;
mod evicts;
mod load;
mod memory;
mod node;
mod rounds;
mod server;
mod soft;
mod tls;
mod watch;
