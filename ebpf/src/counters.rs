//! The programs that count: tasks, inodes, and cgroups that come and go.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod cgroups;
mod counter;
mod drops;
mod ids;
mod inodes;
mod kstruct;
mod pids;
mod runtime;
