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

use super::scope::{above_capacity, guarded, thresholds, warn_floor};
use crate::daemon::RunError;

const SIGNAL: Signal = Signal::AllocatableMemoryAvailable;

/// Looks for the pods' cgroup below the node's scope, and follows its limit: a kubelet that starts with other
/// reservations sets another one.
#[derive(Debug)]
pub struct Allocatable {
    config: Config,
    root: PathBuf,
    known: Option<Watched>,
    /// Why the configured threshold is not in force, as logged.
    refusal: Option<NotInForce>,
}

/// Why the configured threshold is not in force; the text says the reason.
#[derive(Debug, PartialEq, Eq)]
enum NotInForce {
    /// Nothing can run short, or there is nothing to watch.
    Unwatched(String),
    /// It is not below the limit: less is in force, so that the pods are still evicted before the OOM killer acts.
    Cut(String),
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
    /// The configured threshold and its minimum reclaim are in force.
    is_as_configured: bool,
}

/// The scopes of the pods' cgroup.
pub struct PodsScopes {
    pub fastpath: Scope,
    /// The manager compares with what is configured: `None` where that is not in force.
    pub manager: Option<Scope>,
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
    /// the cgroup, its limit, or the amounts that must stay available in it have changed.
    ///
    /// # Errors
    /// There is a threshold, and no cgroup to watch for it: the reason.
    fn update(&mut self) -> Result<Option<PodsScopes>, String> {
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
        let unlimited = || format!("{} has no memory limit", dir.display());
        let (capacity, amounts, refusal) = match (limit, &self.known) {
            (Some(limit), _) => {
                let configured = thresholds(&self.config, SIGNAL, limit);
                let cut = configured.above(limit);
                let refusal =
                    cut.map(|(amount, value)| above_capacity(amount, SIGNAL, value, limit));
                let refusal = refusal.map(|error| NotInForce::Cut(error.to_string()));
                (limit, configured.within(limit), refusal)
            }
            (None, None) => return Err(unlimited()),
            // Nothing runs short in what is watched.
            (None, Some(known)) => (
                known.capacity,
                MemoryThresholds::default(),
                Some(NotInForce::Unwatched(unlimited())),
            ),
        };
        let found = Some(Watched {
            dir: dir.clone(),
            id: cgroup.id(),
            capacity,
            has_swap: has_swap(),
            thresholds: amounts,
            is_as_configured: refusal.is_none(),
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
        let manager = match refusal {
            None => Some(scope(open()?)?),
            Some(_) => None,
        };
        let scopes = PodsScopes {
            fastpath: guarded(scope(cgroup)?, &self.config),
            manager,
        };
        warn_floor(&self.config, SIGNAL, amounts.threshold, capacity);
        self.note_refusal(refusal, amounts);
        self.known = found;
        Ok(Some(scopes))
    }

    /// Gives up the known cgroup where the pods run in another one by now: a kubelet with another cgroup driver leaves
    /// the former cgroups in place. Returns whether no cgroup is known: the kubelet may have limited one since, which
    /// makes no event.
    pub fn forget_if_moved(&mut self) -> bool {
        let another = |known: &mut Watched| {
            let found = pods_root(&self.root);
            found.is_some_and(|found| found != known.dir)
        };
        self.known.take_if(another);
        self.known.is_none()
    }

    /// Other thresholds from now on; the next update hands the scope over anew, if that changes what must stay available
    /// in it.
    pub fn reconfigure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    /// The scopes, at the start and where they have changed; why the threshold is not in force is logged once.
    pub fn update_or_log(&mut self) -> Option<PodsScopes> {
        self.update().unwrap_or_else(|reason| {
            let refusal = Some(NotInForce::Unwatched(reason));
            self.note_refusal(refusal, MemoryThresholds::default());
            None
        })
    }

    /// Logs why not the configured threshold is in force but these amounts, once for each reason.
    fn note_refusal(&mut self, refusal: Option<NotInForce>, in_force: MemoryThresholds) {
        if self.refusal != refusal {
            match &refusal {
                Some(NotInForce::Unwatched(reason)) => {
                    tracing::info!(reason, "allocatableMemory.available is not watched");
                }
                Some(NotInForce::Cut(reason)) => tracing::warn!(
                    reason,
                    threshold = in_force.threshold,
                    resolved = in_force.resolved,
                    "the limit of the pods' cgroup cannot keep what is configured: less is in force"
                ),
                None => {}
            }
        }
        self.refusal = refusal;
    }

    /// The scope that should be watched now instead of the one before, as far as one is known: the tree is not searched.
    pub fn recheck(&mut self) -> Option<PodsScopes> {
        self.known.as_ref()?;
        self.find()
    }

    /// The same when pods have come: the tree is searched.
    pub fn find(&mut self) -> Option<PodsScopes> {
        let found = self.update_or_log();
        if let Some(PodsScopes { fastpath, .. }) = &found
            && !matches!(self.refusal, Some(NotInForce::Unwatched(_)))
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
        let scope = allocatable.update_or_log().unwrap().fastpath;
        assert_eq!(scope.cgroup().path(), before);
        assert!(!allocatable.forget_if_moved());
        // The former cgroups stay, without processes.
        tree(&before, &pod, none);
        let uid = UID.replace('-', "_");
        let pod = format!("kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice");
        tree(&after, &pod, &own);
        assert!(allocatable.forget_if_moved());
        let scope = allocatable.find().unwrap().fastpath;
        assert_eq!(scope.cgroup().path(), after);
        assert!(!allocatable.forget_if_moved());
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
        assert!(allocatable.update_or_log().is_none());
        // The kubelet writes it later, and no pod changes.
        limit("1073741824\n");
        assert!(allocatable.forget_if_moved());
        let first = allocatable.find().unwrap();
        assert_eq!(amounts(first.fastpath), (1024, 1));
        limit("max\n");
        let refreshed = |a: &mut Allocatable| a.recheck().map(|pair| amounts(pair.fastpath));
        assert_eq!(refreshed(&mut allocatable), Some((1024, 0)));
        assert_eq!(refreshed(&mut allocatable), None);
        limit("2147483648\n");
        assert_eq!(refreshed(&mut allocatable), Some((2048, 1)));
    }

    /// A threshold that was raised by mistake does not take the pods' protection away.
    #[test]
    fn of_what_the_limit_cannot_keep_less_is_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let config = |threshold: &str, reclaim: &str| {
            let config = serde_json::json!({
                "evictionHard": { "allocatableMemory.available": threshold },
                "evictionMinimumReclaim": { "allocatableMemory.available": reclaim },
            });
            Config::from_values(config, None).unwrap()
        };
        let kubepods = dir.path().join("kubepods");
        let own = std::process::id().to_string();
        tree(&kubepods, &format!("besteffort/pod{UID}"), &own);
        let amounts = |scope: Scope| {
            let thresholds = scope.thresholds();
            [scope.capacity(), thresholds.threshold, thresholds.resolved].map(|bytes| bytes >> 20)
        };
        let root = dir.path().to_owned();
        let mut allocatable = Allocatable::below(&config("2Gi", "1Mi"), root);
        let first = allocatable.update_or_log().unwrap().fastpath;
        assert_eq!(amounts(first), [1024, 102, 102]);
        assert!(matches!(allocatable.refusal, Some(NotInForce::Cut(_))));
        let refreshed = |a: &mut Allocatable| Some(amounts(a.find()?.fastpath));
        assert_eq!(refreshed(&mut allocatable), None);
        allocatable.reconfigure(&config("100Mi", "1Gi"));
        assert_eq!(refreshed(&mut allocatable), Some([1024, 100, 100]));
        let limit = |text: &str| fs::write(kubepods.join("memory.max"), text).unwrap();
        limit("4294967296\n");
        assert_eq!(refreshed(&mut allocatable), Some([4096, 100, 1124]));
        assert_eq!(allocatable.refusal, None);
    }
}
