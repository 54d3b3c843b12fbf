//! Who is woken by a crossing: whoever waits on the CPU where it happens, else whoever polls the ring buffer.

use std::{
    fs,
    io::{PipeWriter, pipe},
    os::fd::{AsFd, AsRawFd as _},
    path::PathBuf,
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
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
/// Long enough for a machine that is emulated while others compile.
const SOON: Duration = Duration::from_secs(60);
/// Whoever was woken by a crossing has run by then.
const A_WHILE: Duration = Duration::from_millis(300);
/// Above the agent's wakers.
const HIGHER: i32 = 60;

/// Sleeps until a descriptor is readable.
struct Sleeper {
    /// Whether it was that what woke it.
    thread: JoinHandle<bool>,
    /// Dropped, it wakes the sleeper as well. A descriptor that nobody is woken for is readable by then all the same.
    alarm: PipeWriter,
}

impl Sleeper {
    fn start(of: &impl AsFd) -> Self {
        let fd = of.as_fd().try_clone_to_owned().unwrap();
        let (rings, alarm) = pipe().unwrap();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let poll = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut fds = [poll(fd.as_raw_fd()), poll(rings.as_raw_fd())];
            tell.send(gettid()).unwrap();
            // SAFETY: two valid entries.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
            fds[1].revents == 0
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        let is_asleep = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        assert!(holds(SOON, is_asleep));
        Self { thread, alarm }
    }

    /// Whether it was woken, or will be soon.
    fn wakes(self) -> bool {
        holds(SOON, || self.thread.is_finished()) && self.end()
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

/// A node of one pod, and a hog that crosses 100 MiB on the CPU of its own.
struct Crossing {
    _scope: TestCgroup,
    pod: PathBuf,
    tripwire: Box<dyn Tripwire>,
    _object: Object,
}

impl Crossing {
    fn new(hook: MemoryHook) -> Result<Self, String> {
        let scope = TestCgroup::new("wakeups", 256 * MIB).unwrap();
        let pod = scope.child("pod").unwrap();
        let cgroup = MemoryCgroup::open(scope.path()).unwrap();
        let mut object = Object::load().map_err(|e| e.to_string())?;
        let built = build(&[&cgroup], Ok(&mut object), Some(hook)).map_err(|e| e.to_string())?;
        Ok(Self {
            _scope: scope,
            pod,
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
        let mut hog = Hog::start(&self.pod, &["--mib", "160", "--wait"]).unwrap();
        cpus::pin(hog.pid(), cpu).unwrap();
        if let Some(priority) = fifo {
            cpus::make_fifo(hog.pid(), priority).unwrap();
        }
        hog.go().unwrap();
        let tripwire = &mut self.tripwire;
        assert!(holds(SOON, || tripwire.next().is_some()), "it has crossed");
    }
}

fn on(hook: MemoryHook) {
    let mut crossing = match Crossing::new(hook) {
        Ok(crossing) => crossing,
        Err(refused) => return skip_if!(Some(refused)),
    };
    let no_realtime = probe_realtime();
    let ring = |crossing: &Crossing| Sleeper::start(&crossing.tripwire.fd().unwrap());
    for cpu in cpus::allowed().into_iter().take(2) {
        crossing.arm(Act::Wake);
        let reader = ring(&crossing);
        crossing.cross(cpu, None);
        assert!(reader.wakes(), "nobody waits on the CPU {cpu}");

        let number = u32::try_from(cpu).unwrap();
        let mut wakeup = crossing.tripwire.local_wakeup(number).unwrap().unwrap();
        crossing.arm(Act::Wake);
        let (local, reader) = (Sleeper::start(&wakeup), ring(&crossing));
        crossing.cross(cpu, None);
        assert!(local.wakes(), "somebody waits on the CPU {cpu}");
        assert!(reader.sleeps(), "one of them is enough");

        // Whom the waker would have to wait for does not wake it.
        if let Some(error) = &no_realtime {
            skipped("kernel_wakeups: SCHED_FIFO", &error.to_string());
        } else {
            wakeup.silence();
            crossing.arm(Act::Wake);
            let (local, reader) = (Sleeper::start(&wakeup), ring(&crossing));
            crossing.cross(cpu, Some(HIGHER));
            assert!(reader.wakes(), "the CPU {cpu} is not given away");
            assert!(local.sleeps());
        }

        wakeup.silence();
        crossing.arm(Act::Note);
        let (local, reader) = (Sleeper::start(&wakeup), ring(&crossing));
        crossing.cross(cpu, None);
        assert!(reader.sleeps() && local.sleeps(), "a note");

        drop(wakeup);
        crossing.arm(Act::Wake);
        let reader = ring(&crossing);
        crossing.cross(cpu, None);
        assert!(reader.wakes(), "whoever waited on {cpu} has gone");
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
