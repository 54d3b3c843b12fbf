//! What follows an eviction, by the five routes on which evictions come to this thread.
//!
//! | step | fast path kills | manager kills | asked, manifest | asked, cluster | the kubelet evicts |
//! | --- | --- | --- | --- | --- | --- |
//! | begins in | `handle_fastpath_events` | `handle_eviction` | `handle_soft_request` | `take_requests` | `handle_kubelet_evictions` |
//! | metrics | `count_event` | at once | when it has ended | when the API server agrees | a counter of its own |
//! | OOM attribution | `note`, with its end | `note_eviction` | `begin_asked` | `begin_asked` | `note_eviction` |
//! | policies in shadow mode | `log_objection` | `log_objection` | `begin_asked` | `begin_asked` | no: they are not asked |
//! | the loops are told | manager | fast path, by `on_kill` | manager, when it has ended | manager, by `kube` | both |
//! | its end is seen to | `follow_killed_pod` | `follow_killed_pod` | `GracefulEnd` | no: the kubelet ends it | no |
//! | incident | `note_incident` | `note_incident` | `begin_asked` | `begin_asked` | no |
//! | journal | here | here | here | by `kube`, beforehand | here |
//!
//! In shadow mode a pod that would be asked takes the manifest's route, with a cluster as well, and is counted at once.

use std::{sync::Arc, time::Duration};

use evictd_engine::{
    message::resource_of, pace::MONITORING_INTERVAL_NS, soft::Departure, units::nanos,
};
use evictd_fastpath::{FastPathEvent, KilledBy};
use evictd_manager::{Command, FastPathOutcome, ManagerEviction, SoftEvictionRequest};
use evictd_node::pods::table::PodEntry;
use evictd_store::{
    incident::Incident,
    record::{Record, RequestRecord, oom_kill::PodName},
};
use evictd_sys::clock::monotonic_ns;

use super::{Agent, TICK};
use crate::daemon::{
    ensure_dead::KilledPod,
    eviction_log::log_asked,
    oom::{Ending, name_of},
    pod_source::PodSource,
};

impl Agent {
    pub(super) fn handle_fastpath_events(&mut self) {
        while let Some(event) = self.fastpath.events.next() {
            self.count_event(&event);
            self.oom.attributor.note(&event);
            if let FastPathEvent::Evicted(evicted) = &event {
                self.policies.log_objection(&name_of(&evicted.pod));
                let outcome = match (evicted.shadow, evicted.refused) {
                    (true, _) => FastPathOutcome::Shadow,
                    (false, None) => FastPathOutcome::Killed,
                    (false, Some(_)) => FastPathOutcome::Refused,
                };
                self.manager.send(Command::EvictedByFastPath {
                    uid: evicted.pod.pod.uid.clone(),
                    signal: evicted.signal,
                    available: evicted.available,
                    outcome,
                });
                self.follow_killed_pod(&evicted.pod, evicted.stages.signalled, evicted.shadow);
            }
            let Some(record) = self.eviction_log.record(&event) else {
                continue;
            };
            if let Record::Stuck(_) = record {
                self.metrics.stuck();
            }
            let pace_inputs = match &event {
                FastPathEvent::Evicted(evicted) => {
                    (!evicted.by_kernel).then_some(evicted.pace_inputs)
                }
                _ => None,
            };
            self.note_incident(&record, pace_inputs);
            self.append_to_journal(record);
        }
    }

    /// Counts an event of the fast path.
    fn count_event(&self, event: &FastPathEvent) {
        match event {
            FastPathEvent::Evicted(e) => {
                let signal = e.signal.as_str();
                self.metrics.evicted(
                    &e.pod.pod,
                    signal,
                    e.shadow,
                    e.stages,
                    e.refused.is_some(),
                    Some(e.number),
                );
            }
            FastPathEvent::Finished(finished) => self.metrics.finished(finished),
            FastPathEvent::MetInForce { .. } => self.metrics.met_in_force(),
            _ => {}
        }
    }

    pub(super) fn handle_eviction(&mut self, decided: &ManagerEviction) {
        let (signalled, shadow) = (decided.stages.signalled, decided.shadow);
        self.metrics.evicted(
            &decided.pod.pod,
            &decided.signal,
            shadow,
            decided.stages,
            decided.refused.is_some(),
            None,
        );
        let how = match (shadow, decided.refused) {
            (true, _) => Ending::Shadow,
            (false, None) => Ending::Killed,
            (false, Some(_)) => Ending::Asked,
        };
        let pod = name_of(&decided.pod);
        self.policies.log_objection(&pod);
        let attributor = &mut self.oom.attributor;
        attributor.note_eviction(pod, signalled, Duration::ZERO, how);
        let record = self.eviction_log.record_manager_eviction(decided);
        self.follow_killed_pod(&decided.pod, signalled, shadow);
        let record = Record::evicted(record);
        let pace_inputs = decided.eviction.timing.as_ref().map(|t| t.pace_inputs);
        self.note_incident(&record, pace_inputs);
        self.append_to_journal(record);
    }

