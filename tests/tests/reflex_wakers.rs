//! The reflex is brought to the CPU on which a threshold is crossed.

use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use evictd::{
    engine::QosClass, kernel::ladder::MemoryHook, observe::cgroup::MemoryCgroup,
    reflex::thread::probe_realtime,
};
use evictd_tests::{
    cpus,
    hog::Hog,
    node::{Node, Options, Watched},
    skip::{matrix, no_bpf},
    skip_if,
};

const SOON: Duration = Duration::from_secs(60);
/// Wakers are told apart by their names: one reflex at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Without that there is no waker.
fn no_realtime() -> Option<String> {
    probe_realtime().map(|error| format!("SCHED_FIFO: {error}"))
}

/// The CPU that a thread of this process runs on, or ran on last: field 39 of proc(5)'s stat.
fn cpu_of(thread: i32) -> usize {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[36].parse().unwrap()
}

/// How often the waker of a CPU has gone back to sleep.
fn sleeps_of_the_waker(cpu: usize) -> u64 {
    let name = format!("waker/{cpu}\n");
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let waker = tasks
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == name))
        .expect("a waker");
    let status = fs::read_to_string(waker.join("status")).unwrap();
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// A hog on one CPU is evicted: whether that woke the waker there, and the reflex decided there.
fn comes_to(cpu: usize, pod: &Path, watched: &Watched) -> bool {
    let mut hog = Hog::start(pod, &["--mib", "380", "--wait"]).unwrap();
    cpus::pin(hog.pid(), cpu).unwrap();
    let before = sleeps_of_the_waker(cpu);
    hog.go().unwrap();
    let evicted = watched.evicted(SOON).expect("an eviction");
    let came = cpu_of(watched.tid()) == cpu && sleeps_of_the_waker(cpu) > before;
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    watched.finished(SOON).expect("its end");
    came && evicted.hook == watched.hook
}

/// On each CPU in turn: the reflex stays where it was, unless somebody brings it. A look that was due just then may be first,
/// wherever that is.
fn comes_on(hook: MemoryHook) {
    let mut node = Node::new("wakers", 384).unwrap();
    let pod = node.pod("hog", QosClass::BestEffort, 0, 0).unwrap();
    let options = Options {
        hook: Some(hook),
        ..Options::default()
    };
    let watched = match node.watch(options).unwrap() {
        Ok(watched) => watched,
        Err(refused) => return skip_if!(Some(refused)),
    };
    for cpu in cpus::allowed().into_iter().take(2) {
        assert!(
            (0..10).any(|_| comes_to(cpu, &pod, &watched)),
            "nobody brings it to the CPU {cpu}"
        );
    }
    matrix(
        "memory.available",
        &hook.to_string(),
        "decides where the threshold was crossed",
    );
}

// R14
#[test]
fn the_reflex_comes_to_whoever_crosses() {
    skip_if!(no_bpf());
    skip_if!(no_realtime());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for hook in [
        MemoryHook::Tracepoint,
        MemoryHook::Fexit,
        MemoryHook::Kprobe,
    ] {
        comes_on(hook);
    }
}

/// Whoever goes before the wakers is no obstacle: the reflex is woken elsewhere.
// R14
#[test]
fn a_hog_with_real_time_priority_is_evicted_as_well() {
    skip_if!(no_bpf());
    skip_if!(no_realtime());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    skip_if!((cpus::allowed().len() < 2).then_some("one CPU, and the hog has it"));
    let mut node = Node::new("realtime", 384).unwrap();
    let pod = node.pod("hog", QosClass::BestEffort, 0, 0).unwrap();
    let options = Options {
        hook: Some(MemoryHook::Tracepoint),
        ..Options::default()
    };
    let watched = match node.watch(options).unwrap() {
        Ok(watched) => watched,
        Err(refused) => return skip_if!(Some(refused)),
    };
    let mut hog = Hog::start(&pod, &["--mib", "4096", "--wait"]).unwrap();
    cpus::pin(hog.pid(), cpus::allowed()[0]).unwrap();
    cpus::make_fifo(hog.pid(), 60).unwrap();
    hog.go().unwrap();
    let evicted = watched.evicted(SOON).expect("an eviction");
    assert!(evicted.available > 0 && evicted.available < evicted.threshold);
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    let scope = MemoryCgroup::open(node.cgroup.path()).unwrap();
    assert_eq!(scope.oom_kills().unwrap(), 0);
}
