//! Which thread is woken by a crossing: the one that sleeps on the hook's descriptor; by an alarm that is not read the
//! one that waits on the CPU that charges; and by a trigger that only records none.

use std::{
    io::{PipeWriter, pipe},
    os::fd::AsFd,
    sync::mpsc,
    thread::JoinHandle,
};

use evictd_node::{
    bpf::perf_wakeup::LocalWakeups,
    trigger::{
        hook::HookUnavailable,
        memory::{Action, Direction, Trigger, TriggerSet, build},
    },
};
use evictd_sys::poll::poll;
use evictd_tests::{
    cpus::{self, is_asleep},
    prelude::*,
};

/// A thread that was woken by a crossing has run by then.
const A_WHILE: Duration = Duration::from_millis(300);

/// Sleeps until a descriptor is readable.
struct Sleeper {
    /// Whether it was that what woke it.
    thread: JoinHandle<bool>,
    /// Dropped, it wakes the sleeper as well. A descriptor without a wake-up is readable by then all the same.
    alarm: PipeWriter,
}

impl Sleeper {
    fn start(of: &impl AsFd) -> Self {
        let fd = of.as_fd().try_clone_to_owned().unwrap();
        let (rings, alarm) = pipe().unwrap();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            let [_, alarm] = poll([Some(fd.as_fd()), Some(rings.as_fd())], None);
            alarm == 0
        });
        let id = told.recv().unwrap().as_raw();
        assert!(until(SOON, || is_asleep(id)));
        Self { thread, alarm }
    }

    /// Whether it was woken, or will be soon.
    fn wakes(self) -> bool {
        self.wakes_within(SOON)
    }

    fn wakes_within(self, timeout: Duration) -> bool {
        until(timeout, || self.thread.is_finished()) && self.end()
    }

    /// Whether it sleeps on, a while later.
    fn sleeps(self) -> bool {
        std::thread::sleep(A_WHILE);
        !self.end()
    }

    fn end(self) -> bool {
        drop(self.alarm);
        self.thread.join().unwrap()
    }
}

/// A node of one pod, and a process that crosses 10 MiB.
struct Crossing {
    scope: TestCgroup,
    pod: PathBuf,
    trigger: Box<dyn TriggerSet>,
    wakeups: LocalWakeups,
    _object: BpfObject,
}

impl Crossing {
    fn new(hook: MemoryHook) -> Result<Self, HookUnavailable> {
        let (scope, pod) = TestCgroup::with_pod("wakeups", 256 * MIB);
        let cgroup = MemoryCgroup::open(scope.path()).unwrap();
        let mut object = BpfObject::load().unwrap();
        let mut trigger = build(&[&cgroup], Ok(&mut object), Some(hook))?.trigger;
        Ok(Self {
            scope,
            pod,
            wakeups: trigger.take_local_wakeups().unwrap(),
            trigger,
            _object: object,
        })
    }

    fn arm(&mut self, act: Action) {
        let trigger = Trigger {
            limit: 10 * MIB,
            direction: Direction::Rising,
            action: act,
            ..Trigger::DISABLED
        };
        self.trigger.arm(0, trigger).unwrap();
    }

    fn reader(&self) -> Sleeper {
        Sleeper::start(&self.trigger.fd().unwrap())
    }

    /// On one CPU by 10 MiB, for a hook that sees a charge when the next one comes; the hog goes on when it is told to.
    fn cross(&mut self, cpu: usize) -> Hog {
        let arguments = ["--mib", "24", "--head", "20", "--wait"];
        let mut hog = Hog::start(&self.pod, &arguments).unwrap();
        cpus::tie(hog.pid(), &[cpu]).unwrap();
        hog.take_head().unwrap();
        hog
    }

    /// Goes on, to the end.
    fn charge_on(&mut self, mut hog: Hog) {
        hog.go().unwrap();
        assert!(self.scope.holds(24));
    }

