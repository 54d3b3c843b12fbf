use std::sync::atomic::AtomicU32;

use super::*;

const PAGE: u64 = 4096;

/// A tree of directories, which is all that paths ask for; the levels from the deepest to the root.
fn tree(root: &Path, path: &str, full: Option<&str>) -> [Level; LEVELS] {
    let deepest = root.join(path);
    fs::create_dir_all(&deepest).unwrap();
    let mut levels = [Level::default(); LEVELS];
    let dirs = deepest.ancestors().take_while(|d| d.starts_with(root));
    for (level, dir) in levels.iter_mut().zip(dirs) {
        let is_full = full.is_some_and(|full| dir == root.join(full));
        *level = Level {
            id: fs::metadata(dir).unwrap().ino(),
            usage: 990,
            max: if is_full {
                1000
            } else {
                i64::MAX as u64 / PAGE
            },
        };
    }
    levels
}

/// The kill of a process that no other kill is about.
fn kill(levels: [Level; LEVELS], limit_id: u64) -> oom::OomKill {
    static PIDS: AtomicU32 = AtomicU32::new(7);
    oom::OomKill {
        time_ns: monotonic_ns(),
        limit_id,
        rss: 100,
        levels,
        comm: *b"hog\0\0\0\0\0\0\0\0\0\0\0\0\0",
        pid: PIDS.fetch_add(1, Ordering::Relaxed),
        oom_score_adj: 1000,
        decision: 1,
        processes: 1,
    }
}

const POD: &str = "kubepods/besteffort/pod00000000-0000-4000-8000-000000000001";

fn id(root: &Path, path: &str) -> u64 {
    fs::metadata(root.join(path)).unwrap().ino()
}

// R45
#[test]
fn the_cause_is_the_cgroup_that_was_full() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let container = format!("{POD}/c1");
    for (full, expected) in [
        (None, OomCause::Machine),
        (Some(container.as_str()), OomCause::PodLimit),
        (Some(POD), OomCause::PodLimit),
        (Some("kubepods/besteffort"), OomCause::OtherLimit),
        (Some("kubepods"), OomCause::Scope),
    ] {
        let levels = tree(root, &container, full);
        let scopes = vec![id(root, ""), id(root, "kubepods")];
        let told = full.map_or(0, |full| id(root, full));
        // Whether the kernel named the limit, or it is read off the levels.
        for limit_id in [told, UNKNOWN] {
            let mut evidence = OomAttributor::new(root, scopes.clone(), || None);
            let kill = kill(levels, limit_id);
            let told = evidence.attribute(&kill).unwrap();
            assert_eq!(told.cause, expected, "{full:?}");
            assert_eq!(told.cgroup, format!("/{container}"));
            assert_eq!(
                told.pod.unwrap().uid,
                "00000000-0000-4000-8000-000000000001"
            );
            let limit = told.at_limit.map(|l| (l.cgroup, l.usage, l.limit));
            let full = full.map(|full| (format!("/{full}"), 990 * PAGE, 1000 * PAGE));
            assert_eq!(limit, full);
            assert_eq!(told.rss, Some(100 * PAGE));
            assert_eq!((told.comm.as_str(), told.pid), ("hog", kill.pid));
            assert_eq!(told.scope_usage, Some(990 * PAGE));
        }
    }
}

/// An eviction for memory of a pod without a name.
fn noted(signalled: u64, ending: Ending) -> NotedEviction {
    NotedEviction {
        pod: PodName::default(),
        signalled,
        grace: Duration::ZERO,
        ending,
        resource: Some(Resource::Memory),
    }
}

