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
use rustix::process::setpriority_process;

use super::mounts::MountPoints;

/// Directories that are open at once. Those above are closed, and opened again when the walk comes back to them.
const MAX_OPEN: usize = 256;
/// Hard-linked inodes that are remembered, so that each is counted once; of more than these each name counts for its
/// part. So many for a walk, of which a few are under way at once.
const MAX_LINKED: usize = 1 << 17;
/// st_blocks is in units of 512 bytes, whatever the filesystem's block size is (stat(2)).
const STAT_BLOCK: u64 = 512;
/// Parts of an inode, one of which counts for each of its names.
const PARTS: u64 = 1 << 32;

/// What lies below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Distinct inodes, the directory itself included.
    pub inodes: u64,
    /// Bytes of allocated blocks.
    pub bytes: u64,
}

/// A directory that the walk is in.
struct Level {
    path: PathBuf,
    /// `None`: closed. It is opened again when its turn comes.
    listing: Option<ReadDir>,
    /// Entries that were taken from the listing.
    taken: usize,
}

/// A walk in progress. It does nothing between [`Self::step`]s, never follows a symbolic link, and touches no mount
/// point: the server of a FUSE or network filesystem may never answer.
pub struct Walk {
    root: PathBuf,
    /// The directory was not begun.
    is_new: bool,
    device: u64,
    /// From the root down. Those that are closed come first.
    levels: Vec<Level>,
    closed: usize,
    mounts: HashSet<PathBuf>,
    linked: HashSet<u64>,
    max_linked: usize,
    usage: Usage,
    /// Inodes of which only some names were met, in [`PARTS`] of an inode.
    parts: u64,
}

impl Walk {
    /// A walk below a directory: a volume, a container's logs. One that is not there, or that a filesystem is mounted
    /// on which may not answer, has nothing in it.
    ///
    /// # Errors
    /// The directory cannot be looked at.
    pub fn new(directory: &Path, mounts: &MountPoints) -> Result<Self, PathError> {
        let mut walk = Self {
            root: directory.to_owned(),
            is_new: false,
            device: 0,
            levels: Vec::new(),
            closed: 0,
            mounts: HashSet::new(),
            linked: HashSet::new(),
            max_linked: MAX_LINKED,
            usage: Usage::default(),
            parts: 0,
        };
        if mounts.may_hang(directory) {
            return Ok(walk);
        }
        walk.pass_by(mounts);
        match fs::symlink_metadata(directory) {
            Ok(meta) => {
                walk.device = meta.dev();
                walk.is_new = true;
                Ok(walk)
            }
            Err(e) if is_gone(&e) => Ok(walk),
            Err(e) => Err(PathError::at(directory)(e)),
        }
    }

    /// What is mounted by now is passed by from here on.
    pub fn pass_by(&mut self, mounts: &MountPoints) {
        self.mounts = mounts.below(&self.root);
        if mounts.may_hang(&self.root) {
            // Nothing below can be reached any more.
            (self.is_new, self.closed) = (false, 0);
            self.levels.clear();
        }
        // On a directory between the root and where the walk is: all paths below it lead into the new filesystem.
        let is_mounted = |level: &Level| self.mounts.contains(&level.path);
        if let Some(mounted) = self.levels.iter().position(is_mounted) {
            self.levels.truncate(mounted);
            self.closed = self.closed.min(mounted);
        }
    }

    /// Closes all directories but the one that the walk is in: it goes on later.
    pub fn park(&mut self) {
        let above = self.levels.len().saturating_sub(1);
        for level in self.levels.iter_mut().take(above).skip(self.closed) {
            level.listing = None;
        }
        self.closed = self.closed.max(above);
    }

    /// Looks at up to `entries` more entries, one lstat(2) each; `true` when there are no more.
    pub fn step(&mut self, entries: usize) -> bool {
        for _ in 0..entries {
            if !self.look() {
                return true;
            }
        }
        self.levels.is_empty() && !self.is_new
    }

    /// One entry. `false` when there is none left.
    fn look(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else {
            if !std::mem::take(&mut self.is_new) {
                return false;
            }
            self.visit(self.root.clone());
            return true;
        };
        let listing = match &mut level.listing {
            Some(listing) => listing,
            None => {
                self.reopen();
                return true;
            }
        };
        level.taken += 1;
        match listing.next() {
            Some(Ok(entry)) => {
                let path = level.path.join(entry.file_name());
                self.visit(path);
            }
            // What is left of it is not counted.
            Some(Err(_)) | None => self.leave(),
        }
        true
    }

