//! Which pod goes first by the order that an incident's file has.

use evictd_engine::{
    Among, Candidate, CandidateState, QosClass, RankInputs, SelectionCriteria, growth::grown_in,
    model::settings::RankingStrategy, select,
};

use super::{Incident, RankedPod};
use crate::record::resource_of_signal;

impl Incident {
    /// Whether the pod that went is the first one in the order of eviction; `None` where the file does not tell: it is
    /// older, the pod or one before it is not among those it names, a budget may have protected those before it, or
    /// they were passed over because they did not grow, or their processes hold no memory.
    ///
    /// The use of the others was read after the decision. So much less is held against the pod as all of them can have
    /// grown by, or a 64th of what each uses, a MiB at least: where memory does not grow, that of a pod goes up and
    /// down.
    pub fn went_first(&self) -> Option<bool> {
        let eviction = &self.eviction;
        let ranked_by = self.ranked_by.as_ref()?;
        let (_, strategy) = RankingStrategy::CHOICES
            .into_iter()
            .find(|(word, _)| *word == ranked_by.strategy)?;
        let pace = eviction.pace.as_ref()?;
        if pace.out_of_order || self.asked.as_ref().is_some_and(|a| a.may_be_refused) {
            return None;
        }
        let listed = self.pods.iter().position(|pod| pod.evicted)?;
        if self
            .pods
            .get(listed)?
            .place
            .is_some_and(|place| place > listed + 1)
        {
            return None;
        }
        let mut pods: Vec<&RankedPod> = self.pods.iter().collect();
        // Of equal ones the first by its name goes.
        pods.sort_by_key(|pod| pod.pod.split_once('/'));
        let went = pods.iter().position(|pod| pod.evicted)?;
        let resource = resource_of_signal(&eviction.signal)?;
        let since = ranked_by.read.saturating_sub(self.decided());
        let grown = grown_in(pace.growth, since);
        let candidate = |(position, pod): (usize, &&RankedPod)| {
            let moved = pod.usage.map_or(0, |usage| (usage / 64).max(1 << 20));
            let more = match position == went || since == 0 {
                true => 0,
                false => grown.max(moved),
            };
            candidate(pod, more)
        };
        let mut candidates: Vec<Candidate> = pods.iter().enumerate().map(candidate).collect();
        let rules = SelectionCriteria {
            strategy,
            resource,
            // What daemons use is not in the file: that a Guaranteed pod may go is taken from its having gone.
            system_over_reserved: candidates.get(went)?.inputs.qos == QosClass::Guaranteed,
        };
        let first = select(&mut candidates, rules, Among::Using, |_| None);
        Some(first == Some(went) && pods.get(went)?.pod == self.eviction.pod())
    }

    /// Time of the decision, in nanoseconds of CLOCK_MONOTONIC.
    fn decided(&self) -> u64 {
        match self.eviction.stages.decided {
            0 => self.eviction.stages.signalled,
            decided => decided,
        }
    }
}

