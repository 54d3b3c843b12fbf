//! Finds what can compile this crate. Included by `agent/node/build.rs` (which compiles it) and by
//! `cargo xtask setup` (which installs what is missing), so that both mean the same thing.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The BPF target: the host's byte order, no operating system.
pub const TARGET: &str = if cfg!(target_endian = "big") {
    "bpfeb-unknown-none"
} else {
    "bpfel-unknown-none"
};

/// A compiler that can produce BPF, in either of the two ways that are supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiler {
    /// A rustup nightly with `rust-src`: `core` is compiled along (`-Z build-std=core`).
    Nightly {
        /// The toolchain's own rustc.
        rustc: PathBuf,
        /// The cargo of the same toolchain: `-Z` wants a nightly one.
        cargo: PathBuf,
    },
    /// A rustc that ships `core` compiled for the target (Debian's `libstd-rust-web-dev-bpf`).
    Precompiled {
        /// That rustc.
        rustc: PathBuf,
    },
}

impl Compiler {
    /// Looks for a compiler; Debian's first, because it is the one whose versions are pinned.
    pub fn find() -> Option<Self> {
        Self::precompiled().or_else(Self::nightly)
    }

    fn precompiled() -> Option<Self> {
        let rustc = PathBuf::from("/usr/bin/rustc");
        let sysroot = PathBuf::from(stdout_of(
            Command::new(&rustc).args(["--print", "sysroot"]),
        )?);
        has_core(&sysroot).then_some(Self::Precompiled { rustc })
    }

    fn nightly() -> Option<Self> {
        let which = |tool: &str| {
            stdout_of(Command::new("rustup").args(["which", "--toolchain", "nightly", tool]))
                .map(PathBuf::from)
        };
        let (rustc, cargo) = (which("rustc")?, which("cargo")?);
        let sysroot = PathBuf::from(stdout_of(
            Command::new(&rustc).args(["--print", "sysroot"]),
        )?);
        sysroot
            .join("lib/rustlib/src/rust/library/core/Cargo.toml")
            .exists()
            .then_some(Self::Nightly { rustc, cargo })
    }
}

/// Where bpf-linker is: on PATH, or where `cargo install` puts it.
pub fn find_linker() -> Option<PathBuf> {
    let on_path = env::var_os("PATH").map(|p| env::split_paths(&p).collect::<Vec<_>>());
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|h| Path::new(&h).join(".cargo")));
    on_path
        .into_iter()
        .flatten()
        .chain(cargo_home.map(|c| c.join("bin")))
        .map(|dir| dir.join("bpf-linker"))
        .find(|path| path.is_file())
}

fn has_core(sysroot: &Path) -> bool {
    let lib = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    std::fs::read_dir(lib).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with("libcore-"))
    })
}

fn stdout_of(command: &mut Command) -> Option<String> {
    let out = command.env_remove("RUSTUP_TOOLCHAIN").output().ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
