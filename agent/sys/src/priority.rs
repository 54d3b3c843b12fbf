//! What keeps a thread from slowing others down: low priority for the CPU and for a disk.

use std::io;

use rustix::process::setpriority_process;

/// Priority of the calling thread's requests to a disk against those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// Behind all others. While others use the disk, mq-deadline holds such a request back for up to 10 s
    /// (`prio_aging_expire`).
    Idle,
    /// Last of the best-effort class.
    Low,
}

impl IoPriority {
    /// The class and the level within it (ioprio_set(2)).
    fn value(self) -> libc::c_int {
        const CLASS_SHIFT: libc::c_int = 13;
        let (class, level) = match self {
            Self::Low => (2, 7),
            Self::Idle => (3, 0),
        };
        class << CLASS_SHIFT | level
    }

    /// Sets it for the calling thread.
    ///
    /// # Errors
    /// The kernel refuses, which changes nothing but the speed of others.
    pub fn set(self) -> io::Result<()> {
        const IOPRIO_WHO_PROCESS: libc::c_int = 1;
        // SAFETY: plain integers; 0 is the calling thread (ioprio_set(2)).
        match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, self.value()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives the calling thread the lowest priority for the CPU.
///
/// # Errors
/// The kernel refuses, which changes nothing but the speed of others.
pub fn lower_priority() -> io::Result<()> {
    const LOWEST: i32 = 19;
    // On Linux this is the calling thread too (setpriority(2), C library/kernel differences).
    Ok(setpriority_process(None, LOWEST)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_thread_stands_behind_others() {
        std::thread::spawn(|| {
            lower_priority().unwrap();
            for priority in [IoPriority::Idle, IoPriority::Low, IoPriority::Idle] {
                priority.set().unwrap();
                // SAFETY: plain integers.
                let value = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
                assert_eq!(value, i64::from(priority.value()), "{priority:?}");
            }
        })
        .join()
        .unwrap();
    }
}
