use std::collections::BTreeMap;

use evictd_engine::{
    Owner,
    limiter::EvictionLimiter,
    record::{SignalUse, Stages},
};
use proptest::prelude::*;

use super::*;
use crate::{
    journal::{self, FILE_BYTES, Journal},
    record::{EvictionRecord, OutcomeRecord, RequestRecord, StuckPod, counted::Workload},
};

const BOOT: &str = "c6400724-0b7e-4b7b-9d0e-0123456789ab";
const OTHER: &str = "00000000-0b7e-4b7b-9d0e-0123456789ab";
/// 2026-11-23T06:00:00Z.
const WALL: i64 = 1_795_413_600;

fn eviction(boot: &str, number: u64, monotonic_s: u64, wall_s: i64) -> EvictionRecord {
    EvictionRecord {
        time: stamp(wall_s),
        namespace: "shop".into(),
        uid: format!("uid-{number}"),
        phase: Some("Failed".into()),
        stages: Stages {
            signalled: monotonic_s * SECOND,
            ..Stages::default()
        },
        workload: Some(Workload {
            owner: Some(Owner {
                kind: "DaemonSet".into(),
                name: "web".into(),
                uid: "owner".into(),
            }),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            is_partial: false,
        }),
        ..EvictionRecord::example(format!("{boot}-17-{number}"))
    }
}

fn stamp(wall_s: i64) -> String {
    jiff::Timestamp::from_second(wall_s).unwrap().to_string()
}

fn clocks(boot: &str, monotonic_s: u64, wall_s: i64) -> Clocks {
    Clocks {
        boot: boot.into(),
        monotonic: monotonic_s * SECOND,
        wall: jiff::Timestamp::from_second(wall_s).unwrap(),
    }
}

fn counts(records: impl IntoIterator<Item = Record>) -> Counts {
    let mut counts = Counts::default();
    records.into_iter().for_each(|record| counts.note(&record));
    counts
}

/// How long ago evictions were, in whole seconds.
fn ages(restored: &Restored) -> Vec<i64> {
    let evictions = restored.evictions();
    evictions
        .iter()
        .map(|e| (restored.now - e.at) / SECOND_NS)
        .collect()
}

#[test]
fn what_killed_no_pod_does_not_count() {
    let plain = eviction(BOOT, 1, 10, WALL);
    let shadow = EvictionRecord {
        shadow: true,
        ..eviction(BOOT, 2, 10, WALL)
    };
    let refused = EvictionRecord {
        error: Some("EPERM".into()),
        ..eviction(BOOT, 3, 10, WALL)
    };
    let all = [plain.clone(), shadow, refused, plain].map(Record::evicted);
    let restored = counts(all).restore(&clocks(BOOT, 11, WALL + 1));
    assert_eq!(restored.len(), 1, "and what was carried over counts once");
    let victims = restored.victims();
    assert_eq!(victims[0].uid, "uid-1");
    assert_eq!(victims[0].signalled, 10 * SECOND);
}

/// The record that the pod of an eviction is stuck.
fn stuck(eviction: &EvictionRecord) -> Record {
    Record::Stuck(StuckPod {
        id: eviction.id.clone(),
        time: stamp(WALL),
        namespace: "shop".into(),
        name: "web".into(),
        uid: eviction.uid.clone(),
        usage: 1,
    })
}

/// Its processes may wait for a disk for hours: whatever starts meanwhile must not evict it again.
#[test]
fn a_pod_that_was_found_stuck_is_a_victim_for_as_long_as_it_is_there() {
    let all = [1, 2].map(|number| eviction(BOOT, number, 100, WALL));
    let stuck = stuck(&all[0]);
    let counts = counts(all.map(Record::evicted).into_iter().chain([stuck]));
    let restored = counts.restore(&clocks(BOOT, 800, WALL));
    let victims = restored.victims();
    assert_eq!(victims.len(), 1, "{victims:?}");
    assert!(victims[0].uid == "uid-1" && victims[0].is_stuck);
    assert_eq!(restored.planner_state(|_, _| true).victims.len(), 1);
    let rebooted = counts.restore(&clocks(OTHER, 800, WALL));
    assert!(rebooted.victims().is_empty());
}

