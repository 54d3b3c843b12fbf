//! What an earlier agent has done before it ended counts for this one: limits, pace, victims that are not dead yet.

use std::{path::PathBuf, sync::Arc, time::Duration};

use evictd_engine::{
    ManagedPod as _, Resource, RestoredState, kubelet_times::MONITORING_INTERVAL_NS,
};
use evictd_fastpath::RestoredVictim;
use evictd_node::pods::table::PodEntry;
use evictd_policy::PolicyEvaluator;
use evictd_store::{
    disk_queue::DiskQueue,
    record::{oom_kill::PodName, resource_of_signal},
    restore::{Restored, UNDER_WAY_NS},
};
use evictd_sys::clock::monotonic_ns;
use jiff::Timestamp;

use super::{
    clear,
    ensure_dead::{EnsureDead, KILL_TIMEOUT, KilledPod},
};
use crate::daemon::oom::{Ending, NotedEviction};

/// Charges the limits with the earlier evictions, before any pod is judged. A limit that comes later counts what the
/// journal has by then.
pub fn charge_limits(evaluator: &PolicyEvaluator, restored: &Restored, journal: &DiskQueue) {
    evaluator.restore(restored.evictions());
    let journal = journal.clone();
    evaluator.set_history(move || journal.evictions());
    let victims = restored.victims().into_iter();
    evaluator.await_end(victims.map(|v| (v.uid, v.signalled)));
}

/// Builds the state that the planner starts with.
pub fn planner_state(restored: &Restored, entries: &[Arc<PodEntry>]) -> RestoredState {
    restored.planner_state(|uid, at| is_there(entries, uid, at).is_some())
}

/// Lists the earlier agent's victims of which something is left: processes, or memory that the kubelet has not
/// unmounted yet.
pub fn terminating(restored: &Restored, entries: &[Arc<PodEntry>]) -> Vec<RestoredVictim> {
    let victims = restored.victims().into_iter().filter_map(|victim| {
        let entry = entries.iter().find(|e| e.pod.uid == victim.uid)?;
        (!entry.is_younger_than(victim.signalled)).then(|| RestoredVictim {
            pod: Arc::clone(entry),
            signalled: victim.signalled,
            signal: victim.signal.parse().ok(),
            is_stuck: victim.is_stuck,
        })
    });
    victims.collect()
}

/// Time of the last kill for memory within the kubelet's interval: the pace goes on.
pub fn last_eviction(restored: &Restored) -> Option<u64> {
    let victims = restored.victims().into_iter();
    let of_memory = victims.filter(|v| resource_of_signal(&v.signal) == Some(Resource::Memory));
    let last = of_memory.map(|victim| victim.signalled).max()?;
    (monotonic_ns().saturating_sub(last) < MONITORING_INTERVAL_NS).then_some(last)
}

/// Lists the earlier agent's evictions that may be under way: what the OOM killer does meanwhile comes after them.
pub fn under_way(restored: &Restored, entries: &[Arc<PodEntry>]) -> Vec<NotedEviction> {
    let now = monotonic_ns();
    let noted = |uid: &str, signal: &str, signalled: u64, left, ending| {
        let entry = is_there(entries, uid, signalled)?;
        Some(NotedEviction {
            pod: PodName::from(&entry.pod),
            signalled,
            grace: Duration::from_nanos(now.saturating_sub(signalled)) + left,
            ending,
            resource: resource_of_signal(signal),
        })
    };
    let killed = restored.victims().into_iter();
    let killed =
        killed.filter_map(|v| noted(&v.uid, &v.signal, v.signalled, KILL_TIMEOUT, Ending::Killed));
    let requested = restored.requests().into_iter().filter_map(|request| {
        let left = Duration::from_nanos(request.left);
        noted(
            &request.uid,
            &request.signal,
            request.at,
            left,
            Ending::NotBySigkill,
        )
    });
    killed.chain(requested).collect()
}

/// Goes on with what the earlier agent was doing: what is left of its victims is killed once more, and the volumes of
/// those that have died are emptied. `ends_pods`: no kubelet ends pods after a soft eviction. `leftovers` has the
/// emptyDirs of a pod (its UID) that are to be emptied.
pub fn go_on(
    restored: &Restored,
    entries: &[Arc<PodEntry>],
    ends_pods: bool,
    leftovers: impl Fn(&str) -> Vec<PathBuf>,
    ensure_dead: &EnsureDead,
) {
    let mut of_dead = Vec::new();
    let mut died = |entry: &Arc<PodEntry>, at: u64, volumes: Vec<PathBuf>| {
        let ago = monotonic_ns().saturating_sub(at);
        // A stuck one is remembered for longer, and may have run since.
        if entry.is_empty() && !volumes.is_empty() && ago <= UNDER_WAY_NS.cast_unsigned() {
            let until = Timestamp::now() - Duration::from_nanos(ago);
            of_dead.push((Arc::clone(entry), volumes, until));
        }
    };
    for victim in restored.victims() {
        let Some(entry) = entries.iter().find(|e| e.pod.uid == victim.uid) else {
            continue;
        };
        let volumes = leftovers(&victim.uid);
        if entry.killer.holds_older_than(victim.signalled) {
            tracing::warn!(pod = %entry.pod, id = victim.id, "a pod that was evicted before is not gone yet");
            ensure_dead.look_at(KilledPod {
                entry: Arc::clone(entry),
                signalled: victim.signalled,
                left: volumes,
            });
        } else {
            died(entry, victim.signalled, volumes);
        }
    }
    for asked in restored.requests().into_iter().filter(|_| ends_pods) {
        let Some(entry) = entries.iter().find(|e| e.pod.uid == asked.uid) else {
            continue;
        };
        let volumes = leftovers(&asked.uid);
        if entry.killer.holds_older_than(asked.at) {
            let entry = Arc::clone(entry);
            let left = Duration::from_nanos(asked.left);
            tracing::warn!(pod = %entry.pod, ?left, "a pod that was asked to go before has this time left");
            let end = ensure_dead.graceful_end();
            tokio::task::spawn_blocking(move || end.run(&entry, left, volumes, || {}));
        } else {
            // When it ended is not known: what it has written since the request stays.
            died(entry, asked.at, volumes);
        }
    }
    if !of_dead.is_empty() {
        // One thread for all of them: others wait for the disk as well.
        tokio::task::spawn_blocking(move || {
            for (entry, volumes, until) in of_dead {
                for volume in volumes {
                    // It may run again by now.
                    if entry.is_empty() {
                        clear(&[volume], Some(until));
                    }
                }
            }
        });
    }
}

/// The entry of a pod of which something is left that ran at a moment, in nanoseconds of CLOCK_MONOTONIC.
fn is_there<'a>(entries: &'a [Arc<PodEntry>], uid: &str, at: u64) -> Option<&'a Arc<PodEntry>> {
    let entry = entries.iter().find(|e| e.pod.uid == uid)?;
    entry.killer.holds_older_than(at).then_some(entry)
}
