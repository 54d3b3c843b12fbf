//! The PID trigger: `pid.available` crossing a limit, seen at the fork that makes it cross.

use std::{io, os::fd::BorrowedFd};

use aya::maps::{HashMap, MapData};

use super::counter::CgroupCount;
use crate::{
    bpf::object::{AttachPoint, BpfObject, ObjectError, ProgramSpec},
    proc::{
        machine::online_cpus,
        pids::{PidReading, Pids},
    },
    trigger::{
        counter::{
            self, ATTEMPTS, CountTrigger, CounterEvent, Drift, EventCounter, MapNames, Sample,
        },
        hook::{self, CountHook, SelectedHook},
    },
};

/// The programs of a hook: all of them or none.
fn programs(hook: CountHook) -> &'static [ProgramSpec] {
    const TYPED: &[ProgramSpec] = &[
        ProgramSpec {
            name: "pids_new",
            attach_point: AttachPoint::BtfTracepoint("task_newtask"),
        },
        ProgramSpec {
            name: "pids_free",
            attach_point: AttachPoint::BtfTracepoint("sched_process_free"),
        },
    ];
    const UNTYPED: &[ProgramSpec] = &[
        ProgramSpec {
            name: "pids_new_untyped",
            attach_point: AttachPoint::Tracepoint("task", "task_newtask"),
        },
        ProgramSpec {
            name: "pids_free_untyped",
            attach_point: AttachPoint::Tracepoint("sched", "sched_process_free"),
        },
        ProgramSpec {
            name: "pids_exit_untyped",
            attach_point: AttachPoint::Tracepoint("sched", "sched_process_exit"),
        },
    ];
    match hook {
        CountHook::Typed => TYPED,
        CountHook::Tracepoint => UNTYPED,
        CountHook::Sampler => &[],
    }
}

const MAPS: MapNames = MapNames {
    counts: "PID_COUNT",
    triggers: "PID_TRIGGERS",
    wakeups: "PID_WAKEUPS",
};

struct Counting {
    counter: EventCounter,
    cgroup_counts: HashMap<MapData, u64, CgroupCount>,
}

impl Counting {
    fn new(object: &mut BpfObject) -> Result<Self, ObjectError> {
        Ok(Self {
            counter: EventCounter::new(object, &MAPS, 1)?,
            cgroup_counts: object.hash("PID_BY_CGROUP")?,
        })
    }
}

/// Attaches the programs of a hook and has them tested. `counting` keeps the maps from one hook to the next.
fn attach(
    hook: CountHook,
    object: &mut BpfObject,
    counting: &mut Option<Counting>,
) -> Result<(), String> {
    object.attach_all(programs(hook))?;
    let counting = match counting {
        Some(maps) => maps,
        none => none.insert(Counting::new(object).map_err(|e| e.to_string())?),
    };
    let tested = self_test(|| counting.counter.events(0));
    if tested.is_err() {
        for program in programs(hook) {
            object.detach(program.name);
        }
    }
    tested
}

/// Whether the hook counts threads that the agent starts. Where none can be started nothing is known against the hook.
fn self_test(events: impl Fn() -> io::Result<i64>) -> Result<(), String> {
    let start = || {
        let thread = std::thread::Builder::new().name("self-test".to_owned());
        // It does nothing that could fail.
        thread.spawn(|| {}).map(|thread| drop(thread.join()))
    };
    match counter::self_test(events, start) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "its self-test failed: {ATTEMPTS} threads were started, and it counted none"
        )),
        Err(e) => Err(e.to_string()),
    }
}

/// Triggers on the node's tasks. The sampler has to be polled by its owner, see [`fastest_growth`].
pub struct PidTrigger {
    pids: Pids,
    selected: SelectedHook<CountHook>,
    counting: Option<Counting>,
    /// Maps of a hook that has failed its self-test: the programs that see cgroups go write them, and are loaded later.
    _unused: Option<Counting>,
}

impl PidTrigger {
    /// Takes the best hook that works of `object` (see [`BpfObject::load_counts`]), or the sampler. Without an object:
    /// the reason why there is none.
    pub fn build(pids: Pids, object: Result<&mut BpfObject, &str>) -> Self {
        Self::build_with(pids, object, &CountHook::WITH_PROGRAMS)
    }

