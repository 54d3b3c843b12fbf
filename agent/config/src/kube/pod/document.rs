//! A `v1.Pod` cut down to the fields that are read, while it is parsed.
//!
//! A tenant chooses how large a pod's object is (3 MiB), and each value of a document takes up to a hundred times as much
//! memory as its text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// The fields of a pod that [`super::read_pod`] and the watch of pods read.
pub struct PodDocument(pub Value);

impl<'de> Deserialize<'de> for PodDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        POD.deserialize(deserializer).map(Self)
    }
}

/// Most elements of a list that are kept: more than a pod that runs has of anything.
const MAX: usize = 1024;

/// What is kept of a value.
#[derive(Clone, Copy)]
enum Kept {
    All,
    /// Whether it is there.
    Presence,
    /// These fields of a map, or of each map of a list.
    Fields(&'static [(&'static str, Kept)]),
}

use Kept::{All, Fields, Presence};

const POD: Kept = Fields(&[("metadata", METADATA), ("spec", SPEC), ("status", STATUS)]);
const METADATA: Kept = Fields(&[
    ("uid", All),
    ("namespace", All),
    ("name", All),
    ("resourceVersion", All),
    ("labels", All),
    ("annotations", All),
    ("ownerReferences", OWNERS),
    ("creationTimestamp", All),
    ("deletionTimestamp", All),
]);
const OWNERS: Kept = Fields(&[
    ("kind", All),
    ("name", All),
    ("uid", All),
    ("controller", All),
]);
const SPEC: Kept = Fields(&[
    ("priority", All),
    ("terminationGracePeriodSeconds", All),
    ("restartPolicy", All),
    ("containers", CONTAINERS),
    ("initContainers", CONTAINERS),
    ("volumes", VOLUMES),
    ("resources", RESOURCES),
    ("overhead", All),
]);
const CONTAINERS: Kept = Fields(&[
    ("name", All),
    ("resources", RESOURCES),
    ("restartPolicy", All),
]);
const RESOURCES: Kept = Fields(&[("requests", All), ("limits", All)]);
const VOLUMES: Kept = Fields(&[
    ("name", All),
    ("hostPath", Presence),
    ("gitRepo", Presence),
    ("configMap", Presence),
    ("emptyDir", All),
]);
const STATUS: Kept = Fields(&[
    ("qosClass", All),
    ("phase", All),
    ("reason", All),
    ("message", All),
    ("podIP", All),
    ("conditions", CONDITIONS),
    ("containerStatuses", STATUSES),
    ("initContainerStatuses", STATUSES),
    ("ephemeralContainerStatuses", STATUSES),
    ("allocatedResources", All),
]);
const CONDITIONS: Kept = Fields(&[("type", All), ("status", All), ("lastTransitionTime", All)]);
const STATE: Kept = Fields(&[
    ("waiting", Fields(&[("reason", All)])),
    ("terminated", Fields(&[("exitCode", All)])),
]);
const STATUSES: Kept = Fields(&[
    ("name", All),
    ("containerID", All),
    ("state", STATE),
    ("allocatedResources", All),
    ("resources", RESOURCES),
]);

impl<'de> DeserializeSeed<'de> for Kept {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            All => Value::deserialize(deserializer),
            Presence => {
                let is_there = Option::<IgnoredAny>::deserialize(deserializer)?;
                Ok(is_there.map_or(Value::Null, |_| Value::Bool(true)))
            }
            Fields(fields) => deserializer.deserialize_any(FieldsOf(fields)),
        }
    }
}

/// Values of another form than a map are kept: the decoder names the field that has it.
struct FieldsOf(&'static [(&'static str, Kept)]);

impl<'de> Visitor<'de> for FieldsOf {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a pod")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Value, M::Error> {
        let mut kept = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            match self.0.iter().find(|(name, _)| *name == key) {
                Some((_, field)) => {
                    kept.insert(key, map.next_value_seed(*field)?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(kept.into())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Value, S::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX
            && let Some(value) = list.next_element_seed(Fields(self.0))?
        {
            kept.push(value);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::pod::read_pod;

    #[test]
    fn what_is_not_read_is_left_out() {
        let pod = json!({
            "metadata": { "uid": "u", "labels": { "a": "b" }, "managedFields": [{ "f:a": {} }] },
            "spec": {
                "containers": [{ "name": "c", "env": [{ "name": "A" }], "resources": { "requests": { "memory": "1Gi" } } }],
                "volumes": [{ "name": "v", "configMap": { "items": [1, 2] } }, { "name": "n", "hostPath": null }],
            },
            "status": { "phase": "Running", "containerStatuses": [{ "name": "c", "state": { "running": {} } }] },
        });
        let PodDocument(kept) = serde_json::from_str(&pod.to_string()).unwrap();
        let expected = json!({
            "metadata": { "uid": "u", "labels": { "a": "b" } },
            "spec": {
                "containers": [{ "name": "c", "resources": { "requests": { "memory": "1Gi" } } }],
                "volumes": [{ "name": "v", "configMap": true }, { "name": "n", "hostPath": null }],
            },
            "status": { "phase": "Running", "containerStatuses": [{ "name": "c", "state": {} }] },
        });
        assert_eq!(kept, expected);
        assert_eq!(read_pod("pod", &kept), read_pod("pod", &pod));
    }

    #[test]
    fn no_list_is_longer_than_that_of_a_pod_that_runs() {
        let volumes = vec![json!({ "name": "v" }); 100_000];
        let pod = json!({ "spec": { "volumes": volumes, "priority": 7 } });
        let PodDocument(kept) = serde_json::from_str(&pod.to_string()).unwrap();
        assert_eq!(kept["spec"]["volumes"].as_array().map(Vec::len), Some(MAX));
        assert_eq!(kept["spec"]["priority"], 7);
    }

    /// The error is the same as that of the whole document.
    #[test]
    fn a_field_of_a_wrong_form_is_kept() {
        for pod in [
            json!({ "spec": [] }),
            json!({ "spec": { "containers": "c" } }),
            json!(7),
            json!(null),
        ] {
            let PodDocument(kept) = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(read_pod("pod", &kept), read_pod("pod", &pod), "{pod}");
        }
    }
}