#[test]
fn a_stuck_pod_is_known_after_many_evictions() {
    // Of more than are kept the oldest are forgotten.
    for (count, known) in [(1, 1), (KEPT_STUCK as u64 + 6, KEPT_STUCK)] {
        let mut counts = Counts::default();
        for number in 0..count + KEPT as u64 {
            let eviction = eviction(BOOT, number, 100 + number, WALL);
            counts.note(&Record::evicted(eviction.clone()));
            if number < count {
                counts.note(&stuck(&eviction));
            }
        }
        let restored = counts.restore(&clocks(BOOT, 5000, WALL));
        assert_eq!(restored.len(), KEPT - known);
        let victims = restored.victims();
        assert_eq!(victims.len(), known, "the others are long gone");
        let last = victims.last().unwrap();
        assert_eq!(last.uid, format!("uid-{}", count - 1));
        // A new file of the journal begins with them, where not all fit.
        let carried = counts.newest(FILE_BYTES / 64);
        assert!(
            carried.len() < KEPT && carried.contains(&last.id),
            "{count}"
        );
        assert!(carried.contains(&of_stuck(&last.id)), "{count}");
    }
}

/// The kubelet starts an evicted pod again where no server knows of the eviction: its memory comes back once.
#[test]
fn a_pod_that_was_killed_twice_is_one_victim() {
    let again = EvictionRecord {
        uid: "uid-1".into(),
        ..eviction(BOOT, 3, 112, WALL + 12)
    };
    let all = [
        eviction(BOOT, 1, 100, WALL),
        eviction(BOOT, 2, 105, WALL + 5),
        again,
    ];
    let restored = counts(all.map(Record::evicted)).restore(&clocks(BOOT, 113, WALL + 13));
    let victims = restored.victims();
    let victims: Vec<_> = victims.iter().map(|v| (&*v.uid, v.signalled)).collect();
    assert_eq!(victims, [("uid-2", 105 * SECOND), ("uid-1", 112 * SECOND)]);
}

#[test]
fn the_age_in_one_boot_is_that_of_the_monotonic_clock() {
    let all = [eviction(BOOT, 1, 100, WALL), eviction(BOOT, 2, 200, WALL)];
    let counts = counts(all.map(Record::evicted));
    for wall in [WALL - 1_000_000, WALL, WALL + 1_000_000] {
        let restored = counts.restore(&clocks(BOOT, 260, wall));
        assert_eq!(ages(&restored), [160, 60]);
        assert!(!restored.is_bound_needed);
    }
}

#[test]
fn after_a_reboot_the_wall_clock_tells() {
    let all = [eviction(OTHER, 1, 90_000, WALL)];
    let restored = counts(all.map(Record::evicted)).restore(&clocks(BOOT, 30, WALL + 100));
    assert_eq!(ages(&restored), [100], "before this boot began");
    assert_eq!(restored.evictions()[0].at, -70 * SECOND_NS);
    assert!(restored.victims().is_empty(), "no process outlives a boot");
    assert!(restored.planner_state(|_, _| true).victims.is_empty());
}

#[test]
fn a_clock_that_was_set_back_makes_nothing_count_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    let year = 31_557_600;
    let far = jiff::Timestamp::now().as_second() + 10 * year;
    journal
        .append(&Record::evicted(eviction(OTHER, 1, 5, far)))
        .unwrap();
    let age = |restored: &Restored| ages(restored)[0];
    assert_eq!(age(&journal.restore().unwrap()), 0);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // The next agent, and the one after it, know when it was seen first.
    for _ in 0..2 {
        assert!(age(&journal.restore().unwrap()) >= 1);
    }
    let (records, damaged) = journal::read(dir.path()).unwrap();
    assert_eq!((records.len(), damaged), (2, 0), "{records:?}");
    assert!(matches!(records[1], Record::TimeBound(_)));
}

#[test]
fn what_counts_outlives_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    journal.restore().unwrap();
    let Clocks {
        boot, monotonic, ..
    } = Clocks::now();
    let wall = jiff::Timestamp::now().as_second();
    let first = eviction(&boot, 1, monotonic / SECOND, wall);
    journal.append(&Record::evicted(first)).unwrap();
    journal
        .append(&Record::Recreated(RecreationRecord {
            time: stamp(wall),
            boot,
            at: monotonic,
            uid: "new".into(),
            owner_uid: "owner".into(),
            condition: "MemoryPressure".into(),
            count: 3,
            hold_seconds: 240,
        }))
        .unwrap();
    let filler = Record::Finished(OutcomeRecord::unknown(&"x".repeat(1 << 20)));
    for _ in 0..20 {
        journal.append(&filler).unwrap();
    }
    drop(journal);
    let restored = Journal::open(dir.path()).unwrap().restore().unwrap();
    assert_eq!(restored.len(), 1);
    let evicted = &restored.evictions()[0];
    assert_eq!(evicted.pod.owner.as_ref().unwrap().uid, "owner");
    assert_eq!(evicted.pod.labels["app"], "web");
    let state = restored.planner_state(|_, _| true);
    assert_eq!((state.victims.len(), state.evictions.len()), (1, 1));
    assert_eq!(state.recreations[0].recreation.count, 3);
}

