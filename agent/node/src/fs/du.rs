//! The baseline: how many inodes and bytes lie below a pod's directories, counted in the background.
//!
//! A `du` at the moment of pressure is too late. This walk does a bounded amount of work at a time and remembers where
//! it stopped; what hooks counted since it began is added by the reader. It counts as the
//! kubelet does: allocated blocks and distinct inodes (`pkg/volume/util/fs` `DiskUsage`), never on other filesystems.

use std::{
    collections::HashSet,
    fs::{self, Metadata, ReadDir},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone};

/// Directories that are open at once: one for each level that the walk is deep in.
const MAX_DEPTH: usize = 256;
/// Hard-linked inodes that are remembered, so that each is counted once; more than these are counted each time.
const MAX_LINKED: usize = 1 << 20;
/// st_blocks is in units of 512 bytes, whatever the filesystem's block size is (stat(2)).
const STAT_BLOCK: u64 = 512;

/// What lies below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Distinct inodes, the directory itself included.
    pub inodes: u64,
    /// Bytes of allocated blocks.
    pub bytes: u64,
}

/// What a walk could not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Entries that were there when listed and gone when looked at.
    pub vanished: u64,
    /// Directories on other filesystems: not entered, not counted.
    pub elsewhere: u64,
    /// Directories that could not be read, or lie deeper than the walk goes.
    pub unread: u64,
}

/// A walk in progress. It does nothing between [`Self::step`]s and never follows a symbolic link.
pub struct Walk {
    device: u64,
    open: Vec<(PathBuf, ReadDir)>,
    /// Directories that were given and not begun.
    roots: Vec<PathBuf>,
    linked: HashSet<u64>,
    usage: Usage,
    missed: Missed,
}

impl Walk {
    /// A walk below some directories of one filesystem: a pod's volumes, its logs. Those that are not there have
    /// nothing in them.
    ///
    /// # Errors
    /// A directory cannot be looked at, or is on another filesystem than the first.
    pub fn new(directories: &[&Path]) -> Result<Self, PathError> {
        let (mut device, mut roots) = (None, Vec::new());
        for &directory in directories {
            match fs::symlink_metadata(directory) {
                Ok(meta) if *device.get_or_insert(meta.dev()) == meta.dev() => {
                    roots.push(directory.to_owned());
                }
                Ok(_) => {
                    let other = std::io::Error::other("on another filesystem than the first");
                    return Err(PathError::at(directory)(other));
                }
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(PathError::at(directory)(e)),
            }
        }
        Ok(Self {
            device: device.unwrap_or(0),
            open: Vec::new(),
            roots,
            linked: HashSet::new(),
            usage: Usage::default(),
            missed: Missed::default(),
        })
    }

    /// Looks at up to `entries` more entries, one lstat(2) each; `true` when there are no more.
    pub fn step(&mut self, entries: usize) -> bool {
        for _ in 0..entries {
            if !self.look() {
                return true;
            }
        }
        self.open.is_empty() && self.roots.is_empty()
    }

    /// One entry. `false` when there is none left.
    fn look(&mut self) -> bool {
        let Some((directory, listing)) = self.open.last_mut() else {
            let Some(root) = self.roots.pop() else {
                return false;
            };
            self.visit(root);
            return true;
        };
        match listing.next() {
            Some(Ok(entry)) => {
                let path = directory.join(entry.file_name());
                self.visit(path);
            }
            Some(Err(e)) => {
                self.note(&e);
                self.open.pop();
            }
            None => {
                self.open.pop();
            }
        }
        true
    }

    fn visit(&mut self, path: PathBuf) {
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) => return self.note(&e),
        };
        if meta.dev() != self.device {
            self.missed.elsewhere += 1;
            return;
        }
        self.count(&meta);
        if !meta.is_dir() {
            return;
        }
        if self.open.len() == MAX_DEPTH {
            self.missed.unread += 1;
            return;
        }
        match fs::read_dir(&path) {
            Ok(listing) => self.open.push((path, listing)),
            Err(e) => self.note(&e),
        }
    }

    fn count(&mut self, meta: &Metadata) {
        // A directory's links are its children; a file with one name cannot be met twice.
        if !meta.is_dir()
            && meta.nlink() > 1
            && self.linked.len() < MAX_LINKED
            && !self.linked.insert(meta.ino())
        {
            return;
        }
        self.usage.inodes += 1;
        self.usage.bytes += meta.blocks() * STAT_BLOCK;
    }

    fn note(&mut self, error: &std::io::Error) {
        if is_gone(error) {
            self.missed.vanished += 1;
        } else {
            self.missed.unread += 1;
        }
    }

    /// What was found so far, and what was not.
    pub fn found(&self) -> (Usage, Missed) {
        (self.usage, self.missed)
    }
}

