//! The whole story of `cargo xtask e2e` against a cluster that is played: real processes in real cgroups, a real agent
//! with the applied configuration, a scripted API server, controllers and a kubelet. Each verdict is seen to pass, and to
//! fail where something goes wrong.

use std::{
    fs,
    process::{Command, Output},
    sync::Arc,
};

use evictd_tests::{
    apiserver::{ApiServer, Fault, Misery},
    containerd::{self, Containerd, Pods},
    deploy,
    member::Member,
    or_skip,
    played::{Flaw, Played},
    skip::not_root,
    skip_if,
};
use serde_json::json;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What the played node has.
const MIB: u64 = 256;

/// A cluster of one node, whose API server takes clients with certificates only.
fn cluster(name: &str) -> Arc<Member> {
    let server = ApiServer::start_mutual_tls().unwrap();
    let mut member = Member::of(server, name, MIB).unwrap();
    // Long enough to be seen, so that a clean end has something to take away.
    member.config["evictionPressureTransitionPeriod"] = "5m".into();
    {
        let mut state = member.server.state();
        let memory = json!({"memory": format!("{MIB}Mi")});
        state.node["status"]["capacity"] = memory.clone();
        state.node["status"]["allocatable"] = memory;
        state.node["status"]["nodeInfo"] = json!({
            "bootID": "b", "machineID": "m", "containerRuntimeVersion": "containerd://2.1.4",
            "kubeletVersion": "v1.36.0", "kernelVersion": "6.18.0",
        });
        state.configz = json!({"kubeletconfig": {"evictionHard": {"memory.available": "10Mi"}}});
    }
    Arc::new(member)
}

/// Runs it; what it says on both channels, and how it ends.
fn e2e(member: &Member, more: &[&str]) -> (Output, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_e2e"))
        .args([
            "--image",
            "evictd:1",
            "--hog-image",
            "hog:1",
            "--settle",
            "5",
        ])
        // The node is another machine, and what its kubelet has is not on this one.
        .args(["--kubelet-config", "none"])
        .arg("--manifests")
        .arg(deploy::dir().join("manifests"))
        .args(more)
        .env(
            "KUBECONFIG",
            member.server.kubeconfig(member.dir()).unwrap(),
        )
        .output()
        .unwrap();
    let said = [&out.stdout[..], &out.stderr[..]].concat();
    (out, String::from_utf8(said).unwrap())
}

/// The verdicts that are not good.
fn failed(said: &str) -> Vec<&str> {
    let lines = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("FAILED"));
    lines.map(str::trim).collect()
}

/// Everything that was brought is gone.
fn assert_clean(member: &Member, said: &str) {
    let state = member.server.state();
    let left: Vec<&String> = state.others.keys().collect();
    assert!(left.is_empty(), "{left:?}\n{said}");
    assert!(state.pods.is_empty(), "{said}");
}

fn taints(member: &Member) -> String {
    member.server.state().node["spec"]["taints"].to_string()
}

/// Plays a cluster with a flaw and runs the test on it: it fails, says what is wrong, and cleans up.
fn fails(name: &str, flaw: Flaw) -> (Arc<Member>, String) {
    let member = cluster(name);
    let _played = Played::start(Arc::clone(&member), flaw).unwrap();
    let (out, said) = e2e(&member, &["--threshold", "64Mi"]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_clean(&member, &said);
    (member, said)
}

// R9, R18, R42
#[test]
fn all_is_well() {
    skip_if!(not_root());
    let member = cluster("e2e-well");
    let _played = Played::start(Arc::clone(&member), Flaw::None).unwrap();
    // Without --threshold the kubelet's 10Mi would be too little: the margin is an eighth of 256 MiB.
    let (out, said) = e2e(&member, &[]);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("memory.available<32Mi"), "{said}");
    assert!(said.contains("checks passed"), "{said}");
    assert!(failed(&said).is_empty(), "{said}");
    assert!(said.contains("nothing of it is left on the node"), "{said}");
    assert_clean(&member, &said);
    assert!(!taints(&member).contains("evictd.dev"));
}

#[test]
fn a_restart_is_found() {
    skip_if!(not_root());
    let (_, said) = fails("e2e-restart", Flaw::Restarts);
    assert_eq!(failed(&said), ["its restarts: 1"], "{said}");
}

/// Fails by this one verdict and no other.
fn fails_once(name: &str, flaw: Flaw, words: &str) {
    let (_, said) = fails(name, flaw);
    let failed = failed(&said);
    assert!(failed.len() == 1 && failed[0].contains(words), "{said}");
}

#[test]
fn an_oom_kill_is_found() {
    skip_if!(not_root());
    fails_once("e2e-oom", Flaw::OomKill, "OOMKilled");
}

#[test]
fn a_survivor_that_ends_is_found() {
    skip_if!(not_root());
    let words = "besteffort is Running, restarts: 1";
    fails_once("e2e-survivor", Flaw::SurvivorEnds, words);
}

#[test]
fn the_kubelet_was_first() {
    skip_if!(not_root());
    let (_, said) = fails("e2e-kubelet", Flaw::KubeletFirst);
    assert!(
        failed(&said)
            .iter()
            .any(|f| f.contains("the kubelet has evicted it first")),
        "{said}"
    );
}

