//! Pods that come back to the node they were just evicted from: a DaemonSet's at once, others by affinity or
//! because nothing else is free. Each recreation holds the node's condition for twice as long as the one before.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::pressure::has_passed;
use crate::{
    EvictionDecision, NodeCondition, Pod, RestoredOwnerEviction, RestoredRecreation, Snapshot,
    planner::plan::Recreation,
    units::{nanos, signed},
};

/// Time after an eviction, and after its condition, within which a pod of the same owner counts as coming back: until then
/// the node's taint may keep it away.
const WINDOW: Duration = Duration::from_secs(600);
/// Time for which the condition is held at the first recreation; it doubles with each further one.
const FIRST_HOLD: Duration = Duration::from_secs(60);
/// The longest that a condition is held.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// The owners whose pods were evicted from this node, and those whose pods are here.
#[derive(Clone, Debug, Default)]
pub(super) struct RecreationTracker {
    /// Evicted pods by the UID of their owner.
    evicted: HashMap<String, Evicted>,
    /// What is known of each pod's time here, by its UID.
    seen: HashMap<String, Presence>,
    /// Conditions that are held, each with the end of its hold.
    held: HashMap<NodeCondition, i64>,
    /// The last look at which each condition was in force.
    in_force: InForce,
    /// Pods known from before [`RecreationTracker::restore`].
    restored: Option<KnownBefore>,
}

type InForce = HashMap<NodeCondition, i64>;

/// Time of a pod on this node.
#[derive(Clone, Debug)]
struct Presence {
    first: i64,
    /// A pod that could not be seen for a cycle has not come back.
    last: i64,
    /// Its owner is known: whether it has come back is decided.
    is_decided: bool,
    /// Time of its eviction, where its owner was not known then, and the condition.
    evicted: Option<(i64, NodeCondition)>,
}

impl Presence {
    fn at(now: i64) -> Self {
        Self {
            first: now,
            last: now,
            is_decided: false,
            evicted: None,
        }
    }
}

/// Knowledge that tells a pod that has come back while no agent ran from one that was here before.
#[derive(Clone, Debug, Default)]
struct KnownBefore {
    /// Time of the first look after the start; pods that it found may have been here for long.
    first_look: Option<i64>,
    /// Time of the last eviction of a pod of each owner, by the UID of the owner, in seconds since 1970.
    since: HashMap<String, i64>,
    /// UIDs of pods that were evicted, or whose recreation was counted.
    known: HashSet<String>,
}

/// The evicted pods of one owner, and how often others have taken their places.
#[derive(Clone, Debug, Default)]
struct Evicted {
    /// Time of the last recreation.
    last: i64,
    recreations: u32,
    /// Those of the last [`WINDOW`], and those whose places are not taken and whose condition was in force in that time, by
    /// their UIDs.
    pods: HashMap<String, EvictedPod>,
    /// UIDs of pods that have come back. One of them that is evicted in turn and comes back makes it a further time.
    returned: HashSet<String>,
}

#[derive(Clone, Debug, Default)]
struct EvictedPod {
    /// When and under which condition it was chosen, by the decisions that stand: one may be asked to end, and be killed then.
    choices: Vec<(i64, NodeCondition)>,
    /// Whether another pod has taken its place: further ones of the owner come by themselves.
    is_replaced: bool,
}

impl Evicted {
    /// Takes note of an eviction; a pod counts once.
    fn remember(&mut self, at: i64, uid: &str, condition: NodeCondition, in_force: &InForce) {
        self.expire(at, in_force);
        let pod = self.pods.entry(uid.to_owned()).or_default();
        pod.choices.push((at, condition));
    }

