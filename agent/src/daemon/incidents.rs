//! Incidents: which other pods were there when a pod was evicted, and what was seen before and after.

use std::sync::{Arc, atomic::Ordering};

use evictd_engine::{
    ManagedPod as _, Pod, PodUsage, RankKey, Ranked, Ranking, Resource, Signal, Usages,
    history::Sample, model::settings::RankingStrategy, oom_badness, oom_score_adj, pace::Judged,
};
use evictd_node::pods::table::Entry;
use evictd_policy::evaluator::Explanation;
use evictd_store::{
    incident::{BEFORE_NS, Incident, RankedBy, RankedPod},
    record::{EvictionRecord, Record},
};
use evictd_sys::clock::monotonic_ns;

use super::Agent;

/// Pods that are told of, the first in the order of eviction; besides them only those that the report names.
const PODS: usize = 16;

/// What a pod uses now, in bytes; `None` if its cgroup is gone.
fn working_set(entry: &Arc<Entry>) -> Option<u64> {
    let memory = entry.open_memory().ok()?;
    Some(memory.read().ok()?.working_set())
}

impl Agent {
    /// An eviction begins or is over.
    ///
    /// `judged` is what the moment of an eviction was decided from.
    pub(super) fn note_incident(&mut self, record: &Record, judged: Option<Judged>) {
        match record {
            Record::Evicted(eviction) => self.begin(Incident {
                judged,
                ..Incident::new(eviction.as_ref().clone())
            }),
            Record::Asked(asked) => self.begin(Incident::of_asked(asked.as_ref().clone())),
            Record::Finished(finish) => self.incidents.finish(monotonic_ns(), finish),
            _ => {}
        }
    }

    fn begin(&mut self, mut incident: Incident) {
        self.describe_pods(&mut incident);
        let samples = self.samples();
        self.incidents.begin(monotonic_ns(), incident, &samples);
    }

    /// Takes note of pods that are ending after a soft eviction, and of those that have ended.
    fn follow_asked(&mut self) {
        while let Some(asked) = self.pod_source.going() {
            // The API server has agreed.
            self.metrics.asked(&asked);
            self.begin(Incident::of_asked(asked));
        }
        let entries = &self.handed_over.entries;
        self.incidents.find_gone(monotonic_ns(), |uid| {
            let entry = entries.iter().find(|entry| entry.pod.uid == uid);
            entry.is_none_or(|entry| entry.is_empty())
        });
    }

