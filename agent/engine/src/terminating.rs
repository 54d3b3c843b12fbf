//! A victim between SIGKILL and the return of its memory: what it is still expected to give, by when, and whether it is
//! stuck.

use super::{
    kubelet_times::{MONITORING_INTERVAL_NS, POD_CLEANUP_NS},
    pending::{Pending, earliest},
};
use crate::units::{MS, SECOND, scaled, shift_by_gap};

/// Time after SIGKILL within which a process gives back the first of its memory, on busy CPUs too.
const EXIT_NS: u64 = 50 * MS;
/// Rate at which the kernel tears down an address space, in bytes per second.
const TEARDOWN: u64 = 4 << 30;
/// The first part of what a victim gives back, in bytes at most.
const FIRST: u64 = 256 << 20;
/// A victim that has begun to give memory back goes on within so long, on busy CPUs too.
const PAUSE_NS: u64 = 100 * MS;
/// A victim that gives nothing back for so long and still has processes is stuck. Only in `mode: kubelet` does a
/// pod wait for that: one at the kubelet's pace is due no sooner, and what is urgent does not trust memory that is overdue.
pub(crate) const STUCK_NS: u64 = MONITORING_INTERVAL_NS;
/// A victim has given something back if it holds less by so many bytes, or by this part of what is left. The kernel
/// takes single pages from a victim that does not die as well.
const STEP: u64 = 1 << 20;
const STEP_PART: u64 = 1024;
const LARGEST_STEP: u64 = 64 << 20;
/// A look that is late by less, in nanoseconds, may be so by the agent's own doing, while the victim had its time. Of these so
/// many in all do not count.
const OWN_DELAY_NS: u64 = SECOND;
const OWN_DELAYS_NS: u64 = 2 * SECOND;
/// Time after which the kubelet is expected to have unmounted the volumes of a pod without processes.
const UNMOUNT_NS: u64 = 5 * SECOND;
/// A report is sent at the latest this long after the victim's end.
const REPORT_WITHIN_NS: u64 = 2 * SECOND;

/// A victim that was sent SIGKILL. Times are nanoseconds of one monotonic clock, amounts are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminating {
    signalled: u64,
    /// Time since which this agent knows of the victim.
    known_since: u64,
    /// Bytes that the victim used when it was chosen, without what the kernel could give back.
    expected: u64,
    /// The part of it that outlives its processes: tmpfs of memory-backed volumes, shared memory.
    shared: u64,
    /// The least that it was seen to hold; once it is stuck, then and since.
    least: u64,
    /// Time at which `least` last fell by a [`STEP`].
    progress: u64,
    /// Time at which the victim was first seen to give something back.
    began: Option<u64>,
    exited: Option<u64>,
    /// Time since which the kubelet can unmount what the victim shares: `exited`, but for gaps without samples.
    unmounts_since: u64,
    stuck: bool,
    /// Nanoseconds of short delays that did not count as time of the victim.
    delayed: u64,
}

/// State of a victim as seen at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimReading {
    /// Whether it has processes.
    pub populated: bool,
    /// What its cgroup is charged for that the kernel cannot take, in bytes; `None` once it was removed.
    pub usage: Option<u64>,
}

/// State of a victim at a look, compared with the look before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimState {
    /// The victim has processes, and its memory goes.
    Terminating,
    /// The victim was just found stuck: it is not expected to give anything any more.
    BecameStuck,
    /// The victim is still stuck.
    Stuck,
    /// The victim's last process was just found gone.
    Exited,
    /// The victim has no processes; its shared memory waits for the kubelet.
    Lingering,
    /// The victim is expected to give nothing more.
    Released,
    /// The victim had no processes, and has others now: the kubelet has started its containers again. It is a pod like
    /// any other.
    Restarted,
}

impl Terminating {
    /// A victim that was signalled now. `shared` is the part of `expected` that outlives the processes.
    pub fn new(signalled: u64, expected: u64, shared: u64) -> Self {
        Self {
            signalled,
            known_since: signalled,
            expected,
            shared: shared.min(expected),
            least: u64::MAX,
            progress: signalled,
            began: None,
            exited: None,
            unmounts_since: 0,
            stuck: false,
            delayed: 0,
        }
    }

