//! Where the memory of a cgroup may be swapped out to.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use crate::{
    cgroup::memory::{MemoryCgroup, Version},
    kernfile::{number, open_primed, pread},
    proc::machine::SwapFree,
};

/// Swap that a cgroup may still use, with its files held open.
#[derive(Debug)]
pub struct SwapRoom {
    machine: SwapFree,
    /// What the cgroup has swapped out, and its limit of that. The root, and v1, have only the machine's.
    own: Option<(File, File)>,
    /// What is swapped out stays in memory, compressed (`zswap`).
    compressed: bool,
}

impl SwapRoom {
    /// `None` where the machine has no swap, or the cgroup may not use any.
    pub fn open(cgroup: &MemoryCgroup) -> Option<Self> {
        Self::open_below(cgroup, Path::new("/proc"), Path::new("/sys"))
    }

    fn open_below(cgroup: &MemoryCgroup, proc: &Path, sys: &Path) -> Option<Self> {
        let machine = SwapFree::open(proc).ok()?;
        let held = |name: &str| open_primed(&cgroup.path().join(name)).ok();
        let own = match cgroup.version() {
            Version::V2 => held("memory.swap.current").zip(held("memory.swap.max")),
            Version::V1 => None,
        };
        let zswap = sys.join("module/zswap/parameters/enabled");
        let compressed = fs::read(zswap).is_ok_and(|text| text.starts_with(b"Y"));
        Some(Self {
            machine,
            own,
            compressed,
        })
    }

    /// Bytes of memory that swapping can free at this moment; of what is kept compressed, half. Does not allocate.
    pub fn bytes(&self) -> u64 {
        let machine = self.machine.read().unwrap_or(0);
        let own = self.own.as_ref().map_or(machine, |(current, max)| {
            // `max` is no number.
            let limit = read(max).ok().flatten().unwrap_or(u64::MAX);
            limit.saturating_sub(read(current).ok().flatten().unwrap_or(limit))
        });
        let room = machine.min(own);
        if self.compressed { room / 2 } else { room }
    }
}

fn read(file: &File) -> io::Result<Option<u64>> {
    Ok(number(pread(file, &mut [0; 32])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(swap_kib: u64, max: &str, zswap: &str) -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/meminfo",
            &format!("MemTotal: 1 kB\nSwapTotal: {swap_kib} kB\nSwapFree: {swap_kib} kB\n"),
        );
        write("sys/module/zswap/parameters/enabled", zswap);
        for (name, text) in [
            ("current", "1"),
            ("stat", "anon 0\nfile 0\n"),
            ("swap.current", "1048576\n"),
            ("swap.max", max),
        ] {
            write(&format!("cgroup/memory.{name}"), text);
        }
        let cgroup = MemoryCgroup::open(&dir.path().join("cgroup")).unwrap();
        let room = SwapRoom::open_below(&cgroup, &dir.path().join("proc"), &dir.path().join("sys"));
        room.map(|room| room.bytes())
    }

    #[test]
    fn the_least_of_all_limits_is_the_room() {
        assert_eq!(room(0, "max\n", "N\n"), None, "no swap");
        assert_eq!(room(64 << 10, "max\n", "N\n"), Some(64 * MIB));
        assert_eq!(room(64 << 10, "9437184\n", "N\n"), Some(8 * MIB));
        assert_eq!(room(64 << 10, "0\n", "N\n"), Some(0));
        assert_eq!(room(64 << 10, "max\n", "Y\n"), Some(32 * MIB));
    }
}
