//! Evidence of the OOM killer and of the reclaim that precedes it, in the telemetry ring buffer.

/// What a [`Telemetry`] record tells.
pub mod kind {
    /// The OOM killer has chosen a victim (`mark_oom_victim` in the kernel): `pid` is the victim's.
    pub const MARK_VICTIM: u32 = 0;
    /// A cgroup at its limit begins to reclaim directly: `pid` is the allocating task's.
    pub const RECLAIM_BEGIN: u32 = 1;
}

/// One record of evidence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the allocating task's memory cgroup, or 0 where it could not be read.
    pub cgroup_id: u64,
    /// One of [`kind`].
    pub kind: u32,
    /// See [`kind`].
    pub pid: u32,
}

crate::plain_old_data!(Telemetry);

const _: () = assert!(size_of::<Telemetry>() == 2 * 8 + 2 * 4);
