//! The node that is played: a cgroup with a limit, and pods of every class in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use evictd::observe::cgroup::{MemoryCgroup, Version};
use evictd_tests::{cgroup::TestCgroup, hog::Hog};

const MIB: u64 = 1 << 20;

/// One pod of the cast.
pub struct Role {
    pub name: &'static str,
    pub qos: &'static str,
    pub priority: i32,
    /// Shares of the node's memory, in thousandths.
    request: u64,
    usage: u64,
    directory: &'static str,
    /// As the kubelet would set it; lowering needs CAP_SYS_RESOURCE.
    oom_score_adj: i32,
}

/// Name of the pod that runs wild.
pub const HOG: &str = "hog";

/// `cache` and `logs` use more than they request as well: that alone does not make a victim while `hog`, of the same
/// priority, uses more on top. `report` is above its request too, and is saved by its priority.
pub const CAST: [Role; 6] = [
    Role {
        name: "db",
        qos: "Guaranteed",
        priority: 1000,
        request: 180,
        usage: 140,
        directory: "pod-db",
        oom_score_adj: -997,
    },
    Role {
        name: "api",
        qos: "Burstable",
        priority: 100,
        request: 120,
        usage: 80,
        directory: "burstable/pod-api",
        oom_score_adj: 880,
    },
    Role {
        name: "cache",
        qos: "Burstable",
        priority: 0,
        request: 60,
        usage: 70,
        directory: "burstable/pod-cache",
        oom_score_adj: 940,
    },
    Role {
        name: "report",
        qos: "Burstable",
        priority: 50,
        request: 40,
        usage: 60,
        directory: "burstable/pod-report",
        oom_score_adj: 960,
    },
    Role {
        name: "logs",
        qos: "BestEffort",
        priority: 0,
        request: 0,
        usage: 30,
        directory: "besteffort/pod-logs",
        oom_score_adj: 1000,
    },
    Role {
        name: HOG,
        qos: "Burstable",
        priority: 0,
        request: 60,
        usage: 0,
        directory: "burstable/pod-hog",
        oom_score_adj: 940,
    },
];

impl Role {
    pub fn request_mib(&self, node_mib: u64) -> u64 {
        node_mib * self.request / 1000
    }
}

/// A node with its pods running and the hog waiting.
pub struct Node {
    pub cgroup: TestCgroup,
    pub memory: MemoryCgroup,
    mib: u64,
    pods: Vec<(&'static str, Hog)>,
}

impl Node {
    /// Makes the tree and starts everybody.
    pub fn start(size: u64, rate: u64) -> io::Result<Self> {
        let cgroup = TestCgroup::new("demo", size)?;
        let memory = MemoryCgroup::open(cgroup.path()).map_err(io::Error::other)?;
        let mib = size / MIB;
        let mut pods = Vec::new();
        for role in &CAST {
            let dir = cgroup.child(role.directory)?;
            let usage = (mib * role.usage / 1000).to_string();
            // More than the node has: somebody has to stop it.
            let (far_too_much, rate) = ((mib * 8).to_string(), rate.to_string());
            let score = role.oom_score_adj.to_string();
            let mut arguments = vec!["--oom-score-adj", &score];
            if role.name == HOG {
                arguments.extend(["--wait", "--rate", &rate, "--mib", &far_too_much]);
            } else {
                arguments.extend(["--mib", &usage]);
            }
            pods.push((role.name, Hog::start(&dir, &arguments)?));
        }
        let node = Self {
            cgroup,
            memory,
            mib,
            pods,
        };
        node.wait_until_settled()?;
        Ok(node)
    }

    /// The others have what they want when the usage stands still.
    fn wait_until_settled(&self) -> io::Result<()> {
        let mut last = u64::MAX;
        loop {
            let usage = self.memory.usage()?;
            if usage == last || crate::interrupted() {
                return Ok(());
            }
            last = usage;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Lets the hog go.
    pub fn release_hog(&mut self) -> io::Result<()> {
        match self.pods.iter_mut().find(|(name, _)| *name == HOG) {
            Some((_, hog)) => hog.go(),
            None => Ok(()),
        }
    }

    /// Names of the pods that run no more.
    pub fn dead(&mut self) -> Vec<&'static str> {
        let dead = |(name, hog): &mut (&'static str, Hog)| (!hog.is_alive()).then_some(*name);
        self.pods.iter_mut().filter_map(dead).collect()
    }

    /// The largest usage since the start, as the kernel counts it; `None` where it does not (v2 before 5.19).
    pub fn peak(&self) -> Option<u64> {
        let file = match self.cgroup.version() {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        fs::read_to_string(self.cgroup.path().join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// The manifest of the pods, for `podManifest`.
    pub fn manifest(&self) -> String {
        let pod = |role: &Role| {
            serde_json::json!({
                "name": role.name,
                "qosClass": role.qos,
                "priority": role.priority,
                "requests": { "memory": format!("{}Mi", role.request_mib(self.mib)) },
                "cgroup": role.directory,
            })
        };
        serde_json::json!({ "pods": CAST.iter().map(pod).collect::<Vec<_>>() }).to_string()
    }
}

/// Memory over time: one number every half millisecond.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Duration, u64)>>,
}

impl Recorder {
    /// Starts to record the usage of a cgroup directory.
    pub fn start(cgroup: &Path) -> io::Result<Self> {
        let memory = MemoryCgroup::open(&PathBuf::from(cgroup)).map_err(io::Error::other)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut samples = Vec::with_capacity(1 << 16);
            while !stopped.load(Ordering::Relaxed) && samples.len() < samples.capacity() {
                if let Ok(usage) = memory.usage() {
                    samples.push((start.elapsed(), usage));
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            samples
        });
        Ok(Self { stop, thread })
    }

    /// Ends the recording.
    pub fn finish(self) -> Vec<(Duration, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
