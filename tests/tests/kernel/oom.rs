//! Evidence of the OOM killer, by real kills: at a pod's own limit, at the scope's, and of the machine.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use evictd_node::trigger::oom::{OomKill, OomReader, UNKNOWN};
use evictd_store::record::oom_kill::OomCause;
use evictd_sys::page::page_size;
use evictd_tests::{
    agent::limit_capabilities,
    cgroup::{holds, oom_kills_of_machine},
    held_in_exit::HeldInExit,
    prelude::*,
};

const UID: &str = "00000000-0000-4000-8000-000000000001";

/// The agent counts kills by what the kernel counts for the whole machine: a process that is only helped to die takes the
/// count of a kill that is read with it. The test of that runs alone.
static COUNTED: RwLock<()> = RwLock::new(());

fn counted() -> RwLockReadGuard<'static, ()> {
    COUNTED.read().unwrap_or_else(PoisonError::into_inner)
}

/// The kill of this process, if it is told in time; others are passed over.
fn kill_of(telemetry: &mut OomReader, pid: u32) -> Option<OomKill> {
    let is_it = |kill: &OomKill| kill.pid == pid;
    wait_for(SOON, || telemetry.next_kill().filter(is_it))
}

/// What the record says of the victim is what was true of it.
#[test]
fn the_victim_is_described() {
    let _others = counted();
    skip_if!(no_bpf());
    let mut object = BpfObject::load().unwrap();
    let (telemetry, refused) = OomReader::attach(&mut object).unwrap();
    let mut telemetry = telemetry.expect("a program that sees victims");
    println!("refused: {refused:?}");
    let node = TestCgroup::new("victim", 64 * MIB).unwrap();
    let container = node.child("pod/c1").unwrap();
    let id = |path: &Path| MemoryCgroup::open(path).unwrap().id();
    let ids = [&container, &node.path().join("pod"), node.path()].map(id);
    let mut hog = Hog::start(&container, &["--mib", "96", "--oom-score-adj", "500"]).unwrap();
    let pid = hog.pid();
    hog.killed();
    let kill = kill_of(&mut telemetry, pid).expect("the kill is told");
    let comm = kill.comm.split(|b| *b == 0).next().unwrap();
    assert_eq!((comm, kill.oom_score_adj), (&b"hog"[..], 500));
    let levels = &kill.levels;
    assert_eq!([levels[0].id, levels[1].id, levels[2].id], ids);
    assert_eq!(levels[2].max * page_size(), 64 * MIB);
    let used = levels[2].usage * page_size();
    assert!((60 * MIB..=64 * MIB).contains(&used), "{used}");
    assert!(
        kill.limit_id == UNKNOWN || kill.limit_id == ids[2],
        "{kill:?}"
    );
    let rss = kill.rss.saturating_mul(page_size());
    // With the pages of its program, which are charged elsewhere.
    assert!((60 * MIB..=80 * MIB).contains(&rss), "{rss}");
    let seen = if kill.limit_id == UNKNOWN {
        "by its usage"
    } else {
        "by the kernel"
    };
    matrix(
        "oom",
        "victim",
        &format!("the cgroup at its limit is known {seen}"),
    );
}

/// A node whose one pod is laid out as the kubelet does it, and the cgroup of its container.
fn node(name: &str, mib: u64) -> (Files, PathBuf) {
    node_with(name, mib, &format!("kubepods/besteffort/pod{UID}"))
}

/// The same with the pod in this cgroup.
fn node_with(name: &str, mib: u64, pod: &str) -> (Files, PathBuf) {
    let pods = json!([{ "name": "hog", "uid": UID, "cgroup": pod }]);
    let files = Files::of(name, mib, &pods);
    let container = files.scope().child(&format!("{pod}/c1")).unwrap();
    (files, container)
}

// R45
#[test]
fn a_pod_at_its_own_limit_is_told_apart() {
    let _others = counted();
    let (mut files, container) = with_bpf!(node("ownlimit", 512));
    let pod = format!("kubepods/besteffort/pod{UID}");
    files.scope().limit_child(&pod, 48 * MIB).unwrap();
    files.config["memoryHook"] = json!("sampler");
    let _agent = files.start(&[]);
    let mut hog = Hog::start(&container, &["--mib", "96"]).unwrap();
    let pid = hog.pid();
    hog.killed();
    let kill = files.oom_kill().expect("it is in the journal");
    assert_eq!((kill.cause, kill.pid), (OomCause::PodLimit, pid));
    assert!(!kill.was_first && kill.before.is_empty(), "{kill:?}");
    let name = kill.pod.clone().expect("the pod is known");
    assert_eq!(
        (name.namespace.as_str(), name.name.as_str()),
        ("default", "hog")
    );
    assert_eq!(name.uid, UID);
    let at_limit = kill.at_limit.clone().expect("its limit");
    assert!(at_limit.cgroup.ends_with(&pod), "{at_limit:?}");
    assert_eq!(at_limit.limit, 48 * MIB);
    assert!(kill.cgroup.contains(&pod), "{kill:?}");
    assert!(kill.scope_usage.is_some_and(|used| used < 128 * MIB));
}

