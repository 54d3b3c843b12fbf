//! A loop that does not go on is named by a probe, and holds up no other one.

use evictd_tests::{prelude::*, scrape::get, stalled::Stalled};

/// Longer than the longest limit of a loop.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Stalls the thread until a probe names the loop, has it go on, and a pod is evicted meanwhile.
fn stall(node: &str, (thread, name): (&str, &str), probe: &str) {
    let mut files = Files::of_hog_and_calm(node, 256);
    let health = listen(&mut files.config, "healthAddress");
    let agent = files.start(&[]);
    let says = |what: &str| until(TIMEOUT, || get(&health, probe).unwrap().contains(what));
    assert!(is_ready(&health));
    let stalled = Stalled::new(agent.pid(), thread).unwrap();
    let mut hog = files.hog("hog", &["--mib", "1000", "--rate", "400"]);
    hog.killed();
    // The main thread writes the record.
    assert!(thread == "manager" || files.records().is_empty());
    assert!(says(&format!("the {name} has not run for ")));
    begins(&get(&health, "/readyz").unwrap(), "HTTP/1.1 503");
    let is_alive = get(&health, "/healthz").unwrap().contains("200 OK");
    assert_eq!(is_alive, probe != "/healthz");
    drop(stalled);
    assert!(says("200 OK"), "it lives again");
    let evictions = || files.evictions().len();
    assert!(until(TIMEOUT, || evictions() == 1));
    drop(agent);
    assert_eq!(evictions(), 1, "once");
}

/// Waits until each loop has run a cycle: a thread has its name only once it runs.
fn is_ready(health: &str) -> bool {
    until(TIMEOUT, || {
        get(health, "/readyz").unwrap().contains("200 OK")
    })
}

scenes! {
    fn a_stalled_main_thread_stops_no_eviction() unless not_root() => stall("stallmain", ("evictd", "async loop"), "/healthz");
    // Another agent would hang where this one hangs: it is not ready, and stays.
    fn a_stalled_manager_stops_no_eviction_for_memory() unless not_root() => stall("stallmanager", ("manager", "manager"), "/readyz");
}

#[test]
fn a_stalled_manager_holds_up_no_end() {
    let mut files = as_root!(Files::of_hog_and_calm("stallend", 256));
    let health = listen(&mut files.config, "healthAddress");
    let agent = files.start(&[]);
    assert!(is_ready(&health));
    let stall = || {
        let _stalled = Stalled::new(agent.pid(), "manager").unwrap();
        agent.ask_to_end().unwrap();
        let log = |line| until(SOON, || agent.log().contains(line));
        assert!(log("the manager thread does not stop"));
        assert!(log("stopped"));
    };
    // A traced thread is gone when its tracer is.
    std::thread::scope(|threads| threads.spawn(stall).join().unwrap());
}

#[test]
fn a_stalled_fast_path_is_named() {
    // The standby may evict in its place, and the kernel's OOM killer may come: only the name matters here.
    let mut files = as_root!(Files::of_hog_and_calm("stallfast", 256));
    let health = listen(&mut files.config, "healthAddress");
    let agent = files.start(&[]);
    let says = |what: &str| until(TIMEOUT, || get(&health, "/healthz").unwrap().contains(what));
    assert!(is_ready(&health));
    let stalled = Stalled::new(agent.pid(), "fastpath").unwrap();
    assert!(says("the fast path has not run for "));
    drop(stalled);
    assert!(says("200 OK"));
}
