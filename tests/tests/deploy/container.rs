//! The agent in a container of a real containerd, made from the DaemonSet as the kubelet would: its capabilities, seccomp,
//! read-only root, mounts and arguments, among the node's processes. It sees pressure beside it and evicts.
//!
//! Different from a node: the agent is this checkout's (with its libraries mounted, since a test builds no static one), the
//! container uses the node's network, and a cgroup plays the node's memory.

use std::fmt::Display;

use evictd_tests::{
    agent::binary,
    containerd::{self, Containerd, DaemonContainer, Pods},
    deploy::{self, Chart},
    mounts::Mounted,
    prelude::*,
};
use nix::mount::{MsFlags, mount};

/// A user that is not root.
const UNPRIVILEGED: &str = "65534";

/// The DaemonSet's `spec.template.spec`, without what no container can have here.
fn pod_spec() -> Value {
    let mut spec = Chart::plain().unwrap().pod().clone();
    let missing = deploy::missing_capabilities();
    deploy::without_capabilities(&mut spec["containers"][0], &missing);
    spec
}

/// Directories that the manifest wants of the node, below a mount that is handed on as a node's own is.
struct NodeFiles {
    // Unmounted before its directory is removed.
    _mounted: Mounted,
    dir: tempfile::TempDir,
}

impl NodeFiles {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let none: Option<&str> = None;
        let files = Self {
            _mounted: Mounted::new("tmpfs", dir.path(), none)?,
            dir,
        };
        mount(none, files.dir.path(), none, MsFlags::MS_SHARED, none)?;
        for name in ["config", "kubelet", "pod-logs", "runtime", "logs"] {
            fs::create_dir(files.at(name))?;
        }
        Ok(files)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A node with a containerd and the agent in it.
struct Node {
    // Ended before what its container has mounted.
    containerd: Containerd,
    member: ClusterNode,
    files: NodeFiles,
    _root: tempfile::TempDir,
}

impl Node {
    fn new(name: &str) -> Result<Self> {
        let root = tempfile::tempdir()?;
        let containerd = Containerd::start(root.path())?;
        containerd.import(&containerd::program(
            "localhost/base:1",
            &containerd::busybox()?,
            &["sleep", "1000000"],
            0,
        )?)?;
        // Nothing is trusted but what the kubeconfig brings: the image has no authorities of its own.
        let mut member = ClusterNode::of(ApiServer::start_tls()?, name, 256)?;
        fs::create_dir(member.dir().join("state"))?;
        // Inside the container, where the manifest mounts it.
        member.config["stateDir"] = "/var/lib/evictd".into();
        Ok(Self {
            containerd,
            member,
            files: NodeFiles::new()?,
            _root: root,
        })
    }

    /// Starts the agent and waits until it watches; answers with its process id and what it has said. An error is the
    /// runtime's, that cannot start such a container here.
    fn start(&self, spec: &Value) -> Result<(u32, String)> {
        let config = self.files.at("config");
        fs::write(config.join("config.yaml"), self.member.config.to_string())?;
        let state = self.member.dir().join("state");
        let [kubelet, pod_logs, runtime, logs] =
            ["kubelet", "pod-logs", "runtime", "logs"].map(|name| self.files.at(name));
        let places = BTreeMap::from([
            ("config", config.as_path()),
            ("state", &state),
            ("kubelet", &kubelet),
            ("pod-logs", &pod_logs),
            ("runtime", &runtime),
        ]);
        let agent = binary()?;
        let programs = agent.parent().unwrap_or(Path::new("/"));
        let mut more = vec![programs, self.member.dir()];
        let libraries = ["/lib", "/lib64", "/usr/lib"].map(Path::new);
        more.extend(libraries.into_iter().filter(|path| path.is_dir()));
        let container = DaemonContainer {
            spec,
            image: "localhost/base:1",
            command: agent.to_str().unwrap_or_default(),
            places,
            more,
        };
        let pods = Pods::connect(&self.containerd.socket())?;
        let id = pods.daemon(&container, &logs)?;
        let said = || fs::read_to_string(logs.join("evictd.log")).unwrap_or_default();
        let watching = self.member.wait(SOON, |_| {
            said().contains("watching") || !self.tasks().contains(&id)
        });
        assert!(
            watching && said().contains("watching"),
            "the agent does not watch: {}",
            said()
        );
        let tasks = self.tasks();
        let line = tasks.lines().find_map(|line| line.strip_prefix(&id));
        let pid = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let pid = pid.with_context(|| format!("no process: {tasks}"))?;
        Ok((pid, said()))
    }

