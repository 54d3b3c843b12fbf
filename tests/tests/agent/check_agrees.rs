//! `evictd check` against a running agent: both say the same of every hook.

use evictd_tests::{mounts, prelude::*};

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
    let mut files = with_bpf!(Files::of("check", 256, &json!([])));
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
    for (signal, hook) in &attached {
        let found = agent::found(&check, "signals", signal);
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

/// As the agent does: no program for a count that has no threshold, and no other hook in place of a forced one.
#[test]
fn check_follows_the_configuration_in_its_hooks() {
    skip_if!(no_bpf());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let check = |config: Value| {
        fs::write(&path, config.to_string()).unwrap();
        agent::check(&[("--config", &path)])
    };
    let found = check(
        json!({ "filesystems": { "nodefs": dir.path() }, "evictionHard": { "memory.available": "1Mi" } }),
    );
    for name in ["pid.available", "nodefs.inodesFree"] {
        let signal = agent::found(&found, "signals", name);
        assert_eq!(signal["hook"], "sampler", "{signal}");
        assert_eq!(signal["refused"], json!([]), "{signal}");
        let detail = signal["detail"].as_str().unwrap();
        assert!(detail.ends_with("no threshold asks for it"), "{signal}");
    }
    // One that this kernel refuses.
    let memory = agent::found(&found, "signals", "memory.available");
    let refused = memory["refused"][0]["hook"].as_str();
    skip_if!(refused.is_none().then_some("this kernel refuses no hook"));
    let refused = refused.unwrap();
    let found = check(json!({ "memoryHook": refused }));
    assert_eq!(found["usable"], false, "{found:#}");
    let hook = agent::found(&found, "findings", "memory hook");
    assert_eq!(hook["state"], "missing");
    let detail = hook["detail"].as_str().unwrap();
    begins(
        detail,
        &format!("memoryHook: {refused} cannot be used here"),
    );
}

/// Where the agent would pin none, or one whose list of pods is always empty.
#[test]
fn check_says_where_no_guard_outlives_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let shadow = "shadow mode: none is pinned";
    let no_threshold = "without a hard threshold on memory it ends no pod: the kubelet and the OOM killer decide while no agent runs";
    let soft = json!({
        "evictionHard": { "nodefs.available": "1Mi" },
        "evictionSoft": { "memory.available": "1Mi" },
        "evictionSoftGracePeriod": { "memory.available": "1m" },
    });
    let both = json!({ "shadow": true, "evictionHard": { "nodefs.available": "1Mi" } });
    for (config, state, detail) in [
        (json!({ "shadow": true }), "ok", shadow),
        (both, "ok", shadow),
        (soft, "degraded", no_threshold),
        (json!({ "evictionHard": {} }), "degraded", no_threshold),
    ] {
        fs::write(&path, config.to_string()).unwrap();
        let found = agent::finding(&[("--config", &path)], "pinned guard");
        assert_eq!(
            (&found["state"], &found["detail"]),
            (&json!(state), &json!(detail))
        );
    }
    // Otherwise it is the machine's matter.
    for amount in ["1Mi", "1%"] {
        let config = json!({ "evictionHard": { "memory.available": amount } });
        fs::write(&path, config.to_string()).unwrap();
        let found = agent::finding(&[("--config", &path)], "pinned guard");
        let detail = found["detail"].as_str().unwrap();
        assert!(
            !detail.contains(shadow) && !detail.contains("threshold"),
            "{found}"
        );
    }
}

/// A cgroup that counts as the node, with the pods in it.
// R16
#[test]
fn check_looks_at_the_configured_scope() {
    let pods = json!([{ "name": "a", "cgroup": "kubepods.slice/a" }]);
    let mut files = as_root!(Files::of("checkscope", 256, &pods));
    let limited = files.scope().limit_child("kubepods.slice", 128 * MIB);
    limited.unwrap();
    files.config["systemReserved"] = json!({ "memory": "64Mi" });
    let check = agent::check(&[("--config", &files.write().unwrap())]);
    let detail = |list, topic| agent::found(&check, list, topic)["detail"].to_string();
    let sizing = detail("findings", "memory sizing");
    has(&sizing, &["0.12 GiB of 0.25 GiB are allocatable"]);
    let of_pods = detail("signals", "allocatableMemory.available");
    has(&of_pods, &["kubepods.slice with 134217728 bytes"]);
}

/// A soft threshold that the hard one forestalls gives no pod its time. A step leaves it some.
#[test]
fn check_names_a_soft_threshold_that_never_acts() {
    let mut files = as_root!(Files::of("checksoft", 256, &json!([])));
    let of_memory = |amount: &str| json!({ "memory.available": amount });
    files.config["evictionHard"] = of_memory("20Mi");
    files.config["evictionSoft"] = of_memory("20Mi");
    files.config["evictionSoftGracePeriod"] = of_memory("1m");
    let found = agent::finding(&[("--config", &files.write().unwrap())], "soft thresholds");
    has(
        found["detail"].as_str().unwrap(),
        &["memory.available: the soft threshold of 20Mi is not above the hard one of 20Mi"],
    );
    files.config.as_object_mut().unwrap().remove("evictionHard");
    files.config["evictionHardFallback"] = of_memory("10Mi");
    files.config["evictionHardAboveKubelet"] = of_memory("10Mi");
    let found = agent::finding(&[("--config", &files.write().unwrap())], "hard thresholds");
    has(
        found["detail"].as_str().unwrap(),
        &[
            "memory.available<15Mi, ",
            ", as far as halfway to the soft threshold",
        ],
    );
}

/// As the other commands: in the DaemonSet's container no file has to be named.
#[test]
fn check_takes_the_installed_configuration() {
    skip_if!(not_root());
    mounts::on_a_thread(|| {
        let etc = Path::new("/etc");
        let _own = mounts::Mounted::new("tmpfs", etc, None).unwrap();
        fs::create_dir(etc.join("evictd")).unwrap();
        let config = json!({ "evictionHard": { "memory.available": "7Mi" } });
        fs::write(etc.join("evictd/config.yaml"), config.to_string()).unwrap();
        let found = agent::finding(&[], "hard thresholds");
        has(found["detail"].as_str().unwrap(), &["<7Mi"]);
    });
}
