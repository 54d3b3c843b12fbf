use serde_json::json;

use super::{state::MAX_OBJECTS, *};
use crate::{evaluator::PolicySettings, gate::Secrets};

fn store() -> PolicyStore {
    PolicyStore::new(PolicyEvaluator::new(
        PolicySettings::default(),
        Secrets::new(None),
    ))
}

fn document(name: &str, generation: i64, evict: &str) -> Value {
    json!({
        "apiVersion": "evictd.io/v1alpha1",
        "kind": "EvictionPolicy",
        "metadata": {
            "name": name,
            "uid": format!("uid-of-{name}"),
            "generation": generation,
            "resourceVersion": "7",
            "managedFields": [],
        },
        "spec": {"rules": [{"name": "r", "evict": evict}]},
        "status": {"conditions": []},
    })
}

/// Name and generation of the policies in force.
fn in_force(store: &PolicyStore) -> Vec<(String, Option<i64>)> {
    let set = locked(&store.state).set();
    let policies = set.policies.iter();
    policies.map(|p| (p.name.clone(), p.generation)).collect()
}

#[test]
fn the_last_good_version_stays_until_a_better_one_comes_or_the_object_goes() {
    let store = store();
    let good = store.put(&document("a", 1, "Never")).expect("a status");
    assert_eq!(good.refused, None);
    let bad = store.put(&document("a", 2, "Sometimes")).expect("a status");
    let reason = bad.refused.expect("it is wrong");
    assert!(reason.starts_with("spec.rules[0].evict: "), "{reason}");
    assert_eq!(in_force(&store), [("a".to_owned(), Some(1))]);
    assert_eq!(store.refused(), (1, false));
    store.put(&document("a", 3, "Always"));
    assert_eq!(in_force(&store), [("a".to_owned(), Some(3))]);
    assert_eq!(store.refused(), (0, false));
    store.remove("a");
    assert_eq!(in_force(&store), []);
}

#[test]
fn another_object_of_the_same_name_inherits_nothing() {
    let store = store();
    store.put(&document("a", 1, "Never"));
    let mut other = document("a", 1, "Sometimes");
    other["metadata"]["uid"] = "another".into();
    store.put(&other);
    assert_eq!(in_force(&store), []);
}

#[test]
fn of_equal_names_the_files_holds() {
    let store = store();
    store.put(&document("a", 4, "Never"));
    let file = |evict| EvictionPolicy::read(document("a", 1, evict)).expect("a policy");
    store.set_files(Some(vec![file("Always")]));
    assert_eq!(in_force(&store), [("a".to_owned(), Some(1))]);
    store.set_files(None);
    assert_eq!(in_force(&store), [("a".to_owned(), Some(1))]);
    assert_eq!(store.refused(), (0, true));
    store.set_files(Some(Vec::new()));
    assert_eq!(in_force(&store), [("a".to_owned(), Some(4))]);
}

#[test]
fn a_list_replaces_what_was_remembered() {
    let first = store();
    first.put(&document("a", 1, "Never"));
    first.put(&document("b", 1, "Never"));
    first.put(&document("b", 2, "Sometimes"));
    let second = store();
    second.restore(&first.remembered(), &[]);
    let both = [("a".to_owned(), Some(1)), ("b".to_owned(), Some(1))];
    assert_eq!(in_force(&second), both);
    let statuses = second.replace(&[document("b", 2, "Sometimes")]);
    assert!(statuses[0].refused.is_some());
    assert_eq!(
        in_force(&second),
        [("b".to_owned(), Some(1))],
        "the last good one outlives a restart"
    );
}

#[test]
fn there_is_an_end_to_how_many_are_kept() {
    let store = store();
    for i in 0..MAX_OBJECTS + 3 {
        store.put(&document(&format!("p{i}"), 1, "Never"));
    }
    assert_eq!(in_force(&store).len(), MAX_OBJECTS);
    // A known object may change, and an object that is gone makes room.
    assert!(store.put(&document("p0", 2, "Always")).is_some());
    store.remove("p0");
    assert!(store.put(&document("late", 1, "Never")).is_some());
    // An object that was deleted and created again keeps its place.
    let mut anew = document("late", 1, "Always");
    anew["metadata"]["uid"] = "another".into();
    let taken = store.put(&anew).expect("it has a place");
    assert_eq!(taken.uid, "another");
}