/// Without the right to load programs nothing reports a kill, and the kernel's count of the machine is left.
// R45
#[test]
fn without_programs_kills_are_counted() {
    skip_if!(not_root());
    let _others = counted();
    // CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF.
    const PROGRAMS: [u64; 3] = [21, 38, 39];
    let (mut files, container) = node("counted", 512);
    let limited = format!("kubepods/besteffort/pod{UID}/c1");
    files.scope().limit_child(&limited, 48 * MIB).unwrap();
    let address = listen(&mut files.config, "metricsAddress");
    let limit = |command: &mut Command| limit_capabilities(command, |c| !PROGRAMS.contains(&c));
    let agent = Agent::start_as(&files.write().unwrap(), &[], limit).unwrap();
    // The first reading is of what was before.
    std::thread::sleep(Duration::from_secs(2));
    let all = || value(&address, "evictd_oom_kills_unattributed_total").unwrap();
    let before = all();
    Hog::until_killed(&container, &["--mib", "96"]);
    assert!(until(SOON, || all() > before));
    assert!(agent.says("no program says which"));
    assert!(records_of!(files.records(), Record::OomKill(_)).is_empty());
}

/// The kubelet has each container killed as a whole on cgroup v2. Each of two has more processes than there is room for records.
// R45, R48
#[test]
fn a_container_that_is_killed_as_a_whole_is_one_kill() {
    let _others = counted();
    let (mut files, first) = with_bpf!(node("whole", 1024));
    skip_if!(no_groups(files.scope()));
    let pod = format!("kubepods/besteffort/pod{UID}");
    let second = files.scope().child(&format!("{pod}/c2")).unwrap();
    files.config["memoryHook"] = json!("sampler");
    let address = listen(&mut files.config, "metricsAddress");
    let _agent = files.start(&["--shadow"]);
    let mut told = Vec::new();
    for (container, name) in [(&first, "c1"), (&second, "c2")] {
        let limited = format!("{pod}/{name}");
        files.scope().limit_child(&limited, 500 * MIB).unwrap();
        fs::write(container.join("memory.oom.group"), "1").unwrap();
        Hog::until_killed(container, &["--mib", "900", "--way", "processes"]);
        let kills = || records_of!(files.records(), Record::OomKill(kill) => *kill);
        assert!(until(SOON, || kills().len() > told.len()));
        // It is told while the kernel may still go on.
        let container = MemoryCgroup::open(container).unwrap();
        let killed = || container.oom_kills().unwrap();
        assert!(until(SOON, || killed() > 75), "{}", killed());
        let kill = kills().pop().unwrap();
        assert!((1..=killed()).contains(&kill.processes.unwrap_or(1).into()));
        told.push((kill.cause, kill.cgroup));
    }
    // Another look of the agent.
    std::thread::sleep(Duration::from_secs(2));
    let kills = || records_of!(files.records(), Record::OomKill(kill) => (kill.cause, kill.cgroup));
    assert_eq!(kills(), told);
    for (counter, expected) in [
        ("evictd_oom_kills_at_pod_limit_total", 2),
        ("evictd_oom_records_dropped_total", 0),
    ] {
        assert_eq!(value(&address, counter), Some(expected), "{counter}");
    }
    matrix(
        "oom",
        "group",
        "a container that is killed as a whole is told as one kill",
    );
}

/// Why no cgroup is killed as a whole, if none is.
fn no_groups(scope: &TestCgroup) -> Option<&'static str> {
    let is_there = scope.path().join("memory.oom.group").exists();
    (!is_there).then_some("no memory.oom.group on cgroup v1")
}

/// With 12 levels above the victim, as in a node of kind in a pod; and with more than a record has.
// R45
#[test]
fn a_victim_far_down_is_told() {
    let _others = counted();
    for levels in [12, 20] {
        let pod = vec!["deep"; levels].join("/");
        let (files, container) = with_bpf!(node_with("deep", 96, &pod));
        let _agent = files.start(&["--shadow"]);
        Hog::until_killed(&container, &["--mib", "192"]);
        let kill = files.oom_kill().expect("it is in the journal");
        let name = kill.pod.as_ref().map(|p| p.name.as_str());
        assert_eq!(name, Some("hog"), "{levels} levels: {kill:?}");
        // Where no program has seen the limit, it is too far up to be found.
        let is_found = levels == 12 || kill.cause != OomCause::OtherLimit;
        assert!(!is_found || kill.cause == OomCause::Scope, "{kill:?}");
    }
}

// R47, R48
#[test]
fn the_scope_at_its_limit_while_the_agent_only_looks_on() {
    let _others = counted();
    let (files, container) = with_bpf!(node("scopelimit", 192));
    let _agent = files.start(&["--shadow"]);
    Hog::until_killed(&container, &["--mib", "400", "--rate", "200"]);
    let kill = files.oom_kill().expect("it is in the journal");
    assert_eq!(kill.cause, OomCause::Scope);
    assert_eq!(kill.pod.as_ref().map(|p| p.name.as_str()), Some("hog"));
    assert_eq!(kill.at_limit.as_ref().map(|l| l.limit), Some(192 * MIB));
    assert!(kill.was_first, "no pod was killed before: {kill:?}");
    let before = &kill.before[..];
    assert!(
        matches!(before, [b] if b.shadow && !b.in_flight && b.pod.name == "hog"),
        "what would have been done is told: {before:?}"
    );
}

