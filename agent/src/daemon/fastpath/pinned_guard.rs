//! The pinned guard: programs that stay attached after the agent has ended, and kill in its place.

use evictd_config::Config;
use evictd_node::{
    bpf::pin::{PinDirectory, PinError, detach, detach_programs, require_bpffs},
    trigger::memory::{TriggerSet, inherit_kills},
};

/// The directory of the pins, and whether this agent has pinned its own.
pub struct Pins {
    directory: PinDirectory,
    /// Whether a pinned guard outlives this agent.
    pub is_pinned: bool,
}

/// Has the pinned guard of an earlier agent kill no more while evictions are paused. Its list of pods is out of reach, so its
/// programs are detached: while the pause lasts no pinned guard would act anyway.
pub fn stop_for_pause(config: &Config) {
    let path = PinDirectory::path_of(&config.pinned_guard.directory, &config.state_dir);
    match detach_programs(&path) {
        Ok(0) | Err(PinError::NoBpffs(_)) => {}
        Ok(_) => tracing::warn!(
            path = %path.display(),
            "evictions are paused: the pinned guard of an earlier agent is stopped"
        ),
        Err(error) => {
            tracing::error!(%error, "evictions are paused, and the pinned guard of an earlier agent stays attached");
        }
    }
}

/// Pins what the fast path has attached; where that cannot be done the log says so, and the pins of an earlier agent
/// still have to be replaced. `None` where there are none: a configuration that does not want one removes the one
/// of an earlier agent.
pub fn pin(config: &Config, trigger: &mut dyn TriggerSet) -> Option<Pins> {
    let guard = &config.pinned_guard;
    let path = PinDirectory::path_of(&guard.directory, &config.state_dir);
    if !guard.enabled || config.shadow {
        if let Err(error) = require_bpffs(&path) {
            tracing::info!(%error, "the pinned guard of an earlier agent, if there is one, is not seen, and stays attached");
            return None;
        }
        match detach(&path) {
            Ok(removed) if removed.is_empty() => {}
            Ok(_) => {
                tracing::info!(path = %path.display(), "the pinned guard of an earlier agent is detached")
            }
            Err(error) => {
                tracing::error!(%error, "the pinned guard of an earlier agent stays attached")
            }
        }
        return None;
    }
    let directory = match PinDirectory::open(&path) {
        Ok(directory) => directory,
        Err(error) => {
            tracing::info!(%error, "the pinned guard is not installed");
            return None;
        }
    };
    let is_pinned = match trigger.pin(&directory, guard.expire_after) {
        Ok(()) => {
            tracing::info!(path = %path.display(), expire_after = ?guard.expire_after, "the pinned guard is installed");
            true
        }
        Err(reason) => {
            tracing::warn!(reason, "the pinned guard is not installed");
            // What was pinned before it was refused would never act.
            if let Err(error) = directory.remove_own() {
                tracing::error!(%error, "cannot remove the pin of a pinned guard that failed");
            }
            false
        }
    };
    Some(Pins {
        directory,
        is_pinned,
    })
}

/// Has the fast path take note of what the pinned guard of an earlier agent has killed. Before the fast path starts: it drops
/// restored victims without processes in its first cycle, and would then count its kill as a new eviction.
/// Agents that ended before they took over have left programs of no use: those are removed here, since this start may
/// fail as well.
pub fn inherit(pins: &mut Pins) {
    match inherit_kills(&pins.directory) {
        Ok(0) => {}
        Ok(pods) => tracing::warn!(pods, "the pinned guard has killed while no agent ran"),
        Err(error) => {
            tracing::error!(%error, "what the pinned guard has killed while no agent ran cannot be read");
            return;
        }
    }
    match pins.directory.remove_unfinished() {
        Ok(0) => {}
        Ok(_) => {
            tracing::warn!("the pinned guard of an agent that ended while it started is removed")
        }
        Err(error) => {
            tracing::error!(%error, "the pinned guard of an agent that ended while it started stays attached");
        }
    }
}

/// This agent's triggers are armed: the pinned guard of an earlier one is not needed any more. What it has killed meanwhile is
/// inherited too.
pub fn replace_earlier(pins: &mut Pins) {
    inherit(pins);
    match pins.directory.remove_earlier() {
        Ok(0) => {}
        Ok(_) if pins.is_pinned => {
            tracing::info!("the pinned guard of an earlier agent is replaced")
        }
        Ok(_) => tracing::info!("the pinned guard of an earlier agent is removed"),
        Err(error) => {
            tracing::error!(%error, "the pinned guard of an earlier agent stays attached")
        }
    }
}
