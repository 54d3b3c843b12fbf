//! The fast path while it runs: its start, its queues, and the pinned guard that acts while no agent runs.

mod pinned_guard;

use std::sync::Arc;

use evictd_config::Config;
use evictd_engine::limiter::EvictionLimiter;
use evictd_fastpath::{
    FastPath, FastPathControl, FastPathEventQueue, FastPathSetup, FastPathStatus,
};
use evictd_node::{memory_scope::Scope, pods::table::PodTable, trigger::memory::TriggerSet};
use evictd_store::restore::Restored;

use super::{RunError, evictions::restore, memory::look_at_watermarks};

pub(super) use pinned_guard::stop_for_pause;

/// The running fast path.
pub(super) struct RunningFastPath {
    /// Handle of the fast path, until the agent ends.
    thread: Option<FastPath>,
    pub control: Arc<FastPathControl>,
    pub events: Arc<FastPathEventQueue>,
    pub status: Arc<FastPathStatus>,
    /// Whether the thread has real-time priority.
    pub is_realtime: bool,
    /// Whether shadow mode was on at the start: no pinned guard was asked for.
    pub began_in_shadow: bool,
}

/// Arguments of `start`.
pub(super) struct StartArgs<'a> {
    pub scopes: Vec<Scope>,
    pub trigger: Box<dyn TriggerSet>,
    pub table: Box<PodTable>,
    pub restored: &'a Restored,
    pub limiter: &'a Arc<EvictionLimiter>,
}

impl RunningFastPath {
    /// Pins the hook, where that is wanted, and starts the thread; what was refused is logged.
    ///
    /// # Errors
    /// The system has no thread or no descriptor to give.
    pub fn start(config: &Config, beginning: StartArgs<'_>) -> Result<Self, RunError> {
        let StartArgs {
            scopes,
            mut trigger,
            table,
            restored,
            limiter,
        } = beginning;
        let (control, events) = (FastPathControl::new()?, FastPathEventQueue::new()?);
        look_at_watermarks(&control);
        let status = Arc::<FastPathStatus>::default();
        let mut pins = pinned_guard::pin(config, &mut *trigger);
        let is_pinned = pins.as_ref().is_some_and(|pins| pins.is_pinned);
        pins.as_mut()
            .filter(|_| is_pinned)
            .map(pinned_guard::inherit);
        let (thread, refusals) = FastPath::start(FastPathSetup {
            scopes,
            trigger,
            restored: restore::terminating(restored, &table.entries),
            table,
            last_eviction: restore::last_eviction(restored),
            is_pinned,
            shadow: config.shadow,
            mode: config.mode,
            strategy: config.ranking_strategy,
            limiter: Arc::clone(limiter),
            control: Arc::clone(&control),
            events: Arc::clone(&events),
            status: Arc::clone(&status),
        })?;
        pins.as_mut().map(pinned_guard::replace_earlier);
        let is_realtime = refusals.fifo.is_none();
        if let Some(error) = refusals.fifo {
            tracing::warn!(%error, "the fast path has no real-time priority");
        }
        if let Some(error) = refusals.standby {
            tracing::warn!(
                %error,
                "no standby thread takes over where the fast path is late: needs perf events"
            );
        }
        if let Some(error) = refusals.limit {
            tracing::warn!(
                %error,
                "kernel memory of the fast path counts against the agent's own limit: needs the root of the memory \
                hierarchy"
            );
        }
        if let Some(error) = refusals.lock {
            tracing::warn!(%error, "memory is not locked: needs CAP_IPC_LOCK");
        }
        Ok(Self {
            thread: Some(thread),
            control,
            events,
            status,
            is_realtime,
            began_in_shadow: config.shadow,
        })
    }

    /// Ends the thread; its last events are still to be read.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.stop();
        }
    }
}
