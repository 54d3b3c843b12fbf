//! The guard that outlives the agent: it is killed or stopped on the way to the threshold, and the kernel takes its place.

use std::process::Output;

use evictd_tests::{bpffs::Bpffs, prelude::*};

/// More than there is.
const TOO_MUCH: &str = "1024";

/// A scope of 256Mi, of which 64Mi must be available, with a hog's pod and a calm one, and an agent that pins its guard.
struct Guarded {
    // Unmounted last.
    files: Files,
    scope: TestCgroup,
    hog: PathBuf,
    calm: PathBuf,
    /// A process of the calm pod.
    bystander: Hog,
    bpffs: Bpffs,
}

/// What becomes of the agent; one that may go on is kept.
type Fate = fn(Agent) -> Option<Agent>;
const FATES: [Fate; 2] = [kill, stop];

fn kill(agent: Agent) -> Option<Agent> {
    drop(agent);
    None
}

fn stop(agent: Agent) -> Option<Agent> {
    agent.stop().unwrap();
    Some(agent)
}

impl Guarded {
    /// An error is a reason to skip.
    fn new(name: &str) -> Result<Self, String> {
        if let Some(why) = no_bpf() {
            return Err(why.into());
        }
        let bpffs = Bpffs::mount().map_err(|e| e.to_string())?;
        let scope = TestCgroup::new(name, 256 * MIB).unwrap();
        let (mut files, [hog, calm]) = Files::hog_and_calm(&scope);
        files.config["pinnedGuard"] = json!({"directory": bpffs.path().join("evictd")});
        let bystander = Hog::start(&calm, &["--mib", "32"]).unwrap();
        Ok(Self {
            files,
            scope,
            hog,
            calm,
            bystander,
            bpffs,
        })
    }

    /// The same after an agent that has been killed.
    fn left_by_an_agent(name: &str) -> Result<Self, String> {
        let guarded = Self::new(name)?;
        drop(guarded.start()?);
        Ok(guarded)
    }

