//! What follows the manager's events.

use evictd_engine::{NodeState, node_reclaim::ReclaimBy};
use evictd_manager::{
    Command, ManagerEvent, MitigationRequest, NodeReclaimOutcome, NodeReclaimRequest,
};
use evictd_store::record::Record;

use crate::daemon::Agent;

impl Agent {
    pub fn handle_manager_events(&mut self) {
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
            ManagerEvent::NodeReclaim(request) => self.handle_reclaim(request),
            ManagerEvent::NodeReclaimed(reclaimed) => self.handle_reclaimed(&reclaimed),
            ManagerEvent::Mitigate(request) => self.mitigate(*request),
            ManagerEvent::Mitigated(mitigation) => {
                let record = self.eviction_log.record_mitigation(&mitigation);
                self.append_to_journal(record);
            }
            ManagerEvent::MetInForce(met) => {
                self.metrics.met_in_force();
                let record = self.eviction_log.record_met(met, self.config.shadow);
                self.append_to_journal(record);
            }
            ManagerEvent::NoCandidates {
                met,
                denied,
                urgent_only,
            } => {
                tracing::error!(
                    signal = %met.signal,
                    available = met.available,
                    threshold = met.threshold,
                    paused = self.policies.evaluator.limiter().is_paused(),
                    urgent_only,
                    denied,
                    "the threshold is met and no pod may be evicted"
                );
            }
            ManagerEvent::Stuck(entry) => {
                if let Some(record) = self.eviction_log.record_stuck(&entry) {
                    self.metrics.stuck();
                    self.append_to_journal(record);
                }
            }
            ManagerEvent::FilesStay => tracing::warn!(
                "the files of evicted pods are not removed: others are evicted for files only where that is \
                 urgent"
            ),
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

    /// Handles a state of the node. In shadow mode the Node object stays as it is: the conditions that it would have go
    /// to the journal and an Event.
    fn handle_node_state(&mut self, state: NodeState) {
        let is_news = self.node_state.conditions != state.conditions;
        self.node_state = state;
        if self.config.shadow && is_news {
            let record = self.eviction_log.record_shadow_node(&self.node_state);
            self.append_to_journal(record);
        }
        self.publish_node_state();
    }

    /// Has the Node object show the conditions; not in shadow mode.
    pub fn publish_node_state(&self) {
        if let Some(cluster) = self.pod_source.cluster() {
            cluster.set_shadow(self.config.shadow);
            if !self.config.shadow {
                cluster.node_state(self.node_state.clone());
            }
        }
    }

    fn handle_reclaim(&self, request: NodeReclaimRequest) {
        let what: Vec<_> = request.what.iter().map(|w| w.as_str()).collect();
        match request.by {
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
                    self.manager.send(Command::NodeReclaimDone(None));
                }
            }
        }
    }

    /// Has a mitigation step taken, on a thread of its own.
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

    fn handle_reclaimed(&mut self, reclaimed: &NodeReclaimOutcome) {
        if let Some(cri) = &self.manager.cri {
            cri.note(reclaimed.is_enough);
        }
        let record = self.eviction_log.record_reclaimed(reclaimed);
        self.append_to_journal(record);
    }
}
