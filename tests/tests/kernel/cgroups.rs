//! Cgroup events: what the kernel tells against what was done, on every hook this kernel has.

use std::os::unix::fs::MetadataExt as _;

use evictd_node::trigger::{
    cgroups::{
        CgroupEvent,
        CgroupEventKind::{self, Attached, Made, Removed},
        CgroupEvents,
    },
    hook::CountHook,
};
use evictd_tests::prelude::*;

/// Changes below a cgroup until one of this kind.
fn seen_until(
    cgroup_events: &mut CgroupEvents,
    below: &Path,
    last: CgroupEventKind,
) -> Vec<CgroupEvent> {
    let mut seen = Vec::new();
    let is_seen = until(Duration::from_secs(10), || {
        let new = std::iter::from_fn(|| cgroup_events.next_event());
        seen.extend(new.filter(|change| change.path.starts_with(below)));
        seen.iter().any(|change| change.kind == last)
    });
    assert!(is_seen, "{last:?} did not come; seen: {seen:?}");
    seen
}

fn tells_what_happens(hook: CountHook) {
    let scope = TestCgroup::new("events", 256 * MIB).unwrap();
    let (root, _) = memory_root().unwrap();
    let mut object = BpfObject::load_counts().unwrap();
    let mut cgroup_events = CgroupEvents::build_with(Ok(&mut object), &[hook]);
    or_skip!(granted(cgroup_events.selected_hook()));
    let pod = scope.child("pod1").unwrap();
    let relative: PathBuf = pod.strip_prefix(&root).unwrap().into();
    let id = fs::metadata(&pod).unwrap().ino();
    drop(Forker::start(Some(&pod)).unwrap());
    assert!(until(SOON, || fs::remove_dir(&pod).is_ok()));
    let seen = seen_until(&mut cgroup_events, &relative, Removed);
    let steps: Vec<_> = seen.iter().map(|c| c.kind).collect();
    assert_eq!(steps, [Made, Attached, Removed]);
    assert!(
        seen.iter().all(|c| c.cgroup_id == id && c.path == relative),
        "{seen:?}"
    );
    assert!(
        seen.is_sorted_by_key(|c| c.time_ns),
        "in the order in which it happened"
    );
    assert!(
        !cgroup_events.rescan_due(&object).unwrap(),
        "nothing was lost"
    );
}

scenes! {
    fn typed_hook() unless no_bpf() => tells_what_happens(CountHook::Typed);
    fn tracepoint_hook() unless no_bpf() => tells_what_happens(CountHook::Tracepoint);
}

/// Thousands of cgroups without a reader: what does not fit is dropped, counted, and made up for by one rescan.
#[test]
fn a_full_buffer_asks_for_one_rescan() {
    let scope = with_bpf!(TestCgroup::new("flood", 256 * MIB).unwrap());
    let mut object = BpfObject::load_counts().unwrap();
    let mut cgroup_events = CgroupEvents::build(Ok(&mut object));
    skip_if!(
        (cgroup_events.selected_hook().hook == CountHook::Sampler).then_some("no hook on cgroups")
    );
    let child = scope.path().join("c");
    for _ in 0..2000 {
        fs::create_dir(&child).unwrap();
        fs::remove_dir(&child).unwrap();
    }
    assert!(
        cgroup_events.rescan_due(&object).unwrap(),
        "4000 records do not fit into the buffer"
    );
    let mut read = 0;
    while cgroup_events.next_event().is_some() {
        read += 1;
    }
    assert!(read > 500, "what did fit is there: {read}");
    // Others' cgroups may have been dropped until there was room again.
    cgroup_events.rescan_due(&object).unwrap();
    assert!(
        !cgroup_events.rescan_due(&object).unwrap(),
        "one rescan is enough"
    );
    fs::create_dir(&child).unwrap();
    let (root, _) = memory_root().unwrap();
    let relative = child.strip_prefix(&root).unwrap();
    seen_until(&mut cgroup_events, relative, Made);
    assert!(!cgroup_events.rescan_due(&object).unwrap());
}

/// A path longer than a record is cut: the reader cannot know which pod it was and asks for a scan.
#[test]
fn a_path_that_is_cut_asks_for_a_rescan() {
    let scope = with_bpf!(TestCgroup::new("deep", 256 * MIB).unwrap());
    let mut object = BpfObject::load_counts().unwrap();
    let mut cgroup_events = CgroupEvents::build_with(Ok(&mut object), &[CountHook::Typed]);
    or_skip!(granted(cgroup_events.selected_hook()));
    scope
        .child(&format!("{}/{}", "a".repeat(200), "b".repeat(200)))
        .unwrap();
    let is_noticed = || {
        while cgroup_events.next_event().is_some() {}
        cgroup_events.rescan_due(&object).unwrap()
    };
    assert!(until(SOON, is_noticed));
}

#[test]
fn without_programs_a_rescan_is_always_due() {
    skip_if!(no_bpf());
    let object = BpfObject::load_counts().unwrap();
    let mut cgroup_events = CgroupEvents::build(Err("no bpf"));
    assert_eq!(cgroup_events.selected_hook().hook, CountHook::Sampler);
    assert!(cgroup_events.fd().is_none() && cgroup_events.next_event().is_none());
    assert!(
        cgroup_events.rescan_due(&object).unwrap() && cgroup_events.rescan_due(&object).unwrap()
    );
}