    /// A victim that an earlier agent has signalled, with what is left of it at `now`. Slow is not stuck: what it gave back
    /// before is not known, and it has all of its time again, unless it `was_stuck` before.
    pub fn restore(
        signalled: u64,
        now: u64,
        left: VictimReading,
        shared: u64,
        was_stuck: bool,
    ) -> Self {
        let usage = left.usage.unwrap_or(0);
        Self {
            known_since: now.max(signalled),
            least: usage,
            progress: now.max(signalled),
            exited: (!left.populated).then_some(signalled),
            unmounts_since: signalled,
            stuck: was_stuck && left.populated,
            ..Self::new(signalled, usage, shared)
        }
    }

    /// No cycle ran for so many nanoseconds until `now`: they do not count as time of the victim. Of delays that may be
    /// the agent's alone, as those of a thread that is always late, two seconds in all.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        let mut late = late;
        if late < OWN_DELAY_NS {
            late = late.min(OWN_DELAYS_NS - self.delayed);
            self.delayed += late;
        }
        for since in [
            &mut self.known_since,
            &mut self.progress,
            &mut self.unmounts_since,
        ] {
            shift_by_gap(since, late, now);
        }
    }

    /// Takes a look at it.
    pub fn observe(&mut self, now: u64, seen: VictimReading) -> VictimState {
        let usage = seen.usage.unwrap_or(0);
        if self.stuck {
            self.least = self.least.min(usage);
        } else if !self.has_given() && (self.least == u64::MAX || usage > self.least) {
            // It grows until the signal arrives.
            self.least = usage;
        } else if self.least.saturating_sub(usage)
            >= (self.least / STEP_PART).clamp(STEP, LARGEST_STEP)
        {
            (self.least, self.progress) = (usage, now);
            self.began.get_or_insert(now);
        }
        if seen.populated {
            if self.exited.is_some() {
                return VictimState::Restarted;
            }
            if self.stuck {
                return VictimState::Stuck;
            }
            self.stuck = self.quiet_for(now) >= STUCK_NS;
            if !self.stuck {
                return VictimState::Terminating;
            }
            self.least = usage;
            return VictimState::BecameStuck;
        }
        self.stuck = false;
        if self.exited.is_none() {
            (self.exited, self.unmounts_since) = (Some(now), now);
            return VictimState::Exited;
        }
        if self.holds_shared_memory(now, seen.usage) {
            VictimState::Lingering
        } else {
            VictimState::Released
        }
    }

    /// For how many nanoseconds it has given nothing back.
    pub fn quiet_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.progress)
    }

    /// How much of its `usage` has come since it was found stuck: containers that were started again have taken it.
    pub fn grown_since_stuck(&self, usage: u64) -> u64 {
        match self.stuck {
            true => usage.saturating_sub(self.least),
            false => 0,
        }
    }

    /// Whether something that it shares is still expected. A cgroup without processes keeps some memory of the kernel's
    /// until it is removed, which is none of it.
    fn holds_shared_memory(&self, now: u64, usage: Option<u64>) -> bool {
        let shared = self.shared.min(usage.unwrap_or(0));
        shared >= STEP && now.saturating_sub(self.unmounts_since) < POD_CLEANUP_NS
    }

    /// Whether its processes are gone and nothing more is expected of it.
    pub fn is_over(&self, now: u64, usage: Option<u64>) -> bool {
        self.exited.is_some() && !self.holds_shared_memory(now, usage)
    }

    /// Whether its outcome can be reported: its processes are gone and the threshold is no longer met, or 2 s have
    /// passed since its end (since SIGKILL if it is stuck; never while it is still freeing memory).
    pub fn is_report_due(&self, now: u64, state: VictimState, is_enough: bool) -> bool {
        let since = self.exited.unwrap_or(self.signalled);
        let is_late =
            now.saturating_sub(since) > REPORT_WITHIN_NS && state != VictimState::Terminating;
        (self.exited.is_some() && is_enough) || is_late || state == VictimState::Restarted
    }

    /// Adds what it is still expected to give; `usage` is as [`VictimReading::usage`] now.
    pub fn add_to(&self, pending: &mut Pending, now: u64, usage: Option<u64>) {
        // Removed: everything has come.
        let left = usage.unwrap_or(0).min(self.expected);
        let shared = left.min(self.shared);
        match self.exited {
            _ if self.stuck => {}
            None => {
                let (due, overdue) = (self.due(), self.overdue(now));
                // What is overdue is due soon: it still dies. The longer nothing has come, the longer it may take.
                let soon = now.saturating_add(overdue.max(EXIT_NS / 2));
                // What is overdue may never come: it is no reason to spare another pod.
                match overdue {
                    0 => pending.add_soon(left - shared, due.max(soon)),
                    _ => pending.add(left - shared, due.max(soon)),
                }
                if !self.has_given() && overdue == 0 && left > shared {
                    pending.begins = earliest(pending.begins, Some(due));
                }
                if self.has_given() && now.saturating_sub(self.progress) < EXIT_NS / 2 {
                    pending.flows = true;
                    pending.flows_since = pending.flows_since.max(self.began);
                }
                pending.add(shared, now.saturating_add(UNMOUNT_NS));
            }
            Some(_) if self.holds_shared_memory(now, usage) => {
                let due = self.unmounts_since.saturating_add(UNMOUNT_NS);
                // As for processes: the longer nothing has come, the longer it may take.
                let soon = now.saturating_add(now.saturating_sub(due).max(EXIT_NS));
                pending.add(shared, due.max(soon));
            }
            Some(_) => {}
        }
    }

    /// When the first part of what its processes hold is due: it comes bit by bit.
    fn due(&self) -> u64 {
        let first = self.expected.min(FIRST);
        let exit = self.known_since.saturating_add(EXIT_NS);
        exit.saturating_add(scaled(first, SECOND, TEARDOWN))
    }

    /// For how many nanoseconds something of it should have come that has not.
    fn overdue(&self, now: u64) -> u64 {
        let due = match self.has_given() {
            true => self.due().max(self.progress.saturating_add(PAUSE_NS)),
            false => self.due(),
        };
        now.saturating_sub(due)
    }

    /// Whether it has processes whose memory is still in time.
    pub fn is_in_time(&self, now: u64) -> bool {
        self.exited.is_none() && !self.stuck && self.overdue(now) == 0
    }

    /// Whether something of it was seen to come back.
    fn has_given(&self) -> bool {
        self.began.is_some()
    }

    /// Time at which the victim was first sent SIGKILL.
    pub fn signalled(&self) -> u64 {
        self.signalled
    }

    /// Time at which the victim's last process was found gone; `None` as long as it was not.
    pub fn exited(&self) -> Option<u64> {
        self.exited
    }

    /// Whether it is stuck.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }
}

