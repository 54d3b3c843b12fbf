//! The values that decisions are made of.

pub mod layout;
pub mod managed;
pub mod observation;
pub mod pod;
pub mod qos;
pub mod quantity;
pub mod settings;
pub mod signal;
pub mod threshold;
pub mod usage;
