//! The node that the demo and the benchmarks play: a cgroup with a limit, and pods of every class in it.

use evictd_node::cgroup::memory::Version;

use crate::{interrupt::interrupted, prelude::*};

pub struct PodSpec {
    pub name: &'static str,
    pub qos: &'static str,
    pub priority: i32,
    /// Shares of the node's memory, in thousandths.
    request: u64,
    usage: u64,
    /// Value of `oom_score_adj` as the kubelet would set it; lowering needs CAP_SYS_RESOURCE.
    oom_score_adj: i32,
}

/// Name of the pod that runs wild.
pub const HOG: &str = "hog";

/// `cache` and `logs` use more than they request as well: that alone does not make a victim while `hog`, of the same
/// priority, uses more on top. `report` is above its request too, and is saved by its priority.
pub const WORKLOAD: [PodSpec; 6] = [
    pod("db", "Guaranteed", 1000, [180, 140], -997),
    pod("api", "Burstable", 100, [120, 80], 880),
    pod("cache", "Burstable", 0, [60, 70], 940),
    pod("report", "Burstable", 50, [40, 60], 960),
    pod("logs", "BestEffort", 0, [0, 30], 1000),
    pod(HOG, "Burstable", 0, [60, 0], 940),
];

const fn pod(
    name: &'static str,
    qos: &'static str,
    priority: i32,
    [request, usage]: [u64; 2],
    oom_score_adj: i32,
) -> PodSpec {
    PodSpec {
        name,
        qos,
        priority,
        request,
        usage,
        oom_score_adj,
    }
}

impl PodSpec {
    /// Request of the pod on a node of so many MiB, in MiB.
    pub fn request_mib(&self, node_mib: u64) -> u64 {
        node_mib * self.request / 1000
    }

    /// Its cgroup below the node's, as the kubelet lays them out.
    fn directory(&self) -> String {
        match self.qos {
            "Guaranteed" => format!("pod-{}", self.name),
            class => format!("{}/pod-{}", class.to_lowercase(), self.name),
        }
    }

    /// Usage of the pod on a node of so many MiB, in MiB.
    pub fn usage_mib(&self, node_mib: u64) -> u64 {
        node_mib * self.usage / 1000
    }
}

/// A node with its pods running and the hog waiting.
pub struct Stage {
    pub cgroup: TestCgroup,
    pub memory: MemoryCgroup,
    mib: u64,
    pods: Vec<(&'static str, Hog)>,
    crowd: u32,
}

impl Stage {
    /// Makes the tree of a node of `size` bytes and starts all pods. `hog_arguments` say how the hog allocates; it
    /// waits until it is released. `quiet` keeps refused `oom_score_adj`s to themselves.
    pub fn start(name: &str, size: u64, hog_arguments: &[&str], quiet: bool) -> Result<Self> {
        let cgroup = TestCgroup::new(name, size)?;
        let memory = MemoryCgroup::open(cgroup.path())?;
        let mib = size / MIB;
        let mut pods = Vec::new();
        for role in &WORKLOAD {
            let dir = cgroup.child(&role.directory())?;
            let usage = role.usage_mib(mib).to_string();
            let score = role.oom_score_adj.to_string();
            let mut arguments = vec!["--oom-score-adj", &score];
            if quiet {
                arguments.push("--quiet");
            }
            if role.name == HOG {
                arguments.push("--wait");
                arguments.extend(hog_arguments);
            } else {
                arguments.extend(["--mib", &usage]);
            }
            pods.push((role.name, Hog::start(&dir, &arguments)?));
        }
        let stage = Self {
            cgroup,
            memory,
            mib,
            pods,
            crowd: 0,
        };
        stage.wait_until_settled()?;
        Ok(stage)
    }

    /// Adds pods that use nothing, to be ranked with the others.
    pub fn crowd(&mut self, count: u32) -> Result<()> {
        for number in 0..count {
            self.cgroup.child(&crowd_directory(number))?;
        }
        self.crowd = count;
        Ok(())
    }

    /// Gives the node other room; the pods stay as they are.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        self.cgroup.limit_child("", bytes)
    }

    /// The others have what they want when the usage stands still.
    fn wait_until_settled(&self) -> Result<()> {
        let mut last = u64::MAX;
        loop {
            let usage = self.memory.usage()?;
            if usage == last || interrupted() {
                return Ok(());
            }
            last = usage;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn release_hog(&mut self) -> io::Result<()> {
        self.hog().map_or(Ok(()), Hog::go)
    }

    /// Lets the hog take its head start (`--head`) and waits until it has.
    pub fn start_ahead(&mut self) -> Result<()> {
        let hog = self.hog().map(Hog::take_head);
        hog.unwrap_or_else(|| bail!("the hog died before its head start"))
    }

    fn hog(&mut self) -> Option<&mut Hog> {
        let mut pods = self.pods.iter_mut();
        pods.find_map(|(name, hog)| (*name == HOG).then_some(hog))
    }

    pub fn hog_pid(&self) -> u32 {
        let hog = self.pods.iter().find(|(name, _)| *name == HOG);
        hog.map_or(0, |(_, hog)| hog.pid())
    }

    /// The cgroup directory of a pod of the cast.
    pub fn directory_of(&self, name: &str) -> Option<PathBuf> {
        let role = WORKLOAD.iter().find(|role| role.name == name)?;
        Some(self.cgroup.path().join(role.directory()))
    }

    /// Names of the pods that run no more.
    pub fn dead(&mut self) -> Vec<&'static str> {
        let dead = |(name, hog): &mut (&'static str, Hog)| (!hog.is_alive()).then_some(*name);
        self.pods.iter_mut().filter_map(dead).collect()
    }

    /// Whether a process is one of the pods that do nothing wrong.
    pub fn is_bystander(&self, pid: i32) -> bool {
        let mut others = self.pods.iter().filter(|(name, _)| *name != HOG);
        others.any(|(_, other)| other.pid() == pid.unsigned_abs())
    }

    /// The largest usage since the start, as the kernel counts it; `None` where it does not (v2 before 5.19).
    pub fn peak(&self) -> Option<u64> {
        let file = match self.cgroup.version() {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        let peak = fs::read_to_string(self.cgroup.path().join(file)).ok()?;
        peak.trim().parse().ok()
    }

    /// The manifest of the pods, for `podManifest`: their cgroups lie below the node's.
    pub fn manifest(&self) -> String {
        self.manifest_below(Path::new(""))
    }

    /// Builds the manifest of the pods for an agent whose scope is the machine.
    pub fn manifest_from_root(&self) -> String {
        self.manifest_below(self.cgroup.path())
    }

    fn manifest_below(&self, parent: &Path) -> String {
        let pod = |role: &PodSpec| {
            serde_json::json!({
                "name": role.name,
                "qosClass": role.qos,
                "priority": role.priority,
                "requests": { "memory": format!("{}Mi", role.request_mib(self.mib)) },
                "cgroup": parent.join(role.directory()),
            })
        };
        let extra = |number: u32| {
            serde_json::json!({
                "name": format!("crowd-{number}"),
                "qosClass": "Burstable",
                "requests": { "memory": "10Mi" },
                "cgroup": parent.join(crowd_directory(number)),
            })
        };
        let pods = WORKLOAD.iter().map(pod).chain((0..self.crowd).map(extra));
        serde_json::json!({ "pods": pods.collect::<Vec<_>>() }).to_string()
    }
}

fn crowd_directory(number: u32) -> String {
    format!("burstable/pod-crowd-{number}")
}
