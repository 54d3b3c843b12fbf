//! Mounts that no other process of this machine sees.

use std::{io, path::Path};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use crate::or_skip;

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

/// Shows a file or a directory at another path as well.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?)
}
