//! The fast path allocates nothing, whatever happens: between two looks, on a crossing, while it decides and kills. Nor does its
//! standby thread.

use evictd_node::cgroup::kill::CgroupKiller;
use evictd_tests::{
    counting::{self, Counting},
    cpus::{self, Obstacle},
    node::{Options, Watched, standby_thread},
    prelude::*,
    skip::no_realtime,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Minor and major page faults of a thread since it exists.
fn faults(tid: i32) -> (u64, u64) {
    // Fields of proc(5).
    let faults = |field| cpus::stat(tid, field).unwrap();
    (faults(10), faults(12))
}

/// A node with pods, and the thread that is to decide about them.
struct Stage {
    pods: Vec<PathBuf>,
    watched: Watched,
    decides: i32,
    // Goes last: it is removed.
    _node: Node,
}

impl Stage {
    fn new(thread: impl FnOnce(&Watched) -> Option<i32>) -> Option<Self> {
        let mut node = Node::new("alloc", 384).unwrap();
        let pods = (0..20)
            .map(|i| node.pod(&format!("p{i}"), QosClass::BestEffort, i, 0))
            .collect();
        let watched = node.watched(Options::default());
        let decides = thread(&watched)?;
        counting::watch(decides);
        Some(Self {
            pods,
            watched,
            decides,
            _node: node,
        })
    }

    /// One eviction after the other; `alone` is kept while one of them is on its way.
    fn allocates_nothing<T>(&self, on: &[usize], alone: impl Fn() -> T) {
        let mut fewest = (u64::MAX, u64::MAX);
        for (round, pod) in self.pods.iter().take(4).enumerate() {
            let before = (counting::calls(), faults(self.decides));
            let mut hog = Hog::start(pod, &["--mib", "380", "--head", "250", "--wait"]).unwrap();
            cpus::tie(hog.pid(), on).unwrap();
            hog.take_head().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let kept = alone();
            hog.go().unwrap();
            let evicted = self.watched.evicts(&format!("p{round}"));
            drop(kept);
            self.watched.finished(SOON).expect("its end");
            let after = (counting::calls(), faults(self.decides));
            assert!(evicted.working_set > 200 * MIB);
            let calls = after.0 - before.0;
            assert_eq!(calls, 0, "calls of the allocator in round {round}");
            let faults = (after.1.0 - before.1.0, after.1.1 - before.1.1);
            println!("round {round}: minor and major page faults {faults:?}");
            fewest = fewest.min(faults);
            hog.killed();
        }
        // Code that runs for the first time is mapped then, and no round runs quite the same code as the one before; the
        // data it works on never faults.
        assert_eq!(fewest, (0, 0), "page faults of the quietest round");
    }
}

// R14, R40
#[test]
fn from_wake_up_to_signal_nothing_is_allocated() {
    skip_if!(not_root());
    let _alone = alone();
    let stage = Stage::new(|watched| Some(watched.tid())).unwrap();
    stage.allocates_nothing(&cpus::allowed(), || ());
}

/// The same where the standby thread decides, because the fast path cannot run.
// R14, R40
#[test]
fn nor_by_the_standby() {
    skip_if!(not_root());
    skip_if!(no_realtime());
    let _alone = alone();
    let Some(stage) = Stage::new(|_| standby_thread()) else {
        return skip_if!(Some(
            "no standby thread: one CPU, or a hook without a program"
        ));
    };
    let cpus = cpus::allowed();
    let (taken, free) = (cpus[0], cpus[1]);
    cpus::tie(0, &[free]).unwrap();
    cpus::tie(stage.watched.tid().unsigned_abs(), &[taken]).unwrap();
    stage.allocates_nothing(&[free], || Obstacle::on(taken).unwrap());
}

/// What the fast path does once it is there that a victim takes its time.
// R14
#[test]
fn nor_for_a_victim_that_is_slow_or_stuck() {
    skip_if!(not_root());
    let _alone = alone();
    let cgroup = TestCgroup::new("alloc-slow", 64 * MIB).unwrap();
    let pod = cgroup.child("pod").unwrap();
    let mut member = Hog::start(&pod, &["--mib", "1", "--wait"]).unwrap();
    let killer = CgroupKiller::open(&pod).unwrap();
    counting::watch(nix::unistd::gettid().as_raw());
    let before = counting::calls();
    killer.kill_stuck();
    let calls = counting::calls() - before;
    counting::watch(0);
    member.killed();
    assert_eq!(calls, 0, "calls of the allocator");
}
