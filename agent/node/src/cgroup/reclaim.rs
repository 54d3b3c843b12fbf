//! Reclaim of a cgroup's memory by `memory.reclaim` of version 2.

use std::{fs, io, path::Path, time::Instant};

use evictd_engine::model::usage::MemoryReading;

use crate::cgroup::memory::{MemoryCgroup, Version};

/// Bytes that are asked for at once: between two requests the time and the need are looked at.
const CHUNK: u64 = 16 << 20;

/// Whether there is a way to reclaim from a pod's cgroup.
///
/// # Errors
/// There is none, and why.
pub fn can_reclaim(cgroup: &MemoryCgroup) -> Result<(), &'static str> {
    match cgroup.version() {
        // It empties a cgroup of everything that can be emptied, swap included.
        Version::V1 => Err(
            "cgroup v1 has only memory.force_empty, which is too blunt: needs cgroup v2 and kernel 5.19",
        ),
        Version::V2 if cgroup.path().join("memory.reclaim").exists() => Ok(()),
        Version::V2 => Err("this kernel has no memory.reclaim: needs 5.19"),
    }
}

/// Memory that a cgroup has given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimResult {
    /// Bytes that were asked for.
    pub requested: u64,
    /// Memory of the cgroup before the reclaim.
    pub before: MemoryReading,
    /// Memory of the cgroup after the reclaim.
    pub after: MemoryReading,
}

impl ReclaimResult {
    /// Bytes by which less is charged to the cgroup.
    pub fn usage(&self) -> u64 {
        self.before.usage.saturating_sub(self.after.usage)
    }

    /// Bytes by which the working set is smaller: what the signals see of the reclaim.
    pub fn working_set(&self) -> u64 {
        self.before
            .working_set()
            .saturating_sub(self.after.working_set())
    }
}

/// Reclaims so many bytes of a cgroup, in pieces, until `until`. That less was to be had than was asked for is no
/// error.
///
/// # Errors
/// The cgroup is gone, the kernel refuses.
pub fn reclaim(cgroup: &MemoryCgroup, bytes: u64, until: Instant) -> io::Result<ReclaimResult> {
    let file = cgroup.path().join("memory.reclaim");
    let before = cgroup.read()?;
    let mut given = ReclaimResult {
        requested: 0,
        before,
        after: before,
    };
    while given.requested < bytes && Instant::now() < until {
        let piece = CHUNK.min(bytes - given.requested);
        let had = given.after.usage;
        let outcome = ask(&file, piece);
        given.requested += piece;
        given.after = cgroup.read()?;
        match outcome {
            Ok(()) => {}
            // Less than that could be reclaimed; the next piece may still find some, if this one has.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                if given.after.usage >= had {
                    break;
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(given)
}

/// Page cache only, where the kernel can be told so (6.8 and later); no memory is to be swapped out.
fn ask(file: &Path, bytes: u64) -> io::Result<()> {
    match fs::write(file, format!("{bytes} swappiness=0")) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => fs::write(file, bytes.to_string()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cgroup(dir: &Path, usage: &str) -> MemoryCgroup {
        fs::write(dir.join(usage), "104857600\n").unwrap();
        let stat = "inactive_file 0\nactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n";
        fs::write(dir.join("memory.stat"), stat).unwrap();
        MemoryCgroup::open(dir).unwrap()
    }

    // R46
    #[test]
    fn what_a_machine_cannot_do_is_said_in_clear_words() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = cgroup(dir.path(), "memory.usage_in_bytes");
        let refusal = can_reclaim(&v1).unwrap_err();
        assert!(
            refusal.contains("memory.force_empty, which is too blunt"),
            "{refusal}"
        );
        let v2 = cgroup(dir.path(), "memory.current");
        assert_eq!(
            can_reclaim(&v2),
            Err("this kernel has no memory.reclaim: needs 5.19")
        );
        fs::write(dir.path().join("memory.reclaim"), "").unwrap();
        assert_eq!(can_reclaim(&v2), Ok(()));
    }

    #[test]
    fn a_reclaim_asks_in_pieces_and_keeps_to_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let v2 = cgroup(dir.path(), "memory.current");
        let file = dir.path().join("memory.reclaim");
        fs::write(&file, "").unwrap();
        let far = Instant::now() + Duration::from_secs(600);
        let given = reclaim(&v2, 2 * CHUNK + 5, far).unwrap();
        assert_eq!((given.requested, given.usage()), (2 * CHUNK + 5, 0));
        // The last piece; page cache alone.
        assert_eq!(fs::read_to_string(&file).unwrap(), "5 swappiness=0");
        let given = reclaim(&v2, CHUNK, Instant::now()).unwrap();
        assert_eq!(given.requested, 0);
    }
}
