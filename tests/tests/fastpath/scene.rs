//! A node with three innocent pods, one that works and one that grows.

use evictd_tests::{node::machine, prelude::*};

pub const LONG: Duration = Duration::from_secs(120);
/// How long a look at what does not happen lasts.
pub const MOMENT: Duration = Duration::from_secs(2);

/// Why the scenes cannot be set. A guest has the disk of the pods' files in its memory.
pub fn no_room() -> Option<&'static str> {
    let is_small = || in_guest() && machine().unwrap().1 < 6000 * MIB;
    not_root().or_else(|| is_small().then_some("a guest needs --memory 8192"))
}

pub fn alive(hogs: &mut [Hog]) -> usize {
    hogs.iter_mut()
        .filter_map(|hog| hog.is_alive().then_some(()))
        .count()
}

/// Waits until the first eviction is reported.
#[track_caller]
pub fn one_goes(files: &Files) {
    assert!(until(LONG, || !files.evicted().is_empty()));
}

/// Pods as a cluster has them, three of them innocent: below `kubepods`, with a container two levels down.
pub struct Scene {
    pub scope: TestCgroup,
    pub files: Files,
    pub neighbours: Vec<Hog>,
    /// The pods' files.
    // Removed last: 150,000 files take longer to remove one by one than their disk.
    pub disk: Disk,
}

pub const NEIGHBOURS: [&str; 3] = ["one", "two", "three"];
/// What each neighbour uses in MiB, which is more than it requests.
pub const EACH: u64 = 40;

pub fn pod_dir(pod: &str) -> String {
    format!("kubepods/burstable/pod-{pod}")
}

impl Scene {
    /// A node with so many MiB for its pods; `limited` says whether the pods' cgroup has the limit or the node.
    pub fn new(name: &str, mib: u64, limited: Limited) -> Self {
        let disk = Disk::new("ext4", 3000, 200_000).unwrap();
        let node = match limited {
            Limited::Node => mib,
            Limited::Pods => 4 * mib,
        };
        let scope = TestCgroup::new(name, node * MIB).unwrap();
        let pod = |pod: &str, requests: &str| json!({ "name": pod, "cgroup": pod_dir(pod), "requests": { "memory": requests } });
        let mut pods: Vec<Value> = NEIGHBOURS.map(|name| pod(name, "10Mi")).into();
        pods.push(pod("worker", "10Mi"));
        let mut hog = pod("hog", "10Mi");
        // First in the order among those that use more than they request, whatever the page cache of others.
        hog["priority"] = json!(-100);
        pods.push(hog);
        let mut files = Files::new(scope.path(), &json!(pods));
        files.config["evictionHard"] = json!({ "memory.available": "100Mi" });
        for name in NEIGHBOURS.iter().chain(&["worker", "hog"]) {
            scope
                .child(&format!("{}/container", pod_dir(name)))
                .unwrap();
        }
        if limited == Limited::Pods {
            scope.limit_child("kubepods", mib * MIB).unwrap();
        }
        let mut scene = Self {
            scope,
            files,
            neighbours: Vec::new(),
            disk,
        };
        let each = EACH.to_string();
        for name in NEIGHBOURS {
            let hog = scene.start(name, &["--mib", &each]);
            scene.neighbours.push(hog);
        }
        scene.pods_hold(EACH * NEIGHBOURS.len() as u64);
        scene
    }

    pub fn start(&self, pod: &str, arguments: &[&str]) -> Hog {
        let dir = self.disk.path();
        let arguments = [arguments, &["--dir", dir.to_str().unwrap()]].concat();
        Hog::start(&self.container(pod), &arguments).unwrap()
    }

    /// Sets the limit of the node or of the pods' cgroup.
    pub fn limit(&self, limited: Limited, mib: u64) {
        let below = match limited {
            Limited::Node => "",
            Limited::Pods => "kubepods",
        };
        self.scope.limit_child(below, mib * MIB).unwrap();
    }

    /// Waits until the pods use more than so many MiB together.
    #[track_caller]
    pub fn pods_hold(&self, mib: u64) {
        let memory = MemoryCgroup::open(&self.scope.path().join("kubepods")).unwrap();
        assert!(until(LONG, || memory.usage().unwrap() > mib * MIB));
    }

    pub fn container(&self, pod: &str) -> PathBuf {
        self.scope.path().join(pod_dir(pod)).join("container")
    }

    /// A pod grows until it is killed, which is reported.
    #[track_caller]
    pub fn grows_and_goes(&self, pod: &str, mib: &str, rate: &str) {
        self.start(pod, &["--mib", mib, "--rate", rate]).killed();
        one_goes(&self.files);
    }

    pub fn evicted(&self) -> Vec<String> {
        self.files.evicted()
    }

    /// These pods alone are evicted: the neighbours live, and the OOM killer was not needed.
    #[track_caller]
    pub fn evicts_only(&mut self, pods: &[&str]) {
        // Time for one too many.
        std::thread::sleep(MOMENT / 4);
        assert_eq!(self.evicted(), pods, "{}", pace_inputs(&self.files));
        assert_eq!(alive(&mut self.neighbours), NEIGHBOURS.len());
        assert_eq!(self.scope.oom_kills().unwrap(), 0);
    }
}

/// What the agent decided from; it has had the time to write it.
pub fn pace_inputs(files: &Files) -> Value {
    std::thread::sleep(MOMENT);
    json!(files.pace_inputs())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    Node,
    Pods,
}