// R48
#[test]
fn a_pod_that_was_asked_to_go_was_before_the_oom_killer() {
    let _others = counted();
    let (mut files, container) = with_bpf!(node("asked", 192));
    set_soft(&mut files.config, "160Mi");
    files.config["evictionHard"] = json!({ "memory.available": "0%" });
    files.config["evictionMaxPodGracePeriod"] = json!(30);
    let other = files.scope().child("kubepods/other/c1").unwrap();
    let _agent = files.start(&[]);
    let mut hog = Hog::start(&container, &["--mib", "60"]).unwrap();
    let held = HeldInExit::hold(hog.pid()).unwrap();
    assert!(until(SOON, || requests(files.records()).len() == 1));
    Hog::until_killed(&other, &["--mib", "300", "--oom-score-adj", "1000"]);
    let kill = files.oom_kill().expect("it is in the journal");
    assert_eq!(kill.cause, OomCause::Scope);
    assert!(!kill.was_first, "{kill:?}");
    let before = &kill.before[..];
    assert!(
        matches!(before, [b] if b.in_flight && !b.shadow && b.pod.name == "hog"),
        "{before:?}"
    );
    // The thread that holds it may be told of its end as well as this one.
    hog.kill().unwrap();
    drop(held);
}

/// The kernel chooses a process that has SIGKILL already, and marks it as any victim. It counts kills for the whole machine,
/// where other tests may have some as well.
// R45, R48
#[test]
fn a_process_that_is_only_helped_to_die_is_no_kill() {
    skip_if!(no_bpf());
    let _alone = COUNTED.write().unwrap_or_else(PoisonError::into_inner);
    let proc = Path::new("/proc");
    for _ in 0..5 {
        let before = oom_kills_of_machine(proc).unwrap();
        let (told, killed) = helped_then_killed();
        if oom_kills_of_machine(proc).unwrap() == before + 1 {
            return assert_eq!(told, (killed, OomCause::Scope));
        }
    }
    skip_if!(Some("others are killed here all the time"));
}

/// The first kill that is told of a process that is only helped and of one that is killed; and the pid of the latter.
fn helped_then_killed() -> ((u32, OomCause), u32) {
    let (files, container) = node("helped", 160);
    let other = files.scope().child("kubepods/other/c1").unwrap();
    let _agent = files.start(&["--shadow"]);
    let mut victim = Hog::start(&container, &["--mib", "100"]).unwrap();
    assert!(holds(&container, 100));
    let held = HeldInExit::hold(victim.pid()).unwrap();
    victim.kill().unwrap();
    let mut grows = Hog::start(&other, &["--mib", "100"]).unwrap();
    assert!(holds(&other, 100) && grows.is_alive());
    assert_eq!(files.scope().oom_kills().unwrap(), 0);
    // Two looks of the agent: of marks that it reads together it knows only how many are kills.
    std::thread::sleep(Duration::from_secs(3));
    // The next one is a kill, and the first that is told.
    let mut killed = Hog::start(&other, &["--mib", "100", "--oom-score-adj", "1000"]).unwrap();
    let pid = killed.pid();
    killed.killed();
    let kill = files.oom_kill().expect("it is in the journal");
    drop(held);
    victim.killed();
    ((kill.pid, kill.cause), pid)
}

/// Only where the machine is the test's own.
// R45, R48
#[test]
fn the_machine_is_short() {
    skip_if!(no_bpf());
    skip_if!(not_in_guest());
    let (root, _) = memory_root().unwrap();
    // Unlimited but by the machine.
    let cgroup = TestCgroup::new("short", 64 << 30).unwrap();
    let pod = format!("kubepods/besteffort/pod{UID}");
    let container = cgroup.child(&format!("{pod}/c1")).unwrap();
    let relative = cgroup.path().join(&pod);
    let relative = relative.strip_prefix(&root).unwrap();
    let mut files = Files::new(
        &root,
        &json!([{ "name": "hog", "uid": UID, "cgroup": relative }]),
    );
    files.config.as_object_mut().unwrap().remove("scope");
    files.config["memoryHook"] = json!("sampler");
    let _agent = files.start(&["--shadow"]);
    let args = ["--mib", "8192", "--oom-score-adj", "1000"];
    Hog::until_killed(&container, &args);
    let kill = files.oom_kill().expect("it is in the journal");
    assert_eq!(kill.cause, OomCause::Machine, "{kill:?}");
    assert_eq!(kill.pod.as_ref().map(|p| p.name.as_str()), Some("hog"));
    assert_eq!((kill.at_limit.as_ref(), kill.oom_score_adj), (None, 1000));
    assert!(kill.was_first, "{kill:?}");
    matrix("oom", "machine", "the machine's own OOM kill is told apart");
}