    /// Has those written down that are over by a time, in nanoseconds of CLOCK_MONOTONIC.
    pub(super) fn write_incidents(&mut self, by: u64) {
        self.follow_asked();
        let mut over = self.incidents.due(by);
        if over.is_empty() {
            return;
        }
        for standing in over.iter_mut().flat_map(|incident| &mut incident.pods) {
            let name = &standing.pod;
            let entries = &self.handed_over.entries;
            let entry = entries.iter().find(|e| e.pod.to_string() == *name);
            // A victim's cgroup goes with it.
            let used = entry.and_then(working_set);
            standing.usage_after = used.or(standing.evicted.then_some(0));
        }
        let (writer, samples, count) = (self.incidents.writer(), self.samples(), over.len());
        if !self.write_file(move || writer.write(over, &samples)) {
            tracing::warn!(
                count,
                "incidents are not written down: too many files wait for the disk"
            );
            let failed = &self.incidents.kept().failed;
            failed.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let since = monotonic_ns().saturating_sub(BEFORE_NS * 2);
        let mut samples = self.events.recorder().since(since);
        samples.extend(self.seen_by_manager.since(since));
        samples
    }

    /// The pods in the order of eviction, where memory is short, and the one that the OOM killer would take; the victim with what
    /// it used when it was chosen.
    fn describe_pods(&self, incident: &mut Incident) {
        let eviction = &incident.eviction;
        let Ok(signal) = eviction.signal.parse::<Signal>() else {
            return;
        };
        if signal.resource() != Resource::Memory {
            return;
        }
        let is_victim = |uid: &str| uid == eviction.uid;
        let usage = |entry: &Arc<Entry>| {
            let usage = match is_victim(&entry.pod.uid) {
                true => Some(eviction.working_set),
                false => working_set(entry),
            };
            let usage = PodUsage {
                memory_working_set: Some(usage?),
                ..PodUsage::default()
            };
            Some((entry.pod.uid.clone(), usage))
        };
        let usages: Usages = self.handed_over.entries.iter().filter_map(usage).collect();
        let ranking = Ranking {
            strategy: self.config.ranking_strategy,
            signal,
            layout: self.layout,
        };
        let read = monotonic_ns();
        // As policies have it at this moment.
        let in_order = |entry: &Arc<Entry>| Pod {
            order: entry.permit.order(),
            ..entry.pod.clone()
        };
        let pods: Vec<Pod> = self.handed_over.entries.iter().map(in_order).collect();
        let ranked = ranking.order(&pods, &usages);
        let capacity = self.node_memory.capacity();
        let scored_by = self.node_memory.kubelet_capacity();
        let adjust = |ranked: &Ranked<'_>| {
            let (qos, is_critical) = (ranked.pod.qos, ranked.pod.is_node_critical());
            let request = ranked.pod.memory_request;
            oom_score_adj(qos, is_critical, request, scored_by)
        };
        let badness = |ranked: &Ranked<'_>| {
            let points = oom_badness(ranked.usage?, adjust(ranked), capacity);
            Some((points, ranked.pod.to_string()))
        };
        let oom_victim = ranked.iter().filter_map(badness).max();
        let policies = self.policies.evaluator.explain();
        let standing = |(position, ranked): (usize, &Ranked<'_>)| {
            let pod = ranked.pod;
            let said = policies.iter().find(|said| said.uid == pod.uid);
            let evicted = is_victim(&pod.uid);
            // A limit that this eviction has used up did not spare its pod.
            let spared = said.filter(|said| !said.may_go && !evicted);
            let reason = |said: &Explanation| said.reason.clone().unwrap_or_default();
            RankedPod {
                pod: pod.to_string(),
                usage: ranked.usage,
                request: ranked.inputs.request,
                priority: ranked.inputs.priority,
                priority_unknown: ranked.inputs.priority_unknown,
                order: ranked.inputs.order,
                qos_class: ranked.inputs.qos.as_str().to_owned(),
                evicted,
                usage_after: None,
                oom_score_adj: Some(adjust(ranked)),
                protected: pod.is_protected(self.config.mode),
                spared: spared.map(reason),
                terminating: !evicted && self.was_on_its_way(&pod.uid, eviction),
                place: (position >= PODS).then_some(position + 1),
            }
        };
        // Policies may spare many pods before the victim, and others choose by another order.
        let may_go = ranked
            .iter()
            .filter(|ranked| !ranked.pod.is_protected(self.config.mode));
        let by_kubelet = may_go.min_by_key(|ranked| {
            RankKey::of_kubelet(ranked.inputs.priority, ranked.inputs.request, ranked.usage)
        });
        let by_kubelet = by_kubelet.map(|ranked| ranked.pod.uid.as_str());
        let by_oom_killer = oom_victim.as_ref().map(|(_, pod)| pod);
        let is_told = |(position, ranked): &(usize, &Ranked<'_>)| {
            let pod = ranked.pod;
            *position < PODS
                || is_victim(&pod.uid)
                || by_kubelet == Some(pod.uid.as_str())
                || by_oom_killer.is_some_and(|name| *name == pod.to_string())
        };
        let told = ranked.iter().enumerate().filter(is_told);
        let pods = told.map(standing).collect();
        let mut names = RankingStrategy::CHOICES.into_iter();
        let strategy = names.find(|(_, strategy)| *strategy == self.config.ranking_strategy);
        incident.ranked_by = strategy.map(|(name, _)| RankedBy {
            strategy: name.to_owned(),
            read,
        });
        incident.pods = pods;
        incident.capacity = Some(capacity);
        incident.oom_victim = oom_victim.map(|(_, pod)| pod);
    }

    /// Whether a pod was evicted before another one and something was left of it: it was no candidate.
    fn was_on_its_way(&self, uid: &str, eviction: &EvictionRecord) -> bool {
        let mut entries = self.handed_over.entries.iter();
        let Some(entry) = entries.find(|entry| entry.pod.uid == uid) else {
            return false;
        };
        let permit = &entry.permit;
        if eviction.shadow {
            return self.policies.evaluator.limiter().is_used(permit);
        }
        let at = permit.used_at();
        let is_earlier = (1..eviction.stages.decided).contains(&at);
        let is_left = || entry.is_empty() || entry.has_older_than(at);
        permit.is_ending() || (is_earlier && is_left())
    }
}
