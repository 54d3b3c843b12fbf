//! The configuration: its fields, and how a file is read over the kubelet's.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use evictd_engine::{
    Threshold, ThresholdValue,
    accounting::Floor,
    model::settings::{EvictionConfig, MemoryHook, MitigationConfig, Mode, RankingStrategy},
};
use serde_json::{Value, json};

use crate::{
    ClusterConfig, ConfigError, CriConfig, EvictionFields, FilesystemPaths, KubeletDocument,
    KubeletFiles, KubeletSource, MetricsTls, Origin, Origins, PinnedGuardConfig, PolicyConfig,
    decode::ObjectDecoder,
    document::{read_document, read_written_document},
    drop_ins::HARD,
    hard_layers::{self, HardLayers},
    kernel_floor, metrics_tls, mitigation, pinned_guard,
};

/// Default of `stateDir`.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/evictd";

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The kubelet's settings for eviction.
    pub eviction: EvictionConfig,
    /// Origin of each threshold.
    pub origins: Origins,
    /// `mode`: how far the engine goes beyond the kubelet.
    pub mode: Mode,
    /// `rankingStrategy`: in which order pods are evicted.
    pub ranking_strategy: RankingStrategy,
    /// `scope`: what counts as the node.
    pub scope: ScopeConfig,
    /// `podManifest`: the file that describes the pods of a node without a cluster.
    pub pod_manifest: Option<PathBuf>,
    /// `cluster`: the cluster that the node belongs to, if any.
    pub cluster: Option<ClusterConfig>,
    /// `stateDir`: the directory of the journal.
    pub state_dir: PathBuf,
    /// `shadow`: decide and report, kill nothing.
    pub shadow: bool,
    /// `memoryHook`: the kernel hook that watches memory; `None` (`auto`) is the best one that this kernel has.
    pub memory_hook: Option<MemoryHook>,
    /// `accountReclaimableCache`: count page cache that can be reclaimed as available.
    pub account_reclaimable_cache: bool,
    /// `memoryGuard`: the hard threshold also counts as met when the kernel has less memory available than this. For
    /// the machine that is MemAvailable, with what raised watermarks keep back, less the memory that `memory.min`
    /// protects. For a cgroup v1 it is free memory plus memory that can be freed without writing it to disk first; for a
    /// cgroup v2 with protected page cache, the memory that is left beside that cache. Without an amount it is 100 MiB.
    /// Off in mode `kubelet` unless asked for.
    pub memory_guard: OptionalAmount,
    /// `kernelFloor`: the limit at which the kernel program itself kills the first victim; without an amount it is half
    /// of the hard threshold.
    pub kernel_floor: OptionalAmount,
    /// `pinnedGuard`: the kernel program that acts when the agent is stopped or gone.
    pub pinned_guard: PinnedGuardConfig,
    /// `filesystems`: where nodefs, imagefs and containerfs are.
    pub filesystems: FilesystemPaths,
    /// `cri`: the container runtime that removes unused containers and images when a disk is short; `None`: it is not
    /// asked.
    pub cri: Option<CriConfig>,
    /// `graduatedAction`: the steps under a soft threshold on memory before a pod is evicted.
    pub mitigation: MitigationConfig,
    /// `policies`, `evictionRates`, `lastResort` and `gateSecrets`: which pods may be evicted, and when.
    pub policy: PolicyConfig,
    /// `metricsAddress`: where metrics are served, if at all.
    pub metrics_address: Option<SocketAddr>,
    /// `metricsTls`: metrics are served over TLS, with these settings.
    pub metrics_tls: Option<MetricsTls>,
    /// `healthAddress`: where the kubelet's probes are answered, if at all.
    pub health_address: Option<SocketAddr>,
    /// What is to be said of a field that stands under a deprecated name.
    pub deprecated: Option<&'static str>,
}

/// Cgroup or machine that counts as the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeConfig {
    /// `scope.cgroup`: the directory of the cgroup that counts as the node; `None`: the machine itself is the node.
    pub cgroup: Option<PathBuf>,
}

/// `memoryGuard` or `kernelFloor`: an amount of `memory.available` that can be switched off.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionalAmount {
    /// `enabled`.
    pub enabled: bool,
    /// `memory.available`; `None`: the agent chooses the amount.
    pub memory_available: Option<ThresholdValue>,
}

impl OptionalAmount {
    /// Floor that these settings describe.
    pub fn floor(&self) -> Floor<'_> {
        match &self.memory_available {
            _ if !self.enabled => Floor::Off,
            None => Floor::Half,
            Some(value) => Floor::Of(value),
        }
    }
}

