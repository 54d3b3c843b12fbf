//! Loads the programs of `ebpf/`, chooses hooks, arms tripwires, reads ring buffers.
//!
//! Support is probed ([`ladder::Facts`]), decided by a pure function ([`ladder::choose`]) and applied
//! ([`tripwire::build`]); a refused hook is a rung down, never a crash.

pub mod btf;
mod charge;
mod eventfd;
pub mod ladder;
mod link;
pub mod object;
mod offsets;
pub mod telemetry;
pub mod tripwire;
