//! An eviction that never was, and what is made of it.

use evictd_engine::{Signal, record::Stages, units::MS};

use super::*;

/// A hog at full speed, evicted a tenth of a millisecond after the crossing.
pub fn incident(id: &str) -> Incident {
    let eviction = EvictionRecord {
        time: "2026-11-22T12:00:00Z".to_owned(),
        name: "hog".to_owned(),
        message: "The node was low on resource: memory.".to_owned(),
        hook: "tracepoint".to_owned(),
        stages: Stages {
            crossed: SECOND,
            woken: 1_000_040_000,
            decided: 1_000_080_000,
            signalled: 1_000_100_000,
        },
        available: 99 << 20,
        threshold: 100 << 20,
        usage_at_crossing: 412 << 20,
        usage_at_decision: 413 << 20,
        working_set: 300 << 20,
        ..EvictionRecord::example(id)
    };
    let sample = |ms: u64| (ms * MS, (1100 - ms) << 20);
    Incident {
        version: VERSION,
        eviction,
        asked: None,
        pace_inputs: None,
        finish: Some(OutcomeRecord {
            id: id.to_owned(),
            exited: 1_010_000_000,
            freed: 1_030_000_000,
            peak_usage: 413 << 20,
            available: 400 << 20,
        }),
        samples: [(
            "memory.available".to_owned(),
            (900..1020).map(sample).collect(),
        )]
        .into(),
        pods: vec![RankedPod {
            pod: "default/hog".to_owned(),
            uid: "u-hog".to_owned(),
            usage: Some(300 << 20),
            request: 0,
            priority: 0,
            priority_unknown: false,
            order: 0,
            qos_class: "BestEffort".to_owned(),
            evicted: true,
            usage_after: Some(0),
            oom_score_adj: Some(1000),
            protected: false,
            spared: None,
            terminating: false,
            empty: false,
            place: None,
        }],
        ranked_by: None,
        capacity: Some(512 << 20),
        kubelet_victim: Some("default/hog".to_owned()),
        oom_victim: Some("default/hog".to_owned()),
    }
}

// R49
#[test]
fn a_picture_shows_the_way_to_it() {
    let incident = incident("a");
    let picture = incident.picture().unwrap().unwrap();
    for word in [
        "<polyline",
        "threshold",
        "OOM killer",
        "crossed to SIGKILL 0.10",
        "available again 30.00",
        "ms since crossed",
        "default/hog: memory.available",
    ] {
        assert!(picture.contains(word), "{word}: {picture}");
    }
    let text = serde_json::to_string(&incident).unwrap();
    assert_eq!(serde_json::from_str::<Incident>(&text).unwrap(), incident);
}

// R5, R49
#[test]
fn a_pod_that_was_asked_has_time_and_is_seen_to_go() {
    let eviction = incident("a").eviction;
    let asked = RequestRecord {
        id: "soft-1".to_owned(),
        time: eviction.time,
        decided: 10 * SECOND,
        namespace: eviction.namespace,
        name: eviction.name,
        uid: eviction.uid,
        message: eviction.message,
        annotations: eviction.annotations,
        signal: eviction.signal,
        available: 150 << 20,
        threshold: 200 << 20,
        working_set: 300 << 20,
        request: 0,
        shadow: false,
        grace_period_seconds: 30,
        override_reason: None,
        boot: String::new(),
        may_be_refused: false,
        pace: None,
        pace_inputs: None,
        workload: None,
        other_signals: BTreeMap::new(),
    };
    let mut incident = Incident::from_request(asked.clone());
    assert_eq!(incident.grace(), Some(Duration::from_secs(30)));
    let seen = |seconds: u64, mib: u64| SignalSample {
        time: seconds * SECOND,
        signal: Signal::MemoryAvailable,
        available: mib << 20,
    };
    let before = [seen(8, 210), seen(9, 150)];
    incident.see(&before);
    // What is there already is not taken again.
    incident.see(&[before[1], seen(11, 140), seen(12, 201), seen(13, 400)]);
    incident.fill_outcome();
    let finish = incident.finish.as_ref().unwrap();
    assert_eq!(
        (finish.exited, finish.freed, finish.available),
        (0, 12 * SECOND, 400 << 20)
    );
    let told: Vec<_> = incident.moments().iter().map(|(name, _)| *name).collect();
    assert_eq!(told, ["asked to go", "available again"]);
    assert_eq!(incident.samples["memory.available"].len(), 5);
    assert!(
        incident
            .picture()
            .unwrap()
            .unwrap()
            .contains("asked to go 0.00")
    );
    let shadow = RequestRecord {
        shadow: true,
        ..asked
    };
    // No pod will go.
    let mut incident = Incident::from_request(shadow);
    incident.fill_outcome();
    assert_eq!((incident.grace(), &incident.finish), (None, &None));
}

/// The guard and the OOM killer look at what can still be used, the chart shows what the kubelet counts.
#[test]
fn limits_are_told_in_what_is_available() {
    let mut incident = incident("a");
    assert_eq!(
        incident.limits(),
        [(100 << 20, "threshold"), (0, "OOM killer")]
    );
    let mut pace_inputs = PaceInputs::default();
    pace_inputs.shortage.available = 99 << 20;
    pace_inputs.shortage.headroom.immediate = 70 << 20;
    incident.pace_inputs = Some(pace_inputs);
    assert_eq!(incident.limits()[1], (29 << 20, "OOM killer"));
    if let Some(pace_inputs) = &mut incident.pace_inputs {
        pace_inputs.shortage.guard_amount = 50 << 20;
    }
    assert_eq!(incident.limits()[1], (79 << 20, "guard"));
    incident.pace_inputs = None;
    incident.eviction.signal = "pid.available".to_owned();
    assert_eq!(incident.limits().len(), 1);
}

#[test]
fn what_was_not_recorded_is_not_drawn() {
    let mut incident = incident("a");
    incident.samples.clear();
    assert_eq!(incident.picture().unwrap(), None);
    incident.eviction.stages.crossed = 0;
    assert_eq!(incident.start(), 1_000_040_000);
}