    /// The pod of `uid` was not evicted by the last of the decisions that chose it.
    fn forget(&mut self, uid: &str) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.choices.pop();
        }
        self.pods.retain(|_, pod| !pod.choices.is_empty());
    }

    /// Another pod, of `uid`, has come at `now`, which was first seen at `first`: the condition of the last one before that
    /// whose place was not taken. Several that went in one incident come back once.
    fn replace(&mut self, now: i64, first: i64, uid: &str) -> Option<NodeCondition> {
        let pods = self.pods.iter_mut().filter(|(_, pod)| !pod.is_replaced);
        let waiting = pods.filter_map(|(uid, pod)| Some((*pod.choices.last()?, uid, pod)));
        let waiting = waiting.filter(|((at, _), ..)| *at <= first);
        let ((_, condition), evicted, pod) = waiting.max_by_key(|((at, _), ..)| *at)?;
        pod.is_replaced = true;
        if self.returned.remove(evicted) || self.recreations == 0 {
            self.recreations = self.recreations.saturating_add(1);
        }
        self.returned.insert(uid.to_owned());
        self.last = now;
        Some(condition)
    }

    /// Forgets what is too long ago.
    fn expire(&mut self, now: i64, in_force: &InForce) {
        for EvictedPod {
            choices,
            is_replaced,
        } in self.pods.values_mut()
        {
            choices.retain(|(at, condition)| {
                let kept_away = in_force.get(condition).filter(|_| !*is_replaced);
                !has_passed(WINDOW, kept_away.map_or(*at, |until| *at.max(until)), now)
            });
        }
        self.pods.retain(|_, pod| !pod.choices.is_empty());
        if self.is_over(now) {
            self.recreations = 0;
            self.returned.clear();
        }
    }

    fn is_over(&self, now: i64) -> bool {
        self.pods.is_empty() && (self.recreations == 0 || has_passed(WINDOW, self.last, now))
    }
}

impl RecreationTracker {
    /// Takes over what an earlier agent has seen, each the oldest first.
    pub(super) fn restore(
        &mut self,
        now: i64,
        evictions: &[RestoredOwnerEviction],
        recreations: &[RestoredRecreation],
    ) {
        let mut restored = KnownBefore::default();
        let mut evictions = evictions.iter().peekable();
        let mut recreations = recreations.iter().peekable();
        loop {
            let is_eviction = match (evictions.peek(), recreations.peek()) {
                (Some(eviction), Some(recreation)) => eviction.at <= recreation.at,
                (eviction, _) => eviction.is_some(),
            };
            if is_eviction {
                let Some(e) = evictions.next() else { break };
                restored.known.insert(e.uid.clone());
                restored.since.insert(e.owner_uid.clone(), e.since);
                let owner = self.evicted.entry(e.owner_uid.clone()).or_default();
                owner.remember(e.at.min(now), &e.uid, e.condition, &self.in_force);
            } else {
                let Some(c) = recreations.next() else { break };
                restored.known.insert(c.recreation.uid.clone());
                self.hold(c.at, &c.recreation);
                let owner = self.evicted.entry(c.recreation.owner_uid.clone());
                let (owner, at) = (owner.or_default(), c.at.min(now));
                owner.expire(at, &self.in_force);
                owner.replace(at, at, &c.recreation.uid);
                owner.returned.insert(c.recreation.uid.clone());
                (owner.last, owner.recreations) = (at, c.recreation.count);
            }
        }
        self.restored = Some(restored);
    }

    fn hold(&mut self, now: i64, recreation: &Recreation) {
        let hold = signed(nanos(recreation.hold.min(LONGEST_HOLD)));
        let until = now.saturating_add(hold);
        let held = self.held.entry(recreation.condition).or_insert(until);
        *held = until.max(*held);
    }

    /// Takes note of evictions.
    pub(super) fn remember(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        evictions: &[EvictionDecision],
        condition: NodeCondition,
    ) {
        for eviction in evictions {
            if let Some(pod) = node.pods.iter().find(|pod| pod.uid == eviction.uid) {
                self.remember_pod(now, pod, condition);
            }
        }
    }

