//! Starts the `forker` binary inside a cgroup and gives it orders.

use std::os::unix::process::CommandExt as _;

use nix::sys::prctl::set_child_subreaper;

use crate::{
    prelude::*,
    talker::{self, Talker},
};

/// A running forker; killed with its children and reaped when dropped.
pub struct Forker(Talker);

fn binary() -> Result<std::path::PathBuf> {
    talker::binary("forker", "EVICTD_FORKER")
}

/// Held by a test whose threshold is what the machine has left of process ids: another such test would cross it.
pub fn process_ids_of_the_machine() -> Result<File> {
    let lock = File::create(std::env::temp_dir().join("evictd-tests-pids.lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Whether no forker that has ended waits to be reaped.
pub fn all_are_reaped() -> Result<bool> {
    for process in fs::read_dir("/proc")? {
        let stat = fs::read_to_string(process?.path().join("stat"));
        // What is no process, or has ended meanwhile, has none.
        if stat.is_ok_and(|stat| stat.contains("(forker) Z")) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Forker {
    /// Starts a forker inside the cgroup directory (`None`: in the test's own), and returns when it is in there.
    pub fn start(cgroup: Option<&Path>) -> Result<Self> {
        let procs = cgroup.map(|c| c.join("cgroup.procs")).unwrap_or_default();
        Talker::start(Command::new(binary()?).arg("--cgroup").arg(procs)).map(Self)
    }

    /// Starts a forker below a process that reaps none: whatever ends in there keeps its number until this is dropped.
    pub fn start_unreaped(cgroup: &Path) -> Result<Self> {
        let mut command = Command::new("sh");
        // A background job has no standard input but what it is given.
        command
            .args([
                "-c",
                "exec 3<&0; \"$0\" --cgroup \"$1\" <&3 & exec sleep 1000",
            ])
            .arg(binary()?)
            .arg(cgroup.join("cgroup.procs"));
        let adopt = || set_child_subreaper(true).map_err(io::Error::from);
        // SAFETY: between fork and exec there is one system call.
        unsafe { command.pre_exec(adopt) };
        Talker::start(&mut command).map(Self)
    }

    /// Gives an order, waits until it is carried out, and returns the CPU time that took.
    pub fn order(&mut self, order: &str) -> Result<Duration> {
        self.begin(order)?;
        self.done()
    }

    /// Gives an order about so many files of a directory, each of which must succeed, and waits until it is carried
    /// out.
    #[track_caller]
    pub fn files(&mut self, verb: &str, dir: &Path, count: u32) {
        let order = format!("{verb} {} {count}", dir.display());
        self.order(&order).expect("all files");
    }

    /// Gives an order without waiting.
    pub fn begin(&mut self, order: &str) -> io::Result<()> {
        self.0.tell(order)
    }

    /// Waits for the order that was begun.
    pub fn done(&mut self) -> Result<Duration> {
        let answer = self.0.hear()?;
        let nanoseconds = answer.parse();
        let nanoseconds = nanoseconds.with_context(|| format!("the forker died: {answer:?}"));
        nanoseconds.map(Duration::from_nanos)
    }

    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }
}
