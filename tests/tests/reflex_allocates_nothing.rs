//! The reflex allocates nothing, whatever happens: between two looks, on a crossing, while it decides and kills.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
    time::Duration,
};

use evictd::engine::QosClass;
use evictd_tests::{
    hog::Hog,
    node::{MIB, Node, Options},
    skip::not_root,
    skip_if,
};

/// Counts what one thread asks of the allocator.
struct Counting;

static WATCHED_THREAD: AtomicI32 = AtomicI32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

impl Counting {
    fn note() {
        let watched = WATCHED_THREAD.load(Ordering::Relaxed);
        // SAFETY: no preconditions.
        if watched != 0 && watched == unsafe { libc::gettid() } {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Minor and major page faults of a thread since it exists.
fn faults(tid: i32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // Fields 10 and 12 of proc(5), counted from the state, which is field 3.
    (fields[7].parse().unwrap(), fields[9].parse().unwrap())
}

// R14, R40
#[test]
fn from_wake_up_to_signal_nothing_is_allocated() {
    skip_if!(not_root());
    let mut node = Node::new("alloc", 384).unwrap();
    let pods: Vec<_> = (0..20)
        .map(|i| {
            node.pod(&format!("p{i}"), QosClass::BestEffort, i, 0)
                .unwrap()
        })
        .collect();
    let watched = node.watch(Options::default()).unwrap().unwrap();
    WATCHED_THREAD.store(watched.tid(), Ordering::Relaxed);
    let mut fewest = (u64::MAX, u64::MAX);
    for (round, pod) in pods.iter().take(4).enumerate() {
        let before = (ALLOCATIONS.load(Ordering::Relaxed), faults(watched.tid()));
        let mut hog = Hog::start(pod, &["--mib", "380"]).unwrap();
        let evicted = watched
            .evicted(Duration::from_secs(20))
            .expect("an eviction");
        watched.finished(Duration::from_secs(20)).expect("its end");
        let after = (ALLOCATIONS.load(Ordering::Relaxed), faults(watched.tid()));
        assert_eq!(evicted.pod.pod.name, format!("p{round}"));
        assert!(evicted.working_set > 200 * MIB);
        assert_eq!(
            after.0 - before.0,
            0,
            "calls of the allocator in round {round}"
        );
        let faults = (after.1.0 - before.1.0, after.1.1 - before.1.1);
        println!("round {round}: minor and major page faults {faults:?}");
        fewest = fewest.min(faults);
        assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    }
    // Code that runs for the first time is mapped then, and no round runs quite the same code as the one before; the
    // data it works on never faults.
    assert_eq!(fewest, (0, 0), "page faults of the quietest round");
}
