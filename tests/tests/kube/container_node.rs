//! A node that is a container (kind, k3d, minikube): what is mounted is the container's cgroup, and the kernel tells paths from the
//! real root.

use std::os::unix::process::CommandExt as _;

use evictd_tests::{mounts, prelude::*};
/// From now on this process sees the node's cgroup alone.
fn see_only(node: &Path, root: &Path) -> io::Result<()> {
    mounts::apart()?;
    mounts::bind(node, root)
}

/// Its memory is the container's limit, and a pod is known from its first moment on, long before all directories are compared.
#[test]
fn a_pod_of_a_node_that_is_a_container_is_seen_and_evicted() {
    let mut member = with_bpf!(ClusterNode::new("container", 256).unwrap());
    member.config.as_object_mut().unwrap().remove("scope");
    let config = member.write().unwrap();
    let (root, _) = memory_root().unwrap();
    let node = member.cgroup.path().to_owned();
    let agent = Agent::start_as(&config, &[], |command| {
        // SAFETY: after the fork only system calls are made, and the paths were made before.
        unsafe { command.pre_exec(move || see_only(&node, &root)) };
    });
    let agent = agent.unwrap().ends_well();
    let wild = member.best_effort("wild", 1);
    Hog::until_killed(&wild, &["--mib", "1024", "--rate", "200"]);
    assert_eq!(member.evicted(1).len(), 1);
    assert_eq!(member.evictions()[0].uid, ClusterNode::uid(1));
    assert_eq!(member.cgroup.oom_kills().unwrap(), 0);
    let capacity = format!("capacity={}", 256 * MIB);
    assert!(agent.log().contains(&capacity));
}
