//! The end-to-end test where there is no cluster to try it on: it is skipped, says what it cannot reach, or leaves what is
//! there alone.

use evictd_tests::{
    containerd::{self, Containerd, Pods},
    deploy,
    prelude::*,
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

/// Runs it on this cluster, where it ends with 1; what it says.
fn fails(server: &ApiServer, arguments: &[&str], containerd: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    e2e(1, |command| {
        command
            .args(["--threshold", "64Mi", "--manifests"])
            .arg(deploy::dir().join("manifests"))
            .args(arguments)
            .env("KUBECONFIG", server.kubeconfig(dir.path()).unwrap())
            .env("CONTAINERD_ADDRESS", containerd);
    })
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
    let images = ["--image", "evictd:1", "--hog-image", "hog:1"];
    let arguments = [&images[..], &["--kubelet-config", "none"]].concat();
    let said = fails(&server, &arguments, Path::new("/nowhere"));
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
