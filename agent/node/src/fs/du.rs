//! Counts the inodes and bytes below a directory in bounded steps ([`Walk`]).
//!
//! A `du` at the moment of pressure is too late, so a walk goes on in the background and remembers where it stopped;
//! what hooks counted since it began is added by the reader. It counts as the kubelet does: allocated blocks and
//! distinct inodes (`pkg/volume/util/fs` `DiskUsage`), never on other filesystems.

use std::{
    collections::{HashSet, VecDeque},
    ffi::{CString, OsStr},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone};
use rustix::{
    fs::{CWD, Dir, DirEntry, FileType},
    io::Errno,
};

use super::{
    beneath::{Entry, Inode, Lookup, Place},
    mounts::MountPoints,
};

/// Directories that are open at once. Those above are closed, and opened again when the walk comes back to them.
const MAX_OPEN: usize = 256;
/// Bytes of names and records of the directories that the walk is in, one below the other: 58,000 of them with the
/// shortest names.
const MAX_WAY: usize = 1 << 20;
/// Hard-linked inodes that are remembered, so that each is counted once; of more than these each name counts for its
/// part. So many for a walk, of which a few are under way at once.
const MAX_LINKED: usize = 1 << 17;
/// Parts of an inode, one of which counts for each of its names.
const PARTS: u64 = 1 << 32;

/// Disk usage of what lies below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Distinct inodes, the directory itself included.
    pub inodes: u64,
    /// Bytes of allocated blocks.
    pub bytes: u64,
}

/// Progress of the walk in a directory.
struct Progress {
    inode: u64,
    /// Offset at which the listing goes on (`d_off`, getdents(2)).
    next: i64,
}

/// A directory that is open.
struct Level {
    listing: Dir,
    progress: Progress,
}