// R48
#[test]
fn it_is_counted_which_was_first() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, POD, None);
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    assert!(evidence.attribute(&kill(levels, 0)).unwrap().was_first);
    let remembered = |ended: u64, ending: Ending| Remembered {
        number: (ending == Ending::Killed).then_some(1),
        pod: PodName::default(),
        signalled: monotonic_ns() - 10_000_000,
        ended,
        lasts: RECENT_NS,
        ending,
        for_memory: true,
    };
    // Decided and not done: the OOM killer was first all the same.
    evidence.evictions.push_back(remembered(0, Ending::Shadow));
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert!(told.was_first && told.before.len() == 1 && !told.before[0].in_flight);
    evidence.evictions.push_back(remembered(0, Ending::Killed));
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert!(!told.was_first && told.before[1].in_flight);
    evidence.evictions.clear();
    evidence
        .evictions
        .push_back(remembered(monotonic_ns() - 2 * RECENT_NS, Ending::Killed));
    assert!(evidence.attribute(&kill(levels, 0)).unwrap().was_first);
    // The manager's, or the kubelet's: its end is not seen.
    let without_end = |ago: u64| Remembered {
        number: None,
        signalled: monotonic_ns() - ago,
        ..remembered(0, Ending::Killed)
    };
    evidence.evictions.push_back(without_end(2 * RECENT_NS));
    assert!(evidence.attribute(&kill(levels, 0)).unwrap().was_first);
    evidence.evictions.push_back(without_end(RECENT_NS / 2));
    assert!(!evidence.attribute(&kill(levels, 0)).unwrap().was_first);
    // Chosen, and the kernel has refused to kill it.
    evidence.evictions.clear();
    evidence.note_eviction(noted(monotonic_ns(), Ending::Refused));
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert!(told.was_first && told.before.is_empty());
    // A pod that was asked to go has its grace period.
    evidence.evictions.clear();
    let (asked, grace) = (monotonic_ns() - 4 * RECENT_NS, Duration::from_secs(30));
    evidence.note_eviction(NotedEviction {
        grace,
        ..noted(asked, Ending::NotBySigkill)
    });
    assert!(!evidence.attribute(&kill(levels, 0)).unwrap().was_first);
    // What has gone for a disk was no answer to the shortage of memory.
    evidence.evictions.clear();
    for resource in [Some(Resource::EphemeralStorage), None] {
        evidence.note_eviction(NotedEviction {
            resource,
            ..noted(monotonic_ns(), Ending::Killed)
        });
    }
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert!(told.was_first && told.before.is_empty());
    let counters = evidence.counters();
    let [first, after] = [&counters.first, &counters.after_eviction];
    assert_eq!(first.load(Ordering::Relaxed), 6);
    assert_eq!(after.load(Ordering::Relaxed), 3);
}

// R48
#[test]
fn what_the_kernel_does_not_count_is_no_kill() {
    static COUNT: AtomicU64 = AtomicU64::new(3);
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, POD, None);
    let count = || Some(COUNT.load(Ordering::Relaxed));
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], count);
    assert_eq!(evidence.attribute(&kill(levels, 0)), None);
    COUNT.store(4, Ordering::Relaxed);
    assert!(evidence.attribute(&kill(levels, 0)).is_some());
    assert_eq!(evidence.attribute(&kill(levels, 0)), None);
    // A kill without a record leaves none to the next one, but for a look.
    COUNT.store(5, Ordering::Relaxed);
    evidence.finish_read();
    evidence.finish_read();
    assert_eq!(evidence.attribute(&kill(levels, 0)), None);
    // Another's kill is counted too.
    COUNT.store(6, Ordering::Relaxed);
    evidence.attribute(&kill([Level::default(); LEVELS], 0));
    assert_eq!(evidence.attribute(&kill(levels, 0)), None);
}

// R48
#[test]
fn processes_that_are_killed_together_are_one_kill() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, POD, None);
    let count = || Some(COUNT.load(Ordering::Relaxed));
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], count);
    COUNT.store(202, Ordering::Relaxed);
    let together = oom::OomKill {
        processes: 200,
        ..kill(levels, 0)
    };
    let told = evidence.attribute(&together).unwrap();
    assert_eq!(told.processes, Some(200));
    // Each is in the kernel's count, and one of another decision.
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert_eq!(told.processes, None);
    assert_eq!(evidence.attribute(&kill(levels, 0)), None);
    assert_eq!(evidence.counters().first.load(Ordering::Relaxed), 2);
}

// R48
#[test]
fn a_process_that_was_dying_is_no_kill() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, POD, None);
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    // Each thread is marked.
    let first = kill(levels, 0);
    assert!(evidence.attribute(&first).is_some());
    assert_eq!(evidence.attribute(&first), None);
    let later = oom::OomKill {
        time_ns: first.time_ns + RECENT_NS,
        ..first
    };
    assert!(
        evidence.attribute(&later).is_some(),
        "the pid of another process"
    );
    // What was only asked to go, or would have been, is killed by the OOM killer.
    let victim = PodName {
        uid: "00000000-0000-4000-8000-000000000001".to_owned(),
        ..PodName::default()
    };
    let at = later.time_ns + RECENT_NS;
    for (how, is_kill) in [
        (Ending::Shadow, true),
        (Ending::NotBySigkill, true),
        (Ending::Killed, false),
    ] {
        evidence.note_eviction(NotedEviction {
            pod: victim.clone(),
            ..noted(at, how)
        });
        let told = evidence.attribute(&oom::OomKill {
            time_ns: at + 1,
            ..kill(levels, 0)
        });
        assert_eq!(told.is_some(), is_kill, "{how:?}");
    }
    let counters = evidence.counters();
    let [first, after] = [&counters.first, &counters.after_eviction];
    assert_eq!(first.load(Ordering::Relaxed), 3);
    assert_eq!(after.load(Ordering::Relaxed), 1);
}

