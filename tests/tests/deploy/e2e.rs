//! The end-to-end test where there is no cluster to try it on: it is skipped, says what it cannot reach, or leaves what is
//! there alone.

use std::os::unix::fs::PermissionsExt;

use evictd_tests::{
    apiserver::pod,
    containerd::{self, Containerd, Pods},
    deploy,
    prelude::*,
};
use nix::{
    sys::signal::{Signal::SIGHUP, kill},
    unistd::Pid,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs it with something set; what it says where it ends with this code.
fn e2e(code: i32, set: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
    set(command.env_remove("KUBECONFIG"));
    let out = command.output().unwrap();
    let said = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    assert_eq!(out.status.code(), Some(code), "{said}");
    said
}

#[test]
fn without_a_cluster_it_is_skipped() {
    let said = e2e(0, |_| {});
    begins(&said, "SKIPPED e2e: KUBECONFIG is not set");
}

#[test]
fn a_cluster_that_is_not_there_is_named() {
    let fails_with = |kubeconfig: &Path, expected: &str| {
        let said = e2e(1, |command| {
            command.env("KUBECONFIG", kubeconfig);
        });
        has(&said, &[expected]);
    };
    fails_with(Path::new("/nowhere"), "KUBECONFIG cannot be used");
    let (mut server, dir) = (ApiServer::start().unwrap(), tempfile::tempdir().unwrap());
    let kubeconfig = server.kubeconfig(dir.path()).unwrap();
    server.go_away();
    fails_with(&kubeconfig, "does not answer");
}

/// An API server that wants certificates of its clients, as most do, with one node.
fn cluster() -> ApiServer {
    let server = ApiServer::start_mutual_tls().unwrap();
    {
        let mut state = server.state();
        let memory = json!({"memory": "256Mi"});
        let status = &mut state.node_mut()["status"];
        status["capacity"] = memory.clone();
        status["allocatable"] = memory;
        status["nodeInfo"] = json!({
            "bootID": "b", "machineID": "m", "containerRuntimeVersion": "containerd://2.1.4",
            "kubeletVersion": "v1.36.0", "kernelVersion": "6.18.0",
        });
    }
    server
}

const IMAGES: [&str; 6] = [
    "--image",
    "evictd:1",
    "--hog-image",
    "hog:1",
    "--kubelet-config",
    "none",
];

/// Runs it on this cluster, where it ends with 1; what it says.
fn fails(server: &ApiServer, arguments: &[&str], containerd: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    e2e(1, |command| {
        on(command, server, dir.path())
            .args(arguments)
            .env("CONTAINERD_ADDRESS", containerd);
    })
}

fn on<'a>(command: &'a mut Command, server: &ApiServer, dir: &Path) -> &'a mut Command {
    command
        .args(["--threshold", "64Mi", "--manifests"])
        .arg(deploy::dir().join("manifests"))
        .env("KUBECONFIG", server.kubeconfig(dir).unwrap())
}

/// A cluster on whose node an agent has left its marks, and that takes no object but the namespace and the DaemonSet.
fn marked_cluster() -> ApiServer {
    let server = cluster();
    {
        let mut state = server.state();
        let node = state.node_mut();
        let taint = json!({"key": "evictd.dev/memory-pressure", "effect": "PreferNoSchedule"});
        node["spec"]["taints"].as_array_mut().unwrap().push(taint);
        let condition = json!({"type": "EvictdMemoryPressure", "status": "True"});
        let conditions = node["status"]["conditions"].as_array_mut();
        conditions.unwrap().push(condition);
    }
    server
}

fn is_clean(server: &ApiServer) {
    let state = server.state();
    assert_eq!(state.taints(), ["example.org/kept"]);
    let conditions = state.node()["status"]["conditions"].as_array().unwrap();
    let types: Vec<_> = conditions.iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["MemoryPressure", "Ready"]);
    assert_eq!(state.all_of(Collection::Namespaces).count(), 0);
}