#[test]
fn no_more_is_kept_and_carried_over_than_fits() {
    let mut many = Counts::default();
    for number in 0..KEPT as u64 + 10 {
        let mut eviction = eviction(BOOT, number, number, WALL);
        let labels = &mut eviction.workload.as_mut().unwrap().labels;
        labels.insert("long".into(), "x".repeat(8 << 10));
        many.note(&Record::evicted(eviction));
    }
    let restored = many.restore(&clocks(BOOT, 5000, WALL));
    assert_eq!(restored.len(), KEPT);
    assert_eq!(restored.evictions()[0].pod.uid, "uid-10", "the newest");
    let newest = many.newest(FILE_BYTES / 4);
    let of = |id: &String| serde_json::to_vec(many.get(id).unwrap()).unwrap().len() as u64 + 1;
    let bytes: u64 = newest.iter().map(of).sum();
    assert!(
        bytes <= FILE_BYTES / 4 && bytes + (9 << 10) > FILE_BYTES / 4,
        "{bytes}"
    );
    assert!(newest.len() < KEPT);
    let Some(Record::Counted(last)) = many.get(newest.last().unwrap()) else {
        panic!("another record");
    };
    assert_eq!(last.uid, format!("uid-{}", KEPT + 9));
}

fn asked(may_be_refused: bool, grace_period_seconds: i64) -> RequestRecord {
    RequestRecord {
        id: "soft-1".into(),
        time: stamp(WALL),
        decided: 100 * SECOND,
        namespace: "shop".into(),
        name: "web".into(),
        uid: "uid-1".into(),
        message: String::new(),
        annotations: BTreeMap::new(),
        signal: "memory.available".into(),
        available: 0,
        threshold: 0,
        working_set: 0,
        request: 0,
        shadow: false,
        grace_period_seconds,
        override_reason: None,
        boot: BOOT.into(),
        may_be_refused,
        pace: None,
        pace_inputs: None,
        workload: None,
        other_signals: BTreeMap::new(),
    }
}

/// A signal of a version to come is passed over.
#[test]
fn what_a_pod_gives_of_other_signals_is_known_to_the_next_agent() {
    let freed = SignalUse {
        usage: 7,
        available: -1,
    };
    let other_signals = ["nodefs.inodesFree", "of.tomorrow"].map(|name| (name.to_owned(), freed));
    let evicted = EvictionRecord {
        other_signals: other_signals.into(),
        ..eviction(BOOT, 1, 100, WALL)
    };
    let line = serde_json::to_string(&Record::evicted(evicted)).unwrap();
    let restored = counts([serde_json::from_str(&line).unwrap()]).restore(&clocks(BOOT, 105, WALL));
    let victims = restored.planner_state(|_, _| false).victims;
    let inodes = Signal::NodeFsInodesFree;
    assert_eq!(victims[0].other_signals, [(inodes, freed)]);
}

