//! What crosses from the kernel programs to the agent: records of the ring buffers and values of the maps,
//! one file per topic, the same names as in `ebpf/` and in the agent's `kernel` module.
#![no_std]

pub mod budget;
pub mod cgroups;
pub mod inodes;
pub mod memory;
pub mod oom;
pub mod pids;

/// Marks the types that aya may copy to and from maps byte by byte.
macro_rules! plain_old_data {
    ($($t:ty),+ $(,)?) => {$(
        // SAFETY: repr(C), made of integers only, and without padding (asserted below).
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $t {}
    )+};
}
pub(crate) use plain_old_data;

/// Drop counters kept by the programs, an index each into the per-CPU array `DROPS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The wake-up ring buffer was full; the tripwire stays armed and the next charge tries again.
    Wakeup = 0,
    /// The telemetry ring buffer was full; the record is lost.
    Telemetry = 1,
    /// The ring buffer of pod life was full; the pod table has to be read anew.
    PodLife = 2,
    /// No room to count a cgroup by itself; what its tasks did is in the whole count only.
    Share = 3,
}

impl Drop {
    /// How many counters there are.
    pub const COUNT: u32 = 4;
}
