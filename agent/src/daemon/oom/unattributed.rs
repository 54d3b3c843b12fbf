//! OOM kills of which no record is made: on kernels without types only the pid and the cgroup are known, and where no
//! program observes the OOM killer only their number.

use evictd_common::oom::UnattributedKill;
use evictd_engine::units::SECOND;

/// Shortest interval at which such kills are logged, in nanoseconds.
const ONE_LINE_NS: u64 = 60 * SECOND;

/// Kills that were not logged yet.
#[derive(Debug, Default)]
pub struct UnattributedKills {
    kills: u64,
    last: Option<UnattributedKill>,
    /// The machine's count at the last reading.
    of_machine: Option<u64>,
    /// Time at which kills were logged last, in nanoseconds of CLOCK_MONOTONIC.
    logged: Option<u64>,
}

/// Summary of the kills for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct KillSummary {
    /// Number of kills since the last time.
    pub kills: u64,
    /// The last of them, where a program reports them.
    pub last: Option<UnattributedKill>,
}

impl UnattributedKills {
    /// Takes in what a program reports of a victim. It does so for each thread, and for a process that is only helped to die:
    /// the kills are counted by the kernel.
    pub fn note(&mut self, kill: UnattributedKill) {
        self.last = Some(kill);
    }

    /// Takes in the machine's count; returns the number of new kills.
    pub fn note_count(&mut self, of_machine: u64) -> u64 {
        let before = self.of_machine.replace(of_machine);
        let new = before.map_or(0, |before| of_machine.saturating_sub(before));
        self.kills += new;
        new
    }

    /// What is to be logged by a time, in nanoseconds of CLOCK_MONOTONIC: the first kill at once, later ones together.
    pub fn due(&mut self, now: u64) -> Option<KillSummary> {
        let waits = |logged: u64| now.saturating_sub(logged) < ONE_LINE_NS;
        if self.kills == 0 || self.logged.is_some_and(waits) {
            return None;
        }
        self.logged = Some(now);
        Some(KillSummary {
            kills: std::mem::take(&mut self.kills),
            last: self.last.take(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(pid: u32) -> UnattributedKill {
        UnattributedKill {
            pid,
            cgroup_id: 7,
            ..UnattributedKill::default()
        }
    }

    #[test]
    fn kills_without_end_are_one_line_a_minute() {
        let mut all = UnattributedKills::default();
        let mut lines = Vec::new();
        all.note_count(0);
        for second in 0..300_u32 {
            for pid in 0..100 {
                all.note_count(u64::from(100 * second + pid + 1));
                all.note(kill(pid));
                lines.extend(all.due(u64::from(1000 + second) * SECOND));
            }
        }
        let kills: Vec<u64> = lines.iter().map(|line| line.kills).collect();
        assert_eq!(kills, [1, 6000, 6000, 6000, 6000]);
        // The end of the agent logs what is left, once.
        let rest = KillSummary {
            kills: 5999,
            last: Some(kill(99)),
        };
        assert_eq!(all.due(u64::MAX), Some(rest));
        assert_eq!(all.due(u64::MAX), None);
    }

    #[test]
    fn kills_before_the_first_reading_are_none_of_this_agent() {
        let mut all = UnattributedKills::default();
        let new: Vec<u64> = [40, 40, 43, 44].map(|count| all.note_count(count)).into();
        assert_eq!(new, [0, 0, 3, 1]);
        let summary = KillSummary {
            kills: 4,
            last: None,
        };
        assert_eq!(all.due(SECOND), Some(summary));
    }
}
