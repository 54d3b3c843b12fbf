//! Safe wrappers of what the kernel and libc give: clocks, eventfd, ppoll, the size of a page, real-time priority, the
//! end of threads, files that are replaced as a whole.

pub mod clock;
pub mod eventfd;
pub mod fs;
pub mod page;
pub mod pi_mutex;
pub mod poll;
pub mod rt;
pub mod swap_slot;
pub mod thread;
