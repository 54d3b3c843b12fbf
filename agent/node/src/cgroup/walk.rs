//! Visits a cgroup and all that are below it, by directory descriptors: whatever their count and the length of their
//! paths, a walk holds a constant number of descriptors and bytes, and does not allocate.
//!
//! A position in a directory is no way to come back to an entry: the kernel finds it by a hash of the name
//! (`kernfs_dir_pos`), and names with the same hash can be chosen. So the innermost directories stay open, with what
//! was read of them; one further above is opened again by `..` and read up to the directory that the walk comes from.

use std::{
    ffi::CStr,
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use evictd_sys::fs::is_gone;
use rustix::fs::{FileType, Mode, OFlags, RawDir, fstat, openat};

use crate::{cgroup::members::MAX_AT_ONCE, kernfile::bad_message};

/// Bounds of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkLimits {
    /// Largest number of cgroups that are visited.
    cgroups: usize,
    /// Largest number of levels below the first that are visited.
    levels: usize,
    /// Number of processes of a cgroup beyond which no more are signalled.
    pub processes: u32,
}

impl WalkLimits {
    /// For threads that decide: 20 milliseconds at most. A container that is a node (kind, k3d) has some
    /// hundreds of cgroups.
    pub const DECIDING: Self = Self {
        cgroups: 512,
        levels: HELD - 1,
        processes: MAX_AT_ONCE,
    };
    /// For threads that may take their time: twice as many as the kernel has memory cgroups (MEM_CGROUP_ID_MAX), so
    /// that a pod which makes them meanwhile does not hold up the thread.
    pub const ALL: Self = Self {
        cgroups: 1 << 17,
        levels: usize::MAX,
        processes: u32::MAX,
    };
}

/// Way in which a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walked {
    /// All were visited.
    All,
    /// There are more than its limits, or the tree has changed meanwhile.
    Truncated,
    /// The visitor has ended it.
    Stopped,
}

/// Largest number of directories that are held open at once.
const HELD: usize = 9;

