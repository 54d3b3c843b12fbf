use serde_json::json;

use super::*;

fn summary(document: &Value) -> Summary {
    read_summary("summary", document).expect("a summary")
}

#[test]
fn what_is_there_in_full_is_observed() {
    // R1, R2
    let summary = summary(&json!({"node": {
        "memory": {"time": "1970-01-01T00:00:10Z", "availableBytes": 30, "workingSetBytes": 70},
        "systemContainers": [
            {"name": "kubelet", "memory": {"availableBytes": 1, "workingSetBytes": 1}},
            {"name": "pods", "startTime": null, "memory": {"availableBytes": 10, "workingSetBytes": 40}},
        ],
        "fs": {"availableBytes": 5, "capacityBytes": 50, "inodesFree": 6, "inodes": null},
        "runtime": {"imageFs": {"inodesFree": 7, "inodes": 70}, "containerFs": null},
        "rlimit": {"time": null, "maxpid": 100, "curproc": 130},
    }}));
    let seen = |signal| {
        summary
            .observations
            .get(signal)
            .map(|o| (o.available, o.capacity, o.time))
    };
    assert_eq!(
        seen(Signal::MemoryAvailable),
        Some((30, 100, Some(10_000_000_000)))
    );
    assert_eq!(
        seen(Signal::AllocatableMemoryAvailable),
        Some((10, 50, None))
    );
    assert_eq!(seen(Signal::NodeFsAvailable), Some((5, 50, None)));
    assert_eq!(seen(Signal::NodeFsInodesFree), None);
    assert_eq!(seen(Signal::ImageFsAvailable), None);
    assert_eq!(seen(Signal::ImageFsInodesFree), Some((7, 70, None)));
    assert_eq!(seen(Signal::ContainerFsAvailable), None);
    assert_eq!(seen(Signal::PidAvailable), Some((-30, 100, None)));
    assert_eq!(summary.memory_capacity(), Some(100));
}

#[test]
fn missing_numbers_and_nulls_are_no_mistake() {
    let summary = summary(&json!({"node": null, "pods": [
        {"podRef": {"uid": "a"}, "memory": null, "containers": null, "volume": null, "process_stats": null,
         "ephemeral-storage": {"usedBytes": 9}},
        {"podRef": {"uid": "b"}, "memory": {"time": null, "workingSetBytes": 3}, "unknown": {},
         "containers": [{"name": "c", "memory": {}, "rootfs": {"usedBytes": 1, "inodesUsed": 2}, "logs": null}],
         "volume": [{"name": "v", "time": null, "usedBytes": 4}], "process_stats": {"process_count": 5}},
    ]}));
    assert_eq!(summary.observations, Observations::default());
    assert_eq!(
        summary.pods["a"],
        PodUsage {
            ephemeral_storage: Some(9),
            ..PodUsage::default()
        }
    );
    let b = &summary.pods["b"];
    assert_eq!((b.memory_working_set, b.processes), (Some(3), Some(5)));
    assert_eq!(
        b.containers[0].rootfs,
        FsUsage {
            bytes: Some(1),
            inodes: Some(2)
        }
    );
    assert_eq!(
        b.volumes[0],
        VolumeUsage {
            name: "v".into(),
            fs: FsUsage {
                bytes: Some(4),
                inodes: None
            }
        }
    );
    let error = read_summary(
        "summary",
        &json!({"node": {}, "pods": [{"memory": {"workingSetBytes": "3"}}]}),
    );
    assert_eq!(
        error.map_err(|e| e.to_string()),
        Err(
            "summary.pods[0].memory.workingSetBytes: invalid type: string \"3\", expected u64"
                .to_owned()
        )
    );
    assert!(read_summary("summary", &json!({"node": {"memory": {"time": "now"}}})).is_err());
    for (document, expected) in [
        (
            json!({"kind": "PodList", "items": []}),
            "summary: is a list of objects: a summary has `node` and `pods`",
        ),
        (json!([]), "summary: must be a map of fields"),
    ] {
        let error = read_summary("summary", &document).map_err(|e| e.to_string());
        assert_eq!(error, Err(expected.to_owned()));
    }
}
