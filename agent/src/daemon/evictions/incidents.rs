//! Incidents: which other pods were there when a pod was evicted, and what was seen before and after.

use std::sync::{Arc, atomic::Ordering};

use evictd_engine::{
    ManagedPod as _, Pod, PodUsage, RankKey, Ranked, Ranking, Resource, Signal, Usages,
    model::settings::{Mode, RankingStrategy},
    oom_badness,
    pace::PaceInputs,
    recorder::SignalSample,
};
use evictd_node::pods::table::PodEntry;
use evictd_policy::evaluator::Explanation;
use evictd_store::{
    incident::{BEFORE_NS, Incident, RankedBy, RankedPod},
    record::{EvictionRecord, Record},
};
use evictd_sys::clock::monotonic_ns;

use crate::daemon::Agent;

/// Pods that an incident lists, the first in the order of eviction; besides them only those that the report names.
const PODS: usize = 16;

/// Working set of a pod now, in bytes; `None` if its cgroup is gone.
fn working_set(entry: &Arc<PodEntry>) -> Option<u64> {
    let memory = entry.open_memory().ok()?;
    Some(memory.read().ok()?.working_set())
}

impl Agent {
    /// Begins the incident of an eviction, or finishes it when the victim's end is known.
    ///
    /// `pace_inputs` is what the moment of the eviction was decided from.
    pub fn note_incident(&mut self, record: &Record, pace_inputs: Option<PaceInputs>) {
        match record {
            Record::Evicted(eviction) => self.begin(Incident {
                pace_inputs,
                ..Incident::new(eviction.as_ref().clone())
            }),
            Record::Finished(finish) => self.incidents.finish(monotonic_ns(), finish),
            _ => {}
        }
    }

    /// Adds the node's other pods and the samples so far.
    pub fn begin(&mut self, mut incident: Incident) {
        self.describe_pods(&mut incident);
        let samples = self.samples();
        self.incidents.begin(monotonic_ns(), incident, &samples);
    }

    /// Begins the incidents of new soft evictions, and finishes those whose pods have ended.
    fn follow_requested(&mut self) {
        self.take_requests();
        let pods = &self.pods;
        self.incidents.find_gone(monotonic_ns(), |uid| {
            let entry = pods.entry(uid);
            entry.is_none_or(|entry| entry.is_empty())
        });
    }

