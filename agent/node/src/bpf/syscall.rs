//! bpf(2), for what aya does not do, or not without allocating.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// `BPF_OBJ_PIN` of `enum bpf_cmd`.
const OBJ_PIN: libc::c_int = 6;
/// `BPF_RAW_TRACEPOINT_OPEN`; for a BTF-typed program the place is the one it was loaded for.
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

/// The part of `union bpf_attr` that both commands read: the path or the name of a tracepoint (0 for none), a
/// descriptor, flags.
#[repr(C)]
struct Attributes {
    name: u64,
    fd: u32,
    flags: u32,
}

/// Gives a link or a map a name in a BPF filesystem.
///
/// # Errors
/// What `bpf(2)` answers; EPERM and EINVAL for what this kernel cannot pin.
pub(super) fn pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    call(OBJ_PIN, object, Some(path)).map(drop)
}

/// Attaches a loaded `tp_btf` or fexit program, until the link is closed. Does not allocate.
///
/// # Errors
/// What `bpf(2)` answers.
pub(crate) fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd = call(RAW_TRACEPOINT_OPEN, program, None)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call(command: libc::c_int, object: BorrowedFd<'_>, name: Option<&CStr>) -> io::Result<i32> {
    let attributes = Attributes {
        name: name.map_or(0, |name| name.as_ptr().addr() as u64),
        // A descriptor is never negative.
        fd: object.as_raw_fd().cast_unsigned(),
        flags: 0,
    };
    let size = size_of::<Attributes>();
    // SAFETY: the attributes and the name outlive the call, and the size of the attributes is given with them.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const attributes, size) };
    match i32::try_from(answer) {
        Ok(answer) if answer >= 0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}
