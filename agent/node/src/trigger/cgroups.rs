//! Cgroup events: cgroups that come and go, so that the pod table follows the kernel instead of scanning directories.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

use aya::maps::{MapData, RingBuf};
use evictd_common::{
    cgroups::{CgroupRecord, PATH_BYTES, kind},
    drops::DropCounter,
};

use crate::{
    bpf::{
        object::{AttachPoint, BpfObject, ObjectError, ProgramSpec},
        ring::next_record,
        tracefs,
    },
    trigger::hook::{self, CountHook, SelectedHook},
};

/// The programs of a hook: all of them or none.
fn programs(hook: CountHook) -> &'static [ProgramSpec] {
    const TYPED: &[ProgramSpec] = &[
        ProgramSpec {
            name: "cgroups_made",
            attach_point: AttachPoint::BtfTracepoint("cgroup_mkdir"),
        },
        ProgramSpec {
            name: "cgroups_removed",
            attach_point: AttachPoint::BtfTracepoint("cgroup_rmdir"),
        },
        ProgramSpec {
            name: "cgroups_attached",
            attach_point: AttachPoint::BtfTracepoint("cgroup_attach_task"),
        },
    ];
    const UNTYPED: &[ProgramSpec] = &[
        ProgramSpec {
            name: "cgroups_made_untyped",
            attach_point: AttachPoint::Tracepoint("cgroup", "cgroup_mkdir"),
        },
        ProgramSpec {
            name: "cgroups_removed_untyped",
            attach_point: AttachPoint::Tracepoint("cgroup", "cgroup_rmdir"),
        },
        ProgramSpec {
            name: "cgroups_attached_untyped",
            attach_point: AttachPoint::Tracepoint("cgroup", "cgroup_attach_task"),
        },
    ];
    match hook {
        CountHook::Typed => TYPED,
        CountHook::Tracepoint => UNTYPED,
        CountHook::Sampler => &[],
    }
}

/// The offsets that the untyped programs read at.
fn expect_fields() -> Result<(), String> {
    for name in ["cgroup_mkdir", "cgroup_rmdir"] {
        tracefs::expect("cgroup", name, &[("root", 8), ("id", 16), ("path", 24)])?;
    }
    let attach = [("dst_root", 8), ("dst_id", 16), ("dst_path", 28)];
    tracefs::expect("cgroup", "cgroup_attach_task", &attach)
}

/// Attaches the programs of a hook; the ring buffer that they write to.
fn attach(hook: CountHook, object: &mut BpfObject) -> Result<RingBuf<MapData>, String> {
    if hook == CountHook::Tracepoint {
        expect_fields()?;
    }
    object.attach_all(programs(hook))?;
    object.ring("CGROUP_EVENTS").map_err(|e| e.to_string())
}

/// Kind of event that happened to a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupEventKind {
    /// The cgroup was made.
    Made,
    /// The cgroup was removed.
    Removed,
    /// A task was moved into it.
    Attached,
}

/// One event of a cgroup of the memory hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupEvent {
    /// Time of the event, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Id of the cgroup.
    pub cgroup_id: u64,
    /// Path of the cgroup below the hierarchy's root; without the leading slash, so that it can be joined to the mount
    /// point.
    pub path: PathBuf,
    /// Kind of the event.
    pub kind: CgroupEventKind,
}

/// Reader of cgroup events. With the sampler there is nothing to read, and a rescan is always due.
pub struct CgroupEvents {
    selected: SelectedHook<CountHook>,
    ring: Option<RingBuf<MapData>>,
    dropped: u64,
    cut: bool,
}

impl CgroupEvents {
    /// Takes the best hook that works of `object` (see [`BpfObject::load_counts`]), or the sampler. Without an object:
    /// the reason why there is none. What exists already is not told: scan once after this.
    pub fn build(object: Result<&mut BpfObject, &str>) -> Self {
        Self::build_with(object, &CountHook::WITH_PROGRAMS)
    }

    /// As [`Self::build`], of these hooks alone.
    pub fn build_with(object: Result<&mut BpfObject, &str>, hooks: &[CountHook]) -> Self {
        let mut object = object;
        let (selected, ring) = hook::probe_counted(hooks, |hook| match &mut object {
            Err(reason) => Err((*reason).to_owned()),
            Ok(object) => attach(hook, object),
        });
        Self {
            selected,
            ring,
            dropped: 0,
            cut: false,
        }
    }

    /// Hook in use, and why the better ones are not.
    pub fn selected_hook(&self) -> &SelectedHook<CountHook> {
        &self.selected
    }

    /// Becomes readable when there is something to read; `None` for the sampler.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// The oldest change not read yet.
    pub fn next_event(&mut self) -> Option<CgroupEvent> {
        loop {
            let record: CgroupRecord = next_record(self.ring.as_mut()?)?;
            // One byte of a full path went to the end mark.
            self.cut |= record.length as usize >= PATH_BYTES - 1;
            if let Some(change) = change(&record) {
                return Some(change);
            }
        }
    }

    /// Whether something was lost since this was last asked: a full ring buffer or a path that was cut. One scan of
    /// the directories makes up for all of it.
    ///
    /// # Errors
    /// The drop counter cannot be read.
    pub fn rescan_due(&mut self, object: &BpfObject) -> Result<bool, ObjectError> {
        if self.ring.is_none() {
            return Ok(true);
        }
        let dropped = object.drops(DropCounter::CgroupEvent)?;
        let lost = dropped != std::mem::replace(&mut self.dropped, dropped);
        Ok(lost | std::mem::take(&mut self.cut))
    }
}

fn change(record: &CgroupRecord) -> Option<CgroupEvent> {
    use std::os::unix::ffi::OsStrExt as _;
    let happened = match record.kind {
        kind::MADE => CgroupEventKind::Made,
        kind::REMOVED => CgroupEventKind::Removed,
        kind::ATTACHED => CgroupEventKind::Attached,
        _ => return None,
    };
    let path = record.path.get(..record.length as usize)?;
    let path = path.strip_prefix(b"/").unwrap_or(path);
    Some(CgroupEvent {
        time_ns: record.time_ns,
        cgroup_id: record.cgroup_id,
        path: std::ffi::OsStr::from_bytes(path).into(),
        kind: happened,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, text: &[u8]) -> CgroupRecord {
        let mut path = [0; PATH_BYTES];
        path[..text.len()].copy_from_slice(text);
        CgroupRecord {
            time_ns: 1,
            cgroup_id: 2,
            kind,
            length: text.len() as u32,
            path,
        }
    }

    #[test]
    fn paths_can_be_joined_to_a_mount_point() {
        let made = change(&record(kind::MADE, b"/kubepods/pod1")).unwrap();
        assert_eq!(made.path, PathBuf::from("kubepods/pod1"));
        assert_eq!(made.kind, CgroupEventKind::Made);
    }

    #[test]
    fn what_is_unknown_or_damaged_is_left_out() {
        assert_eq!(change(&record(99, b"/a")), None);
        let mut long = record(kind::REMOVED, b"/a");
        long.length = u32::MAX;
        assert_eq!(change(&long), None);
    }
}
