//! What the manager has done or want done.

use std::{sync::Arc, time::Duration};

use evictd_engine::{EvictionDecision, NodeState, reclaim::ReclaimBy, soft::Departure};
use evictd_manager::{
    Command, CommandQueue, ManagerEvent, ManagerEviction, MitigationRequest, ReclaimRequest,
    Reclaimed, SoftEvictionRequest,
};
use evictd_store::record::{Record, RequestRecord};

use super::Agent;
use crate::daemon::{
    ensure_dead::end_asked,
    eviction_log::log_asked,
    oom::{Ending, name_of},
    pod_source::PodSource,
};

impl Agent {
    pub(super) fn handle_manager_events(&mut self) {
        while let Some(event) = self.manager.events.next() {
            self.handle_manager_event(event);
        }
    }

    fn handle_manager_event(&mut self, event: ManagerEvent) {
        match event {
            ManagerEvent::Evicted(decided) => self.handle_eviction(&decided),
            ManagerEvent::Soft(request) => self.handle_soft_request(*request),
            ManagerEvent::Node(state) => {
                tracing::info!(
                    conditions = ?state.conditions,
                    why = state.message,
                    "the node's conditions have changed"
                );
                self.handle_node_state(state);
            }
            ManagerEvent::Reclaim(request) => self.handle_reclaim(request),
            ManagerEvent::Reclaimed(reclaimed) => self.handle_reclaimed(&reclaimed),
            ManagerEvent::Mitigate(request) => self.mitigate(*request),
            ManagerEvent::Mitigated(mitigation) => {
                let record = self.eviction_log.record_mitigation(&mitigation);
                self.append_to_journal(record);
            }
            ManagerEvent::MetInForce {
                signal,
                available,
                threshold,
            } => {
                self.metrics.met_in_force();
                let record = self.eviction_log.record_met(signal, available, threshold);
                self.append_to_journal(record);
            }
            ManagerEvent::Stuck(entry) => {
                if let Some(record) = self.eviction_log.record_stuck(&entry) {
                    self.metrics.stuck();
                    self.append_to_journal(record);
                }
            }
            ManagerEvent::HookRefused(refusal) => {
                tracing::warn!(
                    refusal,
                    "a hook does not watch what it should: the sampler goes on alone"
                );
            }
            ManagerEvent::Recreated(recreation) => {
                tracing::warn!(
                    uid = recreation.uid,
                    count = recreation.count,
                    hold = ?recreation.hold,
                    "an evicted pod's owner has put another one here"
                );
                self.append_to_journal(Record::Recreated((&recreation).into()));
            }
        }
    }

    /// Handles a state of the node. In shadow mode the Node object stays as it is: what it would say goes to the
    /// journal and an Event.
    fn handle_node_state(&mut self, state: NodeState) {
        let is_news = self.node_state.conditions != state.conditions;
        self.node_state = state;
        if self.config.shadow && is_news {
            let record = self.eviction_log.record_shadow_node(&self.node_state);
            self.append_to_journal(record);
        }
        self.publish_node_state();
    }

    /// Has the node say what it should; nothing in shadow mode.
    pub(super) fn publish_node_state(&self) {
        if let PodSource::Cluster { cluster, .. } = &self.pod_source {
            cluster.set_shadow(self.config.shadow);
            if !self.config.shadow {
                cluster.node_state(self.node_state.clone());
            }
        }
    }

    fn handle_reclaim(&self, request: ReclaimRequest) {
        let what: Vec<_> = request.what.iter().map(|w| w.as_str()).collect();
        match request.of {
            // It has the same thresholds, and reclaims when it looks the next time.
            ReclaimBy::Kubelet => {
                tracing::info!(?what, "the kubelet may reclaim before pods go");
            }
            ReclaimBy::None => tracing::warn!(
                ?what,
                "shadow mode: the kubelet or the container runtime would reclaim before pods go"
            ),
            ReclaimBy::Runtime => {
                tracing::info!(?what, "the container runtime reclaims before pods go");
                let known = self.pod_source.known_pods();
                let what = request.what;
                let ask = evictd_cri::Request { what, known };
                if !self.manager.cri.as_ref().is_some_and(|cri| cri.ask(ask)) {
                    self.manager.send(Command::Reclaimed(None));
                }
            }
        }
    }

    /// Has a step taken away from this thread.
    fn mitigate(&self, request: MitigationRequest) {
        if request.shadow {
            let (step, pods) = (request.action.step(), request.action.pods().len());
            tracing::warn!(
                ?step,
                pods,
                "shadow mode: this step would be taken before a pod is evicted"
            );
            return;
        }
        self.manager.steps.take(request);
    }

    fn handle_reclaimed(&mut self, reclaimed: &Reclaimed) {
        if let Some(cri) = &self.manager.cri {
            cri.note(reclaimed.is_enough);
        }
        let record = self.eviction_log.record_reclaimed(reclaimed);
        self.append_to_journal(record);
    }

    fn handle_eviction(&mut self, decided: &ManagerEviction) {
        self.count_manager_eviction(decided);
        let (signalled, shadow) = (decided.stages.signalled, decided.shadow);
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

    fn handle_soft_request(&mut self, request: SoftEvictionRequest) {
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
        let (message, grace) = (&eviction.message, eviction.grace_to_ask(&entry.pod));
        let asked = RequestRecord::new(&entry.pod, message, choice.reading, grace);
        let mut asked = asked.at_this_time(eviction.timing.as_deref());
        asked.shadow = request.shadow;
        if request.shadow {
            self.metrics.asked(&asked);
        }
        let goes = asked.clone();
        log_asked(&asked);
        let record = Record::Asked(Box::new(asked));
        self.note_incident(&record, None);
        self.append_to_journal(record);
        if request.shadow {
            return;
        }
        let left = self.pod_source.leftovers(&entry.pod.uid);
        if !self.manager.is_running() {
            return;
        }
        let manager = Arc::clone(&self.manager.commands);
        let metrics = Arc::clone(&self.metrics);
        tokio::task::spawn_blocking(move || {
            let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            end_asked(&entry, grace, &left, || metrics.asked(&goes));
            settle(&manager, chosen, eviction);
        });
    }
}

fn settle(manager: &CommandQueue, chosen: String, gone: EvictionDecision) {
    let gone = Some((gone, Departure::Ended));
    manager.send(Command::SoftEvictionFinished { chosen, gone });
}
