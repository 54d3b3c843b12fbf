//! The agent's own cgroup may be at its limit: the deciding thread takes no memory of the kernel's that counts there.
//! It would have to wait until another task's page is written out, or be killed for want of one.

use evictd_node::cgroup::memory::Version;
use evictd_tests::{
    node::{Options, standby_thread},
    prelude::*,
    tracefs::Instance,
};

/// Whatever hands out memory; older kernels have four of them for the first two. What is charged says so: the cache is
/// an accounted one, or the flags ask for it.
const EVENTS: [&str; 5] = [
    "kmem/kmalloc",
    "kmem/kmem_cache_alloc",
    "kmem/kmalloc_node",
    "kmem/kmem_cache_alloc_node",
    "kmem/mm_page_alloc",
];

fn is_charged(line: &str) -> bool {
    line.contains("_ACCOUNT") || line.contains("accounted=true")
}

/// Where the memory of a thread of this process counts, as the kernel tells it: `11:memory:/` on v1.
fn memory_cgroup(tid: i32) -> String {
    let cgroups = fs::read_to_string(format!("/proc/self/task/{tid}/cgroup")).unwrap();
    let memory = cgroups.lines().find_map(|line| line.split_once(":memory:"));
    memory.map(|(_, path)| path.to_owned()).unwrap()
}

/// Why the threads cannot leave their cgroup, if that is what they have to do: a container may see a part of the
/// hierarchy.
fn root_is_hidden(cgroup: &TestCgroup) -> Option<&'static str> {
    let mut above = cgroup.path().ancestors();
    let mut is_seen = || above.any(|dir| dir.join("release_agent").exists());
    (cgroup.version() == Version::V1 && !is_seen())
        .then_some("the root of v1's memory hierarchy is not here")
}

/// From the last spin window to the return of the memory, on one hook.
fn evicts_without_being_charged(hook: MemoryHook) {
    let _alone = alone();
    let mut node = Node::new(&format!("charge-{hook}"), 384).unwrap();
    skip_if!(root_is_hidden(&node.cgroup));
    let pod = node.best_effort("hog");
    node.pod("calm", QosClass::Guaranteed, 0, 0);
    let watched = or_skip!(node.watch(Options::on(hook)).unwrap());
    let mut hog = Hog::start(&pod, &["--mib", "380", "--head", "250", "--wait"]).unwrap();
    hog.take_head().unwrap();
    // Until a program is attached, if it is one.
    std::thread::sleep(Duration::from_millis(500));
    let trace = or_skip!(Instance::new(&format!("charges-{hook}")));
    let deciders: Vec<_> = [Some(watched.tid()), standby_thread()]
        .into_iter()
        .flatten()
        .collect();
    let filters: Vec<_> = deciders
        .iter()
        .map(|tid| format!("common_pid == {tid}"))
        .collect();
    let enabled = EVENTS.map(|event| trace.enable(event, &filters.join(" || ")).unwrap());
    assert!(enabled.contains(&true), "none of {EVENTS:?} is here");
    hog.go().unwrap();
    watched.evicted(SOON).expect("an eviction");
    watched.finished(SOON).expect("its end");
    let text = trace.text().unwrap();
    hog.killed();
    assert_eq!(node.cgroup.oom_kills().unwrap(), 0);
    let charged: Vec<_> = text.lines().filter(|line| is_charged(line)).collect();
    let seen = text.lines().any(|line| !line.starts_with('#'));
    assert!(seen, "a kill takes memory of the kernel's");
    match node.cgroup.version() {
        // A pidfd for each process of the pod: the file that it is, and on newer kernels its inode and its name. To
        // list the processes afresh takes a page (`seq_read_iter`).
        Version::V2 => {
            let is_of_kill = |line: &&&str| {
                let sites = [
                    "alloc_empty_file",
                    "alloc_inode",
                    "__d_alloc",
                    "pidfd",
                    "anon_inode",
                    "seq_open",
                    "seq_read_iter",
                ];
                sites.iter().any(|site| line.contains(site))
            };
            let others: Vec<_> = charged.iter().filter(|line| !is_of_kill(line)).collect();
            println!("by the kill: {charged:#?}");
            assert!(others.is_empty(), "{others:#?}");
        }
        // To see afresh which processes are in a pod takes a page there, and a pidfd is a file; both count at the root.
        Version::V1 => {
            for tid in deciders {
                assert_eq!(memory_cgroup(tid), "/");
            }
            assert!(!charged.is_empty(), "{text}");
        }
    }
    matrix("memory.available", &hook.to_string(), "own-limit");
}

scenes! {
    // R14, R40
    fn fexit_sees_each_charge() unless not_root() => evicts_without_being_charged(MemoryHook::Fexit);
    // R14, R40
    fn a_kprobe_sees_each_charge() unless not_root() => evicts_without_being_charged(MemoryHook::Kprobe);
    // R14, R40
    fn a_tracepoint_sees_each_charge() unless not_root() => evicts_without_being_charged(MemoryHook::Tracepoint);
    // R14, R40
    fn an_eventfd_sees_each_charge() unless not_root() => evicts_without_being_charged(MemoryHook::Eventfd);
    // R14, R40
    fn the_sampler_sees_each_charge() unless not_root() => evicts_without_being_charged(MemoryHook::Sampler);
}
