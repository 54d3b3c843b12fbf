//! Who is woken by a crossing: whoever waits on the CPU where it happens, else whoever polls the ring buffer.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd as _},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use evictd::{
    kernel::{
        ladder::MemoryHook,
        object::Object,
        tripwire::{Act, Direction, Tripwire, Wire, build},
    },
    observe::cgroup::MemoryCgroup,
    reflex::thread::probe_realtime,
};
use evictd_tests::{
    cgroup::TestCgroup,
    cpus,
    hog::Hog,
    patience::holds,
    skip::{matrix, no_bpf, skipped},
    skip_if,
};
use nix::unistd::gettid;

const MIB: u64 = 1 << 20;
/// A sleep that nobody ends. What is readable by then was not heard of by a wake-up.
const NOBODY: Duration = Duration::from_secs(2);
/// Above the agent's wakers.
const HIGHER: i32 = 60;

/// Sleeps until the descriptor is readable; the thread tells whether somebody woke it.
fn sleeper(of: &impl AsFd) -> JoinHandle<bool> {
    let fd = of.as_fd().try_clone_to_owned().unwrap();
    let (tell, told) = mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let mut poll = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        tell.send(gettid()).unwrap();
        let start = Instant::now();
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, NOBODY.as_millis() as i32) };
        start.elapsed() < NOBODY
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    let is_asleep = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
    assert!(holds(Duration::from_secs(10), is_asleep));
    sleeper
}

/// A node of one pod, and a hog that crosses 100 MiB on the CPU of its own.
struct Crossing {
    scope: TestCgroup,
    tripwire: Box<dyn Tripwire>,
    _object: Object,
}

impl Crossing {
    fn new(hook: MemoryHook) -> Result<Self, String> {
        let scope = TestCgroup::new("wakeups", 256 * MIB).unwrap();
        let cgroup = MemoryCgroup::open(scope.path()).unwrap();
        let mut object = Object::load().map_err(|e| e.to_string())?;
        let built = build(&[&cgroup], Ok(&mut object), Some(hook)).map_err(|e| e.to_string())?;
        Ok(Self {
            scope,
            tripwire: built.tripwire,
            _object: object,
        })
    }

    fn arm(&mut self, act: Act) {
        let wire = Wire {
            limit: 100 * MIB,
            direction: Direction::Rising,
            act,
        };
        while self.tripwire.next().is_some() {}
        self.tripwire.arm(0, wire).unwrap();
    }

    fn cross(&mut self, cpu: usize, fifo: Option<i32>) {
        let mut hog = Hog::start(self.scope.path(), &["--mib", "160", "--wait"]).unwrap();
        cpus::pin(hog.pid(), cpu).unwrap();
        if let Some(priority) = fifo {
            cpus::make_fifo(hog.pid(), priority).unwrap();
        }
        hog.go().unwrap();
        let tripwire = &mut self.tripwire;
        assert!(
            holds(Duration::from_secs(20), || tripwire.next().is_some()),
            "it has crossed"
        );
    }
}

fn on(hook: MemoryHook) {
    let mut crossing = match Crossing::new(hook) {
        Ok(crossing) => crossing,
        Err(refused) => return skip_if!(Some(refused)),
    };
    let no_realtime = probe_realtime();
    let ring = |crossing: &Crossing| sleeper(&crossing.tripwire.fd().unwrap());
    for cpu in cpus::allowed().into_iter().take(2) {
        crossing.arm(Act::Wake);
        let reader = ring(&crossing);
        crossing.cross(cpu, None);
        assert!(reader.join().unwrap(), "nobody waits on the CPU {cpu}");

        let number = u32::try_from(cpu).unwrap();
        let mut wakeup = crossing.tripwire.local_wakeup(number).unwrap().unwrap();
        crossing.arm(Act::Wake);
        let (local, reader) = (sleeper(&wakeup), ring(&crossing));
        crossing.cross(cpu, None);
        assert!(local.join().unwrap(), "somebody waits on the CPU {cpu}");
        assert!(!reader.join().unwrap(), "one of them is enough");

        // Whom the waker would have to wait for does not wake it.
        if let Some(error) = &no_realtime {
            skipped("kernel_wakeups: SCHED_FIFO", &error.to_string());
        } else {
            wakeup.silence();
            crossing.arm(Act::Wake);
            let (local, reader) = (sleeper(&wakeup), ring(&crossing));
            crossing.cross(cpu, Some(HIGHER));
            assert!(reader.join().unwrap(), "the CPU {cpu} is not given away");
            assert!(!local.join().unwrap());
        }

        wakeup.silence();
        crossing.arm(Act::Note);
        let (local, reader) = (sleeper(&wakeup), ring(&crossing));
        crossing.cross(cpu, None);
        assert!(!reader.join().unwrap() && !local.join().unwrap(), "a note");

        drop(wakeup);
        crossing.arm(Act::Wake);
        let reader = ring(&crossing);
        crossing.cross(cpu, None);
        assert!(reader.join().unwrap(), "whoever waited on {cpu} has gone");
    }
    matrix(
        "memory.available",
        &hook.to_string(),
        "wakes whoever waits on the CPU that crosses",
    );
}

// R14
#[test]
fn by_the_tracepoint() {
    skip_if!(no_bpf());
    on(MemoryHook::Tracepoint);
}

#[test]
fn by_fexit() {
    skip_if!(no_bpf());
    on(MemoryHook::Fexit);
}

#[test]
fn by_the_kprobe() {
    skip_if!(no_bpf());
    on(MemoryHook::Kprobe);
}
