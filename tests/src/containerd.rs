//! A real containerd of a test's own, from Debian's package, with its files on a disk of the test's own; and the calls that
//! make pods and containers there. No registry: its images are made here.

mod daemon;
mod image;
mod messages;
mod pods;

use std::process::Child;

pub use daemon::DaemonContainer;
pub use image::{PAUSE, program};
pub use pods::Pods;

use nix::sys::signal::Signal;

use crate::{agent::signal, deploy::run, prelude::*};

/// A running containerd; it and all that it has started end when this is dropped.
pub struct Containerd {
    child: Child,
    // Its socket and its runtime's state; the disk holds the rest.
    dir: tempfile::TempDir,
}

/// The static program of which images are made.
/// An error is a reason to skip.
pub fn busybox() -> Result<PathBuf> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
    let found = found.into_iter().find(|path| path.is_file());
    found.context("no busybox: apt-get install busybox-static")
}

impl Containerd {
    /// Starts one whose images and writable layers lie below `root`.
    /// An error is a reason to skip.
    pub fn start(root: &Path) -> Result<Self> {
        busybox()?;
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("config.toml");
        fs::write(&config, configuration(dir.path(), root))?;
        let log = File::create(dir.path().join("log"))?;
        let child = Command::new("containerd")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("containerd")?;
        let mut started = Self { child, dir };
        started.wait()?;
        started.import(&program(PAUSE, &busybox()?, &["sleep", "1000000"], 0)?)?;
        Ok(started)
    }

    /// Waits until the part that speaks the CRI answers.
    fn wait(&mut self) -> Result<()> {
        let end = std::time::Instant::now() + SOON;
        loop {
            if self.child.try_wait()?.is_some() || std::time::Instant::now() > end {
                let log = fs::read_to_string(self.dir.path().join("log"))?;
                let last = log.lines().last().unwrap_or_default();
                bail!("containerd does not start: {last}");
            }
            if self.ctr(&["images", "ls"]).is_ok() && Pods::connect(&self.socket()).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("containerd.sock")
    }

    pub fn import(&self, archive: &[u8]) -> Result<()> {
        let path = self.dir.path().join("image.tar");
        fs::write(&path, archive)?;
        let file = path.display().to_string();
        self.ctr(&["images", "import", "--snapshotter", "native", &file])?;
        Ok(fs::remove_file(path)?)
    }

    /// Runs `ctr` in the namespace of the CRI.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.socket());
        ctr.args(["--namespace", "k8s.io", "--timeout", "60s"]);
        run(ctr.args(arguments).stdin(Stdio::null()))
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Shims outlive their containerd: what runs ends first.
        if let Ok(pods) = Pods::connect(&self.socket()) {
            let _ = pods.remove_all();
        }
        if signal(&self.child, Signal::SIGTERM).is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// The machine may be a container itself: it cannot lower oom_score_adj, and overlays may not lie on overlays. Pods use the node's network, so that no CNI is needed.
fn configuration(dir: &Path, root: &Path) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{ttrpc}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{nowhere}"
    conf_dir = "{nowhere}"
"#,
        root = root.join("containerd").display(),
        state = at("state"),
        socket = at("containerd.sock"),
        ttrpc = at("ttrpc.sock"),
        nowhere = at("nowhere"),
    )
}
