//! `evictd check` against a running agent: both say the same of every hook.

use evictd_tests::prelude::*;

/// The hook of each signal, as the agent's metrics name it.
fn hooks(text: &str) -> BTreeMap<String, String> {
    let label = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        Some(rest.split('"').next()?.to_owned())
    };
    let lines = text.lines().filter(|l| l.starts_with("evictd_hook_info{"));
    lines
        .filter_map(|line| Some((label(line, "signal")?, label(line, "hook")?)))
        .collect()
}

#[test]
fn check_reports_the_hooks_that_the_agent_attaches() {
    skip_if!(no_bpf());
    let mut files = Files::of("check", 256, &json!([]));
    let address = listen(&mut files.config, "metricsAddress");
    files.config["filesystems"] = json!({ "nodefs": files.dir(), "imagefs": files.dir() });
    // A hook is attached for a signal that has a threshold; none of these is met.
    files.config["evictionHard"] = json!({
        "memory.available": "1Mi", "pid.available": "1",
        "nodefs.inodesFree": "1", "imagefs.inodesFree": "1",
    });
    let agent = files.start(&[]);
    let attached = wait_for(Duration::from_secs(30), || {
        let shown = hooks(&metrics(&address).ok()?);
        shown.contains_key("pods").then_some(shown)
    });
    let attached = attached.expect("an agent with metrics");
    drop(agent);

    let check = agent::check(&[("--config", &files.write().unwrap())]);
    let signals = check["signals"].as_array().unwrap();
    for (signal, hook) in &attached {
        let found = signals.iter().find(|s| s["signal"] == signal.as_str());
        let found = found.unwrap_or_else(|| panic!("check says nothing of {signal}: {check:#}"));
        assert_eq!(found["hook"], hook.as_str(), "{signal}: {found:#}");
    }
    let names: Vec<_> = attached.keys().map(String::as_str).collect();
    for expected in [
        "memory.available",
        "nodefs.inodesFree",
        "pid.available",
        "pods",
    ] {
        assert!(names.contains(&expected), "{expected}: {names:?}");
    }
    // A refusal is the kernel's, never a map that is closed too early.
    let text = check.to_string();
    assert!(!text.contains("not pointing to valid bpf_map"), "{text}");
}