#[test]
fn events_that_nobody_hears_are_missed() {
    skip_if!(not_root());
    let member = cluster("e2e-mute");
    member.server.state().faults.push(Fault {
        method: "POST",
        path: "/apis/events.k8s.io/v1/namespaces/",
        times: usize::MAX,
        what: Misery::Status(403),
    });
    let _played = Played::start(Arc::clone(&member), Flaw::None).unwrap();
    let (out, said) = e2e(&member, &["--threshold", "64Mi"]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    let failed = failed(&said);
    assert_eq!(failed.len(), 2, "{said}");
    assert!(failed[0].contains("0 Event(s) Evicted by evictd"), "{said}");
    assert!(
        failed[1].contains("EvictionThresholdMet by evictd: none"),
        "{said}"
    );
    assert_clean(&member, &said);
}

#[test]
fn an_agent_that_does_not_start_is_explained() {
    skip_if!(not_root());
    let (_, said) = fails("e2e-crash", Flaw::CrashLoop);
    assert!(said.contains("evictd does not start: "), "{said}");
    assert!(said.contains("CrashLoopBackOff"), "{said}");
    assert!(
        said.contains("evictionHard.memory.available"),
        "its log is shown: {said}"
    );
}

#[test]
fn what_is_left_on_the_node_is_found() {
    skip_if!(not_root());
    let (member, said) = fails("e2e-left", Flaw::KilledAgent);
    assert!(said.contains("checks passed"), "{said}");
    assert!(
        said.contains("has left evictd.dev/memory-pressure, EvictdMemoryPressure"),
        "{said}"
    );
    assert!(taints(&member).contains("evictd.dev/memory-pressure"));
}

// Nobody evicts: the hog is killed by the kernel again and again, and patience ends.
#[test]
fn a_hog_that_stays_is_found() {
    skip_if!(not_root());
    let member = cluster("e2e-stays");
    let _played = Played::start(Arc::clone(&member), Flaw::None).unwrap();
    let (out, said) = e2e(
        &member,
        &["--threshold", "64Mi", "--rate", "1", "--patience", "3"],
    );
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("nobody has evicted the hog within 3s"),
        "{said}"
    );
    assert!(said.contains("what the cluster says of evictd"), "{said}");
    assert_clean(&member, &said);
}

// The API server may run on the node that is short of memory.
#[test]
fn a_server_that_fails_for_a_while_is_outlasted() {
    skip_if!(not_root());
    let member = cluster("e2e-trouble");
    let _played = Played::start(Arc::clone(&member), Flaw::None).unwrap();
    member.server.state().faults.push(Fault {
        method: "GET",
        path: "/api/v1/namespaces/evictd-e2e/events",
        times: 2,
        what: Misery::Status(503),
    });
    let (out, said) = e2e(&member, &["--threshold", "64Mi"]);
    assert!(out.status.success(), "{said}");
}

// The node is this machine: what was built comes into its containerd, whose snapshotter need not be the one of `ctr`, and
// the kubelet's way to a container finds it there.
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
    let member = cluster("e2e-import");
    {
        let read = |path| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let mut state = member.server.state();
        let info = &mut state.node["status"]["nodeInfo"];
        info["bootID"] = read("/proc/sys/kernel/random/boot_id").into();
        info["machineID"] = read("/etc/machine-id").into();
    }
    // What happens afterwards is told elsewhere.
    let _played = Played::start(Arc::clone(&member), Flaw::CrashLoop).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_e2e"))
        .args(["--threshold", "64Mi", "--settle", "5"])
        .arg("--manifests")
        .arg(deploy::dir().join("manifests"))
        .arg("--archives")
        .arg(archives.path())
        .env(
            "KUBECONFIG",
            member.server.kubeconfig(member.dir()).unwrap(),
        )
        .env("CONTAINERD_ADDRESS", containerd.socket())
        .output()
        .unwrap();
    let said = String::from_utf8([&out.stdout[..], &out.stderr[..]].concat()).unwrap();
    assert!(said.contains("(this machine)"), "{said}");
    for name in ["evictd", "hog"] {
        let imported = format!("imported localhost/{name}:{VERSION}");
        assert!(said.contains(&imported), "{said}");
    }
    assert_clean(&member, &said);
    let pods = Pods::connect(&containerd.socket()).unwrap();
    let sandbox = or_skip!(pods.sandbox("imported"));
    let reference = format!("localhost/hog:{VERSION}");
    let id = pods.container(
        "imported",
        &sandbox,
        0,
        &reference,
        &["/busybox", "sleep", "1000000"],
    );
    let id = id.unwrap();
    assert!(pods.containers().unwrap().iter().any(|c| c.id == id));
}

// Somebody else's evictd is neither changed nor taken away.
#[test]
fn an_evictd_that_is_there_already_is_left_alone() {
    skip_if!(not_root());
    let member = cluster("e2e-there");
    let path = "/apis/apps/v1/namespaces/evictd/daemonsets/evictd";
    let theirs = json!({
        "kind": "DaemonSet", "apiVersion": "apps/v1",
        "metadata": {"name": "evictd", "namespace": "evictd", "managedFields": [{"manager": "helm"}]},
    });
    member.server.state().others.insert(path.to_owned(), theirs);
    let (out, said) = e2e(&member, &["--threshold", "64Mi"]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("Give --installed to use it"), "{said}");
    let state = member.server.state();
    assert_eq!(state.others.len(), 1);
    assert_eq!(state.count("PATCH", "") + state.count("DELETE", ""), 0);
}
