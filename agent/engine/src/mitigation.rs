//! The steps before a soft eviction (reclaim page cache, then throttle): which comes next, and how much to reclaim. No
//! I/O, no clock.

use std::time::Duration;

use crate::model::{settings::MitigationConfig, usage::MemoryReading};

/// The least time between two reclaims, as the pod reads from disk again what was reclaimed; and from the release of a
/// throttle to the next one, so that its time limit is one.
const REST: Duration = Duration::from_secs(60);
/// Bytes of cold page cache below which a reclaim is not worth a system call that takes locks of the pod.
const WORTHWHILE: u64 = 1 << 20;

/// Shortage as a soft threshold sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftShortage {
    /// Bytes that are missing until the threshold and its minimum reclaim are available again.
    pub deficit: u64,
    /// Whether less than the threshold is available: this is where a shortage begins. It ends when the deficit is gone.
    pub is_met: bool,
}

/// Step of the mitigation before a soft eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reclaim page cache that was not used lately, so many bytes of what counts as used.
    Reclaim(u64),
    /// Keep the first candidates from growing.
    Throttle,
    /// Let all pods grow again.
    Unthrottle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// No step is taken: nothing is short.
    Rest,
    /// A reclaim is under way.
    Reclaiming,
    /// A reclaim is over.
    Reclaimed,
    /// A pod is throttled, since then.
    Throttling(u64),
    /// No step is left: only the end of the grace period is waited for.
    Spent,
}

/// State of the steps before a soft eviction.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    config: MitigationConfig,
    at: At,
    reclaimed: Option<u64>,
    /// Time of the last release.
    released: Option<u64>,
}

impl Steps {
    /// Creates the steps at rest: no step was taken.
    pub fn new(config: MitigationConfig) -> Self {
        Self {
            config,
            at: At::Rest,
            reclaimed: None,
            released: None,
        }
    }

    /// Replaces the settings; a throttle that is no longer wanted is released by the next [`Self::next`].
    pub fn reconfigure(&mut self, config: MitigationConfig) {
        self.config = config;
    }

    /// The settings in force.
    pub fn config(&self) -> MitigationConfig {
        self.config
    }

    /// Takes a look at what is missing; `now` is nanoseconds of any one clock.
    pub fn next(&mut self, now: u64, short: Option<SoftShortage>) -> Option<Step> {
        let step = self.step(now, short);
        if step == Some(Step::Unthrottle) {
            self.released = Some(now);
        }
        step
    }

    fn step(&mut self, now: u64, short: Option<SoftShortage>) -> Option<Step> {
        let Some(short) = short.filter(|short| short.deficit > 0) else {
            // The end of a reclaim comes by itself.
            if self.at == At::Reclaiming {
                return None;
            }
            let was = std::mem::replace(&mut self.at, At::Rest);
            return matches!(was, At::Throttling(_)).then_some(Step::Unthrottle);
        };
        match self.at {
            At::Rest if !short.is_met => None,
            At::Rest => {
                let rested = self.reclaimed.is_none_or(|at| passed(at, REST, now));
                if self.config.reclaim.is_some() && rested {
                    self.at = At::Reclaiming;
                    self.reclaimed = Some(now);
                    return Some(Step::Reclaim(short.deficit));
                }
                self.throttle(now)
            }
            At::Reclaimed => self.throttle(now),
            At::Throttling(since) => {
                let limit = self.config.throttle.map(|throttle| throttle.time_limit);
                limit
                    .is_none_or(|limit| passed(since, limit, now))
                    .then(|| {
                        self.at = At::Spent;
                        Step::Unthrottle
                    })
            }
            At::Reclaiming | At::Spent => None,
        }
    }

    fn throttle(&mut self, now: u64) -> Option<Step> {
        if self.config.throttle.is_none() {
            self.at = At::Spent;
            return None;
        }
        let rested = self.released.is_none_or(|at| passed(at, REST, now));
        rested.then(|| {
            self.at = At::Throttling(now);
            Step::Throttle
        })
    }

    /// A reclaim is over, however it went.
    pub fn reclaimed(&mut self) {
        if self.at == At::Reclaiming {
            self.at = At::Reclaimed;
        }
    }
}

fn passed(since: u64, time: Duration, now: u64) -> bool {
    u128::from(now.saturating_sub(since)) >= time.as_nanos()
}

/// Part of a reclaim that one cgroup is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Position among those that were given.
    pub pod: usize,
    /// Bytes to ask of the kernel.
    pub bytes: u64,
}

