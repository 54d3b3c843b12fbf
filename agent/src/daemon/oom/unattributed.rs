//! OOM kills on kernels without types: only the pid and the cgroup are known, and no record is made of them.

use evictd_engine::units::SECOND;

/// Shortest interval at which such kills are logged, in nanoseconds.
const ONE_LINE_NS: u64 = 60 * SECOND;

/// Kills that were not logged yet.
#[derive(Debug, Default)]
pub struct UnattributedKills {
    kills: u64,
    last: (u32, u64),
    /// Time at which kills were logged last, in nanoseconds of CLOCK_MONOTONIC.
    logged: Option<u64>,
}

/// Summary of the kills for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct KillSummary {
    /// Number of kills since the last time.
    pub kills: u64,
    /// The process of the last kill.
    pub pid: u32,
    /// The id of its cgroup.
    pub cgroup: u64,
}

impl UnattributedKills {
    /// Counts one.
    pub fn note(&mut self, pid: u32, cgroup: u64) {
        self.kills += 1;
        self.last = (pid, cgroup);
    }

    /// What is to be logged by a time, in nanoseconds of CLOCK_MONOTONIC: the first kill at once, later ones together.
    pub fn due(&mut self, now: u64) -> Option<KillSummary> {
        let waits = |logged: u64| now.saturating_sub(logged) < ONE_LINE_NS;
        if self.kills == 0 || self.logged.is_some_and(waits) {
            return None;
        }
        self.logged = Some(now);
        let (pid, cgroup) = self.last;
        Some(KillSummary {
            kills: std::mem::take(&mut self.kills),
            pid,
            cgroup,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_without_end_are_one_line_a_minute() {
        let mut all = UnattributedKills::default();
        let mut lines = Vec::new();
        for second in 0..300 {
            for n in 0..100 {
                all.note(n, 7);
                lines.extend(all.due((1000 + second) * SECOND));
            }
        }
        let kills: Vec<u64> = lines.iter().map(|line| line.kills).collect();
        assert_eq!(kills, [1, 6000, 6000, 6000, 6000]);
        // The end of the agent logs what is left, once.
        let rest = KillSummary {
            kills: 5999,
            pid: 99,
            cgroup: 7,
        };
        assert_eq!(all.due(u64::MAX), Some(rest));
        assert_eq!(all.due(u64::MAX), None);
    }
}
