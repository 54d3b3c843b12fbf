//! From the version before to this one and back: one journal, one state directory, one pinned guard. `EVICTD_BEFORE` names the
//! agent of the version before; `cargo xtask upgrade` builds it.

use std::env;

use evictd_tests::{agent::binary, bpffs::Bpffs, prelude::*};

fn version_before() -> Result<PathBuf, &'static str> {
    let path = env::var_os("EVICTD_BEFORE").map(PathBuf::from);
    path.ok_or("EVICTD_BEFORE names no agent of the version before: cargo xtask upgrade")
}

/// A node that agents of both versions take over from one another.
struct Node {
    // Unmounted last.
    files: Files,
    bpffs: Bpffs,
    calm: Hog,
    /// What has been evicted so far.
    evicted: usize,
}

impl Node {
    /// A scope of 256Mi, of which 64Mi must be available. Three evictions an hour may happen.
    fn new(bpffs: Bpffs) -> Self {
        let mut files = Files::of_hog_and_calm("upgrade", 256);
        files.config["pinnedGuard"] = json!({"directory": bpffs.path().join("evictd")});
        files.config["evictionRates"] = json!({"node": {"evictions": 3, "period": "1h"}});
        let calm = files.hog("calm", &["--mib", "32"]);
        Self {
            files,
            bpffs,
            calm,
            evicted: 0,
        }
    }

    fn start(&self, program: &Path) -> Agent {
        let config = self.files.write().unwrap();
        Agent::start_program(program, &config).unwrap()
    }

    fn hog(&self) -> Hog {
        self.files.hog("hog", &crate::TOO_MUCH)
    }

    /// The hog is evicted, and the journal says so.
    fn evicts_the_hog(&mut self) {
        self.hog().killed();
        self.evicted += 1;
        let is_written = || self.files.evicted().len() == self.evicted;
        assert!(until(SOON, is_written));
        assert_eq!(self.files.evicted().last().unwrap(), "hog");
        let incidents = || self.reports(&binary().unwrap()).len() == self.evicted;
        assert!(until(SOON, incidents));
    }

    /// The hog uses too much and stays: what the agents before have evicted counts.
    fn spares_the_hog(&self, agent: &Agent) {
        let mut hog = self.hog();
        assert!(agent.says("no pod may be evicted"));
        assert!(hog.is_alive());
    }

    /// What a version reads of all incidents.
    fn reports(&self, program: &Path) -> Vec<Value> {
        let ids = self.files.evictions().into_iter().map(|e| e.id);
        ids.filter_map(|id| {
            let output = Command::new(program)
                .args(["report", &id, "-o", "json", "--state-dir"])
                .arg(self.files.dir().join("state"))
                .output()
                .unwrap();
            serde_json::from_slice(&output.stdout).ok()
        })
        .collect()
    }

    /// How many agents have pinned a guard that is there still.
    fn guards(&self) -> usize {
        let dir = fs::read_dir(self.bpffs.path().join("evictd"));
        dir.into_iter().flatten().flatten().count()
    }
}

// R42
#[test]
fn to_this_version_and_back() {
    skip_if!(not_root());
    let before = or_skip!(version_before());
    let now = binary().unwrap();
    let mut node = Node::new(or_skip!(Bpffs::mount()));
    let mut guards = Vec::new();
    for program in [&before, &now, &before] {
        let agent = node.start(program);
        node.evicts_the_hog();
        assert!(until(SOON, || node.guards() <= 1));
        guards.push(node.guards());
        // The next one finds what it has left.
        agent.kill();
    }
    // All of them, or none where the hook of this kernel cannot be pinned.
    assert!(guards.iter().all(|n| *n == guards[0]), "{guards:?}");
    for program in [&before, &now] {
        let agent = node.start(program);
        node.spares_the_hog(&agent);
        assert_eq!(node.reports(program).len(), node.evicted);
        agent.kill();
    }
    assert_eq!(node.files.scope().oom_kills().unwrap(), 0);
    assert!(node.calm.is_alive());
    let config = node.files.write().unwrap();
    let detach = Command::new(&now)
        .args(["detach", "--config"])
        .arg(config)
        .output()
        .unwrap();
    assert!(detach.status.success());
    assert_eq!(node.guards(), 0);
}

/// What is unreported is reported before the loops stop, and no API server holds up the end beyond the grace period of the chart.
// R42
#[test]
fn an_agent_that_ends_watches_while_it_reports() {
    let mut member = as_root!(ClusterNode::new("endwatch", 256).unwrap());
    member.config["pinnedGuard"] = json!({"enabled": false});
    let [first, second] =
        [("first", 1), ("second", 2)].map(|(name, number)| member.best_effort(name, number));
    let mut agent = member.start().unwrap();
    let hang = InjectedFault::Hang;
    member.server.fails("", "", 100_000, hang);
    let goes = |pod: &Path| {
        Hog::until_killed(pod, &["--mib", "1024"]);
    };
    goes(&first);
    assert!(member.wait(SOON, |m| m.evictions().len() == 1));
    let asked = Instant::now();
    agent.ask_to_end().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    goes(&second);
    let has_ended = || agent.has_ended().unwrap();
    assert!(until(SOON, has_ended));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(member.evicted(2), ["first", "second"]);
    assert_eq!(member.cgroup.oom_kills().unwrap(), 0);
    assert!(agent.log().contains("stopped"));
}