    /// Fails where this machine's hook cannot be pinned: a reason to skip, where the agent says so.
    fn start(&self) -> Result<Agent, &'static str> {
        let agent = Agent::start(&self.files.write().unwrap(), &[]).unwrap();
        let log = agent.log();
        if log.contains("the pinned guard is installed") {
            return Ok(agent);
        }
        let is_said =
            log.contains("the pinned guard is not installed") || log.contains("shadow=true");
        assert!(is_said, "{log}");
        Err("the hook of this kernel cannot be pinned")
    }

    fn pinned(&self) -> Vec<String> {
        let agents = fs::read_dir(self.bpffs.path().join("evictd"))
            .into_iter()
            .flatten();
        let dirs = agents
            .flatten()
            .filter_map(|agent| fs::read_dir(agent.path()).ok());
        let names = dirs.flatten().flatten();
        names
            .map(|name| name.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// The hog takes too much and is killed; the OOM killer is not needed, and the calm pod lives.
    #[track_caller]
    fn ends_the_hog(&mut self, mut hog: Hog) {
        hog.killed();
        assert_eq!(self.oom_kills(), 0);
        assert!(self.bystander.is_alive());
    }

    /// What the guard has killed is an evicted pod like others, once: the agent says so that was stopped, or the next one.
    fn is_reported_by(&self, stopped: Option<Agent>) {
        let agent = match stopped {
            Some(agent) => agent.go_on().map(|()| agent).unwrap(),
            None => self.start().unwrap(),
        };
        // Where the next one has started ten seconds later the kill is only logged.
        let is_late = || agent.came_too_late();
        let evicted = || self.files.evicted();
        assert!(until(SOON, || is_late() || !evicted().is_empty()));
        assert!(is_late() || evicted() == ["hog"]);
        // By then the hog has given its memory back: the record is of the kill.
        // It grew by some MiB until the program saw that no agent came.
        let was_short = |e: &EvictionRecord| e.available + MIB < e.threshold;
        assert!(self.files.evictions().iter().all(was_short));
    }

    fn oom_kills(&self) -> u64 {
        self.scope.oom_kills().unwrap()
    }

    fn wait_for_usage(&self, mib: u64) {
        let reached = || self.scope.usage().unwrap() >= mib * MIB;
        assert!(until(SOON, reached));
    }

    /// Waits until page cache of a disk fills the scope, and has it written meanwhile: dirty pages alone may make the kernel's
    /// own OOM killer act, because MGLRU leaves them to a flusher that is not called.
    fn wait_for_files(&self, disk: &Disk) {
        let is_full = || disk.sync().is_ok() && self.scope.usage().unwrap() >= 240 * MIB;
        assert!(until(SOON, is_full));
    }

    fn detach(&self) -> Output {
        let config = self.files.write().unwrap();
        agent::evictd(&["detach"], &[("--config", &config)])
    }
}

/// A disk that holds less than the scope's memory.
fn disk() -> Disk {
    Disk::new("ext4", 280, 1000).unwrap()
}

/// A process of a pod that writes so many MiB, over files of `size` MiB.
fn writer(pod: &Path, disk: &Disk, mib: &str, size: &str, rate: &str) -> Hog {
    let dir = disk.path().display().to_string();
    let [way, mib, size] = [["--way", "write"], ["--mib", mib], ["--size", size]];
    let arguments = [way, mib, size, ["--rate", rate], ["--dir", &dir]];
    Hog::start(pod, arguments.as_flattened()).unwrap()
}

/// Something happens to the agent on a hog's way to the threshold and somewhat past it. `EVICTD_GUARD_RUNS=50` makes the
/// figures of docs/bench.md.
fn at_any_moment(what: &str, fate: Fate) {
    let runs = std::env::var("EVICTD_GUARD_RUNS").ok();
    let runs = runs.map(|runs| runs.parse().expect("EVICTD_GUARD_RUNS is a number"));
    // MiB per second, and MiB that are used then: 32 are the calm pod's.
    for (rate, one) in [("0", 40), ("20", 150), ("60", 40), ("200", 150)] {
        let moments: Vec<u64> = match runs {
            Some(runs) => (0..runs).map(|run: u64| 40 + run * 97 % 155).collect(),
            None => vec![one],
        };
        for at_mib in &moments {
            let mut guarded = or_skip!(Guarded::new(&format!("guard{what}")));
            let agent = or_skip!(guarded.start());
            // The way to that moment is not what is tried.
            let head = at_mib.saturating_sub(60).to_string();
            let arguments = ["--mib", TOO_MUCH, "--rate", rate, "--head", &head];
            let hog = Hog::start(&guarded.hog, &arguments).unwrap();
            guarded.wait_for_usage(*at_mib);
            let stopped = fate(agent);
            guarded.ends_the_hog(hog);
            guarded.is_reported_by(stopped);
        }
        let ends = moments.len();
        println!("{what} at {rate} MB/s: {ends} hogs ended by the guard, no OOM kill");
    }
}

scenes! {
    fn at_any_moment_sigkill() => at_any_moment("SIGKILL", kill);
    fn at_any_moment_sigstop() => at_any_moment("SIGSTOP", stop);
}

/// The strategy `qos` spares a Guaranteed pod as long as another one is left: the guard does not end it, and the OOM killer comes. Where
/// daemons of the node use more than the 80 MiB that the pods may not have, it is not spared.
// R20
#[test]
fn a_guaranteed_pod_is_spared_unless_daemons_use_more_than_reserved() {
    for (strategy, daemons, oom_kills) in [("kubelet", 0, 0), ("qos", 0, 1), ("qos", 64, 0)] {
        let mut guarded = or_skip!(Guarded::new("guardqos"));
        let pods = json!([
            { "name": "guaranteed", "cgroup": "kubepods/guaranteed", "limits": { "memory": "170Mi" } },
            { "name": "other", "cgroup": "kubepods/other" },
        ]);
        let start = |guarded: &Guarded, cgroup: &str, mib: u64, rate: &str| {
            let cgroup = guarded.scope.child(cgroup).unwrap();
            let mib = mib.to_string();
            let hog = Hog::start(&cgroup, &["--mib", &mib, "--rate", rate, "--head", "30"]);
            hog.unwrap()
        };
        let mut others = [("kubepods/other", 24), ("system", daemons)]
            .map(|(cgroup, mib)| start(&guarded, cgroup, mib, "0"));
        guarded.scope.limit_child("kubepods", 176 * MIB).unwrap();
        // The bystander of 32 is in no pod here.
        let used = 56 + daemons;
        guarded.wait_for_usage(used);
        let guard = guarded.files.config["pinnedGuard"].take();
        let mut files = Files::new(guarded.scope.path(), &pods);
        files.config["pinnedGuard"] = guard;
        files.config["rankingStrategy"] = json!(strategy);
        guarded.scope.child("kubepods/guaranteed").unwrap();
        guarded.files = files;
        let agent = or_skip!(guarded.start());
        let mut hog = start(&guarded, "kubepods/guaranteed", 1024, "20");
        guarded.wait_for_usage(used + 50);
        let _stopped = stop(agent);
        hog.killed();
        assert_eq!(guarded.oom_kills(), oom_kills, "{strategy} {daemons}");
        assert!(others.iter_mut().all(Hog::is_alive));
    }
}

/// The agent has left a trigger as far beyond the threshold as there was page cache; the hog takes its place, and the counter
/// never gets there.
#[test]
fn a_hog_that_takes_the_place_of_page_cache() {
    for fate in FATES {
        let mut guarded = or_skip!(Guarded::new("guardcache"));
        let disk = disk();
        let mut writer = writer(&guarded.calm, &disk, "150", "150", "0");
        assert!(writer.says("done").unwrap());
        disk.sync().unwrap();
        guarded.wait_for_usage(150);
        let agent = or_skip!(guarded.start());
        let hog = Hog::start(&guarded.hog, &["--mib", TOO_MUCH, "--rate", "60"]).unwrap();
        guarded.wait_for_usage(220);
        let stopped = fate(agent);
        guarded.ends_the_hog(hog);
        assert!(writer.is_alive());
        guarded.is_reported_by(stopped);
    }
}

#[test]
fn a_writer_of_files_dies_of_no_guard() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardwriter"));
    let disk = disk();
    let mut writer = writer(&guarded.hog, &disk, TOO_MUCH, "240", "0");
    guarded.wait_for_usage(200);
    assert!(!until(Duration::from_secs(3), || !writer.is_alive()));
    assert!(guarded.bystander.is_alive());
}

