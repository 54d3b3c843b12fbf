//! The pods as the reflex sees them: numbers and open files. Built off the fast path, handed over whole.

use std::{path::Path, sync::Arc};

use crate::{
    config::Mode,
    engine::{Candidate, CandidateState, Claim, Pod},
    evict::kill::Killer,
    observe::cgroup::{MemoryCgroup, PathError},
    policy::Clearance,
};

/// One pod with everything open that a decision and a kill need.
#[derive(Debug)]
pub struct Entry {
    /// What the engine knows of it.
    pub pod: Pod,
    /// Its memory.
    pub memory: MemoryCgroup,
    /// Its end.
    pub killer: Killer,
    /// Whether nobody may evict it (R12).
    pub protected: bool,
    /// What the policies say: it changes in place.
    pub clearance: Clearance,
}

impl Entry {
    /// Opens the files of the pod's cgroup; the mode says whom nobody may evict.
    ///
    /// # Errors
    /// The cgroup is not there.
    pub fn open(pod: Pod, cgroup: &Path, mode: Mode) -> Result<Self, PathError> {
        let protected = pod.is_protected(mode);
        Ok(Self {
            pod,
            memory: MemoryCgroup::open(cgroup)?,
            killer: Killer::open(cgroup)?,
            protected,
            clearance: Clearance::default(),
        })
    }
}

/// All pods, with the room that ranking them takes.
#[derive(Debug, Default)]
pub struct PodTable {
    /// The pods, sorted by namespace, name and UID: the order among equals.
    pub entries: Vec<Arc<Entry>>,
    /// One per entry; the reflex writes here and never grows it.
    pub candidates: Vec<Candidate>,
}

impl PodTable {
    /// A table of these pods.
    pub fn new(mut entries: Vec<Arc<Entry>>) -> Self {
        let key = |e: &Entry| {
            (
                e.pod.namespace.clone(),
                e.pod.name.clone(),
                e.pod.uid.clone(),
            )
        };
        entries.sort_by_cached_key(|e| key(e));
        let candidates = entries.iter().map(|e| candidate(e)).collect();
        Self {
            entries,
            candidates,
        }
    }
}

fn candidate(entry: &Entry) -> Candidate {
    let Pod {
        priority,
        qos,
        memory_request,
        ..
    } = entry.pod;
    Candidate {
        claim: Claim {
            priority,
            qos,
            request: memory_request,
            order: entry.clearance.order(),
        },
        usage: 0,
        is_exact: false,
        state: CandidateState::default(),
    }
}