    /// What runs: id, process id, state.
    fn tasks(&self) -> String {
        self.containerd.ctr(&["tasks", "ls"]).unwrap_or_default()
    }
}

/// A pod that stays within its request, and another's cgroup.
pub fn cast(member: &ClusterNode) -> (Hog, PathBuf) {
    let pod = |name, number, request| {
        let request = Some(request);
        member.pod(name, number, "Burstable", 0, request).unwrap()
    };
    let bystander = Hog::start(&pod("quiet", 1, "64Mi"), &["--mib", "40"]);
    (bystander.unwrap(), pod("wild", 2, "16Mi"))
}

pub fn only_wild_is_evicted(member: &ClusterNode, bystander: &mut Hog) {
    assert_eq!(member.outcomes(1).len(), 1, "it is reported");
    assert!(bystander.is_alive());
    assert_eq!(member.evicted(1), ["wild"]);
}

/// A field of `/proc/PID/status`.
fn status(pid: impl Display, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let found = lines.find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}

/// Its capabilities that are in effect.
pub fn effective(pid: impl Display) -> u64 {
    u64::from_str_radix(&status(pid, "CapEff"), 16).unwrap()
}

// R42: and the victim is another user's, which takes CAP_KILL where there is no cgroup.kill.
#[test]
fn a_container_of_the_daemonset_evicts() {
    skip_if!(not_root());
    let node = or_skip!(Node::new("contained"));
    let spec = pod_spec();
    let (mut bystander, wild) = cast(&node.member);
    let (pid, said) = or_skip!(node.start(&spec));

    // It is as confined as it was asked to be.
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    assert_eq!(status(pid, "Seccomp"), "2", "a filter");
    let effective = effective(pid);
    let granted = spec["containers"][0]["securityContext"]["capabilities"]["add"].as_array();
    let granted = u32::try_from(granted.unwrap().len()).unwrap();
    assert!(effective.count_ones() <= granted, "{effective:x}");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let is_read_only = |at: &str| {
        let line = mounts.lines().rfind(|l| l.split(' ').nth(4) == Some(at));
        line.is_some_and(|l| l.split(' ').nth(5).unwrap().starts_with("ro"))
    };
    assert!(
        is_read_only("/") && is_read_only("/var/lib/kubelet"),
        "{mounts}"
    );
    assert!(
        !is_read_only("/var/lib/evictd") && !is_read_only("/sys/fs/cgroup"),
        "{mounts}"
    );
    // The node's processes, not a namespace of its own.
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(namespace(&pid.to_string()), namespace("self"));

    let mut hog = Hog::start(&wild, &["--mib", "1024", "--uid", UNPRIVILEGED]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL), "{said}");
    only_wild_is_evicted(&node.member, &mut bystander);
}

/// The documented fallback.
#[test]
fn a_privileged_container_evicts_as_well() {
    skip_if!(not_root());
    let node = or_skip!(Node::new("privileged"));
    let mut spec = pod_spec();
    spec["containers"][0]["securityContext"] = json!({"privileged": true, "readOnlyRootFilesystem": true, "seccompProfile": {"type": "Unconfined"}});
    let (mut bystander, wild) = cast(&node.member);
    let (_, said) = or_skip!(node.start(&spec));
    let mut hog = Hog::start(&wild, &["--mib", "1024", "--uid", UNPRIVILEGED]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL), "{said}");
    only_wild_is_evicted(&node.member, &mut bystander);
}
