//! Gives each pod its quotas: rates of the node and of owners, and the limits of policies' groups.

use std::collections::BTreeMap;

use evictd_engine::{limiter::EvictionLimiter, permit::MAX_QUOTAS_PER_POD, units::nanos};

use super::{
    super::model::Limit,
    EvaluatedPod, PolicyEvaluator, State,
    quotas::{QuotaKey, Quotas},
    restore::RestoredCharges,
};

/// Condition of a pod that counts as available.
const READY: &str = "Ready";

impl PolicyEvaluator {
    /// Sets all quotas in the limiter, and answers with the indexes of each pod's quotas, by UID.
    pub(super) fn set_quotas(&self, state: &mut State, now: u64) -> BTreeMap<String, QuotaIndexes> {
        let mut of_pods = BTreeMap::new();
        let mut groups: BTreeMap<u8, Group> = BTreeMap::new();
        let State {
            pods,
            quotas,
            restored,
            set,
            namespaces,
            ..
        } = state;
        let restored = RestoredCharges {
            evictions: self.history(restored),
            set,
            namespaces,
            now,
        };
        for (uid, held) in &*pods {
            let mut indexes = QuotaIndexes {
                indexes: Vec::new(),
                is_complete: true,
            };
            self.add_rates(held, quotas, &restored, &mut indexes);
            self.add_groups(held, quotas, &restored, &mut groups, &mut indexes);
            of_pods.insert(uid.clone(), indexes);
        }
        for (index, group) in groups {
            let spare = group
                .limit
                .min_available
                .map(|least| group.available.saturating_sub(least));
            let ceiling = spare.map(|spare| group.charged.saturating_add(spare));
            let limit = &group.limit;
            self.limiter.set_quota(
                index,
                limit.max_evicted_at_once,
                nanos(limit.period),
                ceiling,
            );
        }
        of_pods
    }

    /// Adds the quotas of the node's and the owner's rate. They always take the first two indexes of a pod.
    fn add_rates(
        &self,
        held: &EvaluatedPod,
        quotas: &mut Quotas,
        restored: &RestoredCharges<'_>,
        indexes: &mut QuotaIndexes,
    ) {
        let pod = held.pod.pod();
        let owner = pod.owner.as_ref().map(|o| QuotaKey::Owner(o.uid.clone()));
        for (rate, key) in [
            (self.settings.node_rate, Some(QuotaKey::Node)),
            (self.settings.owner_rate, owner),
        ] {
            let Some((rate, key)) = rate.zip(key) else {
                indexes.indexes.push(NO_QUOTA);
                continue;
            };
            let period = nanos(rate.period);
            let spent = |key: &QuotaKey| restored.counted(key, period, pod);
            let is_nodes = key == QuotaKey::Node;
            let index = quotas.index(&self.limiter, key, spent);
            if let Some(index) = index {
                self.limiter
                    .set_quota(index, Some(rate.evictions), period, None);
            }
            if is_nodes {
                self.limiter.set_node_quota(index.unwrap_or(NO_QUOTA));
            }
            indexes.add(index);
        }
    }

    /// Adds the quotas of the limits in the pod's rules, and counts the pod in its groups.
    fn add_groups(
        &self,
        held: &EvaluatedPod,
        quotas: &mut Quotas,
        restored: &RestoredCharges<'_>,
        groups: &mut BTreeMap<u8, Group>,
        indexes: &mut QuotaIndexes,
    ) {
        let pod = held.pod.pod();
        for (applied, position, limit) in held.matched.limits() {
            let key = QuotaKey::Group {
                rule: applied.name(),
                limit: position,
                namespace: pod.namespace.clone(),
                value: limit.value_for(pod).to_owned(),
            };
            let period = nanos(limit.period);
            let spent = |key: &QuotaKey| restored.counted(key, period, pod);
            let index = quotas.index(&self.limiter, key, spent);
            indexes.add(index);
            let Some(index) = index else { continue };
            let group = groups.entry(index).or_insert_with(|| Group {
                // Read before pods are counted: see [`EvictionLimiter::charged_in_total`].
                charged: self.limiter.charged_in_total(index),
                available: 0,
                limit: limit.clone(),
            });
            group.available += u32::from(is_available(held, &self.limiter));
        }
    }
}

/// The index that stands for no quota.
const NO_QUOTA: u8 = 0;

/// The indexes of one pod's quotas in the limiter.
pub(super) struct QuotaIndexes {
    pub indexes: Vec<u8>,
    /// Whether each limit of the pod has a quota, and the permit has room for them all.
    pub is_complete: bool,
}

impl QuotaIndexes {
    fn add(&mut self, index: Option<u8>) {
        self.is_complete &= index.is_some() && self.indexes.len() < MAX_QUOTAS_PER_POD;
        self.indexes.push(index.unwrap_or(NO_QUOTA));
    }
}

/// The pods of one limit's group.
struct Group {
    /// Evictions that its quota was ever charged with.
    charged: u32,
    /// Pods that count towards `minAvailable`.
    available: u32,
    limit: Limit,
}

/// Whether a pod counts towards `minAvailable`: it runs, is ready as far as the agent knows, and was not evicted.
fn is_available(held: &EvaluatedPod, limiter: &EvictionLimiter) -> bool {
    let pod = held.pod.pod();
    let ready = pod
        .conditions
        .get(READY)
        .is_none_or(|status| status == "True");
    ready
        && pod.phase == "Running"
        && !pod.is_deleting
        && !limiter.is_evicted_or_chosen(held.pod.eviction_state())
}
