//! `evictd run` as a process: bad input, a clean end, a manifest's pods killed and written down.

use std::process::Child;

use evictd_tests::prelude::*;
use nix::sys::signal::Signal;

/// With one line that has this.
fn assert_refused(files: &Files, expected: &str) {
    let stderr = files.refused();
    let said = stderr.lines().filter(|line| line.starts_with("evictd: "));
    let said: Vec<&str> = said.collect();
    assert_eq!(said.len(), 1, "one line: {stderr}");
    has(said[0], &[expected]);
}

#[test]
fn bad_input_is_refused_with_field_and_reason() {
    let scope = as_root!(TestCgroup::new("bad", 128 * MIB).unwrap());
    scope.child("besteffort/a").unwrap();
    let good = json!([{ "name": "a", "cgroup": "besteffort/a" }]);
    let with = |field: &str, value: Value| {
        let mut files = Files::new(scope.path(), &good);
        files.config[field] = value;
        files
    };
    for [field, value, expected] in rows(
        r#"
        colour | 1 | colour: unknown field
        evictionHard | {memory.available: 200Mi} | evictionHard[memory.available]: 209715200: is not below the capacity of 134217728 bytes
        evictionHard | {memory.available: ten} | evictionHard
        kernelFloor | {memory.available: 64Mi} | kernelFloor.memory.available: "64Mi": must be below the hard threshold, which is 64Mi
        podManifest | /nowhere/pods.json | /nowhere/pods.json: No such file
        memoryHook | telepathy | memoryHook: "telepathy": must be one of
        pods | [{name: a, cgroup: besteffort/a}, {name: b, cgroup: besteffort/b}] | pods[1].cgroup: 
        pods | [{name: a, cgroup: besteffort/a, priority: high}] | pods[0].priority: "high": must be
        pods | [{name: a, cgroup: .}] | pods[0].cgroup: 
        "#,
    ) {
        let files = match field {
            "pods" => Files::new(scope.path(), &yaml(value)),
            field => with(field, yaml(value)),
        };
        assert_refused(&files, expected);
    }
    let absent = with("scope", json!({ "cgroup": scope.path().join("nobody") }));
    assert_refused(&absent, "scope.cgroup: ");

    let files = Files::new(scope.path(), &good);
    fs::write(files.dir().join("pods.json"), "pods: [").unwrap();
    assert_refused(&files, "pods.json: ");
}

#[test]
fn an_unlimited_scope_is_refused() {
    let scope = as_root!(TestCgroup::new("unlimited", 128 * MIB).unwrap());
    let inner = scope.child("besteffort").unwrap();
    let files = Files::new(&inner, &json!([]));
    assert_refused(&files, "has no memory limit");
}

const MESSAGE: &str = "The node was low on resource: memory. Threshold quantity: 64Mi, available: ";

// R18, R42
#[test]
fn a_hog_is_evicted_written_down_and_the_agent_ends_cleanly() {
    let files = as_root!(Files::of_hog_and_calm("run", 256));
    let mut agent = files.start(&[]);
    let mut calm = files.hog("calm", &["--mib", "40"]);
    let mut hog = files.hog("hog", &["--mib", "1000", "--rate", "400"]);
    let records = files.wait_for(2);
    let [Record::Evicted(eviction), Record::Finished(finish)] = &records[..] else {
        panic!("{records:?}");
    };
    let said = [&*eviction.name, &*eviction.reason];
    assert_eq!(said, ["hog", "Evicted"]);
    assert_eq!(eviction.phase.as_deref(), Some("Failed"));
    let rest = eviction.message.strip_prefix(MESSAGE);
    has(
        rest.expect(&eviction.message),
        &["Container hog was using "],
    );
    assert_eq!(finish.id, eviction.id);
    hog.killed();
    assert!(calm.is_alive());
    assert_eq!(agent.terminate().unwrap(), Some(0));
    assert_eq!(files.records().len(), 2, "nothing more happened");
    assert_eq!(files.scope().oom_kills().unwrap(), 0);
}