/// Also where the API server fails for a while, as after a shortage of memory.
#[test]
fn what_is_there_of_a_refused_start_goes() {
    let files = deploy::files_of(&deploy::dir().join("manifests")).unwrap();
    let objects = deploy::all_objects(&files).unwrap().len();
    for faults in [0, 2] {
        let server = marked_cluster();
        server.fails("GET", "/api/v1/nodes/n2", faults, 503);
        let said = fails(&server, &IMAGES, Path::new("/nowhere"));
        let left = "left evictd.dev/memory-pressure, EvictdMemoryPressure on the node";
        has(&said, &["cannot apply", left]);
        is_clean(&server);
        let state = server.state();
        let deleted: Vec<_> = state.all("DELETE", "").map(|r| &r.path).collect();
        let once: BTreeSet<_> = deleted.iter().collect();
        assert_eq!((deleted.len(), once.len()), (objects, objects), "{said}");
    }
}

/// Each word to a terminal that is gone is an error.
#[test]
fn a_terminal_that_goes_ends_the_test_and_not_its_cleaning_up() {
    let (server, dir) = (marked_cluster(), tempfile::tempdir().unwrap());
    server.fails("PATCH", "/api/v1/namespaces/", 1, InjectedFault::Hang);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
    on(&mut command, &server, dir.path()).args(IMAGES);
    let command = command.stdout(full.unwrap()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    assert!(server.wait(SOON, |s| s.count("PATCH", "/api/v1/namespaces/") > 0));
    kill(Pid::from_raw(child.id().try_into().unwrap()), SIGHUP).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    has(&said, &["the terminal is gone"]);
    is_clean(&server);
}

/// A pod of evictd's in this namespace.
fn agent_in(namespace: &str) -> Value {
    let mut agent = pod("evictd-x", "agent", "Burstable", 0, None);
    agent["metadata"]["namespace"] = namespace.into();
    agent["metadata"]["labels"] = json!({"app.kubernetes.io/name": "evictd"});
    let config = json!({"name": "config", "configMap": {"name": "evictd-1"}});
    agent["spec"]["volumes"] = json!([config]);
    agent
}

/// What a run with `--keep` has left goes, agent and marks, before anything else comes.
#[test]
fn the_agent_of_an_earlier_run_is_not_the_one_that_is_tried() {
    const DAEMONSETS: &str = "/apis/apps/v1/namespaces/evictd/daemonsets/evictd";
    let server = marked_cluster();
    {
        let mut state = server.state();
        let fields = json!([{"manager": "evictd-e2e"}]);
        let metadata = json!({"name": "evictd", "namespace": "evictd", "managedFields": fields});
        state.put(Collection::DaemonSets, json!({"metadata": metadata}));
        state.put_pod(agent_in("evictd"));
    }
    let gone = std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            assert!(server.wait(SOON, |s| s.count("DELETE", DAEMONSETS) > 0));
            std::thread::sleep(Duration::from_secs(1));
            let mut state = server.state();
            assert_eq!(state.count("PATCH", ""), 0);
            state.remove(Collection::Pods, "evictd", "evictd-x");
            Instant::now()
        });
        let said = fails(&server, &IMAGES, Path::new("/nowhere"));
        has(&said, &["an earlier run has left DaemonSet evictd"]);
        assert!(!said.contains("on the node: now taken away"), "{said}");
        ended.join().unwrap()
    });
    is_clean(&server);
    let state = server.state();
    let paths: Vec<_> = state.all("PATCH", "").map(|r| (&*r.path, r.at)).collect();
    let [(taints, at), (conditions, _), (namespace, _), ..] = paths[..] else {
        panic!("{paths:?}");
    };
    assert!(at > gone);
    assert!(taints.ends_with("/nodes/n2") && conditions.ends_with("/nodes/n2/status"));
    assert!(namespace.ends_with("/namespaces/evictd"), "{paths:?}");
}

#[test]
fn an_evictd_of_another_release_is_named() {
    let server = cluster();
    server.state().put_pod(agent_in("elsewhere"));
    let said = fails(&server, &IMAGES, Path::new("/nowhere"));
    has(&said, &["elsewhere/evictd-x was not made by this test"]);
    let state = server.state();
    assert_eq!(state.count("PATCH", "") + state.count("DELETE", ""), 0);
}

