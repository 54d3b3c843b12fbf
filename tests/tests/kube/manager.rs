//! The manager in a cluster: soft thresholds by the Eviction API, a full disk by DELETE, and what the node says meanwhile. The
//! whole agent, real cgroups and files below, a scripted API server above.

use evictd_cri::messages::{
    Container, ContainerState, PodSandbox, PodSandboxMetadata, SandboxState,
};
use evictd_node::fs::statfs::Filesystem;
use evictd_store::incident::files::read as read_incident;
use evictd_sys::clock::monotonic_ns;
use evictd_tests::{
    apiserver,
    prelude::*,
    runtime::{Runtime, State},
};

const FULL: &str = "EvictdDiskPressure";
const BYTES: &str = "nodefs.available";
const INODES: &str = "nodefs.inodesFree";

// R5, R6: the pod is asked, with the smaller grace period; the one that its budget protects is passed over.
#[test]
fn a_soft_threshold_goes_by_the_eviction_api() {
    let mut member = as_root!(ClusterNode::new("softapi", 256).unwrap());
    set_soft(&mut member.config, "150Mi");
    member.config["evictionMaxPodGracePeriod"] = json!(3);
    let address = listen(&mut member.config, "metricsAddress");
    let guarded = member.best_effort("guarded", 1);
    let free = member.best_effort("free", 2);
    member.server.state().budgets.insert("guarded".into());
    let agent = member.start().unwrap();
    // As the kubelet's own, it takes effect without a restart.
    member.config["evictionMaxPodGracePeriod"] = json!(7);
    member.write().unwrap();
    assert!(agent.says("has changed and is in force"));
    let mut first = Hog::start(&guarded, &["--mib", "70"]).unwrap();
    let mut second = Hog::start(&free, &["--mib", "50"]).unwrap();
    let asked = |pod: &str| {
        let path = format!("/pods/{pod}/eviction");
        member.server.count("POST", &path)
    };
    assert!(member.wait(SOON, |_| asked("free") > 0), "the next one");
    assert!(asked("guarded") > 0, "the first one was asked before");
    {
        let state = member.server.state();
        let eviction = state.all("POST", "/pods/free/eviction").next().unwrap();
        assert_eq!(eviction.body["deleteOptions"]["gracePeriodSeconds"], 7);
        assert_eq!(eviction.query, "dryRun=All");
        assert_eq!(state.count("DELETE", "/pods/guarded"), 0);
    }
    // The agent does not kill: the kubelet would end the pod that was asked.
    assert!(first.is_alive() && second.is_alive());
    let under_pressure = "EvictdMemoryPressure";
    assert!(
        member
            .server
            .wait(SOON, |s| s.has_condition(under_pressure))
    );
    let asked = |name: &str| {
        let mut records = member.records().into_iter();
        records.find_map(|record| match record {
            Record::Requested(asked) if asked.name == name => Some(asked),
            _ => None,
        })
    };
    let (asked, _) = (asked("free").unwrap(), asked("guarded").unwrap());
    assert!(member.wait(SOON, |m| {
        !records_of!(m.records(), Record::Counted(_)).is_empty()
    }));
    assert!(agent.says("asked to go: "), "one line in the log");
    // The alerts of a fleet see it as they see a pod that was killed.
    let counted = "evictd_evictions_total{signal=\"memory.available\",shadow=\"false\"} 1";
    assert!(until(SOON, || shows(&address, counted)));
    // The kubelet has ended it.
    drop(second);
    drop(agent);
    let incident = read_incident(&member.dir().join("state"), &asked.id).unwrap();
    let incident = incident.expect("a pod that goes has a report");
    assert_eq!(incident.asked, Some(*asked));
    assert!(incident.finish.is_some_and(|finish| finish.exited > 0));
}

