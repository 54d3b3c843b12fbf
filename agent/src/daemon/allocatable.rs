//! The pods' cgroup as a scope of its own: `allocatableMemory.available`.

use std::path::PathBuf;

use evictd_config::Config;
use evictd_engine::{Signal, Threshold};
use evictd_node::{cgroup::memory::MemoryCgroup, memory_scope::Scope, pods::discovery::pods_root};

use super::scope::{guarded, limits};

/// Looks for the pods' cgroup below the node's scope, and follows its limit: a kubelet that starts with other
/// reservations sets another one.
#[derive(Debug)]
pub(super) struct Allocatable {
    /// Without one there is nothing to look for.
    threshold: Option<Threshold>,
    config: Config,
    root: PathBuf,
    /// Directory, id and limit in bytes of the cgroup that is watched.
    known: Option<(PathBuf, u64, u64)>,
}

impl Allocatable {
    /// For the pods below the node's scope.
    pub(super) fn new(config: &Config, node: &Scope) -> Self {
        Self::below(config, node.cgroup().path().to_owned())
    }

    fn below(config: &Config, root: PathBuf) -> Self {
        let hard = |t: &&Threshold| t.signal == Signal::AllocatableMemoryAvailable && t.is_hard();
        Self {
            threshold: config.eviction.thresholds.iter().find(hard).cloned(),
            config: config.clone(),
            root,
            known: None,
        }
    }

    /// Looks whether the cgroup that is known is still the same, and searches for it where it is not. Answers when it has
    /// come or has changed: once for the fast path, and once for the manager.
    ///
    /// # Errors
    /// There is a threshold, but nothing that it could be held against: the reason.
    fn look(&mut self) -> Result<Option<(Scope, Scope)>, String> {
        let Some(threshold) = &self.threshold else {
            return Ok(None);
        };
        let known = self.known.take();
        let dir = match &known {
            Some((dir, ..)) if dir.exists() => dir.clone(),
            _ => pods_root(&self.root).ok_or_else(|| {
                format!("there is no kubepods cgroup below {}", self.root.display())
            })?,
        };
        let open = || MemoryCgroup::open(&dir).map_err(|e| e.to_string());
        let cgroup = open()?;
        let limit = cgroup.limit().map_err(|e| e.to_string())?;
        let limit = limit.ok_or_else(|| format!("{} has no memory limit", dir.display()))?;
        let found = Some((dir.clone(), cgroup.id(), limit));
        let is_new = known != found;
        self.known = found;
        if !is_new {
            return Ok(None);
        }
        let amounts = |capacity| limits(threshold, &self.config, capacity);
        let cache = self.config.account_reclaimable_cache;
        let scope = |cgroup| Scope::of_pods(cgroup, amounts, cache).map_err(|e| e.to_string());
        Ok(Some((
            guarded(scope(cgroup)?, &self.config),
            scope(open()?)?,
        )))
    }

    /// Other thresholds from now on; the next look hands the scope over anew.
    pub(super) fn reconfigure(&mut self, config: &Config) {
        let node = self.root.clone();
        *self = Self::below(config, node);
    }

    /// The scope at the start; why there is none is said once.
    pub(super) fn first(&mut self) -> Option<(Scope, Scope)> {
        self.look().unwrap_or_else(|reason| {
            tracing::info!(reason, "allocatableMemory.available is not watched");
            None
        })
    }

    /// The scope that should be watched now instead of the one before. Searching the tree is left for when pods have
    /// come.
    pub(super) fn refresh(&mut self, pods_have_changed: bool) -> Option<(Scope, Scope)> {
        if self.known.is_none() && !pods_have_changed {
            return None;
        }
        let found = self.look().ok().flatten();
        if let Some((scope, _)) = &found {
            let (cgroup, capacity) = (scope.cgroup().path().display(), scope.capacity());
            tracing::info!(%cgroup, capacity, "watching the pods' cgroup");
        }
        found
    }
}