impl Config {
    /// Reads a configuration file, YAML or JSON. Eviction fields that it lacks come from the KubeletConfiguration at
    /// `kubelet_config`, else at `cluster.kubeletConfig`, with the drop-ins of `cluster.kubeletConfigDir` merged into
    /// it. A KubeletConfiguration that is missing or cannot be read is no error. The one known `before` stands in for
    /// it, or `evictionHardFallback`, or the kubelet's defaults; the second value says which.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, but for a KubeletConfiguration; a field that does not exist, a value that cannot be
    /// used.
    pub fn load_with_stand_in(
        path: &Path,
        kubelet_config: Option<&Path>,
        before: &KubeletDocument,
    ) -> Result<(Self, KubeletDocument), ConfigError> {
        let document = read_document(path)?;
        let files = KubeletFiles::of(&document, kubelet_config);
        Self::from_document(document, &files, before)
    }

    /// Reads again, from the files that it started with. An empty file counts as not written yet, an error, unless it
    /// `may_be_empty`.
    ///
    /// # Errors
    ///
    /// As [`Config::load_with_stand_in`].
    pub fn reload(
        path: &Path,
        may_be_empty: bool,
        files: &KubeletFiles,
        before: &KubeletDocument,
    ) -> Result<(Self, KubeletDocument), ConfigError> {
        let document = match may_be_empty {
            true => read_document(path)?,
            false => read_written_document(path)?,
        };
        Self::from_document(document, files, before)
    }

    /// Reads what leads to the kubelet's settings: the configuration as if it had `cluster` alone, and the files. The
    /// other fields may need what only `/configz` says.
    ///
    /// # Errors
    ///
    /// As [`Config::load_with_stand_in`], but for the other fields.
    pub fn load_cluster(
        path: &Path,
        kubelet_config: Option<&Path>,
    ) -> Result<(Self, KubeletDocument), ConfigError> {
        let document = read_document(path)?;
        let files = KubeletFiles::of(&document, kubelet_config);
        let kubelet = KubeletDocument::read(&files, &KubeletDocument::default())?;
        let cluster = document.get("cluster").cloned();
        let config = Self::from_values(json!({ "cluster": cluster }), None)?;
        Ok((config, kubelet))
    }

    fn from_document(
        document: Value,
        files: &KubeletFiles,
        before: &KubeletDocument,
    ) -> Result<(Self, KubeletDocument), ConfigError> {
        let mut kubelet = KubeletDocument::read(files, before)?;
        // Its own map leaves no place for the fallback.
        let has_fallback = document[HARD].is_null() && !document[hard_layers::FALLBACK].is_null();
        let config = Self::from_values(document, kubelet.document.clone())?;
        if kubelet.source == KubeletSource::Defaults && has_fallback {
            kubelet.source = KubeletSource::Fallback;
        }
        Ok((config, kubelet))
    }

    /// Reads a configuration from parsed documents.
    ///
    /// # Errors
    ///
    /// A field that does not exist, a value that cannot be used.
    pub fn from_values(
        document: Value,
        kubelet_config: Option<Value>,
    ) -> Result<Self, ConfigError> {
        let mut fields = ObjectDecoder::open("", document)?;
        let cluster = ClusterConfig::take(&mut fields)?;
        let cri = CriConfig::take(&mut fields, kubelet_config.as_ref(), cluster.is_some())?;
        let base = kubelet_config.map_or_else(|| Ok(EvictionFields::default()), kubelet_fields)?;
        let hard_layers = HardLayers::take(&mut fields)?;
        let own = EvictionFields::take(&mut fields)?;
        let (eviction, origins) = own.resolve_over(base, &hard_layers)?;
        let mode = fields
            .choice(
                "mode",
                &[("evictd", Mode::Evictd), ("kubelet", Mode::Kubelet)],
            )?
            .unwrap_or_default();
        let metrics_address = fields.socket_address("metricsAddress")?;
        let (mitigation, deprecated) = mitigation::take(&mut fields)?;
        let config = Self {
            eviction,
            origins,
            mode,
            ranking_strategy: fields
                .choice("rankingStrategy", &RankingStrategy::CHOICES)?
                .unwrap_or_default(),
            scope: ScopeConfig::take(&mut fields)?,
            pod_manifest: fields.absolute_path("podManifest")?,
            state_dir: fields
                .absolute_path("stateDir")?
                .unwrap_or_else(|| DEFAULT_STATE_DIR.into()),
            shadow: fields.boolean("shadow")?.unwrap_or(false),
            memory_hook: fields.choice("memoryHook", &MEMORY_HOOKS)?.flatten(),
            account_reclaimable_cache: fields.boolean("accountReclaimableCache")?.unwrap_or(false),
            memory_guard: OptionalAmount::take(
                &mut fields,
                "memoryGuard",
                mode.has_memory_guard(),
            )?,
            kernel_floor: OptionalAmount::take(&mut fields, "kernelFloor", true)?,
            pinned_guard: pinned_guard::take(&mut fields)?,
            filesystems: FilesystemPaths::take(&mut fields)?,
            mitigation,
            policy: PolicyConfig::take(&mut fields)?,
            metrics_address,
            metrics_tls: metrics_tls::take(
                &mut fields,
                metrics_address.is_some(),
                cluster.is_some(),
            )?,
            health_address: fields.socket_address("healthAddress")?,
            cluster,
            cri,
            deprecated,
        };
        fields.deny_unknown_fields()?;
        config.check()?;
        Ok(config)
    }

