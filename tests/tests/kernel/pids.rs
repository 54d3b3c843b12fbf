//! The PID trigger against the files that show the same numbers, on every hook this kernel has. The count is the node's: the storms of
//! one test are the noise of another, and so each runs alone.

use evictd_node::{
    proc::pids::Pids,
    trigger::{
        cgroups::CgroupEvents,
        counter::CountDirection::{Below, Recovered},
        hook::CountHook,
        pids::PidTrigger,
    },
};
use evictd_tests::prelude::*;

use super::limit;

/// Tasks that may be on their way out of the count: a busy machine has some hundred.
const LATE: i64 = 100;

/// The trigger with this hook; an error where the kernel refuses it.
fn build(object: &mut BpfObject, hook: CountHook) -> Result<PidTrigger, String> {
    let pids = Pids::open(Path::new("/proc")).unwrap();
    let trigger = PidTrigger::build_with(pids, Ok(object), &[hook]);
    granted(trigger.selected_hook())?;
    Ok(trigger)
}

/// The file and the count agree, but for `LATE` tasks. A reaped task stays in the count for an RCU grace period, others start and
/// end tasks all the time, and the base was taken at such a moment, too. A count that loses or doubles something is off by as much
/// as this test makes, for good.
fn lies_between(trigger: &PidTrigger) -> Result<(), String> {
    let file = || trigger.read().unwrap().available();
    super::lies_between(LATE, file, || trigger.counted().unwrap())
}

/// Read file, read map, read file: before, in the middle of, and after a storm, without a correction in between.
///
/// Ends are told in the RCU callbacks of whatever a CPU is doing when the grace period is over. Where that is another
/// program's work (`bpf_prog_active` in `trace_call_bpf`), or a task that the kernel keeps from programs, nothing is
/// told of the whole batch, and the next sample corrects it. That needs an unlucky moment; a count that is wrong by
/// itself is wrong in every storm.
fn counts_what_the_file_counts(hook: CountHook) {
    let _alone = alone();
    let (_cgroup, pod) = TestCgroup::with_pod("pids", 256 * MIB);
    let mut object = BpfObject::load_counts().unwrap();
    let mut trigger = or_skip!(build(&mut object, hook));
    let id = MemoryCgroup::open(&pod).unwrap().id();
    let mut forker = Forker::start(Some(&pod)).unwrap();
    let mut wrong = Vec::new();
    while let Err(why) = counts_a_storm(&mut trigger, &mut forker, id) {
        wrong.push(why);
        assert!(wrong.len() < 5, "in each storm: {wrong:#?}");
        println!("again: {wrong:?}");
    }
    matrix(
        "pid.available",
        &hook.to_string(),
        "counts what the file counts",
    );
}

/// 2200 tasks that come and go.
fn counts_a_storm(trigger: &mut PidTrigger, forker: &mut Forker, id: u64) -> Result<(), String> {
    // What was reaped just before the programs were attached is not counted: let it pass.
    std::thread::sleep(Duration::from_millis(100));
    trigger.sample().unwrap();
    let corrections = trigger.drift().corrections;
    let start = trigger.cgroup_count(id).unwrap_or_default();
    let stage = |what: &str, trigger: &PidTrigger| {
        lies_between(trigger).map_err(|why| format!("{what}: {why}"))
    };
    let before = stage("before", trigger);
    forker.order("hold 200").unwrap();
    let more = stage("with 200 more tasks", trigger);
    forker.order("storm 2000").unwrap();
    forker.order("drop").unwrap();
    let after = stage("after 2200 tasks", trigger);
    before.and(more).and(after)?;
    if trigger.drift().corrections != corrections {
        return Err("a sample has corrected something".to_owned());
    }

    let gone = || trigger.cgroup_count(id).unwrap().gone - start.gone;
    let all = 2200 - LATE..=2200;
    wait_for(Duration::from_secs(5), || {
        all.contains(&gone()).then_some(())
    })
    .ok_or_else(|| format!("{} ended in this cgroup", gone()))?;
    match trigger.cgroup_count(id).unwrap().made - start.made {
        2200 => Ok(()),
        made => Err(format!("{made} started in this cgroup")),
    }
}

