//! Who has paused evictions: each one's word holds until he takes it back, and one is enough.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::clearance::Restraint;

/// Who may pause evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brake {
    /// The file `pause` in the state directory.
    File,
    /// The annotation [`PAUSED`] of the Node.
    Node,
    /// The ConfigMap that all agents look at.
    ConfigMap,
}

/// The annotation of a Node that pauses its agent while its value is `true`.
pub const PAUSED: &str = "evictd.io/paused";

impl Brake {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::File, Self::Node, Self::ConfigMap];

    /// For logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Node => "node",
            Self::ConfigMap => "configMap",
        }
    }
}

/// All brakes of an agent.
#[derive(Debug)]
pub struct Brakes {
    restraint: Arc<Restraint>,
    pulled: [AtomicBool; 3],
}

impl Brakes {
    /// None is pulled.
    pub fn new(restraint: Arc<Restraint>) -> Self {
        Self {
            restraint,
            pulled: Default::default(),
        }
    }

    /// Pulls or releases one; the fast path sees it at once.
    pub fn set(&self, brake: Brake, paused: bool) {
        if self.pulled[brake as usize].swap(paused, Ordering::Relaxed) == paused {
            return;
        }
        let still = self.is_paused();
        self.restraint.pause(still);
        let by = brake.as_str();
        if paused {
            tracing::warn!(by, "evictions are paused");
        } else if still {
            tracing::warn!(by, "a pause was lifted; another one holds");
        } else {
            tracing::warn!(by, "the pause was lifted: evictions go on");
        }
    }

    /// Whether this one is pulled.
    pub fn is_set(&self, brake: Brake) -> bool {
        self.pulled[brake as usize].load(Ordering::Relaxed)
    }

    /// Whether any of them is.
    pub fn is_paused(&self) -> bool {
        Brake::ALL.into_iter().any(|brake| self.is_set(brake))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_enough_and_all_must_be_released() {
        let restraint = Arc::new(Restraint::default());
        let brakes = Brakes::new(Arc::clone(&restraint));
        brakes.set(Brake::Node, true);
        brakes.set(Brake::ConfigMap, true);
        assert!(restraint.is_paused());
        brakes.set(Brake::Node, false);
        assert!(restraint.is_paused(), "the ConfigMap still says so");
        assert!(brakes.is_set(Brake::ConfigMap) && !brakes.is_set(Brake::Node));
        brakes.set(Brake::ConfigMap, false);
        assert!(!restraint.is_paused());
    }
}
