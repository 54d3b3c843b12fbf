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

/// Reader of the telemetry ring buffer.
pub struct Telemetry {
    ring: RingBuf<MapData>,
}

impl Telemetry {
    /// Attaches what can be attached and returns the reader with the reasons of what was refused.
    pub fn attach(object: &mut Object) -> Result<(Self, Vec<(&'static str, String)>), ObjectError> {
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

    /// The oldest record that was not read yet.
    pub fn next(&mut self) -> Option<Record> {
        loop {
            let item = self.ring.next()?;
            if let Ok(bytes) = <&[u8; size_of::<Record>()]>::try_from(&*item) {
                // SAFETY: Record is made of integers, so that every pattern of its bytes is one.
                return Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) });
            }
        }
    }
}
