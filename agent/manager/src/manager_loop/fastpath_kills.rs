//! What the fast path kills is a victim here too, from the next look on: its report comes by a thread of normal
//! priority, which a pod that takes the CPUs or the process ids delays.

use std::{collections::HashMap, sync::Arc};

use evictd_engine::{
    Observation, Observations, RestoredState, Signal,
    record::KillOutcome,
    units::{SECOND, signed},
};
use evictd_node::{cgroup::end::STARTING, pods::table::PodEntry};
use evictd_sys::clock::monotonic_ns;

use crate::manager_loop::ManagerLoop;

/// The kills that this thread knows of.
#[derive(Debug)]
pub(crate) struct KnownKills {
    /// Earlier kills come by the fast path's reports, or by the journal of an earlier agent.
    since: u64,
    /// The last kill of each pod, by its UID.
    last: HashMap<String, LastKill>,
}

#[derive(Debug)]
struct LastKill {
    /// Time of the kill.
    at: u64,
    /// Time at which it was last looked whether the pod runs again.
    looked: u64,
    /// Whether the pod has run since.
    ran_again: bool,
}

/// State of a pod that may have been killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterKill {
    /// The pod was not killed, or was seen to run again.
    Other,
    /// The pod was killed and was not seen to run again.
    Ends,
    /// All of its processes were started after it was killed, as is seen for the first time.
    RunsAgain,
}

/// How often it is looked whether a pod that was killed runs again: each look reads about all of its processes.
const LOOK_NS: u64 = SECOND;

impl KnownKills {
    /// None but those of earlier agents yet.
    pub fn after(restored: &RestoredState) -> Self {
        let since = monotonic_ns();
        let killed = restored.killed.iter();
        Self {
            since,
            last: killed
                .map(|(uid, at)| (uid.clone(), LastKill::new(*at, since)))
                .collect(),
        }
    }

    /// Whether the pod was killed since this thread has looked.
    pub fn was_killed_unseen(&self, entry: &PodEntry) -> bool {
        let (state, last) = (&entry.eviction_state, self.last.get(&entry.pod.uid));
        let at = state.evicted_at();
        at > self.since && !state.is_requested() && last.is_none_or(|last| last.at != at)
    }

    /// The kill of a pod is known.
    pub fn note(&mut self, entry: &PodEntry) {
        let now = monotonic_ns();
        // One that was asked and is gone was ended by another client, just now as far as is known.
        let at = match entry.eviction_state.evicted_at() {
            0 => now,
            at => at,
        };
        let last = LastKill::new(at, now);
        self.last.insert(entry.pod.uid.clone(), last);
    }

    /// Whether the pod was killed, by this agent or an earlier one.
    pub fn was_killed(&self, uid: &str) -> bool {
        self.last.contains_key(uid)
    }

    /// Whether the pod was killed and was not seen to run again.
    pub fn awaits_end(&self, uid: &str) -> bool {
        self.last.get(uid).is_some_and(|last| !last.ran_again)
    }

    /// Looks what is there of a pod that this agent or an earlier one may have killed.
    pub fn look_at(&mut self, entry: &PodEntry, is_empty: bool, now: u64) -> AfterKill {
        let Some(last) = self.last.get_mut(&entry.pod.uid) else {
            return AfterKill::Other;
        };
        if last.ran_again {
            return AfterKill::Other;
        }
        let is_due = now.saturating_sub(last.looked) >= LOOK_NS;
        if !is_due || is_empty {
            return AfterKill::Ends;
        }
        last.looked = now;
        last.ran_again = !entry.killer.holds_older_than(last.at + STARTING);
        match last.ran_again {
            true => AfterKill::RunsAgain,
            false => AfterKill::Ends,
        }
    }

    /// Forgets pods that are no longer there.
    pub fn keep(&mut self, entries: &[Arc<PodEntry>]) {
        self.last
            .retain(|uid, _| entries.iter().any(|entry| entry.pod.uid == *uid));
    }
}

impl LastKill {
    fn new(at: u64, looked: u64) -> Self {
        Self {
            at,
            looked,
            ran_again: false,
        }
    }
}

impl ManagerLoop {
    /// Looks which pods were killed since the last time. Before their use is read anew: what has ended is no longer
    /// theirs.
    pub(super) fn find_fastpath_kills(&mut self, seen: &Observations) {
        let entries = self.node.pods.entries.iter();
        let killed = entries.filter(|entry| self.node.known_kills.was_killed_unseen(entry));
        let killed: Vec<Arc<PodEntry>> = killed.cloned().collect();
        for entry in killed {
            self.node.known_kills.note(&entry);
            self.node
                .usage_collector
                .measure_victim(&entry, &self.sources);
            let node = self.node.with_ended(seen);
            let now = signed(monotonic_ns());
            self.planner.note_fastpath_kill(now, node, &entry.pod.uid);
        }
    }

