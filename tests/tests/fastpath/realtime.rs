//! Real-time priority in a cgroup that has no budget for real-time tasks, as each container has one on cgroup v1.

use evictd_tests::{prelude::*, skip::no_realtime};

const CPU: &str = "/sys/fs/cgroup/cpu";
const BUDGET: &str = "cpu.rt_runtime_us";
/// Of sched_setscheduler(2): SCHED_FIFO.
const FIFO: &str = "1";

/// A cgroup of the cpu hierarchy; removed when dropped.
struct CpuCgroup(PathBuf);

impl CpuCgroup {
    fn new() -> std::io::Result<Self> {
        let dir = Path::new(CPU).join(format!("evictd-realtime-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for CpuCgroup {
    fn drop(&mut self) {
        // What was in it may be on its way out still.
        until(Duration::from_secs(10), || fs::remove_dir(&self.0).is_ok());
    }
}

/// Why this cannot be tried here.
fn no_groups() -> Option<String> {
    let budget = Path::new(CPU).join(BUDGET);
    no_realtime().or_else(|| {
        let missing = !budget.exists();
        missing.then(|| format!("no {}: real-time tasks are not grouped", budget.display()))
    })
}

/// Moves the thread that calls, and with it what it starts.
fn enter(cgroup: &Path) {
    fs::write(cgroup.join("tasks"), "0").unwrap();
}

/// The agent's threads of a name: scheduling policy and cgroup of the cpu hierarchy.
fn threads(agent: &Agent, name: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let mut found = Vec::new();
    for task in tasks {
        let task = task.unwrap().path();
        let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").trim() != name {
            continue;
        }
        let stat = read("stat");
        // Behind the name in parentheses the third field begins; the policy is the 41st.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let policy = fields.split(' ').nth(41 - 3).unwrap();
        let cgroups = read("cgroup");
        let cpu = cgroups.lines().find(|l| {
            let controllers = l.split(':').nth(1).unwrap_or_default();
            controllers.split(',').any(|c| c == "cpu")
        });
        let cpu = cpu.and_then(|l| l.split(':').nth(2)).unwrap_or_default();
        found.push((policy.to_owned(), cpu.to_owned()));
    }
    found
}

#[test]
fn threads_that_decide_are_real_time_in_a_cgroup_without_a_budget() {
    skip_if!(no_groups());
    let group = CpuCgroup::new().unwrap();
    let budget = fs::read_to_string(group.0.join(BUDGET)).unwrap();
    skip_if!((budget.trim() != "0").then_some("new cgroups have a budget here"));
    let scope = TestCgroup::new("realtime", 256 * MIB).unwrap();
    let mut files = Files::new(scope.path(), &json!([]));
    let address = listen(&mut files.config, "metricsAddress");
    enter(&group.0);
    let agent = files.start(&[]);
    enter(Path::new(CPU));
    let own = format!("/{}", group.0.file_name().unwrap().display());

    let log = agent.log();
    assert!(!log.contains("no real-time priority"), "{log}");
    for name in ["fastpath", "manager"] {
        let real_time = (FIFO.to_owned(), "/".to_owned());
        assert!(
            until(Duration::from_secs(10), || threads(&agent, name)
                == [real_time.clone()]),
            "{name}: {:?}",
            threads(&agent, name)
        );
    }
    // The other threads stay where the container's share of the CPUs holds.
    let others = threads(&agent, "evictd");
    let normal = ("0".to_owned(), own);
    assert!(
        !others.is_empty() && others.iter().all(|t| *t == normal),
        "{others:?}"
    );
    let text = metrics(&address).unwrap();
    assert!(
        text.contains("evictd_realtime_priority{thread=\"fastpath\"} 1\n"),
        "{text}"
    );
}
