//! Memory of one cgroup, version 1 or 2.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use evictd_engine::model::usage::MemoryReading;
use evictd_sys::{fs::PathError, page::page_size};

use crate::kernfile::{bad_message, number, open_primed, pread, value_of, values_of};

/// Longest `memory.stat` that is read: v2 has about 60 lines, v1 with two NUMA nodes less.
const STAT_BYTES: usize = 8192;

/// Number of lines that are read, those that add up to all that is listed last.
const KEYS: usize = 13;
/// Lines of v1's `memory.stat`: page cache on the lists, what is to be written, shared memory, slab that can be reclaimed,
/// what is in swap as well, and the lines that add up to all that is listed. Lines without `total_` are of this cgroup
/// alone, without those below.
const V1_KEYS: [&str; KEYS] = [
    "total_inactive_file",
    "total_active_file",
    "total_dirty",
    "total_writeback",
    "total_shmem",
    // v1 lists no huge pages and no slab, and no line has an empty name.
    "",
    "",
    "total_swapcached",
    "",
    "total_cache",
    "total_rss",
    "",
    "",
];
/// Keys of `memory.stat` in v2; `kernel` since 5.18.
const V2_KEYS: [&str; KEYS] = [
    "inactive_file",
    "active_file",
    "file_dirty",
    "file_writeback",
    "shmem",
    "hugetlb",
    "slab_reclaimable",
    "swapcached",
    "zswap",
    "anon",
    "file",
    "kernel",
    "sock",
];

/// Version of the cgroup interface that a directory speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.usage_in_bytes` and friends.
    V1,
    /// `memory.current` and friends.
    V2,
}

impl Version {
    /// The file with what is charged to a cgroup and to those below it.
    pub(crate) fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }

    /// The file with a cgroup's own limit.
    pub(super) fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }
}

/// A memory cgroup with its files held open.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
    id: u64,
    /// v2's root has none.
    usage: Option<File>,
    stat: Arc<File>,
    /// v1's counter of kernel memory, where it is asked for.
    kernel: Option<File>,
}

/// The root of the memory hierarchy below a cgroup mount, and its interface: v1's `memory`, or v2 with the memory
/// controller. `None`: no memory cgroups.
pub fn memory_root(mount: &Path) -> Option<(PathBuf, Version)> {
    let v1 = mount.join("memory");
    if v1.join(Version::V1.usage_file()).exists() {
        return Some((v1, Version::V1));
    }
    let controllers = fs::read_to_string(mount.join("cgroup.controllers")).ok()?;
    let has_memory = controllers.split_whitespace().any(|c| c == "memory");
    has_memory.then(|| (mount.to_owned(), Version::V2))
}

