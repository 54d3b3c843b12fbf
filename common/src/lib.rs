//! What crosses from the kernel programs to the agent: records of the ring buffers and values of the maps, one file per
//! topic, the same names as in `ebpf/src`, `agent/node/src/trigger` and `tests/tests/kernel`. It must not know the standard
//! library or any decision. PIDs need no more than [`counter`], which, as [`drops`], is tested with the other topics.
#![no_std]

pub mod cgroups;
pub mod counter;
pub mod drops;
pub mod inodes;
pub mod memory;
pub mod oom;

/// Marks the types that aya may copy to and from maps byte by byte. Each is given with the sum of its fields' sizes.
macro_rules! plain_old_data {
    ($($t:ty = $size:expr),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$t>() == $size, "padding");
        // SAFETY: repr(C), made of integers only, and without padding: its fields fill it.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $t {}
    )+};
}
pub(crate) use plain_old_data;
