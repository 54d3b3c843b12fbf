//! The agent with exactly what the DaemonSet gives it: root with a handful of capabilities and no way to more.

use std::{io, os::unix::process::CommandExt as _};

use evictd_tests::{
    agent::binary,
    deploy::{self, Chart},
    prelude::*,
};

use super::container::{cast, effective, only_wild_is_evicted};

const LAST: libc::c_ulong = 40;

/// The capabilities of the DaemonSet's container.
fn granted() -> Vec<libc::c_ulong> {
    let chart = Chart::plain().unwrap();
    let names = chart.container()["securityContext"]["capabilities"]["add"].as_array();
    let number = |name: &Value| {
        let known = deploy::CAPABILITIES.iter().find(|(n, _)| name == n);
        known
            .map(|(_, number)| libc::c_ulong::from(*number))
            .unwrap_or_else(|| panic!("{name} is new: which number has it?"))
    };
    names.unwrap().iter().map(number).collect()
}

/// As a container runtime starts a container's root: a bounding set, and no new privileges.
fn limit(command: &mut Command, keep: Vec<libc::c_ulong>) {
    let restrict = move || {
        for capability in (0..=LAST).filter(|c| !keep.contains(c)) {
            // SAFETY: plain numbers; older kernels refuse capabilities that they do not know, which is as good.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        // SAFETY: plain numbers.
        match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes system calls only and allocates nothing.
    unsafe { command.pre_exec(restrict) };
}

/// What `evictd check` finds: topic and state.
fn check(keep: Option<Vec<libc::c_ulong>>) -> Vec<(String, String)> {
    let mut command = Command::new(binary().unwrap());
    command.args(["check", "-o", "json"]);
    if let Some(keep) = keep {
        limit(&mut command, keep);
    }
    let out = command.output().unwrap();
    let said: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let findings = said["findings"].as_array().unwrap().iter();
    findings
        .map(|f| (f["topic"].to_string(), f["state"].to_string()))
        .collect()
}

#[test]
fn nothing_is_missing_that_root_would_have() {
    skip_if!(no_bpf());
    let all = check(None);
    assert!(all.len() > 5, "{all:?}");
    assert_eq!(check(Some(granted())), all);
    // Each of these is missed when it is not there.
    for name in ["KILL", "IPC_LOCK", "SYS_NICE", "PERFMON", "BPF"] {
        let without = deploy::CAPABILITIES.iter().find(|(n, _)| *n == name);
        let without = libc::c_ulong::from(without.unwrap().1);
        let keep: Vec<_> = granted().into_iter().filter(|c| *c != without).collect();
        assert_ne!(check(Some(keep)), all, "without {name}");
    }
}

// R42
#[test]
fn a_pod_is_evicted_with_these_capabilities_alone() {
    skip_if!(not_root());
    let member = ClusterNode::new("least", 256).unwrap();
    let (mut bystander, wild) = cast(&member);
    let config = member.write().unwrap();
    let agent = Agent::start_as(&config, &[], |command| limit(command, granted())).unwrap();
    // The user of this test may lack some of them too.
    let mask = granted().iter().fold(0, |mask, c| mask | 1 << c) & effective("self");
    assert_eq!(effective(agent.pid()), mask);

    Hog::until_killed(&wild, &["--mib", "1024"]);
    only_wild_is_evicted(&member, &mut bystander);
}
