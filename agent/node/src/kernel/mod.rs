//! Loads the programs of `ebpf/`, chooses hooks, arms tripwires, reads ring buffers.
//!
//! Support is probed ([`ladder::Facts`]), decided by a pure function ([`ladder::choose`]) and applied
//! ([`tripwire::build`]); a refused hook is a rung down, never a crash.

pub mod btf;
pub mod budget;
pub mod cgroups;
mod charge;
mod eventfd;
mod inode_hooks;
pub mod inode_shares;
pub mod inodes;
pub mod ladder;
mod link;
pub mod object;
mod offsets;
pub mod pids;
mod registrar;
pub mod telemetry;
mod tracefs;
pub mod tripwire;
pub mod wakeup;