scenes! {
    // R1, R39
    fn typed_hook_counts() unless no_bpf() => counts_what_the_file_counts(CountHook::Typed);
    // R1, R39
    fn tracepoint_hook_counts() unless no_bpf() => counts_what_the_file_counts(CountHook::Tracepoint);
}

/// Without BTF, and with memory in a hierarchy that is not the default one: all tasks are counted, and no pod has a
/// count.
#[test]
fn without_types_no_count_is_of_another_hierarchy() {
    skip_if!(no_bpf());
    let _alone = alone();
    for hierarchy in [0, 3] {
        let mut object = BpfObject::load_counts_untyped(hierarchy).unwrap();
        let mut trigger = or_skip!(build(&mut object, CountHook::Tracepoint));
        trigger.sample().unwrap();
        let mut forker = Forker::start(None).unwrap();
        forker.order("hold 300").unwrap();
        lies_between(&trigger).unwrap();
        assert_eq!(trigger.cgroup_counts().is_empty(), hierarchy != 0);
    }
}

/// A limit of 300 tasks: fewer do not trip it, more do, once; and the way back is told as well.
fn crosses_both_ways(hook: CountHook) {
    const BUDGET: i64 = 300;
    let _alone = alone();
    let (_cgroup, pod) = TestCgroup::with_pod("budget", 256 * MIB);
    let mut object = BpfObject::load_counts().unwrap();
    let mut trigger = or_skip!(build(&mut object, hook));
    let mut forker = Forker::start(Some(&pod)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let available = trigger.sample().unwrap().available - BUDGET;
    // Slot 2: the two in front of it are never armed and must not be in the way.
    trigger.arm(2, limit(available, Below)).unwrap();
    forker.order("hold 100").unwrap();
    assert!(
        wait_for(Duration::from_millis(50), || trigger.next_crossing()).is_none(),
        "two thirds of the limit are left"
    );
    // Far beyond it: ends of others that are told late give something of the limit back.
    forker.order("hold 900").unwrap();
    let crossed = wait_for(Duration::from_secs(10), || trigger.next_crossing());
    let crossed = crossed.unwrap_or_else(|| {
        let (counted, file) = (trigger.counted(), trigger.read());
        panic!(
            "the trigger at {available} has not tripped: counted {counted:?}, the file says {file:?}"
        )
    });
    assert_eq!((crossed.counter, crossed.slot), (0, 2));
    assert!(crossed.available < available, "{crossed:?}");
    assert!(
        crossed.available > available - LATE,
        "at the fork that used it up: {crossed:?}"
    );
    assert!(trigger.next_crossing().is_none(), "once per arming");

    trigger.arm(3, limit(available, Recovered)).unwrap();
    forker.order("drop").unwrap();
    let crossed =
        wait_for(Duration::from_secs(10), || trigger.next_crossing()).expect("recovery is told");
    assert_eq!(crossed.slot, 3);
    assert!(crossed.available >= available, "{crossed:?}");
    let again = wait_for(Duration::from_millis(100), || trigger.next_crossing());
    assert!(again.is_none(), "once per arming: {again:?}");

    trigger.arm(2, None).unwrap();
    forker.order("hold 500").unwrap();
    let cleared = wait_for(Duration::from_millis(100), || trigger.next_crossing());
    assert!(cleared.is_none(), "a cleared trigger: {cleared:?}");
    matrix("pid.available", &hook.to_string(), "crossed both ways");
}

scenes! {
    // R39, R40
    fn typed_hook_crosses() unless no_bpf() => crosses_both_ways(CountHook::Typed);
    // R39, R40
    fn tracepoint_hook_crosses() unless no_bpf() => crosses_both_ways(CountHook::Tracepoint);
}

/// Tasks that come while no program is attached are what a hook that misses counts looks like.
#[test]
fn drift_is_found_corrected_and_counted() {
    skip_if!(no_bpf());
    let _alone = alone();
    let (_cgroup, pod) = TestCgroup::with_pod("drift", 256 * MIB);
    let mut forker = Forker::start(Some(&pod)).unwrap();
    let mut object = BpfObject::load_counts().unwrap();
    let mut trigger = or_skip!(build(&mut object, CountHook::Typed));
    trigger.sample().unwrap();
    object.detach("pids_new");
    forker.order("hold 500").unwrap();
    let sample = trigger.sample().unwrap();
    let off = sample.counted.unwrap() - sample.available;
    assert!(off >= 450, "500 tasks were missed, {off} found");
    assert!(trigger.drift().total >= 450 && trigger.drift().corrections >= 1);
    let sample = trigger.sample().unwrap();
    let off = (sample.counted.unwrap() - sample.available).abs();
    assert!(off < 100, "corrected, but for others' tasks: {off}");
}

/// What a removed container did stays with its pod, and thousands of removed cgroups leave nothing behind.
#[test]
fn counts_of_removed_cgroups_are_added_to_the_parents() {
    skip_if!(no_bpf());
    let _alone = alone();
    let cgroup = TestCgroup::new("counts", 256 * MIB).unwrap();
    let mut object = BpfObject::load_counts().unwrap();
    let trigger = or_skip!(build(&mut object, CountHook::Typed));
    let cgroup_events = CgroupEvents::build_with(Ok(&mut object), &[CountHook::Typed]);
    or_skip!(granted(cgroup_events.selected_hook()));
    let pod = cgroup.child("pod1").unwrap();
    let pod_id = MemoryCgroup::open(&pod).unwrap().id();
    let container = cgroup.child("pod1/container").unwrap();
    let id = MemoryCgroup::open(&container).unwrap().id();
    {
        let mut forker = Forker::start(Some(&container)).unwrap();
        forker.order("storm 100").unwrap();
    }
    assert!(trigger.cgroup_count(id).is_some_and(|s| s.made >= 100));
    remove(&container);
    assert_eq!(trigger.cgroup_count(id), None, "gone with its cgroup");
    assert!(trigger.cgroup_count(pod_id).is_some_and(|s| s.made >= 100));

    let before = trigger.cgroup_counts().len();
    for n in 0..1000 {
        let child = cgroup.child(&format!("pod1/c{n}")).unwrap();
        if n % 100 == 0 {
            let mut forker = Forker::start(Some(&child)).unwrap();
            forker.order("storm 1").unwrap();
        }
        remove(&child);
    }
    std::thread::sleep(Duration::from_millis(100));
    // Cgroups of others may come and go meanwhile.
    let after = trigger.cgroup_counts().len();
    assert!(after < before + 10, "{before} counts before, {after} after");
}

/// A killed process leaves its cgroup a moment after it was reaped.
fn remove(cgroup: &Path) {
    let removed = until(Duration::from_secs(5), || fs::remove_dir(cgroup).is_ok());
    assert!(removed, "{} stays", cgroup.display());
}

/// Without an object there is no hook, no descriptor to wait on, and no error.
#[test]
fn without_programs_the_sampler_is_left() {
    let pids = Pids::open(Path::new("/proc")).unwrap();
    let mut trigger = PidTrigger::build(pids, Err("no bpf"));
    assert_eq!(trigger.selected_hook().hook, CountHook::Sampler);
    assert_eq!(
        trigger.selected_hook().refused[0],
        (CountHook::Typed, "no bpf".into())
    );
    assert!(trigger.fd().is_none() && trigger.next_crossing().is_none());
    assert!(trigger.sample().unwrap().available > 0);
    matrix("pid.available", "sampler", "read from procfs");
}