    /// Goes on in a directory that was closed meanwhile. Where entries have come and gone since, some are missed or met
    /// twice.
    fn reopen(&mut self) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        match fs::read_dir(&level.path) {
            Ok(mut listing) => {
                if let Some(last) = level.taken.checked_sub(1) {
                    listing.nth(last);
                }
                level.listing = Some(listing);
                self.closed = self.levels.len() - 1;
            }
            // It is gone, or cannot be read.
            Err(_) => self.leave(),
        }
    }

    fn leave(&mut self) {
        self.levels.pop();
        self.closed = self.closed.min(self.levels.len());
    }

    fn visit(&mut self, path: PathBuf) {
        if self.mounts.contains(&path) {
            return;
        }
        // Gone since it was listed, or on another filesystem.
        let Ok(meta) = fs::symlink_metadata(&path) else {
            return;
        };
        if meta.dev() != self.device {
            return;
        }
        self.count(&meta);
        if meta.is_dir()
            && let Ok(listing) = fs::read_dir(&path)
        {
            self.enter(path, listing);
        }
    }

    fn enter(&mut self, path: PathBuf, listing: ReadDir) {
        if self.levels.len() - self.closed == MAX_OPEN
            && let Some(outermost) = self.levels.get_mut(self.closed)
        {
            outermost.listing = None;
            self.closed += 1;
        }
        self.levels.push(Level {
            path,
            listing: Some(listing),
            taken: 0,
        });
    }

    fn count(&mut self, meta: &Metadata) {
        let bytes = meta.blocks() * STAT_BLOCK;
        // A directory's links are its children; a file with one name cannot be met twice.
        if !meta.is_dir() && meta.nlink() > 1 {
            if self.linked.contains(&meta.ino()) {
                return;
            }
            if self.linked.len() >= self.max_linked {
                self.parts += PARTS / meta.nlink();
                self.usage.bytes += bytes / meta.nlink();
                return;
            }
            self.linked.insert(meta.ino());
        }
        self.usage.inodes += 1;
        self.usage.bytes += bytes;
    }

    /// What was found so far; without what is mounted below, what has vanished meanwhile, and what cannot be read.
    pub fn found(&self) -> Usage {
        // To the nearest: a third is not one in three parts exactly.
        let inodes = self.usage.inodes + (self.parts + PARTS / 2) / PARTS;
        Usage {
            inodes,
            ..self.usage
        }
    }
}

/// How the calling thread's requests to a disk stand beside those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// Behind all others. While others use the disk, mq-deadline holds such a request back for up to 10 s
    /// (`prio_aging_expire`).
    Idle,
    /// Last of the best-effort class.
    Low,
}

impl IoPriority {
    /// The class and the level within it (ioprio_set(2)).
    fn value(self) -> libc::c_int {
        const CLASS_SHIFT: libc::c_int = 13;
        let (class, level) = match self {
            Self::Low => (2, 7),
            Self::Idle => (3, 0),
        };
        class << CLASS_SHIFT | level
    }

    /// Sets it for the calling thread. Best effort; a refusal changes nothing but the speed of others.
    pub fn set(self) {
        const IOPRIO_WHO_PROCESS: libc::c_int = 1;
        // SAFETY: plain integers; 0 is the calling thread (ioprio_set(2)).
        let refused =
            unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, self.value()) };
        if refused != 0 {
            tracing::debug!(priority = ?self, "the walk keeps its priority on the disk");
        }
    }
}

