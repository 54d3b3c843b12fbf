//! Policies that say different things about the same pods.
//!
//! Whether two policies *can* contradict each other follows from their texts alone, so that every agent finds the same.
//! Most pairs can, since a pod may have any labels together. Whether they *do* takes a pod, and each agent sees only
//! the pods of its node. A policy's status has a conflict once an agent has seen such a pod, for as long as the
//! two policies can contradict each other.

use super::{
    model::{Evict, EvictionPolicy, Rule},
    selector::Selector,
};

/// Most steps of the search over all policies together. A few hundred ordinary policies need fewer.
const STEPS: u32 = 50_000;
/// Most steps for one pair of rules.
const STEPS_OF_A_PAIR: u32 = 200;

/// Rules of two policies of the same precedence that hold for the same pods and say different things.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict<'a> {
    /// One policy.
    pub one: &'a EvictionPolicy,
    /// Position of its rule.
    pub rule: usize,
    /// The other policy.
    pub other: &'a EvictionPolicy,
    /// Position of the other policy's rule.
    pub other_rule: usize,
}

/// Every pair of policies that can contradict each other, each pair once, with the first two rules that do. A pair for
/// which the steps do not last counts as one that can. Policies in shadow mode decide nothing and contradict no other
/// policy.
pub fn among<'a>(policies: impl IntoIterator<Item = &'a EvictionPolicy>) -> Vec<Conflict<'a>> {
    let mut policies: Vec<_> = policies.into_iter().filter(|p| !p.shadow).collect();
    policies.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
    let (mut found, mut steps) = (Vec::new(), STEPS);
    for (at, one) in policies.iter().enumerate() {
        let equals = policies[at + 1..].iter();
        for other in equals.take_while(|p| p.precedence == one.precedence) {
            if let Some((rule, other_rule)) = between(one, other, &mut steps) {
                found.push(Conflict {
                    one,
                    rule,
                    other,
                    other_rule,
                });
            }
        }
    }
    if steps == 0 {
        tracing::warn!(
            "there are too many rules to compare: policies that were not compared count as ones that can contradict"
        );
    }
    found
}

impl Conflict<'_> {
    /// Returns the same conflict, with the other policy first.
    pub fn turned(&self) -> Self {
        Self {
            one: self.other,
            rule: self.other_rule,
            other: self.one,
            other_rule: self.rule,
        }
    }

    /// Describes the conflict for a reader of the first policy: its rule, the other policy and its rule, and which
    /// one decides.
    pub fn words(&self) -> String {
        let place = |policy: &EvictionPolicy, at: usize| {
            let rule = &policy.rules[at];
            format!("spec.rules[{at}] ({}) says {}", rule.name, saying(rule))
        };
        format!(
            "{}, {} in {}, about pods that both select, with the same precedence {}: the more sparing one decides",
            place(self.one, self.rule),
            named(&self.other.name, self.other.generation),
            place(self.other, self.other_rule),
            self.one.precedence,
        )
    }
}

/// Name of the other policy in [`Conflict::words`], with its generation where it has one.
pub fn named(name: &str, generation: Option<i64>) -> String {
    match generation {
        Some(generation) => format!("policy {name} (generation {generation})"),
        None => format!("policy {name}"),
    }
}

/// The first rule of each policy that hold for the same pods and say different things.
fn between(a: &EvictionPolicy, b: &EvictionPolicy, steps: &mut u32) -> Option<(usize, usize)> {
    let overlap = |one: &Selector, other: &Selector| one.joined(other).selects_beyond(&[], &mut 0);
    if !overlap(&a.namespaces, &b.namespaces) || !overlap(&a.pods, &b.pods) {
        return None;
    }
    let both = a.pods.joined(&b.pods);
    for (i, mine) in a.rules.iter().enumerate() {
        for (j, theirs) in b.rules.iter().enumerate() {
            if !mine.contradicts(theirs) {
                continue;
            }
            if *steps == 0 {
                return Some((i, j));
            }
            // In each policy the first rule that matches decides.
            let earlier: Vec<_> = a.rules[..i].iter().chain(&b.rules[..j]).collect();
            let earlier: Vec<_> = earlier.into_iter().map(|r| &r.pods).collect();
            let joined = both.joined(&mine.pods).joined(&theirs.pods);
            let given = STEPS_OF_A_PAIR.min(*steps);
            let mut left = given;
            let is_left = joined.selects_beyond(&earlier, &mut left);
            *steps = steps.saturating_sub((given - left).max(1));
            if is_left {
                return Some((i, j));
            }
        }
    }
    None
}

