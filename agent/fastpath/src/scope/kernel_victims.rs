//! The pods of a scope that the kernel may kill from, and when others are to be published.

use evictd_engine::{accounting::PublishedPod, sampling::pod_readings};
use evictd_node::trigger::memory::{KernelVictim, MAX_VICTIMS};

use super::WatchedScope;

/// The pods that the kernel may kill from for one scope, by rank.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelVictims {
    positions: [usize; MAX_VICTIMS as usize],
    published: [KernelVictim; MAX_VICTIMS as usize],
    count: usize,
}

impl KernelVictims {
    /// Adds the next one in rank, if there is room for it.
    pub fn push(&mut self, position: usize, victim: KernelVictim) {
        if let (Some(at), Some(to)) = (
            self.positions.get_mut(self.count),
            self.published.get_mut(self.count),
        ) {
            (*at, *to) = (position, victim);
            self.count += 1;
        }
    }

    /// Returns the victims as they are published to the kernel programs, by rank.
    pub fn published(&self) -> &[KernelVictim] {
        self.published.get(..self.count).unwrap_or_default()
    }

    /// Iterates over the victims: their positions in the table that they were taken from, with the ids of their
    /// cgroups.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        let ids = self.published.into_iter().map(|victim| victim.cgroup_id);
        self.positions.into_iter().zip(ids).take(self.count)
    }
}

/// What was published last.
#[derive(Default)]
pub struct PublishedVictims {
    pub victims: KernelVictims,
    /// Bytes that were available then.
    available: u64,
}

impl WatchedScope {
    /// Whether memory has moved since the kernel victims were published.
    pub fn has_moved(&self) -> bool {
        let available = self.sample.guarded_available;
        pod_readings::has_moved(self.published.available, available, self.distance())
    }

    /// The kernel victims are published.
    pub fn note_victims_published(&mut self) {
        self.published.available = self.sample.guarded_available;
    }

    /// The limits for a kernel kill in this pod, as of the last sample; its counter may `jump`.
    pub fn kernel_victim(&self, cgroup_id: u64, pod: PublishedPod, jump: u64) -> KernelVictim {
        let headroom = self.sample.shortage.headroom.total();
        let limits = self.scope.thresholds().kill_limits(pod, headroom, jump);
        KernelVictim { cgroup_id, limits }
    }
}
