//! Why the agent cannot start, or ends without a signal.

use std::io;

use evictd_config::ConfigError;
use evictd_kube::client::AccessError;
use evictd_node::{memory_scope::ScopeError, trigger::hook::HookUnavailable};
use evictd_policy::file::PolicyError;
use evictd_store::journal::JournalError;
use evictd_sys::fs::PathError;

use crate::telemetry::ServeError;

/// Why the agent cannot start or go on. The first group is bad input.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration or the manifest.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The scope.
    #[error(transparent)]
    Scope(ScopeError),
    /// More memory is to be kept available than there is.
    #[error("{field}: {value}: is not below the capacity of {capacity} bytes")]
    AboveCapacity {
        /// The field.
        field: String,
        /// The amount, in bytes.
        value: u64,
        /// The capacity, in bytes.
        capacity: u64,
    },
    /// The hook that the configuration asks for.
    #[error(transparent)]
    Hook(#[from] HookUnavailable),
    /// Address, certificate or key with which metrics are served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The state directory.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A pod's cgroup at the start.
    #[error("pods[{index}].cgroup: {source}")]
    Pod {
        /// Position in the manifest.
        index: usize,
        /// The file and the reason.
        source: PathError,
    },
    /// The way to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A field that the agent cannot do without.
    #[error("{field}: {reason}")]
    Missing {
        /// The field.
        field: &'static str,
        /// Why it is needed.
        reason: &'static str,
    },
    /// A system call failed for a reason that is not in the configuration.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// Whether the input is to blame.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::System(_))
    }
}