/// Gives the calling thread the lowest priority for the CPU: a walk must not slow a pod down. Best effort, too.
pub fn lower_priority() {
    const LOWEST: i32 = 19;
    // On Linux this is the calling thread too (setpriority(2), C library/kernel differences).
    if let Err(error) = setpriority_process(None, LOWEST) {
        tracing::debug!(%error, "the walk keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(directory: &Path) -> Walk {
        Walk::new(directory, &MountPoints::default()).unwrap()
    }

    fn all(directory: &Path) -> Usage {
        let mut walk = walk(directory);
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
        let usage = all(dir.path());
        // The directory, sub, a, and the link that is not followed.
        assert_eq!(usage.inodes, 4);
        let blocks = |name: &str| fs::symlink_metadata(at(name)).unwrap().blocks() * STAT_BLOCK;
        let expected = blocks("") + blocks("sub") + blocks("a") + blocks("sub/root");
        assert_eq!(usage.bytes, expected);
    }

    #[test]
    fn other_filesystems_are_not_entered() {
        let mut walk = walk("/proc/sys/kernel".as_ref());
        walk.device = 0;
        while !walk.step(10) {}
        assert_eq!(walk.found(), Usage::default());
    }

    // R10
    #[test]
    fn what_is_mounted_is_passed_by() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let line = |rest: &str, kind: &str| {
            let at = place.join(rest);
            format!("36 35 0:41 / {} rw - {kind} x rw\n", at.display())
        };
        for path in ["v/sub/mounted/far", "v/sub/near"] {
            fs::create_dir_all(place.join(path)).unwrap();
        }
        let volume = dir.path().join("v");
        let walked = |table: &str| {
            let mut walk = Walk::new(&volume, &MountPoints::of(table)).unwrap();
            while !walk.step(3) {}
            walk.found().inodes
        };
        assert_eq!(walked(""), 5);
        for kind in ["fuse.sshfs", "ext4"] {
            assert_eq!(walked(&line("v/sub/mounted", kind)), 3);
        }
        assert_eq!(walked(&line("v", "nfs4")), 0);
        assert_eq!(walked(&line("v", "tmpfs")), 5);
        // It comes while the walk is under way, and where the walk is.
        let mut walk = walk(&volume);
        walk.step(4);
        walk.park();
        walk.pass_by(&MountPoints::of(&line("v", "fuse")));
        assert!(walk.step(1));
    }

    // R10
    #[test]
    fn what_lies_below_a_new_mount_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        fs::create_dir_all(place.join("v/a/b")).unwrap();
        for file in 0..10 {
            fs::write(place.join(format!("v/a/b/{file}")), "").unwrap();
        }
        for mounted in ["v/a", "v/a/b"] {
            for is_parked in [true, false] {
                let mut walk = walk(&place.join("v"));
                // The three directories and two of the files.
                walk.step(5);
                if is_parked {
                    walk.park();
                }
                let at = place.join(mounted);
                let line = format!("36 35 0:41 / {} rw - fuse.x x rw\n", at.display());
                walk.pass_by(&MountPoints::of(&line));
                while !walk.step(1) {}
                assert_eq!(walk.found().inodes, 5, "{mounted}");
            }
        }
    }

    // R10: as deep as a pod makes them.
    #[test]
    fn what_lies_deep_is_counted_with_few_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let levels = MAX_OPEN + 44;
        let mut at = dir.path().to_owned();
        for level in 0..levels {
            fs::write(at.join("a"), "").unwrap();
            at = at.join(format!("d{}", level % 10));
            fs::create_dir(&at).unwrap();
            fs::write(at.join("z"), "").unwrap();
        }
        fs::write(at.join("data"), vec![1; 1 << 20]).unwrap();
        let mut walk = walk(dir.path());
        let (mut deepest, mut steps) = (0, 0);
        while !walk.step(1) {
            let open = walk.levels.iter().filter(|l| l.listing.is_some()).count();
            assert!(open <= MAX_OPEN, "{open}");
            deepest = deepest.max(walk.levels.len());
            steps += 1;
            if steps % 100 == 0 {
                walk.park();
                let open = walk.levels.iter().filter(|l| l.listing.is_some());
                assert!(open.count() <= 1);
            }
        }
        let usage = walk.found();
        assert_eq!(deepest, levels + 1);
        assert_eq!(usage.inodes, 3 * levels as u64 + 2);
        assert!(usage.bytes >= 1 << 20, "{usage:?}");
    }

    /// Of what does not fit into the memory of links each name counts for its part.
    // R10
    #[test]
    fn hard_links_beyond_the_limit_count_once_in_all() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: String| dir.path().join(name);
        for file in 0..6 {
            fs::write(at(format!("{file}-0")), vec![1; 96 << 10]).unwrap();
            for name in 1..3 {
                fs::hard_link(at(format!("{file}-0")), at(format!("{file}-{name}"))).unwrap();
            }
        }
        let expected = all(dir.path());
        assert_eq!(expected.inodes, 7);
        for limit in 0..6 {
            let mut walk = walk(dir.path());
            walk.max_linked = limit;
            while !walk.step(3) {}
            let usage = walk.found();
            assert_eq!(usage.inodes, expected.inodes, "{limit}");
            assert!(usage.bytes.abs_diff(expected.bytes) < 32, "{limit}");
        }
    }

    #[test]
    fn a_step_is_bounded_and_directories_may_vanish_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..50 {
            let sub = dir.path().join(format!("d{n}"));
            fs::create_dir(&sub).unwrap();
            fs::write(sub.join("f"), "").unwrap();
        }
        let mut walk = walk(dir.path());
        assert!(!walk.step(10));
        assert!(walk.found().inodes <= 10);
        for n in 0..50 {
            fs::remove_dir_all(dir.path().join(format!("d{n}"))).unwrap();
        }
        while !walk.step(10) {}
        let inodes = walk.found().inodes;
        assert!((1..101).contains(&inodes), "{inodes}");
    }

    #[test]
    fn what_is_not_there_has_nothing_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        assert_eq!(all(&gone), Usage::default());
        assert_eq!(all(dir.path()).inodes, 1);
    }

    #[test]
    fn the_walking_thread_stands_behind_others() {
        std::thread::spawn(|| {
            lower_priority();
            for priority in [IoPriority::Idle, IoPriority::Low, IoPriority::Idle] {
                priority.set();
                // SAFETY: plain integers.
                let value = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
                assert_eq!(value, i64::from(priority.value()), "{priority:?}");
            }
        })
        .join()
        .unwrap();
    }
}
