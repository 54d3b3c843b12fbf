//! Filesystems of a test's own: an image file on a loop device, mounted, gone when the test ends, however it ends.

use nix::fcntl::posix_fallocate;

use crate::prelude::*;

pub struct Disk {
    // Removed last, with the image and the mount point in it.
    dir: tempfile::TempDir,
    kind: String,
    overlay: bool,
}

/// Runs a tool on a path; its own words become the error.
fn run(tool: &str, arguments: &[&str], path: &Path) -> Result<()> {
    let mut command = Command::new(tool);
    let command = command.args(arguments).arg(path).stdin(Stdio::null());
    let out = command.output().with_context(|| tool.to_owned())?;
    if out.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&out.stderr);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    bail!("{tool}: {words}")
}

impl Disk {
    /// Makes and mounts a filesystem (`ext4`, `xfs`, `btrfs`) of so many MiB; ext4 gets `inodes` inodes.
    /// An error is a reason to skip: no `mkfs` of this kind, no loop device, not root.
    pub fn new(kind: &str, mib: u64, inodes: u64) -> Result<Self> {
        if let Some(why) = not_root() {
            bail!(why);
        }
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        let file = File::create(&image)?;
        file.set_len(mib << 20)?;
        let inodes = inodes.to_string();
        let arguments: &[&str] = match kind {
            "ext4" => &["-q", "-F", "-N", &inodes],
            _ => &["-q"],
        };
        run(&format!("mkfs.{kind}"), arguments, &image)?;
        if in_guest() {
            // A guest has its files in memory, and a loop device charges new pages of its image to the cgroup that writes: none is
            // new then.
            posix_fallocate(&file, 0, (mib << 20).cast_signed())?;
        }
        let made = Self {
            dir,
            kind: kind.to_owned(),
            overlay: false,
        };
        fs::create_dir(made.path())?;
        made.mount()?;
        Ok(made)
    }

    /// Mounts an overlay whose upper layer lies on this disk; returns where.
    pub fn overlay(&mut self) -> Result<PathBuf> {
        for name in ["lower", "upper", "work"] {
            fs::create_dir(self.path().join(name))?;
        }
        let merged = self.dir.path().join("merged");
        fs::create_dir(&merged)?;
        let part = |name| self.path().join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("lower"),
            part("upper"),
            part("work")
        );
        let arguments = ["-t", "overlay", "overlay", "-o", &options];
        run("mount", &arguments, &merged)?;
        self.overlay = true;
        Ok(merged)
    }

    /// Mounts the image, again after [`Self::unmount`]; on which loop device is chance.
    pub fn mount(&self) -> Result<()> {
        let image = self.dir.path().join("image").display().to_string();
        // Named, so that the kernel loads a module that it does not have yet.
        let arguments = ["-t", &self.kind, "-o", "loop", &image];
        run("mount", &arguments, &self.path())
    }

    /// Takes the filesystem away while its mount point stays.
    pub fn unmount(&self) -> Result<()> {
        run("umount", &[], &self.path())
    }

    /// No file can be written any more, as after an error of the disk.
    pub fn make_read_only(&self) -> Result<()> {
        run("mount", &["-o", "remount,ro"], &self.path())
    }

    /// Makes a subvolume of btrfs; returns where.
    pub fn subvolume(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        run("btrfs", &["subvolume", "create"], &path)?;
        Ok(path)
    }

    /// Freezes the filesystem: every write waits until the answer is dropped, as on a disk that does not answer.
    pub fn freeze(&self) -> Result<Frozen> {
        let path = self.path();
        run("fsfreeze", &["--freeze"], &path)?;
        Ok(Frozen(path))
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Waits until all that was written is on it.
    pub fn sync(&self) -> Result<()> {
        run("sync", &["-f"], &self.path())
    }
}

/// A filesystem whose writes wait; dropping it lets them go on.
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = run("fsfreeze", &["--unfreeze"], &self.0) {
            eprintln!("{}: still frozen: {error:#}", self.0.display());
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.overlay {
            detach(&self.dir.path().join("merged"));
        }
        detach(&self.path());
    }
}

/// Lazily, so that nothing that is still open keeps it; `mount -o loop` freed the loop device when the last user goes.
fn detach(path: &Path) {
    // Not mounted any more is fine.
    let _ = run("umount", &["-l"], path);
}
