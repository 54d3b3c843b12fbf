//! The agent and an API server.

mod access;
mod evicts;
<<<<<<< main
mod kubectl;
=======
mod hanging_disk;
>>>>>>> threads
mod load;
mod manager;
mod memory;
mod node;
mod recreation;
mod server;
mod soft;
mod tls;
mod watch;
