//! The unit in which the kernel hands out memory.

/// Bytes in a page: 4 KiB on most machines, 64 KiB on some of arm64. Page counters count pages, everything else in the
/// agent counts bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
