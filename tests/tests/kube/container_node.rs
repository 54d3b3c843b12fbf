//! A node that is a container (kind, k3d, minikube): what is mounted is the container's cgroup, and the kernel tells paths from the
//! real root.

use std::os::unix::process::CommandExt as _;

use evictd_tests::prelude::*;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

/// From now on this process sees the node's cgroup alone.
fn see_only(node: &Path, root: &Path) -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(node), root, none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Its memory is the container's limit, and a pod is known from its first moment on, long before all directories are compared.
#[test]
fn a_pod_of_a_node_that_is_a_container_is_seen_and_evicted() {
    skip_if!(no_bpf());
    let mut member = ClusterNode::new("container", 256).unwrap();
    member.config.as_object_mut().unwrap().remove("scope");
    let config = member.write().unwrap();
    let (root, _) = memory_root().unwrap();
    let node = member.cgroup.path().to_owned();
    let agent = Agent::start_as(&config, &[], |command| {
        // SAFETY: after the fork only system calls are made, and the paths were made before.
        unsafe { command.pre_exec(move || see_only(&node, &root)) };
    });
    let mut agent = agent.unwrap();
    let wild = member.pod("wild", 1, "BestEffort", 0, None).unwrap();
    let mut hog = Hog::start(&wild, &["--mib", "1024", "--rate", "200"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(
        member.wait(SOON, |m| m.evictions().len() == 1),
        "{}",
        agent.log()
    );
    assert_eq!(member.evictions()[0].uid, ClusterNode::uid(1));
    let scope = MemoryCgroup::open(member.cgroup.path()).unwrap();
    assert_eq!(scope.oom_kills().unwrap(), 0);
    let capacity = format!("capacity={}", 256 * MIB);
    assert!(agent.log().contains(&capacity), "{}", agent.log());
    assert_eq!(agent.terminate().unwrap(), Some(0));
}
