//! Tar files that depend on nothing but their content: sorted, owned by root, dated 1970.

use super::oci::Files;
use crate::prelude::*;

/// A tar of `files`, in the order of their paths, each with `mode`; parent directories come before what is in them.
pub fn tar(files: &BTreeMap<String, Vec<u8>>, mode: u32) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut directories = Vec::new();
    for (path, content) in files {
        for parent in parents(path) {
            if !directories.contains(&parent) {
                builder.append_data(
                    &mut header(tar::EntryType::Directory, 0o755, 0),
                    format!("{parent}/"),
                    std::io::empty(),
                )?;
                directories.push(parent);
            }
        }
        let size = u64::try_from(content.len())?;
        builder.append_data(
            &mut header(tar::EntryType::Regular, mode, size),
            path,
            &content[..],
        )?;
    }
    Ok(builder.into_inner()?)
}

/// Writes an image archive, whole or not at all.
pub fn write(path: &Path, files: &Files) -> Result<()> {
    let content = tar(files, 0o644)?;
    let directory = path.parent().context("an archive needs a directory")?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let partial = path.with_extension("partial");
    fs::write(&partial, content).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
}

/// `a/b/c` -> `a`, `a/b`.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}