#[test]
fn a_pod_that_was_asked_counts_when_it_goes() {
    let now = clocks(BOOT, 105, WALL + 5);
    let recall = |records: Vec<Record>| counts(records).restore(&now);
    let record = |may_be_refused| Record::Requested(Box::new(asked(may_be_refused, 30)));
    // Without an API server it goes, at the end of its time at the latest.
    let restored = recall(vec![record(false)]);
    assert_eq!(ages(&restored), [-25]);
    let left = restored.requests();
    assert_eq!((left.len(), left[0].left), (1, 25 * SECOND));
    assert!(restored.victims().is_empty(), "pressure may still kill it");
    let state = restored.planner_state(|_, _| true);
    assert!(state.victims.len() == 1 && state.victims[0].is_requested);
    assert!(restored.evictions()[0].is_requested);
    // What is younger than the request runs anew.
    assert_eq!(restored.evictions()[0].begun, 100 * SECOND_NS);
    assert_eq!(state.killed, [("uid-1".to_owned(), 100 * SECOND)]);
    // With one it goes when that has agreed.
    assert!(recall(vec![record(true)]).is_empty());
    let agreed = Counted {
        at: 101 * SECOND,
        boot: BOOT.into(),
        ..Counted::agreed(&asked(true, 30))
    };
    let agreed = Record::Counted(Box::new(agreed));
    assert_eq!(ages(&recall(vec![record(true), agreed.clone()])), [4]);
    // It was killed before it had gone, and counts once.
    let killed = Record::evicted(eviction(BOOT, 1, 103, WALL + 3));
    let restored = recall(vec![record(true), agreed, killed]);
    assert_eq!(restored.evictions().len(), 1);
    assert!(!restored.evictions()[0].is_requested);
    let victims = restored.planner_state(|_, _| true).victims;
    assert!(!victims.last().unwrap().is_requested);
}

/// A manifest's pod runs again with the same UID.
#[test]
fn each_request_counts_that_no_kill_has_ended() {
    let request = |at: u64| {
        let asked = RequestRecord {
            id: format!("soft-{at}"),
            decided: at * SECOND,
            ..asked(false, 30)
        };
        Record::Requested(Box::new(asked))
    };
    let kill = |at: u64| {
        let killed = EvictionRecord {
            uid: "uid-1".into(),
            ..eviction(BOOT, at, at, WALL)
        };
        Record::evicted(killed)
    };
    let begun = |records: Vec<Record>| {
        let restored = counts(records).restore(&clocks(BOOT, 3000, WALL));
        let begun = restored.evictions().into_iter();
        begun.map(|e| e.begun / SECOND_NS).collect::<Vec<_>>()
    };
    let requests = [100, 1300, 2500].map(request).to_vec();
    assert_eq!(begun(requests.clone()), [100, 1300, 2500]);
    let killed = [&requests[..], &[kill(2520)]].concat();
    assert_eq!(begun(killed), [100, 1300, 2520]);
    let killed_later = [&requests[..], &[kill(2600)]].concat();
    assert_eq!(begun(killed_later), [100, 1300, 2500, 2600]);
    // It ran again before its time was over.
    let soon = vec![request(100), request(110), kill(120)];
    assert_eq!(begun(soon), [100, 120]);
    // The API server's pods do not run again.
    let agreed = Counted {
        at: 100 * SECOND,
        boot: BOOT.into(),
        ..Counted::agreed(&asked(true, 30))
    };
    let late = vec![Record::Counted(Box::new(agreed)), kill(140)];
    assert_eq!(begun(late), [140]);
}

/// A tenant's pod has labels of a megabyte. They fill no journal, and limits count it all the same.
#[test]
fn labels_of_any_length_hide_no_other_eviction() {
    let long = |bytes: usize| Pod {
        owner: Some(Owner {
            kind: "Job".into(),
            name: "web".into(),
            uid: "owner".into(),
        }),
        labels: [("app".to_owned(), "x".repeat(bytes))].into(),
        ..Pod::default()
    };
    let kept = Workload::from(&long(1000));
    assert_eq!((kept.labels.len(), kept.is_partial), (1, false));
    let bounded = Workload::from(&long(1 << 20));
    assert!(bounded.labels.is_empty() && bounded.is_partial);
    let recorded = EvictionRecord {
        workload: Some(bounded),
        ..eviction(BOOT, 1, 100, WALL)
    };
    let record = Record::evicted(recorded);
    assert!(serde_json::to_vec(&record).unwrap().len() < 1 << 10);
    let restored = counts([record]).restore(&clocks(BOOT, 200, WALL));
    let evicted = &restored.evictions()[0];
    // Of its groups nothing is known, of its owner all.
    assert!(!evicted.is_workload_known);
    assert_eq!(evicted.pod.owner.as_ref().unwrap().uid, "owner");
    let kind = Pod {
        owner: Some(Owner {
            kind: "k".repeat(1 << 20),
            ..Owner::default()
        }),
        ..Pod::default()
    };
    let bounded = Workload::from(&kind);
    assert!(bounded.owner.is_none() && bounded.is_partial);

    // An agent of the version before has written all of them.
    let giant = EvictionRecord {
        workload: Some(Workload {
            labels: long(1 << 20).labels,
            ..Workload::default()
        }),
        ..eviction(BOOT, 2, 101, WALL)
    };
    let records = [
        eviction(BOOT, 1, 100, WALL),
        giant,
        eviction(BOOT, 3, 102, WALL),
    ];
    let newest = counts(records.map(Record::evicted)).newest(FILE_BYTES / 4);
    assert_eq!(newest, [1, 3].map(|n| format!("{BOOT}-17-{n}")));
}

