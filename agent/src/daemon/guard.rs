//! The guard that outlives the agent: what is attached is pinned, so that the kernel goes on without it.

use evictd_config::Config;
use evictd_node::{
    bpf::pin::{PinDirectory, detach},
    trigger::memory::{MemoryTrigger, inherit_kills},
};

/// Pins what the fast path has attached; `None` where that cannot be done, which the log says. A configuration that does not
/// want a guard removes the one of an earlier agent.
pub fn pin(config: &Config, trigger: &mut dyn MemoryTrigger) -> Option<PinDirectory> {
    let guard = &config.pinned_guard;
    let path = PinDirectory::path_of(&guard.directory, &config.state_dir);
    if !guard.enabled || config.shadow {
        match detach(&path) {
            Ok(removed) if removed.is_empty() => {}
            Ok(_) => {
                tracing::info!(path = %path.display(), "the guard of an earlier agent is detached")
            }
            Err(error) => tracing::error!(%error, "the guard of an earlier agent stays attached"),
        }
        return None;
    }
    let pins = match PinDirectory::open(&path) {
        Ok(pins) => pins,
        Err(error) => {
            tracing::info!(%error, "no guard outlives this agent");
            return None;
        }
    };
    match trigger.pin(&pins, guard.expire_after) {
        Ok(()) => {
            tracing::info!(path = %path.display(), expire_after = ?guard.expire_after, "the guard is pinned");
            Some(pins)
        }
        Err(reason) => {
            tracing::warn!(reason, "no guard outlives this agent");
            None
        }
    }
}

/// This agent's triggers are armed: the guard of an earlier one has done its duty. The fast path takes note of what it has killed.
pub fn replace_earlier(pins: &mut PinDirectory) {
    match inherit_kills(pins) {
        Ok(0) => {}
        Ok(pods) => tracing::warn!(pods, "the guard has killed while no agent ran"),
        Err(error) => {
            tracing::error!(%error, "what the guard has killed while no agent ran cannot be read");
        }
    }
    match pins.remove_earlier() {
        Ok(0) => {}
        Ok(_) => tracing::info!("the guard of an earlier agent is replaced"),
        Err(error) => tracing::error!(%error, "the guard of an earlier agent stays attached"),
    }
}
