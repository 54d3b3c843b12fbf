//! Loading and attaching eBPF programs.

pub mod btf;
pub mod kernel_log;
pub(crate) mod link;
pub mod object;
pub(crate) mod offsets;
pub mod perf_wakeup;
pub mod pin;
pub(crate) mod ring;
mod syscall;
pub(crate) mod tracefs;
