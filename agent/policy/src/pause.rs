//! Pauses of evictions. Each source can pause them until it ends its pause; one source is enough.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use evictd_engine::limiter::EvictionLimiter;
use evictd_sys::mutex::locked;

/// Source that may pause evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseSource {
    /// The file `pause` in the state directory.
    File,
    /// The annotation [`PAUSED`] of the Node.
    Node,
    /// The ConfigMap of all agents (`cluster.pauseConfigMap`).
    ConfigMap,
}

/// The annotation of a Node that pauses its agent while its value is `true`.
pub const PAUSED: &str = "evictd.io/paused";

impl PauseSource {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::File, Self::Node, Self::ConfigMap];

    /// The source's name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Node => "node",
            Self::ConfigMap => "configMap",
        }
    }
}

/// Most changes that wait to be read. Beyond that the oldest ones are dropped and counted.
const WAITING: usize = 16;

/// A source has begun or ended its pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseChange {
    /// Time at which the agent saw the change.
    pub time: jiff::Timestamp,
    /// The source.
    pub source: PauseSource,
    /// Whether the source pauses evictions now.
    pub paused: bool,
    /// Whether evictions are paused after the change, by this source or another one.
    pub evictions_paused: bool,
}

impl PauseChange {
    /// The state of a source at this moment.
    pub fn now(source: PauseSource, pauses: &PauseState) -> Self {
        Self {
            time: jiff::Timestamp::now(),
            source,
            paused: pauses.is_set(source),
            evictions_paused: pauses.is_paused(),
        }
    }
}

/// All pauses of an agent.
#[derive(Debug)]
pub struct PauseState {
    limiter: Arc<EvictionLimiter>,
    set: [AtomicBool; 3],
    /// The changes, the oldest first, and how many were dropped.
    changes: Mutex<(VecDeque<PauseChange>, u64)>,
}

impl PauseState {
    /// Creates the state in which no source pauses evictions.
    pub fn new(limiter: Arc<EvictionLimiter>) -> Self {
        Self {
            limiter,
            set: Default::default(),
            changes: Mutex::default(),
        }
    }

    /// Takes the changes since the last call, the oldest first, and the number of earlier changes that were dropped.
    pub fn changes(&self) -> (Vec<PauseChange>, u64) {
        let (changes, dropped) = std::mem::take(&mut *locked(&self.changes));
        (changes.into(), dropped)
    }

    /// Sets whether `source` pauses; the fast path sees it at once.
    pub fn set(&self, source: PauseSource, paused: bool) {
        // Two sources that change at once: the limiter has what holds after both.
        let mut waiting = locked(&self.changes);
        if self.set[source as usize].swap(paused, Ordering::Relaxed) == paused {
            return;
        }
        let still = self.is_paused();
        self.limiter.pause(still);
        if waiting.0.len() == WAITING {
            waiting.0.pop_front();
            waiting.1 += 1;
        }
        waiting.0.push_back(PauseChange::now(source, self));
        drop(waiting);
        let by = source.as_str();
        if paused {
            tracing::warn!(by, "evictions are paused");
        } else if still {
            tracing::warn!(
                by,
                "one pause was removed; evictions stay paused by another one"
            );
        } else {
            tracing::warn!(by, "the pause was removed: evictions go on");
        }
    }

    /// Whether `source` pauses.
    pub fn is_set(&self, source: PauseSource) -> bool {
        self.set[source as usize].load(Ordering::Relaxed)
    }

    /// Whether any source pauses.
    pub fn is_paused(&self) -> bool {
        PauseSource::ALL
            .into_iter()
            .any(|source| self.is_set(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_is_enough_and_all_must_end() {
        let limiter = Arc::new(EvictionLimiter::default());
        let pauses = PauseState::new(Arc::clone(&limiter));
        pauses.set(PauseSource::Node, true);
        pauses.set(PauseSource::ConfigMap, true);
        assert!(limiter.is_paused());
        pauses.set(PauseSource::Node, false);
        assert!(limiter.is_paused(), "the ConfigMap still says so");
        assert!(pauses.is_set(PauseSource::ConfigMap) && !pauses.is_set(PauseSource::Node));
        pauses.set(PauseSource::ConfigMap, false);
        assert!(!limiter.is_paused());
    }
}
