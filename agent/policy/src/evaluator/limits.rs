//! How many may go: rates of the node and of owners, and the limits of policies' groups.

use std::collections::BTreeMap;

use evictd_engine::{limiter::EvictionLimiter, permit::QUOTAS_OF_A_POD};

use super::{
    super::model::Limit, EvaluatedPod, PolicyEvaluator, State, past::Past, quotas::QuotaKey,
};
use crate::evaluator::gate_state::nanos;

/// Condition of a pod that counts as available.
const READY: &str = "Ready";

impl PolicyEvaluator {
    /// The places of every pod's limits, by UID, with the limits set.
    pub(super) fn limits(&self, state: &mut State, now: u64) -> BTreeMap<String, Places> {
        let mut places = BTreeMap::new();
        let mut groups: BTreeMap<u8, Group> = BTreeMap::new();
        let State {
            pods,
            quotas,
            past,
            set,
            namespaces,
            ..
        } = state;
        let past = Past {
            evictions: past,
            set,
            namespaces,
            now,
        };
        for (uid, held) in &*pods {
            let pod = held.pod.pod();
            let mut of_pod = Places {
                places: Vec::new(),
                is_complete: true,
            };
            let owner = pod.owner.as_ref().map(|o| QuotaKey::Owner(o.uid.clone()));
            for (rate, key) in [
                (self.settings.node_rate, Some(QuotaKey::Node)),
                (self.settings.owner_rate, owner),
            ] {
                let Some((rate, key)) = rate.zip(key) else {
                    // The two rates have fixed positions.
                    of_pod.places.push(NO_LIMIT);
                    continue;
                };
                let period = nanos(rate.period);
                let spent = |key: &QuotaKey| past.counted(key, period, pod);
                let place = quotas.place(&self.limiter, key, spent);
                if let Some(at) = place {
                    self.limiter
                        .set_quota(at, Some(rate.evictions), period, None);
                }
                of_pod.add(place);
            }
            for (applied, index, limit) in held.ruling.limits() {
                let key = QuotaKey::Group {
                    rule: applied.name(),
                    limit: index,
                    namespace: pod.namespace.clone(),
                    value: limit.value_for(pod).to_owned(),
                };
                let period = nanos(limit.period);
                let spent = |key: &QuotaKey| past.counted(key, period, pod);
                let place = quotas.place(&self.limiter, key, spent);
                of_pod.add(place);
                let Some(at) = place else { continue };
                let group = groups.entry(at).or_insert_with(|| Group {
                    // Read before pods are counted: see [`EvictionLimiter::charged_in_total`].
                    charged: self.limiter.charged_in_total(at),
                    available: 0,
                    limit: limit.clone(),
                });
                group.available += u32::from(is_available(held, &self.limiter));
            }
            places.insert(uid.clone(), of_pod);
        }
        for (at, group) in groups {
            let spare = group
                .limit
                .min_available
                .map(|least| group.available.saturating_sub(least));
            let ceiling = spare.map(|spare| group.charged.saturating_add(spare));
            let limit = &group.limit;
            self.limiter
                .set_quota(at, limit.max_evicted_at_once, nanos(limit.period), ceiling);
        }
        places
    }
}

/// The position of no limit.
const NO_LIMIT: u8 = 0;

/// The places of one pod's limits.
pub(super) struct Places {
    pub places: Vec<u8>,
    /// Whether there was a place for each, here and in the permit.
    pub is_complete: bool,
}

impl Places {
    fn add(&mut self, place: Option<u8>) {
        self.is_complete &= place.is_some() && self.places.len() < QUOTAS_OF_A_POD;
        self.places.push(place.unwrap_or(NO_LIMIT));
    }
}

struct Group {
    charged: u32,
    available: u32,
    limit: Limit,
}

/// Whether a pod counts towards `minAvailable`: it runs, is ready as far as is known, and was not evicted.
fn is_available(held: &EvaluatedPod, limiter: &EvictionLimiter) -> bool {
    let pod = held.pod.pod();
    let ready = pod
        .conditions
        .get(READY)
        .is_none_or(|status| status == "True");
    ready
        && pod.phase == "Running"
        && !pod.is_deleting
        && !limiter.is_evicted_or_chosen(held.pod.permit())
}