// A journal as the version before has written it, a record of a version to come, and half a line.
#[test]
fn other_versions_of_the_journal_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("version_before.jsonl");
    std::fs::write(dir.path().join("journal.jsonl"), text).unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    let restored = journal.restore().unwrap();
    let evictions = restored.evictions();
    let uids: Vec<_> = evictions.iter().map(|e| e.pod.uid.as_str()).collect();
    assert_eq!(uids, ["u1", "u5"]);
    assert!(
        evictions
            .iter()
            .all(|e| !e.is_workload_known && !e.is_same_boot)
    );
    assert_eq!(
        restored.planner_state(|_, _| true),
        evictd_engine::RestoredState::default()
    );
    let (records, damaged) = journal::read(dir.path()).unwrap();
    assert_eq!((records.len(), damaged), (6, 1));
    // The record of a version to come is passed over and no damage; half a line is.
    let carried = serde_json::to_string(&records[0]).unwrap();
    assert!(!carried.contains("workload"), "{carried}");
}

fn any_eviction() -> impl Strategy<Value = (bool, u64, i64)> {
    (any::<bool>(), 0..10_000_u64, -100_000..100_000_i64)
}

/// A node on which so many pods may go in a period of nanoseconds.
fn node_rate(most: u32, period: u64) -> EvictionLimiter {
    let limiter = EvictionLimiter::default();
    limiter.set_quota(1, Some(most), period, None);
    limiter.set_node_quota(1);
    limiter
}

proptest! {
    /// Whatever the clocks say, nothing panics, nothing is in the future, and everything stops counting after its
    /// period.
    #[test]
    fn clocks_may_jump(
        all in prop::collection::vec(any_eviction(), 0..40),
        monotonic in 0..20_000_u64,
        wall in -200_000..200_000_i64,
        damaged in any::<bool>(),
    ) {
        let records = all.iter().enumerate().map(|(number, (same, at, wall))| {
            let boot = if *same { BOOT } else { OTHER };
            let mut eviction = eviction(boot, number as u64, *at, WALL + wall);
            if damaged && number % 3 == 0 {
                eviction.time = "yesterday".into();
            }
            Record::evicted(eviction)
        });
        let restored = counts(records).restore(&clocks(BOOT, monotonic, WALL + wall));
        prop_assert_eq!(restored.len(), all.len());
        for eviction in restored.evictions() {
            prop_assert!(eviction.at <= restored.now);
        }
        let period = 3600 * SECOND;
        let limiter = node_rate(1, period);
        let evictions = restored.evictions();
        evictions.iter().for_each(|e| limiter.charge_restored(1, e.at));
        let later = monotonic * SECOND + period;
        prop_assert_eq!(limiter.node_rate(later).left, 1);
    }

    /// A limit that was charged anew has as much room as one that was never forgotten, at every moment.
    #[test]
    fn a_restart_leaves_no_more_room(
        gaps in prop::collection::vec(0..900_u64, 1..40),
        most in 1..17_u32,
        pause in 0..900_u64,
        period in 1..5_000_u64,
    ) {
        let [kept, forgotten] = [0, 1].map(|_| node_rate(most, period * SECOND));
        let (mut at, mut records) = (1, Vec::new());
        for (number, gap) in gaps.iter().enumerate() {
            at += gap;
            kept.charge_restored(1, i64::try_from(at * SECOND).unwrap());
            records.push(Record::evicted(eviction(BOOT, number as u64, at, WALL)));
        }
        let now = at + pause;
        // The wall clock stands still: it is not asked.
        let restored = counts(records).restore(&clocks(BOOT, now, WALL));
        for eviction in restored.evictions() {
            forgotten.charge_restored(1, eviction.at);
        }
        for later in (now..now + 6_000).step_by(50) {
            let left = |r: &EvictionLimiter| r.node_rate(later * SECOND).left;
            prop_assert_eq!(left(&kept), left(&forgotten), "{}", later);
        }
    }
}
