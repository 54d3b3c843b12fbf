//! Victims that are on their way out: what they use counts as coming back, so that no other pod dies for it.

use std::collections::HashMap;

use crate::{Cause, EvictionDecision, Layout, Pod, Resource, Signal, Snapshot, pace::Pending};

const SECOND: i64 = 1_000_000_000;
/// How long a victim may take beyond its grace period until it no longer counts as on its way: it does not block the
/// next one (kubernetes/kubernetes#124081).
const DEADLINE_NANOS: i64 = 10 * SECOND;
/// The same for its files, which outlive it: they are removed when the pod's object is (the kubelet waits as long,
/// `podCleanupTimeout`).
const FILES_DEADLINE_NANOS: i64 = 30 * SECOND;

/// Victims by UID.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingVictims(HashMap<String, Victim>);

#[derive(Clone, Debug)]
struct Victim {
    /// Until when it counts as on its way.
    deadline: i64,
    /// Has processes then still: it is stuck.
    stuck_at: i64,
    /// That was said.
    is_stuck: bool,
    /// It is no longer among the pods. Should one of its UID be there again, it is another one.
    is_dead: bool,
    expected: Option<Expected>,
}

/// What a victim's end will bring.
#[derive(Clone, Copy, Debug)]
struct Expected {
    signal: Signal,
    /// What it used when it was chosen.
    usage: u64,
    /// What was available then.
    available: i64,
}

impl PendingVictims {
    /// Takes note of evictions.
    pub(super) fn remember(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        layout: Layout,
        evictions: &[EvictionDecision],
    ) {
        for eviction in evictions {
            let grace = eviction.grace_period_seconds.max(0).saturating_mul(SECOND);
            let expected = expected(node, layout, eviction);
            let patience = match expected.map(|e| e.signal.resource()) {
                Some(Resource::EphemeralStorage | Resource::Inodes) => FILES_DEADLINE_NANOS,
                _ => DEADLINE_NANOS,
            };
            let end = now.saturating_add(grace);
            let victim = Victim {
                deadline: end.saturating_add(patience),
                stuck_at: end.saturating_add(DEADLINE_NANOS),
                is_stuck: false,
                is_dead: false,
                expected,
            };
            self.0.insert(eviction.uid.clone(), victim);
        }
    }

    /// Takes over a pod that an earlier manager has chosen, and whose time to end was over at a moment.
    pub(super) fn restore(&mut self, uid: &str, at: i64) {
        let deadline = at.saturating_add(DEADLINE_NANOS);
        let victim = Victim {
            deadline,
            stuck_at: deadline,
            is_stuck: false,
            is_dead: false,
            expected: None,
        };
        self.0.insert(uid.to_owned(), victim);
    }

    /// Looks who is no longer among the pods. What the dead have brought is known of memory only; of the rest some is
    /// still to come: files wait to be removed, and tasks to be reaped.
    pub(super) fn forget_the_dead(&mut self, now: i64, node: Snapshot<'_>) {
        self.0.retain(|uid, victim| {
            victim.is_dead |= !node.pods.iter().any(|pod| pod.uid == *uid);
            let leaves_something = victim
                .expected
                .is_some_and(|e| e.signal.resource() != Resource::Memory);
            !victim.is_dead || (leaves_something && now < victim.deadline)
        });
    }

    /// The UIDs of those that have processes although their time is over; each once.
    pub(super) fn take_stuck(&mut self, now: i64) -> Vec<String> {
        let stuck = |(uid, victim): (&String, &mut Victim)| {
            let is_new = !victim.is_dead && !victim.is_stuck && now >= victim.stuck_at;
            victim.is_stuck |= is_new;
            is_new.then(|| uid.clone())
        };
        self.0.iter_mut().filter_map(stuck).collect()
    }

    /// Whether all have been seen to be gone.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// None of them goes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// A pod does not go after all.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether a pod was evicted already; it is not evicted twice, even if it takes too long.
    pub(super) fn contains(&self, pod: &Pod) -> bool {
        self.0.get(&pod.uid).is_some_and(|victim| !victim.is_dead)
    }

    /// How much of what a signal watches is on its way back, and by when.
    pub(super) fn pending(
        &self,
        now: i64,
        node: Snapshot<'_>,
        layout: Layout,
        signal: Signal,
    ) -> Pending {
        let mut pending = Pending::default();
        for (uid, victim) in self.0.iter().filter(|(_, victim)| now < victim.deadline) {
            let pod = node.pods.iter().find(|pod| pod.uid == *uid);
            let amount = match (pod.filter(|_| !victim.is_dead), node.usages.get(uid)) {
                (Some(pod), Some(usage)) => layout.usage(signal, pod, usage),
                (Some(_), None) => 0,
                // It may have died since the round began.
                (None, _) => victim.expected.map_or(0, |e| e.left(node, signal)),
            };
            // Processes end at once; files wait for the kubelet, at most until the deadline.
            let due = match signal.resource() {
                Resource::Memory | Resource::Pids => now.saturating_add(SECOND / 2),
                Resource::EphemeralStorage | Resource::Inodes => victim.deadline,
            };
            pending.add(amount, u64::try_from(due).unwrap_or(0));
        }
        pending
    }
}

impl Expected {
    /// What has not come yet of what a signal watches. Two signals of one filesystem read the same.
    fn left(self, node: Snapshot<'_>, signal: Signal) -> u64 {
        let read = |signal| {
            node.observations
                .get(signal)
                .map(|o| (o.available, o.capacity))
        };
        let (Some(own), Some(asked)) = (read(self.signal), read(signal)) else {
            return 0;
        };
        let is_same = self.signal.resource() == signal.resource() && own == asked;
        // Memory is back with the last process.
        if !is_same || signal.resource() == Resource::Memory {
            return 0;
        }
        let come = u64::try_from(own.0.saturating_sub(self.available)).unwrap_or(0);
        self.usage.saturating_sub(come)
    }
}

fn expected(node: Snapshot<'_>, layout: Layout, eviction: &EvictionDecision) -> Option<Expected> {
    let Cause::Pressure(signal) = eviction.cause else {
        return None;
    };
    let pod = node.pods.iter().find(|pod| pod.uid == eviction.uid)?;
    Some(Expected {
        signal,
        usage: layout.usage(signal, pod, node.usages.get(&eviction.uid)?),
        available: node.observations.get(signal)?.available,
    })
}
