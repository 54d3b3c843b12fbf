//! Evidence of the OOM killer, read when there is time.

use std::fs;

use aya::maps::{Array, MapData, RingBuf};
use evictd_common::oom::DECISIONS;
pub use evictd_common::oom::{LEVELS, Level, OomKill, UNKNOWN, UnattributedKill};

use crate::bpf::{
    object::{AttachPoint, BpfObject, ObjectError, ProgramSpec, VictimArgument},
    ring::next_record,
};

/// Tells the victim as a task: all that can be read of it.
const VICTIM_TYPED: ProgramSpec = ProgramSpec {
    name: "oom_victim_typed",
    attach_point: AttachPoint::BtfTracepoint("mark_victim"),
};
const VICTIM_ENTRY: ProgramSpec = ProgramSpec {
    name: "oom_victim_entry",
    attach_point: AttachPoint::Fentry("mark_oom_victim"),
};
const VICTIM_PROBE: ProgramSpec = ProgramSpec {
    name: "oom_victim_probe",
    attach_point: AttachPoint::Kprobe("mark_oom_victim"),
};
/// Tells its process id.
const VICTIM_NUMBER: ProgramSpec = ProgramSpec {
    name: "oom_mark_victim",
    attach_point: AttachPoint::Tracepoint("oom", "mark_victim"),
};
/// Tells whose limit it was about.
const CONTEXT: [ProgramSpec; 2] = [
    ProgramSpec {
        name: "oom_context_entry",
        attach_point: AttachPoint::Fentry("oom_kill_process"),
    },
    ProgramSpec {
        name: "oom_context_probe",
        attach_point: AttachPoint::Kprobe("oom_kill_process"),
    },
];

/// Names of what is not seen, with the kernel's reasons.
pub type UnavailableHooks = Vec<(&'static str, String)>;

/// Reader of both ring buffers: a kill is in one of them.
pub struct OomReader {
    kills: RingBuf<MapData>,
    processes: Array<MapData, u32>,
    unattributed: RingBuf<MapData>,
    /// Whether the program tells more of a victim than its process id and the cgroup.
    attributes: bool,
}

impl OomReader {
    /// Attaches what can be attached and returns the reader with the reasons of what was refused; no reader where no program
    /// sees the victims.
    ///
    /// # Errors
    /// A map is missing.
    pub fn attach(object: &mut BpfObject) -> Result<(Option<Self>, UnavailableHooks), ObjectError> {
        let victims: &[ProgramSpec] = match &object.victims {
            Ok(VictimArgument::Tasks) => &[VICTIM_TYPED, VICTIM_ENTRY, VICTIM_PROBE, VICTIM_NUMBER],
            Ok(VictimArgument::Numbers) => &[VICTIM_ENTRY, VICTIM_PROBE, VICTIM_NUMBER],
            Err(_) => &[VICTIM_NUMBER],
        };
        let mut refused = UnavailableHooks::new();
        if let Err(reason) = &object.victims {
            refused.push((
                "what tasks hold, without which the kernel floor ends none",
                reason.clone(),
            ));
        }
        let mut attach = |what, hooks| {
            let attached = attach_first(object, hooks);
            attached.map_err(|reason| refused.push((what, reason))).ok()
        };
        let sees_victims = attach("victims of the OOM killer", victims);
        attach("whose limit the OOM killer acts for", &CONTEXT);
        let reader = Self {
            kills: object.ring("OOM_KILLS")?,
            processes: object.array("OOM_PROCESSES")?,
            unattributed: object.ring("OOM_VICTIM_PIDS")?,
            attributes: sees_victims != Some(VICTIM_NUMBER.name),
        };
        Ok((sees_victims.map(|_| reader), refused))
    }

    /// Whether kills come from [`Self::next_kill`], and not from [`Self::next_unattributed`].
    pub fn attributes(&self) -> bool {
        self.attributes
    }

    /// The next kill that was not read yet, oldest first.
    pub fn next_kill(&mut self) -> Option<OomKill> {
        let mut kill: OomKill = next_record(&mut self.kills)?;
        let processes = self.processes.get(&(kill.decision % DECISIONS), 0);
        kill.processes = processes.unwrap_or(kill.processes);
        Some(kill)
    }

    /// The next kill that was not read yet and of which only the process id and the cgroup are known, oldest first.
    pub fn next_unattributed(&mut self) -> Option<UnattributedKill> {
        next_record(&mut self.unattributed)
    }
}

/// Processes that the OOM killer has killed since the boot; the kernel counts each before it marks it. `None` before
/// Linux 4.13.
pub fn kills_of_machine() -> Option<u64> {
    kills_in(&fs::read_to_string("/proc/vmstat").ok()?)
}

/// The count of kills in `/proc/vmstat`, v2's `memory.events` or v1's `memory.oom_control`.
pub fn kills_in(text: &str) -> Option<u64> {
    let count = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
    count?.trim().parse().ok()
}

/// Attaches the first program that the kernel takes, and returns its name; the reasons of all of them when it takes none.
fn attach_first(object: &mut BpfObject, hooks: &[ProgramSpec]) -> Result<&'static str, String> {
    let mut reasons = Vec::new();
    for program in hooks {
        match object.attach(program) {
            Ok(()) => return Ok(program.name),
            Err(reason) => reasons.push(format!("{}: {reason}", program.name)),
        }
    }
    Err(reasons.join("; "))
}
