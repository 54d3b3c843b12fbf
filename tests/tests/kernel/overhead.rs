//! What the programs cost: a page-fault loop, a fork loop and a file-creation loop with them attached and without, in
//! one run.
//!
//! CPU time, not elapsed time: the machine has other things to do. Figures are printed and never asserted:
//! `cargo test --test kernel overhead -- --nocapture`.

use std::fmt::Display;

use evictd_node::{
    proc::pids::Pids,
    trigger::{
        counter::{CountDirection, CountTrigger},
        hook::CountHook,
        inodes::InodeTrigger,
        memory::{self, Action, Direction},
        pids::PidTrigger,
    },
};
use evictd_tests::prelude::*;

const NEVER: CountTrigger = CountTrigger {
    available: i64::MIN / 2,
    direction: CountDirection::Below,
};

/// Alternates the two, so that what else the machine does hits both alike; the least of each side is the cleanest.
fn compare(mut run: impl FnMut(bool) -> Duration) -> (Duration, Duration) {
    const ROUNDS: usize = 15;
    let mut least = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for with in [false, true] {
            let side = &mut least[usize::from(with)];
            *side = run(with).min(*side);
        }
    }
    (least[0], least[1])
}

fn print(what: &str, hook: impl Display, n: u32, (without, with): (Duration, Duration)) {
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    let text = format!(
        "{what}, {hook}: {:?} without, {:?} with, ratio {ratio:.3}\n",
        without / n,
        with / n
    );
    use std::io::Write as _;
    // Past the harness's capture: a figure that is not shown is none.
    let _ = std::io::stderr().write_all(text.as_bytes());
    assert!(with > Duration::ZERO && without > Duration::ZERO);
}

type Attached<T> = Result<T, Box<dyn std::error::Error>>;

/// Measures orders of a forker, which do something so many times, or says why the programs cannot be attached.
fn measure<T>(
    what: &str,
    (hook, n): (impl Display, u32),
    pod: Option<&Path>,
    orders: &[String],
    attach: impl Fn() -> Attached<T>,
) {
    if let Err(why) = attach() {
        evictd_tests::skip::skipped(&format!("kernel::overhead: {what}"), &why.to_string());
        return;
    }
    let mut forker = Forker::start(pod).unwrap();
    let pair = compare(|with| {
        let _held = with.then(|| attach().unwrap());
        orders.iter().map(|o| forker.order(o).unwrap()).sum()
    });
    print(what, hook, n, pair);
}

/// One after the other: the programs of one would be the overhead of the other.
#[test]
fn faults_forks_and_files() {
    skip_if!(no_bpf());
    skip_if!(in_guest().then_some("the figures of an emulated machine say nothing"));
    faults();
    forks();
    files();
}

/// The triggers that an agent near its threshold has: hard, floor, and one that is compared and never crossed.
fn faults() {
    const N: u32 = 20_000;
    let (scope, pod) = TestCgroup::with_pod("overhead", 256 << 20);
    let cgroup = MemoryCgroup::open(scope.path()).unwrap();
    let hooks = MemoryHook::BY_PREFERENCE.into_iter();
    for hook in hooks.filter(|hook| hook.has_program()) {
        let orders = [format!("fault {N}")];
        measure("page fault", (hook, N), Some(&pod), &orders, || {
            let mut object = BpfObject::load()?;
            let built = memory::build(&[&cgroup], Ok(&mut object), Some(hook))?;
            let mut trigger = built.trigger;
            let actions = [Action::Wake, Action::Kill, Action::Wake];
            for (slot, action) in actions.into_iter().enumerate() {
                let limit = memory::Trigger {
                    limit: 1 << 40,
                    direction: Direction::Rising,
                    action,
                    ..memory::Trigger::DISABLED
                };
                trigger.arm(slot, limit)?;
            }
            trigger.set_near(true)?;
            Ok((object, trigger))
        });
    }
}

fn forks() {
    const N: u32 = 500;
    for hook in [CountHook::Typed, CountHook::Tracepoint] {
        let orders = [format!("storm {N}")];
        measure("fork and reap", (hook, N), None, &orders, || {
            let mut object = BpfObject::load_counts()?;
            let pids = Pids::open(Path::new("/proc"))?;
            let mut trigger = PidTrigger::build_with(pids, Ok(&mut object), &[hook]);
            granted(trigger.selected_hook())?;
            trigger.arm(0, Some(NEVER))?;
            trigger.arm(1, Some(NEVER))?;
            trigger.sample()?;
            Ok((object, trigger))
        });
    }
}

fn files() {
    const N: u32 = 2000;
    for (kind, hook) in [
        ("ext4", CountHook::Typed),
        ("ext4", CountHook::Tracepoint),
        ("xfs", CountHook::Tracepoint),
        ("btrfs", CountHook::Typed),
    ] {
        let disk = or_skip!(Disk::new(kind, 384, 50_000));
        let dir = disk.path().join("files");
        fs::create_dir(&dir).unwrap();
        let orders = ["make", "remove"].map(|verb| format!("{verb} {} {N}", dir.display()));
        let what = format!("make and remove a file on {kind}");
        measure(&what, (hook, N), None, &orders, || {
            let mut object = BpfObject::load_counts()?;
            let disk = disk.path();
            let mut trigger = InodeTrigger::build_with(&[&disk], Ok(&mut object), &[hook])?;
            granted(trigger.selected_hook(0).ok_or("no filesystem")?.1)?;
            trigger.arm(0, 0, Some(NEVER))?;
            trigger.arm(0, 1, Some(NEVER))?;
            trigger.sample(0)?;
            Ok((object, trigger))
        });
    }
}