    /// What follows every SIGKILL, or would in shadow mode: the pod stays known, is seen to be dead, and its emptyDirs
    /// are emptied where there is no kubelet.
    fn follow_killed_pod(&mut self, pod: &Arc<PodEntry>, signalled: u64, shadow: bool) {
        self.pods.inherit_permit(pod);
        if !shadow {
            self.ensure_dead.look_at(KilledPod {
                entry: Arc::clone(pod),
                signalled,
                left: self.pod_source.leftovers(&pod.pod.uid),
            });
        }
    }

    pub(super) fn handle_soft_request(&mut self, request: SoftEvictionRequest) {
        // Without a manager the agent ends: the next one asks.
        if !self.manager.is_running() && !request.shadow {
            return;
        }
        let Some(choice) = request.candidates.first() else {
            return;
        };
        let chosen = request.chosen.clone();
        if let (PodSource::Cluster { cluster, .. }, false) = (&self.pod_source, request.shadow) {
            if !cluster.request_soft(request.map(|entry| entry.pod.clone())) {
                self.manager
                    .send(Command::SoftEvictionFinished { chosen, gone: None });
            }
            return;
        }
        let (entry, eviction) = (Arc::clone(&choice.pod), choice.decision.clone());
        let mut asked = RequestRecord::new(&entry.pod, &eviction, choice.reading);
        asked.shadow = request.shadow;
        if request.shadow {
            self.metrics.asked(&asked);
        }
        log_asked(&asked);
        self.begin_asked(asked.clone());
        self.append_to_journal(Record::Asked(Box::new(asked.clone())));
        if request.shadow {
            return;
        }
        let left = self.pod_source.leftovers(&entry.pod.uid);
        if !self.manager.is_running() {
            return;
        }
        let manager = Arc::clone(&self.manager.commands);
        let (end, metrics) = (self.ensure_dead.graceful_end(), Arc::clone(&self.metrics));
        tokio::task::spawn_blocking(move || {
            let grace = u64::try_from(asked.grace_period_seconds).unwrap_or(0);
            let grace = Duration::from_secs(grace);
            let is_gone = end.run(&entry, grace, left, || metrics.asked(&asked));
            let gone = is_gone.then_some((eviction, Departure::Ended));
            manager.send(Command::SoftEvictionFinished { chosen, gone });
        });
    }

    /// A pod is asked to go, or would be.
    fn begin_asked(&mut self, asked: RequestRecord) {
        let pod = PodName {
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            uid: asked.uid.clone(),
        };
        self.policies.log_objection(&pod);
        let incident = Incident::of_asked(asked);
        let how = match incident.eviction.shadow {
            true => Ending::Shadow,
            false => Ending::Asked,
        };
        let (signalled, grace) = (
            incident.eviction.stages.signalled,
            incident.grace().unwrap_or_default(),
        );
        let attributor = &mut self.oom.attributor;
        attributor.note_eviction(pod, signalled, grace, how);
        self.begin(incident);
    }

    /// Takes note of pods that go because the API server has agreed, each once.
    pub(super) fn take_requests(&mut self) {
        while let Some(asked) = self.pod_source.next_soft_eviction() {
            // The API server has agreed.
            log_asked(&asked);
            self.metrics.asked(&asked);
            self.begin_asked(asked);
        }
    }

    /// What the kubelet evicts gives something back as well: both loops count it as pending. To be called before pods
    /// that are over leave the table.
    pub(super) fn handle_kubelet_evictions(&mut self) {
        let PodSource::Cluster { cluster, .. } = &self.pod_source else {
            return;
        };
        let connection = Arc::clone(cluster.connection());
        let evicted = cluster.kubelet_evictions();
        for record in self.eviction_log.record_kubelet_evictions(evicted) {
            connection.counters.kubelet_evictions.add();
            if let Record::KubeletEvicted(by_kubelet) = &record {
                tracing::info!(
                    pod = format!("{}/{}", by_kubelet.namespace, by_kubelet.name),
                    by_kubelet.message,
                    "the kubelet has evicted a pod"
                );
                if let Some(entry) = self.pods.entry(&by_kubelet.uid) {
                    let now = monotonic_ns();
                    // The kubelet had begun before its status came here: at the last look at the earliest.
                    let begun = now.saturating_sub(nanos(TICK));
                    let (pod, attributor) = (name_of(entry), &mut self.oom.attributor);
                    attributor.note_eviction(pod, begun, Duration::ZERO, Ending::Asked);
                    self.fastpath
                        .control
                        .note_kill(entry, now, KilledBy::Kubelet);
                }
                // One of a time in which the watch was away is over.
                if is_recent(&by_kubelet.time) {
                    self.manager.send(Command::EvictedByKubelet {
                        uid: by_kubelet.uid.clone(),
                        resource: resource_of(&by_kubelet.message),
                    });
                }
            }
            self.append_to_journal(record);
        }
    }
}

/// Whether less than the kubelet's monitoring interval has passed since a time of RFC 3339.
fn is_recent(time: &str) -> bool {
    let age = |time| jiff::Timestamp::now().duration_since(time).as_nanos();
    let time = time.parse::<jiff::Timestamp>();
    time.is_ok_and(|time| age(time) < i128::from(MONITORING_INTERVAL_NS))
}