/// Puts the calling thread into the idle class of I/O and the lowest of the CPU's: a walk must not slow a pod down.
/// Both are best effort; a refusal changes nothing but the speed of others.
pub fn lower_priority() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3;
    const IOPRIO_CLASS_SHIFT: libc::c_int = 13;
    const LOWEST: libc::c_int = 19;
    // SAFETY: plain integers; 0 is the calling thread (ioprio_set(2)).
    let io = unsafe {
        libc::syscall(
            libc::SYS_ioprio_set,
            IOPRIO_WHO_PROCESS,
            0,
            IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT,
        )
    };
    // SAFETY: plain integers; on Linux this is the calling thread too (setpriority(2), C library/kernel differences).
    let cpu = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
    if io != 0 || cpu != 0 {
        tracing::debug!(io, cpu, "the walk keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(directories: &[&Path]) -> (Usage, Missed) {
        let mut walk = Walk::new(directories).unwrap();
        while !walk.step(3) {}
        walk.found()
    }

    // R10
    #[test]
    fn inodes_and_blocks_are_counted_and_hard_links_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("a"), vec![1; 10_000]).unwrap();
        fs::hard_link(at("a"), at("sub/b")).unwrap();
        std::os::unix::fs::symlink("/", at("sub/root")).unwrap();
        let (usage, missed) = all(&[dir.path()]);
        // The directory, sub, a, and the link that is not followed.
        assert_eq!(usage.inodes, 4);
        let blocks = |name: &str| fs::symlink_metadata(at(name)).unwrap().blocks() * STAT_BLOCK;
        let expected = blocks("") + blocks("sub") + blocks("a") + blocks("sub/root");
        assert_eq!(usage.bytes, expected);
        assert_eq!(missed, Missed::default());
    }

    #[test]
    fn other_filesystems_are_not_entered() {
        let mut walk = Walk::new(&["/proc/sys/kernel".as_ref()]).unwrap();
        walk.device = 0;
        while !walk.step(10) {}
        assert_eq!(walk.found().1.elsewhere, 1);
        assert_eq!(walk.found().0, Usage::default());
        let dir = tempfile::tempdir().unwrap();
        let error = Walk::new(&[dir.path(), "/proc".as_ref()]).err().unwrap();
        assert!(error.to_string().starts_with("/proc: "), "{error}");
    }

    #[test]
    fn a_step_is_bounded_and_directories_may_vanish_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..50 {
            let sub = dir.path().join(format!("d{n}"));
            fs::create_dir(&sub).unwrap();
            fs::write(sub.join("f"), "").unwrap();
        }
        let mut walk = Walk::new(&[dir.path()]).unwrap();
        assert!(!walk.step(10));
        assert!(walk.found().0.inodes <= 10);
        for n in 0..50 {
            fs::remove_dir_all(dir.path().join(format!("d{n}"))).unwrap();
        }
        while !walk.step(10) {}
        let (usage, missed) = walk.found();
        assert!(usage.inodes + missed.vanished <= 101 && missed.vanished > 0);
        assert_eq!(missed.unread, 0);
    }

    #[test]
    fn what_is_not_there_has_nothing_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        assert_eq!(all(&[&gone]).0, Usage::default());
        assert_eq!(all(&[&gone, dir.path()]).0.inodes, 1);
    }

    #[test]
    fn the_walking_thread_becomes_idle() {
        std::thread::spawn(|| {
            lower_priority();
            // SAFETY: plain integers.
            let class = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } >> 13;
            assert_eq!(class, 3, "the idle class");
        })
        .join()
        .unwrap();
    }
}
