//! Node-level reclaim against a real containerd, whose files lie on a disk of the test's own (R8).

use evictd_config::CriConfig;
use evictd_cri::Reclaimer;
use evictd_engine::{
    NodeReclaim::{Containers, Images},
    node_reclaim::KnownPods,
};
use evictd_node::fs::statfs::Filesystem;
use evictd_tests::{
    containerd::{self, Containerd, PAUSE, Pods},
    prelude::*,
};

const BALLAST: usize = 24 << 20;

/// A containerd on a disk of its own, with images that are used by a container that runs, by one that has ended, and by
/// none.
struct Node {
    // Ended before the disk below it is taken away.
    containerd: Containerd,
    disk: Disk,
}

impl Node {
    fn new() -> Result<Self> {
        let disk = Disk::new("ext4", 512, 32_768)?;
        let containerd = Containerd::start(&disk.path())?;
        Ok(Self { containerd, disk })
    }

    fn add(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let reference = format!("localhost/{name}:1");
        let busybox = containerd::busybox()?;
        let archive = containerd::program(&reference, &busybox, arguments, BALLAST)?;
        self.containerd.import(&archive)?;
        Ok(reference)
    }

    fn free(&self) -> u64 {
        let disk = Filesystem::open(&self.disk.path()).unwrap();
        disk.read().unwrap().available
    }
}

fn names(pods: &Pods) -> Vec<String> {
    let images = pods.images().unwrap();
    let mut names: Vec<_> = images
        .into_iter()
        .flat_map(|image| image.repo_tags)
        .collect();
    names.sort();
    names
}

// R8: what has ended goes, then what only that used, then what was unused; what runs goes on, and the disk has room again.
#[test]
fn a_real_runtime_removes_what_is_unused() {
    let node = or_skip!(Node::new());
    let pods = Pods::connect(&node.containerd.socket()).unwrap();
    let sleeps = or_skip!(node.add("sleeps", &["sleep", "1000000"]));
    let ends = node.add("ends", &["true"]).unwrap();
    node.add("spare", &["true"]).unwrap();

    let live = or_skip!(pods.sandbox("live"));
    let runs = pods.container("live", &live, 1, &sleeps, &["/busybox", "sleep", "1000000"]);
    let runs = or_skip!(runs);
    let restarted = pods
        .container("live", &live, 0, &ends, &["/busybox", "true"])
        .unwrap();
    pods.wait_for_end(&restarted).unwrap();
    let gone = pods.sandbox("gone").unwrap();
    let ended = pods
        .container("gone", &gone, 0, &ends, &["/busybox", "true"])
        .unwrap();
    pods.wait_for_end(&ended).unwrap();
    pods.stop(&gone).unwrap();

    let mut reclaimer = Reclaimer::new(CriConfig {
        socket: node.containerd.socket(),
        request_timeout: Duration::from_secs(60),
        reclaim_timeout: Duration::from_secs(120),
        image_minimum_gc_age: Duration::ZERO,
    });
    let run = current_thread().unwrap();
    let known = KnownPods {
        uids: Some(["live".to_owned()].into()),
        has_kubelet: false,
    };
    let before = node.free();
    let removed = run
        .block_on(reclaimer.reclaim(&[Containers, Images], &known))
        .unwrap();
    // The container of the pod that lives is the youngest dead one of its name: it stays, and so does its image.
    assert_eq!(
        (removed.containers, removed.sandboxes, removed.refused),
        (1, 1, 0)
    );
    assert_eq!(removed.images, 1, "{removed:?}");
    assert_eq!(
        names(&pods),
        ["localhost/ends:1", PAUSE, "localhost/sleeps:1"]
    );
    let freed = node.free().saturating_sub(before);
    assert!(freed > 20 * MIB, "{} MiB", freed / MIB);

    // The pod restarts its container once more: now the older one is one too many.
    let again = pods
        .container("live", &live, 2, &sleeps, &["/busybox", "true"])
        .unwrap();
    pods.wait_for_end(&again).unwrap();
    let removed = run
        .block_on(reclaimer.reclaim(&[Containers, Images], &known))
        .unwrap();
    assert_eq!((removed.containers, removed.images), (1, 1), "{removed:?}");
    assert_eq!(names(&pods), [PAUSE, "localhost/sleeps:1"]);
    let left: Vec<_> = pods
        .containers()
        .unwrap()
        .into_iter()
        .map(|c| c.id)
        .collect();
    assert!(left.contains(&runs) && left.contains(&again) && left.len() == 2);
    let sandboxes = pods.sandboxes().unwrap();
    assert_eq!(sandboxes.len(), 1);
    assert_eq!(sandboxes[0].id, live);
}
