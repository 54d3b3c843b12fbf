//! The memory of all pods as a scope: `allocatableMemory.available`, watched on the pods' cgroup.

use std::path::PathBuf;

use evictd_config::Config;
use evictd_engine::{Signal, accounting::MemoryThresholds};
use evictd_node::{
    cgroup::memory::MemoryCgroup,
    memory_scope::{Scope, ScopeKind},
    pods::discovery::pods_root,
    proc::machine::has_swap,
};

use super::scope::{ScopePair, above_capacity, guarded, thresholds, warn_floor};
use crate::daemon::RunError;

const SIGNAL: Signal = Signal::AllocatableMemoryAvailable;

/// Looks for the pods' cgroup below the node's scope, and follows its limit: a kubelet that starts with other
/// reservations sets another one.
#[derive(Debug)]
pub struct Allocatable {
    config: Config,
    root: PathBuf,
    known: Option<Watched>,
    /// Why no threshold is in force, as logged.
    refusal: Option<String>,
}

/// The cgroup that is watched.
#[derive(Debug, PartialEq, Eq)]
struct Watched {
    dir: PathBuf,
    id: u64,
    /// Memory limit of the cgroup, in bytes.
    capacity: u64,
    has_swap: bool,
    thresholds: MemoryThresholds,
}

impl Allocatable {
    /// Creates the state for the pods below the node's scope.
    pub fn new(config: &Config, node: &Scope) -> Self {
        Self::below(config, node.cgroup().path().to_owned())
    }

    fn below(config: &Config, root: PathBuf) -> Self {
        Self {
            config: config.clone(),
            root,
            known: None,
            refusal: None,
        }
    }

    fn has_threshold(&self) -> bool {
        let thresholds = &self.config.eviction.thresholds;
        thresholds.iter().any(|t| t.signal == SIGNAL && t.is_hard())
    }

    /// Checks whether the known cgroup is still there, and searches for another one if it is not. Returns scopes when
    /// the cgroup, its limit, or the amounts that must stay available in it have changed. A threshold that the cgroup's
    /// limit does not exceed is not in force.
    ///
    /// # Errors
    /// There is a threshold, and no cgroup to watch for it: the reason.
    fn update(&mut self) -> Result<Option<ScopePair>, String> {
        self.known.take_if(|known| !known.dir.exists());
        // Without a threshold there is nothing to look for. What is watched stays, and is never met.
        if self.known.is_none() && !self.has_threshold() {
            self.refusal = None;
            return Ok(None);
        }
        let dir = match &self.known {
            Some(known) => known.dir.clone(),
            None => pods_root(&self.root).ok_or_else(|| {
                format!("there is no kubepods cgroup below {}", self.root.display())
            })?,
        };
        let open = || MemoryCgroup::open(&dir).map_err(|e| e.to_string());
        let cgroup = open()?;
        let limit = cgroup.limit().map_err(|error| error.to_string())?;
        let in_force = match limit {
            Some(limit) => {
                let amounts = thresholds(&self.config, SIGNAL, limit);
                match amounts.above(limit) {
                    Some((amount, value)) => Err(above_capacity(amount, value, limit).to_string()),
                    None => Ok((limit, amounts)),
                }
            }
            None => Err(format!("{} has no memory limit", dir.display())),
        };
        let ((capacity, amounts), refusal) = match (in_force, &self.known) {
            (Ok(in_force), _) => (in_force, None),
            (Err(reason), None) => return Err(reason),
            // Nothing runs short in what is watched.
            (Err(reason), Some(known)) => {
                let capacity = limit.unwrap_or(known.capacity);
                ((capacity, MemoryThresholds::default()), Some(reason))
            }
        };
        let found = Some(Watched {
            dir: dir.clone(),
            id: cgroup.id(),
            capacity,
            has_swap: has_swap(),
            thresholds: amounts,
        });
        if self.known == found {
            return Ok(None);
        }
        let cache = self.config.account_reclaimable_cache;
        let scope = |cgroup| {
            let kind = ScopeKind::Pods { limit: capacity };
            let scope = Scope::open(cgroup, kind, |_| amounts, cache);
            scope.map_err(|e| RunError::from(e).to_string())
        };
        let scopes = ScopePair {
            fastpath: guarded(scope(cgroup)?, &self.config),
            manager: scope(open()?)?,
        };
        warn_floor(&self.config, SIGNAL, amounts.threshold, capacity);
        self.known = found;
        self.note_refusal(refusal);
        Ok(Some(scopes))
    }

    /// Gives up the known cgroup where the pods run in another one by now: a kubelet with another cgroup driver leaves
    /// the former cgroups in place. Returns whether no cgroup is known: the kubelet may have limited one since, which
    /// makes no event.
    pub fn search_again(&mut self) -> bool {
        let another = |known: &mut Watched| {
            let found = pods_root(&self.root);
            found.is_some_and(|found| found != known.dir)
        };
        self.known.take_if(another);
        self.known.is_none()
    }

    /// Other thresholds from now on; the next look hands the scope over anew, if that changes what must stay available
    /// in it.
    pub fn reconfigure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    /// The scope, at the start and where it has changed; why no threshold is in force is logged once.
    pub fn first(&mut self) -> Option<ScopePair> {
        self.update().unwrap_or_else(|reason| {
            self.note_refusal(Some(reason));
            None
        })
    }

