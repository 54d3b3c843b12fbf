//! What the agent follows besides its pods: policies, the labels of namespaces that they ask for, and brakes.

use std::sync::Arc;

use evictd_config::ClusterConfig;
use evictd_policy::{PauseState, PolicyEvaluator, PolicyStore, evaluator::ObjectReader};
use tokio::{sync::watch as channel, task::JoinHandle};

use super::client::ApiClient;
use crate::{
    pause,
    policy_status::{SPREAD, StatusWriter},
    watch::{namespaces, policies},
};

/// All of them, until it is dropped.
pub struct Followers {
    tasks: Vec<JoinHandle<()>>,
    keeper: Arc<PolicyEvaluator>,
    /// True when the server has answered: policies and brakes.
    answers: Vec<channel::Receiver<bool>>,
    namespaces: channel::Receiver<namespaces::Settled>,
}

impl Followers {
    /// Starts them.
    pub fn start(
        connection: &Arc<ApiClient>,
        config: &ClusterConfig,
        catalogue: &Arc<PolicyStore>,
        brakes: &Arc<PauseState>,
    ) -> Self {
        let keeper = Arc::clone(catalogue.evaluator());
        keeper.connect(Arc::clone(connection) as Arc<dyn ObjectReader>);
        let writer = Arc::new(StatusWriter::new(Arc::clone(connection), SPREAD));
        let (listed, policies) = channel::channel(false);
        let (seen, node) = channel::channel(false);
        let (settled, namespaces) = channel::channel(None);
        let mut tasks = vec![
            tokio::spawn(policies::run(
                Arc::clone(connection),
                Arc::clone(catalogue),
                Arc::clone(&writer),
                listed,
            )),
            tokio::spawn(async move { writer.run().await }),
            tokio::spawn(namespaces::run(
                Arc::clone(connection),
                Arc::clone(&keeper),
                settled,
            )),
            tokio::spawn(pause::of_node(
                Arc::clone(connection),
                config.node_name.clone(),
                Arc::clone(brakes),
                seen,
            )),
        ];
        let mut answers = vec![policies, node];
        if let Some(map) = &config.pause_config_map {
            let (seen, config_map) = channel::channel(false);
            tasks.push(tokio::spawn(pause::of_config_map(
                Arc::clone(connection),
                map.clone(),
                Arc::clone(brakes),
                seen,
            )));
            answers.push(config_map);
        }
        Self {
            tasks,
            keeper,
            answers,
            namespaces,
        }
    }

    /// Ends when the API server has told what policies there are, what they ask for of namespaces, and who has paused
    /// evictions; or that it does not tell.
    pub async fn settled(&mut self) {
        // The senders live as long as the tasks, which end with this.
        for answer in &mut self.answers {
            let _ = answer.wait_for(|settled| *settled).await;
        }
        let keeper = &self.keeper;
        let _ = self
            .namespaces
            .wait_for(|keys| *keys == Some(keeper.namespace_keys()))
            .await;
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
