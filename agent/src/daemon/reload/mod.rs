//! The configuration while the agent runs: its files are followed (`config_source`), and a change is put in force. What is
//! known of pressure, victims and conditions stays.

mod config_source;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use evictd_config::{Config, KubeletDocument};
use evictd_engine::{Signal, limiter::EvictionLimiter, units::nanos};
use evictd_fastpath::FastPathSettings;
use evictd_kube::configz;
use evictd_sys::{clock::monotonic_ns, mutex::locked};
use tokio::task::AbortHandle;

use super::{
    Agent, RunError,
    background::BackgroundRead,
    evictions::MessageBuilder,
    memory::{above_capacity, thresholds, warn_floor, warn_no_hard_threshold},
    metrics::Reloads,
};
use config_source::Found;

pub use config_source::{ConfigSource, NO_PODS};

/// What is said where `cluster.configz` has no effect.
pub const CONFIGZ_UNUSED: &str = "cluster.configz is not used: the kubelet's file holds";

/// Time for which a start with stand-ins for the kubelet's thresholds holds back what is not urgent.
const UNTIL_CONFIGZ: Duration = Duration::from_secs(10);

/// Time after which all threads go by settings that were handed to them.
const UNTIL_IN_FORCE: Duration = Duration::from_secs(1);

/// The source of the configuration, and the read that is under way.
pub(super) struct ConfigWatch {
    source: ConfigSource,
    pub read: BackgroundRead<Found>,
    /// SIGHUP has come, and no read was begun since.
    is_requested: bool,
    /// The task that asks `/configz`.
    configz: Option<AbortHandle>,
    /// What is not urgent waits for the kubelet's own settings.
    awaits_kubelet: bool,
    pub reloads: Arc<Reloads>,
}

impl ConfigWatch {
    /// Follows the files from now on. Where no file has the kubelet's settings, a task asks `/configz` again and again; until
    /// it answers for the first time, what is not urgent waits a moment.
    pub fn new(source: ConfigSource, config: &Config, limiter: &EvictionLimiter) -> Self {
        let asks = config.cluster.clone().filter(|cluster| cluster.configz);
        if asks.is_some() && !source.goes_by_configz() {
            tracing::info!("{CONFIGZ_UNUSED}");
        }
        let asks = asks.filter(|_| source.goes_by_configz());
        let awaits_kubelet = asks.is_some() && source.lacks_kubelet();
        if awaits_kubelet {
            limiter.await_configuration(monotonic_ns().saturating_add(nanos(UNTIL_CONFIGZ)));
        }
        let configz = asks.map(|cluster| {
            let newest = Arc::clone(&source.answer);
            let take = move |document| {
                let answer = Some(KubeletDocument::from_configz(document));
                *locked(&newest) = answer;
            };
            tokio::spawn(configz::follow(cluster, awaits_kubelet, take)).abort_handle()
        });
        let reloads = Arc::<Reloads>::default();
        reloads.note_kubelet(source.kubelet.source);
        reloads.shadow.store(config.shadow, Ordering::Relaxed);
        Self {
            source,
            read: BackgroundRead::new(Arc::default()),
            is_requested: false,
            configz,
            awaits_kubelet,
            reloads,
        }
    }
}

impl Agent {
    /// Has the files read where they have changed, on a thread that may wait for their disks.
    pub(super) fn check_configuration(&mut self) {
        let watch = &mut self.config_watch;
        let job = watch.source.reader(&self.config, watch.is_requested);
        if watch.read.begin(job) {
            watch.is_requested = false;
        }
    }

    /// Has the files read whether they have changed or not; after the present read, if one is under way.
    pub(super) fn read_configuration_again(&mut self) {
        self.config_watch.is_requested = true;
        self.check_configuration();
    }

    /// Puts in force what was read. A configuration that cannot be used is logged, and the last good one
    /// stays in force.
    pub(super) fn follow_configuration(&mut self) {
        let watch = &mut self.config_watch;
        if let Some(read) = watch.read.take().and_then(|found| watch.source.take(found)) {
            self.reload(read.map_err(RunError::from));
        }
        if self.config_watch.is_requested {
            self.check_configuration();
        }
    }

