//! What of the agent the metrics show.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use evictd_common::Drop;

use super::{Agent, policies::Policies, signals::Signals, source::Source};
use crate::{
    cri::Counters,
    engine::Signal,
    evict::oom::OomCounters,
    graduated,
    kernel::ladder::MemoryHook,
    reflex::{Outbox, Report},
    rounds::{Decided, Rounds},
    telemetry::{Hook, Sources},
};

/// What there is to show.
pub(super) struct Shown<'a> {
    pub memory: MemoryHook,
    /// What the reflex watches by that hook.
    pub memory_signals: Vec<Signal>,
    pub rounds: &'a Rounds,
    pub hooks: Vec<Hook>,
    pub source: &'a Source,
    pub dropped: &'a Arc<Dropped>,
    pub reloads: &'a Arc<Reloads>,
    pub outbox: &'a Arc<Outbox>,
    pub oom: &'a Arc<OomCounters>,
    pub policies: &'a Policies,
    /// What was reclaimed from the node, where there is a runtime to ask.
    pub cri: Option<&'a Arc<Counters>>,
    /// What was done before anybody was evicted.
    pub graduated: &'a Arc<graduated::Worker>,
}

/// Under which names drops are shown, what they mean, and the kernel's counter.
pub(super) const DROPS: [(&str, &str, Drop); 4] = [
    (
        "wakeups_dropped",
        "Crossings that did not fit into the wake-up ring buffers",
        Drop::Wakeup,
    ),
    (
        "telemetry_dropped",
        "Records that did not fit into the telemetry ring buffer",
        Drop::Telemetry,
    ),
    (
        "pod_life_dropped",
        "Cgroup events that did not fit into their ring buffer: the directories were scanned instead",
        Drop::PodLife,
    ),
    (
        "shares_dropped",
        "Tasks and inodes that were counted in the whole but for no cgroup",
        Drop::Share,
    ),
];

/// A name, what it means, and which of its owner's counters it is.
type Shows<C> = (&'static str, &'static str, fn(&C) -> &AtomicU64);

/// Under which names the kills of the OOM killer are shown (R45, R48).
const OOM_KILLS: [Shows<OomCounters>; 4] = [
    (
        "oom_killer_first",
        "OOM kills on a short node before the agent had acted",
        |c| &c.first,
    ),
    (
        "oom_kills_after_eviction",
        "OOM kills on a short node while a pod was being evicted, or just after",
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
];

/// Under which names node-level reclaim is shown (R8).
const RECLAIMS: [Shows<Counters>; 9] = [
    (
        "node_reclaims",
        "Times that the container runtime was asked to give back what nobody needs",
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
    (
        "node_reclaimed_images",
        "Images removed that nobody used",
        |c| &c.images,
    ),
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
        "cri_unavailable",
        "Times that the container runtime did not answer, or not as one",
        |c| &c.unavailable,
    ),
];

/// Under which names graduated action is shown (R46).
const GRADUATED: [Shows<graduated::Worker>; 6] = [
    (
        "graduated_reclaims",
        "Times that cold page cache was reclaimed under a soft threshold",
        |w| &w.counters().reclaims,
    ),
    (
        "graduated_reclaimed_bytes",
        "By how much less was charged to pods after that",
        |w| &w.counters().reclaimed,
    ),
    (
        "graduated_reclaimed_working_set_bytes",
        "What of that counted as used",
        |w| &w.counters().reclaimed_working_set,
    ),
    (
        "graduated_brakes",
        "Pods kept from growing by memory.high",
        |w| &w.counters().brakes,
    ),
    (
        "graduated_releases",
        "Pods let grow again, those that an earlier agent had left included",
        |w| &w.counters().released,
    ),
    (
        "graduated_refusals",
        "Steps that were refused, or not done in full",
        |w| &w.counters().refused,
    ),
];

/// What the kernel's programs could not deliver, by counter, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Dropped([AtomicU64; Drop::COUNT as usize]);

impl Dropped {
    pub fn set(&self, which: Drop, value: u64) {
        if let Some(slot) = self.0.get(which as usize) {
            slot.store(value, Ordering::Relaxed);
        }
    }

    fn get(&self, which: Drop) -> u64 {
        let slot = self.0.get(which as usize);
        slot.map_or(0, |slot| slot.load(Ordering::Relaxed))
    }
}

/// How often the configuration was read again.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    pub applied: AtomicU64,
    pub refused: AtomicU64,
}

