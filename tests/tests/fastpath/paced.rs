//! What is not urgent: one pod once the threshold was met for ten seconds, and ten seconds until the next one. How soon it goes is not
//! measured: these scenes run beside other tests.

use evictd_engine::kubelet_times::MONITORING_INTERVAL_NS;
use evictd_node::proc::machine::has_mglru;
use evictd_tests::{prelude::*, scrape::get};

use crate::scene::{LONG, Limited, MOMENT, Scene, alive, no_room, one_goes, pace_inputs};

/// Active page cache alone brings the kubelet's count below the threshold, and stays: after ten seconds the first pod in the order goes,
/// which has that cache, and no other one.
fn only_the_pod_of_the_cache_goes(way: &str, limited: Limited) {
    skip_if!(has_mglru(Path::new("/sys")).then_some("the kernel keeps this page cache inactive"));
    let mut scene = Scene::new(&format!("pace-{way}-on"), 512, limited);
    let _agent = scene.files.start(&[]);
    let started = monotonic_ns();
    // It fits beside the pods: nothing of it is reclaimed.
    let reads = ["--way", way, "--mib", "1500", "--size", "320"];
    let mut worker = scene.start("worker", &reads);
    assert!(worker.says("done").unwrap());
    scene.disk.sync().unwrap();
    one_goes(&scene.files);
    // It takes its cache along, and the next one would be due after ten seconds.
    std::thread::sleep(Duration::from_secs(12));
    scene.evicts_only(&["worker"]);
    let eviction = scene.files.evictions().remove(0);
    assert!(eviction.stages.signalled - started >= MONITORING_INTERVAL_NS);
    let pace = eviction.pace.unwrap();
    assert!(pace.only_cache && !pace.urgent, "{pace:?}");
    worker.killed();
}

scenes! {
    // R15, R43
    fn cache_that_is_read_and_stays_takes_one_pod() unless no_room() => only_the_pod_of_the_cache_goes("read", Limited::Node);
    // R15, R43
    fn cache_that_is_mapped_and_stays_takes_one_pod() unless no_room() => only_the_pod_of_the_cache_goes("map", Limited::Pods);
}

/// Two looks with ten seconds between them in which the agent was stopped are not ten seconds of a shortage. It is well again at once:
/// it is judged by what its loops do then.
// R43
#[test]
fn an_agent_that_was_stopped_takes_no_pod_for_that_time() {
    skip_if!(no_room());
    let mut scene = Scene::new("pace-stopped", 512, Limited::Node);
    scene.files.config["evictionHard"] = json!({ "memory.available": "450Mi" });
    let health = &listen(&mut scene.files.config, "healthAddress");
    let agent = scene.files.start(&[]);
    std::thread::sleep(MOMENT);
    agent.stop().unwrap();
    std::thread::sleep(Duration::from_secs(11));
    let goes_on = monotonic_ns();
    agent.go_on().unwrap();
    let is_well = || get(health, "/healthz").unwrap().ends_with("ok\n");
    assert!(until(Duration::from_secs(5), is_well));
    one_goes(&scene.files);
    let eviction = scene.files.evictions().remove(0);
    // It had seen the threshold met for two seconds before.
    assert!(eviction.stages.signalled - goes_on >= 5_000_000_000);
    assert!(!eviction.pace.unwrap().urgent);
}

/// So many MiB outside of all pods leave less than the threshold, or than its minimum reclaim asks for: no pod's end can change that.
/// Page cache of the pods would be enough, and is available already.
fn memory_outside_takes_one_pod_at_most(outside: u64, reclaim: &str) {
    let mut scene = Scene::new("pace-outside", 512, Limited::Node);
    scene.files.config["evictionHard"] = json!({ "memory.available": "200Mi" });
    scene.files.config["evictionMinimumReclaim"] = json!({ "memory.available": reclaim });
    let cache = ["--way", "write", "--mib", "40", "--size", "40"];
    let mut worker = scene.start("worker", &cache);
    assert!(worker.says("done").unwrap());
    scene.disk.sync().unwrap();
    let slice = scene.scope.child("system.slice").unwrap();
    let mut daemon = Hog::start(&slice, &["--mib", &outside.to_string()]).unwrap();
    let held = (outside + 155) * MIB;
    assert!(until(LONG, || scene.scope.usage().unwrap() > held));
    let agent = scene.files.start(&[]);
    one_goes(&scene.files);
    assert!(agent.says("no pod may be evicted"));
    std::thread::sleep(Duration::from_secs(12));
    assert!(daemon.is_alive() && worker.is_alive());
    assert_eq!(scene.evicted().len(), 1, "{}", pace_inputs(&scene.files));
    assert_eq!(alive(&mut scene.neighbours), 2);
}

scenes! {
    // R11, R43
    fn memory_outside_of_pods_takes_one_pod_at_most() unless no_room() => memory_outside_takes_one_pod_at_most(325, "0");
    // R11, R43
    fn a_minimum_reclaim_that_no_pod_can_give_takes_one_pod_at_most() unless no_room() => memory_outside_takes_one_pod_at_most(205, "200Mi");
}