    /// The last charge of a hog is a huge page: on its CPU no other one comes that could wake a thread, for this test
    /// is on another.
    fn a_huge_page_is_not_waited_for(&mut self) {
        let cpus = cpus::allowed();
        skip_if!((cpus.len() < 2).then_some("there is one CPU only"));
        let cpu = cpus[0];
        cpus::tie(0, &cpus[1..]).unwrap();
        let mut local = self.wakeups.open(cpu).unwrap();
        let arguments = ["--way", "thp", "--mib", "20", "--head", "18", "--wait"];
        let mut hog = Hog::start(&self.pod, &arguments).unwrap();
        cpus::tie(hog.pid(), &[cpu]).unwrap();
        hog.take_head().unwrap();
        let usage = self.scope.usage();
        let trigger = Trigger {
            limit: usage.unwrap() + MIB,
            direction: Direction::Rising,
            action: Action::WakeLocal,
            ..Trigger::DISABLED
        };
        self.trigger.arm(0, trigger).unwrap();
        let waiter = Sleeper::start(&local);
        hog.go().unwrap();
        // Sooner or later another task charges there.
        let timeout = Duration::from_secs(5);
        assert!(waiter.wakes_within(timeout), "a huge page on {cpu}");
        assert!(self.is_reported_once());
        local.clear();
        cpus::tie(0, &cpus).unwrap();
    }

    fn is_reported_once(&mut self) -> bool {
        self.trigger.next_crossing().is_some() && self.trigger.next_crossing().is_none()
    }
}

/// A note is told like any other crossing, but its reader has to come by itself.
fn on(hook: MemoryHook) {
    let mut crossing = or_skip!(Crossing::new(hook));
    for act in [Action::Wake, Action::RecordOnly, Action::WakeLocal] {
        crossing.arm(act);
        let reader = crossing.reader();
        let hog = crossing.cross(cpus::allowed()[0]);
        match act {
            Action::RecordOnly => assert!(reader.sleeps(), "a record alone wakes no thread"),
            _ => assert!(reader.wakes(), "the thread that polls is woken"),
        }
        crossing.charge_on(hog);
        assert!(crossing.is_reported_once(), "{act:?}");
    }
    for cpu in cpus::allowed().into_iter().take(2) {
        let mut local = crossing.wakeups.open(cpu).unwrap();
        for (act, is_heard) in [
            (Action::WakeLocal, false),
            (Action::WakeLocal, true),
            (Action::Wake, false),
            (Action::RecordOnly, false),
        ] {
            crossing.arm(act);
            let (hog, waiter) = if is_heard {
                let hog = crossing.cross(cpu);
                assert!(crossing.is_reported_once());
                // That may have taken longer than a reader is given. Once read, it is over.
                std::thread::sleep(Duration::from_millis(1));
                local.clear();
                (hog, Sleeper::start(&local))
            } else {
                let waiter = Sleeper::start(&local);
                (crossing.cross(cpu), waiter)
            };
            crossing.charge_on(hog);
            if act == Action::WakeLocal && !is_heard {
                assert!(waiter.wakes(), "no thread was woken on {cpu}");
            } else {
                assert!(waiter.sleeps(), "{act:?} on {cpu}, heard of: {is_heard}");
            }
            if !is_heard {
                assert!(crossing.is_reported_once(), "{act:?}");
            }
            local.clear();
        }
    }
    // It sees a charge when the next one comes: which one it was that crossed, it cannot tell.
    if hook != MemoryHook::Kprobe {
        crossing.a_huge_page_is_not_waited_for();
    }
    matrix(
        "memory.available",
        &hook.to_string(),
        "wakes, reminds on the CPU that charges, or takes a note",
    );
}

scenes! {
    // R14
    fn by_the_tracepoint() unless no_bpf() => on(MemoryHook::Tracepoint);
    fn by_fexit() unless no_bpf() => on(MemoryHook::Fexit);
    fn by_the_kprobe() unless no_bpf() => on(MemoryHook::Kprobe);
}
