//! Safe wrappers of what the kernel and libc give: clocks, eventfd, ppoll, the size of a page, priorities of threads,
//! the end of threads, limits of the process, perf events, files that are replaced as a whole. It must not know cgroupfs,
//! procfs but for the ID of the boot and a sysctl, or tokio.

pub mod clock;
pub mod eventfd;
pub mod fs;
pub mod mutex;
pub mod page;
pub mod perf;
pub mod pi_mutex;
pub mod poll;
pub mod priority;
pub mod process;
pub mod rt;
pub mod swap_slot;
pub mod thread;
