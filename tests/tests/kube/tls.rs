//! The API server behind TLS: by a kubeconfig, by the pod's service account, and with a certificate that is not trusted.

use std::os::unix::process::CommandExt as _;

use evictd_tests::{mounts, prelude::*, tls::Authority};
use nix::mount::{MsFlags, mount};

/// A node with a pod, and the pod's cgroup; its API server speaks TLS.
fn with_tls(name: &str) -> (ClusterNode, PathBuf) {
    let server = ApiServer::start_tls().unwrap();
    let member = ClusterNode::of(server, name, 256).unwrap();
    let wild = member.best_effort("wild", 1);
    (member, wild)
}

/// A hog is evicted, and the server has heard of it.
fn an_eviction_is_reported(member: &ClusterNode, wild: &Path) {
    member.evicts(wild, "deleted");
    assert_eq!(member.evicted(1), ["wild"]);
}

#[test]
fn a_kubeconfig_with_an_authority() {
    let (member, wild) = as_root!(with_tls("tls"));
    let _agent = member.start().unwrap();
    an_eviction_is_reported(&member, &wild);
}

/// The cluster's authority is rotated while the agent runs: the file with it is read again.
#[test]
fn an_authority_that_is_rotated_is_trusted() {
    let (mut member, wild) = as_root!(with_tls("rotated"));
    let _agent = member.start().unwrap();
    let has_begun = |m: &ClusterNode| m.server.state().watches() > 1;
    assert!(member.wait(SOON, has_begun));
    // The others come with them.
    std::thread::sleep(Duration::from_secs(1));
    let watches = member.server.state().watches();
    let file = member.dir().join("ca.crt");
    let rotated = member.server.rotate_authority(|pem| fs::write(file, pem));
    rotated.unwrap();
    // Each of them, as before.
    let are_watched = |m: &ClusterNode| m.server.state().watches() >= watches;
    assert!(member.wait(SOON, are_watched));
    an_eviction_is_reported(&member, &wild);
}

/// Without TLS, on a machine that has no certificates of authorities.
#[test]
fn plain_http_needs_no_authority() {
    let (member, wild) = as_root!(ClusterNode::with_wild("plain").unwrap());
    let config = member.write().unwrap();
    let _agent = Agent::start_as(&config, &[], |command| {
        let none = member.dir().join("none");
        command
            .env("SSL_CERT_FILE", &none)
            .env("SSL_CERT_DIR", none);
    })
    .unwrap()
    .ends_well();
    an_eviction_is_reported(&member, &wild);
}

/// As a DaemonSet's pod finds it: two variables, and three files at a fixed place.
#[test]
fn the_service_account_of_a_pod() {
    let (mut member, wild) = as_root!(with_tls("account"));
    member.server.state().token = Some("mounted".into());
    let account = member.dir().join("kubernetes.io/serviceaccount");
    fs::create_dir_all(&account).unwrap();
    fs::write(account.join("token"), "mounted").unwrap();
    fs::write(account.join("ca.crt"), member.server.authority()).unwrap();
    fs::write(account.join("namespace"), "evictd").unwrap();
    let cluster = member.config["cluster"].as_object_mut().unwrap();
    cluster.remove("kubeconfig");
    let config = member.write().unwrap();

    let secrets = member.dir().to_owned();
    let port = member.server.address().port().to_string();
    let agent = Agent::start_as(&config, &[], |command| {
        command
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", port);
        // SAFETY: after the fork only system calls are made, and the paths were made before.
        unsafe { command.pre_exec(move || mount_account(&secrets)) };
    });
    let _agent = agent.unwrap().ends_well();
    an_eviction_is_reported(&member, &wild);
}

/// The account's files where they are looked for, seen by this process and its children only.
fn mount_account(from: &Path) -> io::Result<()> {
    mounts::apart()?;
    let none: Option<&str> = None;
    // `/run` holds nothing that the agent needs here, and may lack the directory.
    mount(none, "/run", Some("tmpfs"), MsFlags::empty(), none)?;
    nix::unistd::mkdir("/run/secrets", nix::sys::stat::Mode::S_IRWXU)?;
    mounts::bind(from, Path::new("/run/secrets"))
}

/// A server that is not the cluster's: the agent does its work with what the cgroups tell, and sends nothing there.
#[test]
fn an_untrusted_certificate() {
    let (member, wild) = as_root!(with_tls("distrust"));
    fs::write(member.dir().join("ca.crt"), Authority::new().unwrap().pem()).unwrap();
    let _agent = member.start().unwrap();
    Hog::until_killed(&wild, &["--mib", "1024"]);
    assert_eq!(member.evicted(1).len(), 1);
    assert_eq!(member.evictions()[0].uid, ClusterNode::uid(1));
    assert!(member.reported().is_empty());
    assert!(member.server.state().requests.is_empty(), "nobody came in");
}
