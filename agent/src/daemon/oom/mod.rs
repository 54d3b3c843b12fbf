//! The kills of the OOM killer, as the kernel programs report them: each is attributed, counted and recorded. Without a
//! program they are counted.

mod attribution;
mod unattributed;

use std::{path::Path, sync::Arc};

use evictd_node::{
    cgroup::memory::memory_root,
    memory_scope::Scope,
    pods::table::PodEntry,
    trigger::oom::{OomReader, kills_of_machine},
};
use evictd_store::record::Record;
use evictd_sys::clock::monotonic_ns;

use super::{Agent, memory::CGROUP_MOUNT};
use attribution::OomAttributor;
use unattributed::{KillSummary, UnattributedKills};

pub use attribution::{Ending, NotedEviction, OomCounters};

/// Kills that are attributed at a tick; further ones wait: a pod can have its children killed faster than their cgroups are
/// looked up.
const MAX_AT_A_TICK: usize = 128;

/// What is known of the kills so far.
pub struct OomKills {
    pub attributor: OomAttributor,
    pub unattributed: UnattributedKills,
}

impl OomKills {
    /// Attributes kills from now on, for the scopes that are watched, the node's first.
    pub fn new(scopes: &[Scope], entries: &[Arc<PodEntry>]) -> Self {
        let mut attributor = attributor(scopes);
        attributor.set_pods(entries);
        let mut unattributed = UnattributedKills::default();
        // What the OOM killer does from now on is counted.
        unattributed.note_count(kills_of_machine().unwrap_or(0));
        Self {
            attributor,
            unattributed,
        }
    }
}

/// Creates the attributor of the OOM killer's kills, for the scopes that are watched, the node's first.
fn attributor(scopes: &[Scope]) -> OomAttributor {
    let root = memory_root(Path::new(CGROUP_MOUNT)).map(|(root, _)| root);
    // Without a hierarchy there is no scope either.
    let node = || scopes.first().map(|node| node.cgroup().path().to_owned());
    let root = root.or_else(node).unwrap_or_default();
    let scopes = scopes.iter().map(|s| s.cgroup().id()).collect();
    OomAttributor::new(&root, scopes, kills_of_machine)
}

impl Agent {
    /// Records the kills that share a record, once it is due by a time in nanoseconds of CLOCK_MONOTONIC.
    pub fn report_oom_kills(&mut self, by: u64) {
        match self.oom.unattributed.due(by) {
            Some(KillSummary {
                kills,
                last: Some(last),
            }) => tracing::warn!(
                kills,
                pid = last.pid,
                cgroup = last.cgroup_id,
                "the OOM killer has killed a process of which only the pid and the cgroup are known"
            ),
            Some(KillSummary { kills, last: None }) => tracing::warn!(
                kills,
                "the OOM killer has killed processes, and no program says which"
            ),
            None => {}
        }
        for kill in self.oom.attributor.due(by) {
            self.append_to_journal(Record::OomKill(Box::new(kill)));
        }
    }

    /// Reads and attributes the kills since the last tick.
    pub fn read_oom_events(&mut self) {
        // Evictions before a kill have to be known before the kill is attributed.
        self.handle_fastpath_events();
        self.handle_manager_events();
        self.handle_kubelet_evictions();
        self.take_requests();
        let reader = self.programs.oom.as_mut();
        if reader.is_none_or(|reader| !reader.attributes()) {
            let counted = kills_of_machine().map(|all| self.oom.unattributed.note_count(all));
            self.oom.attributor.count_unattributed(counted.unwrap_or(0));
        }
        let oom = &mut self.programs.oom;
        while let Some(kill) = oom.as_mut().and_then(OomReader::next_unattributed) {
            self.oom.unattributed.note(kill);
        }
        let mut is_read = false;
        for _ in 0..MAX_AT_A_TICK {
            let Some(kill) = self.programs.oom.as_mut().and_then(OomReader::next_kill) else {
                is_read = true;
                break;
            };
            if let Some(record) = self.oom.attributor.attribute(&kill) {
                self.append_to_journal(Record::OomKill(Box::new(record)));
            }
        }
        if is_read {
            self.oom.attributor.finish_read();
        }
        self.report_oom_kills(monotonic_ns());
    }
}
