use evictd_config::kube::pod::read_pod;
use serde_json::json;

use super::*;

fn pod() -> Pod {
    let pod = json!({
        "metadata": {
            "name": "db", "namespace": "shop", "uid": "u1",
            "labels": {"app": "db"},
            "annotations": {"a": "b"},
            "creationTimestamp": "2026-11-21T02:51:55Z",
            "ownerReferences": [{"kind": "StatefulSet", "name": "db", "uid": "o1", "controller": true}],
        },
        "spec": {
            "priority": 7,
            "terminationGracePeriodSeconds": 3,
            "restartPolicy": "Never",
            "containers": [{"name": "c", "resources": {
                "requests": {"memory": "100Mi", "ephemeral-storage": "1.5G"},
                "limits": {"memory": "200Mi", "ephemeral-storage": "2G"},
            }}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    read_pod("pod", &pod).expect("a pod")
}

fn snapshot() -> ClusterSnapshot {
    ClusterSnapshot {
        paused: vec![PauseSource::Node],
        fleet: FleetState {
            pace: FleetPace::Paused,
            until: 1_796_000_000,
        },
        policies_known: true,
        policies: vec![json!({"metadata": {"name": "p"}})],
        tenants: vec![json!({"kind": TENANT_KIND, "metadata": {"name": "t"}})],
        namespaces: BTreeMap::from([(
            "shop".into(),
            Labels::from([("tier".into(), "gold".into())]),
        )]),
        namespace_keys: Some(BTreeSet::from(["tier".into(), "zone".into()])),
        pods: vec![pod()],
        unreadable: 0,
    }
}

#[test]
fn what_was_written_is_read_back_exactly() {
    let (text, left_out) = snapshot().text().expect("a text");
    assert_eq!(left_out, 0);
    assert_eq!(
        ClusterSnapshot::parse(&text).expect("it can be read"),
        snapshot()
    );
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(
        ClusterSnapshot::read(dir.path()).expect("no file"),
        ClusterSnapshot::default()
    );
    fs::write(dir.path().join(FILE), text).expect("it is written");
    assert_eq!(
        ClusterSnapshot::read(dir.path()).expect("it can be read"),
        snapshot()
    );
}

#[test]
fn half_a_file_is_none() {
    let (text, _) = snapshot().text().expect("a text");
    let lines: Vec<&str> = text.lines().collect();
    for end in 0..lines.len() {
        let half = lines[..end].join("\n");
        ClusterSnapshot::parse(&half).expect_err("it has no end");
    }
    for (text, expected) in [
        (text.replace("\"uid\":\"u1\"", "\"uid\":u1"), "line 7: "),
        (
            text.replace("{\"version\":1}", "{\"version\":9}"),
            "line 1: is not version 1",
        ),
        (
            text.replace("{\"end\":8}", "{\"end\":9}"),
            "line 9: 9 lines should be before it",
        ),
        (
            format!("{text}{{\"end\":9}}\n"),
            "line 10: comes after the end",
        ),
        ("\u{0}".to_owned(), "line 1: "),
    ] {
        let error = ClusterSnapshot::parse(&text)
            .expect_err(expected)
            .to_string();
        assert!(
            error.contains(expected),
            "{error} should contain {expected}"
        );
    }
}

#[test]
fn there_is_an_end_to_what_is_remembered() {
    let fat = |i: usize| Pod {
        uid: format!("u{i}"),
        labels: BTreeMap::from([("l".into(), "x".repeat(64 << 10))]),
        ..pod()
    };
    let many = ClusterSnapshot {
        pods: (0..100).map(fat).collect(),
        ..snapshot()
    };
    let (text, left_out) = many.text().expect("a text");
    assert!(left_out > 0 && text.len() <= MAX_BYTES);
    let kept = ClusterSnapshot::parse(&text).expect("it can be read");
    assert_eq!(kept.pods.len() + left_out, 100);
    assert_eq!(kept.policies, many.policies);
}

/// An agent of before sidecars knows two kinds of containers, and gives the file up where it meets a third one.
#[test]
fn an_older_agent_can_read_a_sidecar() {
    let (text, _) = snapshot().text().expect("a text");
    let is_written = |kind: &str| text.contains(kind);
    assert!(
        is_written(r#""s","kind":"Init","restartable":true"#),
        "{text}"
    );
    assert!(is_written(r#""i","kind":"Init","memoryRequest""#), "{text}");
    assert!(
        is_written(r#""c","kind":"Regular","memoryRequest""#),
        "{text}"
    );
}

#[test]
fn a_pod_of_an_unknown_form_costs_no_other() {
    let new = Pod {
        uid: "u2".into(),
        ..pod()
    };
    let written = ClusterSnapshot {
        pods: vec![new, pod()],
        ..snapshot()
    };
    let (text, _) = written.text().expect("a text");
    let text = text.replacen("\"kind\":\"Regular\"", "\"kind\":\"Future\"", 1);
    let expected = ClusterSnapshot {
        unreadable: 1,
        ..snapshot()
    };
    assert_eq!(
        ClusterSnapshot::parse(&text).expect("it can be read"),
        expected
    );
}

#[test]
fn a_file_that_does_not_say_that_policies_are_known_knows_none() {
    let (text, _) = snapshot().text().expect("a text");
    let line = "{\"paused\":\"policiesKnown\"}\n";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    let before = text.replace(line, "").replace("\"end\":8", "\"end\":7");
    let read = ClusterSnapshot::parse(&before).expect("it can be read");
    let expected = ClusterSnapshot {
        policies_known: false,
        ..snapshot()
    };
    assert_eq!(read, expected);
    // As an older agent meets it.
    let unknown = text.replace("policiesKnown", "ofAnotherVersion");
    let read = ClusterSnapshot::parse(&unknown).expect("it can be read");
    assert_eq!(read, expected);
}

/// A pause of a kind that is not known is passed over, and so is the word of a version to come.
#[test]
fn an_older_agent_can_read_the_fleets_pace() {
    let (text, _) = snapshot().text().expect("a text");
    let word = "fleet paused 1796000000";
    assert!(
        text.contains(&format!("{{\"paused\":\"{word}\"}}\n")),
        "{text}"
    );
    for unknown in [
        "ofAnotherVersion",
        "fleet stopped 1796000000",
        "fleet paused",
    ] {
        let read = ClusterSnapshot::parse(&text.replace(word, unknown));
        let expected = ClusterSnapshot {
            fleet: FleetState::default(),
            ..snapshot()
        };
        assert_eq!(read.expect("it can be read"), expected, "{unknown}");
    }
}
