//! The kernels of the matrix: fetched once, kept unpacked under `target/vm/kernels`.

use super::modules;
use crate::{apt::Apt, prelude::*};

/// Debian builds every kernel of a suite also for virtual machines: small, and with BTF.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// The matrix: a kernel's name, and the suite that carries it.
pub const KERNELS: [(&str, &str); 4] = [
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "bookworm-backports"),
    ("7.2", "sid"),
];

#[derive(Debug, Clone)]
pub struct Kernel {
    pub name: &'static str,
    /// Release of the kernel, as `uname -r` inside will say.
    pub release: String,
    dir: PathBuf,
}

impl Kernel {
    pub fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The directory that is to be `/lib/modules` inside.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules")
    }

    /// Why the kernel cannot serve memory cgroups of version 1, or nothing when it can.
    pub fn lacks_v1(&self) -> Result<Option<String>> {
        let path = self.dir.join("config");
        let config = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Ok((!has_memcg_v1(&config))
            .then(|| format!("{} is built without CONFIG_MEMCG_V1", self.release)))
    }

    /// The kernel in the cache, if it is whole.
    pub fn cached(cache: &Path, name: &'static str) -> Option<Self> {
        let dir = cache.join("kernels").join(name);
        let release = fs::read_to_string(dir.join("release"))
            .ok()?
            .trim()
            .to_owned();
        Some(Self { name, release, dir })
    }
}

/// Takes a kernel out of the cache, or downloads it; says why it cannot be had here: a missing mirror is no failure of the
/// project.
pub fn fetch(cache: &Path, name: &'static str, suite: &str) -> Result<Result<Kernel, String>> {
    fs::create_dir_all(cache)?;
    // Two runs at once must not unpack the same kernel; the second finds it done.
    let lock = fs::File::create(cache.join("lock"))?;
    lock.lock().context("target/vm/lock")?;
    if let Some(kernel) = Kernel::cached(cache, name) {
        return Ok(Ok(kernel));
    }
    println!("vm: fetching kernel {name} ({META_PACKAGE} of {suite})");
    let archives = match download(cache, suite) {
        Ok(archives) => archives,
        Err(reason) => return Ok(Err(format!("{reason:#}"))),
    };
    unpack(cache, name, &archives)?;
    let kernel = Kernel::cached(cache, name).context("the kernel is not where it was unpacked")?;
    println!("vm: kernel {name} is {}", kernel.release);
    Ok(Ok(kernel))
}

fn download(cache: &Path, suite: &str) -> Result<Vec<PathBuf>> {
    let apt = Apt::of_suite(cache.join(format!("apt-{suite}")), suite)?;
    apt.download(&apt.kernel_packages(META_PACKAGE)?)
}

fn unpack(cache: &Path, name: &str, archives: &[PathBuf]) -> Result<()> {
    let dir = cache.join("kernels").join(name);
    let raw = dir.join("unpacked");
    for stale in [&raw, &dir.join("lib")] {
        if stale.exists() {
            fs::remove_dir_all(stale)?;
        }
    }
    for archive in archives {
        fs::create_dir_all(&raw)?;
        output(Command::new("dpkg-deb").arg("-x").arg(archive).arg(&raw))?;
    }
    // Debian moved from /lib to /usr/lib, and from /boot/vmlinuz-RELEASE to /usr/lib/modules/RELEASE/vmlinuz.
    let parent = [raw.join("usr/lib/modules"), raw.join("lib/modules")]
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("no modules in {archives:?}"))?;
    let release = match fs::read_dir(&parent)?
        .collect::<std::io::Result<Vec<_>>>()?
        .as_slice()
    {
        [only] => only.file_name().to_string_lossy().into_owned(),
        several => bail!("{}: one kernel was expected: {several:?}", parent.display()),
    };
    let tree = parent.join(&release);
    for file in ["vmlinuz", "config"] {
        let found = [raw.join(format!("boot/{file}-{release}")), tree.join(file)]
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("no {file} in {archives:?}"))?;
        fs::rename(found, dir.join(file))?;
    }
    modules::select(&tree, &dir.join("lib/modules").join(&release))?;
    fs::remove_dir_all(&raw)?;
    // Written last: its presence says that the rest is whole.
    fs::write(dir.join("release"), format!("{release}\n"))?;
    Ok(())
}

/// Before 6.11 version 1 came with CONFIG_MEMCG itself; since then it has an option of its own.
fn has_memcg_v1(config: &str) -> bool {
    let set = |option: &str| {
        config
            .lines()
            .any(|line| line.strip_prefix(option) == Some("=y"))
    };
    set("CONFIG_MEMCG")
        && (set("CONFIG_MEMCG_V1") || !config.contains("CONFIG_MEMCG_V1 is not set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_memory_cgroups_are_read_from_the_configuration() {
        assert!(has_memcg_v1("CONFIG_MEMCG=y\nCONFIG_MEMCG_SWAP=y\n"));
        assert!(has_memcg_v1("CONFIG_MEMCG=y\nCONFIG_MEMCG_V1=y\n"));
        assert!(!has_memcg_v1(
            "CONFIG_MEMCG=y\n# CONFIG_MEMCG_V1 is not set\n"
        ));
        assert!(!has_memcg_v1("# CONFIG_MEMCG is not set\n"));
    }

    #[test]
    fn an_unfinished_kernel_is_not_taken_from_the_cache() -> Result<()> {
        let cache = tempfile::tempdir()?;
        let dir = cache.path().join("kernels/6.1");
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("vmlinuz"), "")?;
        assert!(Kernel::cached(cache.path(), "6.1").is_none());
        fs::write(dir.join("release"), "6.1.0-1\n")?;
        let kernel = Kernel::cached(cache.path(), "6.1").context("cached")?;
        assert_eq!(kernel.release, "6.1.0-1");
        Ok(())
    }
}