/// Page cache that comes after the agent's last look is in the counter, and the kernel can give it back: no pod dies that goes on
/// allocating beside it, however much it holds. A hog that comes then is ended all the same.
#[test]
fn page_cache_that_comes_kills_no_pod() {
    for fate in FATES {
        let mut guarded = or_skip!(Guarded::new("guardcomes"));
        let disk = disk();
        // One pod that comes first in the order of eviction, and the calm one's neighbour.
        let churns = ["--mib", "41", "--head", "40", "--way", "churn"];
        let allocates = |pod: &PathBuf| Hog::start(pod, &churns).unwrap();
        let mut innocents = [&guarded.hog, &guarded.calm].map(allocates);
        guarded.wait_for_usage(110);
        let agent = or_skip!(guarded.start());
        let stopped = fate(agent);
        // On v2 the kernel reclaims from the first pod alone as well, in vain.
        let high = guarded.hog.join("memory.high");
        let is_v2 = fs::write(&high, "30M").is_ok();
        let writer = writer(&guarded.calm, &disk, "1500", "230", "100");
        guarded.wait_for_files(&disk);
        let dies = || disk.sync().is_ok() && !innocents.iter_mut().all(|pod| pod.is_alive());
        assert!(!until(Duration::from_secs(4), dies));
        assert!(guarded.bystander.is_alive());
        if is_v2 {
            fs::write(&high, "max").unwrap();
        }
        drop(writer);
        let hog = Hog::start(&guarded.hog, &["--mib", TOO_MUCH, "--rate", "100"]).unwrap();
        guarded.ends_the_hog(hog);
        assert!(innocents[1].is_alive());
        guarded.is_reported_by(stopped);
    }
}

/// The memory goes to a cgroup that the agent has not listed: the pods that look for some beside it have no part in that.
#[test]
fn a_hog_that_is_in_no_pod_kills_no_pod() {
    for fate in FATES {
        let mut guarded = or_skip!(Guarded::new("guardoutside"));
        let churns = ["--mib", "9", "--head", "8", "--way", "churn"];
        let allocates = |pod: &PathBuf| Hog::start(pod, &churns).unwrap();
        let mut innocents = [&guarded.hog, &guarded.calm].map(allocates);
        guarded.wait_for_usage(48);
        let _stopped = fate(or_skip!(guarded.start()));
        let outside = guarded.scope.child("system/daemon").unwrap();
        Hog::until_killed(&outside, &["--mib", TOO_MUCH, "--rate", "60"]);
        assert_eq!(guarded.oom_kills(), 1, "as without evictd");
        assert!(innocents.iter_mut().all(|pod| pod.is_alive()));
        assert!(guarded.bystander.is_alive());
    }
}

/// Where no threshold asks for it nothing is evicted for memory, by no program either.
#[test]
fn without_a_hard_threshold_there_is_no_guard() {
    let mut guarded = or_skip!(Guarded::new("guardnever"));
    guarded.files.config["evictionHard"] = json!({"nodefs.available": "1Mi"});
    drop(or_skip!(guarded.start()));
    Hog::until_killed(&guarded.hog, &["--mib", TOO_MUCH, "--rate", "60"]);
    assert_eq!(
        guarded.oom_kills(),
        1,
        "the OOM killer's, as without evictd"
    );
    let agent = guarded.start().unwrap();
    assert!(!agent.log().contains("guard has killed"), "{}", agent.log());
    assert!(guarded.files.evicted().is_empty());
}

