//! Node-level reclaim by `evictd run` as a process: pods wait for it, and only for as long as they should (R8).

use evictd_cri::messages::{FilesystemIdentifier, FilesystemUsage, Image, ImageFsInfoResponse};
use evictd_store::record::node_reclaim::NodeReclaimed;
use evictd_tests::{
    prelude::*,
    runtime::{Fault, Runtime, State},
};

const MIB: usize = 1 << 20;

/// One pod with files on a disk, on which an unused image takes most of the room.
struct Node {
    files: Files,
    pod: Forker,
    runtime: Option<Runtime>,
    disk: Disk,
}

impl Node {
    fn new(name: &str) -> Result<Self> {
        Self::on(Disk::new("ext4", 128, 4096)?, name, 256)
    }

    /// On a disk, with so many MiB of memory.
    fn on(disk: Disk, name: &str, mib: u64) -> Result<Self> {
        let dir = disk.path().join("pod");
        fs::create_dir(&dir)?;
        fs::write(dir.join("data"), vec![1; 8 * MIB])?;
        let empty_dirs = json!([{ "name": "scratch", "path": dir, "sizeLimit": "1Ti" }]);
        let pods = json!([{ "name": "pod", "cgroup": "besteffort/pod", "emptyDirs": empty_dirs }]);
        let mut files = Files::of(name, mib, &pods);
        files.config["filesystems"] = json!({ "nodefs": disk.path() });
        files.config["evictionHard"]["nodefs.available"] = json!("50%");
        files.config["cri"] = json!({
            "socket": files.dir().join("cri.sock"),
            "imageMinimumGCAge": "0s",
        });
        fs::write(disk.path().join("image"), vec![2; 60 * MIB])?;
        Ok(Self {
            pod: files.forker("pod"),
            files,
            runtime: None,
            disk,
        })
    }

    /// A runtime whose image goes with its file.
    fn serve(&mut self, fault: Option<Fault>) {
        let file: PathBuf = self.disk.path().join("image");
        let mut state = State {
            images: vec![Image {
                id: "image".into(),
                size: 60 << 20,
                ..Image::default()
            }],
            ..State::default()
        };
        if let Some(fault) = fault {
            state.fails("RemoveImage", fault);
        } else {
            state.after("RemoveImage", |_| fs::remove_file(file).unwrap());
        }
        let socket = self.files.dir().join("cri.sock");
        self.runtime = Some(Runtime::start(&socket, state).unwrap());
    }

    fn calls(&self) -> Vec<String> {
        self.runtime.as_ref().unwrap().state().calls.clone()
    }

    fn lives(&mut self) -> bool {
        self.pod.order("hold 0").is_ok()
    }
}

fn reclaimed(records: &[Record]) -> Option<&NodeReclaimed> {
    let told = records_of!(records, Record::Reclaimed(reclaimed) => reclaimed);
    told.first().copied()
}

/// Records that come first: the disk is short from the start, for nodefs and for containerfs.
const MET_IN_FORCE: usize = 2;

fn is_evicted(records: &[Record]) -> bool {
    !records_of!(records, Record::Evicted(_)).is_empty()
}

// R8: the disk has room again, and no pod has to go.
#[test]
fn a_reclaim_that_is_enough_spares_the_pod() {
    let mut node = or_skip!(Node::new("crienough"));
    node.serve(None);
    let _agent = node.files.start(&[]);
    let records = node.files.wait_for(MET_IN_FORCE + 1);
    let told = reclaimed(&records).expect("a reclaim in the journal");
    assert!(
        told.is_enough && told.images == 1 && told.image_bytes == 60 << 20,
        "{told:?}"
    );
    assert!(told.freed["nodefs.available"] > 50 << 20, "{told:?}");
    assert_eq!(told.what, ["containers", "images"]);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(node.files.records().len(), MET_IN_FORCE + 1);
    assert_eq!(node.calls(), ["RemoveImage image"]);
    assert!(node.lives());
}

// R8: there was nothing to reclaim, or not enough.
#[test]
fn a_reclaim_that_is_not_enough_is_followed_by_the_eviction() {
    let mut node = or_skip!(Node::new("crilittle"));
    // FAILED_PRECONDITION: CRI-O's word for an image that is in use after all.
    node.serve(Some(Fault::Refused(9)));
    let _agent = node.files.start(&[]);
    let records = node.files.wait_for(MET_IN_FORCE + 2);
    assert!(is_evicted(&records), "{records:?}");
    let told = reclaimed(&records).expect("a reclaim in the journal");
    assert!(!told.is_enough && told.refused == 1, "{told:?}");
}

