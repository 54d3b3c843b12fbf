//! What the kernel's verifier has to look at before it lets a program in. It gives up at a million instructions, and newer
//! kernels look at more of the same program than older ones: a program that is close to that runs on one kernel only.

use evictd_node::trigger::memory::build;
use evictd_tests::prelude::*;

/// `BPF_COMPLEXITY_LIMIT_INSNS` (include/linux/bpf.h).
const LIMIT: u64 = 1_000_000;

/// `verified_insns` of the programs that this process holds (`bpf_prog_show_fdinfo`, 5.16+).
fn verified() -> Vec<u64> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        // The directory's own descriptor is gone by now.
        let Ok(info) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let count = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
        found.extend(count.map(|count| count.trim().parse::<u64>().unwrap()));
    }
    found
}

#[test]
fn memory_programs_are_far_from_the_limit() {
    skip_if!(no_bpf());
    let cgroup = TestCgroup::new("verifier", 64 * MIB).unwrap();
    let scope = MemoryCgroup::open(cgroup.path()).unwrap();
    let (mut any, mut built) = (false, 0);
    for hook in [
        MemoryHook::Fexit,
        MemoryHook::Kprobe,
        MemoryHook::Tracepoint,
    ] {
        let mut object = BpfObject::load().unwrap();
        if build(&[&scope], Ok(&mut object), Some(hook)).is_err() {
            continue;
        }
        built += 1;
        let counts = verified();
        println!("{hook}: {counts:?}");
        any |= !counts.is_empty();
        let most = counts.into_iter().max().unwrap_or(0);
        assert!(most < LIMIT / 2, "{hook}: {most} of {LIMIT}");
    }
    assert!(built > 0, "this kernel takes none of the programs");
    skip_if!((!any).then_some("this kernel does not tell what the verifier has looked at"));
}
