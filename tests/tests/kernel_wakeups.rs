//! Who is woken by a crossing: whoever sleeps on the rung's descriptor, and by a wire that only takes a note nobody.

use std::{
    fs,
    io::{PipeWriter, pipe},
    os::fd::{AsFd, AsRawFd as _},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use evictd::{
    kernel::{
        ladder::MemoryHook,
        object::Object,
        tripwire::{Act, Direction, Wire, build},
    },
    observe::cgroup::MemoryCgroup,
};
use evictd_tests::{
    cgroup::TestCgroup,
    hog::Hog,
    or_skip,
    patience::holds,
    skip::{matrix, no_bpf},
    skip_if,
};

const MIB: u64 = 1 << 20;
/// Long enough for a machine that is emulated while others compile.
const SOON: Duration = Duration::from_secs(60);
/// Whoever was woken by a crossing has run by then.
const A_WHILE: Duration = Duration::from_millis(300);

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
            // SAFETY: takes no arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
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

/// A note is told like any other crossing, but its reader has to come by itself.
fn on(hook: MemoryHook) {
    let scope = TestCgroup::new("wakeups", 256 * MIB).unwrap();
    let pod = scope.child("pod").unwrap();
    let cgroup = MemoryCgroup::open(scope.path()).unwrap();
    let mut object = Object::load().unwrap();
    let built = or_skip!(build(&[&cgroup], Ok(&mut object), Some(hook)));
    let mut tripwire = built.tripwire;
    for act in [Act::Wake, Act::Note, Act::Wake] {
        let limit = 100 * MIB;
        let direction = Direction::Rising;
        let wire = Wire {
            limit,
            direction,
            act,
        };
        tripwire.arm(0, wire).unwrap();
        let reader = Sleeper::start(&tripwire.fd().unwrap());
        let _hog = Hog::start(&pod, &["--mib", "160"]).unwrap();
        assert!(holds(SOON, || cgroup.usage().unwrap() >= 160 * MIB));
        match act {
            Act::Note => assert!(reader.sleeps(), "nobody is woken for a note"),
            _ => assert!(reader.wakes(), "whoever polls is woken"),
        }
        assert!(tripwire.next().is_some(), "{act:?} is told");
        assert!(tripwire.next().is_none(), "once");
    }
    matrix(
        "memory.available",
        &hook.to_string(),
        "wakes, or takes a note",
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