/// It uses up the node's rate, goes on growing, and no other pod may go.
#[test]
fn a_pod_that_was_asked_goes_at_the_hard_threshold() {
    let mut member = as_root!(ClusterNode::new("askedhard", 256).unwrap());
    set_soft(&mut member.config, "200Mi");
    member.config["evictionMaxPodGracePeriod"] = json!(600);
    member.config["evictionRates"] = json!({"node": {"evictions": 1, "period": "1h"}});
    let asked = member.best_effort("asked", 1);
    let innocent = member.best_effort("innocent", 2);
    let pod = member
        .server
        .state()
        .get(Collection::Pods, "default", "asked");
    let mut innocent = Hog::start(&innocent, &["--mib", "20"]).unwrap();
    let grows = ["--mib", "400", "--head", "60", "--rate", "50", "--wait"];
    let mut asked = Hog::start(&asked, &grows).unwrap();
    let _agent = member.start().unwrap();
    asked.take_head().unwrap();
    assert!(member.wait(SOON, |m| {
        !records_of!(m.records(), Record::Counted(_)).is_empty()
    }));
    // Its object stays while the kubelet waits for its end.
    let mut ending = pod;
    ending["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:53:10Z");
    member.server.state().put_pod(ending);
    std::thread::sleep(Duration::from_secs(2));
    assert!(member.evictions().is_empty());
    asked.go().unwrap();
    asked.killed();
    assert_eq!(member.evicted(1), ["asked"]);
    assert!(innocent.is_alive());
    assert_eq!(member.cgroup.oom_kills().unwrap(), 0);
}

/// No limit counts a pod that the API server no longer has.
#[test]
fn a_pod_that_was_gone_uses_up_no_rate() {
    let mut member = as_root!(ClusterNode::new("askedgone", 256).unwrap());
    set_soft(&mut member.config, "200Mi");
    member.config["evictionRates"] = json!({"node": {"evictions": 1, "period": "1h"}});
    let gone = member.best_effort("gone", 1);
    let other = member.best_effort("other", 2);
    let path = "/pods/gone/eviction";
    member.server.fails("POST", path, 100, 404);
    let mut gone = Hog::start(&gone, &["--mib", "50"]).unwrap();
    let grows = ["--mib", "400", "--head", "20", "--rate", "50", "--wait"];
    let mut other = Hog::start(&other, &grows).unwrap();
    let _agent = member.start().unwrap();
    other.take_head().unwrap();
    assert!(member.wait(SOON, |m| m.server.count("POST", path) > 0));
    std::thread::sleep(Duration::from_secs(2));
    other.go().unwrap();
    other.killed();
    assert_eq!(member.evicted(1), ["other"]);
    assert!(gone.is_alive());
}

// R12, R47: shadow mode names the pod that live mode would ask; the API server cannot end a static one.
#[test]
fn shadow_mode_asks_no_static_pod() {
    let mut member = as_root!(ClusterNode::new("softstatic", 256).unwrap());
    member.config["shadow"] = true.into();
    set_soft(&mut member.config, "150Mi");
    let pods = [member.static_pod(9), member.best_effort("other", 1)];
    let _agent = member.start().unwrap();
    let _hogs = pods.map(|pod| Hog::start(&pod, &["--mib", "60"]).unwrap());
    let asked = || {
        let asked = requests(member.records())
            .into_iter()
            .map(|asked| asked.name);
        asked.collect::<Vec<_>>()
    };
    assert!(until(SOON, || !asked().is_empty()));
    assert_eq!(asked(), ["other"]);
}

