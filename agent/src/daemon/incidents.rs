//! Incidents: which other pods were there when a pod was evicted, and what was seen before and after.

use std::sync::Arc;

use evictd_engine::{PodUsage, Ranking, Resource, Signal, Usages, history::Sample, pace::Judged};
use evictd_node::pods::table::Entry;
use evictd_store::{
    incident::{BEFORE_NS, Incident, RankedPod},
    record::{EvictionRecord, Record},
};
use evictd_sys::clock::monotonic_ns;

use super::Agent;

/// Pods that are told of, in the order of eviction.
const PODS: usize = 16;

impl Agent {
    /// An eviction begins or is over.
    ///
    /// `judged` is what an eviction by the fast path was decided from.
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
        incident.pods = self.standings(&incident.eviction);
        if incident.asked.is_some() {
            // It may last longer than the recorder remembers.
            incident.see(&self.samples());
        }
        self.incidents.begin(monotonic_ns(), incident);
    }

    /// Takes note of who goes because he was asked to, and of who has gone.
    fn follow_asked(&mut self) {
        while let Some(asked) = self.pod_source.going() {
            self.begin(Incident::of_asked(asked));
        }
        let entries = &self.entries;
        self.incidents.find_gone(monotonic_ns(), |uid| {
            let entry = entries.iter().find(|entry| entry.pod.uid == uid);
            entry.is_none_or(|entry| entry.killer.is_empty())
        });
    }

    /// Writes down those that are over by this time, away from this thread.
    pub(super) fn write_incidents(&mut self) {
        if let Some(write) = self.incidents_over(monotonic_ns()) {
            tokio::task::spawn_blocking(write);
        }
    }

    /// What writes down those that are over by a time, if there are any; it may take its time.
    pub(super) fn incidents_over(&mut self, by: u64) -> Option<impl FnOnce() + Send + use<>> {
        self.follow_asked();
        let over = self.incidents.due(by);
        if over.is_empty() {
            return None;
        }
        let (writer, samples) = (self.incidents.writer(), self.samples());
        Some(move || writer.write(over, &samples))
    }

    fn samples(&self) -> Vec<Sample> {
        let since = monotonic_ns().saturating_sub(BEFORE_NS * 2);
        let mut samples = self.events.recorder().since(since);
        samples.extend(self.seen_by_manager.since(since));
        samples
    }

    /// The pods in the order of eviction, where memory is short; the victim with what it used when it was chosen.
    fn standings(&self, eviction: &EvictionRecord) -> Vec<RankedPod> {
        let Ok(signal) = eviction.signal.parse::<Signal>() else {
            return Vec::new();
        };
        if signal.resource() != Resource::Memory {
            return Vec::new();
        }
        let is_victim = |uid: &str| uid == eviction.uid;
        let usage = |entry: &Arc<Entry>| {
            let read = entry.memory.read().map(|reading| reading.working_set());
            let usage = match is_victim(&entry.pod.uid) {
                true => Some(eviction.working_set),
                false => read.ok(),
            };
            let usage = PodUsage {
                memory_working_set: Some(usage?),
                ..PodUsage::default()
            };
            Some((entry.pod.uid.clone(), usage))
        };
        let usages: Usages = self.entries.iter().filter_map(usage).collect();
        let ranking = Ranking {
            strategy: self.config.ranking_strategy,
            signal,
            layout: self.layout,
        };
        let pods = self.entries.iter().map(|entry| &entry.pod);
        let ranked = ranking.order(pods, &usages).into_iter().take(PODS);
        let standing = |ranked: evictd_engine::Ranked<'_>| RankedPod {
            pod: ranked.pod.to_string(),
            usage: ranked.usage,
            request: ranked.inputs.request,
            priority: ranked.inputs.priority,
            qos_class: ranked.inputs.qos.as_str().to_owned(),
            evicted: is_victim(&ranked.pod.uid),
        };
        ranked.map(standing).collect()
    }
}
