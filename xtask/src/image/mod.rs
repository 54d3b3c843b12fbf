//! `cargo xtask image`: the static binary as an OCI image archive, without a registry and without an engine.
//!
//! The archive is what `ctr images import` and `podman load` take. It is built here because the image is one file:
//! a layer, a configuration, a manifest and an index, and because the same commit must give the same bytes.

pub mod archive;
mod build;
pub mod oci;
#[cfg(test)]
mod tests;
pub mod verify;

use crate::prelude::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Program that can be put into an image.
pub struct Program {
    /// The binary's name, the image's, and the archive's.
    name: &'static str,
    /// The package that it is built from.
    package: &'static str,
    description: &'static str,
}

const EVICTD: Program = Program {
    name: "evictd",
    package: "evictd",
    description: "Evicts the right pod before the OOM killer picks a wrong one",
};
/// The pods of `cargo xtask e2e` are made of this one: no registry is needed for them either.
const HOG: Program = Program {
    name: "hog",
    package: "evictd-tests",
    description: "Takes memory, for the tests of evictd",
};

/// Compiles a program of the workspace for this machine's architecture, statically linked; returns the binary's path.
pub fn static_program(package: &str, name: &str) -> Result<PathBuf> {
    build::static_binary(package, name, Arch::host())
}

/// What `cargo xtask image` takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// The nodes' architecture; this machine's own if not given
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Also write the image of which the pods of `cargo xtask e2e` are made
    #[arg(long)]
    with_hog: bool,
}

/// A processor architecture that evictd is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// x86-64
    Amd64,
    /// AArch64
    Arm64,
}

impl Arch {
    /// Architecture of this machine.
    pub const fn host() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Arm64
        } else {
            Self::Amd64
        }
    }

    /// The name that OCI and Debian both use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The name that rustc has for it.
    pub const fn rust_target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The triple in the names of Debian's cross compilers' programs.
    fn gnu_triple(self) -> String {
        self.rust_target().replace("-unknown", "")
    }
}

/// Builds the binaries and writes an archive for each; prints where it is and how to import it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let arch = arguments.arch.unwrap_or(Arch::host());
    archives(arch, true, arguments.with_hog)
}

/// Writes the archives that are wanted of these.
pub fn archives(arch: Arch, agent: bool, hog: bool) -> Result<()> {
    for (wanted, program) in [(agent, &EVICTD), (hog, &HOG)] {
        if wanted {
            write(program, arch)?;
        }
    }
    Ok(())
}

pub fn agent(arch: Arch) -> Result<Vec<u8>> {
    compiled(&EVICTD, arch)
}

/// The agent's image for all architectures of the binaries, as a layout with one index.
pub fn of_agents(binaries: &[(Arch, Vec<u8>)], provenance: &Provenance) -> Result<oci::Files> {
    let sources: Vec<_> = binaries
        .iter()
        .map(|(arch, binary)| oci::Source {
            program: &EVICTD,
            binary,
            arch: *arch,
            provenance,
        })
        .collect();
    oci::assemble_all(&sources)
}

fn compiled(program: &Program, arch: Arch) -> Result<Vec<u8>> {
    let binary = build::static_binary(program.package, program.name, arch)?;
    let content = fs::read(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
    build::require_static(&content, arch).with_context(|| format!("{}", binary.display()))?;
    Ok(content)
}

fn write(program: &Program, arch: Arch) -> Result<()> {
    let content = compiled(program, arch)?;
    let image = oci::assemble(&oci::Source {
        program,
        binary: &content,
        arch,
        provenance: &provenance(),
    })?;
    let path = archive_path(program, arch);
    archive::write(&path, &image)?;
    let verified = verify::archive(&path)?;
    println!(
        "image: {} ({} KiB), {} {}\n  on a node: ctr --namespace k8s.io images import {}",
        path.display(),
        verified.archive_bytes / 1024,
        program.reference(),
        verified.manifest_digest,
        path.file_name().unwrap_or_default().display(),
    );
    Ok(())
}

impl Program {
    /// Name by which the chart asks the kubelet for the image; `localhost/` so that no registry is ever asked for it.
    fn reference(&self) -> String {
        format!("localhost/{}:{VERSION}", self.name)
    }
}

/// Path at which the archive of this version is written.
fn archive_path(program: &Program, arch: Arch) -> PathBuf {
    let file = format!("{}-{VERSION}-{}.oci.tar", program.name, arch.name());
    workspace_root().join("target/image").join(file)
}

/// What the image says about where it came from. Both are the commit's, so that building twice changes nothing.
pub struct Provenance {
    /// RFC 3339; the Unix epoch outside a git checkout.
    pub created: String,
    /// The commit, absent outside a git checkout.
    pub revision: Option<String>,
}

pub fn provenance() -> Provenance {
    let git = |format: &str| {
        let mut git = Command::new("git");
        git.current_dir(workspace_root()).env("TZ", "UTC0").args([
            "log",
            "-1",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
            format,
        ]);
        output(&mut git).map(|said| said.trim().to_owned()).ok()
    };
    Provenance {
        created: git("--format=%cd").unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned()),
        revision: git("--format=%H"),
    }
}