/// Shared memory counts as often as a process maps it: neither the pod nor the node has ever had so much.
#[test]
fn a_pod_that_maps_its_memory_many_times_dies_of_no_guard() {
    // Three mappings hold less than there was left, and more than is charged to the pod; with page cache of its own five hold more
    // than there was.
    for (name, maps, writes_itself) in [("guardmaps", "3", false), ("guardmapscache", "5", true)] {
        let guarded = or_skip!(Guarded::new(name));
        let disk = disk();
        let arguments = [
            "--mib", "1", "--way", "multimap", "--size", "60", "--maps", maps,
        ];
        let mut pod = Hog::start(&guarded.hog, &arguments).unwrap();
        assert!(pod.says("mapped").unwrap());
        drop(or_skip!(guarded.start()));
        let writes = if writes_itself {
            &guarded.hog
        } else {
            &guarded.calm
        };
        let _writer = writer(writes, &disk, "1500", "230", "100");
        guarded.wait_for_files(&disk);
        let dies = || disk.sync().is_ok() && !pod.is_alive();
        assert!(!until(Duration::from_secs(3), dies), "{maps} mappings");
        assert_eq!(guarded.oom_kills(), 0);
    }
}

/// What was left long ago says little: others have given memory back since, and page cache has taken its place.
#[test]
fn what_was_left_long_ago_is_no_proof() {
    let mut guarded = or_skip!(Guarded::new("guardlong"));
    guarded.files.config["pinnedGuard"]["expireAfter"] = json!("30s");
    let disk = disk();
    let other = Hog::start(&guarded.calm, &["--mib", "60"]).unwrap();
    guarded.wait_for_usage(90);
    drop(or_skip!(guarded.start()));
    // The lease lasts as long as the agent sleeps far from the threshold, and what was left is believed for a twentieth of the rest.
    std::thread::sleep(Duration::from_secs(6));
    drop(other);
    let _writer = writer(&guarded.calm, &disk, "1500", "230", "100");
    guarded.wait_for_files(&disk);
    let grows = ["--mib", "160", "--rate", "100"];
    let mut pod = Hog::start(&guarded.hog, &grows).unwrap();
    let dies = || disk.sync().is_ok() && !pod.is_alive();
    assert!(!until(Duration::from_secs(4), dies));
    assert_eq!(guarded.oom_kills(), 0);
}

/// No process of such a pod uses up by itself what was left.
#[test]
fn a_hog_of_many_processes() {
    for fate in FATES {
        let mut guarded = or_skip!(Guarded::new("guardmany"));
        let agent = or_skip!(guarded.start());
        let arguments = ["--mib", TOO_MUCH, "--way", "processes", "--rate", "60"];
        let _hog = Hog::start(&guarded.hog, &arguments).unwrap();
        guarded.wait_for_usage(100);
        let stopped = fate(agent);
        guarded.wait_for_usage(240);
        let oom = until(Duration::from_secs(4), || guarded.oom_kills() > 0);
        assert!(!oom && guarded.bystander.is_alive());
        guarded.is_reported_by(stopped);
    }
}

#[test]
fn what_is_too_old_kills_no_pod() {
    let mut guarded = or_skip!(Guarded::new("guardold"));
    guarded.files.config["pinnedGuard"]["expireAfter"] = json!("1s");
    drop(or_skip!(guarded.start()));
    assert!(!guarded.pinned().is_empty());
    std::thread::sleep(Duration::from_secs(2));
    Hog::until_killed(&guarded.hog, &["--mib", TOO_MUCH, "--rate", "200"]);
    let kills = guarded.oom_kills();
    assert_eq!(kills, 1, "the OOM killer's, as without evictd");
}

#[test]
fn the_next_agent_replaces_it_and_detach_removes_it() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardnext"));
    let first = guarded.pinned();
    assert!(!first.is_empty());
    let mut agent = guarded.start().unwrap();
    has(
        &agent.log(),
        &["the pinned guard of an earlier agent is replaced"],
    );
    let second = guarded.pinned();
    assert_eq!(second.len(), first.len());
    assert!(
        second.iter().all(|name| !first.contains(name)),
        "{first:?} {second:?}"
    );
    let hog = Hog::start(&guarded.hog, &["--mib", TOO_MUCH]).unwrap();
    guarded.ends_the_hog(hog);
    // An orderly end leaves it for the next agent.
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert_eq!(guarded.pinned(), second);
    for said in ["detached ", "nothing is pinned"] {
        has(&agent::text(&guarded.detach()), &[said]);
        assert!(guarded.pinned().is_empty());
    }
}

