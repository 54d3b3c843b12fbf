//! Compiles `ebpf/` for the BPF target and leaves the object in `OUT_DIR`, where the agent embeds it.

#[path = "../../ebpf/toolchain.rs"]
mod toolchain;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use toolchain::{Compiler, TARGET, find_linker};

/// The one command that installs what is missing.
const SETUP: &str = "cargo xtask setup";

fn main() {
    if let Err(reason) = build() {
        // A build script has no other way to speak than to fail; the first line is what people read.
        eprintln!("error: {reason}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    for path in [
        "../../ebpf/src",
        "../../ebpf/Cargo.toml",
        "../../ebpf/toolchain.rs",
        "../../common/src",
    ] {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-env-changed=PATH");
    let compiler = Compiler::find()
        .ok_or_else(|| format!("no Rust compiler for {TARGET} was found; run `{SETUP}`"))?;
    let linker = find_linker().ok_or_else(|| format!("bpf-linker was not found; run `{SETUP}`"))?;
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let arch =
        env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| format!("CARGO_CFG_TARGET_ARCH: {e}"))?;
    let target_dir = target_dir(&out_dir, &arch);

    let (mut cargo, rustc) = match &compiler {
        Compiler::Nightly { rustc, cargo } => (Command::new(cargo), rustc),
        Compiler::Precompiled { rustc } => (
            Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
            rustc,
        ),
    };
    let flags = [
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Clinker={}", linker.display()),
        format!("--cfg=bpf_target_arch=\"{arch}\""),
    ];
    for (key, _) in env::vars_os() {
        // What the outer build set for the host must not reach the BPF build.
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_") && !matches!(&*name, "CARGO_HOME" | "CARGO_NET_OFFLINE") {
            cargo.env_remove(key);
        }
    }
    cargo
        .args([
            "build",
            "--release",
            "--package",
            "evictd-ebpf",
            "--target",
            TARGET,
        ])
        .args(["--manifest-path", "../../ebpf/Cargo.toml", "--target-dir"])
        .arg(&target_dir)
        .env("RUSTC", rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CARGO_PROFILE_RELEASE_LTO", "false")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTFLAGS");
    match compiler {
        Compiler::Nightly { .. } => cargo.args(["-Z", "build-std=core"]),
        Compiler::Precompiled { .. } => cargo.env("RUSTC_BOOTSTRAP", "1"),
    };
    let status = cargo.status().map_err(|e| format!("{cargo:?}: {e}"))?;
    if !status.success() {
        return Err(format!(
            "the eBPF programs did not compile ({status}): {cargo:?}"
        ));
    }
    for object in ["evictd-ebpf", "evictd-ebpf-counters"] {
        let built = target_dir.join(TARGET).join("release").join(object);
        std::fs::copy(&built, out_dir.join(object))
            .map_err(|e| format!("{}: {e}", built.display()))?;
    }
    Ok(())
}

/// Where the eBPF programs are compiled: not the build directory of this build, which cargo has locked, but one below
/// the same target directory. Check, dev and release builds, for every target, find there what another of them has
/// compiled.
fn target_dir(out_dir: &Path, arch: &str) -> PathBuf {
    // TARGET_DIR/[TRIPLE/]PROFILE/build/PACKAGE-HASH/out
    let above = out_dir.ancestors().nth(4).unwrap_or(out_dir);
    let is_triple = env::var_os("TARGET").is_some_and(|triple| above.ends_with(triple));
    let above = above.parent().filter(|_| is_triple).unwrap_or(above);
    above.join(format!("ebpf-{arch}"))
}
