//! Files in the state directory that are replaced as a whole, texts of the kernel, and errors that name the file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// Atomically replaces a file (temporary file, then rename): readers see the old one or the new one. `durable`: so do readers after
/// the machine has lost its power. Only the owner may read it.
///
/// # Errors
/// The directory cannot be written.
pub fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    if durable {
        file.sync_data()?;
    }
    drop(file);
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) if durable => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

/// Reads a text of the kernel's in which other users choose the names: commands, directories under mount points. What is not UTF-8 in
/// it is replaced, so that one such name hides no other line.
///
/// # Errors
/// Not there, or not readable.
pub fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
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

/// Whether an error means that a cgroup or a process is no longer there.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENOENT | libc::ESRCH)
    )
}