/// A pod on a disk that is filled and, by the kubelet, emptied again.
fn waits_for_the_kubelet(name: &str, prepare: impl FnOnce(&ClusterNode) -> Option<Runtime>) {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let member = with_threshold(name, &disk, INODES, "50%");
    let pod = member.pod("pod", 1, "Burstable", 0, None).unwrap();
    make_files(&with_empty_dir(&member, &disk, "pod", 1, &json!({})), 600);
    let _runtime = prepare(&member);
    let mut process = Hog::start(&pod, &["--mib", "1", "--wait"]).unwrap();
    let images = disk.path().join("images");
    fs::create_dir(&images).unwrap();
    make_files(&images, 1800);
    let _agent = member.start().unwrap();
    assert!(member.server.wait(SOON, |s| s.has_condition(FULL)));
    // The kubelet looks once in ten seconds; this is what its image garbage collection would do.
    std::thread::sleep(Duration::from_secs(5));
    fs::remove_dir_all(&images).unwrap();
    std::thread::sleep(Duration::from_secs(12));
    assert!(member.evictions().is_empty(), "{:?}", member.evictions());
    assert!(process.is_alive());
}

// R8: above half of the threshold the kubelet has time to reclaim, and no pod goes when it has.
#[test]
fn pods_wait_for_what_the_kubelet_reclaims() {
    waits_for_the_kubelet("reclaim", |_| None);
}

// R8: what a pod that is over has left is the kubelet's to remove, and the images that only it uses stay until then.
#[test]
fn pods_wait_for_what_the_runtime_leaves_to_the_kubelet() {
    waits_for_the_kubelet("reclaimrest", |member| {
        let uid = ClusterNode::uid(2);
        let mut over = apiserver::pod("over", &uid, "Burstable", 0, None);
        over["status"]["phase"] = json!("Succeeded");
        member.server.state().put_pod(over);
        let sandbox = PodSandbox {
            id: "s".into(),
            metadata: Some(PodSandboxMetadata {
                uid,
                ..PodSandboxMetadata::default()
            }),
            state: SandboxState::NotReady.into(),
            ..PodSandbox::default()
        };
        let container = Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            state: ContainerState::Exited.into(),
            ..Container::default()
        };
        let state = State {
            sandboxes: vec![sandbox],
            containers: vec![container],
            ..State::default()
        };
        let socket = member.dir().join("cri.sock");
        Some(Runtime::start(&socket, state).unwrap())
    });
}

/// Its containers have ended and its files are still there when the wait for the kubelet is over.
// R8, R43
#[test]
fn files_of_a_pod_that_the_kubelet_evicts_are_waited_for() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let mut member = with_threshold("besidedisk", &disk, INODES, "50%");
    let [theirs, mut other] = with_files(&member, &disk, ["theirs", "other"]);
    // Either pod has all that is missing.
    make_files(&disk.path(), 1000);
    let address = listen(&mut member.config, "metricsAddress");
    let _agent = member.start().unwrap();
    let started = Instant::now();
    assert!(member.server.wait(SOON, |s| s.has_condition(FULL)));
    // What is not known of a pod is not waited for.
    all_are_walked(&address);
    // The next looks take it over.
    std::thread::sleep(Duration::from_secs(2));
    let is_late = started.elapsed() > Duration::from_secs(12);
    skip_if!(is_late.then_some("the wait for the kubelet is over by now: this machine is busy"));
    drop(theirs);
    member.server.state().change_pod("theirs", |pod| {
        pod["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: inodes."});
    });
    std::thread::sleep(Duration::from_secs(20));
    assert!(member.evictions().is_empty(), "{:?}", member.evictions());
    assert!(other.is_alive());
}

// R8: the kubelet is waited for once. It reclaims every ten seconds beside the evictions, which are no further apart.
#[test]
fn pods_wait_for_the_kubelet_once() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let member = with_threshold("reclaimonce", &disk, INODES, "50%");
    let _hogs = with_files(&member, &disk, ["first", "second"]);
    // More is missing than one of them has.
    make_files(&disk.path(), 1800);
    let _agent = member.start().unwrap();
    assert!(member.wait(Duration::from_secs(60), |m| m.evictions().len() == 2));
    let evictions = member.evictions();
    let [first, second] = [&evictions[0], &evictions[1]].map(|e| e.stages.decided);
    let apart = Duration::from_nanos(second - first);
    let seconds = Duration::from_secs(10)..Duration::from_secs(13);
    assert!(seconds.contains(&apart), "{apart:?}");
}

