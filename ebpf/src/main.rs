//! The kernel programs of evictd, one file per topic, the same names as in `common/`. This object holds the memory
//! trigger and the OOM evidence; `counters.rs` is the other one. They must not know which pod goes, or why.
#![no_std]
#![no_main]

mod drops;
mod kstruct;
mod memcg;
mod memory;
mod oom;
mod runtime;
