//! Mounts that no other process of this machine sees.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::prelude::*;

const NONE: Option<&str> = None;

/// From now on what this thread mounts is seen by it and its children alone. It makes system calls and nothing else.
pub fn apart() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(mount(NONE, "/", NONE, private, NONE)?)
}

/// Runs it on a thread with mounts of its own.
pub fn on_a_thread(run: impl FnOnce() + Send) {
    let run = || {
        or_skip!(apart());
        run();
    };
    std::thread::scope(|threads| threads.spawn(run).join().expect("no panic"));
}

/// A filesystem that is unmounted when this is dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts one of this kind.
    pub fn new(kind: &str, at: &Path, options: Option<&str>) -> io::Result<Self> {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), options)?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What cannot be unmounted goes with its namespace.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Shows a file or a directory at another path as well.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?)
}
