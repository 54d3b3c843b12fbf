//! The fast loop: from a tripped trigger to SIGKILL.
//!
//! One OS thread, not an async task, and a standby thread for when it is late. Between wake-up and SIGKILL it allocates nothing, takes
//! no lock but the one that says which of the two decides, makes no network call, opens no file, and kills on values read at
//! that moment, never on cached ones (kubernetes/kubernetes#51745 is what happens otherwise); bounds that are a fraction of a
//! millisecond old only tell which pods it need not ask. All that may take its time leaves through a bounded queue and is done
//! elsewhere.
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
#[cfg(test)]
mod tests;

pub use control::{Control, EventQueue, FastPathSettings};
pub use event::{BlockedBy, Event, EvictionReport, StuckVictim, VictimExit};
pub use handle::FastPath;
pub use in_flight::{EARLIER, KilledBy, ResumedVictim};
pub use monitor::Setup;
