//! The task that asks pods to go: the rounds hand over whom, the API server says who may.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    evict::soft::{SoftCandidate, SoftEvictor, SoftOutcome, SoftPressure as _},
    rounds::{Inbox, Letter, SoftDemand},
};

/// How long after nobody could go they are asked again: the kubelet's own period.
const PAUSE: Duration = Duration::from_secs(10);
/// Without a demand for so long pressure has been over in between.
const RELIEVED: Duration = Duration::from_secs(60);

/// Takes one demand after the other, and tells the rounds what came of it.
pub async fn run(
    mut evictor: SoftEvictor,
    mut demands: mpsc::Receiver<Box<SoftDemand>>,
    rounds: Arc<Inbox>,
) {
    let mut last: Option<Instant> = None;
    while let Some(demand) = demands.recv().await {
        if last
            .replace(Instant::now())
            .is_some_and(|at| at.elapsed() > RELIEVED)
        {
            evictor.relieved();
        }
        let candidates: Vec<_> = demand
            .candidates
            .iter()
            .map(|(entry, eviction)| SoftCandidate {
                pod: &entry.pod,
                message: &eviction.message.text,
            })
            .collect();
        let outcome = evictor.evict_soft(&candidates, demand.hard).await;
        let gone = match outcome {
            SoftOutcome::Evicted { index, .. } | SoftOutcome::Gone { index } => {
                demand.candidates.get(index).map(|(_, e)| e.clone())
            }
            SoftOutcome::Blocked { since } => {
                tracing::warn!(signal = %demand.signal, ?since, "budgets protect every candidate");
                tokio::time::sleep(PAUSE).await;
                None
            }
            SoftOutcome::Nobody => {
                tokio::time::sleep(PAUSE).await;
                None
            }
        };
        if let Some((_, chosen)) = demand.candidates.first() {
            let chosen = chosen.uid.clone();
            rounds.send(Letter::SoftSettled { chosen, gone });
        }
    }
}
