//! The fast loop: from a tripped trigger to SIGKILL. It must not know tokio, the configuration or the store.
//!
//! It is one OS thread, not an async task, and a standby thread that decides where the first one is late. Between
//! wake-up and SIGKILL it allocates nothing, takes no lock but the one of these two threads, makes no network call,
//! opens no file that can be kept open, and decides on values that it reads at that moment, never on cached ones
//! (kubernetes/kubernetes#51745 shows what happens otherwise). Upper bounds that are a fraction of a millisecond old
//! only tell which pods need not be read. Slow work leaves through a bounded queue and is done by threads of normal
//! priority.
#![cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods))]

mod control;
mod event;
mod handle;
mod in_flight;
mod monitor;
mod scope;
mod shared_monitor;
mod spin;
mod standby;
mod stat_lag;
mod status;
#[cfg(test)]
mod tests;

pub use control::{FastPathControl, FastPathEventQueue, FastPathSettings};
pub use event::{BlockedBy, EvictionReport, FastPathEvent, StuckVictim, VictimExit};
pub use handle::FastPath;
pub use in_flight::{EARLIER, KilledBy, OtherKill, RestoredVictim};
pub use monitor::FastPathSetup;
pub use status::FastPathStatus;
