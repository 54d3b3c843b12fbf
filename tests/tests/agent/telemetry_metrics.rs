//! `/metrics`, `/healthz` and `/readyz` of a running agent.

use std::{
    collections::HashMap,
    net::{TcpListener, TcpStream},
};

use evictd_tests::{
    deploy::{promtool::promtool, run},
    prelude::*,
    scrape::{self, get},
};
use nix::sys::signal::Signal;

/// Series with their values; comments left out.
fn scrape(address: &str) -> HashMap<String, f64> {
    let text = metrics(address).unwrap();
    begins(&text, "HTTP/1.1 200 OK\r\n");
    has(&text, &["\r\nContent-Type: text/plain; version=0.0.4"]);
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let series = body.lines().filter(|l| !l.starts_with('#'));
    series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

// R48, R44: an eviction in numbers.
#[test]
fn an_eviction_is_counted_and_its_stages_are_timed() {
    let mut files = as_root!(Files::of_hog("metrics", 256));
    let address = &listen(&mut files.config, "metricsAddress");
    let _agent = files.start(&[]);
    assert!(get(address, "/healthz").unwrap().ends_with("\r\n\r\nok\n"));

    // What is shown is as of the last round; it answers before the first one.
    let before = wait_for(Duration::from_secs(20), || {
        let shown = scrape(address);
        (shown["evictd_manager_cycles_total"] > 0.0).then_some(shown)
    });
    let before = before.expect("a first round");
    let capacity = "evictd_signal_capacity{signal=\"memory.available\"}";
    assert_eq!(before[capacity], (256 * MIB) as f64);
    let threshold = "evictd_threshold{signal=\"memory.available\",hard=\"true\"}";
    assert_eq!(before[threshold], (64 * MIB) as f64);
    let condition = "evictd_condition{condition=\"MemoryPressure\"}";
    assert_eq!(before[condition], 0.0);
    let hook = |name: &String| name.starts_with("evictd_hook_info{signal=\"memory.available\"");
    assert_eq!(before.keys().filter(|name| hook(name)).count(), 1);
    let evictions = "evictd_evictions_total{signal=\"memory.available\",shadow=\"false\"}";
    assert_eq!(before[evictions], 0.0, "a rate sees the first eviction");

    files.until_killed("hog", &["--mib", "1000"]);
    let freed = "evictd_stage_seconds_count{stage=\"freed\"}";
    let mut after = HashMap::new();
    until(Duration::from_secs(20), || {
        after = scrape(address);
        after[freed] == 1.0 && after[condition] == 1.0
    });
    assert_eq!(after[evictions], 1.0);
    for stage in ["decide", "signal", "exit", "freed"] {
        let count = format!("evictd_stage_seconds_count{{stage=\"{stage}\"}}");
        assert_eq!(after.get(&count), Some(&1.0), "{stage}");
    }
    assert_eq!(after["evictd_fastpath_events_dropped_total"], 0.0);
    // Its former name.
    assert_eq!(after["evictd_reports_dropped_total"], 0.0);
    let owner =
        "evictd_pod_evictions_total{namespace=\"default\",owner_kind=\"\",shadow=\"false\"}";
    assert_eq!(after[owner], 1.0);
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("evictd_build_info{{version=\"{version}\"}}");
    assert_eq!(after[&build], 1.0);
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1\r\n";
    let text = scrape::ask(address, "GET /metrics", accept, "").unwrap();
    assert!(text.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
    assert!(text.ends_with("# EOF\n"), "{text}");
    // The dip was over before any other component looked.
    assert_eq!(after[condition], 1.0);
}

/// Prometheus' own checker finds no fault with the names, types and texts, of what an eviction adds either.
#[test]
fn promtool_finds_no_fault() {
    skip_if!(not_root());
    skip_if!(promtool().err());
    let mut files = Files::of_hog_and_calm("promtool", 256);
    let address = &listen(&mut files.config, "metricsAddress");
    let _agent = files.start(&[]);
    files.until_killed("hog", &["--mib", "1000"]);
    let text = wait_for(Duration::from_secs(20), || {
        let text = metrics(address).unwrap();
        let counted = "signal=\"memory.available\",shadow=\"false\"} 1\n";
        text.contains(counted).then_some(text)
    });
    let (_, body) = text.as_ref().unwrap().split_once("\r\n\r\n").unwrap();
    let path = files.dir().join("metrics.txt");
    fs::write(&path, body).unwrap();
    let mut check = Command::new(promtool().unwrap());
    let check = check
        .args(["check", "metrics"])
        .stdin(File::open(path).unwrap());
    assert_eq!(run(check).unwrap(), "");
}

/// Connections that say nothing, to either port, keep neither a probe nor a scrape from its answer.
#[test]
fn idle_connections_hold_up_no_probe() {
    let mut files = as_root!(Files::of("idle", 128, &json!([])));
    let metrics = &listen(&mut files.config, "metricsAddress");
    let health = &listen(&mut files.config, "healthAddress");
    let _agent = files.start(&[]);
    let connect = |address: &String| TcpStream::connect(address).unwrap();
    let _idle: Vec<_> = [metrics, health]
        .repeat(40)
        .into_iter()
        .map(connect)
        .collect();
    let within = Duration::from_secs(30);
    let is_ready = || get(health, "/readyz").unwrap().ends_with("ok\n");
    assert!(
        until(within, is_ready),
        "{}",
        get(health, "/readyz").unwrap()
    );
    for path in ["/healthz", "/livez", "/readyz"] {
        let said = get(health, path).unwrap();
        assert!(said.ends_with("\r\n\r\nok\n"), "{path}: {said}");
    }
    assert!(get(health, "/metrics").unwrap().starts_with("HTTP/1.1 404"));
    // For those who have not changed their probes yet.
    assert!(get(metrics, "/healthz").unwrap().ends_with("ok\n"));
    assert!(get(metrics, "/metrics").unwrap().contains("# TYPE "));
}

/// The kubelet does not start it anew, and a rolling update waits.
#[test]
fn an_agent_that_starts_is_alive_but_not_ready() {
    let mut files = as_root!(Files::of("starts", 128, &json!([])));
    let health = &listen(&mut files.config, "healthAddress");
    let early = |child: &std::process::Child| {
        let stream = wait_for(Duration::from_secs(30), || TcpStream::connect(health).ok());
        let mut stream = stream.unwrap();
        // Its programs are still to be loaded, which takes longer than this answer.
        write!(stream, "GET /readyz HTTP/1.1\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        begins(&said, "HTTP/1.1 503");
        assert!(said.ends_with("the start is not complete\n"), "{said}");
        assert!(get(health, "/healthz").unwrap().ends_with("ok\n"));
        agent::signal(child, Signal::SIGTERM).unwrap();
    };
    let ended = files.run_until_it_ends(early);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

/// What the configuration is wrong about is found before any pod can be evicted: the journal would not know of it.
#[test]
fn an_agent_whose_address_is_in_use_evicts_no_pod() {
    skip_if!(not_root());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for field in ["metricsAddress", "healthAddress"] {
        let mut files = Files::of_hog("inuse", 128);
        // Met at the first look, which takes a pod at once.
        files.config["evictionHard"] =
            json!({ "memory.available": "16Mi", "pid.available": "100%" });
        files.config[field] = json!(taken.local_addr().unwrap());
        let mut hog = files.hog("hog", &["--mib", "8"]);
        has(&files.refused(), &[&format!("evictd: {field}: 127.0.0.1:")]);
        assert!(hog.is_alive());
    }
}
