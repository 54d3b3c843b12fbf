//! What the programs cost: a page-fault loop, a fork loop and a file-creation loop with them attached and without, in
//! one run.
//!
//! CPU time, not elapsed time: the machine has other things to do. Figures are printed and never asserted:
//! `cargo test --test kernel overhead -- --nocapture`.

use std::fmt::Display;

use evictd_node::{
    proc::pids::Pids,
    trigger::{
        counter::{Crossing, Trigger},
        hook::CountHook,
        inodes::InodeTrigger,
        memory::{self, Action, Direction},
        pids::PidTrigger,
    },
};
use evictd_tests::prelude::*;

const NEVER: Trigger = Trigger {
    available: i64::MIN / 2,
    crossing: Crossing::Below,
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
    let scope = TestCgroup::new("overhead", 256 << 20).unwrap();
    let pod = scope.child("pod").unwrap();
    let cgroup = MemoryCgroup::open(scope.path()).unwrap();
    for hook in [
        MemoryHook::Fexit,
        MemoryHook::Kprobe,
        MemoryHook::Tracepoint,
    ] {
        let armed = || -> Result<_, String> {
            let mut object = BpfObject::load().map_err(|e| e.to_string())?;
            let built = memory::build(&[&cgroup], Ok(&mut object), Some(hook));
            let mut trigger = built.map_err(|e| e.to_string())?.trigger;
            for slot in 0..3 {
                let limit = memory::Trigger {
                    limit: 1 << 40,
                    direction: Direction::Rising,
                    action: if slot == 1 {
                        Action::Kill
                    } else {
                        Action::Wake
                    },
                    ..memory::Trigger::DISABLED
                };
                trigger.arm(slot, limit).map_err(|e| e.to_string())?;
            }
            trigger.set_near(true).map_err(|e| e.to_string())?;
            Ok((object, trigger))
        };
        if let Err(why) = armed() {
            evictd_tests::skip::skipped("kernel::overhead: page faults", &why);
            continue;
        }
        let mut forker = Forker::start(Some(&pod)).unwrap();
        let pair = compare(|with| {
            let _held = with.then(|| armed().unwrap());
            forker.order(&format!("fault {N}")).unwrap()
        });
        print("page fault", hook, N, pair);
    }
}

fn forks() {
    const N: u32 = 500;
    for hook in [CountHook::Typed, CountHook::Tracepoint] {
        let armed = || -> Result<_, String> {
            let mut object = BpfObject::load_counts().map_err(|e| e.to_string())?;
            let pids = Pids::open(Path::new("/proc")).map_err(|e| e.to_string())?;
            let built = PidTrigger::build(pids, Ok(&mut object), Some(hook));
            let mut trigger = built.map_err(|e| e.to_string())?;
            trigger.arm(0, Some(NEVER)).map_err(|e| e.to_string())?;
            trigger.arm(1, Some(NEVER)).map_err(|e| e.to_string())?;
            trigger.sample().map_err(|e| e.to_string())?;
            Ok((object, trigger))
        };
        if let Err(why) = armed() {
            evictd_tests::skip::skipped("kernel::overhead: forks", &why);
            continue;
        }
        let mut forker = Forker::start(None).unwrap();
        let pair = compare(|with| {
            let _held = with.then(|| armed().unwrap());
            forker.order(&format!("storm {N}")).unwrap()
        });
        print("fork and reap", hook, N, pair);
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
        let probe = BpfObject::load_counts().map_err(|e| e.to_string());
        let refused = probe.and_then(|mut object| {
            let built = InodeTrigger::build(&[&disk.path()], Ok(&mut object), Some(hook));
            built.map(drop).map_err(|e| e.to_string())
        });
        if let Err(why) = refused {
            evictd_tests::skip::skipped("kernel::overhead: files", &why);
            continue;
        }
        let dir = disk.path().join("files");
        fs::create_dir(&dir).unwrap();
        let mut forker = Forker::start(None).unwrap();
        let pair = compare(|with| {
            let _held = with.then(|| {
                let mut object = BpfObject::load_counts().unwrap();
                let disk = disk.path();
                let built = InodeTrigger::build(&[&disk], Ok(&mut object), Some(hook));
                let mut trigger = built.unwrap();
                trigger.arm(0, 0, Some(NEVER)).unwrap();
                trigger.arm(0, 1, Some(NEVER)).unwrap();
                trigger.sample(0).unwrap();
                (object, trigger)
            });
            let made = forker
                .order(&format!("make {} {N}", dir.display()))
                .unwrap();
            made + forker
                .order(&format!("remove {} {N}", dir.display()))
                .unwrap()
        });
        print(&format!("make and remove a file on {kind}"), hook, N, pair);
    }
}
