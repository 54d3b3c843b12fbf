//! Loading and attaching eBPF programs.

pub mod btf;
pub mod kernel_log;
pub mod object;
pub(crate) mod offsets;
pub mod perf_wakeup;
pub mod pin;
pub(crate) mod ring;
pub(crate) mod syscall;
pub(crate) mod tracefs;