impl MemoryCgroup {
    /// Opens the memory files of a cgroup directory.
    ///
    /// # Errors
    /// The directory is not there, or is no memory cgroup: the error names the file that is missing.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let meta = fs::metadata(path).map_err(PathError::at(path))?;
        let open = |name: &str| open_primed(&path.join(name));
        let (version, usage) = match open(Version::V2.usage_file()) {
            Ok(file) => (Version::V2, Some(file)),
            Err(_) if is_v2_root(path) => (Version::V2, None),
            Err(_) => (Version::V1, Some(open(Version::V1.usage_file())?)),
        };
        let stat = Arc::new(open("memory.stat")?);
        Ok(Self {
            path: path.to_owned(),
            version,
            id: meta.ino(),
            usage,
            stat,
            kernel: None,
        })
    }

    /// On v1, has kernel memory read from its own counter, which is exact at every moment: what is in no line of
    /// `memory.stat` then is what the statistics are behind. One read more for each reading.
    #[must_use]
    pub fn with_kernel_counter(mut self) -> Self {
        if self.version == Version::V1 {
            self.kernel = open_primed(&self.path.join("memory.kmem.usage_in_bytes")).ok();
        }
        self
    }

    /// Whether [`MemoryReading::uncategorized`] is free of kernel memory.
    pub fn counts_kernel_memory(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether its usage is made of its statistics: v2's real root has no counter. The root of a container's namespace
    /// has one.
    pub fn is_root(&self) -> bool {
        self.usage.is_none()
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Open `memory.stat` of the cgroup.
    pub(super) fn stat(&self) -> &Arc<File> {
        &self.stat
    }

    /// Version of the interface that the cgroup speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The kernel's id of the cgroup (`kernfs_node.id`): the inode number of its directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether this cgroup is the one at its path. A removed one may be followed by another of the same name.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|meta| meta.ino() == self.id)
    }

    /// Everything charged here and below, in bytes: one read of one number. Does not allocate.
    ///
    /// v2's root has no such file; there it is anon + file of `memory.stat`, as for the kubelet (opencontainers/cgroups
    /// `rootStatsFromMeminfo`).
    ///
    /// # Errors
    /// ENODEV when the cgroup was removed.
    pub fn usage(&self) -> io::Result<u64> {
        let Some(usage) = &self.usage else {
            return root_usage(pread(&self.stat, &mut [0; STAT_BYTES])?);
        };
        let mut buffer = [0; 32];
        number(pread(usage, &mut buffer)?).ok_or_else(bad_message)
    }

    /// Reads the usage by a file that is opened for it: for threads of normal priority
    /// ([`crate::pods::table::PodEntry::open_memory`]).
    ///
    /// # Errors
    /// The cgroup was removed, or no descriptor is left.
    pub fn usage_by_path(&self) -> io::Result<u64> {
        if self.is_root() {
            return self.usage();
        }
        let text = fs::read(self.path.join(self.version.usage_file()))?;
        number(&text).ok_or_else(bad_message)
    }

    /// Usage and page cache, in bytes. Does not allocate.
    ///
    /// # Errors
    /// ENODEV when the cgroup was removed.
    pub fn read(&self) -> io::Result<MemoryReading> {
        self.reading(pread(&self.stat, &mut [0; STAT_BYTES])?)
    }

    fn reading(&self, stat: &[u8]) -> io::Result<MemoryReading> {
        let keys = match self.version {
            Version::V1 => V1_KEYS,
            Version::V2 => V2_KEYS,
        };
        let [
            inactive,
            active,
            dirty,
            writeback,
            shmem,
            hugetlb,
            slab,
            swap_cache,
            zswap,
            listed @ ..,
        ] = values_of(stat, keys);
        let sum = |values: &[Option<u64>]| {
            values
                .iter()
                .flatten()
                .fold(0_u64, |sum, value| sum.saturating_add(*value))
        };
        let usage = match self.usage {
            Some(_) => self.usage()?,
            None => root_usage(stat)?,
        };
        // They are in the counter, and not in anon + file.
        let hugetlb = hugetlb.filter(|_| !self.is_root()).unwrap_or(0);
        let kernel = match &self.kernel {
            Some(file) => number(pread(file, &mut [0; 32])?).unwrap_or(0),
            None => 0,
        };
        Ok(MemoryReading {
            usage,
            kernel,
            inactive_file: inactive.ok_or_else(bad_message)?,
            active_file: active.ok_or_else(bad_message)?,
            // Not there on a kernel that is built without writeback of cgroups.
            dirty_or_writeback: sum(&[dirty, writeback]),
            shmem: shmem.unwrap_or(0),
            hugetlb,
            left_out: 0,
            slab_reclaimable: slab.unwrap_or(0),
            swap_cached: sum(&[swap_cache, zswap]),
            uncategorized: match self.usage {
                Some(_) => usage
                    .saturating_sub(sum(&listed))
                    .saturating_sub(kernel + hugetlb),
                None => 0,
            },
        })
    }

    /// The cgroup's own limit in bytes, `None` where it has none.
    ///
    /// # Errors
    /// The file cannot be read, or has no number in it.
    pub fn limit(&self) -> Result<Option<u64>, PathError> {
        let file = self.path.join(self.version.limit_file());
        if self.is_root() {
            return Ok(None);
        }
        let text = fs::read_to_string(&file).map_err(PathError::at(&file))?;
        Ok(limit_in(text.as_bytes(), page_size()))
    }

    /// The file of its own limit, to be read again and again ([`read_limit`]); `None` where it has none.
    pub(crate) fn open_limit(&self) -> Option<File> {
        open_primed(&self.path.join(self.version.limit_file())).ok()
    }
}

/// Reads the limit in bytes from an open file of it, `None` where there is no limit. Does not allocate.
pub(crate) fn read_limit(file: &File) -> io::Result<Option<u64>> {
    let mut buffer = [0; 32];
    Ok(limit_in(pread(file, &mut buffer)?, page_size()))
}

/// The limit that a file of v1 or v2 tells. For "no limit" v2 has a word, and v1 the largest multiple of a page below
/// 2^63.
fn limit_in(text: &[u8], page_size: u64) -> Option<u64> {
    let unlimited = i64::MAX as u64 / page_size * page_size;
    number(text).filter(|limit| *limit < unlimited)
}

fn is_v2_root(path: &Path) -> bool {
    // Every other v2 group has a type.
    path.join("cgroup.controllers").exists() && !path.join("cgroup.type").exists()
}

fn root_usage(stat: &[u8]) -> io::Result<u64> {
    let anon = value_of(stat, "anon").ok_or_else(bad_message)?;
    let file = value_of(stat, "file").ok_or_else(bad_message)?;
    Ok(anon.saturating_add(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On v2 with `memory_hugetlb_accounting`.
    #[test]
    fn huge_pages_are_of_the_cgroup_and_not_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let stat = "anon 100\nfile 50\nkernel 10\nsock 0\nfile_dirty 0\nfile_writeback 0\ninactive_file 30\n\
            active_file 20\nshmem 0\nslab_reclaimable 5\nhugetlb 1000\n";
        for (file, text) in [("memory.stat", stat), ("memory.current", "1160")] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let reading = MemoryCgroup::open(dir.path()).unwrap().read().unwrap();
        assert_eq!((reading.working_set(), reading.uncategorized), (1130, 0));
        assert_eq!(reading.of_scope(false).unreclaimable(), 105);
        assert_eq!(reading.of_scope(true).unreclaimable(), 1105);
    }

    #[test]
    fn no_limit_is_none_whatever_the_size_of_a_page() {
        assert_eq!(limit_in(b"9223372036854771712\n", 4 << 10), None);
        assert_eq!(limit_in(b"9223372036854710272\n", 64 << 10), None);
        assert_eq!(limit_in(b"max\n", 64 << 10), None);
        assert_eq!(limit_in(b"268435456\n", 64 << 10), Some(256 << 20));
    }
}