#[cfg(test)]
mod tests {
    use super::{
        VictimState::{BecameStuck, Exited, Lingering, Released, Restarted, Stuck},
        *,
    };

    const MIB: u64 = 1 << 20;

    fn seen(populated: bool, mib: u64) -> VictimReading {
        VictimReading {
            populated,
            usage: Some(mib * MIB),
        }
    }

    fn pending(victim: &Terminating, now: u64, mib: u64) -> Pending {
        let mut pending = Pending::default();
        victim.add_to(&mut pending, now, Some(mib * MIB));
        pending
    }

    #[test]
    fn process_memory_is_due_at_once_and_tmpfs_when_the_kubelet_unmounts() {
        let mut victim = Terminating::new(0, 300 * MIB, 200 * MIB);
        let before = pending(&victim, MS, 300);
        assert_eq!(before.amount, 300 * MIB);
        assert!(before.due.unwrap() < SECOND);
        assert_eq!(victim.observe(20 * MS, seen(false, 210)), Exited);
        let after = pending(&victim, 20 * MS, 210);
        assert_eq!(after.amount, 200 * MIB, "page cache is not expected");
        assert_eq!(after.due, Some(20 * MS + UNMOUNT_NS));
        assert_eq!(victim.observe(21 * MS, seen(false, 210)), Lingering);
        let unmounted = VictimReading {
            populated: false,
            usage: None,
        };
        assert_eq!(victim.observe(3 * SECOND, unmounted), Released);
        let mut late = Terminating::new(0, 300 * MIB, 200 * MIB);
        late.observe(MS, seen(false, 210));
        assert_eq!(late.observe(31 * SECOND, seen(false, 210)), Released);
        assert_eq!(pending(&late, 31 * SECOND, 210), Pending::default());
        // Kernel memory stays with the cgroup until that is removed.
        let mut shared = Terminating::new(0, 300 * MIB, 200 * MIB);
        shared.observe(MS, seen(false, 210));
        let left = VictimReading {
            populated: false,
            usage: Some(MIB - 1),
        };
        assert_eq!(shared.observe(2 * MS, left), Released);
    }

