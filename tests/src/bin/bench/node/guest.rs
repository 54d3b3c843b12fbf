//! What has to be prepared in the guest.

use nix::mount::MsFlags;

use evictd_tests::prelude::*;

/// Where the disk's filesystem is mounted: what is written there is page cache.
pub const DISK: &str = "/var/disk";

/// Mounts the disk, and lets tmpfs take all of the memory, as a `medium: Memory` volume without a limit can.
pub fn prepare() -> Result<()> {
    // Children are given scores of their own; the process that counts must be the last to go.
    set_oom_score(std::process::id(), -1000)?;
    mount(
        "tmpfs",
        "/dev/shm",
        "tmpfs",
        MsFlags::MS_REMOUNT,
        "size=100%",
    )?;
    if fs::read_to_string("/proc/mounts")?.contains(DISK) {
        return Ok(());
    }
    fs::create_dir_all(DISK)?;
    for module in ["virtio_pci", "virtio_blk", "ext4"] {
        // Built in, perhaps; what is missing shows when the disk is mounted.
        let _ = Command::new("modprobe").arg(module).status();
    }
    mount("/dev/vda", DISK, "ext4", MsFlags::empty(), "")
}

fn mount(what: &str, place: &str, kind: &str, flags: MsFlags, options: &str) -> Result<()> {
    let mounted = nix::mount::mount(Some(what), place, Some(kind), flags, Some(options));
    mounted.with_context(|| format!("mount {place}"))
}

/// Sets the `oom_score_adj` of a process.
pub fn set_oom_score(pid: u32, score: i32) -> Result<()> {
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, score.to_string()).context(path)
}
