//! Attaching a tracing program by its descriptor, without a library in between: the fast path does it near a threshold,
//! where nothing may be allocated.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// `BPF_RAW_TRACEPOINT_OPEN` of `enum bpf_cmd`; for a BTF-typed program the place is the one it was loaded for.
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

/// The part of `union bpf_attr` that this command reads.
#[repr(C)]
struct Attributes {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

/// An attached program; detached when dropped.
#[derive(Debug)]
pub struct TracingLink {
    fd: OwnedFd,
}

impl AsFd for TracingLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl TracingLink {
    /// Attaches a loaded `tp_btf` or fexit program. Does not allocate.
    ///
    /// # Errors
    /// What `bpf(2)` answers.
    pub fn attach(program: &OwnedFd) -> io::Result<Self> {
        let attributes = Attributes {
            name: 0,
            // A descriptor is never negative.
            prog_fd: program.as_raw_fd().cast_unsigned(),
            padding: 0,
        };
        // SAFETY: the attributes outlive the call, and their size is given with them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                RAW_TRACEPOINT_OPEN,
                &raw const attributes,
                size_of::<Attributes>(),
            )
        };
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => {
                // SAFETY: the descriptor is new and has no other owner.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                Ok(Self { fd })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}
