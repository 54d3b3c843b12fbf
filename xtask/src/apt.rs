//! Package lists of the project's own, of one Debian suite or another architecture, beside the machine's and without
//! touching it.

use std::collections::VecDeque;

use crate::prelude::*;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt with its state under a directory of ours.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Knows one suite only, of the mirror that this machine itself uses.
    pub fn of_suite(dir: PathBuf, suite: &str) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
        let mut options = vec!["arch=amd64".to_owned()];
        if Path::new(KEYRING).exists() {
            options.push(format!("signed-by={KEYRING}"));
        }
        let source = format!("deb [{}] {} {suite} main\n", options.join(" "), mirror()?);
        fs::write(dir.join("sources.list"), source)?;
        let source = format!(
            "Dir::Etc::sourcelist \"{}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n",
            dir.display()
        );
        Self::new(dir, "amd64", &source).with_context(|| format!("suite {suite}"))
    }

    /// Knows this machine's own sources, for another architecture.
    pub fn of_arch(dir: PathBuf, arch: &str) -> Result<Self> {
        Self::new(dir, arch, "")
    }

    /// Reads the package lists.
    fn new(dir: PathBuf, arch: &str, sources: &str) -> Result<Self> {
        for sub in ["state/lists/partial", "cache/archives/partial", "debs"] {
            fs::create_dir_all(dir.join(sub)).with_context(|| format!("{}", dir.display()))?;
        }
        // No installed packages: what the machine has plays no part in what is downloaded.
        fs::write(dir.join("status"), "")?;
        let configuration = sources.to_owned() + &configuration(&dir, arch);
        fs::write(dir.join("apt.conf"), configuration)?;
        let apt = Self { dir };
        output(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf"));
        command
    }

    /// The packages that make up a kernel: those that `meta` depends on, as far as they carry parts of a kernel.
    pub fn kernel_packages(&self, meta: &str) -> Result<BTreeSet<String>> {
        let (mut found, mut queue) = (BTreeSet::new(), VecDeque::from([meta.to_owned()]));
        while let Some(name) = queue.pop_front() {
            let record = output(
                self.command("apt-cache")
                    .args(["show", "--no-all-versions"])
                    .arg(&name),
            )?;
            for part in depends(&record).filter(|name| is_kernel_part(name)) {
                if found.insert(part.to_owned()) {
                    queue.push_back(part.to_owned());
                }
            }
        }
        ensure!(!found.is_empty(), "{meta} depends on no kernel package");
        Ok(found)
    }

    /// Downloads packages, each by its name or as `NAME=VERSION`, and returns the paths of the archives.
    pub fn download(&self, packages: &BTreeSet<String>) -> Result<Vec<PathBuf>> {
        let debs = self.dir.join("debs");
        fs::remove_dir_all(&debs)?;
        fs::create_dir(&debs)?;
        output(
            self.command("apt-get")
                .args(["download", "-qq"])
                .args(packages)
                .current_dir(&debs),
        )?;
        let archives = fs::read_dir(&debs)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        ensure!(
            archives.len() == packages.len(),
            "apt-get download brought {archives:?} for {packages:?}"
        );
        Ok(archives)
    }
}

/// Builds the settings that differ from the machine's own apt.
fn configuration(dir: &Path, arch: &str) -> String {
    let dir = dir.display();
    format!(
        "Dir::State \"{dir}/state\";\n\
         Dir::State::status \"{dir}/status\";\n\
         Dir::Cache \"{dir}/cache\";\n\
         APT::Architecture \"{arch}\";\n\
         APT::Architectures {{ \"{arch}\"; }};\n\
         Acquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         // As root apt downloads as a user of its own, who may not write below target/.\n\
         APT::Sandbox::User \"\";\n"
    )
}

/// The URI of a Debian archive, out of the machine's own sources.
fn mirror() -> Result<String> {
    let ask = || {
        output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
            "Origin: Debian",
            "Label: Debian",
        ]))
    };
    let mut uris = ask()?;
    if uris.trim().is_empty() {
        // A fresh machine knows its sources, but not yet whose they are.
        output(Command::new("apt-get").args(["update", "-qq"]))?;
        uris = ask()?;
    }
    let uri = uris
        .lines()
        .next()
        .context("apt has no Debian source to take the mirror's address from")?;
    Ok(uri.trim().to_owned())
}

/// The names in the Depends field of a package's record; of alternatives, all.
fn depends(record: &str) -> impl Iterator<Item = &str> {
    record
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:"))
        .flat_map(|list| list.split([',', '|']))
        .filter_map(|item| item.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name))
}

/// Up to 6.12 one package holds the whole kernel; later ones split it into image, base, binary and modules.
fn is_kernel_part(name: &str) -> bool {
    [
        "linux-image-",
        "linux-base-",
        "linux-binary-",
        "linux-modules-",
    ]
    .iter()
    .filter_map(|prefix| name.strip_prefix(prefix))
    .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_takes_names_without_versions_and_architectures() {
        let record =
            "Package: a\nDepends: kmod, linux-base (>= 4.3~), x:any | y (= 1)\nSuggests: z\n";
        assert_eq!(
            depends(record).collect::<Vec<_>>(),
            ["kmod", "linux-base", "x", "y"]
        );
        assert_eq!(depends("Package: a\n").count(), 0);
    }

    #[test]
    fn only_versioned_packages_are_parts_of_a_kernel() {
        assert!(is_kernel_part("linux-image-6.1.0-50-cloud-amd64"));
        assert!(is_kernel_part("linux-modules-7.2.13+deb14-cloud-amd64"));
        assert!(!is_kernel_part("linux-base"));
        assert!(!is_kernel_part("linux-base-cloud-amd64"));
        assert!(!is_kernel_part("linux-initramfs-tool"));
    }
}