fn candidate(pod: &RankedPod, grown: u64) -> Candidate {
    let classes = [
        QosClass::BestEffort,
        QosClass::Burstable,
        QosClass::Guaranteed,
    ];
    let named = classes
        .into_iter()
        .find(|class| class.as_str() == pod.qos_class);
    let state = match pod.usage {
        Some(_) if pod.evicted => CandidateState::Eligible,
        Some(_) if pod.terminating => CandidateState::Terminating,
        Some(_) if pod.protected || pod.empty || pod.spared.is_some() => CandidateState::Denied,
        Some(_) => CandidateState::Eligible,
        None => CandidateState::Unavailable,
    };
    Candidate {
        inputs: RankInputs {
            priority: pod.priority,
            priority_unknown: pod.priority_unknown,
            qos: named.unwrap_or_default(),
            request: pod.request,
            order: pod.order,
        },
        usage: pod.usage.unwrap_or(0).saturating_sub(grown),
        is_exact: true,
        state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        incident::{RankedBy, tests::incident},
        record::PaceRecord,
    };

    fn ranked() -> Incident {
        let mut incident = incident("one");
        incident.eviction.pace = Some(PaceRecord {
            growth: 100 << 20,
            ..PaceRecord::default()
        });
        let other = RankedPod {
            pod: "default/calm".to_owned(),
            usage: Some(200 << 20),
            evicted: false,
            ..incident.pods[0].clone()
        };
        incident.pods.push(other);
        incident.ranked_by = Some(RankedBy {
            strategy: "kubelet".to_owned(),
            read: incident.eviction.stages.decided + 10_000_000,
        });
        incident
    }

    // R49
    #[test]
    fn the_pod_that_went_is_held_against_the_order() {
        let went_first = |change: fn(&mut Incident)| {
            let mut incident = ranked();
            change(&mut incident);
            incident.went_first()
        };
        assert_eq!(went_first(|_| {}), Some(true));
        // Ten milliseconds of growth, or less than a 64th, may have come since.
        let of_growth = |growth: u64, mib: u64| {
            let mut incident = ranked();
            incident.eviction.pace.get_or_insert_default().growth = growth << 20;
            incident.pods[1].usage = Some(mib << 20);
            incident.went_first()
        };
        assert_eq!(of_growth(1000, 309), Some(true));
        assert_eq!(of_growth(1000, 311), Some(false));
        assert_eq!(of_growth(0, 304), Some(true));
        assert_eq!(of_growth(0, 306), Some(false));
        // What was read at the decision has not moved.
        let at_once = |i: &mut Incident| {
            i.pods[1].usage = Some(301 << 20);
            i.ranked_by.as_mut().unwrap().read = i.eviction.stages.decided;
        };
        assert_eq!(went_first(at_once), Some(false));
        assert_eq!(went_first(|i| i.pods[1].priority = -1), Some(false));
        assert_eq!(went_first(|i| i.pods[1].order = -1), Some(false));
        assert_eq!(
            went_first(|i| i.pods[0].priority_unknown = true),
            Some(false)
        );
        assert_eq!(went_first(|i| i.pods[0].request = 300 << 20), Some(false));
        assert_eq!(
            went_first(|i| i.eviction.name = "calm".to_owned()),
            Some(false)
        );
        let spared: [fn(&mut RankedPod); 5] = [
            |pod| pod.empty = true,
            |pod| pod.protected = true,
            |pod| pod.terminating = true,
            |pod| pod.spared = Some("a gate says no".to_owned()),
            |pod| pod.usage = None,
        ];
        for spare in spared {
            let mut incident = ranked();
            incident.pods[1].priority = -1;
            spare(&mut incident.pods[1]);
            assert_eq!(incident.went_first(), Some(true));
        }
    }

    #[test]
    fn what_a_file_does_not_tell_is_not_judged() {
        let went_first = |change: fn(&mut Incident)| {
            let mut incident = ranked();
            incident.pods[1].priority = -1;
            change(&mut incident);
            incident.went_first()
        };
        assert_eq!(went_first(|i| i.ranked_by = None), None);
        assert_eq!(went_first(|i| i.pods[0].evicted = false), None);
        assert_eq!(went_first(|i| i.eviction.pace = None), None);
        assert_eq!(went_first(|i| i.pods[0].place = Some(19)), None);
        let growing = |incident: &mut Incident| {
            incident.eviction.pace.get_or_insert_default().out_of_order = true;
        };
        assert_eq!(went_first(growing), None);
    }

    #[test]
    fn a_guaranteed_pod_is_passed_over_by_the_strategy_of_classes() {
        let mut incident = ranked();
        if let Some(ranked_by) = &mut incident.ranked_by {
            "qos".clone_into(&mut ranked_by.strategy);
        }
        for pod in &mut incident.pods {
            "Guaranteed".clone_into(&mut pod.qos_class);
        }
        assert_eq!(incident.went_first(), Some(true));
        "BestEffort".clone_into(&mut incident.pods[1].qos_class);
        assert_eq!(incident.went_first(), Some(false));
    }
}
