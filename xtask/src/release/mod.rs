//! `cargo xtask release`: everything that a version consists of, in one directory, without a registry and without an engine.
//!
//! The same commit gives the same bytes. Nothing is signed or pushed here: that takes keys and an account.

mod chart;
mod provenance;
mod sbom;
#[cfg(test)]
mod tests;

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

use walkdir::WalkDir;

use crate::{
    image::{self, Arch, Provenance, archive, oci},
    prelude::*,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Changelog, in which releases are described by hand.
const CHANGELOG: &str = "CHANGELOG.md";
/// First bytes of an ELF program.
const ELF: &[u8] = b"\x7fELF";

/// What `cargo xtask release` takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// The nodes' architectures; all if not given
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Where to write it; target/release-VERSION if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write it although the checkout has changes that are not committed; the provenance then names no commit
    #[arg(long)]
    allow_dirty: bool,
}

/// A release's files by name.
type Artifacts = BTreeMap<String, Vec<u8>>;

struct Inputs<'a> {
    root: &'a Path,
    binaries: Vec<(Arch, Vec<u8>)>,
    provenance: Provenance,
    crates: Vec<(Arch, sbom::Crates)>,
    /// `rustc --version`.
    compiler: String,
}

/// Builds everything and writes it; prints where it is.
pub fn run(arguments: &Arguments) -> Result<()> {
    let root = workspace_root();
    // What is wrong with the words is said before minutes of compiling.
    entry(
        &fs::read_to_string(root.join(CHANGELOG)).with_context(|| CHANGELOG)?,
        VERSION,
    )?;
    let mut provenance = image::provenance();
    let changes = output(
        Command::new("git")
            .current_dir(root)
            .args(["status", "--porcelain"]),
    )?;
    if !changes.trim().is_empty() {
        ensure!(
            arguments.allow_dirty,
            "the checkout has changes that are not committed (--allow-dirty to go on):\n{changes}"
        );
        provenance.revision = None;
    }
    let arches = match arguments.arch.as_slice() {
        [] => vec![Arch::Amd64, Arch::Arm64],
        some => some.to_vec(),
    };
    let mut binaries = Vec::new();
    let mut crates = Vec::new();
    for arch in arches {
        binaries.push((arch, image::agent(arch)?));
        crates.push((arch, sbom::crates(root, arch)?));
    }
    let artifacts = artifacts(&Inputs {
        root,
        binaries,
        provenance,
        crates,
        compiler: output(Command::new("rustc").arg("--version"))?
            .trim()
            .to_owned(),
    })?;
    let default = root.join(format!("target/release-{VERSION}"));
    let out = arguments.out.as_deref().unwrap_or(&default);
    write(out, &artifacts)?;
    println!("release: {}", out.display());
    for (name, content) in &artifacts {
        println!("  {name} ({} KiB)", content.len().div_ceil(1024));
    }
    Ok(())
}

/// All files, the checksums and the provenance of the others included.
fn artifacts(inputs: &Inputs<'_>) -> Result<Artifacts> {
    let mut files = Artifacts::new();
    let image = image::of_agents(&inputs.binaries, &inputs.provenance)?;
    files.insert(
        format!("evictd-{VERSION}.oci.tar"),
        archive::tar(&image, 0o644)?,
    );
    for (arch, program) in &inputs.binaries {
        files.insert(
            format!("evictd-{VERSION}-linux-{}", arch.name()),
            program.clone(),
        );
    }
    for (arch, crates) in &inputs.crates {
        let bom = sbom::of(crates, *arch, &inputs.provenance)?;
        files.insert(
            format!("evictd-{VERSION}-linux-{}.cdx.json", arch.name()),
            serde_json::to_vec_pretty(&bom)?,
        );
    }
    let deploy = inputs.root.join("deploy");
    let package = chart::package(&deploy.join("chart/evictd"))?;
    let chart = chart::artifact(&package, &inputs.provenance)?;
    files.insert(format!("evictd-chart-{VERSION}.tgz"), package.archive);
    files.insert(
        format!("evictd-chart-{VERSION}.oci.tar"),
        archive::tar(&chart, 0o644)?,
    );
    let manifests = read_tree(&deploy.join("manifests"), "manifests")?;
    files.insert(
        format!("evictd-manifests-{VERSION}.tar"),
        archive::tar(&manifests, 0o644)?,
    );
    for (name, content) in read_tree(&deploy.join("crds"), "crd")? {
        files.insert(name.replace('/', "-"), content);
    }
    let changelog = fs::read_to_string(inputs.root.join(CHANGELOG)).with_context(|| CHANGELOG)?;
    files.insert(
        "RELEASE.md".to_owned(),
        entry(&changelog, VERSION)?.into_bytes(),
    );

    let statement = provenance::statement(&files, inputs)?;
    files.insert("provenance.intoto.json".to_owned(), statement);
    let sums: String = files
        .iter()
        .map(|(name, content)| format!("{}  {name}\n", hex(content)))
        .collect();
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    Ok(files)
}

/// SHA-256 as `sha256sum` writes it.
fn hex(content: &[u8]) -> String {
    oci::sha256(content)
        .trim_start_matches("sha256:")
        .to_owned()
}

/// The section of one version, from its heading (`## 0.1.0`, a date may follow) to the next.
fn entry(changelog: &str, version: &str) -> Result<String> {
    let is_heading = |line: &str| line.starts_with("## ");
    let is_wanted = |line: &&str| {
        let title = line.strip_prefix("## ").unwrap_or_default();
        title.split_whitespace().next() == Some(version)
    };
    let mut lines = changelog.lines().skip_while(|line| !is_wanted(line));
    let heading = lines
        .next()
        .with_context(|| format!("{CHANGELOG}: no section `## {version}`"))?;
    let body: Vec<&str> = lines.take_while(|line| !is_heading(line)).collect();
    let body = body.join("\n");
    ensure!(
        !body.trim().is_empty(),
        "{CHANGELOG}: `{heading}` says nothing"
    );
    Ok(format!("{heading}\n\n{}\n", body.trim()))
}

/// The regular files below a directory, with `prefix` in the place of the directory's path.
fn read_tree(directory: &Path, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in WalkDir::new(directory) {
        let entry = entry?;
        if !entry.file_type().is_dir() {
            let path = entry.path();
            let name = path.strip_prefix(directory)?.to_str();
            let name = name.with_context(|| format!("{} is not UTF-8", path.display()))?;
            let content = fs::read(path).with_context(|| path.display().to_string())?;
            files.insert(format!("{prefix}/{name}"), content);
        }
    }
    Ok(files)
}

/// Writes the directory anew, whole or not at all.
fn write(out: &Path, artifacts: &Artifacts) -> Result<()> {
    let partial = out.with_extension("partial");
    // Only what an earlier release has written is replaced.
    ensure!(
        !out.exists() || out.join("SHA256SUMS").exists(),
        "{} is there and is no release",
        out.display()
    );
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
    for (name, content) in artifacts {
        let path = partial.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {name}"))?;
        if content.starts_with(ELF) {
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
    }
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| out.display().to_string())?;
    }
    fs::rename(&partial, out).with_context(|| out.display().to_string())
}
