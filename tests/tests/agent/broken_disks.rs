//! What a disk refuses keeps no agent from watching memory.

use evictd_tests::{
    mounts::{self, Mounted},
    prelude::*,
};

/// The agent starts with these files, says so in its log, and evicts the hog.
fn evicts(files: &Files, said: &str) {
    let agent = files.start(&[]);
    has(&agent.log(), &[said]);
    files.until_killed("hog", &crate::TOO_MUCH);
    has(&files.refused(), &["another evictd runs on it"]);
}

/// With a directory that an agent has used, and with one that none has.
// R42
#[test]
fn a_state_directory_that_is_read_only_stops_no_agent() {
    let mut files = with_bpf!(Files::of_hog_and_calm("read-only", 256));
    let disk = or_skip!(Disk::new("ext4", 16, 1024));
    let [used, fresh] = ["used", "fresh"].map(|name| disk.path().join(name));
    for dir in [&used, &fresh] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(used.join("journal.jsonl"), "").unwrap();
    disk.make_read_only().unwrap();
    for dir in [used, fresh] {
        files.config["stateDir"] = json!(dir);
        evicts(&files, "the journal has no file yet");
    }
}

/// The upper layer of the overlay lies where another filesystem is mounted, as it may in a container. Kernels before 5.8 do not tell of any
/// superblock.
// R3
#[test]
fn a_disk_whose_superblock_cannot_be_told_is_watched() {
    let mut files = as_root!(Files::of_hog_and_calm("hiddenupper", 256));
    let address = listen(&mut files.config, "metricsAddress");
    for signal in ["nodefs.available", "nodefs.inodesFree"] {
        files.config["evictionHard"][signal] = json!("1%");
    }
    mounts::on_a_thread(|| {
        let mut disk = or_skip!(Disk::new("ext4", 16, 1024));
        let merged = or_skip!(disk.overlay());
        let _hides = Mounted::new("tmpfs", &disk.path(), None).unwrap();
        files.config["filesystems"] = json!({ "nodefs": merged });
        let agent = files.start(&[]);
        for signal in ["nodefs.available", "nodefs.inodesFree"] {
            let series = format!("evictd_signal_available{{signal=\"{signal}\"}}");
            assert!(until(SOON, || value(&address, &series).is_some()));
        }
        let log = agent.log();
        assert!(log.contains("its superblock cannot be told"), "{log}");
    });
}

// R3
#[test]
fn filesystems_that_cannot_be_told_stop_no_agent() {
    let mut files = with_bpf!(Files::of_hog_and_calm("no-disks", 256));
    let missing = files.dir().join("missing");
    files.config["filesystems"] = json!({ "nodefs": files.dir(), "imagefs": missing });
    evicts(&files, "disks are not watched");

    // A disk that comes later is watched from then on.
    let address = listen(&mut files.config, "metricsAddress");
    files.config["evictionHard"]["imagefs.available"] = json!("1%");
    let agent = files.start(&[]);
    let stuck = "evictd_filesystem_stuck{filesystem=\"imagefs\"}";
    let is_shown = |signal: &str| {
        let series = format!("evictd_signal_available{{signal=\"{signal}\"}}");
        value(&address, &series).is_some()
    };
    assert!(until(SOON, || is_shown("memory.available")));
    assert!(!is_shown("imagefs.available"));
    assert!(until(SOON, || value(&address, stuck) == Some(1)));
    let disk = or_skip!(Disk::new("ext4", 16, 1024));
    std::os::unix::fs::symlink(disk.path(), &missing).unwrap();
    for signal in ["imagefs.available", "nodefs.inodesFree"] {
        assert!(until(SOON, || is_shown(signal)));
    }
    assert!(until(SOON, || value(&address, stuck) == Some(0)));
    // What an agent says reaches the test a moment later.
    assert!(agent.says("disks are watched now"));
}
