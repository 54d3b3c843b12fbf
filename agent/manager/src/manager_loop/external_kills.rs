//! What the fast path kills is a victim here too, from the next look on: its report comes by a thread of normal priority, which a
//! pod that takes the CPUs or the process ids delays.

use std::{collections::HashMap, sync::Arc};

use evictd_engine::{Observations, RestoredState, Signal};
use evictd_node::pods::table::PodEntry;
use evictd_sys::clock::monotonic_ns;

use crate::manager_loop::{ManagerLoop, signed};

/// The kills that this thread knows of.
#[derive(Debug)]
pub(crate) struct KnownKills {
    /// Earlier kills come by the fast path's reports, or by the journal of an earlier agent.
    since: u64,
    /// When each pod was killed last, by its UID.
    at: HashMap<String, u64>,
}

impl KnownKills {
    /// None but those of earlier agents yet.
    pub fn after(restored: &RestoredState) -> Self {
        let victims = restored.victims.iter().map(|victim| victim.uid.clone());
        Self {
            since: monotonic_ns(),
            at: victims.map(|uid| (uid, 0)).collect(),
        }
    }

    /// Whether the pod was killed since this thread has looked.
    pub fn has_news_of(&self, entry: &PodEntry) -> bool {
        let at = entry.permit.evicted_at();
        at > self.since && self.at.get(&entry.pod.uid) != Some(&at)
    }

    /// The kill of a pod is known.
    pub fn note(&mut self, entry: &PodEntry) {
        let at = entry.permit.evicted_at();
        self.at.insert(entry.pod.uid.clone(), at);
    }

    /// Whether the pod was killed, by this agent or an earlier one.
    pub fn was_killed(&self, uid: &str) -> bool {
        self.at.contains_key(uid)
    }

    /// Forgets pods that are no longer there.
    pub fn keep(&mut self, entries: &[Arc<PodEntry>]) {
        self.at
            .retain(|uid, _| entries.iter().any(|entry| entry.pod.uid == *uid));
    }
}

impl ManagerLoop {
    /// Looks which pods were killed since the last time. Before their use is read anew: what has ended is no longer theirs.
    pub(super) fn see_external_kills(&mut self, seen: &Observations) {
        let entries = self.pods.entries.iter();
        let killed = entries.filter(|entry| self.known_kills.has_news_of(entry));
        let killed: Vec<Arc<PodEntry>> = killed.cloned().collect();
        for entry in killed {
            self.known_kills.note(&entry);
            self.node
                .usage_collector
                .measure_victim(&entry, &self.sources);
            let node = self.node.with_ended(seen, &self.pods);
            let now = signed(monotonic_ns());
            self.planner.note_external_kill(now, node, &entry.pod.uid);
        }
    }

    /// The fast path has reported an eviction. In shadow mode its pod lives on, and is a pod like others once the pressure is over.
    pub(super) fn take_external_eviction(
        &mut self,
        uid: &str,
        signal: Signal,
        dip: &Observations,
        (shadow, refused): (bool, bool),
    ) {
        if let Some(entry) = self.pods.entry(uid).cloned() {
            self.known_kills.note(&entry);
            self.node
                .usage_collector
                .measure_victim(&entry, &self.sources);
        }
        if shadow {
            self.shadow_reported.insert(signal.to_string());
        }
        let node = self.node.with_ended(dip, &self.pods);
        let now = signed(monotonic_ns());
        self.planner.note_external_eviction(now, node, uid, signal);
        if shadow || refused {
            self.planner.forget_recreation(uid);
        } else {
            self.node.usage_collector.forget_files(uid);
        }
    }
}