pub(super) fn sources(shown: &Shown<'_>) -> Sources {
    let mut hooks = shown.hooks.clone();
    hooks.extend(shown.memory_signals.iter().map(|signal| Hook {
        signal: signal.to_string(),
        rung: shown.memory.to_string(),
    }));
    let mut sources = Sources {
        status: shown.rounds.status(),
        connection: match shown.source {
            Source::Cluster(cluster) => Some(Arc::clone(cluster.connection())),
            Source::Manifest { .. } => None,
        },
        hooks,
        gauges: shown.policies.gauges(),
        ..Sources::default()
    };
    let outbox = Arc::clone(shown.outbox);
    sources.counters.push((
        "reports_dropped",
        "Reports of the reflex that did not fit into its queue",
        Box::new(move || outbox.dropped()),
    ));
    let outbox = Arc::clone(shown.outbox);
    sources.counters.push((
        "deputy_decisions",
        "Crossings decided on the CPU where they happened, because the reflex had not come",
        Box::new(move || outbox.deputised()),
    ));
    show(&mut sources, shown.oom, OOM_KILLS);
    show(&mut sources, shown.graduated, GRADUATED);
    if let Some(counters) = shown.cri {
        show(&mut sources, counters, RECLAIMS);
    }
    let reloads = Arc::clone(shown.reloads);
    sources.counters.push((
        "configuration_reloads",
        "Changed configurations that were put in force",
        Box::new(move || reloads.applied.load(Ordering::Relaxed)),
    ));
    let reloads = Arc::clone(shown.reloads);
    sources.counters.push((
        "configuration_refused",
        "Changed configurations that could not be used: the last good one stayed in force",
        Box::new(move || reloads.refused.load(Ordering::Relaxed)),
    ));
    for (name, help, which) in DROPS {
        let dropped = Arc::clone(shown.dropped);
        let read = move || dropped.get(which);
        sources.counters.push((name, help, Box::new(read)));
    }
    sources
}

fn show<C, const N: usize>(sources: &mut Sources, counters: &Arc<C>, which: [Shows<C>; N])
where
    C: Send + Sync + 'static,
{
    for (name, help, which) in which {
        let counters = Arc::clone(counters);
        let read = move || which(&counters).load(Ordering::Relaxed);
        sources.counters.push((name, help, Box::new(read)));
    }
}

/// The rungs of everything but memory.
pub(super) fn hooks(signals: &Signals) -> Vec<Hook> {
    let mut hooks: Vec<Hook> = [
        Signal::PidAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsInodesFree,
    ]
    .into_iter()
    .map(|signal| Hook {
        signal: signal.to_string(),
        rung: signals.sensors.hook(signal).to_string(),
    })
    .collect();
    hooks.push(Hook {
        signal: "pods".to_owned(),
        rung: signals.life.choice().hook.to_string(),
    });
    hooks
}

impl Agent {
    /// What the reflex reports.
    pub(super) fn show(&self, report: &Report) {
        match report {
            Report::Evicted(e) => {
                let signal = e.signal.as_str();
                self.metrics
                    .evicted(signal, e.shadow, e.stages, e.errno != 0, Some(e.number));
            }
            Report::Finished(finished) => self.metrics.finished(finished),
            _ => {}
        }
    }

    /// What the rounds have done.
    pub(super) fn show_decided(&self, d: &Decided) {
        self.metrics
            .evicted(&d.signal, d.shadow, d.stages, d.errno != 0, None);
    }
}
