//! Which pods without processes have ended, and which are between two runs of their container.

use std::collections::HashMap;

use crate::{
    Cause, Pod,
    model::settings::Mode,
    units::{SECOND, shift_by_gap},
};

/// A pod that has had no processes for so long is between two runs of its container: the kubelet waits as long at least
/// before it starts one a second time. Earlier its phase, or the end of its object, may not have come here yet.
const BETWEEN_RUNS_NS: u64 = 10 * SECOND;

/// Where nothing is short, all pods are looked at once in this time.
const LOOK_INTERVAL_NS: u64 = SECOND;

/// State of a pod that was not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It has processes, or is between two runs of its container.
    Lives,
    /// Its last process has ended a moment ago, while something is short: its phase may not have come here yet.
    MayBeOver,
    /// No container of it is started again.
    Over,
}

/// The pods that had no processes at the last look. Times are nanoseconds of one clock.
#[derive(Clone, Debug, Default)]
pub struct EmptyPods {
    /// Since when, by UID. What is empty at the first look has been so for long.
    since: HashMap<String, u64>,
    /// Time at which all pods were looked at last; 0 before the first look.
    looked: u64,
}

impl EmptyPods {
    /// Whether it is time to look at all pods, although nothing is short.
    pub fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.looked) >= LOOK_INTERVAL_NS
    }

    /// Leaves out so many nanoseconds until `now` in which no look was taken: what ended then has ended now.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        for since in self.since.values_mut().filter(|since| **since > 0) {
            shift_by_gap(since, late, now);
        }
    }

    /// Takes in whether a pod has processes now.
    pub fn note(&mut self, uid: &str, is_empty: bool, now: u64) {
        if !is_empty {
            self.since.remove(uid);
        } else if !self.since.contains_key(uid) {
            let since = if self.looked == 0 { 0 } else { now };
            self.since.insert(uid.to_owned(), since);
        }
    }

    /// All pods have been noted.
    pub fn finish_look(&mut self, now: u64) {
        self.looked = now;
    }

    /// Forgets pods that are no longer there.
    pub fn keep(&mut self, pods: &[Pod]) {
        self.since
            .retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
    }

    /// Whether a pod was between two runs of its container at the last look, if it is not over.
    fn is_between_runs(&self, uid: &str, now: u64) -> bool {
        let since = self.since.get(uid);
        since.is_some_and(|since| now.saturating_sub(*since) >= BETWEEN_RUNS_NS)
    }

    /// What a pod that was not killed is in. The kubelet would evict any that is not over (`filterOutInactivePods`): its
    /// files stay while it waits to be started again.
    pub fn state(&self, pod: &Pod, is_empty: bool, is_short: bool, now: u64) -> PodState {
        match is_empty {
            true if self.is_over(pod, now) => PodState::Over,
            true if is_short && !self.is_between_runs(&pod.uid, now) => PodState::MayBeOver,
            _ => PodState::Lives,
        }
    }

    /// Whether a pod in which nothing runs is evicted all the same: its files go with its object. The kubelet asks for
    /// no process at all.
    pub fn goes_without_process(&self, pod: &Pod, cause: Cause, mode: Mode, now: u64) -> bool {
        let frees = match cause {
            Cause::Pressure(signal) => signal.resource().is_of_files() || mode == Mode::Kubelet,
            Cause::LocalStorage(_) => true,
        };
        frees && !self.is_over(pod, now) && self.is_between_runs(&pod.uid, now)
    }

    /// Whether no container of a pod without processes is started again. The phase of a Job's pod comes late where the
    /// kubelet is away, and the Job would run again if that pod were evicted.
    pub fn is_over(&self, pod: &Pod, now: u64) -> bool {
        pod.is_over()
            || pod.is_deleting
            || (pod.may_complete && self.is_between_runs(&pod.uid, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;

    const UID: &str = "a";

    fn pod() -> Pod {
        Pod {
            uid: UID.to_owned(),
            ..Pod::default()
        }
    }

    /// A look at one pod.
    fn look(pods: &mut EmptyPods, is_empty: bool, now: u64) {
        pods.note(UID, is_empty, now);
        pods.finish_look(now);
    }

    #[test]
    fn a_pod_is_between_two_runs_once_it_was_empty_for_long() {
        let mut pods = EmptyPods::default();
        look(&mut pods, false, SECOND);
        look(&mut pods, true, 2 * SECOND);
        look(&mut pods, true, 11 * SECOND);
        assert!(!pods.is_between_runs(UID, 12 * SECOND - 1));
        assert!(pods.is_between_runs(UID, 12 * SECOND));
        look(&mut pods, false, 13 * SECOND);
        assert!(!pods.is_between_runs(UID, 30 * SECOND));
    }

    #[test]
    fn what_is_empty_at_the_first_look_has_been_so_for_long() {
        let mut pods = EmptyPods::default();
        look(&mut pods, true, 100 * SECOND);
        assert!(pods.is_between_runs(UID, 100 * SECOND));
        pods.keep(&[]);
        assert!(!pods.is_between_runs(UID, 100 * SECOND));
    }

    #[test]
    fn all_pods_are_looked_at_once_a_second() {
        let mut pods = EmptyPods::default();
        assert!(pods.is_due(SECOND));
        pods.finish_look(SECOND);
        assert!(!pods.is_due(2 * SECOND - 1));
        assert!(pods.is_due(2 * SECOND));
    }

    #[test]
    fn a_pod_that_has_just_become_empty_may_be_over_while_something_is_short() {
        let mut pods = EmptyPods::default();
        look(&mut pods, false, SECOND);
        look(&mut pods, true, 2 * SECOND);
        let state = |is_empty, is_short, second: u64| {
            pods.state(&pod(), is_empty, is_short, second * SECOND)
        };
        assert_eq!(state(true, true, 2), PodState::MayBeOver);
        assert_eq!(state(true, false, 2), PodState::Lives);
        assert_eq!(state(false, true, 2), PodState::Lives);
        // Between two runs its files stay.
        assert_eq!(state(true, true, 12), PodState::Lives);
        let deleted = Pod {
            is_deleting: true,
            ..pod()
        };
        let state = pods.state(&deleted, true, false, 12 * SECOND);
        assert_eq!(state, PodState::Over);
    }

    // R1, R10
    #[test]
    fn a_pod_that_may_have_completed_is_over_after_a_while() {
        let mut pods = EmptyPods::default();
        let job = Pod {
            may_complete: true,
            ..pod()
        };
        let own_limit = Cause::LocalStorage("emptydirfs.limit");
        let goes = |pods: &EmptyPods, second: u64| {
            pods.goes_without_process(&job, own_limit, Mode::Kubelet, second * SECOND)
        };
        look(&mut pods, false, SECOND);
        look(&mut pods, true, 2 * SECOND);
        let state = |is_empty, second| pods.state(&job, is_empty, true, second * SECOND);
        assert_eq!(state(true, 11), PodState::MayBeOver);
        assert_eq!(state(true, 12), PodState::Over);
        assert!(!goes(&pods, 12));
        // It runs after all.
        assert_eq!(state(false, 12), PodState::Lives);
        look(&mut pods, false, 13 * SECOND);
        look(&mut pods, true, 14 * SECOND);
        assert_eq!(
            pods.state(&job, true, true, 15 * SECOND),
            PodState::MayBeOver
        );
    }

    #[test]
    fn a_pod_between_two_runs_goes_for_its_files() {
        let mut pods = EmptyPods::default();
        look(&mut pods, true, SECOND);
        let goes = |signal, mode| {
            pods.goes_without_process(&pod(), Cause::Pressure(signal), mode, 20 * SECOND)
        };
        assert!(goes(Signal::NodeFsAvailable, Mode::Evictd));
        assert!(!goes(Signal::MemoryAvailable, Mode::Evictd));
        assert!(goes(Signal::MemoryAvailable, Mode::Kubelet));
        let own_limit = Cause::LocalStorage("emptydirfs.limit");
        assert!(pods.goes_without_process(&pod(), own_limit, Mode::Evictd, 20 * SECOND));
        let deleted = Pod {
            is_deleting: true,
            ..pod()
        };
        assert!(!pods.goes_without_process(&deleted, own_limit, Mode::Evictd, 20 * SECOND));
        look(&mut pods, false, 21 * SECOND);
        assert!(!pods.goes_without_process(&pod(), own_limit, Mode::Evictd, 22 * SECOND));
    }
}