/// Waits until the use of disks is known of each pod.
#[track_caller]
fn all_are_walked(address: &str) {
    let unknown = || value(address, "evictd_pods_disk_usage_unknown");
    assert!(until(SOON, || unknown() == Some(0)));
}

/// A node on which pods go below this threshold of a signal of this disk.
fn with_threshold(name: &str, disk: &Disk, signal: &str, threshold: &str) -> ClusterNode {
    let mut member = ClusterNode::new(name, 256).unwrap();
    member.config["evictionHard"][signal] = json!(threshold);
    member.config["filesystems"] = json!({ "nodefs": disk.path() });
    member
}

/// Two pods with 600 files each, and a process of each.
fn with_files(member: &ClusterNode, disk: &Disk, names: [&str; 2]) -> [Hog; 2] {
    [(names[0], 1), (names[1], 2)].map(|(name, number)| {
        let cgroup = member.pod(name, number, "Burstable", 0, None).unwrap();
        let dir = with_empty_dir(member, disk, name, number, &json!({}));
        make_files(&dir, 600);
        Hog::start(&cgroup, &["--mib", "1", "--wait"]).unwrap()
    })
}

fn make_files(dir: &Path, count: usize) {
    for file in 0..count {
        fs::write(dir.join(file.to_string()), "").unwrap();
    }
}

/// A pod with one file of so many MiB: a process of it, and the file.
fn with_dump(
    member: &ClusterNode,
    disk: &Disk,
    name: &str,
    number: u64,
    mib: usize,
) -> (Hog, PathBuf) {
    let cgroup = member.pod(name, number, "Burstable", 0, None).unwrap();
    let dump = with_empty_dir(member, disk, name, number, &json!({})).join("dump");
    fs::write(&dump, vec![1; mib << 20]).unwrap();
    let process = Hog::start(&cgroup, &["--mib", "1", "--wait"]).unwrap();
    (process, dump)
}

/// A pod with an emptyDir, where the kubelet keeps it on this disk.
pub(super) fn with_empty_dir(
    member: &ClusterNode,
    disk: &Disk,
    name: &str,
    number: u64,
    volume: &Value,
) -> PathBuf {
    let pods = disk.path().join("pods").join(ClusterNode::uid(number));
    let dir = pods.join("volumes/kubernetes.io~empty-dir/scratch");
    fs::create_dir_all(&dir).unwrap();
    member.server.state().change_pod(name, |pod| {
        pod["spec"]["volumes"] = json!([{ "name": "scratch", "emptyDir": volume }]);
    });
    dir
}

// R18: as the kubelet, evictd sets no DisruptionTarget on a pod above a limit of its own; a Job would start it again for ever.
// What an earlier agent has left in its journal says as much.
#[test]
fn a_pod_above_its_own_limit_is_no_disruption() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let mut member = ClusterNode::new("ownlimit", 256).unwrap();
    member.config["filesystems"] = json!({ "nodefs": disk.path() });
    // While a threshold is met pods are walked every few seconds.
    member.config["evictionSoft"] = json!({ "nodefs.available": "99.9%" });
    member.config["evictionSoftGracePeriod"] = json!({ "nodefs.available": "1h" });
    let calm = member.pod("calm", 1, "Burstable", 0, None).unwrap();
    let small = json!({ "sizeLimit": "1Mi" });
    let mut dirs = Vec::new();
    let mut hogs = vec![Hog::start(&calm, &["--mib", "1", "--wait"]).unwrap()];
    for (name, number) in [("first", 2), ("second", 3)] {
        let cgroup = member.pod(name, number, "Burstable", 0, None).unwrap();
        dirs.push(with_empty_dir(&member, &disk, name, number, &small));
        hogs.push(Hog::start(&cgroup, &["--mib", "1", "--wait"]).unwrap());
    }
    let fill = |dir: &PathBuf| fs::write(dir.join("data"), vec![1; 3 << 20]).unwrap();
    fill(&dirs[0]);
    let agent = member.start().unwrap();
    assert_eq!(member.outcomes(1).len(), 1);
    member.server.go_away();
    fill(&dirs[1]);
    assert!(member.wait(SOON, |m| m.evictions().len() == 2));
    // The next one has the journal alone.
    agent.kill();
    member.server.come_back().unwrap();
    let _agent = member.start().unwrap();
    assert_eq!(member.outcomes(2).len(), 2);
    let signals: Vec<_> = member.evictions().into_iter().map(|e| e.signal).collect();
    assert_eq!(signals, ["emptydirfs.limit", "emptydirfs.limit"]);
    for path in ["/pods/first", "/pods/second"] {
        assert_eq!(member.server.count("DELETE", path), 1);
        assert_eq!(member.server.count("PATCH", path), 0);
    }
    assert!(hogs[0].is_alive(), "the other one has no limit");
}

