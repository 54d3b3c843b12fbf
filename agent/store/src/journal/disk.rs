//! What the journal asks of the system, so that a test can have each call fail.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// The calls that change files. Errors are the system's.
pub trait Disk: fmt::Debug + Send {
    /// Opens a file whose writes go to its end, and makes it when it is not there. With its length in bytes.
    ///
    /// # Errors
    /// No inode, no space, no right to.
    fn open(&self, path: &Path) -> io::Result<(File, u64)> {
        let file = File::options().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }

    /// Writes as much as the system takes at once; how many bytes that was.
    ///
    /// # Errors
    /// The disk is full or broken.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    /// Waits until what was written is on disk.
    ///
    /// # Errors
    /// It is not.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Cuts a file down to so many bytes.
    ///
    /// # Errors
    /// The disk is broken or read-only.
    fn cut(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    /// The length of a file, in bytes.
    ///
    /// # Errors
    /// The disk is broken.
    fn length(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    /// Whether a path still leads to an open file: it may have been removed, or moved, since.
    ///
    /// # Errors
    /// The disk is broken.
    fn is_at(&self, file: &File, path: &Path) -> io::Result<bool> {
        is_at(file, path)
    }

    /// Gives a file another name, in place of the file that has it.
    ///
    /// # Errors
    /// The disk is full, broken or read-only.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Waits until the names in an open directory are on disk. It takes no descriptor: there may be none left.
    ///
    /// # Errors
    /// They are not.
    fn sync_names(&self, dir: &File) -> io::Result<()> {
        dir.sync_all()
    }
}

/// Whether a path leads to an open file or directory.
///
/// # Errors
/// The disk is broken.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let open = file.metadata()?;
    Ok((there.dev(), there.ino()) == (open.dev(), open.ino()))
}

/// The machine's own disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Disk for System {}
