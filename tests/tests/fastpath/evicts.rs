//! The fast path with real cgroups, real hogs, and the kernel's OOM killer as the rival.

use std::{fs::File, thread};

use evictd_engine::kubelet_times::MONITORING_INTERVAL_NS;
use evictd_fastpath::{KilledBy, OtherKill};
use evictd_node::cgroup::realtime::acquire_sched_fifo;
use evictd_tests::{node::Options, prelude::*, text::number};

/// A hog at full speed among pods of every class: the kubelet's order says which pod goes, and only that one goes.
fn evicts_the_hog_on(hook: MemoryHook, way: &str) {
    let mut node = Node::new("evict", 512).unwrap();
    let mut bystanders = [
        (QosClass::Guaranteed, 0, 64 * MIB, "48"),
        (QosClass::Burstable, 0, 64 * MIB, "40"),
        (QosClass::BestEffort, 10, 0, "16"),
    ]
    .map(|(qos, priority, request, mib)| {
        let pod = node.pod(&format!("calm-{mib}"), qos, priority, request);
        Hog::start(&pod, &["--mib", mib]).unwrap()
    });
    let hog = node.pod("hog", QosClass::Burstable, 0, 32 * MIB);
    let mut hog = Hog::start(&hog, &["--mib", "4096", "--wait", "--way", way]).unwrap();
    let watched = or_skip!(node.watch(Options::on(hook)).unwrap());
    hog.go().unwrap();

    let evicted = watched.evicts("hog");
    let past = evicted.threshold.saturating_sub(evicted.available) >> 10;
    let detail = format!(
        "{way}: woken by {}, {past} KiB past the threshold",
        evicted.hook
    );
    // What was decided on was read after the wake-up, and showed the threshold met.
    assert!(evicted.available < evicted.threshold);
    let stages = evicted.stages;
    assert!(stages.crossed <= stages.woken && stages.woken <= stages.decided);
    assert!(stages.decided <= stages.signalled);
    let finished = watched.finished(SOON).expect("its end is seen");
    assert!(finished.exited >= stages.signalled && finished.threshold_cleared >= finished.exited);
    hog.killed();
    assert!(
        bystanders.iter_mut().all(Hog::is_alive),
        "no other pod dies"
    );
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
    let more = watched.report(Duration::from_millis(200));
    assert!(more.is_none(), "nothing else is reported: {more:?}");
    matrix("memory.available", &hook.to_string(), &detail);
}

// R14, R39, R40, R42
#[test]
fn tracepoint_hook_evicts_in_time() {
    skip_if!(no_bpf());
    for way in ["touch", "populate", "thp", "threads"] {
        evicts_the_hog_on(MemoryHook::Tracepoint, way);
    }
}

scenes! {
    // R14, R39, R40
    fn fexit_hook_evicts_in_time() unless no_bpf() => evicts_the_hog_on(MemoryHook::Fexit, "touch");
    // R14, R39, R40
    fn kprobe_hook_evicts_in_time() unless no_bpf() => evicts_the_hog_on(MemoryHook::Kprobe, "touch");
    // R14, R40
    fn eventfd_hook_evicts_in_time() unless not_root() => evicts_the_hog_on(MemoryHook::Eventfd, "touch");
    // R28: with nothing but files the deadline sampler still comes before the OOM killer.
    fn sampler_evicts_in_time() unless not_root() => evicts_the_hog_on(MemoryHook::Sampler, "touch");
}

/// The manager learns of a kill in the pod's state. A pod of many processes takes long to signal, and what is short besides must take
/// no other pod meanwhile.
// R43
#[test]
fn a_pod_is_a_victim_before_its_last_process_is_signalled() {
    let mut node = as_root!(Node::new("many", 512).unwrap());
    let many = node.best_effort("many");
    let mut forks = Forker::start(Some(&many)).unwrap();
    forks.order("hold 2000").unwrap();
    let table = node.table();
    let pod = Arc::clone(&table.entries[0]);
    let watched = node.watched_with(table, Options::default());
    let mut hog = Hog::start(&many, &["--mib", "2000", "--rate", "400"]).unwrap();
    let seen = thread::spawn(move || {
        // A thousand processes that end must not keep it from looking.
        let refused = acquire_sched_fifo(50).err();
        let is_seen = until(SOON, || pod.eviction_state.is_evicted());
        (is_seen.then(monotonic_ns), refused)
    });
    let evicted = watched.evicts("many");
    hog.killed();
    let (seen, refused) = seen.join().unwrap();
    let seen = seen.expect("its state tells");
    skip_if!(refused);
    assert!(seen < evicted.stages.signalled);
}

