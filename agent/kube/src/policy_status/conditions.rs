//! The conditions of a policy's status.

use evictd_policy::PolicyStatus;
use serde_json::{Value, json};

/// Whether the newest version can be used.
pub const ACCEPTED: &str = "Accepted";
/// Whether it says otherwise than another policy of the same precedence about a pod that an agent has seen.
pub const CONTRADICTS: &str = "Contradicts";
/// Whether any agent has seen a pod that it selects. It never becomes `False`: no agent sees all pods.
pub const SELECTS_PODS: &str = "SelectsPods";

/// All that agents write; conditions of other types belong to other writers.
const OURS: [&str; 3] = [ACCEPTED, CONTRADICTS, SELECTS_PODS];

/// A condition without what the server or the clock adds.
struct WantedCondition<'a> {
    of_type: &'static str,
    status: &'static str,
    reason: &'static str,
    message: &'a str,
}

/// What an object with these conditions should say. Of a version that cannot be used nothing else is known.
fn wanted<'a>(conditions: &'a [Value], status: &'a PolicyStatus) -> Vec<WantedCondition<'a>> {
    let said = |of_type, (status, reason, message)| WantedCondition {
        of_type,
        status,
        reason,
        message,
    };
    if let Some(place) = &status.refused {
        return vec![said(ACCEPTED, ("False", "Invalid", place.as_str()))];
    }
    // What one agent has seen, the others believe; of a conflict only as long as there can be one.
    let seen = about(conditions, CONTRADICTS, status).find(|c| c["status"] == "True");
    let seen = seen.and_then(|c| c["message"].as_str());
    let still_can =
        |words: &&str| (status.may_contradict.iter()).any(|other| words.contains(other));
    let contradicts = match (seen.filter(still_can), status.contradicts.as_deref()) {
        (Some(words), _) | (None, Some(words)) => ("True", "PodSeen", words),
        (None, None) if status.may_contradict.is_empty() => (
            "False",
            "Consistent",
            "no other policy of the same precedence can say anything else about the same pods",
        ),
        (None, None) => (
            "False",
            "NoPodSeen",
            "no agent has seen a pod about which another policy of the same precedence says anything else",
        ),
    };
    let seen_by_another = about(conditions, SELECTS_PODS, status).any(|c| c["status"] == "True");
    let selects = if status.selects || seen_by_another {
        (
            "True",
            "PodSeen",
            "a pod that it selects was seen since this version is in force",
        )
    } else {
        (
            "Unknown",
            "NoPodSeen",
            "no agent has seen a pod that it selects since this version is in force",
        )
    };
    let accepted = match status.warning.as_deref() {
        Some(warning) => ("True", "Insecure", warning),
        None => ("True", "Compiled", "every rule and gate can be used"),
    };
    vec![
        said(ACCEPTED, accepted),
        said(CONTRADICTS, contradicts),
        said(SELECTS_PODS, selects),
    ]
}

/// The condition of a type, if it is about this version.
fn about<'a>(
    conditions: &'a [Value],
    of_type: &'a str,
    status: &'a PolicyStatus,
) -> impl Iterator<Item = &'a Value> {
    conditions.iter().filter(move |c| {
        c["type"] == of_type && c["observedGeneration"] == json!(status.generation)
    })
}

/// Whether a condition is about this version.
pub(super) fn is_about(conditions: &[Value], status: &PolicyStatus) -> bool {
    about(conditions, ACCEPTED, status).next().is_some()
}

/// Whether these conditions say what is thought, and of ours nothing else.
pub(super) fn say(conditions: &[Value], status: &PolicyStatus) -> bool {
    let wanted = wanted(conditions, status);
    let is_there = |said: &WantedCondition<'_>| {
        about(conditions, said.of_type, status).any(|c| {
            c["status"] == said.status && c["reason"] == said.reason && c["message"] == said.message
        })
    };
    let ours = conditions.iter().filter(|c| is_ours(c)).count();
    ours == wanted.len() && wanted.iter().all(is_there)
}

/// All conditions, with ours as the status wants them; those of other types stay.
pub(super) fn merged(conditions: &[Value], status: &PolicyStatus) -> Vec<Value> {
    let now = format!("{:.0}", jiff::Timestamp::now());
    let ours = wanted(conditions, status).into_iter().map(|said| {
        let old = conditions.iter().find(|c| c["type"] == said.of_type);
        let since = old
            .filter(|c| c["status"] == said.status)
            .map(|c| c["lastTransitionTime"].clone())
            .filter(Value::is_string);
        json!({
            "type": said.of_type,
            "status": said.status,
            "reason": said.reason,
            "message": said.message,
            "observedGeneration": status.generation,
            "lastTransitionTime": since.unwrap_or_else(|| now.clone().into()),
        })
    });
    let others = conditions.iter().filter(|c| !is_ours(c)).cloned();
    others.chain(ours).collect()
}