    /// Has the incidents written that are over by a time, in nanoseconds of CLOCK_MONOTONIC.
    pub fn write_incidents(&mut self, by: u64) {
        self.follow_requested();
        let mut over = self.incidents.due(by);
        if over.is_empty() {
            return;
        }
        for ranked_pod in over.iter_mut().flat_map(|incident| &mut incident.pods) {
            let entry = self.pods.entry(&ranked_pod.uid);
            // A victim's cgroup goes with it.
            let used = entry.and_then(working_set);
            ranked_pod.usage_after = used.or(ranked_pod.evicted.then_some(0));
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

    fn samples(&self) -> Vec<SignalSample> {
        let since = monotonic_ns().saturating_sub(BEFORE_NS * 2);
        let mut samples = self.fastpath.status.recorder().since(since);
        samples.extend(self.manager.recorder.since(since));
        samples
    }

    /// The pods in the order of eviction, where memory is short, and the one that the OOM killer would take; the victim
    /// with what it used when it was chosen.
    fn describe_pods(&self, incident: &mut Incident) {
        let eviction = &incident.eviction;
        let Ok(signal) = eviction.signal.parse::<Signal>() else {
            return;
        };
        if signal.resource() != Resource::Memory {
            return;
        }
        let usages = self.working_sets(eviction);
        let ranking = Ranking {
            strategy: self.config.ranking_strategy,
            signal,
            layout: self.manager.layout,
        };
        let read = monotonic_ns();
        // As policies have it at this moment.
        let in_order = |entry: &Arc<PodEntry>| Pod {
            order: entry.permit.order(),
            ..entry.pod.clone()
        };
        let pods: Vec<Pod> = self.pods.entries.iter().map(in_order).collect();
        let ranked = ranking.order(&pods, &usages);
        let by_kubelet = Self::choice_of_kubelet(&ranked);
        let scored_by = self.memory.node.kubelet_capacity();
        let by_oom_killer = self.choice_of_oom_killer(&ranked, scored_by);
        let chosen = [by_kubelet, by_oom_killer];
        let is_chosen = |uid: &str| chosen.iter().flatten().any(|pod| pod.uid == uid);
        let is_shown = |(position, ranked): &(usize, &Ranked<'_>)| {
            let uid = &ranked.pod.uid;
            *position < PODS || *uid == eviction.uid || is_chosen(uid)
        };
        let policies = self.policies.evaluator.explain();
        let shown = ranked.iter().enumerate().filter(is_shown);
        let ranked_pod = |(position, ranked): (usize, &Ranked<'_>)| {
            let explanation = policies
                .iter()
                .find(|explanation| explanation.uid == ranked.pod.uid);
            RankedPod {
                oom_score_adj: Some(ranked.pod.oom_score_adj(scored_by)),
                place: (position >= PODS).then_some(position + 1),
                ..self.ranked_pod(ranked, explanation, incident)
            }
        };
        let pods = shown.map(ranked_pod).collect();
        let mut names = RankingStrategy::CHOICES.into_iter();
        let strategy = names.find(|(_, strategy)| *strategy == self.config.ranking_strategy);
        incident.kubelet_victim = by_kubelet.map(Pod::to_string);
        incident.oom_victim = by_oom_killer.map(Pod::to_string);
        incident.ranked_by = strategy.map(|(name, _)| RankedBy {
            strategy: name.to_owned(),
            read,
        });
        incident.pods = pods;
        incident.capacity = Some(self.memory.node.capacity());
    }

    /// Reads the working set of each pod now; that of an eviction's victim is from when it was chosen.
    fn working_sets(&self, eviction: &EvictionRecord) -> Usages {
        let usage = |entry: &Arc<PodEntry>| {
            let usage = match entry.pod.uid == eviction.uid {
                true => Some(eviction.working_set),
                false => working_set(entry),
            };
            let usage = PodUsage {
                memory_working_set: Some(usage?),
                ..PodUsage::default()
            };
            Some((entry.pod.uid.clone(), usage))
        };
        self.pods.entries.iter().filter_map(usage).collect()
    }

    /// The pod that the kubelet would evict: by its own order, without policies.
    fn choice_of_kubelet<'a>(ranked: &[Ranked<'a>]) -> Option<&'a Pod> {
        let may_go = ranked
            .iter()
            .filter(|ranked| !ranked.pod.is_protected(Mode::Kubelet));
        let first = may_go.min_by_key(|ranked| {
            RankKey::for_kubelet(ranked.inputs.priority, ranked.inputs.request, ranked.usage)
        });
        first.map(|ranked| ranked.pod)
    }

    fn choice_of_oom_killer<'a>(&self, ranked: &[Ranked<'a>], scored_by: u64) -> Option<&'a Pod> {
        let capacity = self.memory.node.capacity();
        let badness = |ranked: &Ranked<'a>| {
            let points = oom_badness(ranked.usage?, ranked.pod.oom_score_adj(scored_by), capacity);
            Some((points, ranked.pod.to_string(), ranked.pod))
        };
        let worst = ranked.iter().filter_map(badness);
        let worst = worst.max_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        worst.map(|(.., pod)| pod)
    }

    /// Determines what decided where a pod comes in the order of eviction, and whether it could go.
    fn ranked_pod(
        &self,
        ranked: &Ranked<'_>,
        explanation: Option<&Explanation>,
        incident: &Incident,
    ) -> RankedPod {
        let eviction = &incident.eviction;
        let pod = ranked.pod;
        let evicted = pod.uid == eviction.uid;
        let entry = self.pods.entry(&pod.uid);
        // As for the planner (`state_for`).
        let asks = incident.asked.is_some() && self.pod_source.cluster().is_some();
        let cannot_be_deleted = asks && !pod.can_be_deleted();
        // A limit that this eviction has used up did not spare its pod.
        let spared = explanation.filter(|explanation| !explanation.may_go && !evicted);
        let reason = |explanation: &Explanation| explanation.reason.clone().unwrap_or_default();
        RankedPod {
            pod: pod.to_string(),
            uid: pod.uid.clone(),
            usage: ranked.usage,
            request: ranked.inputs.request,
            priority: ranked.inputs.priority,
            priority_unknown: ranked.inputs.priority_unknown,
            order: ranked.inputs.order,
            qos_class: ranked.inputs.qos.as_str().to_owned(),
            evicted,
            usage_after: None,
            oom_score_adj: None,
            protected: pod.is_protected(self.config.mode) || cannot_be_deleted,
            spared: spared.map(reason),
            terminating: !evicted && self.was_on_its_way(&pod.uid, eviction),
            empty: !evicted && entry.is_some_and(|entry| entry.is_empty()),
            place: None,
        }
    }

    /// Whether a pod was evicted before another one and something was left of it: it was no candidate.
    fn was_on_its_way(&self, uid: &str, eviction: &EvictionRecord) -> bool {
        let Some(entry) = self.pods.entry(uid) else {
            return false;
        };
        let state = &entry.eviction_state;
        if eviction.shadow {
            return self
                .policies
                .evaluator
                .limiter()
                .is_evicted_or_chosen(state);
        }
        let at = state.evicted_at();
        let is_earlier = (1..eviction.stages.decided).contains(&at);
        let is_left = || entry.is_empty() || entry.has_older_than(at);
        state.is_ending() || (is_earlier && is_left())
    }
}
