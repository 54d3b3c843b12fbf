//! Graduated action on real cgroups (R46): page cache is reclaimed, growth is stopped by `memory.high`, and both end as
//! they should. Version 2 only; what version 1 does instead is shown as well.

use evictd_node::cgroup::{
    memory::Version,
    reclaim,
    throttle::{self, ThrottleList},
};
use evictd_store::record::mitigation::MitigationRecord;
use evictd_tests::prelude::*;

/// Emulated machines are slow.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why version 2 cannot be tried here.
fn no_v2() -> Option<&'static str> {
    not_root().or_else(|| match memory_root() {
        Some((_, Version::V2)) => None,
        Some((_, Version::V1)) => {
            Some("this machine has cgroup v1: no memory.reclaim, no memory.high")
        }
        None => Some("no memory cgroups here"),
    })
}

fn high(cgroup: &Path) -> String {
    let high = fs::read_to_string(cgroup.join("memory.high")).unwrap();
    high.trim().to_owned()
}

/// Half of it anonymous, half written to a file on the disk; cold as soon as it is written back.
fn cold_hog(cgroup: &Path, disk: &Disk, mib: u64) -> Hog {
    let (mib, dir) = (mib.to_string(), disk.path().display().to_string());
    let hog = Hog::start(cgroup, &["--mib", &mib, "--way", "cache", "--dir", &dir]).unwrap();
    let memory = MemoryCgroup::open(cgroup).unwrap();
    let cached = || {
        memory
            .read()
            .is_ok_and(|r| r.inactive_file + r.active_file > MIB)
    };
    assert!(until(TIMEOUT, cached), "nothing is cached");
    let held = || memory.usage().unwrap_or(0);
    // Until it has all that it wants.
    let mut last = 0;
    while held() != last {
        last = held();
        std::thread::sleep(Duration::from_millis(500));
    }
    // Dirty pages are not reclaimed.
    nix::unistd::sync();
    hog
}

// R46: page cache comes back, memory that is in use stays.
#[test]
fn reclaim_gives_back_page_cache() {
    skip_if!(no_v2());
    let disk = or_skip!(Disk::new("ext4", 96, 4096));
    let (_scope, pod) = TestCgroup::with_pod("reclaim", 256 * MIB);
    let memory = MemoryCgroup::open(&pod).unwrap();
    skip_if!(reclaim::can_reclaim(&memory).err());
    let mut hog = cold_hog(&pod, &disk, 48);
    let before = memory.read().unwrap();
    let asked = before.inactive_file + before.active_file;
    let given = reclaim::reclaim(&memory, asked, Instant::now() + TIMEOUT).unwrap();
    assert!(given.usage() > 12 * MIB, "{given:?}");
    assert!(
        given.after.usage > 20 * MIB,
        "what is in use stays: {given:?}"
    );
    assert!(hog.is_alive());
    let detail = format!("{} of {} MiB", given.usage() / MIB, given.requested / MIB);
    matrix("memory.reclaim", "reclaim", &detail);
}

// R46: a pod that is throttled does not grow, and goes on when it is let go.
#[test]
fn a_throttle_stops_growth_until_it_is_released() {
    skip_if!(no_v2());
    let state = tempfile::tempdir().unwrap();
    let (_scope, pod) = TestCgroup::with_pod("brake", 256 * MIB);
    let memory = MemoryCgroup::open(&pod).unwrap();
    let mut hog = Hog::start(&pod, &["--mib", "120", "--head", "40", "--wait"]).unwrap();
    hog.go().unwrap();
    assert!(until(TIMEOUT, || memory.usage().unwrap() >= 40 * MIB));
    let throttles = ThrottleList::open(state.path()).unwrap().0;
    let throttle = throttles
        .set("pod", &memory, || true)
        .unwrap()
        .expect("a throttle");
    assert_eq!(high(&pod), throttle.high.to_string());
    hog.go().unwrap();
    let events = || fs::read_to_string(pod.join("memory.events")).unwrap();
    let is_held = || {
        let events = events();
        let high = events.lines().find_map(|l| l.strip_prefix("high "));
        high.is_some_and(|n| n.trim() != "0")
    };
    assert!(until(TIMEOUT, is_held), "{}", events());
    std::thread::sleep(Duration::from_secs(2));
    let braked = memory.usage().unwrap();
    assert!(braked < 110 * MIB, "it grows on: {} MiB", braked / MIB);
    assert_eq!(throttles.release(|_| true).len(), 1);
    assert_eq!(high(&pod), "max");
    assert!(
        until(TIMEOUT, || memory.usage().unwrap() >= 119 * MIB),
        "it does not go on"
    );
    let detail = format!(
        "held at {} MiB, limit {} MiB",
        braked / MIB,
        throttle.high / MIB
    );
    matrix("memory.high", "brake", &detail);
}

/// An agent with both steps, a pod for cold page cache, and one that takes the room.
fn node(name: &str, grace: &str) -> Files {
    let pod = |name: &str| json!({ "name": name, "cgroup": format!("besteffort/{name}") });
    let mut files = Files::of(name, 160, &json!([pod("cold"), pod("greedy")]));
    files.config["evictionHard"] = json!({ "memory.available": "16Mi" });
    files.config["evictionSoft"] = json!({ "memory.available": "100Mi" });
    files.config["evictionSoftGracePeriod"] = json!({ "memory.available": grace });
    // Which hook sees memory does not matter here, and programs take seconds to load in a guest.
    files.config["memoryHook"] = json!("sampler");
    files.config["graduatedAction"] = json!({ "reclaim": {}, "throttle": { "timeLimit": "1h" } });
    files
}