#[test]
fn victims_of_others_are_left_out_and_paths_end_where_the_tree_does() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, &format!("{POD}/c1"), None);
    assert_eq!(
        OomAttributor::new(root, vec![1], || None).attribute(&kill(levels, 0)),
        None
    );
    fs::remove_dir(root.join(POD).join("c1")).unwrap();
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    let told = evidence.attribute(&kill(levels, 0)).unwrap();
    assert_eq!(told.cgroup, format!("/{POD}"));
    assert!(told.pod.is_some());
}

// R45
#[test]
fn a_victim_deeper_than_the_levels_go_is_its_pods() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, &["a"; LEVELS + 3].join("/"), None);
    let (node, pod) = (id(root, ""), levels[2].id);
    let mut evidence = OomAttributor::new(root, vec![node], || None);
    assert_eq!(evidence.attribute(&kill(levels, node)), None);
    evidence.pods.push((pod, PodName::default()));
    for (limit_id, cause) in [
        (0, OomCause::Machine),
        (UNKNOWN, OomCause::OtherLimit),
        (node, OomCause::Scope),
        (pod, OomCause::PodLimit),
        (id(root, "a"), OomCause::OtherLimit),
    ] {
        let told = evidence.attribute(&kill(levels, limit_id)).unwrap();
        assert_eq!(told.cause, cause);
        assert!(told.pod.is_some());
    }
}

// R45
#[test]
fn kills_for_one_limit_do_not_fill_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, &format!("{POD}/c1"), Some(POD));
    let limit = id(root, POD);
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    let start = monotonic_ns();
    let at = |ms: u64| oom::OomKill {
        time_ns: start + ms * 1_000_000,
        ..kill(levels, limit)
    };
    let told: Vec<OomKillRecord> = (0..1000)
        .filter_map(|ms| evidence.attribute(&at(ms)))
        .collect();
    assert_eq!((told.len(), told[0].more), (1, 0), "the first one at once");
    let counters = evidence.counters();
    assert_eq!(counters.pod_limit.load(Ordering::Relaxed), 1000);
    assert!(evidence.due(start + ONE_RECORD_NS - 1).is_empty());
    let minute = start + ONE_RECORD_NS;
    let due = evidence.due(minute);
    assert_eq!((due.len(), due[0].more), (1, 998));
    assert_eq!(due[0].at, start + 999_000_000, "the last one");
    // Kills that go on have one record a minute.
    let since = |ns: u64| oom::OomKill {
        time_ns: minute + ns,
        ..kill(levels, limit)
    };
    assert_eq!(evidence.attribute(&since(1)), None);
    assert_eq!(evidence.attribute(&since(2)), None);
    let next = evidence.attribute(&since(ONE_RECORD_NS)).unwrap();
    assert_eq!(next.more, 2);
    assert!(evidence.due(minute + 2 * ONE_RECORD_NS).is_empty());
    assert!(evidence.limits.is_empty(), "it is over");
    // What waits is recorded at the end.
    let end = |ns: u64| since(3 * ONE_RECORD_NS + ns);
    assert_eq!(evidence.attribute(&end(0)).unwrap().more, 0);
    assert_eq!(evidence.attribute(&end(1)), None);
    assert_eq!(evidence.due(u64::MAX).len(), 1);
}

#[test]
fn kills_for_many_limits_share_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    let of = |number: usize| {
        let path = format!("kubepods/other{number}/c1");
        let full = format!("kubepods/other{number}");
        let levels = tree(root, &path, Some(&full));
        kill(levels, id(root, &full))
    };
    let told = (0..LIMITS + 20).filter_map(|number| evidence.attribute(&of(number)));
    assert_eq!(told.count(), LIMITS + 1);
    assert_eq!(evidence.limits.len(), LIMITS + 1);
}

/// Each kill on a short node has a record.
#[test]
fn kills_of_a_short_node_are_told_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let levels = tree(root, POD, None);
    let mut evidence = OomAttributor::new(root, vec![id(root, "")], || None);
    let told = (0..10).filter_map(|_| evidence.attribute(&kill(levels, 0)));
    assert_eq!(told.count(), 10);
    assert!(evidence.due(u64::MAX).is_empty());
}
