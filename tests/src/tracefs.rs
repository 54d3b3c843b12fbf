//! A trace instance of a test's own: what the kernel says of itself, without events of others in between.

use crate::prelude::*;

const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The instance; removed when dropped.
#[derive(Debug)]
pub struct Instance(PathBuf);

impl Instance {
    /// An empty one; the name is made this process's own.
    pub fn new(name: &str) -> Result<Self> {
        let root = ROOTS
            .iter()
            .map(|root| Path::new(root).join("instances"))
            .find(|dir| dir.is_dir())
            .context("tracefs is not mounted")?;
        let dir = root.join(format!("evictd-{name}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Self(dir))
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Switches an event (`signal/signal_generate`) on, for what a filter of the kernel's kind lets through. `false` where
    /// the kernel does not have it.
    pub fn enable(&self, event: &str, filter: &str) -> Result<bool> {
        let there = self.0.join("events").join(event).is_dir();
        if there {
            self.write(&format!("events/{event}/filter"), filter)?;
            self.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(there)
    }

    pub fn clear(&self) -> Result<()> {
        self.write("trace", "")
    }

    /// Reads what was recorded, oldest first, behind some lines that begin with `#`.
    pub fn text(&self) -> io::Result<String> {
        fs::read_to_string(self.0.join("trace"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let off = self.write("events/enable", "0");
        if let Err(error) = off.and_then(|()| Ok(fs::remove_dir(&self.0)?)) {
            eprintln!("{}: {error:#}", self.0.display());
        }
    }
}
