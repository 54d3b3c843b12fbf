//! Loading and attaching eBPF programs.

pub mod btf;
pub(crate) mod link;
pub mod object;
pub(crate) mod offsets;
pub mod perf_wakeup;
pub(crate) mod tracefs;