// R1, R6, R10: killed at once and deleted, and the node says DiskPressure.
#[test]
fn a_full_disk_takes_the_pod_that_fills_it() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let member = with_threshold("diskapi", &disk, INODES, "25%");
    let calm = member.pod("calm", 1, "Burstable", 0, None).unwrap();
    let greedy = member.pod("greedy", 2, "Burstable", 0, None).unwrap();
    let dir = with_empty_dir(&member, &disk, "greedy", 2, &json!({}));
    let mut quiet = Forker::start(Some(&calm)).unwrap();
    let mut forker = Forker::start(Some(&greedy)).unwrap();
    let _agent = member.start().unwrap();
    let _ = forker.order(&format!("make {} 4000", dir.display()));
    assert_eq!(member.outcomes(1).len(), 1);
    assert_eq!(member.evicted(1), ["greedy"]);
    assert_eq!(member.evictions()[0].signal, "nodefs.inodesFree");
    assert!(member.server.wait(SOON, |s| s.has_condition(FULL)));
    assert_eq!(member.server.count("DELETE", "/pods/greedy"), 1);
    // R18: this is a disruption.
    assert_eq!(member.server.count("PATCH", "/pods/greedy/status"), 1);
    assert!(dir.is_dir(), "what is left is the kubelet's to remove");
    // The next pod would be due after ten seconds; files of the dead are on their way back for thirty.
    let signalled = member.evictions()[0].stages.signalled;
    sleep_from(signalled, Duration::from_secs(12));
    assert_eq!(member.server.count("DELETE", ""), 1);
    assert!(quiet.order("hold 0").is_ok());
}

/// A pod is deleted by another client, and the kubelet needs some seconds for its files.
// R43
#[test]
fn files_of_a_pod_that_is_deleted_are_waited_for() {
    let disk = or_skip!(Disk::new("ext4", 256, 4096));
    let mut member = ClusterNode::new("deleted", 256).unwrap();
    member.config["filesystems"] = json!({ "nodefs": disk.path() });
    let (mut deleting, deleted) = with_dump(&member, &disk, "deleted", 1, 60);
    let (mut other, _) = with_dump(&member, &disk, "other", 2, 60);
    let mib = Filesystem::open(&disk.path())
        .unwrap()
        .read()
        .unwrap()
        .available
        >> 20;
    let threshold = mib - 4;
    member.config["evictionHard"]["nodefs.available"] = json!(format!("{threshold}Mi"));
    let address = listen(&mut member.config, "metricsAddress");
    let agent = member.start().unwrap();
    assert!(agent.says("the agent is watching"));
    // All are walked while nothing is short.
    all_are_walked(&address);
    member.server.state().change_pod("deleted", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-29T12:00:00Z");
    });
    std::thread::sleep(Duration::from_secs(1));
    deleting.kill().unwrap();
    drop(deleting);
    std::thread::sleep(Duration::from_secs(2));
    fs::write(disk.path().join("log"), vec![1; 8 << 20]).unwrap();
    assert!(member.server.wait(SOON, |s| s.has_condition(FULL)));
    // After 15 s pods do not wait for the kubelet's garbage collection any more.
    std::thread::sleep(Duration::from_secs(18));
    fs::remove_file(deleted).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(member.evictions().is_empty(), "{:?}", member.evictions());
    assert!(other.is_alive());
}