/// Flags with which directories are opened.
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// Calls `visit` for a cgroup and those that are below it now, parents before children, until it breaks.
///
/// # Errors
/// The first refusal, after all that can be reached was visited. A cgroup that is gone is none.
pub(super) fn walk(
    cgroup: BorrowedFd<'_>,
    limits: WalkLimits,
    visit: &mut dyn FnMut(BorrowedFd<'_>) -> ControlFlow<()>,
) -> io::Result<Walked> {
    if visit(cgroup).is_break() {
        return Ok(Walked::Stopped);
    }
    let mut end = Walked::All;
    let mut refused = None;
    let mut note = |error: io::Error| {
        if !is_gone(&error) {
            refused.get_or_insert(error);
        }
    };
    let mut level = match open(cgroup, c".") {
        Err(e) if is_gone(&e) => return Ok(end),
        opened => Level::new(opened?),
    };
    let mut held = [const { None::<Level> }; HELD];
    let (mut visited, mut depth) = (1, 0);
    loop {
        let mut has_more = level.fill().unwrap_or_else(|error| {
            note(error);
            false
        });
        if has_more && visited >= limits.cgroups {
            end = Walked::Truncated;
            break;
        }
        if has_more && depth >= limits.levels {
            end = Walked::Truncated;
            has_more = false;
        }
        if has_more {
            // One that cannot be opened costs a visit as well.
            visited += 1;
            let below = match level.open_next() {
                Ok(below) => below,
                Err(e) => {
                    note(e);
                    continue;
                }
            };
            if visit(below.as_fd()).is_break() {
                return Ok(Walked::Stopped);
            }
            // In the place of the one that is so many levels above it.
            if let Some(place) = held.get_mut(depth % HELD) {
                *place = Some(std::mem::replace(&mut level, Level::new(below)));
            }
            depth += 1;
            continue;
        }
        if depth == 0 {
            break;
        }
        depth -= 1;
        let above = match held.get_mut(depth % HELD).and_then(Option::take) {
            Some(above) => Ok(Some(above)),
            None => Level::above(&level),
        };
        match above {
            Ok(Some(above)) => level = above,
            unknown => {
                // The directory was removed, so that its place in the one above is not known; or that one refuses.
                end = Walked::Truncated;
                unknown.err().into_iter().for_each(&mut note);
                break;
            }
        }
    }
    refused.map_or(Ok(end), Err)
}

fn open(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    Ok(openat(dir, name, DIRECTORY, Mode::empty())?)
}

/// Room for the entries of one read: the longest name with its header has a third of that.
const ENTRIES: usize = 1024;

/// A directory of which the directories in it are gone through.
struct Level {
    dir: OwnedFd,
    /// Names that were read and not gone through yet, each with its NUL.
    names: [u8; ENTRIES],
    next: usize,
    end: usize,
}

impl Level {
    fn new(dir: OwnedFd) -> Self {
        Self {
            dir,
            names: [0; ENTRIES],
            next: 0,
            end: 0,
        }
    }

    /// The directory above one, gone through up to that one; `None` where that one is in it no more.
    fn above(below: &Self) -> io::Result<Option<Self>> {
        let id = fstat(&below.dir)?.st_ino;
        let mut above = Self::new(open(below.dir.as_fd(), c"..")?);
        let mut found = false;
        while !found {
            let is_more = above.read(&mut |entry| {
                found |= entry == id;
                // Only what follows.
                found && entry != id
            })?;
            if !is_more {
                break;
            }
        }
        Ok(found.then_some(above))
    }

    /// Whether there is a next directory in it, whose name then is at hand.
    fn fill(&mut self) -> io::Result<bool> {
        while self.next == self.end {
            if !self.read(&mut |_| true)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the next directory in it, after [`Self::fill`].
    fn open_next(&mut self) -> io::Result<OwnedFd> {
        let names = self.names.get(self.next..self.end).unwrap_or_default();
        let name = CStr::from_bytes_until_nul(names).map_err(|_| bad_message())?;
        self.next += name.to_bytes_with_nul().len();
        open(self.dir.as_fd(), name)
    }

    /// Reads some entries and keeps the names of the directories that `keep` is true for, by inode number; false at
    /// the end.
    fn read(&mut self, keep: &mut dyn FnMut(u64) -> bool) -> io::Result<bool> {
        (self.next, self.end) = (0, 0);
        let mut buffer = [MaybeUninit::uninit(); ENTRIES];
        let mut entries = RawDir::new(&self.dir, &mut buffer);
        loop {
            let Some(entry) = entries.next() else {
                return Ok(false);
            };
            let entry = entry?;
            let name = entry.file_name();
            let is_below =
                entry.file_type() == FileType::Directory && name != c"." && name != c"..";
            if is_below && keep(entry.ino()) {
                let name = name.to_bytes_with_nul();
                let end = self.end + name.len();
                // There is room: the entries that were read were longer.
                if let Some(room) = self.names.get_mut(self.end..end) {
                    room.copy_from_slice(name);
                    self.end = end;
                }
            }
            if entries.is_buffer_empty() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::File, os::unix::fs::MetadataExt as _, path::Path};

    use rustix::fs::mkdirat;

    use super::*;

    /// The inode numbers of what is visited.
    fn seen(dir: &Path, limits: WalkLimits) -> (Vec<u64>, Walked) {
        let dir = File::open(dir).unwrap();
        let mut seen = Vec::new();
        let walked = walk(dir.as_fd(), limits, &mut |cgroup| {
            seen.push(fstat(cgroup).unwrap().st_ino);
            ControlFlow::Continue(())
        });
        seen.sort_unstable();
        (seen, walked.unwrap())
    }

    #[test]
    fn each_is_visited_once_however_deep_or_wide() {
        let dir = tempfile::tempdir().unwrap();
        for wide in 0..300 {
            fs::create_dir(dir.path().join(wide.to_string())).unwrap();
        }
        // The walk comes back to directories that it does not hold any more, in the middle of their entries.
        for branch in 0..5 {
            for level in [0, 1, 7, 8, 9, 10, 30] {
                for leaf in 0..30 {
                    let path = format!("{branch}/{}leaf-{leaf}", "below/".repeat(level));
                    fs::create_dir_all(dir.path().join(path)).unwrap();
                }
            }
        }
        let mut all = vec![dir.path().to_owned()];
        let mut next = 0;
        while let Some(dir) = all.get(next).cloned() {
            all.extend(
                fs::read_dir(dir)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            next += 1;
        }
        let mut ids: Vec<_> = all
            .iter()
            .map(|dir| fs::metadata(dir).unwrap().ino())
            .collect();
        ids.sort_unstable();
        assert_eq!(seen(dir.path(), WalkLimits::ALL), (ids, Walked::All));
        let (some, walked) = seen(dir.path(), WalkLimits::DECIDING);
        assert!(some.len() < all.len());
        assert_eq!(walked, Walked::Truncated);
    }

    #[test]
    fn paths_beyond_the_kernels_longest_are_no_hindrance() {
        let dir = tempfile::tempdir().unwrap();
        let name = "n".repeat(255);
        let mut at: OwnedFd = File::open(dir.path()).unwrap().into();
        for _ in 0..40 {
            mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = openat(&at, &*name, DIRECTORY, Mode::empty()).unwrap();
        }
        let (seen, walked) = seen(dir.path(), WalkLimits::ALL);
        assert_eq!((seen.len(), walked), (41, Walked::All));
        // The next one to remove it could not name it.
        for _ in 0..40 {
            at = openat(&at, c"..", DIRECTORY, Mode::empty()).unwrap();
            rustix::fs::unlinkat(&at, &*name, rustix::fs::AtFlags::REMOVEDIR).unwrap();
        }
    }

    #[test]
    fn a_visitor_can_end_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        let dir = File::open(dir.path()).unwrap();
        let mut visited = 0;
        let walked = walk(dir.as_fd(), WalkLimits::ALL, &mut |_| {
            visited += 1;
            ControlFlow::Break(())
        });
        assert_eq!((visited, walked.unwrap()), (1, Walked::Stopped));
    }
}