    fn reload(&mut self, read: Result<Config, RunError>) {
        let watch = &mut self.config_watch;
        // A file has come: an answer would not be used any more.
        let configz = watch.configz.take_if(|_| !watch.source.goes_by_configz());
        if let Some(configz) = configz {
            configz.abort();
            // It would be an old one where the file goes again.
            *locked(&watch.source.answer) = None;
            tracing::info!("{CONFIGZ_UNUSED}");
        }
        let is_known = watch.awaits_kubelet && !watch.source.lacks_kubelet();
        watch.awaits_kubelet &= !is_known;
        watch.reloads.note_kubelet(watch.source.kubelet.source);
        let reloads = Arc::clone(&watch.reloads);
        let applied = read.and_then(|config| self.apply(config));
        if is_known && applied.is_ok() {
            // A look with those before may be under way.
            let until = monotonic_ns().saturating_add(nanos(UNTIL_IN_FORCE));
            let limiter = self.policies.evaluator.limiter();
            limiter.await_configuration(until);
        }
        reloads
            .is_refused
            .store(applied.is_err(), Ordering::Relaxed);
        match applied {
            Ok(true) => {
                reloads.applied.fetch_add(1, Ordering::Relaxed);
                tracing::info!("the configuration has changed and is in force");
            }
            Ok(false) => {}
            Err(error) => {
                reloads.refused.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "the changed configuration cannot be used: the last good one stays in force");
            }
        }
    }

    fn apply(&mut self, mut new: Config) -> Result<bool, RunError> {
        keep_what_needs_a_restart(&mut new, &self.config);
        if new == self.config {
            return Ok(false);
        }
        let capacity = self.memory.node.capacity();
        let amounts = thresholds(&new, Signal::MemoryAvailable, capacity);
        if let Some((amount, value)) = amounts.above(capacity) {
            return Err(above_capacity(
                amount,
                Signal::MemoryAvailable,
                value,
                capacity,
            ));
        }
        let ends_shadow = self.config.shadow && !new.shadow;
        if ends_shadow && new.pinned_guard.enabled && self.fastpath.began_in_shadow {
            tracing::warn!("shadow mode ends: the pinned guard is installed at the next start");
        }
        warn_no_hard_threshold(&new.eviction.thresholds);
        warn_floor(&new, Signal::MemoryAvailable, amounts.threshold, capacity);
        self.ensure_dead.set_shadow(new.shadow);
        let reloads = &self.config_watch.reloads;
        reloads.shadow.store(new.shadow, Ordering::Relaxed);
        self.fastpath.control.send_settings(FastPathSettings {
            thresholds: amounts,
            capacity,
            shadow: new.shadow,
            strategy: new.ranking_strategy,
        });
        self.eviction_log.set_message_builder(MessageBuilder {
            thresholds: new.eviction.thresholds.clone(),
        });
        self.memory.allocatable.reconfigure(&new);
        self.manager.send_settings(&new);
        self.config = new;
        self.publish_node_state();
        // The pods' cgroup is handed over with its new amounts.
        self.follow_pods_scope();
        Ok(true)
    }
}

/// Keeps the old value of fields that take effect at the start only, and logs that.
fn keep_what_needs_a_restart(new: &mut Config, old: &Config) {
    fn keep<T: PartialEq + Clone>(field: &str, new: &mut T, old: &T) {
        if new != old {
            tracing::warn!(
                field,
                "a changed configuration field takes effect at the next start"
            );
            new.clone_from(old);
        }
    }
    keep("scope", &mut new.scope, &old.scope);
    keep("podManifest", &mut new.pod_manifest, &old.pod_manifest);
    keep("cluster", &mut new.cluster, &old.cluster);
    keep("cri", &mut new.cri, &old.cri);
    keep("stateDir", &mut new.state_dir, &old.state_dir);
    keep("mode", &mut new.mode, &old.mode);
    let (policy, known) = (&mut new.policy, &old.policy);
    // The files that it names are followed all the same.
    keep("policies", &mut policy.files, &known.files);
    keep(
        "evictionRates.node",
        &mut policy.node_rate,
        &known.node_rate,
    );
    keep(
        "evictionRates.node.exemptGrowers",
        &mut policy.exempt_growers,
        &known.exempt_growers,
    );
    keep(
        "evictionRates.owner",
        &mut policy.owner_rate,
        &known.owner_rate,
    );
    keep("lastResort", &mut policy.last_resort, &known.last_resort);
    keep("gateSecrets", &mut policy.secrets, &known.secrets);
    keep("memoryHook", &mut new.memory_hook, &old.memory_hook);
    keep("memoryGuard", &mut new.memory_guard, &old.memory_guard);
    keep("pinnedGuard", &mut new.pinned_guard, &old.pinned_guard);
    keep("filesystems", &mut new.filesystems, &old.filesystems);
    keep(
        "metricsAddress",
        &mut new.metrics_address,
        &old.metrics_address,
    );
    keep("metricsTls", &mut new.metrics_tls, &old.metrics_tls);
    keep(
        "healthAddress",
        &mut new.health_address,
        &old.health_address,
    );
    keep(
        "accountReclaimableCache",
        &mut new.account_reclaimable_cache,
        &old.account_reclaimable_cache,
    );
}
