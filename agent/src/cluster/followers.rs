//! What the agent follows besides its pods: policies, the labels of namespaces that they ask for, and brakes.

use std::sync::Arc;

use tokio::{sync::watch as channel, task::JoinHandle};

use super::{
    brake,
    client::Connection,
    namespaces, policies,
    status::{SPREAD, StatusWriter},
};
use crate::{
    config::ClusterConfig,
    policy::{Brakes, Catalogue, Keeper},
};

/// All of them, until it is dropped.
pub struct Followers {
    tasks: Vec<JoinHandle<()>>,
    keeper: Arc<Keeper>,
    policies: channel::Receiver<bool>,
    namespaces: channel::Receiver<namespaces::Settled>,
}

impl Followers {
    /// Starts them.
    pub fn start(
        connection: &Arc<Connection>,
        config: &ClusterConfig,
        catalogue: &Arc<Catalogue>,
        brakes: &Arc<Brakes>,
    ) -> Self {
        let keeper = Arc::clone(catalogue.keeper());
        keeper.connect(Arc::clone(connection));
        let writer = Arc::new(StatusWriter::new(Arc::clone(connection), SPREAD));
        let (listed, policies) = channel::channel(false);
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
            tokio::spawn(brake::of_node(
                Arc::clone(connection),
                config.node_name.clone(),
                Arc::clone(brakes),
            )),
        ];
        if let Some(map) = &config.pause_config_map {
            let obey =
                brake::of_config_map(Arc::clone(connection), map.clone(), Arc::clone(brakes));
            tasks.push(tokio::spawn(obey));
        }
        Self {
            tasks,
            keeper,
            policies,
            namespaces,
        }
    }

    /// Ends when the API server has told what policies there are, and what they ask for of namespaces; or that it does
    /// not tell.
    pub async fn settled(&mut self) {
        // The senders live as long as the tasks, which end with this.
        let _ = self.policies.wait_for(|listed| *listed).await;
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
