//! The log of a running agent: its formats, and what the kernel programs write to it.

use evictd_tests::{agent::binary, prelude::*, scrape::get};

/// An agent that is started so, after the eviction of a hog.
fn log_of(name: &str, arguments: &[&str], filter: &str) -> String {
    let files = Files::of_hog_and_calm(name, 256);
    let config = files.write().unwrap();
    let filtered = |command: &mut Command| {
        command.env("EVICTD_LOG", filter);
    };
    let mut agent = Agent::start_as(&config, arguments, filtered).unwrap();
    files.until_killed("hog", &["--mib", "1000"]);
    assert!(agent.says("evicted: "));
    // The lines of the programs are read once a second.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(agent.terminate().unwrap(), Some(0));
    agent.log()
}

#[test]
fn a_filter_that_cannot_be_used_is_told() {
    let mut run = Command::new(binary().unwrap());
    let run = run.args(["run", "--config", "/nowhere.yaml"]);
    let told = run.env("EVICTD_LOG", "info,evictd=5s").output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    let first = said.lines().next().unwrap_or_default();
    has(first, &["WARN", "EVICTD_LOG: \"info,evictd=5s\": "]);
    // The configuration is read all the same.
    has(&said, &["/nowhere.yaml"]);
}

#[test]
fn the_kernel_programs_write_when_the_filter_asks_for_it() {
    let quiet = with_bpf!(log_of("logquiet", &[], "info"));
    assert!(!quiet.contains("evictd_ebpf"), "{quiet}");
    let hook = |log: &str| {
        let line = log.lines().find(|line| line.contains("watching"));
        let hook = line.and_then(|line| line.split_once("hook="));
        hook.and_then(|(_, rest)| rest.split(' ').next().map(str::to_owned))
    };
    let telling = log_of("logkernel", &[], "info,evictd_ebpf=debug");
    assert_eq!(hook(&telling), hook(&quiet), "the same hook");
    let refused = telling.contains("the kernel refuses programs that write to the log");
    skip_if!(refused.then_some("this kernel refuses programs that write to the log"));
    has(&telling, &["evictd_ebpf: slot 0 tripped at "]);
}

#[test]
fn a_line_is_a_json_object_where_that_is_wanted() {
    let log = as_root!(log_of("logjson", &["--log-format", "json"], "info"));
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evicted = |line: &Value| {
        line["message"]
            .as_str()
            .is_some_and(|m| m.starts_with("evicted: "))
    };
    let evicted: Vec<_> = lines.filter(evicted).collect();
    assert_eq!(evicted.len(), 1, "{log}");
    assert_eq!(evicted[0]["pod"], "default/hog");
    assert_eq!(evicted[0]["urgent"], true);
}

/// An agent whose log was told so much that lines of it were dropped, because no line is read any more.
fn fill_log(agent: &Agent, shown: &str) {
    let counter = |name: &str| value(shown, name).unwrap_or_default();
    let reload = || {
        for _ in 0..20 {
            agent.reload().unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let is_full = || {
        reload();
        counter("evictd_log_lines_dropped_total") > 100
    };
    assert!(until(SOON, is_full), "{}", metrics(shown).unwrap());
    // The main thread goes on: it has not written them.
    let refused = || counter("evictd_config_reloads_total{result=\"failure\"}");
    let before = refused();
    let goes_on = || {
        reload();
        refused() > before + 10
    };
    assert!(until(SOON, goes_on), "{before}");
}

// R42
#[test]
fn a_log_that_is_not_read_costs_its_lines_only() {
    let mut files = as_root!(Files::of_hog_and_calm("logunread", 256));
    let health = listen(&mut files.config, "healthAddress");
    let shown = listen(&mut files.config, "metricsAddress");
    let mut agent = files.start(&[]);
    // Each reload is an error of several KiB.
    fs::write(
        files.dir().join("config.json"),
        format!("{}: 1", "x".repeat(4000)),
    )
    .unwrap();
    let unread = agent.unread();
    fill_log(&agent, &shown);
    files.until_killed("hog", &["--mib", "1000"]);
    // The main thread has handed it over, and the thread `journal` has written it.
    assert!(until(SOON, || files.evictions().len() == 1));
    begins(&get(&health, "/healthz").unwrap(), "HTTP/1.1 200");
    // It is read again, and has the lines that waited, and those that come.
    drop(unread);
    let dropped = || value(&shown, "evictd_log_lines_dropped_total");
    let lines = || agent.log().lines().count();
    assert!(until(SOON, || lines() > 1000), "{}", lines());
    let before = dropped();
    files.change("shadow", json!(true));
    assert!(agent.says("has changed and is in force"));
    assert_eq!(dropped(), before);
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert!(agent.says("stopped"), "the last line");
}

#[test]
fn a_log_that_is_not_read_holds_up_no_end() {
    let mut files = as_root!(Files::of_hog_and_calm("logend", 256));
    let shown = listen(&mut files.config, "metricsAddress");
    let config = files.write().unwrap();
    let mut agent = Agent::start(&config, &[]).unwrap();
    fs::write(&config, format!("{}: 1", "x".repeat(4000))).unwrap();
    let unread = agent.unread();
    fill_log(&agent, &shown);
    agent.ask_to_end().unwrap();
    // Not by the reader: what it waits for is held until the process is gone.
    let has_ended = || !Path::new(&format!("/proc/{}/fd/2", agent.pid())).exists();
    assert!(until(SOON, has_ended));
    drop(unread);
    assert_eq!(agent.terminate().unwrap(), Some(0));
}
