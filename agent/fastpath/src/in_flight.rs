//! Victims on their way out: what they still hold counts as pending, so that no other pod dies for it.

use std::sync::Arc;

use evictd_engine::{
    Signal,
    accounting::MemorySample,
    model::usage::MemoryReading,
    pending::Pending,
    round::MAX_IN_FLIGHT,
    terminating::{Terminating, VictimReading, VictimState},
    units::SECOND,
};
use evictd_node::{memory_scope::Scope, pods::table::PodEntry};

use crate::{StuckVictim, VictimExit};

/// A victim that has given nothing for so long is signalled in all its cgroups, and again so often: what is listed and stays may
/// be stuck, and a container that is started again beside it would run.
const KILL_ALL_NS: u64 = SECOND;

/// Number of an eviction that an earlier agent has decided; its own count from 1.
pub const EARLIER: u64 = 0;

/// A pod that an earlier agent has signalled, and of which something is left.
#[derive(Clone, Debug)]
pub struct RestoredVictim {
    /// The pod.
    pub pod: Arc<PodEntry>,
    /// Time of the SIGKILL of its last eviction, in nanoseconds of CLOCK_MONOTONIC.
    pub signalled: u64,
    /// The signal that it was evicted for; `None` where that was a limit of its own.
    pub signal: Option<Signal>,
    /// Whether the victim was found to be stuck, and that was reported.
    pub is_stuck: bool,
}

/// What kills pods beside the fast path; their memory is pending then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KilledBy {
    /// evictd's manager: for disk, inodes or process ids.
    Manager,
    /// The kubelet's eviction manager. The fast path does not signal such a pod.
    Kubelet,
}

/// Places that victims of others leave to the fast path's own: the pods of a tenant could fill all of them.
pub(crate) const KEPT_FOR_OWN: usize = MAX_IN_FLIGHT / 8;

/// Kill of a pod by another part of the node.
#[derive(Debug)]
pub struct OtherKill {
    /// The pod.
    pub pod: Arc<PodEntry>,
    /// Time of the kill, in nanoseconds of CLOCK_MONOTONIC.
    pub signalled: u64,
    /// What has killed the pod.
    pub by: KilledBy,
    /// Whether something was short on the node. A pod that has exceeded a limit of its own delays no eviction.
    pub is_for_pressure: bool,
}

/// The decision by which a pod became a victim.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    pub number: u64,
    /// Index of the scope that it was chosen for.
    pub scope: usize,
    /// Chosen only: what it uses counts as pending for as long as the pressure lasts.
    pub shadow: bool,
}

impl Eviction {
    /// Of a pod that the manager, the kubelet or an earlier agent has killed.
    const NOT_OWN: Self = Self {
        number: EARLIER,
        scope: 0,
        shadow: false,
    };
}

/// One victim between SIGKILL and the return of its memory.
#[derive(Debug)]
pub struct Victim {
    pod: Arc<PodEntry>,
    eviction: Eviction,
    terminating: Terminating,
    peak_usage: u64,
    /// What has killed the victim and reports it; `None` where that is the fast path.
    killed_by: Option<KilledBy>,
    /// Whether the victim's outcome was reported, or needs no report.
    is_reported: bool,
    killed: u64,
    /// Its memory at the last look at which its cgroup was there.
    held: MemoryReading,
}

impl Victim {
    /// A pod that was signalled, or would have been.
    pub fn new(
        pod: Arc<PodEntry>,
        eviction: Eviction,
        terminating: Terminating,
        peak_usage: u64,
    ) -> Self {
        Self {
            pod,
            eviction,
            killed: terminating.signalled(),
            held: MemoryReading::default(),
            terminating,
            peak_usage,
            killed_by: None,
            is_reported: false,
        }
    }

    /// A pod that the manager or the kubelet has killed.
    pub fn by_other(kill: OtherKill) -> Self {
        let OtherKill {
            pod, signalled, by, ..
        } = kill;
        let reading = pod.memory.read().unwrap_or_default();
        let terminating = Terminating::new(signalled, reading.working_set(), reading.shmem);
        Self {
            killed_by: Some(by),
            is_reported: true,
            ..Self::new(pod, Eviction::NOT_OWN, terminating, 0)
        }
    }

