//! Evidence of the OOM killer, read when there is time: the ring buffer that wakes no one.

use aya::maps::{MapData, RingBuf};
pub use evictd_common::oom::{Telemetry as Record, kind};

use super::object::{Object, ObjectError, Place, ProgramAt};

/// The programs that watch the OOM killer; each is tried, none is needed.
pub const PROGRAMS: [ProgramAt; 2] = [
    ProgramAt {
        name: "oom_mark_victim",
        place: Place::Tracepoint("oom", "mark_victim"),
    },
    ProgramAt {
        name: "oom_reclaim_begin",
        place: Place::Tracepoint("vmscan", "mm_vmscan_memcg_reclaim_begin"),
    },
];

/// Programs that were refused, and the kernel's reasons.
pub type Refusals = Vec<(&'static str, String)>;

/// Reader of the telemetry ring buffer: an iterator over the records that were not read yet, oldest first.
pub struct Telemetry {
    ring: RingBuf<MapData>,
}

impl Telemetry {
    /// Attaches what can be attached and returns the reader with the reasons of what was refused.
    pub fn attach(object: &mut Object) -> Result<(Self, Refusals), ObjectError> {
        let mut refused = Vec::new();
        for program in &PROGRAMS {
            if let Err(reason) = object.attach(program) {
                refused.push((program.name, reason));
            }
        }
        Ok((
            Self {
                ring: object.ring("TELEMETRY")?,
            },
            refused,
        ))
    }
}

impl Iterator for Telemetry {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            let item = self.ring.next()?;
            if let Ok(bytes) = <&[u8; size_of::<Record>()]>::try_from(&*item) {
                // SAFETY: Record is made of integers, so that every pattern of its bytes is one.
                return Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) });
            }
        }
    }
}
