//! The programs that count: tasks, inodes, and the life of cgroups.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod cgroups;
mod counter;
mod drops;
mod inodes;
#[allow(dead_code, reason = "the memory object uses the other half")]
mod kstruct;
mod pids;
mod place;
mod runtime;