    /// A pod that an earlier agent has signalled, for the memory of a `scope` or for something else.
    fn restored(victim: &RestoredVictim, scope: Option<usize>, now: u64) -> Self {
        let (left, reading) = look_at(&victim.pod);
        let shared = reading.map_or(0, |reading| reading.shmem);
        let signalled = victim.signalled;
        let terminating = Terminating::restore(signalled, now, left, shared, victim.is_stuck);
        let eviction = Eviction {
            scope: scope.unwrap_or(Eviction::NOT_OWN.scope),
            ..Eviction::NOT_OWN
        };
        Self {
            // It is signalled again at the first look.
            killed: 0,
            // When a pod that has no process left has ended is not known, and may be reported already.
            is_reported: victim.is_stuck || !left.populated || scope.is_none(),
            ..Self::new(Arc::clone(&victim.pod), eviction, terminating, 0)
        }
    }

    /// Takes a look at it and signals it again if it has processes and is evictd's; not in shadow mode. Also answers
    /// with [`VictimReading::usage`].
    fn observe(&mut self, now: u64, shadow: bool) -> (VictimState, Option<u64>) {
        let (seen, reading) = look_at(&self.pod);
        self.held = reading.unwrap_or(self.held);
        let state = self.terminating.observe(now, seen);
        if state == VictimState::Restarted {
            // Those that run now have done nothing.
            return (state, seen.usage);
        }
        let is_quiet = self.terminating.quiet_for(now) >= KILL_ALL_NS;
        let interval = if is_quiet { KILL_ALL_NS } else { 0 };
        let is_left_alone = shadow || self.killed_by == Some(KilledBy::Kubelet);
        if seen.populated && !is_left_alone && now.saturating_sub(self.killed) >= interval {
            self.killed = now;
            match is_quiet {
                true => self.pod.killer.kill_stuck(),
                false => self.pod.killer.kill_again(),
            }
        }
        (state, seen.usage)
    }
}

/// A victim's state, and its memory unless its cgroup was removed. Page cache that reclaim takes from it is nothing that its
/// end gives back.
fn look_at(pod: &PodEntry) -> (VictimReading, Option<MemoryReading>) {
    let populated = !pod.killer.is_empty();
    let reading = pod.memory.read().ok();
    let usage = reading.as_ref().map(MemoryReading::unreclaimable);
    (VictimReading { populated, usage }, reading)
}

/// Event of a victim that was found at one look.
pub enum VictimEvent {
    Finished(VictimExit),
    Stuck(StuckVictim),
    /// A victim is stuck, and gives way to others: from now on its state says that it is not evicted a second time.
    Displaced(Arc<PodEntry>),
    /// Memory that a victim held counts as its no longer: it is forgotten, or its cgroup was removed. Shared memory may
    /// outlive the cgroup, charged to those above.
    Released(Arc<PodEntry>, MemoryReading),
    /// A victim is forgotten.
    Left(Arc<PodEntry>),
}

/// Memory of the victims at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct VictimMemory {
    /// Memory that the victims are expected to give back.
    pub pending: Pending,
    /// Bytes that victims hold which shadow mode has only chosen, without page cache.
    pub shadow: u64,
    /// Bytes that the other victims hold and the kernel cannot take. What comes to a stuck one is none of them: it is growth.
    pub dying: u64,
}

/// The victims, in a place that never grows: at most [`MAX_IN_FLIGHT`], or those that earlier agents have signalled, if
/// they are more.
#[derive(Debug)]
pub struct InFlight {
    victims: Vec<Victim>,
}

