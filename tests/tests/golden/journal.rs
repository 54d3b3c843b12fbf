//! The journal: every kind of record with all its fields, and with as few as it can have.

use evictd_engine::{
    Owner,
    pace::Urgency,
    record::{SignalUse, Stages},
};
use evictd_store::{
    journal::Journal,
    record::{
        MetInForce, OtherSignals, OutcomeRecord, PaceRecord, Pause, Reported, RequestRecord,
        StuckPod,
        counted::{Counted, RecreationRecord, TimeBound, Workload},
        mitigation::{MitigatedPod, MitigationRecord},
        node_reclaim::NodeReclaimed,
        oom_kill::{AtLimit, Before, OomCause, OomKillRecord, PodName},
        shadow::{KubeletEviction, ShadowNode},
    },
};
use evictd_tests::prelude::*;

use super::{check, golden, path};

const BOOT: &str = "0b5dbb9a-5d0c-4a29-8e5e-3f2d5f5d6c11";
const TIME: &str = "2026-11-23T07:00:00Z";

fn text(text: &str) -> String {
    text.to_owned()
}

fn workload() -> Workload {
    Workload {
        owner: Some(Owner {
            kind: text("StatefulSet"),
            name: text("db"),
            uid: text("o1"),
        }),
        labels: BTreeMap::from([(text("app"), text("db"))]),
        is_partial: true,
    }
}

/// An eviction with every field, or without what may be absent.
pub fn eviction(is_full: bool) -> EvictionRecord {
    let urgency = Urgency::Urgent {
        exhausted_in: 12_000_000,
        growth: 3 << 30,
    };
    EvictionRecord {
        id: format!("{BOOT}-1000-1"),
        time: text(TIME),
        namespace: text("shop"),
        name: text("db-0"),
        uid: text("u1"),
        phase: is_full.then(|| text("Failed")),
        reason: text("Evicted"),
        message: text("The node was low on resource: memory. "),
        annotations: annotations(is_full),
        signal: text("memory.available"),
        shadow: !is_full,
        hook: text("fexit"),
        stages: Stages {
            crossed: 1,
            woken: 2,
            decided: 3,
            signalled: 4,
        },
        available: 5,
        kubelet_available: is_full.then_some(17),
        threshold: 6,
        usage_at_crossing: 7,
        usage_at_decision: 8,
        working_set: 9,
        request: 10,
        error: is_full.then(|| text("Operation not permitted (os error 1)")),
        pace: is_full.then(|| PaceRecord {
            expected: 11,
            shmem: 12,
            ..PaceRecord::new(urgency, 13, 14)
        }),
        workload: is_full.then(workload),
        other_signals: other_signals(is_full),
    }
}

fn other_signals(is_full: bool) -> OtherSignals {
    let freed = SignalUse {
        usage: 15,
        available: -16,
    };
    let inodes = (text("nodefs.inodesFree"), freed);
    is_full.then_some(inodes).into_iter().collect()
}

fn annotations(is_full: bool) -> BTreeMap<String, String> {
    let starved = (text("starved_resource"), text("memory"));
    is_full.then_some(starved).into_iter().collect()
}

/// A pod that was asked to go, likewise.
pub fn asked(is_full: bool) -> RequestRecord {
    RequestRecord {
        id: text("soft-1"),
        time: text(TIME),
        decided: 3,
        namespace: text("shop"),
        name: text("web-1"),
        uid: text("u2"),
        message: text("The node was low on resource: memory. "),
        annotations: annotations(is_full),
        signal: text("memory.available"),
        available: 5,
        threshold: 6,
        working_set: 9,
        request: 10,
        shadow: !is_full,
        grace_period_seconds: 30,
        override_reason: is_full.then(|| text("the budget refused for 60s")),
        boot: if is_full { text(BOOT) } else { String::new() },
        may_be_refused: is_full,
        pace: is_full.then(|| PaceRecord {
            expected: 11,
            ..PaceRecord::new(Urgency::Paced { only_cache: false }, 13, 14)
        }),
        pace_inputs: None,
        workload: is_full.then(Workload::default),
        other_signals: other_signals(is_full),
    }
}

/// The end of an eviction.
pub fn finish() -> OutcomeRecord {
    OutcomeRecord {
        id: format!("{BOOT}-1000-1"),
        exited: 5,
        freed: 6,
        peak_usage: 7,
        available: 8,
    }
}

fn oom_kill(cause: OomCause, is_full: bool) -> OomKillRecord {
    let pod = PodName {
        namespace: text("shop"),
        name: text("db-0"),
        uid: text("u1"),
    };
    OomKillRecord {
        time: text(TIME),
        at: 1,
        pid: 2,
        processes: is_full.then_some(3),
        comm: text("hog"),
        cgroup: text("/kubepods/podu1"),
        pod: is_full.then(|| pod.clone()),
        oom_score_adj: -3,
        rss: is_full.then_some(4),
        cause,
        at_limit: is_full.then(|| AtLimit {
            cgroup: text("/kubepods/podu1"),
            usage: 5,
            limit: 6,
        }),
        scope_usage: is_full.then_some(7),
        before: Vec::from_iter(is_full.then_some(Before {
            pod,
            nanos_before: 8,
            in_flight: true,
            shadow: false,
        })),
        was_first: !is_full,
        more: if is_full { 9 } else { 0 },
    }
}