    #[test]
    fn a_victim_is_in_time_until_its_memory_is_overdue() {
        let mut victim = Terminating::new(0, 100 * MIB, 0);
        assert!(victim.is_in_time(EXIT_NS));
        assert!(!victim.is_in_time(2 * EXIT_NS));
        // It begins late, and pauses.
        victim.observe(2 * EXIT_NS, seen(true, 100));
        victim.observe(3 * EXIT_NS, seen(true, 50));
        assert!(victim.is_in_time(3 * EXIT_NS + PAUSE_NS));
        assert!(!victim.is_in_time(4 * EXIT_NS + PAUSE_NS));
        victim.observe(SECOND, seen(false, 0));
        assert!(!victim.is_in_time(SECOND));
    }

    // R43
    #[test]
    fn shared_memory_that_is_overdue_is_due_the_later_the_longer_nothing_has_come() {
        let mut victim = Terminating::new(0, 300 * MIB, 200 * MIB);
        victim.observe(0, seen(false, 200));
        let due_in = |now| pending(&victim, now, 200).due.unwrap() - now;
        assert_eq!(due_in(SECOND), 4 * SECOND);
        assert_eq!(due_in(UNMOUNT_NS), EXIT_NS);
        assert_eq!(due_in(7 * SECOND), 2 * SECOND);
        assert_eq!(due_in(25 * SECOND), 20 * SECOND);
    }

    #[test]
    fn a_pod_whose_containers_are_started_again_is_a_pod_like_any_other() {
        let mut victim = Terminating::new(0, 100 * MIB, 0);
        assert_eq!(victim.observe(MS, seen(false, 1)), Exited);
        assert!(victim.is_over(MS, Some(MIB)));
        assert_eq!(victim.observe(2 * MS, seen(true, 5)), Restarted);
    }

    // R43
    #[test]
    fn what_has_given_a_little_and_stalls_is_overdue() {
        let mut victim = Terminating::new(0, 1500 * MIB, 0);
        victim.observe(MS, seen(true, 1500));
        victim.observe(10 * MS, seen(true, 1460));
        let soon = |now: u64| pending(&victim, now, 1460).soon;
        assert_eq!(soon(60 * MS), 1460 * MIB);
        assert_eq!(soon(10 * MS + EXIT_NS + PAUSE_NS + MS), 0);
        assert_eq!(pending(&victim, SECOND, 1460).amount, 1460 * MIB);
    }

    #[test]
    fn slow_is_not_stuck() {
        let mut victim = Terminating::new(0, 100_000 * MIB, 0);
        for second in 1..60 {
            let left = seen(true, 100_000 - second * 1000);
            assert_eq!(
                victim.observe(second * SECOND, left),
                VictimState::Terminating
            );
        }
        assert!(pending(&victim, 59 * SECOND, 41_000).amount > 0);
    }

    // R43
    #[test]
    fn a_victim_of_an_earlier_agent_keeps_its_own_deadlines() {
        let restore = |now, left, stuck| Terminating::restore(SECOND, now, left, 40 * MIB, stuck);
        let young = restore(SECOND + MS, seen(true, 100), false);
        assert_eq!(pending(&young, SECOND + MS, 100).amount, 100 * MIB);
        // What came before is not known: it may be slow.
        let state = |left, until| {
            let mut old = restore(60 * SECOND, seen(true, 100), false);
            old.observe(65 * SECOND, seen(true, left));
            old.observe(until, seen(true, left))
        };
        let end = 60 * SECOND + STUCK_NS;
        assert_eq!(state(100, end - 1), VictimState::Terminating);
        assert_eq!(state(100, end), BecameStuck);
        assert_eq!(state(99, end), VictimState::Terminating);
        let mut known = restore(60 * SECOND, seen(true, 100), true);
        assert_eq!(pending(&known, 60 * SECOND, 100), Pending::default());
        assert_eq!(known.observe(61 * SECOND, seen(true, 100)), Stuck);
        // Its processes are gone; a volume of its waits for the kubelet, for as long as it would have.
        let mut volume = restore(6 * SECOND, seen(false, 50), false);
        assert_eq!(pending(&volume, 6 * SECOND, 50).amount, 40 * MIB);
        assert_eq!(volume.observe(6 * SECOND, seen(false, 50)), Lingering);
        assert_eq!(volume.observe(31 * SECOND, seen(false, 50)), Released);
        assert_eq!(volume.observe(7 * SECOND, seen(true, 60)), Restarted);
    }