fn saying(rule: &Rule) -> String {
    let word = rule.evict.word();
    match (&rule.evict, rule.order) {
        (Evict::Never, 0) => word.to_owned(),
        (_, order) => format!("{word} with order {order}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, mut spec: Value) -> EvictionPolicy {
        if spec.get("namespaceSelector").is_none() {
            spec["allNamespaces"] = "a test".into();
        }
        let document = json!({
            "apiVersion": crate::API_VERSION,
            "kind": crate::KIND,
            "metadata": {"name": name},
            "spec": spec,
        });
        EvictionPolicy::read(document).expect("a policy")
    }

    fn found(policies: &[EvictionPolicy]) -> Vec<String> {
        let found = among(policies);
        found.iter().map(Conflict::words).collect()
    }

    fn app(app: &str) -> Value {
        json!({"matchLabels": {"app": app}})
    }

    #[test]
    fn the_place_and_the_other_policy_are_named() {
        let db = policy(
            "db",
            json!({"selector": app("db"), "rules": [
                {"name": "leader", "selector": {"matchLabels": {"role": "leader"}}, "evict": "Always", "order": 5},
                {"name": "rest", "evict": "Never"},
            ]}),
        );
        let all = policy(
            "all",
            json!({"rules": [{"name": "r", "evict": "Always", "order": 5}]}),
        );
        let reported = found(&[db.clone(), all.clone()]);
        let text = "spec.rules[0] (r) says Always with order 5, policy db in spec.rules[1] (rest) says Never, \
                    about pods that both select, with the same precedence 0: the more sparing one decides";
        assert_eq!(reported, [text]);
        let both = [all, db];
        assert_eq!(
            found(&both),
            reported,
            "whatever the order in which they come"
        );
        let turned = among(&both)[0].turned();
        assert!(
            turned
                .words()
                .starts_with("spec.rules[1] (rest) says Never, policy all in ")
        );
    }

    #[test]
    fn no_contradiction_where_no_pod_can_be_in_both() {
        let never = json!([{"name": "r", "evict": "Never"}]);
        let always = json!([{"name": "r", "evict": "Always"}]);
        let base = policy("base", json!({"selector": app("db"), "rules": never}));
        let namespace = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
        for (what, other) in [
            (
                "other pods",
                json!({"selector": app("web"), "rules": always}),
            ),
            (
                "another precedence",
                json!({"selector": app("db"), "precedence": 1, "rules": always}),
            ),
            (
                "shadow mode",
                json!({"selector": app("db"), "shadow": true, "rules": always}),
            ),
            (
                "the same words",
                json!({"selector": app("db"), "rules": never}),
            ),
            (
                "an earlier rule takes them all",
                json!({"rules": [
                    {"name": "with", "evict": "Never",
                        "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "x"]}]}},
                    {"name": "without", "evict": "Always"},
                ]}),
            ),
            (
                "two earlier rules take them all together",
                json!({"rules": [
                    {"name": "with", "selector": {"matchLabels": {"app": "db", "role": "x"}}, "evict": "Never"},
                    {"name": "other", "evict": "Never",
                        "selector": {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["x"]}]}},
                    {"name": "rest", "evict": "Always"},
                ]}),
            ),
        ] {
            let other = policy("other", other);
            assert_eq!(found(&[base.clone(), other]), [""; 0], "{what}");
        }
        let here = policy(
            "here",
            json!({"namespaceSelector": namespace("a"), "rules": never}),
        );
        let there = policy(
            "there",
            json!({"namespaceSelector": namespace("b"), "rules": always}),
        );
        assert_eq!(found(&[here.clone(), there]), [""; 0]);
        let here_too = policy(
            "too",
            json!({"namespaceSelector": namespace("a"), "rules": always}),
        );
        assert_eq!(found(&[here, here_too]).len(), 1);
    }

    #[test]
    fn the_search_has_an_end() {
        // The search has to go through all earlier rules to find that pods are left for the next one.
        let spec = |evict: &str| {
            let rules = (0..64).map(|i| {
                let label = format!("l{i}");
                json!({"name": format!("r{i}"), "selector": {"matchLabels": {label: "x"}}, "evict": evict})
            });
            json!({"rules": rules.collect::<Vec<_>>()})
        };
        let policies: Vec<_> = (0..200)
            .map(|i| {
                policy(
                    &i.to_string(),
                    spec(if i % 2 == 0 { "Never" } else { "Always" }),
                )
            })
            .collect();
        let pairs = found(&policies).len();
        assert_eq!(pairs, 100 * 100, "what is not compared is not ruled out");
    }

    #[test]
    fn a_search_without_an_end_rules_nothing_out() {
        // These rules select all pods, each those with another combination of labels.
        let of_bits = |bits: u32| {
            let operator = |label: u32| ["Exists", "DoesNotExist"][(bits >> label & 1) as usize];
            let expressions = (0..5)
                .map(|label| json!({"key": format!("l{label}"), "operator": operator(label)}));
            let selector = json!({"matchExpressions": expressions.collect::<Vec<_>>()});
            json!({"name": format!("r{bits}"), "selector": selector, "evict": "Never"})
        };
        let mut rules: Vec<_> = (0..32).map(of_bits).collect();
        rules.push(json!({"name": "rest", "evict": "Always"}));
        let never = json!([{"name": "r", "evict": "Never"}]);
        let both = [
            policy("a", json!({"rules": rules})),
            policy("b", json!({"rules": never})),
        ];
        assert_eq!(found(&both).len(), 1);
    }
}