    /// As [`Self::build`], of these hooks alone.
    pub fn build_with(
        pids: Pids,
        object: Result<&mut BpfObject, &str>,
        hooks: &[CountHook],
    ) -> Self {
        let (mut object, mut counting) = (object, None);
        let (selected, attached) = hook::probe_counted(hooks, |hook| match &mut object {
            Err(reason) => Err((*reason).to_owned()),
            Ok(object) => attach(hook, object, &mut counting),
        });
        let (counting, unused) = match attached {
            None => (None, counting),
            Some(()) => (counting, None),
        };
        Self {
            pids,
            selected,
            counting,
            _unused: unused,
        }
    }

    /// Hook in use, and why the better ones are not.
    pub fn selected_hook(&self) -> &SelectedHook<CountHook> {
        &self.selected
    }

    /// Capacity and use as the kubelet reads them, now.
    ///
    /// # Errors
    /// See [`Pids::read`].
    pub fn read(&self) -> io::Result<PidReading> {
        self.pids.read()
    }

    /// Reads the files and corrects the count by them. Triggers mean nothing before the first sample. Tasks that
    /// were reaped within the last RCU grace period are counted still: the base is too high by that many until the
    /// next sample, which on a busy machine finds a drift every time.
    ///
    /// # Errors
    /// A file or a map cannot be read.
    pub fn sample(&mut self) -> io::Result<Sample> {
        let pids = &self.pids;
        match &mut self.counting {
            Some(counting) => {
                let read = || pids.read().map(|r| (r.available(), r.used));
                counting.counter.sample(0, read)
            }
            None => Ok(Sample {
                available: pids.read()?.available(),
                counted: None,
            }),
        }
    }

    /// Sets or clears the trigger of a slot below [`crate::trigger::counter::TRIGGERS`]. It trips once, until it is set
    /// again; one that is crossed already may trip only at the next fork or exit: sample after arming.
    ///
    /// # Errors
    /// No such slot, or the map cannot be written.
    pub fn arm(&mut self, slot: usize, trigger: Option<CountTrigger>) -> io::Result<()> {
        let counting = self.counting.as_mut();
        counting.map_or(Ok(()), |c| c.counter.arm(0, slot, trigger))
    }

    fn counter(&self) -> Option<&EventCounter> {
        Some(&self.counting.as_ref()?.counter)
    }

    /// Becomes readable at a crossing; `None` for the sampler.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.counter().map(EventCounter::fd)
    }

    /// The next crossing, oldest first.
    pub fn next_crossing(&mut self) -> Option<CounterEvent> {
        self.counting.as_mut()?.counter.next_crossing()
    }

    /// Reads what is available by the count alone, without reading a file, for tests; `None` without hook or before the
    /// first sample.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counted(&self) -> io::Result<Option<i64>> {
        self.counter().map_or(Ok(None), |c| c.counted(0))
    }

    /// Drift of the count so far.
    pub fn drift(&self) -> Drift {
        let drift = self.counter().map(|c| c.drift(0));
        drift.unwrap_or_default()
    }

    /// Whether the hook counts nothing any more, although tasks come and go.
    pub fn is_stale(&self) -> bool {
        self.counter().is_some_and(|c| c.is_stale(0))
    }

    /// Tasks started and ended by a memory cgroup since the programs run; what removed cgroups below it did is
    /// included where [`super::cgroups::CgroupEvents`] has the typed hook. `None`: none seen.
    pub fn cgroup_count(&self, cgroup_id: u64) -> Option<CgroupCount> {
        self.counting
            .as_ref()?
            .cgroup_counts
            .get(&cgroup_id, 0)
            .ok()
    }

    /// Lists the counts of all memory cgroups by their ids, for tests.
    pub fn cgroup_counts(&self) -> Vec<(u64, CgroupCount)> {
        match &self.counting {
            Some(counting) => counting.cgroup_counts.iter().flatten().collect(),
            None => Vec::new(),
        }
    }
}

/// Tasks that the machine can start in a second at most: a thread takes some 10 us of a CPU, a process more.
pub fn fastest_growth() -> u64 {
    const PER_CPU: u64 = 200_000;
    online_cpus() * PER_CPU
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_hook_that_counts_no_thread_is_refused() {
        let reason = self_test(|| Ok(7)).unwrap_err();
        assert!(reason.contains("its self-test failed"), "{reason}");
        // As many others have ended as were started, but not every time.
        let reads = Cell::new(0);
        let events = || Ok(i64::from(reads.replace(reads.get() + 1) > 4));
        assert_eq!(self_test(events), Ok(()));
        let unread = self_test(|| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(unread, Err("entity not found".to_owned()));
    }
}
