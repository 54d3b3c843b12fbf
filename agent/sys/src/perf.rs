//! Perf events: whether this process may open any.

use std::{
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd},
};

/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_BPF_OUTPUT` (`include/uapi/linux/perf_event.h`).
const SOFTWARE: u32 = 1;
const BPF_OUTPUT: u64 = 10;

/// The first `struct perf_event_attr`, which every kernel takes (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
struct Attributes {
    kind: u32,
    /// Bytes of this structure.
    size: u32,
    config: u64,
    rest: [u64; 6],
}

/// The highest of upstream's levels. Kernels of Debian and of Ubuntu have higher ones, at which CAP_PERFMON does not count.
const UPSTREAM_PARANOID: i32 = 2;

/// Opens an event as those by which a kernel program wakes a thread, on CPU 0, and closes it.
///
/// # Errors
/// The kernel refuses it: see [`explain`].
pub fn probe() -> io::Result<()> {
    let attributes = Attributes {
        kind: SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: BPF_OUTPUT,
        rest: [0; 6],
    };
    let (every_process, cpu, no_group) = (-1, 0, -1);
    // SAFETY: the kernel reads as many bytes as the structure says it has.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            every_process,
            cpu,
            no_group,
            libc::c_ulong::from(0_u8),
        )
    };
    match i32::try_from(opened) {
        Ok(descriptor @ 0..) => {
            // SAFETY: it is open, and nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            Ok(())
        }
        _ => Err(explain(io::Error::last_os_error())),
    }
}

/// Adds to a refusal what `kernel.perf_event_paranoid` has to do with it.
pub fn explain(refused: io::Error) -> io::Error {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match level.trim().parse::<i32>() {
        Ok(level) if refused.raw_os_error() == Some(libc::EACCES) && level > UPSTREAM_PARANOID => {
            io::Error::other(format!(
                "{refused}: kernel.perf_event_paranoid is {level}, at which CAP_PERFMON is not enough"
            ))
        }
        _ => refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_opened_or_refused_for_lack_of_rights() {
        if let Err(error) = probe() {
            let of_rights = [
                io::ErrorKind::PermissionDenied,
                io::ErrorKind::Other,
                io::ErrorKind::Unsupported,
            ];
            assert!(of_rights.contains(&error.kind()), "{error}");
        }
    }

    #[test]
    fn another_refusal_stays_as_it_is() {
        let error = explain(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    }
}
