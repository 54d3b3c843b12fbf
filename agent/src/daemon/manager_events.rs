//! What the rounds have done or want done.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use evictd_engine::Eviction;
use evictd_kube::soft_eviction::{SoftChoice, SoftRequest};
use evictd_manager::{
    Decided, Inbox, Letter, Note, ReclaimDemand, Reclaimed, Reclaimer, SoftDemand,
};
use evictd_node::cgroup::end::end_gracefully;
use evictd_store::record::{Asked, Record};

use super::Agent;
use crate::daemon::{
    eviction_log::{PATIENCE, reap},
    pod_source::Source,
};

impl Agent {
    pub(super) fn take_note(&mut self, note: Note) {
        match note {
            Note::Evicted(decided) => self.take_decided(&decided),
            Note::Soft(demand) => self.take_demand(*demand),
            Note::Node(state) => {
                tracing::info!(conditions = ?state.conditions, why = state.message, "the node's conditions");
                if let Source::Cluster { cluster, .. } = &mut self.source {
                    cluster.node_state(state);
                }
            }
            Note::Reclaim(demand) => self.take_reclaim(demand),
            Note::Reclaimed(reclaimed) => self.take_reclaimed(&reclaimed),
            Note::Graduate(demand) => self.graduate(*demand),
            Note::Graduated(graduated) => self.reconciler.take_graduated(&graduated),
            Note::MetInForce {
                signal,
                available,
                threshold,
            } => {
                self.metrics.met_in_force();
                let record = self.reconciler.take_met(signal, available, threshold);
                self.tell_cluster(&record);
            }
            Note::Stuck(entry) => {
                if let Some(record) = self.reconciler.take_stuck(&entry) {
                    self.metrics.stuck();
                    self.tell_cluster(&record);
                }
            }
            Note::Comeback(comeback) => {
                tracing::warn!(
                    uid = comeback.uid,
                    count = comeback.count,
                    hold = ?comeback.hold,
                    "an evicted pod's owner has put another one here"
                );
                self.reconciler.take_comeback(&comeback);
            }
        }
    }

    fn take_reclaim(&self, demand: ReclaimDemand) {
        let what: Vec<_> = demand.what.iter().map(|w| w.as_str()).collect();
        match demand.of {
            // It has the same thresholds, and reclaims when it looks the next time.
            Reclaimer::Kubelet => {
                tracing::info!(?what, "the kubelet may reclaim before pods go");
            }
            Reclaimer::Nobody => tracing::warn!(?what, "would reclaim before pods go"),
            Reclaimer::Runtime => {
                tracing::info!(?what, "the container runtime reclaims before pods go");
                let known = self.source.known_pods();
                let what = demand.what;
                let request = evictd_cri::Request { what, known };
                if !self.cri.as_ref().is_some_and(|cri| cri.ask(request)) {
                    self.tell_rounds(Letter::Reclaimed(None));
                }
            }
        }
    }

    /// Does a step away from this thread; nobody waits for it but the step after it.
    fn graduate(&self, demand: evictd_manager::mitigation_worker::Demand) {
        let pods = demand.pods.len();
        if demand.shadow {
            tracing::warn!(step = ?demand.step, pods, "would act before anybody is evicted");
            return;
        }
        let Some(rounds) = self.rounds.as_ref().map(|r| Arc::clone(r.inbox())) else {
            return;
        };
        let worker = Arc::clone(&self.graduated);
        tokio::task::spawn_blocking(move || {
            let done = Box::new(worker.work(&demand));
            rounds.send(Letter::Graduated(done));
        });
    }

    fn take_reclaimed(&self, reclaimed: &Reclaimed) {
        if let Some(cri) = &self.cri {
            cri.note(reclaimed.is_enough);
        }
        self.reconciler.take_reclaimed(reclaimed);
    }

    fn take_decided(&mut self, decided: &Decided) {
        self.show_decided(decided);
        self.policies.note(&decided.pod.pod, false);
        let record = self.reconciler.take_decided(decided);
        if !decided.shadow {
            let victim = Arc::clone(&decided.pod);
            let left = self.source.leftovers(&victim.pod.uid);
            tokio::task::spawn_blocking(move || {
                reap(&victim);
                clear(&left);
            });
        }
        if let Source::Cluster { cluster, .. } = &mut self.source {
            cluster.evicted(record.clone());
        }
        self.note_incident(&Record::evicted(record), None);
    }

    fn take_demand(&mut self, demand: SoftDemand) {
        let Some(choice) = demand.candidates.first() else {
            return;
        };
        let chosen = choice.eviction.uid.clone();
        if let (Source::Cluster { cluster, .. }, false) = (&self.source, demand.shadow) {
            if !cluster.ask(soft_request(demand)) {
                self.tell_rounds(Letter::SoftSettled { chosen, gone: None });
            }
            return;
        }
        let (entry, eviction) = (Arc::clone(&choice.pod), choice.eviction.clone());
        let (message, grace) = (&eviction.message.text, eviction.grace_period_seconds);
        let mut asked = Asked::new(&entry.pod, message, choice.numbers, grace);
        asked.shadow = demand.shadow;
        let record = self.reconciler.take_asked(asked);
        self.note_incident(&record, None);
        if demand.shadow {
            return;
        }
        let left = self.source.leftovers(&chosen);
        let Some(rounds) = self.rounds.as_ref().map(|r| Arc::clone(r.inbox())) else {
            return;
        };
        tokio::task::spawn_blocking(move || {
            let grace = u64::try_from(eviction.grace_period_seconds).unwrap_or(0);
            let ended = end_gracefully(entry.killer.path(), Duration::from_secs(grace), PATIENCE);
            if let Err(error) = ended {
                tracing::error!(pod = %entry.pod, %error, "a pod that was asked to go is not gone");
            }
            clear(&left);
            settle(&rounds, chosen, eviction);
        });
    }
}

/// What the API server is asked.
fn soft_request(demand: SoftDemand) -> SoftRequest {
    let choice = |choice: evictd_manager::SoftChoice| SoftChoice {
        pod: choice.pod.pod.clone(),
        eviction: choice.eviction,
        numbers: choice.numbers,
    };
    SoftRequest {
        signal: demand.signal,
        candidates: demand.candidates.into_iter().map(choice).collect(),
        hard: demand.hard,
    }
}

fn settle(rounds: &Inbox, chosen: String, gone: Eviction) {
    let gone = Some(gone);
    rounds.send(Letter::SoftSettled { chosen, gone });
}

/// Empties directories; they themselves stay, for whoever comes next.
fn clear(directories: &[PathBuf]) {
    for directory in directories {
        if let Err(error) = empty(directory) {
            tracing::warn!(directory = %directory.display(), %error, "an emptyDir is not empty");
        }
    }
}

fn empty(directory: &PathBuf) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
