//! Tells that the limit of a cgroup was written. Not where it is written through a mount of another cgroup namespace, which has inodes
//! of its own.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::cgroup::memory::MemoryCgroup;

/// The limits of some cgroups.
#[derive(Debug)]
pub struct LimitWrites {
    /// `None`: the kernel has refused it, and nothing is ever told.
    inotify: Option<OwnedFd>,
}

impl LimitWrites {
    /// Tells nothing until a cgroup is watched.
    pub fn open() -> Self {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        Self {
            inotify: inotify::init(flags).ok(),
        }
    }

    /// Watches the limit of a cgroup too; again where it is watched already. A cgroup that goes away is forgotten.
    pub fn watch(&self, cgroup: &MemoryCgroup) {
        if let Some(inotify) = &self.inotify {
            let file = cgroup.path().join(cgroup.version().limit_file());
            // What cannot be watched is found by looking.
            let _ = inotify::add_watch(inotify, file, WatchFlags::MODIFY);
        }
    }

    /// Readable when a limit was written.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(OwnedFd::as_fd)
    }

    /// Takes what it has told. Does not allocate.
    pub fn drain(&self) {
        let mut events = [0; 512];
        while let Some(inotify) = &self.inotify
            && rustix::io::read(inotify, &mut events).is_ok_and(|read| read > 0)
        {}
    }
}