// R8, R40: the kubelet removes the files of a pod once it is deleted. As long as the API server takes no DELETE, those of a second pod would
// not come back either.
#[test]
fn no_pod_goes_for_files_while_the_api_server_takes_no_delete() {
    no_second_pod_goes_for_files("undeleted", &json!({}), |_, agent| agent);
}

#[test]
fn no_pod_goes_for_files_of_one_above_its_own_limit_that_is_not_deleted() {
    let limit = json!({ "sizeLimit": "10Mi" });
    no_second_pod_goes_for_files("undeletedlimit", &limit, |_, agent| agent);
}

/// The first DELETE of the next agent has no answer, as from a webhook that hangs.
#[test]
fn no_pod_goes_for_files_while_the_first_delete_after_a_restart_hangs() {
    no_second_pod_goes_for_files("undeletedanew", &json!({}), |member, agent| {
        agent.kill();
        member.server.state().faults.clear();
        let hangs = InjectedFault::Hang;
        member.server.fails("DELETE", "/pods/", 1000, hangs);
        member.start().unwrap()
    });
}

/// A node whose disk is short until two pods have gone for their files, and an API server that answers so to each DELETE.
fn with_large_and_small(
    name: &str,
    disk: &Disk,
    volume: &Value,
    status: u16,
) -> (ClusterNode, [Hog; 2]) {
    let member = with_threshold(name, disk, BYTES, "40%");
    let hogs = [("large", 1, 25), ("small", 2, 20)]
        .map(|(name, number, mib)| with_dump(&member, disk, name, number, mib).0);
    with_empty_dir(&member, disk, "large", 1, volume);
    member.server.fails("DELETE", "/pods/", 1000, status);
    (member, hogs)
}

// R8, R40: a tenant could have any number of such pods.
#[test]
fn the_refused_delete_of_a_pod_above_its_own_limit_holds_back_no_other() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let limit = json!({ "sizeLimit": "10Mi" });
    let (member, _hogs) = with_large_and_small("refusedlimit", &disk, &limit, 403);
    let _agent = member.start().unwrap();
    assert_eq!(member.evicted(1), ["large"]);
    assert!(member.wait(Duration::from_secs(120), |m| m.evictions().len() > 1));
    assert_eq!(member.evictions()[1].name, "small");
}

fn no_second_pod_goes_for_files(
    name: &str,
    volume: &Value,
    meanwhile: impl FnOnce(&ClusterNode, Agent) -> Agent,
) {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let (member, mut hogs) = with_large_and_small(name, &disk, volume, 503);
    let agent = member.start().unwrap();
    assert_eq!(member.evicted(1), ["large"]);
    let _agent = meanwhile(&member, agent);
    // Files of a pod that is gone count as on their way back for 30 s.
    let signalled = member.evictions()[0].stages.signalled;
    sleep_from(signalled, Duration::from_secs(34));
    assert_eq!(member.evicted(1), ["large"]);
    assert!(hogs[1].is_alive());
    assert!(member.server.count("DELETE", "/pods/large") > 0);
    if name == "undeletedlimit" {
        // What follows the DELETE is the same.
        return;
    }
    // The pod is deleted, and its files stay: the kubelet has its 30 s for them, and the next one goes.
    let deleted = monotonic_ns();
    member.server.state().faults.clear();
    assert!(member.wait(Duration::from_secs(120), |m| m.evictions().len() > 1));
    let second = &member.evictions()[1];
    assert_eq!(second.name, "small");
    assert!(second.stages.signalled >= deleted + 29_000_000_000);
}

