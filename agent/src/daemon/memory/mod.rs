//! Which memory is watched: the node's, and that of all pods. Each is a scope, that is a cgroup or the machine, with a
//! capacity and the amounts that must stay available. Capacities change while the agent runs; both loops then get new
//! scopes.

mod allocatable;
mod node;
mod scope;

use std::path::Path;

use evictd_config::Config;
use evictd_fastpath::FastPathControl;
use evictd_manager::Command;
use evictd_node::{
    cgroup::protection::Protection, memory_scope::Scope, pods::table::PodTable,
    proc::watermarks::raised_watermarks,
};

use crate::daemon::{Agent, RunError};
pub use allocatable::Allocatable;
use allocatable::PodsScopes;
pub use node::NodeMemory;
pub use scope::{
    CGROUP_MOUNT, above_capacity, no_hard_threshold, node_scope, node_scopes, thresholds,
    warn_floor, warn_no_hard_threshold,
};

/// The memory that is watched, as it changes.
pub struct WatchedMemory {
    pub node: NodeMemory,
    pub allocatable: Allocatable,
    pub protection: Protection,
}

/// Scopes that are watched at the start beside the node's scope of the manager.
pub struct FirstScopes {
    /// The node, and the pods' cgroup where there is one.
    pub fastpath: Vec<Scope>,
    pub pods_of_manager: Option<Scope>,
}

impl WatchedMemory {
    pub fn new(
        config: &Config,
        node: Scope,
        had_swap: bool,
    ) -> Result<(Self, FirstScopes), RunError> {
        let mut allocatable = Allocatable::new(config, &node);
        let pods = allocatable.update_or_log();
        let (pods, pods_of_manager) = match pods {
            Some(pods) => (Some(pods.fastpath), pods.manager),
            None => (None, None),
        };
        let watched = Self {
            node: NodeMemory::new(config, &node, had_swap)?,
            allocatable,
            protection: protection(&node),
        };
        let scopes = FirstScopes {
            fastpath: std::iter::once(node).chain(pods).collect(),
            pods_of_manager,
        };
        Ok((watched, scopes))
    }
}

/// Creates the reader of what is protected below the node's scope.
pub fn protection(node: &Scope) -> Protection {
    Protection::below(node.cgroup().path(), node.is_limited())
}

/// Tells the fast path what raised watermarks keep back.
pub fn look_at_watermarks(control: &FastPathControl) {
    let raised = raised_watermarks(Path::new("/proc"));
    control.set_default_watermarks(raised.map(|(raised, _)| raised));
}

impl Agent {
    /// Hands over the node's scope when its capacity has changed, its cgroup is another one, or swap has come or gone;
    /// the pods with what they may swap out.
    pub fn follow_node_scope(&mut self) {
        let Some(scopes) = self.memory.node.refresh(&self.config) else {
            return;
        };
        self.memory.protection = protection(&scopes.fastpath);
        self.oom
            .attributor
            .set_node_scope(scopes.fastpath.cgroup().id());
        self.fastpath
            .control
            .send_node_scope(Box::new(scopes.fastpath));
        self.manager
            .send(Command::NodeMemory(Box::new(scopes.manager)));
        let entries = self.pods.entries.clone();
        let table = PodTable::after(&self.pods.swap, entries);
        self.publish(Some(Box::new(table)));
    }

    /// Hands over the pods' cgroup when it has come or is another one now.
    pub fn follow_pods_scope(&mut self) {
        let found = self.memory.allocatable.find();
        self.send_pods_scope(found);
    }

    /// The same where no pods have come: the tree is not searched.
    pub fn refresh_pods_scope(&mut self) {
        let found = self.memory.allocatable.recheck();
        self.send_pods_scope(found);
    }

    fn send_pods_scope(&mut self, found: Option<PodsScopes>) {
        if let Some(PodsScopes { fastpath, manager }) = found {
            self.oom.attributor.set_pods_scope(fastpath.cgroup().id());
            self.fastpath.control.send_pods_scope(Box::new(fastpath));
            self.manager
                .send(Command::PodsMemory(manager.map(Box::new)));
        }
    }
}
