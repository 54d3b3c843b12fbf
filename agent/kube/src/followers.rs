//! What the agent follows besides its pods: policies, the labels of namespaces that they ask for, pauses, and the fleet
//! brake.

use std::{sync::Arc, time::Duration};

use evictd_config::ClusterConfig;
use evictd_engine::units::nanos;
use evictd_policy::{PauseState, PolicyEvaluator, PolicyStore, evaluator::ObjectReader};
use evictd_sys::clock::monotonic_ns;
use tokio::{sync::watch as channel, task::JoinHandle};

use super::client::ApiClient;
use crate::{
    cluster_addresses,
    fleet_brake::FleetBrake,
    pause,
    policy_status::{SPREAD, StatusWriter},
    watch::{namespaces, policies, tenants},
};

/// Time for which what is not urgent waits for policies that no agent of this node has known.
const MAX_POLICY_WAIT: Duration = Duration::from_secs(60);

/// All of them, until it is dropped.
pub struct Followers {
    tasks: Vec<JoinHandle<()>>,
    evaluator: Arc<PolicyEvaluator>,
    /// True when the server has answered: policies and pauses.
    answers: Vec<channel::Receiver<bool>>,
    namespaces: channel::Receiver<namespaces::Settled>,
    fleet: Option<Arc<FleetBrake>>,
}

impl Followers {
    /// Starts them.
    pub fn start(
        client: &Arc<ApiClient>,
        config: &ClusterConfig,
        policies: &Arc<PolicyStore>,
        pauses: &Arc<PauseState>,
        fleet: Option<Arc<FleetBrake>>,
    ) -> Self {
        let evaluator = Arc::clone(policies.evaluator());
        evaluator.connect(Arc::clone(client) as Arc<dyn ObjectReader>);
        let writer = Arc::new(StatusWriter::new(Arc::clone(client), SPREAD));
        let (listed, policies_listed) = channel::channel(false);
        let (seen, node) = channel::channel(false);
        let (settled, namespaces) = channel::channel(None);
        let mut tasks = vec![
            tokio::spawn(policies::run(
                Arc::clone(client),
                Arc::clone(policies),
                Arc::clone(&writer),
                listed,
            )),
            tokio::spawn(async move { writer.run().await }),
            tokio::spawn(namespaces::run(
                Arc::clone(client),
                Arc::clone(&evaluator),
                settled,
            )),
            tokio::spawn(pause::of_node(
                Arc::clone(client),
                config.node_name.clone(),
                Arc::clone(pauses),
                seen,
            )),
            tokio::spawn(cluster_addresses::run(
                Arc::clone(client),
                Arc::clone(&evaluator),
                config.service_networks.clone(),
                cluster_addresses::REFRESH,
            )),
        ];
        let mut answers = vec![policies_listed, node];
        if let Some(map) = &config.pause_config_map {
            let (seen, config_map) = channel::channel(false);
            tasks.push(tokio::spawn(pause::of_config_map(
                Arc::clone(client),
                map.clone(),
                Arc::clone(pauses),
                seen,
            )));
            answers.push(config_map);
        }
        if let Some(fleet) = &fleet {
            tasks.push(tokio::spawn(Arc::clone(fleet).run()));
        }
        if config.tenant_grace.is_some() {
            let (seen, tenants) = channel::channel(false);
            tasks.push(tokio::spawn(tenants::run(
                Arc::clone(client),
                Arc::clone(policies),
                seen,
            )));
            answers.push(tenants);
        }
        Self {
            tasks,
            evaluator,
            answers,
            namespaces,
            fleet,
        }
    }

    /// This node's part of the fleet brake, if there is one.
    pub(crate) fn fleet(&self) -> Option<&Arc<FleetBrake>> {
        self.fleet.as_ref()
    }

    /// Keeps what the policies say.
    pub(crate) fn evaluator(&self) -> &Arc<PolicyEvaluator> {
        &self.evaluator
    }

    /// Ends when the policies, what they need of namespaces, and the pauses of evictions are read, or the API server
    /// refuses to list them.
    pub async fn settled(&mut self) {
        let (answers, namespaces) = (&mut self.answers, &mut self.namespaces);
        settle(answers, namespaces, &self.evaluator).await;
    }

    /// Does this once that is so.
    pub fn when_settled(&mut self, act: impl FnOnce() + Send + 'static) {
        let (mut answers, mut namespaces) = (self.answers.clone(), self.namespaces.clone());
        let evaluator = Arc::clone(&self.evaluator);
        self.tasks.push(tokio::spawn(async move {
            settle(&mut answers, &mut namespaces, &evaluator).await;
            act();
        }));
    }

    /// Lets what is not urgent wait until that is so, but not for long.
    pub fn hold_until_settled(&mut self) {
        let evaluator = Arc::clone(&self.evaluator);
        let until = monotonic_ns().saturating_add(nanos(MAX_POLICY_WAIT));
        evaluator.limiter().await_policies(until);
        self.when_settled(move || evaluator.limiter().await_policies(0));
    }
}

async fn settle(
    answers: &mut [channel::Receiver<bool>],
    namespaces: &mut channel::Receiver<namespaces::Settled>,
    evaluator: &PolicyEvaluator,
) {
    // The senders live as long as the tasks, which end with this.
    for answer in answers {
        let _ = answer.wait_for(|settled| *settled).await;
    }
    let is_settled = |keys: &namespaces::Settled| *keys == Some(evaluator.namespace_keys());
    let _ = namespaces.wait_for(is_settled).await;
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