    /// Whether the node's kubelet acts on this hard threshold as well, but for a step that raises it here. For what a fallback
    /// names it mostly has none, and in mode `kubelet` it is evictd that acts.
    pub fn follows_kubelet(&self, threshold: &Threshold) -> bool {
        let is_evictds = matches!(self.origins.of(threshold), Origin::Own | Origin::Fallback);
        self.cluster.is_some() && self.mode == Mode::Evictd && !is_evictds
    }

    /// Refuses fields that contradict each other.
    fn check(&self) -> Result<(), ConfigError> {
        if let (Some(_), Some(manifest)) = (&self.cluster, &self.pod_manifest) {
            return Err(ConfigError::text(
                "podManifest",
                &manifest.display().to_string(),
                "cannot be used together with cluster: the API server says which pods run here",
            ));
        }
        let floor = &self.kernel_floor;
        if let (true, Some(amount)) = (floor.enabled, &floor.memory_available) {
            kernel_floor::check(amount, &self.eviction.thresholds, &self.origins)?;
        }
        if let (Some(metrics), Some(health)) = (self.metrics_address, self.health_address)
            && metrics.port() == health.port()
            && metrics.port() != 0
            && (metrics.ip() == health.ip() || takes_all(metrics) || takes_all(health))
        {
            let reason = "overlaps metricsAddress: each has a port of its own";
            return Err(ConfigError::text(
                "healthAddress",
                &health.to_string(),
                reason,
            ));
        }
        Ok(())
    }
}

/// Whether a listener takes all addresses of both families: one on `0.0.0.0` listens on `[::]` too.
fn takes_all(address: SocketAddr) -> bool {
    address.ip().is_unspecified()
}

/// The values of `memoryHook`.
const MEMORY_HOOKS: [(&str, Option<MemoryHook>); 6] = [
    ("auto", None),
    ("fexit", Some(MemoryHook::Fexit)),
    ("kprobe", Some(MemoryHook::Kprobe)),
    ("tracepoint", Some(MemoryHook::Tracepoint)),
    ("eventfd", Some(MemoryHook::Eventfd)),
    ("sampler", Some(MemoryHook::Sampler)),
];

impl ScopeConfig {
    fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        let cgroup = fields.section("scope", |scope| scope.absolute_path("cgroup"))?;
        Ok(Self {
            cgroup: cgroup.flatten(),
        })
    }
}

impl OptionalAmount {
    fn take(
        fields: &mut ObjectDecoder,
        name: &'static str,
        enabled: bool,
    ) -> Result<Self, ConfigError> {
        let taken = fields.section(name, |amount| {
            Ok(Self {
                enabled: amount.boolean("enabled")?.unwrap_or(true),
                memory_available: amount.parsed("memory.available")?,
            })
        })?;
        Ok(taken.unwrap_or(Self {
            enabled,
            memory_available: None,
        }))
    }
}

/// Takes the eviction fields out of a KubeletConfiguration.
fn kubelet_fields(document: Value) -> Result<EvictionFields, ConfigError> {
    let mut fields = ObjectDecoder::open("", document)?;
    if let Some(kind) = fields.text("kind")?
        && kind != "KubeletConfiguration"
    {
        return Err(ConfigError::text(
            "kind",
            &kind,
            "must be KubeletConfiguration",
        ));
    }
    EvictionFields::take_of_kubelet(&mut fields)
}