/// A walk in progress. It does nothing between [`Self::step`]s, never follows a symbolic link, and touches no mount
/// point: the server of a FUSE or network filesystem may never answer. It goes from one directory to the next by
/// descriptors, so that no change to the files meanwhile leads it elsewhere.
pub struct Walk {
    root: PathBuf,
    /// The directory was not begun.
    is_new: bool,
    place: Place,
    lookup: Lookup,
    /// Directories from the root down, above those that are open.
    closed: Vec<Progress>,
    /// Open directories; the walk is in the last one. When there is none left the walk is over.
    open: VecDeque<Level>,
    /// Path of the last open directory when the walk entered it, as mount points are named; at first the root's.
    path: PathBuf,
    mounts: HashSet<PathBuf>,
    linked: HashSet<u64>,
    max_linked: usize,
    max_way: usize,
    usage: Usage,
    /// Inodes of which only some names were met, in [`PARTS`] of an inode.
    parts: u64,
    is_whole: bool,
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
            place: Place::default(),
            lookup: Lookup::ByName,
            closed: Vec::new(),
            open: VecDeque::new(),
            path: directory.parent().unwrap_or(directory).to_owned(),
            mounts: HashSet::new(),
            linked: HashSet::new(),
            max_linked: MAX_LINKED,
            max_way: MAX_WAY,
            usage: Usage::default(),
            parts: 0,
            is_whole: true,
        };
        if mounts.may_hang(directory) {
            return Ok(walk);
        }
        walk.pass_by(mounts);
        match Inode::at(CWD, &c_string(directory)).map_err(Into::into) {
            Ok(inode) => {
                walk.place = inode.place;
                walk.is_new = true;
                Ok(walk)
            }
            Err(e) if is_gone(&e) => Ok(walk),
            Err(e) => Err(PathError::at(directory)(e)),
        }
    }

    /// Makes the walk pass by what is mounted by now.
    pub fn pass_by(&mut self, mounts: &MountPoints) {
        self.mounts = mounts.below(&self.root);
        if mounts.may_hang(&self.root) {
            // Nothing below can be reached any more.
            self.is_new = false;
            self.closed.clear();
            self.open.clear();
        }
        // On a directory between the root and where the walk is: the pod sees nothing of what is below it any more.
        let above = self.mounts.iter().filter(|m| self.path.starts_with(m));
        let depth = |mounted: &PathBuf| {
            let below = mounted.strip_prefix(&self.root).ok()?;
            Some(below.components().count())
        };
        if let Some(depth) = above.filter_map(depth).min() {
            self.cut(depth);
        }
    }

    /// Leaves all directories at this depth and below.
    fn cut(&mut self, depth: usize) {
        while self.closed.len() + self.open.len() > depth && self.open.pop_back().is_some() {
            self.path.pop();
        }
        if self.open.is_empty() && !self.closed.is_empty() {
            // The way up leads into the new filesystem.
            self.give_up();
        }
    }

    /// Gives up the walk: what is left is not looked at.
    fn give_up(&mut self) {
        self.is_whole = false;
        self.closed.clear();
        self.open.clear();
    }

    /// Closes all directories but the one that the walk is in: it goes on later.
    pub fn park(&mut self) {
        while self.open.len() > 1 {
            self.close_outermost();
        }
    }

    fn close_outermost(&mut self) {
        if let Some(level) = self.open.pop_front() {
            self.closed.push(level.progress);
        }
    }

    /// Looks at up to `entries` more entries, one statx(2) each; `true` when there are no more.
    pub fn step(&mut self, entries: usize) -> bool {
        for _ in 0..entries {
            if !self.look() {
                return true;
            }
        }
        self.open.is_empty() && !self.is_new
    }

    /// One entry. `false` when there is none left.
    fn look(&mut self) -> bool {
        let Some(level) = self.open.back_mut() else {
            if !std::mem::take(&mut self.is_new) {
                return false;
            }
            self.begin();
            return true;
        };
        let is_own = |entry: &DirEntry| matches!(entry.file_name().to_bytes(), b"." | b"..");
        let next = level.listing.find(|next| !next.as_ref().is_ok_and(is_own));
        match next {
            Some(Ok(entry)) => {
                level.progress.next = entry.offset();
                self.visit(&entry);
            }
            Some(Err(error)) => {
                self.miss(error);
                self.leave();
            }
            None => self.leave(),
        }
        true
    }

    fn begin(&mut self) {
        let root = c_string(&self.root);
        let entry = Lookup::ByName.entry(CWD, &root, FileType::Unknown, self.place, false);
        if let Ok(Entry {
            opened: Some(Ok(dir)),
            ..
        }) = &entry
        {
            self.lookup = Lookup::of(dir);
        }
        let name = self.root.file_name().unwrap_or_default().to_owned();
        self.take(&name, entry);
    }

    fn visit(&mut self, entry: &DirEntry) {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let has_mounts = !self.mounts.is_empty();
        if has_mounts && self.mounts.contains(&self.path.join(name)) {
            return;
        }
        let Some(dir) = self.open.back() else {
            return;
        };
        let found = dir.listing.fd().and_then(|dir| {
            let (name, kind) = (entry.file_name(), entry.file_type());
            self.lookup.entry(dir, name, kind, self.place, has_mounts)
        });
        self.take(name, found);
    }

    /// Counts what was looked at, and enters a directory.
    fn take(&mut self, name: &OsStr, found: rustix::io::Result<Entry>) {
        match found {
            // Something else is mounted there.
            Ok(entry) if entry.inode.place != self.place => {}
            Ok(entry) => {
                self.count(&entry.inode);
                let opened = entry
                    .opened
                    .map_or(Ok(()), |dir| self.enter(name, entry.inode.number, dir?));
                if let Err(error) = opened {
                    self.miss(error);
                }
            }
            Err(error) => self.miss(error),
        }
    }

    /// Something could not be looked at.
    fn miss(&mut self, error: Errno) {
        self.is_whole &= match error {
            // Gone since it was listed, or a mount point.
            Errno::NOENT | Errno::XDEV => true,
            error => is_refused(&error.into()),
        };
    }

    fn enter(&mut self, name: &OsStr, inode: u64, dir: OwnedFd) -> rustix::io::Result<()> {
        let depth = self.closed.len() + self.open.len();
        if depth * size_of::<Progress>() + self.path.as_os_str().len() > self.max_way {
            return Err(Errno::NAMETOOLONG);
        }
        let listing = Dir::new(dir)?;
        if self.open.len() == MAX_OPEN {
            self.close_outermost();
        }
        let progress = Progress { inode, next: 0 };
        self.open.push_back(Level { listing, progress });
        self.path.push(name);
        Ok(())
    }

    fn leave(&mut self) {
        let Some(left) = self.open.pop_back() else {
            return;
        };
        self.path.pop();
        if self.open.is_empty()
            && let Some(above) = self.closed.pop()
        {
            match self.reopen(&left, above) {
                Ok(level) => self.open.push_back(level),
                Err(_) => self.give_up(),
            }
        }
    }

    /// Goes on in the directory above, which was closed meanwhile. Where entries have come and gone since, some may be
    /// missed or met twice.
    fn reopen(&self, below: &Level, progress: Progress) -> rustix::io::Result<Level> {
        let dir = self.lookup.parent(below.listing.fd()?)?;
        let inode = Inode::of(&dir)?;
        // The directory below was moved: what holds it now may lie anywhere.
        if (inode.number, inode.place) != (progress.inode, self.place) {
            return Err(Errno::STALE);
        }
        let mut listing = Dir::new(dir)?;
        listing.seek(progress.next)?;
        Ok(Level { listing, progress })
    }

    fn count(&mut self, inode: &Inode) {
        // A directory's links are its children; a file with one name cannot be met twice.
        if !inode.is_dir && inode.links > 1 {
            if self.linked.contains(&inode.number) {
                return;
            }
            if self.linked.len() >= self.max_linked {
                self.parts += PARTS / inode.links;
                self.usage.bytes += inode.bytes / inode.links;
                return;
            }
            self.linked.insert(inode.number);
        }
        self.usage.inodes += 1;
        self.usage.bytes += inode.bytes;
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

    /// Whether all that it came to was counted. If not there is more than [`Self::found`]: a directory was moved while
    /// the walk was in it or lies too deep, or the filesystem has failed. What the agent has no right to read
    /// ([`is_refused`]) is no part of it: no later walk would find it either.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// Whether an error means that the agent has no right to look: it has not been given `CAP_DAC_READ_SEARCH`, or a
/// security module is in the way.
pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// A path of this node, which has no NUL in it.
fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Write as _,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    use nix::{
        mount::{MsFlags, mount, umount},
        sched::{CloneFlags, unshare},
    };
    use rustix::fs::{Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with};

    use super::{super::beneath::STAT_BLOCK, *};

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
        symlink("/", at("sub/root")).unwrap();
        let usage = all(dir.path());
        // The directory, sub, a, and the link that is not followed.
        assert_eq!(usage.inodes, 4);
        let blocks = |name: &str| fs::symlink_metadata(at(name)).unwrap().blocks() * STAT_BLOCK;
        let expected = blocks("") + blocks("sub") + blocks("a") + blocks("sub/root");
        assert_eq!(usage.bytes, expected);
        let link = all(&at("sub/root"));
        assert_eq!((link.inodes, link.bytes), (1, blocks("sub/root")));
    }

    #[test]
    fn other_filesystems_are_not_entered() {
        let mut walk = walk("/proc/sys/kernel".as_ref());
        walk.place.device = (0, 0);
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

    const LOOKUPS: [Lookup; 2] = [Lookup::Confined, Lookup::ByName];

    /// A walk that has opened its directory.
    fn begun(directory: &Path, lookup: Lookup) -> Walk {
        let mut walk = walk(directory);
        walk.step(1);
        walk.lookup = lookup;
        walk
    }

    /// All inodes that the rest of a walk finds, and whether these are all.
    fn rest(mut walk: Walk) -> (u64, bool) {
        while !walk.step(1) {}
        (walk.found().inodes, walk.is_whole())
    }

    fn exchange(one: &Path, other: &Path) {
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    }

    fn files(directory: &Path, count: usize) {
        fs::create_dir_all(directory).unwrap();
        for file in 0..count {
            File::create(directory.join(format!("f{file}"))).unwrap();
        }
    }

    // R10
    #[test]
    fn a_directory_that_becomes_a_link_leads_the_walk_nowhere_else() {
        for (lookup, is_parked) in LOOKUPS.map(|l| [(l, false), (l, true)]).concat() {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            files(&at("outside"), 50);
            files(&at("v/a"), 10);
            files(&at("v/a/sub"), 5);
            symlink(at("outside"), at("link")).unwrap();
            let mut walk = begun(&at("v"), lookup);
            // The walk is in `a`.
            walk.step(2);
            exchange(&at("v/a"), &at("link"));
            if is_parked {
                walk.park();
            }
            // From where `a` is now no way leads back.
            assert_eq!(rest(walk), (18, !is_parked), "{lookup:?}");
        }
    }

    // R10
    #[test]
    fn a_directory_that_was_listed_and_is_a_link_now_leaves_the_walk_incomplete() {
        for lookup in LOOKUPS {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            files(&at("outside"), 50);
            files(&at("v/a"), 5);
            files(&at("v/b"), 5);
            symlink(at("outside"), at("link")).unwrap();
            let mut walk = begun(&at("v"), lookup);
            walk.step(1);
            let next = if walk.path == at("v/a") { "v/b" } else { "v/a" };
            exchange(&at(next), &at("link"));
            // The volume, the first directory with its files, and the link.
            assert_eq!(rest(walk), (8, false), "{lookup:?}");
        }
    }

    // R10
    #[test]
    fn a_file_that_was_listed_and_is_a_directory_now_is_entered() {
        for lookup in LOOKUPS {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            files(&at("v"), 2);
            files(&at("full"), 5);
            let mut walk = begun(&at("v"), lookup);
            walk.step(1);
            for name in ["v/f0", "v/f1"] {
                exchange(&at(name), &at("full"));
            }
            // It is one of both, or was counted before as a file.
            let (inodes, is_whole) = rest(walk);
            assert!(is_whole && [3, 8].contains(&inodes), "{lookup:?} {inodes}");
        }
    }

    // R10: longer than any path that a system call takes.
    #[test]
    fn what_no_path_leads_to_is_counted() {
        const LEVELS: usize = MAX_OPEN + 44;
        for lookup in LOOKUPS {
            let dir = tempfile::tempdir().unwrap();
            let name = "a-name-of-20-letters";
            let mut at = OwnedFd::from(File::open(dir.path()).unwrap());
            for _ in 0..LEVELS {
                mkdirat(&at, name, Mode::RWXU).unwrap();
                at = openat(&at, name, OFlags::DIRECTORY, Mode::empty()).unwrap();
            }
            assert!(LEVELS * name.len() > libc::PATH_MAX as usize);
            let file = openat(&at, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
            File::from(file).write_all(&[1; 1 << 20]).unwrap();
            let mut walk = begun(dir.path(), lookup);
            while !walk.step(100) {
                walk.park();
            }
            assert!(walk.found().bytes >= 1 << 20, "{lookup:?}");
            assert_eq!(rest(walk), (LEVELS as u64 + 2, true), "{lookup:?}");
            // The walk remembers so much of its way and no more.
            let mut walk = begun(dir.path(), lookup);
            walk.max_way = 100 * (name.len() + 1 + size_of::<Progress>());
            let (inodes, is_whole) = rest(walk);
            assert!(
                (50..150).contains(&inodes) && !is_whole,
                "{lookup:?} {inodes}"
            );
        }
    }

    // R10: a pod may rename what it lies on, and the table is not read anew for that.
    #[test]
    fn a_mount_point_that_is_in_no_table_is_not_entered() {
        const NONE: Option<&str> = None;
        let run = || {
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            let apart = unshare(CloneFlags::CLONE_NEWNS);
            if let Err(error) = apart.and_then(|()| mount(NONE, "/", NONE, private, NONE)) {
                println!("SKIPPED mounts: {error}");
                return;
            }
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let mount = |kind: Option<&str>, from: &str, to: &str| {
                let flags = match kind {
                    Some(_) => MsFlags::empty(),
                    None => MsFlags::MS_BIND,
                };
                mount(Some(&at(from)), &at(to), kind, flags, NONE).unwrap();
            };
            files(&at("far"), 5);
            for place in ["v/a/b", "v/bound", "v/tmpfs"] {
                files(&at(place), 2);
            }
            files(&at("v/a"), 1);
            mount(None, "far", "v/bound");
            mount(None, "far/f0", "v/a/f0");
            mount(Some("tmpfs"), "far", "v/tmpfs");
            for lookup in LOOKUPS {
                // The volume, a, b and its files.
                assert_eq!(rest(begun(&at("v"), lookup)), (5, true), "{lookup:?}");
                let mut walk = begun(&at("v"), lookup);
                walk.mounts.insert("/elsewhere".into());
                assert_eq!(rest(walk), (5, true), "{lookup:?}");
            }
            // It comes between the volume and where the walk is: no way leads back.
            for lookup in LOOKUPS {
                let over = at("v/a");
                let mut walk = begun(&at("v"), lookup);
                while !walk.path.ends_with("a/b") {
                    walk.step(1);
                }
                walk.park();
                mount(Some("tmpfs"), "far", "v/a");
                assert_eq!(rest(walk), (5, false), "{lookup:?}");
                umount(&over).unwrap();
            }
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn what_the_agent_may_not_read_is_no_reason_to_look_again() {
        let dir = tempfile::tempdir().unwrap();
        for (error, is_whole) in [
            (Errno::NOENT, true),
            (Errno::ACCESS, true),
            (Errno::PERM, true),
            (Errno::IO, false),
            (Errno::MFILE, false),
        ] {
            let mut walk = walk(dir.path());
            walk.miss(error);
            assert_eq!(walk.is_whole(), is_whole, "{error}");
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
            assert!(walk.open.len() <= MAX_OPEN, "{}", walk.open.len());
            deepest = deepest.max(walk.closed.len() + walk.open.len());
            steps += 1;
            if steps % 100 == 0 {
                walk.park();
                assert!(walk.open.len() <= 1);
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
}
