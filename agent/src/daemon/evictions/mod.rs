//! What follows an eviction: the victim's end is seen to, the record and the incident are made, the journal has them.
//! After a restart [`restore`] goes on with what an earlier agent has begun. Evictions come to the main thread on five
//! routes:
//!
//! | step | fast path kills | manager kills | request, manifest | request, cluster | the kubelet evicts |
//! | --- | --- | --- | --- | --- | --- |
//! | begins in | `handle_fastpath_events` | `handle_eviction` | `handle_soft_request` | `take_requests` | `handle_kubelet_evictions` |
//! | metrics | `count_event` | at once | when it has ended | when the API server agrees | a counter of its own |
//! | OOM attribution | `note`, with its end | `note_eviction` | `begin_requested` | `begin_requested` | `note_eviction` |
//! | policies in shadow mode | `log_objection` | `log_objection` | `begin_requested` | `begin_requested` | no: policies do not bind the kubelet |
//! | the loops get it | manager | fast path, by `on_kill` | manager, when it has ended | manager, by `kube` | both |
//! | its end is seen to | `follow_killed_pod` | `follow_killed_pod` | `GracefulEnd` | no: the kubelet ends it | no |
//! | incident | `note_incident` | `note_incident` | `begin_requested` | `begin_requested` | no |
//! | journal | here | here | here | by `kube`, beforehand | here |
//!
//! In shadow mode a request takes the manifest's route, with a cluster as well, and is counted at once.

mod ensure_dead;
mod eviction_log;
mod incidents;
mod message;
pub mod restore;
mod volumes;

use std::{sync::Arc, time::Duration};

use evictd_engine::{
    Cause,
    kubelet_times::MONITORING_INTERVAL_NS,
    message::resource_of,
    record::{Departure, KillOutcome},
    units::nanos,
};
use evictd_fastpath::{FastPathEvent, KilledBy, OtherKill};
use evictd_manager::{Command, ManagerEviction, SoftEvictionRequest};
use evictd_node::pods::table::PodEntry;
use evictd_store::{
    incident::Incident,
    record::{Record, RequestRecord, oom_kill::PodName, resource_of_signal},
};
use evictd_sys::clock::monotonic_ns;

use super::{
    Agent, TICK,
    oom::{Ending, NotedEviction},
};
use ensure_dead::KilledPod;
use eviction_log::log_request;

pub use ensure_dead::EnsureDead;
pub use eviction_log::EvictionLog;
pub use message::MessageBuilder;
pub use volumes::clear;