fn steps(files: &Files) -> Vec<MitigationRecord> {
    records_of!(files.records(), Record::Mitigated(step) => step)
}

fn step(files: &Files, name: &str) -> MitigationRecord {
    let find = || steps(files).into_iter().find(|step| step.step == name);
    let found = wait_for(TIMEOUT, find);
    found.unwrap_or_else(|| panic!("no {name}: {:?}", files.records()))
}

// R46: by the agent as a process: step after step, each written down, and no pod is evicted while there is time.
#[test]
fn the_steps_come_in_their_order_and_end_with_the_pressure() {
    skip_if!(no_v2());
    let files = node("steps", "1h");
    skip_if!(reclaim::can_reclaim(&MemoryCgroup::open(&files.cgroup("cold")).unwrap()).err());
    let disk = or_skip!(Disk::new("ext4", 96, 4096));
    let _cold = cold_hog(&files.cgroup("cold"), &disk, 48);
    let _agent = files.start(&[]);
    let greedy = files.hog("greedy", &["--mib", "60"]);
    let reclaim = step(&files, "reclaim");
    let cold = reclaim
        .pods
        .iter()
        .find(|pod| pod.name == "cold")
        .expect("the cold pod");
    // The kernel may give a little more than it was asked for.
    assert!(cold.usage_given > 8 * MIB && cold.asked > 0, "{reclaim:?}");
    let throttle = step(&files, "brake");
    // First in the order of eviction; how many more there are is the configuration's.
    assert_eq!(throttle.pods[0].name, "greedy", "{throttle:?}");
    assert_eq!(
        high(&files.cgroup("greedy")),
        throttle.pods[0].high.unwrap().to_string()
    );
    drop(greedy);
    let release = step(&files, "release");
    assert_eq!(release.pods.len(), throttle.pods.len());
    assert!(
        release.available_after > release.available_before,
        "{release:?}"
    );
    assert_eq!(high(&files.cgroup("greedy")), "max");
    let names: Vec<_> = steps(&files).into_iter().map(|step| step.step).collect();
    assert_eq!(names, ["reclaim", "brake", "release"]);
    let records = files.records();
    assert!(records_of!(records, Record::Requested(_) | Record::Evicted(_)).is_empty());
}

// R46, R47: shadow mode gives back what was lowered before it; an agent that is killed leaves no pod throttled once the next
// one has started; one that ends leaves none.
#[test]
fn no_pod_stays_throttled_in_shadow_mode_or_after_the_agent() {
    skip_if!(no_v2());
    let mut files = node("crash", "1h");
    files.config["graduatedAction"] = json!({ "throttle": { "pods": 1, "timeLimit": "1h" } });
    let pod = files.cgroup("greedy");
    let agent = files.start(&[]);
    let greedy = files.hog("greedy", &["--mib", "80"]);
    step(&files, "brake");
    assert_ne!(high(&pod), "max");
    files.change("shadow", json!(true));
    assert!(until(TIMEOUT, || high(&pod) == "max"), "{}", agent.log());
    files.change("shadow", json!(false));
    assert!(until(TIMEOUT, || high(&pod) != "max"), "it is braked again");
    agent.kill();
    assert_ne!(high(&pod), "max");
    drop(greedy);
    let mut agent = files.start(&[]);
    assert_eq!(high(&pod), "max", "the next start lets it go");
    let _greedy = files.hog("greedy", &["--mib", "80"]);
    assert!(until(TIMEOUT, || high(&pod) != "max"), "it is braked again");
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert_eq!(high(&pod), "max", "the end lets it go");
}

// R46: refused in clear words, and the eviction comes as it would have.
#[test]
fn version_1_refuses_the_steps_and_evicts_as_usual() {
    skip_if!(not_root());
    let v2 = memory_root().is_none_or(|(_, version)| version == Version::V2);
    skip_if!(v2.then_some("this machine has no cgroup v1"));
    let files = node("stepsv1", "1s");
    let memory = MemoryCgroup::open(&files.cgroup("cold")).unwrap();
    assert!(reclaim::can_reclaim(&memory).is_err());
    assert!(throttle::can_throttle(&memory).is_err());
    let _agent = files.start(&[]);
    let _greedy = files.hog("greedy", &["--mib", "90"]);
    let is_requested = || !records_of!(files.records(), Record::Requested(_)).is_empty();
    assert!(until(TIMEOUT, is_requested), "{:?}", files.records());
    assert!(steps(&files).is_empty());
}

// R47: shadow mode speaks of the steps and takes none.
#[test]
fn shadow_takes_no_step() {
    skip_if!(no_v2());
    let files = node("stepsshadow", "1h");
    let agent = files.start(&["--shadow"]);
    let _greedy = files.hog("greedy", &["--mib", "90"]);
    let speaks = || {
        agent
            .log()
            .contains("shadow mode: this step would be taken")
    };
    assert!(until(TIMEOUT, speaks), "{}", agent.log());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(high(&files.cgroup("greedy")), "max");
    assert!(steps(&files).is_empty());
}