    // R43
    #[test]
    fn a_victim_is_not_stuck_by_the_time_in_which_the_machine_stood_still() {
        for (late, state) in [(0, BecameStuck), (SECOND, VictimState::Terminating)] {
            let mut victim = Terminating::new(0, 3000 * MIB, 0);
            victim.observe(MS, seen(true, 3000));
            victim.exclude_gap(late, STUCK_NS);
            assert_eq!(victim.observe(STUCK_NS, seen(true, 3000)), state);
        }
    }

    // R43
    #[test]
    fn a_volume_is_waited_for_when_the_kubelet_stood_still_too() {
        let has_room_for_another = |is_noted: bool| {
            let mut victim = Terminating::new(0, 300 * MIB, 200 * MIB);
            victim.observe(50 * MS, seen(false, 200));
            let now = 40 * SECOND;
            if is_noted {
                victim.exclude_gap(now - 100 * MS, now);
            }
            let mut pending = Pending::default();
            victim.add_to(&mut pending, now, Some(200 * MIB));
            assert_eq!(victim.exited(), Some(50 * MS));
            (victim.observe(now, seen(false, 200)), pending.amount / MIB)
        };
        assert_eq!(has_room_for_another(false), (Released, 0));
        assert_eq!(has_room_for_another(true), (Lingering, 200));
    }

    // R43
    /// An agent that is always late sees each look 90 ms after its time, and the machine runs on.
    #[test]
    fn a_victim_is_stuck_though_every_look_is_late() {
        let mut victim = Terminating::new(0, 300 * MIB, 0);
        let mut states = (1..200).map(|look| {
            victim.exclude_gap(90 * MS, look * 91 * MS);
            victim.observe(look * 91 * MS, seen(true, 300))
        });
        let looks = states.position(|state| state == BecameStuck);
        assert!(looks.is_some_and(|looks| looks < 140), "{looks:?}");
    }

    #[test]
    fn a_large_victim_that_is_slow_is_not_stuck() {
        let mut victim = Terminating::new(0, 1_500_000 * MIB, 0);
        for look in 1..60 {
            let left = seen(true, 1_500_000 - look * 70);
            assert_eq!(
                victim.observe(look * 100 * MS, left),
                VictimState::Terminating
            );
        }
    }

    #[test]
    fn what_comes_to_a_stuck_victim_is_new() {
        let mut victim = Terminating::new(0, 100 * MIB, 0);
        victim.observe(MS, seen(true, 100));
        victim.observe(2 * MS, seen(true, 50));
        victim.observe(3 * MS, seen(true, 60));
        assert_eq!(victim.grown_since_stuck(60 * MIB), 0);
        victim.observe(11 * SECOND, seen(true, 60));
        let grown = |victim: &Terminating, mib| victim.grown_since_stuck(mib * MIB) / MIB;
        assert_eq!([60, 75].map(|mib| grown(&victim, mib)), [0, 15]);
        victim.observe(12 * SECOND, seen(true, 40));
        victim.observe(13 * SECOND, seen(true, 75));
        assert_eq!(grown(&victim, 75), 35);
    }

    #[test]
    fn stuck_is_said_once_and_gives_nothing() {
        let mut victim = Terminating::new(0, 100 * MIB, 0);
        assert_eq!(
            victim.observe(MS, seen(true, 100)),
            VictimState::Terminating
        );
        assert_eq!(victim.observe(11 * SECOND, seen(true, 100)), BecameStuck);
        assert_eq!(pending(&victim, 11 * SECOND, 100), Pending::default());
        assert_eq!(victim.observe(19 * SECOND, seen(true, 100)), Stuck);
        // It gets out of it in the end.
        assert_eq!(victim.observe(60 * SECOND, seen(false, 0)), Exited);
        assert_eq!(victim.observe(61 * SECOND, seen(false, 0)), Released);
    }
}