/// As where the kubelet runs out of patience, or the memory that the agent locks is more than its limit. The guard in force stays.
#[test]
fn starts_that_fail_pile_up_no_guards() {
    let guarded = or_skip!(Guarded::left_by_an_agent("guardpile"));
    let (first, config) = (guarded.pinned(), guarded.files.write().unwrap());
    for _ in 0..4 {
        let before = guarded.pinned();
        let words = match before.len() > first.len() {
            true => "an agent that ended while it started is removed",
            false => "the pinned guard is installed",
        };
        Agent::begin(&config, words).unwrap().kill();
        let after = guarded.pinned();
        assert!(after.len() <= 2 * first.len(), "{before:?} {after:?}");
        let is_left = first.iter().all(|name| after.contains(name));
        let new = after.iter().filter(|name| !first.contains(name));
        assert!(is_left || new.count() >= first.len(), "it has taken over");
    }
    let _agent = guarded.start().unwrap();
    assert_eq!(guarded.pinned().len(), first.len());
}

/// On a node where each start fails a pause stops what an earlier agent has left there.
#[test]
fn a_pause_stops_the_guard_where_the_next_agent_cannot_start() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardpause"));
    let first = guarded.pinned();
    guarded.files.config["policies"] = json!(["/nowhere/policies.yaml"]);
    let config = guarded.files.write().unwrap();
    let fails = || agent::refused(&["run"], &[("--config", &config)]);
    fails();
    let mut left = guarded.pinned();
    left.sort();
    let mut all = first.clone();
    all.sort();
    assert_eq!(left, all, "nothing is paused");
    let pause = guarded.files.dir().join("state/pause");
    fs::write(&pause, "").unwrap();
    has(
        &fails(),
        &["the pinned guard of an earlier agent is stopped"],
    );
    let left = guarded.pinned();
    assert!(
        !left.is_empty() && left.iter().all(|name| name.starts_with("killed-")),
        "{left:?}"
    );
    Hog::until_killed(&guarded.hog, &["--mib", TOO_MUCH, "--rate", "60"]);
    assert_eq!(
        guarded.oom_kills(),
        1,
        "the OOM killer's, as without evictd"
    );
    guarded.files.config["policies"] = json!([]);
    fs::remove_file(&pause).unwrap();
    let _agent = guarded.start().unwrap();
    assert_eq!(guarded.pinned().len(), first.len());
    assert!(guarded.files.evicted().is_empty());
}

/// The container was started again meanwhile: the last kill counts, and the first one is too long ago to be told.
#[test]
fn of_two_kills_while_no_agent_runs_the_last_one_counts() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardtwice"));
    for wait in [11, 0] {
        let hog = Hog::start(&guarded.hog, &["--mib", TOO_MUCH]).unwrap();
        guarded.ends_the_hog(hog);
        std::thread::sleep(Duration::from_secs(wait));
    }
    let killed = Instant::now();
    let _agent = guarded.start().unwrap();
    // A start that takes as long comes too late for both.
    let is_late = killed.elapsed() > Duration::from_secs(9);
    assert!(is_late || until(SOON, || guarded.files.evicted() == ["hog"]));
}

/// An agent whose hook cannot be pinned leaves no guard behind that would take it for gone, and logs what that one has killed.
#[test]
fn an_agent_without_a_guard_replaces_it_too() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardnone"));
    assert!(!guarded.pinned().is_empty());
    let hog = Hog::start(&guarded.hog, &["--mib", TOO_MUCH]).unwrap();
    guarded.ends_the_hog(hog);
    guarded.files.config["memoryHook"] = json!("sampler");
    let mut agent = guarded.files.start(&[]);
    let said = [
        "the pinned guard is not installed",
        "the pinned guard of an earlier agent has killed from this pod",
        "the pinned guard of an earlier agent is removed",
    ];
    has(&agent.log(), &said);
    assert!(guarded.pinned().is_empty(), "{:?}", guarded.pinned());
    assert_eq!(agent.terminate().unwrap(), Some(0));
}

#[test]
fn a_guard_that_is_not_wanted_any_more_is_detached() {
    let mut guarded = or_skip!(Guarded::left_by_an_agent("guardoff"));
    guarded.files.config["shadow"] = json!(true);
    assert!(guarded.start().is_err());
    assert!(guarded.pinned().is_empty());
}
