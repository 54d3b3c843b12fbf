//! The agent and an API server.

mod access;
mod evicts;
<<<<<<< main
mod hanging_disk;
mod kubectl;
=======
mod fleet;
>>>>>>> policy
mod load;
mod manager;
mod memory;
mod node;
mod recreation;
mod server;
mod shadow;
mod soft;
mod tls;
mod watch;
