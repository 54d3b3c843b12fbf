//! A BPF filesystem of a test's own, unmounted when the test ends.

use std::{io, path::Path};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

pub struct Bpffs {
    dir: tempfile::TempDir,
}

impl Bpffs {
    pub fn mount() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        mount(
            Some("bpf"),
            dir.path(),
            Some("bpf"),
            MsFlags::empty(),
            None::<&str>,
        )?;
        Ok(Self { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        // What is pinned goes with its filesystem.
        let _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}
