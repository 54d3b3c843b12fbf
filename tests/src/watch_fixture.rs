//! What follows the API server, on a runtime of its own, without a node.

use std::future::Future;

use evictd_kube::{
    client::ApiClient,
    policy_status::{SPREAD, StatusWriter},
    watch::policies,
};
use evictd_policy::{
    PauseState, PolicyEvaluator, PolicyStore, evaluator::PolicySettings, gate::Secrets,
};

use crate::{apiserver::State, prelude::*};

/// Creates the policy store of one agent that knows no policies yet.
pub fn store() -> Arc<PolicyStore> {
    let evaluator = PolicyEvaluator::new(PolicySettings::default(), Secrets::new(None));
    Arc::new(PolicyStore::new(evaluator))
}

/// A scripted API server, and the agent's parts that listen to it.
pub struct WatchFixture {
    pub server: ApiServer,
    pub connection: Arc<ApiClient>,
    pub store: Arc<PolicyStore>,
    pub pauses: Arc<PauseState>,
    handle: tokio::runtime::Handle,
    // Everything ends when this is dropped.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl WatchFixture {
    /// A server that was prepared, without watchers yet.
    pub fn new(prepare: impl FnOnce(&mut ApiServer)) -> Result<Self> {
        let mut server = ApiServer::start()?;
        server.state().is_agents_alone = true;
        prepare(&mut server);
        let runtime = crate::current_thread()?;
        let connection = runtime.block_on(server.client());
        let store = store();
        let pauses = PauseState::new(Arc::clone(store.evaluator().limiter()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || {
            // Told, or left behind: both is the end.
            let _ = runtime.block_on(stopped);
        });
        Ok(Self {
            server,
            connection,
            store,
            pauses: Arc::new(pauses),
            handle,
            _stop: stop,
        })
    }

    /// Lets something run until this is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }

    /// Follows the policies for one agent, whose word on their status comes within `spread`.
    pub fn policies(&self, store: &Arc<PolicyStore>, spread: Duration) {
        let writer = Arc::new(StatusWriter::new(Arc::clone(&self.connection), spread));
        self.spawn(policies::run(
            Arc::clone(&self.connection),
            Arc::clone(store),
            Arc::clone(&writer),
            tokio::sync::watch::channel(false).0,
        ));
        self.spawn(async move { writer.run().await });
    }

    /// Waits until the policies were listed so often.
    #[track_caller]
    pub fn lists(&self, is_enough: impl Fn(usize) -> bool) {
        let asked = |state: &State| is_enough(state.count("GET", "/evictionpolicies"));
        assert!(self.server.wait(SPREAD, asked));
    }

    /// Waits until the status of a policy says that it is accepted.
    #[track_caller]
    pub fn accepts(&self, name: &str) {
        self.says_accepted(name, "True");
    }

    /// The same for one that is not.
    #[track_caller]
    pub fn refuses(&self, name: &str) {
        self.says_accepted(name, "False");
    }

    #[track_caller]
    fn says_accepted(&self, name: &str, status: &str) {
        let accepted = || self.server.state().accepted(name);
        assert!(
            self.wait(|_| accepted()["status"] == status),
            "{}",
            accepted()
        );
    }

    /// Names and generations of the policies in force.
    pub fn in_force(&self) -> Vec<(String, i64)> {
        let remembered = self.store.remembered();
        let key = |policy: &serde_json::Value| {
            let metadata = &policy["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            (
                name.to_owned(),
                metadata["generation"].as_i64().unwrap_or(0),
            )
        };
        remembered.iter().map(key).collect()
    }

    /// Waits until the condition holds; false when it does not in time.
    pub fn wait(&self, condition: impl Fn(&Self) -> bool) -> bool {
        until(SOON, || condition(self))
    }
}