impl InFlight {
    /// No cycle ran for so many nanoseconds until `now`: they do not count as time of the victims.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        for victim in &mut self.victims {
            victim.terminating.exclude_gap(late, now);
        }
    }

    /// Creates the victims in flight from what earlier agents have signalled. `scope_of` has the index of the scope of a
    /// signal.
    pub fn new(
        restored: &[RestoredVictim],
        scope_of: impl Fn(Signal) -> Option<usize>,
        now: u64,
    ) -> Self {
        let mut victims = Vec::with_capacity(MAX_IN_FLIGHT.max(restored.len()));
        victims.extend(restored.iter().map(|victim| {
            let scope = victim.signal.and_then(&scope_of);
            Victim::restored(victim, scope, now)
        }));
        Self { victims }
    }

    /// Counts the victims whose processes are ending.
    pub fn terminating_count(&self) -> usize {
        let is_dying = |v: &&Victim| {
            !v.eviction.shadow && v.terminating.exited().is_none() && !v.terminating.is_stuck()
        };
        self.victims.iter().filter(is_dying).count()
    }

    /// Counts those of them whose memory is still in time.
    pub fn in_time_count(&self, now: u64) -> usize {
        let is_in_time = |v: &&Victim| !v.eviction.shadow && v.terminating.is_in_time(now);
        self.victims.iter().filter(is_in_time).count()
    }

    /// How many more victims there is room for. Without room the kills by the manager and the kubelet wait in
    /// [`FastPathControl`](crate::FastPathControl).
    pub fn free_slots(&self) -> usize {
        MAX_IN_FLIGHT.saturating_sub(self.victims.len())
    }

    /// Whether a victim of the manager or the kubelet finds a place.
    pub fn has_room_for_others(&self) -> bool {
        let of_others = self.victims.iter().filter(|v| v.killed_by.is_some());
        self.free_slots() > 0 && of_others.count() < MAX_IN_FLIGHT - KEPT_FOR_OWN
    }

    /// Takes a victim; the caller has asked for [`Self::free_slots`].
    pub fn push(&mut self, victim: Victim) {
        debug_assert!(self.free_slots() > 0, "this would allocate");
        self.victims.push(victim);
    }

    pub fn contains(&self, entry: &PodEntry) -> bool {
        self.signalled(entry).is_some()
    }

    /// Time of a victim's SIGKILL, in nanoseconds of CLOCK_MONOTONIC.
    pub fn signalled(&self, entry: &PodEntry) -> Option<u64> {
        let id = entry.memory.id();
        let victim = self.victims.iter().find(|v| v.pod.memory.id() == id)?;
        Some(victim.terminating.signalled())
    }

    /// Computes the memory of the victims that `scope` counts. Does not allocate.
    pub fn memory(&self, scope: &Scope, now: u64) -> VictimMemory {
        let mut memory = VictimMemory::default();
        for victim in self.victims.iter().filter(|v| scope.holds(&v.pod)) {
            let reading = victim.pod.memory.read().ok();
            let held = reading.map(|r| r.of_scope(scope.is_limited()).unreclaimable());
            if victim.eviction.shadow {
                // Its page cache is headroom already.
                let held = held.unwrap_or(0);
                memory.shadow = memory.shadow.saturating_add(held);
                memory.pending.add(held, now);
            } else {
                let pending = &mut memory.pending;
                victim.terminating.add_to(pending, now, held);
                let usage = reading.map_or(0, |reading| reading.unreclaimable());
                let grown = victim.terminating.grown_since_stuck(usage);
                let dying = held.unwrap_or(0).saturating_sub(grown);
                memory.dying = memory.dying.saturating_add(dying);
            }
        }
        memory
    }

    /// The pressure is over: a pod that shadow mode has chosen is a pod like any other again, and is handed to `leave`.
    /// Whether there was one.
    pub fn forget_shadow_victims(&mut self, leave: impl Fn(Arc<PodEntry>)) -> bool {
        let before = self.victims.len();
        while let Some(at) = self.victims.iter().position(|v| v.eviction.shadow) {
            leave(self.victims.swap_remove(at).pod);
        }
        self.victims.len() < before
    }

    /// Looks after every victim: tells once what became of it, or that it is stuck, and forgets it when nothing more is
    /// expected of it. A victim with processes stays, so that it is not evicted again; one that is stuck gives way to
    /// others where there is no room.
    ///
    /// `at` answers with the last look at a scope, and its threshold in bytes. In `shadow` mode none is signalled.
    pub fn observe(
        &mut self,
        now: u64,
        shadow: bool,
        at: impl Fn(usize) -> (MemorySample, u64),
        mut send: impl FnMut(VictimEvent),
    ) {
        let mut next = 0;
        let is_full = self.free_slots() == 0;
        let mut may_displace = is_full || !self.has_room_for_others();
        while let Some(victim) = self.victims.get_mut(next) {
            if victim.eviction.shadow {
                next += 1;
                continue;
            }
            let (sample, threshold) = at(victim.eviction.scope);
            victim.peak_usage = victim.peak_usage.max(sample.usage);
            let (state, usage) = victim.observe(now, shadow);
            if state == VictimState::BecameStuck && victim.killed_by.is_none() {
                send(VictimEvent::Stuck(StuckVictim {
                    pod: Arc::clone(&victim.pod),
                    number: victim.eviction.number,
                    usage: victim.pod.memory.usage().unwrap_or(0),
                }));
            }
            let exited = victim.terminating.exited();
            let is_enough = exited.is_some() && sample.guarded_available >= threshold;
            if !victim.is_reported && victim.terminating.is_report_due(now, state, is_enough) {
                victim.is_reported = true;
                send(VictimEvent::Finished(VictimExit {
                    pod: Arc::clone(&victim.pod),
                    number: victim.eviction.number,
                    exited: exited.unwrap_or(0),
                    threshold_cleared: if is_enough { now } else { 0 },
                    peak_usage: victim.peak_usage,
                    available: sample.guarded_available,
                }));
            }
            let is_over = state == VictimState::Restarted || victim.terminating.is_over(now, usage);
            let is_in_the_way = is_full || victim.killed_by.is_some();
            let is_displaced = may_displace && is_in_the_way && state == VictimState::Stuck;
            if is_displaced {
                send(VictimEvent::Displaced(Arc::clone(&victim.pod)));
                may_displace = false;
            }
            let leaves = (victim.is_reported && is_over) || is_displaced;
            if leaves || usage.is_none() {
                let held = std::mem::take(&mut victim.held);
                send(VictimEvent::Released(Arc::clone(&victim.pod), held));
            }
            if leaves {
                send(VictimEvent::Left(self.victims.swap_remove(next).pod));
            } else {
                next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::process::ExitStatusExt as _};

    use evictd_engine::{Pod, model::settings::Mode};

    use super::*;

    // R40
    #[test]
    fn page_cache_that_reclaim_takes_from_a_victim_is_nothing_that_it_gives_back() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let uses = |usage: u64, cache: u64| {
            let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
            write("memory.current", (usage * MIB).to_string());
            let [anon, cache] = [usage - cache, cache].map(|mib| mib * MIB);
            write(
                "memory.stat",
                format!(
                    "anon {anon}\nfile {cache}\nkernel 0\ninactive_file {cache}\nactive_file 0\n"
                ),
            );
            write("cgroup.procs", String::new());
        };
        uses(100, 40);
        let pod = PodEntry::open(Pod::default(), dir.path(), Mode::Evictd).unwrap();
        let mut victim = Terminating::new(0, 100 * MIB, 0);
        let mut look = |now| {
            let (seen, _) = look_at(&pod);
            let seen = VictimReading {
                populated: true,
                ..seen
            };
            (victim.observe(now, seen), seen.usage)
        };
        assert_eq!(look(1_000_000), (VictimState::Terminating, Some(60 * MIB)));
        uses(61, 1);
        assert_eq!(
            look(1_000_000_000),
            (VictimState::Terminating, Some(60 * MIB))
        );
        let (state, _) = look(10_100_000_000);
        assert_eq!(
            state,
            VictimState::BecameStuck,
            "its end has brought nothing"
        );
    }

    /// Files of a cgroup that uses nothing, with a process in its list that is dead and stays there.
    fn of_a_process_held_in_exit() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        for (name, text) in [
            ("memory.current", "0".to_owned()),
            ("memory.stat", String::new()),
            ("cgroup.procs", format!("{}\n", dead.id())),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn opened(dir: &tempfile::TempDir) -> Arc<PodEntry> {
        let entry = PodEntry::open(Pod::default(), dir.path(), Mode::Evictd);
        Arc::new(entry.unwrap())
    }

    // R43
    #[test]
    fn a_stuck_victim_gives_way_where_there_is_no_room() {
        let dir = of_a_process_held_in_exit();
        let stuck = |_| RestoredVictim {
            pod: opened(&dir),
            signalled: 1,
            signal: Some(Signal::MemoryAvailable),
            is_stuck: true,
        };
        let victims = Vec::from_iter((0..MAX_IN_FLIGHT).map(stuck));
        let mut in_flight = InFlight::new(&victims, |_| Some(0), 2);
        assert_eq!(in_flight.free_slots(), 0);
        let mut step = |now| {
            let (mut gave_way, mut left) = (0, 0);
            let at = |_| (MemorySample::default(), 0);
            in_flight.observe(now, false, at, |event| match event {
                VictimEvent::Displaced(_) => gave_way += 1,
                VictimEvent::Left(_) => left += 1,
                _ => {}
            });
            (gave_way, left, in_flight.free_slots())
        };
        assert_eq!([step(3), step(4)], [(1, 1, 1), (0, 0, 1)]);
    }

    #[test]
    fn a_stuck_victim_of_others_gives_way_to_their_next() {
        let dir = of_a_process_held_in_exit();
        let mut in_flight = InFlight::new(&[], |_| None, 2);
        while in_flight.has_room_for_others() {
            in_flight.push(Victim::by_other(OtherKill {
                pod: opened(&dir),
                signalled: 1,
                by: KilledBy::Manager,
                is_for_pressure: false,
            }));
        }
        assert_eq!(in_flight.free_slots(), KEPT_FOR_OWN);
        let at = |_| (MemorySample::default(), 0);
        // One look finds that they are stuck, the next one lets one go.
        for second in [11, 12] {
            in_flight.observe(second * SECOND, false, at, |_| ());
        }
        assert!(in_flight.has_room_for_others());
        assert_eq!(in_flight.free_slots(), KEPT_FOR_OWN + 1);
    }

    /// A process that ends with this.
    struct Child(std::process::Child);

    impl Child {
        fn start(program: &str, arguments: &[&str]) -> Self {
            let mut command = std::process::Command::new(program);
            Self(command.args(arguments).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn lists(&self, cgroup: &std::path::Path) {
            fs::write(cgroup.join("cgroup.procs"), format!("{}\n", self.pid())).unwrap();
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    // R43
    #[test]
    fn a_container_that_is_started_again_beside_a_stuck_process_is_killed() {
        let dir = of_a_process_held_in_exit();
        // Dead, and there until it is waited for.
        let stuck = Child::start("true", &[]);
        stuck.lists(dir.path());
        let mut in_flight = InFlight::new(&[], |_| None, 0);
        in_flight.push(Victim::by_other(OtherKill {
            pod: opened(&dir),
            signalled: 0,
            by: KilledBy::Manager,
            is_for_pressure: true,
        }));
        let mut look = |second: u64| {
            let at = |_| (MemorySample::default(), 0);
            in_flight.observe(second * SECOND, false, at, |_| ());
        };
        look(2);
        let again = dir.path().join("again");
        fs::create_dir(&again).unwrap();
        let mut container = Child::start("sleep", &["60"]);
        container.lists(&again);
        look(3);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::time::Instant::now() < end {
            if let Some(status) = container.0.try_wait().unwrap() {
                return assert_eq!(status.signal(), Some(libc::SIGKILL));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("it lives");
    }

    #[test]
    fn all_that_earlier_agents_have_signalled_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["memory.current", "memory.stat", "cgroup.procs"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let pod = Arc::new(PodEntry::open(Pod::default(), dir.path(), Mode::Evictd).unwrap());
        let victim = RestoredVictim {
            pod,
            signalled: 1,
            signal: Some(Signal::MemoryAvailable),
            is_stuck: false,
        };
        let restored = vec![victim; MAX_IN_FLIGHT + 6];
        let in_flight = InFlight::new(&restored, |_| Some(0), 2);
        assert_eq!(
            (in_flight.victims.len(), in_flight.free_slots()),
            (restored.len(), 0)
        );
    }
}