impl Agent {
    pub(super) fn handle_fastpath_events(&mut self) {
        // To describe all pods takes a while: no DELETE waits for that.
        let mut incidents = Vec::new();
        while let Some(event) = self.fastpath.events.next() {
            self.count_event(&event);
            self.oom.attributor.note(&event);
            if let FastPathEvent::Evicted(evicted) = &event {
                self.policies
                    .log_objection(&PodName::from(&evicted.pod.pod));
                self.manager.send(Command::EvictedByFastPath {
                    uid: evicted.pod.pod.uid.clone(),
                    signal: evicted.signal,
                    available: evicted.kubelet_available.unwrap_or(evicted.available),
                    outcome: evicted.outcome,
                });
                self.follow_killed_pod(&evicted.pod, evicted.stages.signalled, evicted.outcome);
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
            self.append_to_journal(record.clone());
            incidents.push((record, pace_inputs));
        }
        for (record, pace_inputs) in incidents {
            self.note_incident(&record, pace_inputs);
        }
    }

    /// Counts an event of the fast path.
    fn count_event(&self, event: &FastPathEvent) {
        match event {
            FastPathEvent::Evicted(e) => {
                let (pod, signal) = (&e.pod.pod, e.signal.as_str());
                self.metrics
                    .evicted(pod, signal, e.stages, e.outcome, Some(e.number));
            }
            FastPathEvent::Finished(finished) => self.metrics.finished(finished),
            FastPathEvent::MetInForce { .. } => self.metrics.met_in_force(),
            _ => {}
        }
    }

    pub(super) fn handle_eviction(&mut self, decided: &ManagerEviction) {
        let (signalled, outcome) = (decided.stages.signalled, decided.outcome);
        self.metrics.evicted(
            &decided.pod.pod,
            &decided.signal,
            decided.stages,
            outcome,
            None,
        );
        let pod = PodName::from(&decided.pod.pod);
        self.policies.log_objection(&pod);
        self.oom.attributor.note_eviction(NotedEviction {
            pod,
            signalled,
            grace: Duration::ZERO,
            ending: outcome.into(),
            resource: match decided.eviction.cause {
                Cause::Pressure(signal) => Some(signal.resource()),
                Cause::LocalStorage(_) => None,
            },
        });
        let record = self.eviction_log.record_manager_eviction(decided);
        self.follow_killed_pod(&decided.pod, signalled, outcome);
        let record = Record::evicted(record);
        let pace_inputs = decided.eviction.timing.as_ref().map(|t| t.pace_inputs);
        self.append_to_journal(record.clone());
        self.note_incident(&record, pace_inputs);
    }

    /// Follows a pod after SIGKILL: `ensure-dead` sees to its end and, without a kubelet, to its emptyDirs.
    fn follow_killed_pod(&mut self, pod: &Arc<PodEntry>, signalled: u64, outcome: KillOutcome) {
        if outcome == KillOutcome::Killed {
            self.ensure_dead.look_at(KilledPod {
                entry: Arc::clone(pod),
                signalled,
                left: self.pod_source.leftovers(&pod.pod.uid),
            });
        }
    }

    pub(super) fn handle_soft_request(&mut self, request: SoftEvictionRequest) {
        // Without a manager the agent ends: the next agent sends the request.
        if !self.manager.is_running() && !request.shadow {
            return;
        }
        let chosen = request.chosen.clone();
        let Some(choice) = request.candidates.first() else {
            self.manager
                .send(Command::SoftEvictionFinished { chosen, gone: None });
            return;
        };
        if let (Some(cluster), false) = (self.pod_source.cluster(), request.shadow) {
            if !cluster.request_soft(request.map(|entry| entry.pod.clone())) {
                self.manager
                    .send(Command::SoftEvictionFinished { chosen, gone: None });
            }
            return;
        }
        let (entry, eviction) = (Arc::clone(&choice.pod), choice.decision.clone());
        let mut record = RequestRecord::new(&entry.pod, &eviction, choice.reading);
        record.shadow = request.shadow;
        if request.shadow {
            self.metrics.requested(&record);
        }
        log_request(&record);
        self.begin_requested(record.clone());
        self.append_to_journal(Record::Requested(Box::new(record.clone())));
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
            let is_gone = end.run(&entry, record.grace(), left, || metrics.requested(&record));
            let gone = is_gone.then_some((eviction, Departure::Ended));
            manager.send(Command::SoftEvictionFinished { chosen, gone });
        });
    }

    /// A pod is requested to end, or would be in shadow mode.
    fn begin_requested(&mut self, record: RequestRecord) {
        let pod = PodName {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            uid: record.uid.clone(),
        };
        self.policies.log_objection(&pod);
        let incident = Incident::from_request(record);
        self.oom.attributor.note_eviction(NotedEviction {
            pod,
            signalled: incident.eviction.stages.signalled,
            grace: incident.grace().unwrap_or_default(),
            ending: match incident.eviction.shadow {
                true => Ending::Shadow,
                false => Ending::NotBySigkill,
            },
            resource: resource_of_signal(&incident.eviction.signal),
        });
        self.begin(incident);
    }

    /// Takes the soft evictions to which the API server has agreed, each once.
    pub(super) fn take_requests(&mut self) {
        while let Some(cluster) = self.pod_source.cluster_mut()
            && let Some(record) = cluster.next_request()
        {
            // The API server has agreed.
            log_request(&record);
            self.metrics.requested(&record);
            self.begin_requested(record);
        }
    }

    /// Takes the evictions by the kubelet: both loops count what they give back as pending. To be called before pods
    /// that are over leave the table.
    pub(super) fn handle_kubelet_evictions(&mut self) {
        let Some(cluster) = self.pod_source.cluster() else {
            return;
        };
        let connection = Arc::clone(cluster.connection());
        let evicted = cluster.kubelet_evictions();
        for record in self.eviction_log.record_kubelet_evictions(evicted) {
            connection.counters.kubelet_evictions.add();
            if let Record::KubeletEvicted(by_kubelet) = &record {
                tracing::info!(
                    pod = by_kubelet.pod(),
                    by_kubelet.message,
                    "the kubelet has evicted a pod"
                );
                let resource = resource_of(&by_kubelet.message);
                if let Some(entry) = self.pods.entry(&by_kubelet.uid) {
                    let now = monotonic_ns();
                    self.oom.attributor.note_eviction(NotedEviction {
                        pod: PodName::from(&entry.pod),
                        // The kubelet had begun before its status came here, at the last tick at the earliest.
                        signalled: now.saturating_sub(nanos(TICK)),
                        grace: Duration::ZERO,
                        ending: Ending::NotBySigkill,
                        resource,
                    });
                    self.fastpath.control.note_kill(OtherKill {
                        pod: Arc::clone(entry),
                        signalled: now,
                        by: KilledBy::Kubelet,
                        is_for_pressure: resource.is_some(),
                    });
                }
                // An eviction from a time without a watch is over.
                if is_recent(&by_kubelet.time) {
                    self.manager.send(Command::EvictedByKubelet {
                        uid: by_kubelet.uid.clone(),
                        resource,
                    });
                }
            }
            self.append_to_journal(record);
        }
    }
}

/// Whether less than the kubelet's monitoring interval has passed since a time of RFC 3339. One that lies ahead is of a clock
/// that has been set back since.
fn is_recent(time: &str) -> bool {
    let age = |time| jiff::Timestamp::now().duration_since(time).as_nanos();
    let time = time.parse::<jiff::Timestamp>();
    time.is_ok_and(|time| age(time).abs() < i128::from(MONITORING_INTERVAL_NS))
}
