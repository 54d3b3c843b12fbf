//! Empties the emptyDirs of pods that have ended, where no kubelet removes them. Follows no link.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use jiff::Timestamp;

/// Depth up to which changed directories are emptied: each level takes a descriptor.
const MAX_DEPTH: usize = 64;

/// Empties directories; they themselves stay, for the next pod. Files that have changed since `until` stay as well, and
/// directories that were made since. A time later than now says nothing: the clock was set back, and they go.
pub fn clear(directories: &[PathBuf], until: Option<Timestamp>) {
    for directory in directories {
        let emptied = open(directory).and_then(|opened| empty(&opened, until, MAX_DEPTH));
        if let Err(error) = emptied {
            tracing::warn!(directory = %directory.display(), %error, "an emptyDir is not empty");
        }
    }
}

/// Empties a directory; what cannot be removed does not keep the rest. The directory is read by its descriptor: a
/// process that puts a link in its place leads nowhere else.
fn empty(directory: &File, until: Option<Timestamp>, depth: usize) -> io::Result<()> {
    let mut result = Ok(());
    for entry in fs::read_dir(opened(directory))? {
        let removed = entry.and_then(|entry| remove(&entry, until, depth));
        result = result.and(removed);
    }
    result
}

/// Opens a directory; not what a link leads to, which the scan of disks does not count either.
fn open(directory: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(flags).open(directory)
}

/// The path of an open directory.
fn opened(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

fn remove(entry: &fs::DirEntry, until: Option<Timestamp>, depth: usize) -> io::Result<()> {
    let (path, metadata) = (entry.path(), entry.metadata()?);
    let now = Timestamp::now();
    let until = until.filter(|until| is_since(*until, now, metadata.ctime()));
    match (metadata.is_dir(), until) {
        // Follows no link, neither there nor below.
        (true, None) => fs::remove_dir_all(path),
        (false, None) => fs::remove_file(path),
        // A removal that was interrupted has changed it.
        (true, Some(until)) if depth > 0 => {
            let directory = open(&path)?;
            empty(&directory, Some(until), depth - 1)?;
            // By its birth time, which not every filesystem has.
            let is_old = metadata
                .created()
                .is_ok_and(|at| at <= SystemTime::from(until) || at > SystemTime::from(now));
            match is_old && fs::read_dir(opened(&directory))?.next().is_none() {
                true => fs::remove_dir(path),
                false => Ok(()),
            }
        }
        (_, Some(_)) => Ok(()),
    }
}

/// Whether a second is one since `until`, and none to come.
fn is_since(until: Timestamp, now: Timestamp, second: i64) -> bool {
    (until.as_second() + 1..=now.as_second()).contains(&second)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// By an agent that ended meanwhile, or by a disk that refused.
    #[test]
    fn a_removal_that_was_interrupted_goes_on_and_leaves_what_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["left", "used"] {
            fs::create_dir(path(name)).unwrap();
            for file in ["removed", "old"] {
                fs::write(path(name).join(file), "").unwrap();
            }
        }
        let until = Timestamp::now();
        // Times are compared by seconds.
        std::thread::sleep(Duration::from_millis(1100));
        fs::remove_file(path("left/removed")).unwrap();
        fs::write(path("used/new"), "").unwrap();
        fs::create_dir(path("empty")).unwrap();
        clear(&[dir.path().to_owned()], Some(until));
        let is_there = |name| path(name).exists();
        assert!(!is_there("left") && !is_there("used/old"));
        assert!(is_there("used/new") && is_there("empty"));
    }

    /// The evicted pod has written what was last changed at a time that is still to come.
    #[test]
    fn files_from_before_the_clock_was_set_back_go() {
        let now = Timestamp::now();
        let hour = Duration::from_secs(3600);
        let is_kept = |changed: Timestamp| is_since(now - hour, now, changed.as_second());
        assert!(!is_kept(now - 2 * hour), "before its end");
        assert!(is_kept(now - hour / 2) && is_kept(now), "by the next run");
        assert!(!is_kept(now + hour));
    }

    /// As a process of the pod may put it there.
    #[test]
    fn a_link_leads_the_removal_nowhere_else() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join("file"), "").unwrap();
        let path = dir.path().join("sub");
        fs::create_dir(&path).unwrap();
        let until = Timestamp::now() - Duration::from_secs(2);
        let opened = File::open(dir.path()).unwrap();
        let entry = fs::read_dir(super::opened(&opened))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        assert!(entry.metadata().unwrap().is_dir());
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
        for until in [Some(until), None] {
            let _ = remove(&entry, until, MAX_DEPTH);
        }
        clear(&[dir.path().to_owned()], None);
        assert!(elsewhere.path().join("file").exists());
        // The emptyDir itself is a link.
        std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
        for until in [Some(Timestamp::now()), None] {
            clear(std::slice::from_ref(&path), until);
        }
        assert!(elsewhere.path().join("file").exists());
    }
}
