//! What every hook and every decision takes for granted about the kernel below.

use evictd_node::{
    bpf::btf::Btf,
    cgroup::memory::Version,
    proc::{machine::memory_total, numa},
};
use evictd_tests::{cgroup::holds, held_in_exit::HeldInExit, node::mem_available, prelude::*};

#[test]
fn btf_describes_the_charge_path() {
    skip_if!(no_bpf());
    let btf = Btf::from_sys_fs().unwrap();
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let name = b"\0page_counter_try_charge\0";
    assert!(types.windows(name.len()).any(|w| w == name));
    assert!(btf.offset("mem_cgroup", "memory.usage").is_ok());
    assert!(btf.offset("mem_cgroup", "no_such_member").is_err());
}

/// Where the OOM killer's choice was sent SIGKILL before, no process is killed and none is counted: the reaper takes
/// its memory (`oom_kill_process`). The judge takes that for granted.
#[test]
fn an_oom_that_chooses_a_victim_of_before_kills_no_other_process() {
    skip_if!(no_memory_cgroups());
    let node = TestCgroup::new("chosen", 160 * MIB).unwrap();
    let [dying, other] = ["dying", "other"].map(|pod| node.child(pod).unwrap());
    let usage = |pod: &Path| MemoryCgroup::open(pod).unwrap().usage().unwrap();
    let mut victim = Hog::start(&dying, &["--mib", "100"]).unwrap();
    assert!(holds(&dying, 100));
    let held = HeldInExit::hold(victim.pid()).unwrap();
    victim.kill().unwrap();
    // It comes to the limit at 60.
    let mut grows = Hog::start(&other, &["--mib", "100"]).unwrap();
    let has_it_all = || !grows.is_alive() || usage(&other) >= 100 * MIB;
    assert!(until(SOON, has_it_all));
    assert!(grows.is_alive());
    let kills = [node.path(), &dying, &other].map(|dir| MemoryCgroup::open(dir).unwrap());
    assert!(kills.iter().all(|group| group.oom_kills().unwrap() == 0));
    assert!(usage(&dying) < 60 * MIB, "the reaper has taken its memory");
    drop(held);
    victim.killed();
}

/// Pages of hugetlbfs are missing in `MemAvailable` from the moment at which they are set aside, and are charged to no
/// memory counter: they make a machine's scope smaller, and cost nothing in a cgroup's.
#[test]
fn pages_of_hugetlbfs_are_in_no_memory_counter() {
    const WANTED: u64 = 64 * MIB;
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    skip_if!(not_root());
    // The pool is the machine's.
    skip_if!(not_in_guest());
    fs::write(POOL, (WANTED / (2 * MIB)).to_string()).unwrap();
    let pages: u64 = fs::read_to_string(POOL).unwrap().trim().parse().unwrap();
    if pages * 2 * MIB < WANTED {
        fs::write(POOL, "0").unwrap();
        return skip_if!(Some("no huge pages are left"));
    }
    let (node, pod) = TestCgroup::with_pod("hugetlb", 128 * MIB);
    let mut hog = Hog::start(&pod, &["--mib", "64", "--way", "hugetlb"]).unwrap();
    let free = || fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let are_used = until(SOON, || free().is_ok_and(|free| free.trim() == "0"));
    let (is_alive, usage) = (hog.is_alive(), node.usage().unwrap());
    drop(hog);
    let set_aside = mem_available();
    fs::write(POOL, "0").unwrap();
    assert!(are_used && is_alive, "{:?} are free", free());
    assert!(usage < 8 * MIB, "{usage} bytes are charged");
    // What the kernel had to free for the pool is no measure: what it gives back is, but for what stays in lists of
    // free pages by CPU, which are in no count (20 MiB were seen).
    let is_back = || mem_available() >= set_aside + WANTED / 2;
    assert!(
        until(SOON, is_back),
        "{set_aside}, then {}",
        mem_available()
    );
}

/// The machine's own cgroup version is the one that the tests work with, and not a mixture.
#[test]
fn the_guest_mounts_what_was_asked_for() {
    skip_if!(not_in_guest());
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap();
    let expected = match cmdline.contains("evictd.cgroup=v1") {
        true => Version::V1,
        false => Version::V2,
    };
    assert_eq!(memory_root().map(|(_, version)| version), Some(expected));
}

/// What is used of the NUMA nodes together is what is used of the machine. A hypervisor may have added memory that no
/// node tells of.
#[test]
fn numa_nodes_are_the_machine() {
    let nodes = numa::nodes(Path::new("/sys")).unwrap();
    skip_if!(nodes.is_empty().then_some("this kernel has no NUMA"));
    let (available, total) = (mem_available(), memory_total(Path::new("/proc")).unwrap());
    let used: u64 = nodes.iter().map(|node| node.total - node.available).sum();
    let difference = used.abs_diff(total - available);
    // The watermarks' reserves are used by the machine's count alone.
    assert!(difference <= total / 10, "{total} {available} {nodes:?}");
}

/// When the kernel says that no process is left in a cgroup, their memory has been given back. On v2 `cgroup.procs`
/// does not say that: 7.2 leaves out a process that has begun to exit and still holds its memory. `populated` does.
// R43
#[test]
fn a_cgroup_without_processes_has_given_its_memory_back() {
    skip_if!(no_memory_cgroups());
    let (node, pod) = TestCgroup::with_pod("order", 400 * MIB);
    let cgroup = MemoryCgroup::open(&pod).unwrap();
    let no_candidates = || match node.version() {
        Version::V1 => fs::read_to_string(pod.join("cgroup.procs"))
            .unwrap()
            .is_empty(),
        Version::V2 => fs::read_to_string(pod.join("cgroup.events"))
            .unwrap()
            .contains("populated 0"),
    };
    let mut hog = Hog::start(&pod, &["--mib", "300"]).unwrap();
    while cgroup.usage().unwrap() < 300 * MIB {
        assert!(hog.is_alive() && !no_candidates());
    }
    hog.kill().unwrap();
    while !no_candidates() {}
    let left = cgroup.usage().unwrap();
    assert!(left < 8 * MIB, "{left} bytes are still charged");
    hog.killed();
}

/// What processes have is in the lines of `memory.stat` that are flushed: what is charged and in none of them is
/// little, and changes slowly. By that the fast path knows a reading that lags.
// R28
#[test]
fn what_is_charged_is_in_the_statistics() {
    skip_if!(no_memory_cgroups());
    let (node, pod) = TestCgroup::with_pod("listed", 400 * MIB);
    let cgroup = MemoryCgroup::open(node.path()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for way in ["touch", "cache"] {
        let mut hog = Hog::start(&pod, &["--mib", "96", "--way", way, "--dir", dir]).unwrap();
        // Kernels before 6.7 flush what is little every two seconds only.
        let is_there = until(Duration::from_secs(30), || {
            let reading = cgroup.read().unwrap();
            assert!(hog.is_alive(), "{way}: {reading:?}");
            reading.usage >= 96 * MIB && reading.uncategorized < 8 * MIB
        });
        assert!(is_there, "{way}: {:?}", cgroup.read());
    }
}
