//! The static binary for each architecture, by whichever compiler this machine has for it.

use super::Arch;
use crate::{apt::Apt, prelude::*, setup, shell::apt_install};

/// A target directory of its own: other flags than the everyday build's would throw that one's artefacts away.
const TARGET_DIR: &str = "target/static";
/// Debian's rustc, whose standard library for another architecture is a package like any other.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_STD: &str = "libstd-rust-web-dev";

/// Choice of a compiler that has to be told to cargo beyond the target's name.
#[derive(Default)]
struct Toolchain {
    /// Another compiler than the workspace's.
    rustc: Option<PathBuf>,
    /// Directory in which that compiler finds the target's standard library.
    sysroot: Option<PathBuf>,
}

/// Compiles a program for `arch`, statically linked; returns the binary's path.
pub fn static_binary(package: &str, name: &str, arch: Arch) -> Result<PathBuf> {
    setup::run()?;
    let target = arch.rust_target();
    let toolchain = if has_std(Path::new("rustc"), target) {
        Toolchain::default()
    } else {
        debian_toolchain(arch)?
    };
    let mut build = cargo();
    let root = workspace_root();
    build
        .current_dir(root)
        .args(["build", "--locked", "--release"])
        .args(["--package", package, "--bin", name])
        .args(["--target", target, "--target-dir", TARGET_DIR])
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            rustflags(arch, &toolchain)?.join("\u{1f}"),
        )
        // Symbols stay for a profiler; line tables are two thirds of the file.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .env_remove("RUSTFLAGS");
    if let Some(rustc) = &toolchain.rustc {
        build.env("RUSTC", rustc);
    }
    if arch != Arch::host() {
        let gcc = format!("{}-gcc", arch.gnu_triple());
        if output(Command::new(&gcc).arg("--version")).is_err() {
            // `_` is not allowed in the name of a package.
            let package = format!("gcc-{}", arch.gnu_triple().replace('_', "-"));
            println!("image: installing {package}");
            let libc = format!("libc6-dev-{}-cross", arch.name());
            apt_install(&[&package, &libc])?;
        }
        let variable = format!(
            "CARGO_TARGET_{}_LINKER",
            target.to_uppercase().replace('-', "_")
        );
        build.env(variable, gcc);
    }
    println!("image: compiling {name} for {target}");
    sh(&mut build)?;
    Ok(root
        .join(TARGET_DIR)
        .join(target)
        .join("release")
        .join(name))
}

fn rustflags(arch: Arch, toolchain: &Toolchain) -> Result<Vec<String>> {
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        // The same binary wherever the checkout and the registry's cache lie.
        format!("--remap-path-prefix={}=/evictd", workspace_root().display()),
    ];
    if let Some(home) = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))
    {
        flags.push(format!("--remap-path-prefix={}=/cargo", home.display()));
    }
    if let Some(sysroot) = &toolchain.sysroot {
        let sysroot = sysroot
            .to_str()
            .context("the checkout's path is not UTF-8")?;
        flags.push(format!("--sysroot={sysroot}"));
    }
    if arch == Arch::Arm64 {
        // With outlined atomics the linker wants symbols that a static libgcc defines after libc; inline ones are
        // slower on ARMv8.1 and later, but every AArch64 node can run them.
        flags.push("-Ctarget-feature=-outline-atomics".to_owned());
    }
    Ok(flags)
}

fn has_std(rustc: &Path, target: &str) -> bool {
    let Ok(libdir) =
        output(Command::new(rustc).args(["--print", "target-libdir", "--target", target]))
    else {
        return false;
    };
    fs::read_dir(libdir.trim()).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

/// Debian's compiler with the foreign standard library unpacked beside the build: nothing foreign is installed,
/// and `dpkg --add-architecture`, which would change the whole machine, is not needed.
fn debian_toolchain(arch: Arch) -> Result<Toolchain> {
    let target = arch.rust_target();
    let version = output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", "rustc-web"]))
        .map(|version| version.trim().to_owned());
    let (Ok(version), true) = (version, Path::new(DEBIAN_RUSTC).exists()) else {
        bail!(
            "no standard library for {target} here. With rustup: rustup target add {target}\n\
             On Debian: apt-get install rustc-web, then run this again"
        );
    };
    let directory = workspace_root()
        .join(TARGET_DIR)
        .join(format!("std-{}", arch.name()));
    let sysroot = directory.join(&version);
    if !sysroot.join("usr/lib/rustlib").join(target).exists() {
        println!(
            "image: fetching Debian's {DEBIAN_STD} {version} for {}",
            arch.name()
        );
        fetch_std(arch, &version, &directory, &sysroot).with_context(|| {
            format!(
                "no standard library for {target}: Debian's {DEBIAN_STD}:{} {version}",
                arch.name()
            )
        })?;
    }
    Ok(Toolchain {
        rustc: Some(DEBIAN_RUSTC.into()),
        sysroot: Some(sysroot.join("usr")),
    })
}

fn fetch_std(arch: Arch, version: &str, directory: &Path, sysroot: &Path) -> Result<()> {
    let apt = Apt::of_arch(directory.join("apt"), arch.name())?;
    let wanted = BTreeSet::from([format!("{DEBIAN_STD}={version}")]);
    let packages = apt.download(&wanted)?;
    // Unpacked beside and renamed, so that what an interrupted run left is never taken for the whole.
    let partial = directory.join("partial");
    for package in packages {
        sh(Command::new("dpkg").arg("-x").arg(&package).arg(&partial))?;
        fs::remove_file(package)?;
    }
    fs::rename(&partial, sysroot)?;
    Ok(())
}

/// Refuses what could not start in an empty image: not ELF, another machine's, or with a program interpreter.
///
/// Only ELF64 little-endian is read, which both architectures are.
pub fn require_static(program: &[u8], arch: Arch) -> Result<()> {
    const PT_INTERP: u64 = 3;
    let machine = match arch {
        Arch::Amd64 => 62,
        Arch::Arm64 => 183,
    };
    let field = |offset: u64, size: u64| -> Result<u64> {
        let (start, end) = (usize::try_from(offset)?, usize::try_from(offset + size)?);
        let bytes = program
            .get(start..end)
            .context("the ELF file is cut short")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    ensure!(
        program.starts_with(b"\x7fELF\x02\x01"),
        "not a little-endian ELF64 file"
    );
    ensure!(
        field(18, 2)? == machine,
        "the ELF file is not for {}",
        arch.rust_target()
    );
    let (headers, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    for index in 0..count {
        ensure!(
            field(headers + index * size, 4)? != PT_INTERP,
            "the binary is dynamically linked, and an image from scratch has no loader"
        );
    }
    Ok(())
}
