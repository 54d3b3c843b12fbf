//! The readers on recorded trees: cgroup v1 from a real node (kernel 6.18, kubelet 1.36), against what the kubelet of
//! that node said within the same second; cgroup v2 with systemd's names from kernel 6.1.

use evictd_node::{
    cgroup::memory::Version,
    pods::cgroup_name,
    proc::{machine::memory_total, psi::Psi},
};
use evictd_tests::{
    cgroup::{descendants, oom_kills_of_machine},
    prelude::*,
};

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}

fn summary() -> Value {
    let text = fs::read_to_string(recordings().join("kubelet/summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

// R2
#[test]
fn working_sets_are_the_kubelets() {
    let root = recordings().join("cgroup-v1/memory/kubepods");
    let dirs = descendants(&root).unwrap();
    let mut compared = 0;
    for pod in summary()["pods"].as_array().unwrap() {
        let uid = pod["podRef"]["uid"].as_str().unwrap();
        let dir = dirs
            .iter()
            .find(|d| cgroup_name::parse(d).is_some_and(|p| p.uid == uid && p.container.is_none()))
            .unwrap_or_else(|| panic!("no cgroup of {uid}"));
        let cgroup = MemoryCgroup::open(dir).unwrap();
        assert_eq!(cgroup.version(), Version::V1);
        let reading = cgroup.read().unwrap();
        let said = &pod["memory"];
        assert_eq!(reading.usage, said["usageBytes"], "{uid}");
        assert_eq!(reading.working_set(), said["workingSetBytes"], "{uid}");
        compared += 1;
    }
    assert_eq!(compared, 4);
}

// R2: the node's capacity is MemTotal, its working set that of the root cgroup.
#[test]
fn the_pods_cgroup_has_a_limit_and_the_root_has_none() {
    let memory = recordings().join("cgroup-v1/memory");
    let kubepods = MemoryCgroup::open(&memory.join("kubepods")).unwrap();
    let pods = &summary()["node"]["systemContainers"][0]["memory"];
    let capacity = kubepods.limit().unwrap().expect("kubepods has a limit");
    let said = pods["availableBytes"].as_u64().unwrap() + pods["workingSetBytes"].as_u64().unwrap();
    assert_eq!(capacity, said);
    let burstable = MemoryCgroup::open(&memory.join("kubepods/burstable")).unwrap();
    assert_eq!(burstable.limit().unwrap(), None);
    assert_eq!(kubepods.oom_kills().unwrap(), 0);
}

/// The v2 pod of the recording, and the number that a file of it holds.
fn v2(path: &str) -> PathBuf {
    recordings().join("cgroup-v2").join(path)
}

fn number_in(path: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    line.trim().parse().unwrap()
}

// R2
#[test]
fn v2_working_sets_leave_inactive_file_out() {
    let root = v2("kubepods.slice");
    let mut pods = 0;
    for dir in descendants(&root).unwrap() {
        let cgroup = MemoryCgroup::open(&dir).unwrap();
        assert_eq!(cgroup.version(), Version::V2);
        let reading = cgroup.read().unwrap();
        let usage = number_in(&dir.join("memory.current"), "");
        let inactive = number_in(&dir.join("memory.stat"), "inactive_file ");
        assert!(inactive > 0, "the recording has page cache");
        assert_eq!((reading.usage, reading.inactive_file), (usage, inactive));
        assert_eq!(reading.working_set(), usage - inactive);
        assert_eq!(cgroup.oom_kills().unwrap(), 0);
        if let Some(pod) = cgroup_name::parse(&dir) {
            assert_eq!(pod.qos, QosClass::Burstable);
            assert_eq!(pod.uid, "027b1a11-f972-4ec6-943f-db9a81fa1086");
            pods += 1;
        }
    }
    assert_eq!(pods, 2, "the pod and its container");
    let kubepods = MemoryCgroup::open(&root).unwrap();
    assert_eq!(kubepods.limit().unwrap(), Some(512 << 20));
}

// R2: v2's root has no memory.current; the kubelet takes anon + file.
#[test]
fn the_v2_root_is_read_from_its_statistics() {
    let root = MemoryCgroup::open(&v2("")).unwrap();
    let stat = v2("memory.stat");
    let expected = number_in(&stat, "anon ") + number_in(&stat, "file ");
    assert_eq!(root.usage().unwrap(), expected);
    assert_eq!(root.read().unwrap().usage, expected);
    assert_eq!(root.limit().unwrap(), None);
    assert_eq!(memory_total(&v2("proc")).unwrap(), 995_372 * 1024);
    assert_eq!(oom_kills_of_machine(&v2("proc")).unwrap(), 0);
}

#[test]
fn classes_are_in_the_names() {
    let root = recordings().join("cgroup-v1/memory/kubepods");
    let mut classes: Vec<_> = descendants(&root)
        .unwrap()
        .iter()
        .filter_map(|d| cgroup_name::parse(d))
        .filter(|p| p.container.is_none())
        .map(|p| p.qos)
        .collect();
    classes.sort();
    use QosClass::{BestEffort, Burstable, Guaranteed};
    assert_eq!(classes, [BestEffort, BestEffort, Burstable, Guaranteed]);
}

#[test]
fn pressure_files_of_a_real_kernel_are_read() {
    let dir = recordings().join("cgroup-v1/proc/pressure");
    for file in ["cpu", "io", "memory"] {
        let pressure = Psi::read(&dir.join(file)).unwrap();
        assert!(
            pressure.some <= 100.0 && pressure.full.is_some(),
            "{file}: {pressure:?}"
        );
    }
    let missing = Psi::read(&dir.join("irq")).unwrap_err().to_string();
    assert!(missing.contains("irq"), "the path is named: {missing}");
}

#[test]
fn a_missing_cgroup_is_named() {
    for (path, words) in [
        (
            "memory/kubepods/nobody",
            "kubepods/nobody: No such file or directory (os error 2)",
        ),
        ("pids", "memory.usage_in_bytes"),
    ] {
        let error = MemoryCgroup::open(&recordings().join("cgroup-v1").join(path));
        has(&error.unwrap_err().to_string(), &[words]);
    }
}
