//! The PID readers on the files of a real node, against what its kubelet said in the same second.

use evictd_node::cgroup::pids::of_pod;
use evictd_tests::prelude::*;

fn recorded() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recordings/cgroup-v1")
}

/// `process_count` of each pod in the kubelet's recorded summary, which leaves the sandbox's process out.
const PODS: [(&str, u64); 4] = [
    ("burstable/pod027b1a11-f972-4ec6-943f-db9a81fa1086", 2),
    ("podb6e25454-4f04-4cf4-9969-248433f1c631", 1),
    ("besteffort/pod02912173-53b2-4b86-8bad-a3bb1c1b2fac", 1),
    ("besteffort/podd4ae8de11a3b28dc31b9c89edbd7f90a", 1),
];

// R1, R9
#[test]
fn pods_of_a_recorded_node() {
    for (pod, process_count) in PODS {
        let found = of_pod(&recorded().join("pids/kubepods").join(pod)).unwrap();
        assert_eq!(found.processes, process_count + 1, "{pod}");
        assert_eq!(found.tasks, Some(process_count + 1), "{pod}");
        // Its cgroup of the memory hierarchy is all that an agent is told.
        let told = of_pod(&recorded().join("memory/kubepods").join(pod)).unwrap();
        assert_eq!(told.tasks, found.tasks, "{pod}");
    }
}

#[test]
fn a_pod_that_is_gone_is_an_error_with_its_path() {
    let error = of_pod(&recorded().join("pids/kubepods/podgone")).unwrap_err();
    assert!(error.to_string().contains("podgone"), "{error}");
}

/// A memory hierarchy has no pids files: processes are counted, tasks are unknown.
#[test]
fn without_the_pids_controller_processes_are_counted_still() {
    let dir = tempfile::tempdir().unwrap();
    let container = dir.path().join("container");
    fs::create_dir(&container).unwrap();
    fs::write(dir.path().join("cgroup.procs"), "").unwrap();
    fs::write(container.join("cgroup.procs"), "71\n72\n").unwrap();
    let found = of_pod(dir.path()).unwrap();
    assert_eq!((found.processes, found.tasks), (2, None));
}

// R1
#[test]
fn the_running_kernel_is_read() {
    use evictd_node::proc::pids::Pids;
    let reading = Pids::open("/proc".as_ref()).unwrap().read().unwrap();
    assert!(reading.used > 0 && reading.capacity > reading.used);
}
