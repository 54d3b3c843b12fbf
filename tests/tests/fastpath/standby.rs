//! Where the fast path is woken and does not come, the standby thread decides on the CPU that charges.

use evictd_node::trigger::hook::HookUnavailable;
use evictd_tests::{
    cpus::{self, Obstacle},
    node::{Options, Watched, standby_thread},
    prelude::*,
    skip::no_realtime,
};

/// MiB of a node, of which 100 have to stay available.
const NODE: u64 = 384;
/// What a hog takes while that does no harm: near enough that the per-page hook is attached on the slowest machine.
const HEAD: &str = "278";

/// A node with one pod.
struct Stage {
    node: Node,
    pod: PathBuf,
    watched: Watched,
}

/// `Err`: the hook is refused here.
fn stage(name: &str, hook: MemoryHook) -> Result<Stage, HookUnavailable> {
    let mut node = Node::new(name, NODE).unwrap();
    let pod = node.best_effort("hog");
    let watched = node.watch(Options::on(hook)).unwrap()?;
    Ok(Stage { node, pod, watched })
}

impl Stage {
    /// A hog on one CPU, a few MiB before the threshold.
    fn hog(&self, cpu: usize) -> Hog {
        let arguments = ["--mib", "380", "--head", HEAD, "--wait"];
        let mut hog = Hog::start(&self.pod, &arguments).unwrap();
        cpus::tie(hog.pid(), &[cpu]).unwrap();
        hog.take_head().unwrap();
        // The fast path has looked at it, and a hook that comes and goes is there.
        std::thread::sleep(Duration::from_millis(300));
        hog
    }

    /// Ties the fast path to a CPU and takes that CPU from it.
    fn hold_up(&self, cpu: usize) -> Obstacle {
        let fastpath = self.watched.tid();
        cpus::tie(fastpath.unsigned_abs(), &[cpu]).unwrap();
        // Where it was preempted in the middle of a look it has the monitor, and no other thread can decide.
        let obstacle = wait_for(SOON, || {
            let obstacle = Obstacle::on(cpu).unwrap();
            cpus::is_asleep(fastpath).then_some(obstacle)
        });
        obstacle.expect("a fast path that sleeps")
    }
}

/// The fast path is tied to one CPU, which a busy thread holds; the hog crosses on another one.
fn stands_in(hook: MemoryHook) {
    let stage = or_skip!(stage("standby", hook));
    let cpus = cpus::allowed();
    let watched = &stage.watched;
    let fastpath = watched.tid().unsigned_abs();
    let standby = standby_thread().expect("a standby thread");
    for (round, (taken, free)) in [(cpus[0], cpus[1]), (cpus[1], cpus[0])]
        .into_iter()
        .enumerate()
    {
        // The CPU that is taken has no time for a test.
        cpus::tie(0, &[free]).unwrap();
        let mut hog = stage.hog(free);
        let obstacle = stage.hold_up(taken);
        hog.go().unwrap();
        let evicted = watched.evicted(SOON);
        let (late, came) = (cpus::of(watched.tid()), cpus::of(standby));
        hog.killed();
        drop(obstacle);
        let evicted = evicted.expect("an eviction without the fast path");
        assert!(evicted.available < evicted.threshold);
        assert_eq!(evicted.hook, hook);
        assert_eq!(watched.take_overs(), round as u64 + 1);
        assert_eq!((late, came), (Some(taken), Some(free)));
        // The fast path goes on with what the standby thread has begun.
        watched.finished(SOON).expect("its end");
        cpus::tie(fastpath, &cpus).unwrap();
        cpus::tie(0, &cpus).unwrap();
    }
    assert_eq!(stage.node.cgroup.oom_kills().unwrap(), 0);
    matrix(
        "memory.available",
        &hook.to_string(),
        "decides where the fast path cannot run",
    );
}

// R14
#[test]
fn where_the_fast_path_cannot_run_the_standby_decides() {
    skip_if!(no_bpf());
    skip_if!(no_realtime());
    skip_if!((cpus::allowed().len() < 2).then_some("one CPU: no thread could be anywhere else"));
    let _alone = alone();
    let hooks = MemoryHook::BY_PREFERENCE.into_iter();
    let with_programs = hooks.filter(|hook| hook.has_program());
    with_programs.for_each(stands_in);
}

/// The crossing is slow: the standby thread finds it not urgent. What makes it urgent comes when no trigger is left to
/// trip.
// R14
#[test]
fn the_standby_looks_again_as_long_as_the_fast_path_does_not_come() {
    skip_if!(no_bpf());
    skip_if!(no_realtime());
    skip_if!((cpus::allowed().len() < 2).then_some("one CPU: no thread could be anywhere else"));
    let _alone = alone();
    let mut node = Node::new("again", NODE).unwrap();
    let (calm, growing) = (node.best_effort("calm"), node.best_effort("growing"));
    let hook = MemoryHook::Tracepoint;
    let watched = or_skip!(node.watch(Options::on(hook)).unwrap());
    let stage = Stage {
        node,
        pod: growing,
        watched,
    };
    let cpus = cpus::allowed();
    let (taken, free) = (cpus[0], cpus[1]);
    cpus::tie(0, &[free]).unwrap();
    let arguments = ["--mib", "290", "--head", HEAD, "--wait", "--rate", "4"];
    let mut slow = Hog::start(&calm, &arguments).unwrap();
    slow.take_head().unwrap();
    let mut fast = Hog::start(&stage.pod, &["--mib", "150", "--wait"]).unwrap();
    let obstacle = stage.hold_up(taken);
    slow.go().unwrap();
    let is_called = until(SOON, || stage.watched.take_overs() > 0);
    fast.go().unwrap();
    let evicted = stage.watched.evicted(SOON);
    drop(obstacle);
    cpus::tie(stage.watched.tid().unsigned_abs(), &cpus).unwrap();
    cpus::tie(0, &cpus).unwrap();
    assert!(is_called, "the standby thread was not called");
    let evicted = evicted.expect("an eviction without the fast path");
    assert!(evicted.urgency.is_urgent(), "{evicted:?}");
    assert_eq!(stage.node.cgroup.oom_kills().unwrap(), 0);
}

/// A thread that goes before the wake threads is no obstacle: the fast path comes by itself.
// R14
#[test]
fn a_hog_with_real_time_priority_is_evicted_as_well() {
    skip_if!(no_bpf());
    skip_if!(no_realtime());
    skip_if!((cpus::allowed().len() < 2).then_some("one CPU, and the hog has it"));
    let _alone = alone();
    let stage = or_skip!(stage("realtime", MemoryHook::Tracepoint));
    let mut hog = stage.hog(cpus::allowed()[0]);
    cpus::make_fifo(hog.pid(), cpus::BEFORE_THE_AGENT).unwrap();
    hog.go().unwrap();
    let evicted = stage.watched.evicted(SOON).expect("an eviction");
    assert!(evicted.available > 0 && evicted.available < evicted.threshold);
    hog.killed();
    assert_eq!(stage.node.cgroup.oom_kills().unwrap(), 0);
}

/// A hook without a program cannot tell on which CPU a crossing happens.
#[test]
fn a_hook_without_a_program_has_no_standby() {
    skip_if!(not_root());
    skip_if!(no_realtime());
    let _alone = alone();
    let stage = or_skip!(stage("alone", MemoryHook::Sampler));
    assert!(standby_thread().is_none());
    let mut hog = Hog::start(&stage.pod, &["--mib", "380", "--rate", "50"]).unwrap();
    assert!(stage.watched.evicted(SOON).is_some());
    assert!(until(SOON, || !hog.is_alive()));
}
