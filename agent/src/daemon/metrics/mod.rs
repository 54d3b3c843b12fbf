//! The metrics of the daemon: fills the collector of `telemetry` with what each part of the agent counts.

mod counters;

use std::{
    fmt, iter,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use evictd_common::drops::DropCounter;
use evictd_config::KubeletSource;
use evictd_engine::{Signal, model::settings::MemoryHook};
use evictd_fastpath::{FastPathControl, FastPathEventQueue, FastPathStatus};
use evictd_kube::session::Cluster;
use evictd_node::{memory_scope::Scope, proc::numa};
use evictd_store::{disk_queue::DiskQueue, incident::files::IncidentCounters};
use prometheus_client::metrics::MetricType;

use super::{
    fastpath::RunningFastPath,
    log::Log,
    manager::{FILESYSTEMS, RunningManager, unknown_layers},
    oom::OomCounters,
    pods::PodSource,
    policies::Policies,
    signals::{INODES, Signals},
};
use crate::telemetry::{Health, HookInfo, MANAGER, MetricFamily, MetricsCollector};
use counters::{CounterDef, INCIDENTS, MITIGATION, OOM_KILLS, RECLAIMS};

pub use counters::DROPS;

/// Parts of the agent whose numbers are read at a scrape.
pub(super) struct MetricInputs<'a> {
    pub fastpath: &'a RunningFastPath,
    pub manager: &'a RunningManager,
    pub health: &'a Arc<Health>,
    pub hooks: Vec<HookInfo>,
    pub source: &'a PodSource,
    pub dropped: &'a Arc<Dropped>,
    pub reloads: &'a Arc<Reloads>,
    pub oom: &'a Arc<OomCounters>,
    pub policies: &'a Policies,
    /// Queue of what waits for the disk.
    pub journal: &'a DiskQueue,
    /// Counters of the incidents that were written down.
    pub incidents: &'a Arc<IncidentCounters>,
    pub log: &'a Arc<Log>,
}

/// Counts of what the kernel's programs could not deliver, by counter, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Dropped([AtomicU64; DropCounter::COUNT as usize]);

impl Dropped {
    pub fn set(&self, which: DropCounter, value: u64) {
        if let Some(slot) = self.0.get(which as usize) {
            slot.store(value, Ordering::Relaxed);
        }
    }

    fn get(&self, which: DropCounter) -> u64 {
        let slot = self.0.get(which as usize);
        slot.map_or(0, |slot| slot.load(Ordering::Relaxed))
    }
}

/// Counts of how often the configuration was read again.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    pub applied: AtomicU64,
    pub refused: AtomicU64,
    /// What was read last could not be used: the last good configuration is in force.
    pub is_refused: AtomicBool,
    /// Shadow mode is on.
    pub shadow: AtomicBool,
    /// Source of the kubelet's settings: an index into [`KubeletSource::ALL`].
    kubelet: AtomicUsize,
}

impl Reloads {
    pub fn note_kubelet(&self, source: KubeletSource) {
        let index = KubeletSource::ALL.iter().position(|s| *s == source);
        self.kubelet.store(index.unwrap_or(0), Ordering::Relaxed);
    }

    /// The source that is in use.
    fn kubelet(&self) -> KubeletSource {
        let used = self.kubelet.load(Ordering::Relaxed);
        KubeletSource::ALL.get(used).copied().unwrap_or_default()
    }
}

