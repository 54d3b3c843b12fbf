//! The end-to-end test where there is no cluster: it is skipped, or says what it cannot reach.

use std::{
    fs,
    net::TcpListener,
    process::{Command, Output},
};

use serde_json::json;

fn e2e(kubeconfig: Option<&str>) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
    command.env_remove("KUBECONFIG");
    if let Some(path) = kubeconfig {
        command.env("KUBECONFIG", path);
    }
    let out = command.output().unwrap();
    let said = [&out.stdout[..], &out.stderr[..]].concat();
    (out, String::from_utf8(said).unwrap())
}

#[test]
fn without_a_cluster_it_is_skipped() {
    let (out, said) = e2e(None);
    assert!(out.status.success(), "{said}");
    assert!(
        said.starts_with("SKIPPED e2e: KUBECONFIG is not set"),
        "{said}"
    );
}

#[test]
fn a_cluster_that_is_not_there_is_named() {
    let (out, said) = e2e(Some("/nowhere/kubeconfig"));
    assert!(!out.status.success());
    assert!(said.contains("KUBECONFIG cannot be used"), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    // A port on which nobody listens any more.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    let (out, said) = e2e(path.to_str());
    assert!(!out.status.success());
    assert!(said.contains("does not answer"), "{said}");
}