#[test]
fn what_was_left_out_comes_with_the_next_list_when_a_place_is_free() {
    let store = store();
    let named = |i| document(&format!("p{i:03}"), 1, "Never");
    let all: Vec<Value> = (0..=MAX_OBJECTS).map(named).collect();
    store.replace(&all);
    let last = ("p256".to_owned(), Some(1));
    assert!(!in_force(&store).contains(&last));
    assert_eq!((store.refused(), store.needs_list()), ((1, false), false));
    store.remove("p000");
    assert!(store.needs_list());
    store.replace(&all[1..]);
    assert!(in_force(&store).contains(&last));
    assert_eq!((store.refused(), store.needs_list()), ((0, false), false));
    store.remove("p001");
    assert!(!store.needs_list(), "none is left out");
    // One that was left out and is gone needs no place.
    store.replace(&all);
    store.remove("p000");
    store.remove("p001");
    assert_eq!((store.refused(), store.needs_list()), ((0, false), false));
}

/// A file from a disk that was full, or of another program.
#[test]
fn what_is_damaged_in_memory_is_left_out() {
    let store = store();
    let tenant = |metadata: Value| {
        json!({
            "apiVersion": "evictd.io/v1alpha1",
            "kind": "PodEvictionPolicy",
            "metadata": metadata,
            "spec": {"order": -1},
        })
    };
    let good = json!({"namespace": "shop", "name": "shop/db"});
    let tenants = [
        json!("text"),
        json!(7),
        json!([]),
        json!({}),
        json!({"name": 7}),
        json!(null),
        good,
    ]
    .map(tenant);
    let objects = [json!("text"), json!(7), json!({"metadata": "text"})];
    store.restore(&objects, &[&tenants[..], &objects[..]].concat());
    let state = locked(&store.state);
    let known: Vec<_> = state.tenants.keys().cloned().collect();
    assert_eq!(known, [("shop".to_owned(), "db".to_owned())]);
    assert!(state.objects.is_empty());
}

/// One namespace takes no places that others need.
#[test]
fn a_namespace_has_places_of_its_own() {
    let store = store();
    let policy = |namespace: &str, name: usize, order: i32| {
        json!({
            "apiVersion": "evictd.io/v1alpha1",
            "kind": "PodEvictionPolicy",
            "metadata": {"namespace": namespace, "name": name.to_string()},
            "spec": {"order": order},
        })
    };
    let of = |namespace: &str| {
        let state = locked(&store.state);
        let of = |key: &&(String, String)| key.0 == namespace;
        (
            state.tenants.keys().filter(of).count(),
            state.tenants_refused.iter().filter(of).count(),
        )
    };
    let crowd: Vec<Value> = (0..3000).map(|n| policy("crowd", n, -1)).collect();
    store.replace_tenants(&crowd);
    (0..3000).for_each(|n| store.put_tenant(&policy("broken", n, 5)));
    store.put_tenant(&policy("calm", 0, -1));
    assert_eq!(
        [of("crowd"), of("broken"), of("calm")],
        [(32, 0), (0, 32), (1, 0)]
    );
    assert_eq!(store.tenants_refused(), 64, "of each so many are counted");
    store.put_tenant(&policy("calm", 1, -1));
    store.remove_tenant(&policy("calm", 1, -1));
    assert!(!store.tenants_need_list());
    // A known policy may change, and a policy that is gone makes room.
    store.put_tenant(&policy("crowd", 0, -2));
    store.remove_tenant(&policy("crowd", 1, -1));
    store.put_tenant(&policy("crowd", 4000, -1));
    assert_eq!(of("crowd"), (32, 0));
    assert!(
        locked(&store.state)
            .tenants
            .contains_key(&("crowd".into(), "4000".into()))
    );
    assert!(store.tenants_need_list());
    let in_force = || Vec::from_iter(locked(&store.state).tenants.keys().cloned());
    let before = in_force();
    let listed = Vec::from_iter(crowd.iter().rev().cloned());
    store.replace_tenants(&listed);
    assert!(!store.tenants_need_list());
    let keep = in_force().iter().filter(|key| before.contains(key)).count();
    assert_eq!(keep, 31, "all but the one that is not listed");
    // All places are taken: any that is free is for one that was left out.
    let many = (0..1025).map(|n| policy(&(n / 20).to_string(), n, -1));
    store.replace_tenants(&many.collect::<Vec<_>>());
    store.remove_tenant(&policy("0", 0, -1));
    assert!(store.tenants_need_list());
}
