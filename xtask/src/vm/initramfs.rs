//! The guest's root filesystem: a newc archive that the kernel unpacks into memory.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::unix::ffi::OsStrExt as _,
};

use cpio::newc::{self, ModeFileType};
use walkdir::WalkDir;

use super::{build::Programs, kernels::Kernel, programs, protocol};
use crate::prelude::*;

/// Directory in which the guest finds the test binaries, with what they start beside them.
pub const TESTS_DIR: &str = "/tests";

/// Lists the files that tests and shells find in the guest: path inside, path on the host.
pub fn files(programs: &Programs) -> Result<Vec<(String, PathBuf)>> {
    let mut files = vec![
        ("/init".to_owned(), programs.init.clone()),
        ("/bin/evictd".to_owned(), programs.agent.clone()),
    ];
    for (name, path) in programs.tests.iter().chain(&programs.helpers) {
        files.push((format!("{TESTS_DIR}/{name}"), path.clone()));
    }
    files.extend(programs::for_guest()?);
    Ok(files)
}

/// Writes an initramfs of these files (path inside, path on the host) and of these trees, which become the guest's
/// root together.
pub fn write(
    to: &Path,
    kernel: &Kernel,
    files: &[(String, PathBuf)],
    trees: &[PathBuf],
    jobs: &[protocol::Job],
) -> Result<()> {
    let mut archive = Archive::create(to)?;
    for tree in trees {
        archive.tree("", tree)?;
    }
    for (inside, outside) in files {
        archive.file(
            inside,
            &fs::read(outside).with_context(|| format!("{}", outside.display()))?,
        )?;
    }
    archive.tree("/lib/modules", &kernel.modules())?;
    archive.file(protocol::JOBS_PATH, &serde_json::to_vec(jobs)?)?;
    archive.finish()
}

struct Archive {
    to: BufWriter<File>,
    dirs: BTreeSet<PathBuf>,
    inode: u32,
}

impl Archive {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("{}", path.display()))?;
        Ok(Self {
            to: BufWriter::new(file),
            dirs: BTreeSet::new(),
            inode: 0,
        })
    }

    /// Adds an executable file, after the directories that lead to it.
    fn file(&mut self, inside: &str, content: &[u8]) -> Result<()> {
        self.parents(Path::new(inside))?;
        self.entry(inside, ModeFileType::Regular, 0o755, content)
    }

    fn parents(&mut self, inside: &Path) -> Result<()> {
        let Some(parent) = inside
            .parent()
            .filter(|path| path.as_os_str().as_bytes() != b"/")
        else {
            return Ok(());
        };
        if self.dirs.contains(parent) {
            return Ok(());
        }
        self.parents(parent)?;
        self.dirs.insert(parent.to_owned());
        self.entry(
            &parent.to_string_lossy(),
            ModeFileType::Directory,
            0o755,
            &[],
        )
    }

    /// Adds what is below a directory, in the order of the names: the same files give the same archive.
    fn tree(&mut self, inside: &str, outside: &Path) -> Result<()> {
        for entry in WalkDir::new(outside).min_depth(1).sort_by_file_name() {
            let entry = entry?;
            let name = format!("{inside}/{}", entry.path().strip_prefix(outside)?.display());
            if entry.path_is_symlink() {
                // As it is: a link that is absolute means the guest's root.
                let target = fs::read_link(entry.path())?;
                self.parents(Path::new(&name))?;
                let target = target.as_os_str().as_bytes();
                self.entry(&name, ModeFileType::Symlink, 0o777, target)?;
            } else if !entry.file_type().is_dir() {
                self.file(&name, &fs::read(entry.path())?)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, inside: &str, kind: ModeFileType, mode: u32, content: &[u8]) -> Result<()> {
        // Entries with links are matched by inode number; none of ours has any, but equal numbers would be.
        self.inode += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("{inside}: over 4 GiB"))?;
        let builder = newc::Builder::new(inside.trim_start_matches('/'))
            .ino(self.inode)
            .nlink(1)
            .mode(mode)
            .set_mode_file_type(kind);
        let mut writer = builder.write(&mut self.to, size);
        writer.write_all(content)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(self) -> Result<()> {
        newc::trailer(self.to)
            .and_then(|mut to| to.flush())
            .map_err(|e: io::Error| e.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_comes_once_and_before_its_files() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("a.cpio");
        let mut archive = Archive::create(&path)?;
        archive.file("/init", b"first")?;
        archive.file("/usr/bin/a", b"abcde")?;
        archive.file("/usr/bin/b", b"")?;
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("usr"))?;
        std::os::unix::fs::symlink("/usr/bin/a", tree.join("usr/c"))?;
        archive.tree("", &tree)?;
        archive.finish()?;
        let (mut read, mut seen) = (newc::Reader::new(File::open(&path)?)?, Vec::new());
        while !read.entry().is_trailer() {
            seen.push((
                read.entry().name().to_owned(),
                read.entry().file_size(),
                read.entry().mode(),
            ));
            read = newc::Reader::new(read.finish()?)?;
        }
        assert_eq!(
            seen,
            [
                ("init".to_owned(), 5, 0o100755),
                ("usr".to_owned(), 0, 0o040755),
                ("usr/bin".to_owned(), 0, 0o040755),
                ("usr/bin/a".to_owned(), 5, 0o100755),
                ("usr/bin/b".to_owned(), 0, 0o100755),
                ("usr/c".to_owned(), 10, 0o120777),
            ]
        );
        Ok(())
    }
}