// R8: pods go anyway when the time is over, and a hanging runtime holds nothing else.
#[test]
fn a_runtime_that_hangs_is_not_waited_for_for_ever() {
    let mut node = or_skip!(Node::new("crihangs"));
    node.serve(Some(Fault::Hangs));
    node.files.config["cri"]["reclaimTimeout"] = json!("2s");
    let _agent = node.files.start(&[]);
    assert!(until(SOON, || is_evicted(&node.files.records())));
    assert_eq!(node.calls(), ["RemoveImage image"]);
}

// R8: no pod runs into a full disk because a reclaim takes its time.
#[test]
fn a_runtime_that_hangs_is_not_waited_for_until_no_inode_is_left() {
    let disk = or_skip!(Disk::new("ext4", 512, 120_000));
    let mut node = or_skip!(Node::on(disk, "criinodes", 2048));
    node.serve(Some(Fault::Hangs));
    node.files.config["cri"]["requestTimeout"] = json!("60s");
    node.files.config["cri"]["reclaimTimeout"] = json!("60s");
    node.files.config["evictionHard"] = json!({
        "memory.available": "64Mi",
        "nodefs.inodesFree": "50%",
    });
    let _agent = node.files.start(&[]);
    let dir = node.disk.path().join("pod");
    // It dies over this order.
    let _ = node.pod.order(&format!("make {} 130000", dir.display()));
    assert!(until(SOON, || !node.files.evictions().is_empty()));
    let eviction = &node.files.evictions()[0];
    assert_eq!(eviction.signal, "nodefs.inodesFree");
    assert!(eviction.available > 0, "{eviction:?}");
    assert_eq!(node.calls(), ["RemoveImage image"]);
}

#[test]
fn without_a_runtime_pods_go_at_once() {
    let node = or_skip!(Node::new("crinone"));
    let _agent = node.files.start(&[]);
    let records = node.files.wait_for(MET_IN_FORCE + 1);
    assert!(is_evicted(&records), "{records:?}");
}

// R47: shadow mode speaks of it. The pause stops it as it stops evictions.
#[test]
fn shadow_and_pause_reclaim_nothing() {
    for paused in [false, true] {
        let mut node = or_skip!(Node::new("crishadow"));
        node.serve(None);
        let more: &[&str] = match paused {
            true => {
                let state = node.files.dir().join("state");
                fs::create_dir(&state).unwrap();
                fs::write(state.join("pause"), "").unwrap();
                &[]
            }
            false => &["--shadow"],
        };
        let agent = node.files.start(more);
        // The disk is short, and it has seen that.
        let is_met = |record: &Record| matches!(record, Record::MetInForce(_));
        assert!(until(SOON, || node.files.records().iter().any(is_met)));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(node.calls(), [""; 0], "paused: {paused}");
        let speaks = agent.log().contains("would reclaim before pods go");
        assert_eq!(speaks, !paused);
        // There may be no filesystem in which an earlier guard is pinned.
        assert!(paused || !agent.log().contains("ERROR"), "{}", agent.log());
        assert!(reclaimed(&node.files.records()).is_none());
        assert!(node.lives());
    }
}

// R3: where images lie is configured here, or guessed elsewhere; the runtime knows.
#[test]
fn a_disk_that_is_not_the_runtimes_is_told() {
    let mut node = or_skip!(Node::new("crielsewhere"));
    node.files.config["evictionHard"]["nodefs.available"] = json!("1%");
    let at = |path: &std::path::Path| FilesystemUsage {
        fs_id: Some(FilesystemIdentifier {
            mountpoint: path.display().to_string(),
        }),
        ..FilesystemUsage::default()
    };
    let state = State {
        disks: Some(ImageFsInfoResponse {
            image_filesystems: vec![at("/proc".as_ref())],
            container_filesystems: vec![at(&node.disk.path())],
        }),
        ..State::default()
    };
    let socket = node.files.dir().join("cri.sock");
    node.runtime = Some(Runtime::start(&socket, state).unwrap());
    let agent = node.files.start(&[]);
    assert!(agent.says("set filesystems.imagefs"));
    let log = agent.log();
    assert!(!log.contains("filesystems.containerfs"), "{log}");
}
