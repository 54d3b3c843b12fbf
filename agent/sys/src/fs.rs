//! Files in the state directory that are replaced as a whole, texts of the kernel, and errors that name the file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::Access;

/// The extension of a file that is not complete yet.
pub const TEMPORARY: &str = "new";

/// Atomically replaces a file (temporary file, then rename): readers see the old one or the new one. `durable`: so do
/// readers after the machine has lost its power. Only the owner may read it. After an error no temporary file is left.
///
/// # Errors
/// The directory cannot be written.
pub fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let new = path.with_extension(TEMPORARY);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(bytes).and_then(|()| match durable {
        true => file.sync_data(),
        false => Ok(()),
    });
    drop(file);
    let renamed = written.and_then(|()| fs::rename(&new, path));
    if renamed.is_err() {
        // On a full disk it would take what is left.
        let _ = fs::remove_file(&new);
    }
    renamed?;
    match path.parent() {
        Some(directory) if durable => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

/// Tests whether files could be made in a directory, which may have to be made itself; changes nothing.
///
/// # Errors
/// It is no directory, or may not be read and written.
pub fn test_directory(path: &Path) -> Result<(), PathError> {
    let mut ancestors = path.ancestors().skip_while(|path| !path.exists());
    let existing = ancestors.next().unwrap_or(Path::new("/"));
    // The dot refuses what is no directory.
    let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    let tested = rustix::fs::access(existing.join("."), all);
    tested.map_err(|error| PathError::at(existing)(error.into()))
}

/// Reads a kernel file that may contain names chosen by other users (commands, mount points). Bytes that are not UTF-8
/// are replaced, so that one such name does not make the file unreadable.
///
/// # Errors
/// Not there, or not readable.
pub fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(lossy(fs::read(path)?))
}

/// Bytes as text; those that are not UTF-8 are replaced.
pub fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// An error that carries the path, because "No such file or directory" alone does not help.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = path.display())]
pub struct PathError {
    /// The file or directory.
    pub path: PathBuf,
    /// The reason.
    #[source]
    pub source: io::Error,
}

impl PathError {
    /// Attaches a path to an error.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |source| Self {
            path: path.to_owned(),
            source,
        }
    }
}

/// Whether an error means that no descriptor is left, of the process's or the machine's: others close theirs in time.
pub fn lacks_descriptor(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether an error means that a cgroup or a process is no longer there.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENOENT | libc::ESRCH)
    )
}

/// The number of an error; EIO where the error has none, as of a file in another form.
pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_no_temporary_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.json");
        replace(&path, b"1", true).unwrap();
        replace(&path, b"2", false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        // A directory is in the way.
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).unwrap();
        replace(&taken, b"3", false).unwrap_err();
        let names = fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 2);
    }

    #[test]
    fn a_full_disk_keeps_no_part_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        // Writing to it fails with ENOSPC.
        std::os::unix::fs::symlink("/dev/full", dir.path().join("one.new")).unwrap();
        replace(&dir.path().join("one.json"), b"1", false).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
