//! Who may be evicted, when, in what order, and what follows.
//!
//! Operators write down what they know of their workloads as [`EvictionPolicy`] objects or files. The [`keeper`] turns
//! them into numbers in each pod's entry (`engine::clearance`) long before a node is short of anything: the fast path reads
//! one word, and an age limit is part of it.

pub mod brakes;
pub mod catalogue;
pub mod contradiction;
pub mod expression;
pub mod facts;
pub mod gate;
pub mod keeper;
pub mod load;
mod model;
pub mod render;
mod selector;
pub mod set;
mod walk;

pub use brakes::{Brake, BrakeChange, Brakes, PAUSED};
pub use catalogue::{Catalogue, Verdict};
pub use keeper::Keeper;
pub use model::{API_VERSION, Evict, EvictionPolicy, KIND, Limit, NoExecute, Rule, Wait};
pub use selector::{Labels, Selector};
pub use set::PolicySet;
