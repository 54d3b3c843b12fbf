//! The agent with exactly what the DaemonSet gives it: root with a handful of capabilities and no way to more.

use evictd_tests::{
    agent::{binary, limit_capabilities},
    deploy::{self, Chart},
    prelude::*,
};

use super::container::{cast, effective, only_wild_is_evicted};

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

/// What `evictd check` finds: topic and state.
fn check(keep: Option<Vec<libc::c_ulong>>) -> Vec<(String, String)> {
    let mut command = Command::new(binary().unwrap());
    command.args(["check", "-o", "json"]);
    if let Some(keep) = keep {
        limit_capabilities(&mut command, move |c| keep.contains(&c));
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
    let member = as_root!(ClusterNode::new("least", 256).unwrap());
    let (mut bystander, wild) = cast(&member);
    let config = member.write().unwrap();
    let keep = granted();
    let limit = |command: &mut Command| limit_capabilities(command, move |c| keep.contains(&c));
    let agent = Agent::start_as(&config, &[], limit).unwrap();
    // The user of this test may lack some of them too.
    let mask = granted().iter().fold(0, |mask, c| mask | 1 << c) & effective("self");
    assert_eq!(effective(agent.pid()), mask);

    Hog::until_killed(&wild, &["--mib", "1024"]);
    only_wild_is_evicted(&member, &mut bystander);
}
