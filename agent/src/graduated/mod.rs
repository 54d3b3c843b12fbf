//! Graduated action (R46): what is done about a soft threshold on memory while its grace period runs, before anybody is
//! evicted.
//!
//! First what is cold is reclaimed (`memory.reclaim`), then the first candidates are kept from growing (`memory.high`);
//! then the grace period is over, and pods go as usual. Each step is optional and off by default, and what each has given
//! back is written down. Which step comes when is decided in [`steps`] without I/O; the rounds decide, a blocking task
//! does it ([`files`]), and what must not outlive a crash is in the state directory before it is done ([`brakes`]).

pub mod brakes;
pub mod files;
mod work;

pub use crate::engine::steps::{Portion, Shortage, Step, Steps};
pub use brakes::{Brake, Brakes};
pub use files::{Given, Refusal};
pub use work::{Counters, Demand, Done, Worker};