/// How much to take from which pod: those with the most cold page cache (`inactive_file`) first, until what counts as
/// used has been asked for in the amount of the deficit.
///
/// Cold page cache counts as available already, so that it alone brings the signal nothing: the kernel ages the
/// active list into the inactive one as that gets shorter, and that is what brings something. So a pod is asked for its
/// cold page cache and as much of its active one as is missing.
pub fn portions(pods: &[MemoryReading], deficit: u64) -> Vec<Portion> {
    let mut order: Vec<(usize, &MemoryReading)> = pods
        .iter()
        .enumerate()
        .filter(|(_, pod)| pod.inactive_file >= WORTHWHILE)
        .collect();
    order.sort_by_key(|(at, pod)| (std::cmp::Reverse(pod.inactive_file), *at));
    let mut missing = deficit;
    let mut portions = Vec::new();
    for (pod, reading) in order {
        if missing == 0 {
            break;
        }
        let active = reading.active_file.min(missing);
        missing -= active;
        portions.push(Portion {
            pod,
            bytes: reading.inactive_file.saturating_add(active),
        });
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::settings::ThrottleConfig, units::SECOND};

    const MIB: u64 = 1 << 20;

    fn config(reclaim: bool, throttle: bool) -> MitigationConfig {
        MitigationConfig {
            reclaim: reclaim.then_some(Duration::from_secs(5)),
            throttle: throttle.then_some(ThrottleConfig {
                pods: 2,
                time_limit: Duration::from_secs(30),
            }),
        }
    }

    const SHORT: Option<SoftShortage> = Some(SoftShortage {
        deficit: 7,
        is_met: true,
    });
    const NEARLY: Option<SoftShortage> = Some(SoftShortage {
        deficit: 3,
        is_met: false,
    });

    // R46
    #[test]
    fn one_step_after_the_other_and_then_nothing_but_the_eviction() {
        let mut steps = Steps::new(config(true, true));
        assert_eq!(steps.next(0, None), None);
        // Above the threshold nothing begins, minimum reclaim or not.
        assert_eq!(steps.next(0, NEARLY), None);
        assert_eq!(steps.next(SECOND, SHORT), Some(Step::Reclaim(7)));
        assert_eq!(steps.next(2 * SECOND, SHORT), None);
        steps.reclaimed();
        assert_eq!(steps.next(3 * SECOND, SHORT), Some(Step::Throttle));
        assert_eq!(steps.next(32 * SECOND, NEARLY), None);
        assert_eq!(steps.next(33 * SECOND, SHORT), Some(Step::Unthrottle));
        assert_eq!(steps.next(90 * SECOND, SHORT), None);
        // Over, and short again.
        assert_eq!(steps.next(91 * SECOND, None), None);
        assert_eq!(steps.next(92 * SECOND, SHORT), Some(Step::Reclaim(7)));
    }

    // R46
    #[test]
    fn the_throttle_is_released_when_the_pressure_is_over() {
        let mut steps = Steps::new(config(false, true));
        assert_eq!(steps.next(0, SHORT), Some(Step::Throttle));
        assert_eq!(steps.next(1, NEARLY), None);
        assert_eq!(steps.next(2, None), Some(Step::Unthrottle));
        assert_eq!(steps.next(3, None), None);
        // Short again at once: the time limit would be none.
        assert_eq!(steps.next(4, SHORT), None);
        assert_eq!(steps.next(60 * SECOND, SHORT), None);
        assert_eq!(steps.next(2 + 60 * SECOND, SHORT), Some(Step::Throttle));
        steps.reconfigure(config(false, false));
        assert_eq!(steps.next(3 + 60 * SECOND, SHORT), Some(Step::Unthrottle));
    }

    // R46
    #[test]
    fn each_step_may_be_left_out() {
        assert_eq!(Steps::new(config(false, false)).next(0, SHORT), None);
        let mut only_reclaim = Steps::new(config(true, false));
        assert_eq!(only_reclaim.next(0, SHORT), Some(Step::Reclaim(7)));
        only_reclaim.reclaimed();
        assert_eq!(only_reclaim.next(1, SHORT), None);
        // Short again at once: what was read again since is not thrown out again.
        assert_eq!(only_reclaim.next(2, None), None);
        assert_eq!(only_reclaim.next(3, SHORT), None);
        assert_eq!(only_reclaim.next(4, None), None);
        assert_eq!(
            only_reclaim.next(60 * SECOND, SHORT),
            Some(Step::Reclaim(7))
        );
    }

    #[test]
    fn a_reclaim_that_outlasts_the_pressure_is_followed_by_nothing() {
        let mut steps = Steps::new(config(true, true));
        assert_eq!(steps.next(0, SHORT), Some(Step::Reclaim(7)));
        assert_eq!(steps.next(1, None), None);
        steps.reclaimed();
        assert_eq!(steps.next(2, None), None);
        assert_eq!(steps.next(3, SHORT), Some(Step::Throttle));
    }

    // R46
    #[test]
    fn the_coldest_give_first_and_no_more_than_is_missing() {
        let pod = |inactive: u64, active: u64| MemoryReading {
            usage: 900 * MIB,
            inactive_file: inactive * MIB,
            active_file: active * MIB,
            ..MemoryReading::default()
        };
        let pods = [pod(10, 40), pod(0, 500), pod(90, 20), pod(30, 100)];
        let asked = |deficit: u64| {
            let portions = portions(&pods, deficit * MIB);
            let shown = portions.iter().map(|p| (p.pod, p.bytes / MIB));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(asked(0), []);
        assert_eq!(asked(15), [(2, 105)]);
        assert_eq!(asked(50), [(2, 110), (3, 60)]);
        // All there is; a pod without cold pages uses what it has.
        assert_eq!(asked(900), [(2, 110), (3, 130), (0, 50)]);
    }
}