    /// Logs why no threshold is in force, once for each reason.
    fn note_refusal(&mut self, refusal: Option<String>) {
        if let Some(reason) = &refusal
            && self.refusal != refusal
        {
            tracing::info!(reason, "allocatableMemory.available is not watched");
        }
        self.refusal = refusal;
    }

    /// The scope that should be watched now instead of the one before. Searching the tree is left for when pods have
    /// come.
    pub fn refresh(&mut self, pods_have_changed: bool) -> Option<ScopePair> {
        if self.known.is_none() && !pods_have_changed {
            return None;
        }
        let found = self.first();
        if let Some(ScopePair { fastpath, .. }) = &found
            && self.refusal.is_none()
        {
            let (cgroup, capacity) = (fastpath.cgroup().path().display(), fastpath.capacity());
            tracing::info!(%cgroup, capacity, "the pods' cgroup is watched");
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const UID: &str = "027b1a11-f972-4ec6-943f-db9a81fa1086";

    /// The cgroup of all pods with one of them; `process` runs in it.
    fn tree(kubepods: &Path, pod: &str, process: &str) {
        let container = kubepods.join(pod).join("container");
        fs::create_dir_all(&container).unwrap();
        fs::write(container.join("cgroup.procs"), process).unwrap();
        fs::write(kubepods.join("memory.current"), "4096\n").unwrap();
        fs::write(kubepods.join("memory.max"), "1073741824\n").unwrap();
        let stat = "anon 4096\nfile 0\nkernel 0\ninactive_file 0\nactive_file 0\n";
        fs::write(kubepods.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn a_kubelet_with_another_driver_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::json!({
            "evictionHard": { "allocatableMemory.available": "1Mi" },
            "memoryGuard": { "enabled": false },
        });
        let config = Config::from_values(config, None).unwrap();
        let (own, none) = (std::process::id().to_string(), "");
        let (before, after) = (
            dir.path().join("kubepods"),
            dir.path().join("kubepods.slice"),
        );
        let pod = format!("besteffort/pod{UID}");
        tree(&before, &pod, &own);
        let mut allocatable = Allocatable::below(&config, dir.path().to_owned());
        let scope = allocatable.first().unwrap().fastpath;
        assert_eq!(scope.cgroup().path(), before);
        assert!(!allocatable.search_again());
        // The former cgroups stay, without processes.
        tree(&before, &pod, none);
        let uid = UID.replace('-', "_");
        let pod = format!("kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice");
        tree(&after, &pod, &own);
        assert!(allocatable.search_again());
        let scope = allocatable.refresh(true).unwrap().fastpath;
        assert_eq!(scope.cgroup().path(), after);
        assert!(!allocatable.search_again());
    }

    /// As long as there is no limit, nothing can run short; with another one it can again.
    #[test]
    fn a_limit_that_comes_late_or_is_lifted_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            serde_json::json!({ "evictionHard": { "allocatableMemory.available": "1Mi" } });
        let config = Config::from_values(config, None).unwrap();
        let kubepods = dir.path().join("kubepods");
        let own = std::process::id().to_string();
        tree(&kubepods, &format!("besteffort/pod{UID}"), &own);
        let limit = |text: &str| fs::write(kubepods.join("memory.max"), text).unwrap();
        limit("max\n");
        let mut allocatable = Allocatable::below(&config, dir.path().to_owned());
        let amounts = |scope: Scope| (scope.capacity() >> 20, scope.thresholds().threshold >> 20);
        assert!(allocatable.first().is_none());
        // The kubelet writes it later, and no pod changes.
        limit("1073741824\n");
        let is_due = allocatable.search_again();
        let first = allocatable.refresh(is_due).unwrap();
        assert_eq!(amounts(first.fastpath), (1024, 1));
        limit("max\n");
        let refreshed = |a: &mut Allocatable| a.refresh(false).map(|pair| amounts(pair.fastpath));
        assert_eq!(refreshed(&mut allocatable), Some((1024, 0)));
        assert_eq!(refreshed(&mut allocatable), None);
        limit("2147483648\n");
        assert_eq!(refreshed(&mut allocatable), Some((2048, 1)));
    }

    /// No more than the threshold can be available: the pods' cgroup is not watched, as at a start.
    #[test]
    fn a_threshold_that_the_limit_does_not_exceed_is_not_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let config = |threshold: &str| {
            let config =
                serde_json::json!({ "evictionHard": { "allocatableMemory.available": threshold } });
            Config::from_values(config, None).unwrap()
        };
        let kubepods = dir.path().join("kubepods");
        let own = std::process::id().to_string();
        tree(&kubepods, &format!("besteffort/pod{UID}"), &own);
        let root = dir.path().to_owned();
        let mut refused = Allocatable::below(&config("2Gi"), root.clone());
        assert!(refused.first().is_none());
        let mut allocatable = Allocatable::below(&config("1Mi"), root);
        assert!(allocatable.first().is_some());
        let refreshed = |a: &mut Allocatable| {
            let scope = a.refresh(true)?.fastpath;
            Some((scope.capacity() >> 20, scope.thresholds().threshold >> 20))
        };
        allocatable.reconfigure(&config("2Gi"));
        assert_eq!(refreshed(&mut allocatable), Some((1024, 0)));
        assert_eq!(refreshed(&mut allocatable), None);
        let limit = |text: &str| fs::write(kubepods.join("memory.max"), text).unwrap();
        limit("4294967296\n");
        assert_eq!(refreshed(&mut allocatable), Some((4096, 2048)));
        limit("2147483648\n");
        assert_eq!(refreshed(&mut allocatable), Some((2048, 0)));
    }
}
