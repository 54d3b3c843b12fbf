//! What the programs could not deliver.

/// Counters of drops, kept by the programs: an index each into the per-CPU array `DROPS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCounter {
    /// A trigger's ring buffer was full; the trigger stays armed and the next charge tries again.
    Wakeup = 0,
    /// A ring buffer of OOM kills was full; the record is lost.
    OomRecord = 1,
    /// The ring buffer of cgroup events was full; the pod table has to be read anew.
    CgroupEvent = 2,
    /// No room to count a cgroup by itself; what its tasks did is in the whole count only.
    CgroupCount = 3,
}

impl DropCounter {
    /// How many counters there are.
    pub const COUNT: u32 = 4;
}
