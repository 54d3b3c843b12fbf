//! What has to be prepared in the guest.

use std::{ffi::CString, fs, io, process::Command};

/// Where the disk's filesystem is mounted: what is written there is page cache.
pub const DISK: &str = "/var/disk";

/// Mounts the disk, and lets tmpfs take all of the memory, as a `medium: Memory` volume without a limit can.
pub fn prepare() -> io::Result<()> {
    // Children are given scores of their own; the process that counts must be the last to go.
    set_oom_score(std::process::id(), -1000)?;
    mount("tmpfs", "/dev/shm", "tmpfs", libc::MS_REMOUNT, "size=100%")?;
    if fs::read_to_string("/proc/mounts")?.contains(DISK) {
        return Ok(());
    }
    fs::create_dir_all(DISK)?;
    for module in ["virtio_pci", "virtio_blk", "ext4"] {
        // Built in, perhaps; what is missing shows when the disk is mounted.
        let _ = Command::new("modprobe").arg(module).status();
    }
    mount("/dev/vda", DISK, "ext4", 0, "")
}

fn mount(
    what: &str,
    place: &str,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let [what, at, kind, options] = [what, place, kind, options].map(CString::new);
    let (what, at, kind, options) = (what?, at?, kind?, options?);
    // SAFETY: strings that end with a zero and outlive the call.
    let outcome = unsafe {
        libc::mount(
            what.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    match outcome {
        0 => Ok(()),
        _ => {
            let error = io::Error::last_os_error();
            Err(io::Error::other(format!("mount {place}: {error}")))
        }
    }
}

/// Sets the `oom_score_adj` of a process.
pub fn set_oom_score(pid: u32, score: i32) -> io::Result<()> {
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, score.to_string()).map_err(|e| io::Error::other(format!("{path}: {e}")))
}
