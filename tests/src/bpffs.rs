//! A BPF filesystem of a test's own; what is pinned goes with it.

use crate::{mounts::Mounted, prelude::*};

pub struct Bpffs {
    _mounted: Mounted,
    dir: tempfile::TempDir,
}

impl Bpffs {
    pub fn mount() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        Ok(Self {
            _mounted: Mounted::new("bpf", dir.path(), None)?,
            dir,
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}
