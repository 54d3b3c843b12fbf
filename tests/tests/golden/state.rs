//! Files of the state directory besides the journal.

use evictd_engine::{
    growth::Headroom,
    pace::{Pace, PaceInputs, PaceProfile},
    pending::Pending,
    recorder::SignalSample,
    shortage::{LimitedGrowth, Shortage},
};
use evictd_node::cgroup::throttle::Throttle;
use evictd_policy::evaluator::{Explanation, GateView, RuleView};
use evictd_store::incident::{
    Incident, RankedBy, RankedPod,
    files::{Incidents, read as read_incident},
};
use evictd_tests::prelude::*;

use super::{
    check, golden,
    journal::{asked, eviction, finish},
};

fn incident(is_full: bool) -> Incident {
    let seen = Shortage {
        dying: 4 << 20,
        skew: 14,
        kernel: 16,
        stat_lag: 17,
        estimated: 0,
        available: 1,
        beyond_guard: 0,
        threshold: 2,
        resolved: 3,
        used: 4,
        headroom: Headroom {
            immediate: 5,
            deferred: 6,
            deferred_per_second: 7,
            swap: 13,
        },
        dirty_or_writeback: 25,
        awaits_writeback: true,
        swapped: 18,
        swap_free: 0,
        guard_amount: 8,
        pcp_free: 0,
        is_kubelets: false,
        limited_growth: LimitedGrowth {
            grown: 24,
            growth: 19,
            left: 20,
        },
    };
    let mut pending = Pending::default();
    pending.add(9, 10);
    let mut pace = Pace::default();
    for now in [20_000_000, 40_000_000] {
        pace.observe(now, &seen);
    }
    let standing = |usage| RankedPod {
        pod: "shop/db-0".into(),
        uid: "u-db-0".into(),
        usage,
        request: 11,
        priority: -12,
        priority_unknown: usage.is_some(),
        order: usage.map_or(0, |_| -19),
        qos_class: "Burstable".into(),
        evicted: usage.is_some(),
        usage_after: usage.map(|_| 15),
        oom_score_adj: usage.map(|_| 998),
        protected: usage.is_some(),
        spared: usage.map(|_| "a gate says no".into()),
        terminating: usage.is_some(),
        empty: usage.is_some(),
        place: usage.map(|_| 17),
    };
    Incident {
        asked: is_full.then(|| asked(true)),
        pace_inputs: is_full.then_some(PaceInputs {
            now: 13,
            pace,
            shortage: seen,
            pending,
            profile: PaceProfile::Sustained,
        }),
        finish: is_full.then(finish),
        pods: if is_full {
            vec![standing(Some(14)), standing(None)]
        } else {
            Vec::new()
        },
        ranked_by: is_full.then(|| RankedBy {
            strategy: "qos".into(),
            read: 20,
        }),
        ..Incident::new(eviction(is_full))
    }
}

#[test]
fn incidents_are_written_as_ever() {
    for (name, is_full) in [("incident.json", true), ("incident-least.json", false)] {
        let dir = tempfile::tempdir().unwrap();
        let incident = incident(is_full);
        let id = &incident.eviction.id;
        let samples = [SignalSample {
            time: 4,
            signal: Signal::MemoryAvailable,
            available: 5,
        }];
        let samples = if is_full { &samples[..] } else { &[] };
        Incidents::new(dir.path())
            .writer()
            .write(vec![incident.clone()], samples);
        let file = dir.path().join("incidents").join(format!("{id}.json"));
        check(name, &(fs::read_to_string(&file).unwrap() + "\n"));
        // An older file is found, and read.
        fs::write(&file, golden(name)).unwrap();
        let read = read_incident(dir.path(), id).unwrap().unwrap();
        assert_eq!(read.eviction, incident.eviction);
        assert_eq!(read.pace_inputs, incident.pace_inputs);
    }
}

/// `policies.json`.
#[test]
fn explanations_are_written_as_ever() {
    let text = |text: &str| text.to_owned();
    let gate = |is_full: bool| GateView {
        gate: text("leader"),
        answer: is_full.then_some(true),
        age_seconds: is_full.then_some(1.5),
        error: is_full.then(|| text("503")),
        on_unknown: text("Deny"),
    };
    let explanation = |is_full: bool| Explanation {
        pod: text("shop/db-0"),
        uid: text("u1"),
        may_go: is_full,
        for_seconds: is_full.then_some(1),
        reason: is_full.then(|| text("a limit has no room")),
        order: -1,
        rules: vec![RuleView {
            rule: text("databases/leader"),
            evict: text("Always"),
            shadow: false,
            says_yes: true,
            gates: vec![gate(is_full)],
        }],
    };
    let all = vec![explanation(true), explanation(false)];
    let written = serde_json::to_string(&all).unwrap() + "\n";
    check("policies.json", &written);
    let read: Vec<Explanation> = serde_json::from_str(&golden("policies.json")).unwrap();
    assert_eq!(read, all);
}

/// `brakes.json`.
#[test]
fn brakes_are_written_as_ever() {
    let throttles = vec![Throttle {
        uid: "u1".into(),
        cgroup: "/sys/fs/cgroup/kubepods/podu1".into(),
        id: 1,
        before: "max".into(),
        high: 65_536,
    }];
    check(
        "brakes.json",
        &(serde_json::to_string(&throttles).unwrap() + "\n"),
    );
    let read: Vec<Throttle> = serde_json::from_str(&golden("brakes.json")).unwrap();
    assert_eq!(read, throttles);
}