/// The collector of all that is read at a scrape.
pub(super) fn collector(inputs: &MetricInputs<'_>) -> MetricsCollector {
    let cluster = inputs.source.cluster();
    let mut collector = MetricsCollector {
        status: Arc::clone(&inputs.manager.status),
        connection: cluster.map(|cluster| Arc::clone(cluster.connection())),
        hooks: inputs.hooks.clone(),
        families: inputs.policies.gauges(),
        start_time: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    if let Some(fleet) = cluster.and_then(Cluster::fleet_brake) {
        collector.gauge(
            "fleet_brake_available",
            "1 while both ConfigMaps of the fleet brake are there and the last report has reached them",
            fleet,
            |fleet| fleet.is_available(),
        );
    }
    collect_queues(&mut collector, inputs);
    collect_pods(&mut collector, inputs);
    collect_counters(&mut collector, inputs.oom, OOM_KILLS);
    collect_counters(&mut collector, &inputs.manager.mitigation, MITIGATION);
    collect_counters(&mut collector, inputs.incidents, INCIDENTS);
    if let Some(cri) = &inputs.manager.cri {
        collect_counters(&mut collector, cri.counters(), RECLAIMS);
    }
    collect_configuration(&mut collector, inputs);
    for (name, help, which) in DROPS {
        collector.counter(name, help, inputs.dropped, move |dropped| {
            dropped.get(which)
        });
    }
    collector
}

/// Adds queues: what waits for a thread, and what found no place there.
fn collect_queues(collector: &mut MetricsCollector, inputs: &MetricInputs<'_>) {
    collector.counter(
        "fastpath_events_dropped",
        "Events of the fast path that did not fit into its queue",
        &inputs.fastpath.events,
        FastPathEventQueue::dropped,
    );
    collector.counter(
        "fastpath_kills_dropped",
        "Kills by others that did not fit into the queue to the fast path: what they free was not waited for",
        &inputs.fastpath.control,
        FastPathControl::kills_dropped,
    );
    collector.counter(
        "standby_decisions",
        "Crossings decided by the standby thread on the CPU where they happened, because the fast path was late",
        &inputs.fastpath.status,
        FastPathStatus::take_overs,
    );
    collector.counter(
        "manager_events_dropped",
        "Events of the manager that did not fit into its queue",
        &inputs.manager.events,
        |events| events.dropped(),
    );
    collector.counter(
        "manager_commands_dropped",
        "Commands to the manager that did not fit into its queue",
        &inputs.manager.commands,
        |commands| commands.dropped(),
    );
    collector.counter(
        "journal_records_dropped",
        "Records that could not be written to the journal",
        &inputs.journal.lost(),
        |lost| lost.load(Ordering::Relaxed),
    );
    collector.counter(
        "log_lines_dropped",
        "Lines of the log that were not written: they were not read, or standard error refused them",
        inputs.log,
        Log::dropped,
    );
    let queue = inputs.journal.clone();
    collector.families.push(MetricFamily::labelled(
        MetricType::Gauge,
        "disk_queue",
        "Records and files that wait to be written to the state directory",
        "kind",
        move || {
            let waiting = [("record", queue.records()), ("file", queue.files())];
            waiting
                .map(|(kind, n)| (kind.to_owned(), n as u64))
                .to_vec()
        },
    ));
}

/// Adds pods, and what watches them.
fn collect_pods(collector: &mut MetricsCollector, inputs: &MetricInputs<'_>) {
    let unopened = inputs.source.unopened();
    collector.counter(
        "pod_open_failures",
        "Pods that could not be opened or listed although they were there: they are not evicted until they can be",
        &unopened,
        |unopened| unopened.total.load(Ordering::Relaxed),
    );
    collector.gauge(
        "pods_not_open",
        "Pods that could not be opened, and directories of pods that could not be listed, at the last attempt",
        &unopened,
        |unopened| unopened.now.load(Ordering::Relaxed),
    );
    collector.gauge(
        "pods_without_cgroup",
        "Pods that run by the API server's word, and whose cgroups were not found for a minute: they are not evicted",
        &inputs.source.without_cgroup(),
        |pods| pods.load(Ordering::Relaxed),
    );
    collector.gauge(
        "pods_with_unfollowed_cgroups",
        "Pods with more cgroups than the agent follows: processes in the others are killed last",
        &unopened,
        |unopened| unopened.cut.load(Ordering::Relaxed),
    );
    collector.gauge(
        "manager_stuck",
        "1 while the manager has not run for 30 seconds: only memory is watched",
        inputs.health,
        |health| health.is_late(MANAGER),
    );
    let status = Arc::clone(&inputs.manager.status);
    collector.families.push(MetricFamily::labelled(
        MetricType::Gauge,
        "filesystem_stuck",
        "1 while a filesystem has not answered, or only with errors, or not been mounted, for five seconds: its signals are not watched",
        "filesystem",
        move || {
            let each = FILESYSTEMS.iter().zip(status.get().hung);
            each.map(|(name, hung)| ((*name).to_owned(), hung))
                .collect()
        },
    ));
    collector.gauge(
        "disk_scan_stuck",
        "1 while the thread that measures the pods' use of disks has waited for a filesystem for ten minutes",
        &inputs.manager.scanner,
        |scanner| scanner.is_stuck(),
    );
    collector.gauge(
        "pods_disk_usage_unknown",
        "Pods whose use of disks was not measured yet: an eviction for a disk waits for them, up to 30 seconds",
        &inputs.manager.scanner,
        |scanner| scanner.unknown_pods() as u64,
    );
    collector.gauge(
        "writable_layers_unknown",
        "Containers of which neither a walk nor the runtime tells what they have written to their roots: it counts as \
        nothing",
        &inputs.manager.scanner,
        unknown_layers,
    );
    collector.gauge(
        "memory_hook_lost",
        "1 while the hook for memory could not be attached or detached at the last attempt: the sampler goes on alone",
        &inputs.fastpath.status,
        |status| status.is_hook_lost(),
    );
}

/// Adds the configuration, and what the machine gives.
fn collect_configuration(collector: &mut MetricsCollector, inputs: &MetricInputs<'_>) {
    let reloads = Arc::clone(inputs.reloads);
    collector.families.push(MetricFamily::labelled(
        MetricType::Counter,
        "config_reloads",
        "Changed configurations, by whether they were put in force; after a failure the last good one stays in force",
        "result",
        move || {
            let counts = [("success", &reloads.applied), ("failure", &reloads.refused)];
            counts
                .map(|(result, count)| (result.to_owned(), count.load(Ordering::Relaxed)))
                .to_vec()
        },
    ));
    collector.gauge(
        "config_refused",
        "1 while the configuration that was read last cannot be used, and the last good one is in force",
        inputs.reloads,
        |reloads| reloads.is_refused.load(Ordering::Relaxed),
    );
    // Former names, shown until the next release.
    collector.counter(
        "configuration_reloads",
        "Deprecated: evictd_config_reloads_total{result=\"success\"}",
        inputs.reloads,
        |reloads| reloads.applied.load(Ordering::Relaxed),
    );
    collector.counter(
        "configuration_refused",
        "Deprecated: evictd_config_reloads_total{result=\"failure\"}",
        inputs.reloads,
        |reloads| reloads.refused.load(Ordering::Relaxed),
    );
    collector.gauge(
        "shadow_mode",
        "1 in shadow mode: the agent decides and reports, and evicts no pod",
        inputs.reloads,
        |reloads| reloads.shadow.load(Ordering::Relaxed),
    );
    collector.families.push(MetricFamily::state_set(
        "realtime_priority",
        "1 for a thread that has SCHED_FIFO; the log says why one has not",
        "thread",
        [("fastpath", inputs.fastpath.is_realtime)],
        |is_realtime| is_realtime,
    ));
    collector.families.push(MetricFamily::labelled(
        MetricType::Gauge,
        "numa_node_available_bytes",
        "Memory of a NUMA node that tasks bound to it can use: free, page cache, and reclaimable slab",
        "numa_node",
        || {
            // Where the files cannot be read there is nothing to show.
            let nodes = numa::nodes(Path::new("/sys")).unwrap_or_default();
            let shown = nodes.into_iter();
            shown
                .map(|node| (node.id.to_string(), node.available))
                .collect()
        },
    ));
    let reloads = Arc::clone(inputs.reloads);
    collector.families.push(MetricFamily::state_set(
        "kubelet_configuration",
        "1 for where the kubelet's settings come from",
        "source",
        KubeletSource::ALL.map(|source| (source.as_str(), source)),
        move |source| reloads.kubelet() == source,
    ));
}

fn collect_counters<C, const N: usize>(
    collector: &mut MetricsCollector,
    counters: &Arc<C>,
    which: [CounterDef<C>; N],
) where
    C: Send + Sync + 'static,
{
    for (name, help, which) in which {
        collector.counter(name, help, counters, move |counters| {
            which(counters).load(Ordering::Relaxed)
        });
    }
}

/// The hook of each signal, that of memory for the scopes that are watched.
pub(super) fn hooks(signals: &Signals, memory: MemoryHook, scopes: &[Scope]) -> Vec<HookInfo> {
    let info = |signal: &str, hook: &dyn fmt::Display| HookInfo {
        signal: signal.to_owned(),
        hook: hook.to_string(),
    };
    let counted = iter::once(Signal::PidAvailable).chain(INODES);
    let counted = counted.map(|signal| info(signal.as_str(), &signals.sources.hook(signal)));
    let pods = info("pods", &signals.cgroup_events.selected_hook().hook);
    let memory = scopes
        .iter()
        .map(|scope| info(scope.signal().as_str(), &memory));
    counted.chain([pods]).chain(memory).collect()
}
