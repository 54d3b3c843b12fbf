//! Evidence of the OOM killer, read when there is time.

use aya::maps::{MapData, RingBuf};
pub use evictd_common::oom::{
    LEVELS, Level, OomKill, Telemetry as Record, UNKNOWN, UNLIMITED, kind,
};

use crate::bpf::object::{Object, ObjectError, Place, ProgramAt, Victims};

/// Tells the victim as a task: all that can be read of it.
const VICTIM_TYPED: ProgramAt = ProgramAt {
    name: "oom_victim_typed",
    place: Place::BtfTracepoint("mark_victim"),
};
const VICTIM_ENTRY: ProgramAt = ProgramAt {
    name: "oom_victim_entry",
    place: Place::FunctionStart("mark_oom_victim"),
};
const VICTIM_PROBE: ProgramAt = ProgramAt {
    name: "oom_victim_probe",
    place: Place::FunctionEntry("mark_oom_victim"),
};
/// Tells its process id.
const VICTIM_NUMBER: ProgramAt = ProgramAt {
    name: "oom_mark_victim",
    place: Place::Tracepoint("oom", "mark_victim"),
};
/// Tells whose limit it was about.
const CONTEXT: [ProgramAt; 2] = [
    ProgramAt {
        name: "oom_context_entry",
        place: Place::FunctionStart("oom_kill_process"),
    },
    ProgramAt {
        name: "oom_context_probe",
        place: Place::FunctionEntry("oom_kill_process"),
    },
];
const RECLAIM: ProgramAt = ProgramAt {
    name: "oom_reclaim_begin",
    place: Place::Tracepoint("vmscan", "mm_vmscan_memcg_reclaim_begin"),
};

/// What is not seen, and the kernel's reasons.
pub type Refusals = Vec<(&'static str, String)>;

/// Reader of both ring buffers. As an iterator it gives the records of the bulk one that were not read yet, oldest
/// first.
pub struct Telemetry {
    ring: RingBuf<MapData>,
    kills: RingBuf<MapData>,
}

impl Telemetry {
    /// Attaches what can be attached and returns the reader with the reasons of what was refused.
    pub fn attach(object: &mut Object) -> Result<(Self, Refusals), ObjectError> {
        let victims: &[ProgramAt] = match &object.victims {
            Ok(Victims::Tasks) => &[VICTIM_TYPED, VICTIM_ENTRY, VICTIM_PROBE, VICTIM_NUMBER],
            Ok(Victims::Numbers) => &[VICTIM_ENTRY, VICTIM_PROBE, VICTIM_NUMBER],
            Err(_) => &[VICTIM_NUMBER],
        };
        let mut refused = Refusals::new();
        for (what, ladder) in [
            ("victims of the OOM killer", victims),
            ("whose limit the OOM killer acts for", &CONTEXT),
            ("reclaim at a limit", &[RECLAIM]),
        ] {
            if let Err(reason) = attach_first(object, ladder) {
                refused.push((what, reason));
            }
        }
        Ok((
            Self {
                ring: object.ring("TELEMETRY")?,
                kills: object.ring("OOM_KILLS")?,
            },
            refused,
        ))
    }

    /// The next kill that was not read yet, oldest first.
    pub fn next_kill(&mut self) -> Option<OomKill> {
        read(&mut self.kills)
    }
}

/// Attaches the first program that the kernel takes; the reasons of all of them when it takes none.
fn attach_first(object: &mut Object, ladder: &[ProgramAt]) -> Result<(), String> {
    let mut reasons = Vec::new();
    for program in ladder {
        match object.attach(program) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(format!("{}: {reason}", program.name)),
        }
    }
    Err(reasons.join("; "))
}

/// The next record of a ring buffer that holds nothing but records of this type.
fn read<T: aya::Pod>(ring: &mut RingBuf<MapData>) -> Option<T> {
    loop {
        let item = ring.next()?;
        if item.len() == size_of::<T>() {
            // SAFETY: Pod: every pattern of its bytes is one, and there are as many as it has.
            return Some(unsafe { std::ptr::read_unaligned(item.as_ptr().cast()) });
        }
    }
}

impl Iterator for Telemetry {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        read(&mut self.ring)
    }
}