    /// Takes note of one evicted pod. One of which only its cgroup is known yet waits for the name of its owner.
    pub(super) fn remember_pod(&mut self, now: i64, pod: &Pod, condition: NodeCondition) {
        let Some(owner) = &pod.owner else {
            let presence = self.seen.entry(pod.uid.clone());
            presence.or_insert(Presence::at(now)).evicted = Some((now, condition));
            return;
        };
        let owner = self.evicted.entry(owner.uid.clone()).or_default();
        owner.remember(now, &pod.uid, condition, &self.in_force);
    }

    /// Takes note of the conditions of one look.
    pub(super) fn note_in_force(&mut self, now: i64, conditions: &[NodeCondition]) {
        let now = conditions.iter().map(|condition| (*condition, now));
        self.in_force.extend(now);
    }

    /// A pod was not evicted after all.
    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(presence) = self.seen.get_mut(uid) {
            presence.evicted = None;
        }
        self.evicted
            .values_mut()
            .for_each(|owner| owner.forget(uid));
    }

    /// Finds the pods that have come back since the last time, and holds conditions because of them.
    pub(super) fn detect(&mut self, now: i64, node: Snapshot<'_>) -> Vec<Recreation> {
        self.evicted.retain(|_, owner| {
            owner.expire(now, &self.in_force);
            !owner.is_over(now)
        });
        self.look(now, node.pods);
        let found: Vec<Recreation> = node
            .pods
            .iter()
            .filter_map(|pod| self.decide(now, pod))
            .collect();
        for recreation in &found {
            self.hold(now, recreation);
        }
        self.held.retain(|_, until| now < *until);
        found
    }

    /// Takes note of the pods that are here, and of the owners of evicted ones.
    fn look(&mut self, now: i64, pods: &[Pod]) {
        if let Some(restored) = &mut self.restored {
            // By then what was restored of evictions counts no more.
            let first = *restored.first_look.get_or_insert(now);
            self.restored.take_if(|_| has_passed(WINDOW, first, now));
        }
        for pod in pods {
            let Some(presence) = self.seen.get_mut(&pod.uid) else {
                self.seen.insert(pod.uid.clone(), Presence::at(now));
                continue;
            };
            presence.last = now;
            if pod.owner.is_some()
                && let Some((at, condition)) = presence.evicted.take()
            {
                self.remember_pod(at, pod, condition);
            }
        }
        self.seen
            .retain(|_, presence| !has_passed(WINDOW, presence.last, now));
    }

    /// Whether this pod has come back, once its owner is known.
    fn decide(&mut self, now: i64, pod: &Pod) -> Option<Recreation> {
        let owner = pod.owner.as_ref()?;
        let presence = self.seen.get_mut(&pod.uid)?;
        if std::mem::replace(&mut presence.is_decided, true) {
            return None;
        }
        let first = presence.first;
        let restored = self.restored.as_ref();
        let was_here = |r: &KnownBefore| r.first_look.is_some_and(|look| first <= look);
        if restored.is_some_and(|r| was_here(r) && !r.is_new(pod)) {
            return None;
        }
        let evicted = self.evicted.get_mut(&owner.uid)?;
        if evicted.pods.contains_key(&pod.uid) {
            return None;
        }
        let condition = evicted.replace(now, first, &pod.uid)?;
        let hold = FIRST_HOLD
            .saturating_mul(1 << (evicted.recreations - 1).min(16))
            .min(LONGEST_HOLD);
        Some(Recreation {
            uid: pod.uid.clone(),
            owner_uid: owner.uid.clone(),
            condition,
            count: evicted.recreations,
            hold,
        })
    }

    /// The conditions that are held.
    pub(super) fn held(&self) -> impl Iterator<Item = NodeCondition> {
        self.held.keys().copied()
    }
}

impl KnownBefore {
    /// Whether a pod that was here at the first look has come since the last eviction of its owner, and was not
    /// counted.
    fn is_new(&self, pod: &Pod) -> bool {
        let since = pod.owner.as_ref().and_then(|o| self.since.get(&o.uid));
        let both = pod.created.zip(since);
        both.is_some_and(|(created, since)| created >= *since) && !self.known.contains(&pod.uid)
    }
}
