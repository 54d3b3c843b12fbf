//! Cgroups of a test's own, version 1 or 2, gone when the test ends, however it ends.

use std::{
    os::unix::process::CommandExt as _,
    sync::atomic::{AtomicU32, Ordering},
};

use evictd_node::{cgroup::memory::Version, trigger::oom::kills_in};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use walkdir::WalkDir;

use crate::prelude::*;

/// A memory cgroup that is removed with all below it, after every process in it was killed.
pub struct TestCgroup {
    path: PathBuf,
    version: Version,
}

/// Finds the directory below which memory cgroups can be made: the v1 memory hierarchy, or v2 with the memory
/// controller.
pub fn memory_root() -> Option<(PathBuf, Version)> {
    let found = evictd_node::cgroup::memory::memory_root(Path::new("/sys/fs/cgroup"))?;
    if found.1 == Version::V2 {
        // Children get the files of a controller only when their parent hands it down.
        fs::write(found.0.join("cgroup.subtree_control"), "+memory").ok()?;
    }
    Some(found)
}

impl TestCgroup {
    /// Makes a cgroup with a name of its own below the memory root, limited to `limit` bytes.
    pub fn new(name: &str, limit: u64) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (root, version) = memory_root().context("no memory cgroups here")?;
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("evictd-{name}-{}-{n}", std::process::id()));
        let made = Self { path, version };
        made.make(limit)?;
        Ok(made)
    }

    fn make(&self, limit: u64) -> io::Result<()> {
        fs::create_dir(&self.path)?;
        self.set_limit(limit)?;
        self.hand_down()
    }

    /// Removes it with all below, and makes another one of its name, limited to `limit` bytes.
    pub fn make_anew(&self, limit: u64) -> Result<()> {
        ensure!(self.remove(), "it could not be removed");
        Ok(self.make(limit)?)
    }

    /// The same with the cgroup of a pod in it.
    #[track_caller]
    pub fn with_pod(name: &str, limit: u64) -> (Self, PathBuf) {
        let made = Self::new(name, limit).expect("a cgroup");
        let pod = made.child("pod").expect("a cgroup");
        (made, pod)
    }

    fn hand_down(&self) -> io::Result<()> {
        match self.version {
            Version::V1 => Ok(()),
            Version::V2 => fs::write(self.path.join("cgroup.subtree_control"), "+memory"),
        }
    }

    fn set_limit(&self, limit: u64) -> io::Result<()> {
        self.limit_child("", limit)
    }

    /// Limits a cgroup below this one, in bytes.
    pub fn limit_child(&self, relative: &str, limit: u64) -> io::Result<()> {
        let path = self.path.join(relative);
        let limit = limit.to_string();
        match self.version {
            Version::V1 => {
                // Never the lower one: it rises first, and falls last. Without swap accounting it is not there.
                let with_swap = || fs::write(path.join("memory.memsw.limit_in_bytes"), &limit);
                let _ = with_swap();
                fs::write(path.join("memory.limit_in_bytes"), &limit)?;
                let _ = with_swap();
                Ok(())
            }
            Version::V2 => {
                let _ = fs::write(path.join("memory.swap.max"), "0");
                fs::write(path.join("memory.max"), &limit)
            }
        }
    }

    /// Makes a cgroup below this one: `burstable/pod1`. What lies in between is made too.
    pub fn child(&self, relative: &str) -> Result<PathBuf> {
        let path = self.path.join(relative);
        fs::create_dir_all(&path)?;
        if self.version == Version::V2 {
            let above = path.ancestors().skip(1);
            let above: Vec<_> = above.take_while(|d| d.starts_with(&self.path)).collect();
            // From the top: a cgroup hands down only what it has.
            for dir in above.into_iter().rev() {
                fs::write(dir.join("cgroup.subtree_control"), "+memory")?;
            }
        }
        Ok(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Memory usage of the cgroup, in bytes.
    pub fn usage(&self) -> Result<u64> {
        Ok(self.memory()?.usage()?)
    }

    /// Number of OOM kills in the cgroup so far.
    pub fn oom_kills(&self) -> Result<u64> {
        self.memory()?.oom_kills()
    }

    /// Waits until it holds so many MiB; false when it does not in time.
    pub fn holds(&self, mib: u64) -> bool {
        holds(&self.path, mib)
    }

    /// Kills every process in it, and removes it with all below; whether it is gone.
    fn remove(&self) -> bool {
        let removed = || {
            let Ok(mut dirs) = descendants(&self.path) else {
                return true;
            };
            for dir in &dirs {
                kill_all(dir);
            }
            dirs.reverse();
            dirs.iter().all(|dir| fs::remove_dir(dir).is_ok())
        };
        until(Duration::from_secs(10), removed)
    }

    fn memory(&self) -> Result<MemoryCgroup> {
        Ok(MemoryCgroup::open(&self.path)?)
    }
}

/// Waits until a memory cgroup holds so many MiB; false when it does not in time.
pub fn holds(cgroup: &Path, mib: u64) -> bool {
    let memory = MemoryCgroup::open(cgroup).expect("a memory cgroup");
    until(SOON, || memory.usage().expect("its usage") >= mib << 20)
}

/// A cgroup of v1's pids hierarchy beside one of the memory hierarchy; removed when dropped.
pub struct PidsBeside {
    made: Vec<PathBuf>,
}

impl PidsBeside {
    /// Has the pids controller charge all that is in a memory cgroup now, and what that starts. On v2 the same cgroup does.
    pub fn of(scope: &TestCgroup, cgroup: &Path) -> Result<Self> {
        let (root, version) = memory_root().context("no memory cgroups here")?;
        if version == Version::V2 {
            for dir in [&root, scope.path()] {
                fs::write(dir.join("cgroup.subtree_control"), "+pids")?;
            }
            return Ok(Self { made: Vec::new() });
        }
        let beside = |dir: &Path| {
            let below = dir.strip_prefix(&root)?;
            Ok::<_, Error>(root.with_file_name("pids").join(below))
        };
        let made = vec![beside(cgroup)?, beside(scope.path())?];
        fs::create_dir_all(&made[0])?;
        for pid in fs::read_to_string(cgroup.join("cgroup.procs"))?.lines() {
            fs::write(made[0].join("cgroup.procs"), pid)?;
        }
        Ok(Self { made })
    }
}

impl Drop for PidsBeside {
    fn drop(&mut self) {
        for dir in &self.made {
            // What is left of it is empty.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Count of a memory cgroup's OOM kills, which only tests ask for.
pub trait OomKills {
    /// Tasks of it and of those below that the OOM killer has killed so far.
    fn oom_kills(&self) -> Result<u64>;
}

impl OomKills for MemoryCgroup {
    fn oom_kills(&self) -> Result<u64> {
        match self.version() {
            Version::V2 => oom_kills_in(&self.path().join("memory.events")),
            // It does not count its children.
            Version::V1 => descendants(self.path())?
                .iter()
                .map(|dir| oom_kills_in(&dir.join("memory.oom_control")))
                .sum(),
        }
    }
}

/// Tasks that the OOM killer has killed since the boot, for whatever reason.
pub fn oom_kills_of_machine(proc: &Path) -> Result<u64> {
    oom_kills_in(&proc.join("vmstat"))
}

fn oom_kills_in(file: &Path) -> Result<u64> {
    let count = kills_in(&fs::read_to_string(file)?);
    count.with_context(|| format!("{}: no oom_kill", file.display()))
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        if !self.remove() {
            eprintln!("{} could not be removed", self.path.display());
        }
    }
}

/// A directory and all below it, parents before children. What vanishes meanwhile is left out.
pub fn descendants(root: &Path) -> Result<Vec<PathBuf>> {
    fs::metadata(root)?;
    let all = WalkDir::new(root).into_iter();
    let dirs = all.filter_entry(|entry| entry.file_type().is_dir());
    let is_gone = |e: &walkdir::Error| e.path().is_some_and(|path| !path.exists());
    let found = dirs.filter(|dir| !dir.as_ref().is_err_and(is_gone));
    found.map(|dir| Ok(dir?.into_path())).collect()
}

/// Lets a command begin in a cgroup: it is charged there from its first page on.
pub fn begin_in(cgroup: &Path, command: &mut Command) -> Result<()> {
    let procs = cgroup.join("cgroup.procs");
    let mut procs = File::options().write(true).open(procs)?;
    // SAFETY: between fork and exec only write(2) is called, on a file that was opened before.
    unsafe { command.pre_exec(move || procs.write_all(b"0")) };
    Ok(())
}

fn kill_all(dir: &Path) {
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in procs
        .lines()
        .filter_map(|l| l.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
    {
        // One that has ended meanwhile is fine.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