#[test]
fn an_installed_evictd_in_shadow_mode_is_refused() {
    let server = cluster();
    {
        let mut state = server.state();
        state.put_pod(agent_in("evictd"));
        let data = json!({"config.yaml": "shadow: true"});
        state.put_config_map("evictd", "evictd-1", data);
    }
    let arguments = ["--installed", "--hog-image", "hog:1"];
    let dir = tempfile::tempdir().unwrap();
    let said = e2e(1, |command| {
        let kubeconfig = server.kubeconfig(dir.path()).unwrap();
        command.args(arguments).env("KUBECONFIG", kubeconfig);
    });
    has(&said, &["evictd-x runs in shadow mode"]);
    let state = server.state();
    assert_eq!(state.count("PATCH", "") + state.count("POST", ""), 0);
}

/// minikube's nodes are containers whose runtime may be Docker: an image in their containerd would not be found.
#[test]
fn the_runtime_of_a_node_that_is_a_container_counts_too() {
    let (server, dir) = (cluster(), tempfile::tempdir().unwrap());
    let runtime = "docker://28.0.0";
    server.state().node_mut()["status"]["nodeInfo"]["containerRuntimeVersion"] = runtime.into();
    let docker = dir.path().join("docker");
    fs::write(&docker, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&docker, PermissionsExt::from_mode(0o755)).unwrap();
    let said = e2e(1, |command| {
        on(command, &server, dir.path()).env("PATH", dir.path());
    });
    has(
        &said,
        &["the node runs docker://28.0.0", "containerd and CRI-O only"],
    );
}

/// An evictd that another one has installed is neither changed nor taken away.
#[test]
fn an_evictd_that_is_there_already_is_left_alone() {
    let server = cluster();
    let path = "/apis/apps/v1/namespaces/evictd/daemonsets/evictd";
    let theirs = json!({
        "kind": "DaemonSet", "apiVersion": "apps/v1",
        "metadata": {"name": "evictd", "namespace": "evictd", "managedFields": [{"manager": "helm"}]},
    });
    server.state().objects.insert(path.to_owned(), theirs);
    let before = server.state().objects.len();
    let said = fails(&server, &IMAGES, Path::new("/nowhere"));
    assert!(said.contains("Give --installed to use it"), "{said}");
    let state = server.state();
    assert_eq!(state.objects.len(), before);
    assert_eq!(state.count("PATCH", "") + state.count("DELETE", ""), 0);
}

/// The node is this machine: what was built comes into its containerd, whose snapshotter need not be the one of `ctr`, and
/// the kubelet's way to a container finds it there. This cluster takes no objects, so that it ends afterwards.
#[test]
fn images_come_into_the_nodes_containerd() {
    skip_if!(not_root());
    let root = tempfile::tempdir().unwrap();
    let containerd = or_skip!(Containerd::start(root.path()));
    let archives = tempfile::tempdir().unwrap();
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    for name in ["evictd", "hog"] {
        let reference = format!("localhost/{name}:{VERSION}");
        let busybox = containerd::busybox().unwrap();
        let image = containerd::program(&reference, &busybox, &["sleep", "1000000"], 0).unwrap();
        let file = format!("{name}-{VERSION}-{arch}.oci.tar");
        fs::write(archives.path().join(file), image).unwrap();
    }
    let server = cluster();
    {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut state = server.state();
        let info = &mut state.node_mut()["status"]["nodeInfo"];
        info["bootID"] = read("/proc/sys/kernel/random/boot_id").trim().into();
        info["machineID"] = read("/etc/machine-id").trim().into();
    }
    let before = server.state().objects.len();
    let archives = archives.path().to_str().unwrap();
    let said = fails(&server, &["--archives", archives], &containerd.socket());
    has(&said, &["(this machine)"]);
    for name in ["evictd", "hog"] {
        has(&said, &[&format!("imported localhost/{name}:{VERSION}")]);
    }
    assert_eq!(server.state().objects.len(), before, "{said}");
    let pods = Pods::connect(&containerd.socket()).unwrap();
    let sandbox = or_skip!(pods.sandbox("imported"));
    let reference = format!("localhost/hog:{VERSION}");
    let command = ["/busybox", "sleep", "1000000"];
    let id = pods.container("imported", &sandbox, 0, &reference, &command);
    let id = id.unwrap();
    assert!(pods.containers().unwrap().iter().any(|c| c.id == id));
}
