//! Counters of owners that have several: name, help, and where the value is.

use std::sync::atomic::AtomicU64;

use evictd_common::drops::DropCounter;
use evictd_cri::Counters;
use evictd_manager::MitigationWorker;
use evictd_store::incident::files::IncidentCounters;

use crate::daemon::oom::OomCounters;

/// Counters of drops: name, help, and the kernel's counter.
pub const DROPS: [(&str, &str, DropCounter); 4] = [
    (
        "trigger_events_dropped",
        "Crossings that did not fit into the triggers' ring buffers",
        DropCounter::Wakeup,
    ),
    (
        "oom_records_dropped",
        "OOM kills that did not fit into their ring buffers",
        DropCounter::OomRecord,
    ),
    (
        "cgroup_events_dropped",
        "Cgroup events that did not fit into their ring buffer: the directories were scanned instead",
        DropCounter::CgroupEvent,
    ),
    (
        "cgroup_counts_dropped",
        "Tasks and inodes that were counted in the whole but for no cgroup",
        DropCounter::CgroupCount,
    ),
];

/// A name, what it means, and which of its owner's counters it is.
pub type CounterDef<C> = (&'static str, &'static str, fn(&C) -> &AtomicU64);

/// Counters of the OOM killer's kills.
pub const OOM_KILLS: [CounterDef<OomCounters>; 5] = [
    (
        "oom_killer_first",
        "OOM kills on a short node before the agent had acted",
        |c| &c.first,
    ),
    (
        "oom_kills_after_eviction",
        "OOM kills on a short node while a pod was being evicted for memory, or just after",
        |c| &c.after_eviction,
    ),
    (
        "oom_kills_at_pod_limit",
        "OOM kills of pods at limits of their own",
        |c| &c.pod_limit,
    ),
    (
        "oom_kills_at_other_limit",
        "OOM kills at limits of other cgroups",
        |c| &c.other_limit,
    ),
    (
        "oom_kills_unattributed",
        "OOM kills of which neither the pod nor the limit is known",
        |c| &c.unattributed,
    ),
];

/// Counters of node-level reclaim.
pub const RECLAIMS: [CounterDef<Counters>; 9] = [
    (
        "node_reclaims",
        "Times that the container runtime was asked to remove what is not in use",
        |c| &c.reclaims,
    ),
    (
        "node_reclaims_enough",
        "Of those, after which no pod had to go",
        |c| &c.enough,
    ),
    (
        "node_reclaims_cut_short",
        "Of those, that had more to remove than time",
        |c| &c.cut_short,
    ),
    (
        "node_reclaimed_containers",
        "Containers removed that had ended",
        |c| &c.containers,
    ),
    (
        "node_reclaimed_sandboxes",
        "Sandboxes removed that had ended",
        |c| &c.sandboxes,
    ),
    ("node_reclaimed_images", "Unused images removed", |c| {
        &c.images
    }),
    (
        "node_reclaimed_image_bytes",
        "Size of those images, as the runtime counts it",
        |c| &c.image_bytes,
    ),
    (
        "node_reclaim_refusals",
        "Containers, sandboxes and images that the runtime refused to remove",
        |c| &c.refused,
    ),
    (
        "runtime_operations_errors",
        "Times that the container runtime did not answer, or not as one",
        |c| &c.unavailable,
    ),
];

/// Counters of mitigation.
pub const MITIGATION: [CounterDef<MitigationWorker>; 6] = [
    (
        "mitigation_reclaims",
        "Times that cold page cache was reclaimed under a soft threshold",
        |w| &w.counters().reclaims,
    ),
    (
        "mitigation_reclaimed_bytes",
        "By how much less was charged to pods after that",
        |w| &w.counters().reclaimed,
    ),
    (
        "mitigation_reclaimed_working_set_bytes",
        "What of that counted as used",
        |w| &w.counters().reclaimed_working_set,
    ),
    (
        "mitigation_throttles",
        "Pods kept from growing by memory.high",
        |w| &w.counters().throttles,
    ),
    (
        "mitigation_unthrottles",
        "Pods let grow again, those that an earlier agent had left included",
        |w| &w.counters().released,
    ),
    (
        "mitigation_refusals",
        "Steps that were refused, or not done in full",
        |w| &w.counters().refused,
    ),
];

/// Counters of incidents.
pub const INCIDENTS: [CounterDef<IncidentCounters>; 2] = [
    (
        "incidents_written",
        "Evictions that were written down for evictd report",
        |k| &k.written,
    ),
    (
        "incidents_dropped",
        "Evictions that could not be written down; the journal has them all the same",
        |k| &k.failed,
    ),
];