// R4: one threshold drops all defaults, and a kubelet may have none for memory. The OOM killer is alone with it then.
#[test]
fn without_a_memory_threshold_no_pod_is_evicted_for_memory() {
    let mut files = as_root!(Files::of_hog("nomemory", 128));
    files.config["evictionHard"] = json!({ "pid.available": "1" });
    let agent = files.start(&[]);
    files.until_killed("hog", &["--mib", "256"]);
    assert_eq!(files.scope().oom_kills().unwrap(), 1);
    drop(agent);
    let records = files.records();
    assert!(
        records_of!(&records, Record::Evicted(_)).is_empty(),
        "{records:?}"
    );
}

/// A pod that is deleted and made again, as a restart does, is seen within the refresh.
#[test]
fn a_cgroup_that_comes_back_is_found() {
    let files = with_bpf!(Files::of_hog("again", 256));
    let _agent = files.start(&[]);
    let dir = files.cgroup("hog");
    fs::remove_dir(&dir).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    files.scope().child("besteffort/hog/container").unwrap();
    // Slow enough to be found on its way.
    Hog::until_killed(&dir.join("container"), &["--mib", "1000", "--rate", "60"]);
    assert_eq!(files.wait_for(2).len(), 2);
}

// A pod may be deleted, and its configuration changed, while the agent still loads its programs.
#[test]
fn signals_while_it_starts_are_obeyed() {
    let scope = as_root!(TestCgroup::new("early", 256 * MIB).unwrap());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let files = Files::new(scope.path(), &json!([]));
        let early = |child: &Child| {
            let journal = files.dir().join("state/journal.jsonl");
            let taken = wait_for(Duration::from_secs(30), || journal.exists().then_some(()));
            assert!(taken.is_some(), "it takes no state directory");
            for signal in [Signal::SIGHUP, signal] {
                agent::signal(child, signal).unwrap();
            }
        };
        let ended = files.run_until_it_ends(early);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{:?}: {said}", ended.status);
        assert!(said.contains("stopped"), "{said}");
    }
}

// R1: the threshold of the pods' cgroup follows from memory.available, its capacity is that cgroup's limit.
#[test]
fn the_pods_cgroup_has_a_threshold_of_its_own() {
    skip_if!(not_root());
    let pods = json!([
        { "name": "hog", "cgroup": "kubepods.slice/hog" },
        // It uses more above its request, and its end would not help the pods' cgroup.
        { "name": "calm", "cgroup": "calm" },
    ]);
    let mut files = Files::of("pods", 512, &pods);
    files.config["evictionHard"] = json!({ "memory.available": "25%" });
    let limit = |mib| files.scope().limit_child("kubepods.slice", mib * MIB);
    limit(256).unwrap();
    let _agent = files.start(&[]);
    let mut calm = files.hog("calm", &["--mib", "150"]);
    let mut hog = files.hog("hog", &["--mib", "1000", "--rate", "400"]);
    let records = files.wait_for(2);
    let [Record::Evicted(eviction), Record::Finished(_)] = &records[..] else {
        panic!("{records:?}");
    };
    let said = [&*eviction.name, &*eviction.signal];
    assert_eq!(said, ["hog", "allocatableMemory.available"]);
    assert_eq!(eviction.threshold, 64 * MIB);
    begins(&eviction.message, MESSAGE);
    hog.killed();
    assert!(calm.is_alive());

    // The kubelet starts anew with other reservations: what is watched from the next look on is the new limit. Until
    // then the old threshold or the OOM killer ends the hog.
    limit(192).unwrap();
    let by_the_new_limit = |_| {
        files.until_killed("hog", &["--mib", "1000", "--rate", "400"]);
        std::thread::sleep(Duration::from_millis(300));
        !records_of!(files.records(), Record::Evicted(e) if e.threshold == 48 * MIB).is_empty()
    };
    assert!((0..60).any(by_the_new_limit));
}
