//! The labels of namespaces, as far as the agent knows them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Labels, Selector};

/// The label that holds the namespace's own name (every namespace has it since Kubernetes 1.21).
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Labels of namespaces, and which keys are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Labels that policies ask for, by the namespace's name.
    pub labels: BTreeMap<String, Labels>,
    /// The keys that are known of each namespace; `None` without a cluster, where a namespace has no label but its
    /// name.
    pub keys: Option<BTreeSet<String>>,
}

impl Namespaces {
    /// Whether a namespace is selected. Unknown labels select nothing: a selector of a label that the agent does not
    /// know of this namespace matches no pod of it.
    pub fn selects(&self, selector: &Selector, namespace: &str) -> bool {
        let labels = self.labels.get(namespace);
        let is_known = |key: &str| match &self.keys {
            _ if key == NAMESPACE_NAME => true,
            Some(keys) => labels.is_some() && keys.contains(key),
            None => true,
        };
        let mut all = labels.cloned().unwrap_or_default();
        all.entry(NAMESPACE_NAME.to_owned())
            .or_insert_with(|| namespace.to_owned());
        selector.keys().all(is_known) && selector.matches(&all)
    }
}

#[cfg(test)]
mod tests {
    use evictd_config::decode::ObjectDecoder;
    use serde_json::json;

    use super::*;

    #[test]
    fn no_namespace_is_selected_by_what_is_not_known_of_it() {
        let selector = |expression| {
            let fields = json!({"s": {"matchExpressions": [expression]}});
            let mut fields = ObjectDecoder::open("", fields).unwrap();
            Selector::take(&mut fields, "s").unwrap()
        };
        let not_production =
            selector(json!({"key": "env", "operator": "NotIn", "values": ["prod"]}));
        let by_name =
            selector(json!({"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["shop"]}));
        let labels = |env: &str| Labels::from([("env".to_owned(), env.to_owned())]);
        let mut known = Namespaces {
            labels: BTreeMap::from([("shop".to_owned(), labels("prod"))]),
            keys: Some(BTreeSet::from(["env".to_owned()])),
        };
        let selected = |known: &Namespaces, selector| {
            ["shop", "lab"].map(|namespace| known.selects(selector, namespace))
        };
        assert_eq!(selected(&known, &not_production), [false; 2], "lab is new");
        known.labels.insert("lab".to_owned(), Labels::new());
        assert_eq!(selected(&known, &not_production), [false, true]);
        known.keys = Some(BTreeSet::from(["tier".to_owned()]));
        assert_eq!(
            selected(&known, &not_production),
            [false; 2],
            "not asked for yet"
        );
        assert_eq!(selected(&known, &by_name), [false, true]);
        // Without a cluster.
        let none = Namespaces::default();
        assert_eq!(selected(&none, &not_production), [true; 2]);
        assert_eq!(selected(&none, &by_name), [false, true]);
    }
}
