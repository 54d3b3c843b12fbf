//! The pods as the planner gets them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use evictd_engine::{
    EmptyPods, NodeBounds, Observations, Pod, PodState, Snapshot,
    limiter::{EvictionKind, EvictionLimiter},
    model::settings::Mode,
    permit::LastResort,
};
use evictd_node::pods::table::PodEntry;
use evictd_sys::clock::monotonic_ns;

use crate::{
    PodSet,
    manager_loop::fastpath_kills::{AfterKill, KnownKills},
    usage::UsageCollector,
};

/// The pods of the node, what they use, and which of them have ended.
pub(crate) struct NodePods {
    /// All pods, as they were published last.
    pub pods: PodSet,
    pub usage_collector: UsageCollector,
    /// Pods that have not ended. One without processes may be between two runs of its container.
    pub running: Vec<Pod>,
    bounds: NodeBounds,
    pub empty: EmptyPods,
    pub known_kills: KnownKills,
    /// UIDs of the pods that were being deleted and had ended at the last look; `None` before the first one.
    deleted: Option<HashSet<String>>,
}

impl NodePods {
    pub fn new(pods: PodSet, mut usage_collector: UsageCollector, known_kills: KnownKills) -> Self {
        usage_collector.set_pods(&pods);
        Self {
            running: Vec::clone(&pods.pods),
            bounds: NodeBounds::default(),
            pods,
            usage_collector,
            empty: EmptyPods::default(),
            known_kills,
            deleted: None,
        }
    }

    /// Takes over the pods that were published.
    pub fn set_pods(&mut self, pods: PodSet) {
        if !Arc::ptr_eq(&pods.pods, &self.pods.pods) {
            self.usage_collector.set_pods(&pods);
            self.running.clone_from(&pods.pods);
        }
        self.known_kills.keep(&pods.entries);
        self.empty.keep(&pods.pods);
        self.pods = pods;
    }

    /// The node as it was observed.
    pub fn snapshot<'a>(&'a self, observations: &'a Observations) -> Snapshot<'a> {
        Snapshot {
            observations,
            pods: &self.running,
            usages: self.usage_collector.usages(),
            bounds: self.bounds,
        }
    }

    /// Makes a snapshot that includes the pods that have ended.
    pub fn with_ended<'a>(&'a self, observations: &'a Observations) -> Snapshot<'a> {
        Snapshot {
            pods: &self.pods.pods,
            ..self.snapshot(observations)
        }
    }

    /// Asks what holds back evictions on the node at a moment, in nanoseconds of CLOCK_MONOTONIC, and what the policies
    /// say of all pods that have not ended.
    pub fn ask_policies(&mut self, limiter: &EvictionLimiter, mode: Mode, now: u64) {
        self.bounds = limiter.node_bounds(mode, now);
        let by_uid = self.pods.entries.iter().map(|e| (e.pod.uid.as_str(), e));
        let by_uid: HashMap<&str, &Arc<PodEntry>> = by_uid.collect();
        for pod in &mut self.running {
            if let Some(entry) = by_uid.get(pod.uid.as_str()) {
                pod.order = entry.permit.order();
                let kind = EvictionKind::AnyCause;
                pod.is_denied = !limiter.allows(&***entry, now, kind, LastResort::None);
            }
        }
    }

    /// Leaves out the pods that have ended: those without processes that were killed, are over, or are being deleted.
    /// Marks those that may be over. Returns the UIDs of those that are being deleted and have
    /// ended since the look before; those of the first look have ended before.
    pub fn find_running(&mut self, is_short: bool) -> Vec<String> {
        let now = monotonic_ns();
        let PodSet { entries, pods } = &self.pods;
        // Of most pods it is needed only where something is short.
        let looks_at_all = is_short || self.empty.is_due(now);
        let mut running: Vec<(&Pod, bool)> = Vec::with_capacity(pods.len());
        let (mut deleted, mut news) = (HashSet::new(), Vec::new());
        for (entry, pod) in entries.iter().zip(pods.iter()) {
            let is_known = self.empty.is_over(pod, now) || self.known_kills.was_killed(&pod.uid);
            let is_empty = (looks_at_all || is_known) && entry.killer.is_empty();
            if looks_at_all {
                self.empty.note(&pod.uid, is_empty, now);
            }
            let after_kill = self.known_kills.look_at(entry, is_empty, now);
            let state = match after_kill {
                // The one that was killed is not among the pods at this look; from the next one on it is another one.
                AfterKill::RunsAgain => PodState::Over,
                AfterKill::Ends if is_empty => PodState::Over,
                AfterKill::Ends => PodState::Lives,
                AfterKill::Other => self.empty.state(pod, is_empty, is_short, now),
            };
            if state != PodState::Over {
                running.push((pod, state == PodState::MayBeOver));
            } else if pod.is_deleting {
                let is_news = |told: &HashSet<String>| !told.contains(&pod.uid);
                if after_kill == AfterKill::Other && self.deleted.as_ref().is_some_and(is_news) {
                    news.push(pod.uid.clone());
                }
                deleted.insert(pod.uid.clone());
            }
        }
        if looks_at_all {
            self.empty.finish_look(now);
        }
        self.deleted = Some(deleted);
        let uids = running.iter().map(|(pod, _)| &pod.uid);
        if !uids.eq(self.running.iter().map(|pod| &pod.uid)) {
            self.running = running.iter().map(|(pod, _)| (*pod).clone()).collect();
        }
        for (pod, (_, may_be_over)) in self.running.iter_mut().zip(running) {
            pod.may_be_over = may_be_over;
        }
        news
    }
}