// R42, R43
/// The manager has killed a pod for something else. What it still holds in a memory-backed volume comes when the kubelet unmounts that:
/// no other pod goes for it meanwhile.
#[test]
fn what_the_manager_has_killed_is_pending() {
    let mut node = as_root!(Node::new("foreign", 512).unwrap());
    let volume = tempfile::tempdir_in("/dev/shm").unwrap();
    let [a, b] = ["a", "b"].map(|name| node.best_effort(name));
    let dir = volume.path().to_str().unwrap();
    let mut first = Hog::start(&a, &["--mib", "100", "--way", "tmpfs", "--dir", dir]).unwrap();
    let mut second = Hog::start(&b, &["--mib", "120"]).unwrap();
    let usage = |pod: &Path| MemoryCgroup::open(pod).unwrap().usage().unwrap();
    assert!(until(SOON, || usage(&a) > 100 * MIB && usage(&b) > 120 * MIB));
    // The kubelet's mount keeps the file; here a descriptor does.
    let files = fs::read_dir(format!("/proc/{}/fd", first.pid())).unwrap();
    let files = files.flatten().map(|entry| entry.path());
    let is_in_volume = |fd: &PathBuf| fs::read_link(fd).unwrap().starts_with(volume.path());
    let kept = files.filter(is_in_volume).map(File::open);
    let kept: Vec<_> = kept.collect::<Result<_, _>>().unwrap();
    assert_eq!(kept.len(), 1);
    let entry = node
        .table()
        .entries
        .iter()
        .find(|e| e.pod.name == "a")
        .cloned();
    let watched = node.watched(Options::at(370));
    watched.control.note_kill(OtherKill {
        pod: entry.unwrap(),
        signalled: monotonic_ns(),
        by: KilledBy::Manager,
        is_for_pressure: true,
    });
    // It is killed again.
    first.killed();
    let longer = Duration::from_nanos(MONITORING_INTERVAL_NS) + Duration::from_secs(2);
    assert!(watched.report(longer).is_none());
    assert!(usage(&a) > 100 * MIB, "the volume is there");
    assert!(second.is_alive());
}

/// A pod without a process gives nothing: the next one is asked.
#[test]
fn a_pod_that_is_gone_is_passed_over() {
    let mut node = as_root!(Node::new("gone", 256).unwrap());
    let gone = node.pod("gone", QosClass::BestEffort, -100, 0);
    let empty = node.pod("empty", QosClass::BestEffort, -50, 0);
    let pod = node.best_effort("hog");
    let watched = node.watched(Options::default());
    fs::remove_dir(&gone).unwrap();
    assert!(empty.exists());
    let mut hog = Hog::start(&pod, &["--mib", "200"]).unwrap();
    watched.evicts("hog");
    hog.killed();
}

/// How often a thread has gone to sleep of its own will.
fn sleeps(tid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    number(&status, "voluntary_ctxt_switches:").unwrap()
}

/// With no pod left to evict, since a protected one is never touched, the fast path waits for the way back instead of
/// looking all the time, and is there for the next pressure.
// R12
#[test]
fn without_candidates_it_waits_for_the_recovery() {
    let mut node = as_root!(Node::new("idle", 256).unwrap());
    let critical = node.pod("critical", QosClass::BestEffort, 2_000_001_000, 0);
    let pod = node.best_effort("pod");
    let watched = node.watched(Options::default());
    for _ in 0..2 {
        let mut hog = Hog::start(&critical, &["--mib", "180"]).unwrap();
        watched.has_no_candidates();
        let before = sleeps(watched.tid());
        thread::sleep(Duration::from_secs(1));
        let sleeps = sleeps(watched.tid()) - before;
        assert!(sleeps < 300, "{sleeps} looks in a second");
        assert!(hog.is_alive());
        drop(hog);
        while node.cgroup.usage().unwrap() > 100 * MIB {}
        thread::sleep(Duration::from_secs(1));
    }
    // A pod that starts while the pressure lasts is found.
    let _hog = Hog::start(&critical, &["--mib", "170"]).unwrap();
    watched.has_no_candidates();
    let mut late = Hog::start(&pod, &["--mib", "20"]).unwrap();
    watched.evicts("pod");
    late.killed();
}

/// A fork bomb inside the victim does not outlive it.
#[test]
fn forks_during_the_kill_do_not_escape() {
    let mut node = as_root!(Node::new("forks", 256).unwrap());
    let pod = node.best_effort("forks");
    let watched = node.watched(Options::default());
    // Each shell starts another before it ends, and one hog makes the pressure.
    let mut bomb = std::process::Command::new("timeout")
        .args(["--kill-after=1", "60", "sh", "-c"])
        .arg(format!(
            "f() {{ while :; do (sleep 0.01 & sleep 0.01) & sleep 0.002; done; }}; echo 0 > {}/cgroup.procs && {{ f & f & f; }}",
            pod.display()
        ))
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(200));
    let _hog = Hog::start(&pod, &["--mib", "200"]).unwrap();
    watched.evicts("forks");
    let finished = watched.finished(SOON).expect("its end is seen");
    assert!(finished.exited > 0, "no process is left");
    thread::sleep(Duration::from_millis(50));
    let left = fs::read_to_string(pod.join("cgroup.procs")).unwrap();
    assert_eq!(left, "", "no process has escaped");
    bomb.wait().unwrap();
}
