//! Files in the state directory that are replaced as a whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Puts a new file in an old one's place: whoever reads sees the one or the other. `durable`: so does whoever reads after
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