fn is_ours(condition: &Value) -> bool {
    OURS.iter().any(|ours| condition["type"] == *ours)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn status(refused: Option<&str>, selects: bool) -> PolicyStatus {
        PolicyStatus {
            name: "p".to_owned(),
            uid: "u".to_owned(),
            generation: Some(4),
            refused: refused.map(str::to_owned),
            warning: None,
            may_contradict: std::sync::Arc::default(),
            contradicts: None,
            selects,
        }
    }

    fn status_of(conditions: &[Value], of_type: &str) -> Option<String> {
        let found = conditions.iter().find(|c| c["type"] == of_type)?;
        found["status"].as_str().map(str::to_owned)
    }

    // Agents with and without such pods end with the same words, whichever writes first.
    #[test]
    fn what_one_node_has_seen_stays() {
        let (with, without) = (status(None, true), status(None, false));
        let theirs = json!({"type": "Audited", "status": "True"});
        let first = merged(std::slice::from_ref(&theirs), &without);
        assert_eq!(first[0], theirs);
        assert_eq!(status_of(&first, SELECTS_PODS).as_deref(), Some("Unknown"));
        assert!(say(&first, &without) && !say(&first, &with));
        let second = merged(&first, &with);
        assert_eq!(status_of(&second, SELECTS_PODS).as_deref(), Some("True"));
        assert!(say(&second, &without) && say(&second, &with));
        assert_eq!(merged(&second, &without), second);
        // Another version is another matter.
        let mut next = without;
        next.generation = Some(5);
        assert!(!is_about(&second, &next));
        let third = merged(&second, &next);
        assert_eq!(status_of(&third, SELECTS_PODS).as_deref(), Some("Unknown"));
    }

    #[test]
    fn of_a_version_that_cannot_be_used_nothing_else_is_said() {
        let before = merged(&[], &status(None, true));
        assert_eq!(before.len(), 3);
        let refused = status(Some("spec.rules: is wrong"), true);
        assert!(!say(&before, &refused));
        let after = merged(&before, &refused);
        assert_eq!(after.len(), 1);
        assert_eq!(after[0]["message"], "spec.rules: is wrong");
        assert!(say(&after, &refused));
    }

    // One agent has a pod that both policies select, the others have none: they believe it until a policy changes.
    #[test]
    fn a_contradiction_holds_as_long_as_there_can_be_one() {
        let mut without = status(None, false);
        without.may_contradict = ["policy a (generation 2)", "policy b (generation 1)"]
            .map(str::to_owned)
            .into();
        let mut with = without.clone();
        let words = "spec.rules[0] (r) says Never, policy b (generation 1) in spec.rules[3] (x) says Always";
        with.contradicts = Some(words.to_owned());
        let event = |conditions: &[Value]| {
            let found = conditions.iter().find(|c| c["type"] == CONTRADICTS);
            found.map(|c| {
                (
                    c["status"].clone(),
                    c["reason"].clone(),
                    c["message"].clone(),
                )
            })
        };
        let first = merged(&[], &without);
        let (status, reason, _) = event(&first).expect("it is said");
        assert_eq!((status, reason), (json!("False"), json!("NoPodSeen")));
        let second = merged(&first, &with);
        assert_eq!(
            event(&second),
            Some((json!("True"), json!("PodSeen"), json!(words)))
        );
        assert!(say(&second, &without) && merged(&second, &without) == second);
        // An agent that has seen another version does not overwrite it.
        let mut other = with.clone();
        other.contradicts =
            Some("spec.rules[0] (r) says Never, policy a (generation 2) in".to_owned());
        assert!(say(&second, &other));
        // The other policy has changed: it is not known any more.
        without.may_contradict = ["policy a (generation 2)", "policy b (generation 2)"]
            .map(str::to_owned)
            .into();
        assert!(!say(&second, &without));
        let (status, ..) = event(&merged(&second, &without)).expect("it is said");
        assert_eq!(status, "False");
        without.may_contradict = std::sync::Arc::default();
        let (_, reason, _) = event(&merged(&second, &without)).expect("it is said");
        assert_eq!(reason, "Consistent");
    }
}
