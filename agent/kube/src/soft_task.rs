//! The task that asks pods to end: the manager chooses the candidates, the API server says which may.

use std::time::{Duration, Instant};

use evictd_engine::{EvictionDecision, record::Departure};
use evictd_policy::evaluator::BlockReason;
use evictd_store::record::RequestRecord;
use tokio::sync::mpsc;

use crate::soft_eviction::{RELIEVED, SoftEvictor, SoftOutcome, SoftRequest};

/// Time after which pods are asked again when none could be evicted: the kubelet's own period.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Takes one request after the other. What came of it goes to `settle`, with the UID of the pod that was chosen; the
/// record of the pod that was asked goes to `requested`.
pub async fn run(
    mut evictor: SoftEvictor,
    mut requests: mpsc::Receiver<SoftRequest>,
    settle: impl Fn(String, Option<(EvictionDecision, Departure)>) + Send,
    requested: mpsc::Sender<RequestRecord>,
) {
    let mut last: Option<Instant> = None;
    while let Some(request) = requests.recv().await {
        if last.is_some_and(|at| at.elapsed() > RELIEVED) {
            evictor.relieved();
        }
        let outcome = evictor.evict_soft(&request).await;
        let gone = match outcome {
            SoftOutcome::Evicted { index, asked } => {
                // The receiver is gone where the agent ends.
                let _ = requested.send(*asked).await;
                Some((index, Departure::Requested))
            }
            SoftOutcome::Gone { index } => Some((index, Departure::GoneBefore)),
            SoftOutcome::ProtectedByBudgets { since } => {
                tracing::warn!(signal = %request.signal, ?since, "budgets protect every candidate");
                tokio::time::sleep(RETRY_DELAY).await;
                None
            }
            SoftOutcome::Blocked { by, denied } => {
                tracing::error!(
                    signal = %request.signal,
                    %by,
                    paused = by == BlockReason::Paused,
                    urgent_only = matches!(by, BlockReason::PoliciesUnknown | BlockReason::FleetBrake),
                    denied,
                    "the threshold is met and no pod may be evicted"
                );
                tokio::time::sleep(RETRY_DELAY).await;
                None
            }
            SoftOutcome::NotNeeded => {
                tracing::info!(
                    signal = %request.signal,
                    "the threshold is not met any more: no pod needs to go"
                );
                None
            }
            SoftOutcome::NoneRequested => {
                tokio::time::sleep(RETRY_DELAY).await;
                None
            }
        };
        let gone = gone.and_then(|(index, departure)| {
            let candidate = request.candidates.get(index)?;
            Some((candidate.decision.clone(), departure))
        });
        settle(request.chosen, gone);
        // To ask many candidates takes its time, in which pressure is not over.
        last = Some(Instant::now());
    }
}
