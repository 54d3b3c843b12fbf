//! What every rung and every decision takes for granted about the kernel below.

use std::fs;

use evictd::{
    kernel::btf::Btf,
    observe::cgroup::{MemoryCgroup, Version},
};
use evictd_tests::{
    cgroup::{TestCgroup, memory_root},
    hog::Hog,
    skip::{no_bpf, not_root},
    skip_if,
};

const MIB: u64 = 1 << 20;

#[test]
fn btf_describes_the_charge_path() {
    skip_if!(no_bpf());
    let btf = Btf::of_kernel().unwrap();
    assert!(btf.has_function("page_counter_try_charge"));
    assert!(btf.offset("mem_cgroup", "memory.usage").is_ok());
    assert!(btf.offset("mem_cgroup", "no_such_member").is_err());
}

/// A cgroup that is pushed over its limit loses a process to the OOM killer, and both are counted where we look.
#[test]
fn an_oom_kill_at_a_limit_is_real_and_counted() {
    skip_if!(not_root());
    skip_if!(memory_root().is_none().then_some("no memory cgroups here"));
    let node = TestCgroup::new("facts", 48 * MIB).unwrap();
    let pod = node.child("pod").unwrap();
    let cgroup = MemoryCgroup::open(node.path()).unwrap();
    assert_eq!(cgroup.oom_kills().unwrap(), 0);
    let mut hog = Hog::start(&pod, &["--mib", "96"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    let file = match node.version() {
        // On v1 a kill is counted where the victim was, on v2 in the limited cgroup as well.
        Version::V1 => pod.join("memory.oom_control"),
        Version::V2 => node.path().join("memory.events"),
    };
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.lines().any(|line| line == "oom_kill 1"),
        "{}: {text}",
        file.display()
    );
}

/// The machine's own cgroup version is the one that the tests work with, and not a mixture.
#[test]
fn the_guest_mounts_what_was_asked_for() {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap();
    let asked = cmdline
        .split_whitespace()
        .find_map(|word| word.strip_prefix("evictd.cgroup="));
    skip_if!(
        asked
            .is_none()
            .then_some("not inside a guest of cargo xtask vm")
    );
    let expected = match asked {
        Some("v1") => Version::V1,
        _ => Version::V2,
    };
    assert_eq!(memory_root().map(|(_, version)| version), Some(expected));
}
