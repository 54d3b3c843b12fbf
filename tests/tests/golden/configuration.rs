//! The configuration's fields and defaults.

use evictd_config::Config;
use evictd_tests::prelude::*;

use super::golden;

fn document(name: &str) -> Value {
    serde_saphyr::from_str(&golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn read(document: &Value) -> Config {
    Config::from_values(document.clone(), None).unwrap_or_else(|e| panic!("{e}"))
}

/// JSON pointers of everything in maps.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        fields(value, &path, found);
        found.push(path);
    }
}

/// Every field that there is has another value than its default here.
#[test]
fn every_field_of_old_is_read() {
    for name in ["configuration.yaml", "configuration-embedded.yaml"] {
        let whole = document(name);
        let before = read(&whole);
        let mut all = Vec::new();
        fields(&whole, "", &mut all);
        for field in all {
            let mut without = whole.clone();
            let (parent, name) = field.rsplit_once('/').unwrap();
            let parent = without.pointer_mut(parent).unwrap();
            parent.as_object_mut().unwrap().remove(name);
            // A field that others need may not go.
            let after = Config::from_values(without, None);
            assert!(
                after.is_err() || after.unwrap() != before,
                "{field} says nothing"
            );
        }
    }
}

#[test]
fn defaults_are_as_ever() {
    assert_eq!(
        read(&json!({})),
        read(&document("configuration-defaults.yaml"))
    );
    let cluster = document("configuration-cluster-defaults.yaml");
    let node_name = &cluster["cluster"]["nodeName"];
    let least = json!({"cluster": {"nodeName": node_name}});
    assert_eq!(read(&least), read(&cluster));
}
