//! Cgroups that stand still close to limits of their own. What they hold is known before they grow: a growth at full speed from
//! there ends at the limit some milliseconds later.

use evictd_engine::{
    growers::{Largest, WATCHED},
    sampling::pod_readings,
};

use super::{PodReadings, growers::note_limited};
use crate::scope::WatchedScope;

impl PodReadings {
    /// Reads once a second those that could meet a threshold and end at their limits before the scope is full, of so many
    /// pods as there are places for growers. Those of pods that grow are read with these. Does not allocate.
    pub fn watch_near_limits(&mut self, now: u64, scopes: &[WatchedScope]) {
        let before = self.near_limits_read_at;
        if !pod_readings::are_old(now.saturating_sub(before), true) {
            return;
        }
        self.near_limits_read_at = now;
        let matters = |limit: u64, left: u64| {
            scopes.iter().any(|watched| {
                let headroom = watched.sample.shortage.headroom.immediate;
                limit >= watched.distance() && left < headroom
            })
        };
        let mut most_left = Largest::<WATCHED>::default();
        let pods = self.table.entries.iter().zip(&self.table.candidates);
        for (place, (entry, candidate)) in pods.enumerate() {
            let limits = entry.limited.iter().map(|(_, cgroup)| cgroup.last_limit());
            // No less is left to the cgroup than the whole pod would leave.
            let left = limits.map(|limit| (limit, limit.saturating_sub(candidate.usage)));
            let left =
                left.filter(|(limit, left)| !candidate.state.is_over() && matters(*limit, *left));
            if let Some(left) = left.map(|(_, left)| left).max() {
                most_left.offer(left.saturating_add(1), place);
            }
        }
        for (_, place) in most_left.0.iter().rev() {
            let Some(limited) = self.table.entries.get(*place).map(|entry| &entry.limited) else {
                continue;
            };
            note_limited(&mut self.limited_growers, limited, before);
        }
    }
}