    /// The fast path has reported an eviction, at which so much was available. In shadow mode its pod lives on, and is
    /// a pod like any other once the pressure is over.
    pub(super) fn take_fastpath_report(
        &mut self,
        uid: &str,
        signal: Signal,
        available: u64,
        outcome: KillOutcome,
    ) {
        if outcome.is_shadow() && !self.shadow.on {
            // Sent before shadow mode ended: the pod may be evicted like any other now.
            return;
        }
        self.reporter.note_eviction(signal.node_condition());
        let now = signed(monotonic_ns());
        let seen = self.sources.sample(now);
        let capacity = seen.get(signal).map_or(0, |seen| seen.capacity);
        if let Some(met) = self.planner.threshold(signal, true, capacity) {
            self.reporter.set_cause(&met.to_string());
        }
        let mut dip = seen;
        if let Some(seen) = dip.get(signal) {
            let available = signed(available).min(seen.available);
            dip.set(signal, Observation { available, ..seen });
        }
        if let Some(entry) = self.node.pods.entry(uid).cloned() {
            if outcome == KillOutcome::Killed {
                self.node.known_kills.note(&entry);
            }
            self.node
                .usage_collector
                .measure_victim(&entry, &self.sources);
            if outcome == KillOutcome::Killed {
                // What it holds still is to come beyond what is available now, not at the dip.
                let node = self.node.with_ended(&seen);
                self.planner.note_fastpath_kill(now, node, uid);
            }
        }
        if outcome.is_shadow() {
            self.planner.note_reported_in_shadow(signal, true);
        }
        let node = self.node.with_ended(&dip);
        self.planner
            .note_fastpath_eviction(now, node, uid, signal, outcome);
        if outcome == KillOutcome::Killed {
            self.node.usage_collector.forget_files(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evictd_engine::{Pod, model::settings::Mode, node_reclaim::Removed};
    use evictd_node::proc::process::started;

    use super::*;
    use crate::manager_loop::node_reclaim::tests::awaiting_the_runtime;

    /// One container had been started again before the agent was, and another one of the pod ends only later.
    #[test]
    fn a_pod_may_have_run_again_before_the_agent_started() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        for file in ["memory.usage_in_bytes", "memory.stat", "cgroup.procs"] {
            fs::write(dir.path().join(file), format!("{own}\n")).unwrap();
        }
        let pod = Pod {
            uid: "a".into(),
            ..Pod::default()
        };
        let entry = PodEntry::open(pod, dir.path(), Mode::Evictd).unwrap();
        let started = started(own.cast_signed()).unwrap().cast_unsigned();
        let killed_at = |at: u64| {
            let restored = RestoredState {
                killed: vec![("a".into(), at)],
                ..RestoredState::default()
            };
            let due = monotonic_ns() + 2 * LOOK_NS;
            KnownKills::after(&restored).look_at(&entry, false, due)
        };
        assert_eq!(killed_at(started - SECOND), AfterKill::RunsAgain);
        assert_eq!(killed_at(started + SECOND), AfterKill::Ends);
        // Another client has deleted the pod, which has its grace period to end.
        let mut known = KnownKills::after(&RestoredState::default());
        known.note(&entry);
        let due = monotonic_ns() + 2 * LOOK_NS;
        assert_eq!(known.look_at(&entry, false, due), AfterKill::Ends);
    }
    /// It is left out of one look alone, which may be that of the runtime's answer.
    // R43
    #[test]
    fn a_pod_that_runs_again_when_the_runtime_answers_is_a_pod_like_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut manager = awaiting_the_runtime(dir.path());
        let own = std::process::id();
        fs::write(dir.path().join("a/cgroup.procs"), format!("{own}\n")).unwrap();
        let seen = manager.sample();
        let is_candidate = |manager: &ManagerLoop| {
            let (node, signal) = (manager.node.snapshot(&seen), Signal::MemoryAvailable);
            !manager.planner.candidates(node, signal).is_empty()
        };
        assert!(is_candidate(&manager));
        let killed_at = started(own.cast_signed()).unwrap().cast_unsigned() - SECOND;
        let last = LastKill::new(killed_at, 0);
        manager.node.known_kills.last.insert("a".into(), last);
        let node = manager.node.snapshot(&seen);
        let now = signed(monotonic_ns());
        manager.planner.note_fastpath_kill(now, node, "a");
        assert!(!is_candidate(&manager));
        manager.node_reclaim_done(Some(Removed {
            left_to_kubelet: 1,
            ..Removed::default()
        }));
        manager.sample();
        assert!(is_candidate(&manager));
    }
}
