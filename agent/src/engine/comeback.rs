//! Pods that come back to the node they were just evicted from: a DaemonSet's at once (R17), others by affinity or
//! because nothing else is free (R29). Each comeback keeps the door shut for longer.

use std::{collections::HashMap, time::Duration};

use super::{Eviction, NodeCondition, Pod, Snapshot, pressure::has_passed};

/// How long after an eviction a pod of the same owner counts as coming back.
const WINDOW: Duration = Duration::from_secs(600);
/// How long the condition is held at the first comeback; it doubles with each further one.
const FIRST_HOLD: Duration = Duration::from_secs(60);
/// The longest that a condition is held.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// A pod that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comeback {
    /// The new pod's UID.
    pub uid: String,
    /// The UID of the owner that put it here again.
    pub owner_uid: String,
    /// The condition under which the last one was evicted.
    pub condition: NodeCondition,
    /// How often pods of this owner have come back in a row.
    pub count: u32,
    /// How long the condition is held from now on, so that its taint keeps further ones away.
    pub hold: Duration,
}

/// Who was evicted from here, and who is here.
#[derive(Clone, Debug, Default)]
pub(super) struct Comebacks {
    /// By the UID of the owner.
    evicted: HashMap<String, Evicted>,
    /// When each pod was seen last, by its UID: one that nobody could look at for a round has not come back.
    seen: HashMap<String, i64>,
    /// Until when conditions are held.
    held: HashMap<NodeCondition, i64>,
}

#[derive(Clone, Copy, Debug)]
struct Evicted {
    last: i64,
    condition: NodeCondition,
    comebacks: u32,
}

impl Comebacks {
    /// Takes note of evictions.
    pub(super) fn remember(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        evictions: &[Eviction],
        condition: NodeCondition,
    ) {
        for eviction in evictions {
            if let Some(pod) = node.pods.iter().find(|pod| pod.uid == eviction.uid) {
                self.remember_pod(now, pod, condition);
            }
        }
    }

    /// Takes note of one evicted pod.
    pub(super) fn remember_pod(&mut self, now: i64, pod: &Pod, condition: NodeCondition) {
        let Some(owner) = &pod.owner else {
            return;
        };
        let evicted = self.evicted.entry(owner.uid.clone());
        let evicted = evicted.or_insert(Evicted {
            last: now,
            condition,
            comebacks: 0,
        });
        (evicted.last, evicted.condition) = (now, condition);
    }

    /// Finds the pods that have come back since the last time, and holds conditions because of them.
    pub(super) fn detect(&mut self, now: i64, node: Snapshot<'_>) -> Vec<Comeback> {
        self.evicted
            .retain(|_, evicted| !has_passed(WINDOW, evicted.last, now));
        let arrived = node
            .pods
            .iter()
            .filter(|pod| !self.seen.contains_key(&pod.uid));
        let found: Vec<Comeback> = arrived
            .filter_map(|pod| comeback(&mut self.evicted, now, pod))
            .collect();
        for comeback in &found {
            let until =
                now.saturating_add(i64::try_from(comeback.hold.as_nanos()).unwrap_or(i64::MAX));
            let held = self.held.entry(comeback.condition).or_insert(until);
            *held = until.max(*held);
        }
        self.held.retain(|_, until| now < *until);
        for pod in node.pods {
            match self.seen.get_mut(&pod.uid) {
                Some(seen) => *seen = now,
                None => {
                    self.seen.insert(pod.uid.clone(), now);
                }
            }
        }
        self.seen.retain(|_, seen| !has_passed(WINDOW, *seen, now));
        found
    }

    /// The conditions that are held.
    pub(super) fn held(&self) -> impl Iterator<Item = NodeCondition> {
        self.held.keys().copied()
    }
}

fn comeback(evicted: &mut HashMap<String, Evicted>, now: i64, pod: &Pod) -> Option<Comeback> {
    let owner = pod.owner.as_ref()?;
    let entry = evicted.get_mut(&owner.uid)?;
    entry.comebacks = entry.comebacks.saturating_add(1);
    entry.last = now;
    let hold = FIRST_HOLD
        .saturating_mul(1 << (entry.comebacks - 1).min(16))
        .min(LONGEST_HOLD);
    Some(Comeback {
        uid: pod.uid.clone(),
        owner_uid: owner.uid.clone(),
        condition: entry.condition,
        count: entry.comebacks,
        hold,
    })
}
