//! The memory of the node, whose capacity changes while the agent runs: memory is plugged in or out, a balloon takes
//! some and gives it back (virtio, Hyper-V, Xen), a container that is a node (kind, k3d) gets another limit. The
//! kubelet sees the first two within ten seconds.

use std::path::PathBuf;

use evictd_config::Config;
use evictd_node::{
    cgroup::memory::MemoryCgroup,
    memory_scope::{Scope, ScopeError, capacity, machine_capacity},
    proc::machine::{has_swap, memory_total},
};

use super::scope::{ScopePair, node_scopes};
use crate::daemon::RunError;

/// The capacity of the node's scope.
#[derive(Debug)]
pub struct NodeMemory {
    cgroup: MemoryCgroup,
    /// Id of the cgroup that is watched: another one may be at its path by now.
    watched: u64,
    /// The scope is this machine, not a cgroup that was configured.
    is_machine: bool,
    proc: PathBuf,
    /// Capacity that is in force, in bytes.
    capacity: u64,
    /// Whether the machine had swap when the scope was opened.
    has_swap: bool,
    /// Why the present capacity cannot be in force, as logged.
    refused: Option<String>,
}

impl NodeMemory {
    /// Opens the memory of the node's scope. `had_swap`: the machine had swap before the scope was opened.
    ///
    /// # Errors
    /// Its cgroup is gone.
    pub fn new(config: &Config, node: &Scope, had_swap: bool) -> Result<Self, RunError> {
        let cgroup = MemoryCgroup::open(node.cgroup().path()).map_err(ScopeError::from)?;
        Ok(Self {
            cgroup,
            watched: node.cgroup().id(),
            is_machine: config.scope.cgroup.is_none(),
            proc: "/proc".into(),
            capacity: node.capacity(),
            has_swap: had_swap,
            refused: None,
        })
    }

    /// Capacity that is in force, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The node's capacity as the kubelet has it, in bytes: the kubelet does not see the limit of a container that is a
    /// node.
    pub fn kubelet_capacity(&self) -> u64 {
        match self.is_machine {
            true => memory_total(&self.proc).unwrap_or(self.capacity),
            false => self.capacity,
        }
    }

    /// The scopes with the present capacity, where it has changed, swap has come or gone, or the cgroup was made anew.
    ///
    /// # Errors
    /// The thresholds cannot be kept with the new capacity.
    pub fn update(&mut self, config: &Config) -> Result<Option<ScopePair>, RunError> {
        let has_swap = has_swap();
        let is_same = self.cgroup.is_there() && self.cgroup.id() == self.watched;
        if is_same && self.now()? == self.capacity && has_swap == self.has_swap {
            return Ok(None);
        }
        let cgroup = MemoryCgroup::open(self.cgroup.path()).map_err(ScopeError::from)?;
        let scopes = node_scopes(config)?;
        if !is_same {
            let cgroup = cgroup.path().display();
            tracing::warn!(%cgroup, "the scope's cgroup was made anew: it is watched from now on");
        }
        self.cgroup = cgroup;
        self.watched = scopes.fastpath.cgroup().id();
        self.capacity = scopes.fastpath.capacity();
        self.has_swap = has_swap;
        Ok(Some(scopes))
    }

    /// As [`Self::update`], for a running agent: a change is logged, and so is, once, a capacity that cannot be in
    /// force.
    pub fn refresh(&mut self, config: &Config) -> Option<ScopePair> {
        let before = self.capacity;
        let refused = match self.update(config) {
            Ok(None) => None,
            Ok(Some(scopes)) => {
                let (capacity, threshold) = (self.capacity, scopes.fastpath.thresholds().threshold);
                let has_swap = self.has_swap;
                tracing::info!(
                    capacity,
                    before,
                    threshold,
                    has_swap,
                    "the node's memory has changed"
                );
                self.refused = None;
                return Some(scopes);
            }
            Err(error) => Some(error.to_string()),
        };
        if refused != self.refused {
            if let Some(error) = &refused {
                tracing::warn!(
                    error,
                    capacity = before,
                    "the node's memory cannot be followed: the capacity from before stays in force"
                );
            }
            self.refused = refused;
        }
        None
    }

    fn now(&self) -> Result<u64, ScopeError> {
        match self.is_machine {
            true => Ok(machine_capacity(&self.cgroup, memory_total(&self.proc)?)?),
            false => capacity(&self.cgroup),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn another_limit_is_another_capacity() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        let limit = |mib: u64| write("memory.max", format!("{}\n", mib * MIB));
        write("memory.current", MIB.to_string());
        write(
            "memory.stat",
            "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n".into(),
        );
        limit(1000);
        let config = json!({
            "scope": { "cgroup": dir.path() },
            "evictionHard": { "memory.available": "25%" },
        });
        let config = Config::from_values(config, None).unwrap();
        let node = node_scopes(&config).unwrap().fastpath;
        let mut memory = NodeMemory::new(&config, &node, has_swap()).unwrap();
        assert!(memory.refresh(&config).is_none());
        limit(2000);
        let scopes = memory.refresh(&config).unwrap();
        for scope in [scopes.fastpath, scopes.manager] {
            let amounts = (scope.capacity(), scope.thresholds().threshold);
            assert_eq!(amounts, (2000 * MIB, 500 * MIB));
        }
        assert!(memory.refresh(&config).is_none());
        // No limit is no capacity: the last one stays in force.
        write("memory.max", "max\n".into());
        assert!(memory.refresh(&config).is_none());
        assert!(memory.refused.is_some());
        assert_eq!(memory.capacity(), 2000 * MIB);
        limit(2000);
        assert!(memory.refresh(&config).is_none());
        assert!(memory.refused.is_none());
    }

    /// The start waits for servers between the two.
    #[test]
    fn swap_and_a_cgroup_that_come_while_the_agent_starts_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let scope = dir.path().join("scope");
        let make = || {
            fs::create_dir(&scope).unwrap();
            let stat = "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n";
            for (file, text) in [
                ("memory.current", "1"),
                ("memory.stat", stat),
                ("memory.max", "104857600"),
            ] {
                fs::write(scope.join(file), text).unwrap();
            }
        };
        make();
        let config =
            json!({ "scope": { "cgroup": scope }, "evictionHard": { "memory.available": "25%" } });
        let config = Config::from_values(config, None).unwrap();
        let node = node_scopes(&config).unwrap().fastpath;
        let open = |had_swap| NodeMemory::new(&config, &node, had_swap).unwrap();
        assert!(open(has_swap()).refresh(&config).is_none());
        let mut memory = open(!has_swap());
        assert!(memory.refresh(&config).is_some());
        assert!(memory.refresh(&config).is_none());
        fs::rename(&scope, dir.path().join("former")).unwrap();
        make();
        let mut memory = open(has_swap());
        let scopes = memory.refresh(&config).expect("it is another cgroup");
        assert_ne!(scopes.fastpath.cgroup().id(), node.cgroup().id());
        assert!(memory.refresh(&config).is_none());
    }
}