/// Every record; what may be absent is once there and once not.
fn records() -> Vec<Record> {
    let counted = |is_full: bool| Counted {
        is_agreed: is_full,
        grace_period_seconds: is_full.then_some(30),
        workload: is_full.then(workload),
        other_signals: other_signals(is_full),
        ..Counted::from(&eviction(false))
    };
    let mitigation = |is_full: bool| MitigationRecord {
        time: text(TIME),
        step: text("brake"),
        signal: text("memory.available"),
        pods: vec![MitigatedPod {
            namespace: text("shop"),
            name: text("web-1"),
            uid: text("u2"),
            asked: 1,
            usage_given: 2,
            working_set_given: 3,
            high: is_full.then_some(4),
        }],
        available_before: -5,
        available_after: 6,
        took: 7,
        refusal: is_full.then(|| text("memory.high: Operation not permitted (os error 1)")),
    };
    let mut records = vec![
        Record::Finished(finish()),
        Record::Reported(Reported {
            id: format!("{BOOT}-1000-1"),
            time: text(TIME),
            outcome: text("deleted"),
        }),
        Record::Reclaimed(NodeReclaimed {
            time: text(TIME),
            what: vec![text("containers"), text("images")],
            containers: 1,
            sandboxes: 2,
            images: 3,
            image_bytes: 4,
            refused: 5,
            is_cut_short: true,
            freed: BTreeMap::from([(text("nodefs.available"), -6)]),
            is_enough: false,
            took: 7,
        }),
        Record::Paused(Pause {
            time: text(TIME),
            by: text("file"),
            paused: true,
            evictions_paused: true,
            untold: 1,
        }),
        Record::Stuck(StuckPod {
            id: format!("{BOOT}-1000-1"),
            time: text(TIME),
            namespace: text("shop"),
            name: text("db-0"),
            uid: text("u1"),
            usage: 1,
        }),
        Record::MetInForce(MetInForce {
            id: format!("{BOOT}-1000-met"),
            time: text(TIME),
            signal: text("memory.available"),
            available: 1,
            threshold: 2,
            soft: true,
            shadow: true,
        }),
        Record::Recreated(RecreationRecord {
            time: text(TIME),
            boot: text(BOOT),
            at: 1,
            uid: text("u3"),
            owner_uid: text("o1"),
            condition: text("MemoryPressure"),
            count: 2,
            hold_seconds: 3,
        }),
        Record::TimeBound(TimeBound { time: text(TIME) }),
        Record::KubeletEvicted(KubeletEviction {
            time: text(TIME),
            namespace: text("shop"),
            name: text("db-0"),
            uid: text("u1"),
            message: text("The node was low on resource: memory."),
        }),
        Record::ShadowNode(ShadowNode {
            id: format!("{BOOT}-1000-node-1"),
            time: text(TIME),
            conditions: vec![text("MemoryPressure")],
            message: text("memory.available<100Mi"),
        }),
    ];
    for is_full in [true, false] {
        records.extend([
            Record::evicted(eviction(is_full)),
            Record::Requested(Box::new(asked(is_full))),
            Record::Mitigated(mitigation(is_full)),
            Record::Counted(Box::new(counted(is_full))),
        ]);
    }
    use OomCause::{Machine, OtherLimit, PodLimit, Scope};
    for (cause, is_full) in [
        (Machine, true),
        (Scope, false),
        (PodLimit, true),
        (OtherLimit, false),
    ] {
        records.push(Record::OomKill(Box::new(oom_kill(cause, is_full))));
    }
    records
}

/// Numbers the kinds of records. A kind that is missing here does not compile; one without a number leaves a gap.
fn number(record: &Record) -> usize {
    match record {
        Record::Evicted(_) => 0,
        Record::Finished(_) => 1,
        Record::Reported(_) => 2,
        Record::Requested(_) => 3,
        Record::Reclaimed(_) => 4,
        Record::Mitigated(_) => 5,
        Record::OomKill(_) => 6,
        Record::Paused(_) => 7,
        Record::Stuck(_) => 8,
        Record::MetInForce(_) => 9,
        Record::Counted(_) => 10,
        Record::Recreated(_) => 11,
        Record::TimeBound(_) => 12,
        Record::KubeletEvicted(_) => 13,
        Record::ShadowNode(_) => 14,
    }
}

/// The text of a journal with these records.
fn written(records: &[Record]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    for record in records {
        journal.append(record).unwrap();
    }
    drop(journal);
    let read = journal::read(dir.path()).unwrap();
    assert_eq!(read, (records.to_vec(), 0), "what is written can be read");
    fs::read_to_string(dir.path().join("journal.jsonl")).unwrap()
}

#[test]
fn records_are_written_as_ever() {
    let records = records();
    let mut kinds: Vec<_> = records.iter().map(number).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, (0..15).collect::<Vec<_>>(), "every kind is there");
    check("journal.jsonl", &written(&records));
}

/// As agents wrote that knew neither paces nor workloads. This file stays as it is.
#[test]
fn records_of_older_agents_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        path("journal-before.jsonl"),
        dir.path().join("journal.jsonl"),
    )
    .unwrap();
    let (records, damaged) = journal::read(dir.path()).unwrap();
    assert_eq!(damaged, 0);
    assert_eq!(
        records.len(),
        golden("journal-before.jsonl").lines().count()
    );
    check("journal-before-read.jsonl", &written(&records));
}