// R8, R40: a kubelet that hangs or is gone removes no files, and those of a third pod would stay as well.
#[test]
fn no_third_pod_goes_for_files_that_no_kubelet_removes() {
    let disk = or_skip!(Disk::new("ext4", 128, 4096));
    let member = with_threshold("unremoved", &disk, BYTES, "70%");
    let mut hogs = [("first", 1, 34), ("second", 2, 26), ("third", 3, 22)]
        .map(|(name, number, mib)| with_dump(&member, &disk, name, number, mib).0);
    let agent = member.start().unwrap();
    assert_eq!(member.evicted(2), ["first", "second"]);
    // Their files count as on their way back for 30 s each.
    let signalled = member.evictions()[1].stages.signalled;
    sleep_from(signalled, Duration::from_secs(34));
    assert!(agent.says("the files of evicted pods are not removed"));
    assert_eq!(member.evicted(2), ["first", "second"]);
    assert!(hogs[2].is_alive());
}

// R1, R6: in the crash loop there is no process for minutes. The DELETE takes the files; a pod that is over is left alone.
#[test]
fn a_pod_in_a_crash_loop_is_deleted_for_its_files() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let member = with_threshold("looper", &disk, BYTES, "60%");
    let calm = member.pod("calm", 1, "Burstable", 0, None).unwrap();
    let mut hog = Hog::start(&calm, &["--mib", "1", "--wait"]).unwrap();
    let dirs = [("done", 2), ("looper", 3)].map(|(name, number)| {
        member.pod(name, number, "Burstable", 0, None).unwrap();
        with_empty_dir(&member, &disk, name, number, &json!({}))
    });
    let write =
        |dir: &PathBuf, mib: usize| fs::write(dir.join("dump"), vec![1; mib << 20]).unwrap();
    write(&dirs[0], 2);
    write(&dirs[1], 1);
    let mut agent = member.start().unwrap();
    let mut state = member.server.state();
    state.change_pod("done", |pod| pod["status"]["phase"] = json!("Succeeded"));
    drop(state);
    std::thread::sleep(Duration::from_secs(3));
    assert!(member.evictions().is_empty());
    // Less than half of the threshold is left: no reclaim is waited for.
    write(&dirs[0], 20);
    write(&dirs[1], 20);
    assert_eq!(member.outcomes(1), ["deleted"]);
    assert_eq!(member.evicted(1), ["looper"]);
    assert_eq!(member.server.count("DELETE", "/pods/looper"), 1);
    assert_eq!(member.server.count("DELETE", ""), 1);
    assert!(hog.is_alive());
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

// R1, R10: the kubelet is away, and the phase of a Job's pod that has completed is late. Evicted, the Job would run again.
#[test]
fn a_pod_that_has_completed_is_not_evicted_while_its_phase_is_late() {
    let disk = or_skip!(Disk::new("ext4", 64, 4096));
    let mut member = with_threshold("completed", &disk, BYTES, "60%");
    let (job, of_job) = with_dump(&member, &disk, "job", 1, 1);
    let (_writer, of_writer) = with_dump(&member, &disk, "writer", 2, 1);
    let put_job = |field: &str, key: &str, value: &str| {
        let mut state = member.server.state();
        state.change_pod("job", |pod| pod[field][key] = json!(value));
    };
    put_job("spec", "restartPolicy", "Never");
    let address = listen(&mut member.config, "metricsAddress");
    let _agent = member.start().unwrap();
    all_are_walked(&address);
    drop(job);
    std::thread::sleep(Duration::from_secs(2));
    // Less than half of the threshold is left: no reclaim is waited for.
    fs::write(of_job, vec![1; 24 << 20]).unwrap();
    fs::write(of_writer, vec![1; 18 << 20]).unwrap();
    assert_eq!(member.evicted(1), ["writer"]);
    put_job("status", "phase", "Succeeded");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(member.evicted(1), ["writer"]);
    assert_eq!(member.server.count("DELETE", "/pods/job"), 0);
    assert_eq!(member.server.count("PATCH", "/pods/job/status"), 0);
}
