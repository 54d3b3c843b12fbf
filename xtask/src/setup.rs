//! `cargo xtask setup`: the eBPF toolchain, in whichever of the two supported ways this machine allows; and what tests need.

#[path = "../../ebpf/toolchain.rs"]
mod toolchain;

use toolchain::{Compiler, find_linker};

use crate::{
    prelude::*,
    shell::{apt_install, missing},
};

const BPF_LINKER_VERSION: &str = "0.13.0";
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// What some tests need beyond the toolchain: a program that tells whether it is there, and Debian's package.
const FOR_TESTS: [(&str, &str); 4] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    // Pages of incidents are measured in it.
    ("chromium", "chromium"),
    // Static: the images of those tests are made of it.
    ("busybox", "busybox-static"),
];

/// Installs what tests need beyond the toolchain. A machine that does not have it is no failure: they are skipped there,
/// and say why.
pub fn for_tests() {
    let missing = missing(&FOR_TESTS);
    if missing.is_empty() {
        return;
    }
    let packages = missing.join(" ");
    println!("setup: for some tests: {packages}");
    let installed = match is_debian() {
        true => apt_install(&missing),
        false => Err(anyhow::anyhow!("not Debian; install them by hand")),
    };
    if let Err(error) = installed {
        println!("setup: without {packages}, some tests will be skipped: {error:#}");
    }
}

/// Mount point that the kernel makes for tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Mounts tracefs where it is not mounted, as systemd does at boot: untyped tracepoints have their numbers there, and the
/// benchmark its clock of signals. A machine that refuses is no failure: the command that needs it says so.
pub fn tracefs() {
    let mounted = ["events", "../debug/tracing/events"].map(|dir| Path::new(TRACEFS).join(dir));
    if mounted.iter().any(|dir| dir.is_dir()) || !Path::new(TRACEFS).is_dir() {
        return;
    }
    println!("setup: mounting tracefs at {TRACEFS}");
    let mut mount = Command::new("mount");
    if let Err(error) = sh(mount.args(["-t", "tracefs", "tracefs", TRACEFS])) {
        println!("setup: without tracefs, some tests will be skipped: {error:#}");
    }
}

/// Installs what is missing and says what it does; silent and fast when nothing is.
pub fn run() -> Result<()> {
    if Compiler::find().is_none() {
        install_compiler()?;
    }
    if find_linker().is_none() {
        install_linker()?;
    }
    let compiler =
        Compiler::find().context("the eBPF compiler is still not found after its installation")?;
    let linker = find_linker().context("bpf-linker is still not found after its installation")?;
    println!("setup: compiler {compiler:?}, linker {}", linker.display());
    Ok(())
}

fn install_compiler() -> Result<()> {
    ensure!(
        is_debian(),
        "no Rust compiler for BPF here. With rustup:\n  \
         rustup toolchain install nightly --component rust-src\n\
         then run `cargo xtask setup` again"
    );
    println!("setup: installing Debian's rustc with a compiled core for BPF");
    apt_install(&["rustc-web", "libstd-rust-web-dev-bpf"])
}

fn install_linker() -> Result<()> {
    if is_debian() {
        println!("setup: installing LLVM 22 for bpf-linker");
        apt_install(&["llvm-22-dev", "libzstd-dev", "zlib1g-dev", "libxml2-dev"])?;
    } else if !Path::new(LLVM_PREFIX).exists() {
        bail!(
            "bpf-linker needs LLVM 22. Install your system's development package of it, then:\n  \
             LLVM_PREFIX=<its prefix> cargo install bpf-linker --locked --version {BPF_LINKER_VERSION} \
             --no-default-features --features llvm-22"
        );
    }
    println!("setup: compiling bpf-linker {BPF_LINKER_VERSION} (about a minute)");
    sh(cargo()
        .args([
            "install",
            "bpf-linker",
            "--locked",
            "--version",
            BPF_LINKER_VERSION,
        ])
        .args(["--no-default-features", "--features", "llvm-22"])
        // LLVM does the work, and is compiled already.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("LLVM_PREFIX", LLVM_PREFIX))
}

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists()
}
