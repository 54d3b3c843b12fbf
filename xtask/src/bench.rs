//! `cargo xtask bench`: sets up, builds, runs the node race's jobs in a virtual machine, and becomes the benchmark, which
//! knows what the races are and draws what came of them.

use crate::{
    image::static_program,
    prelude::*,
    setup,
    shell::{become_program, release_binaries},
    vm::race::{self, Race},
};

/// The kernel whose suite also has the other daemons.
const KERNEL: &str = "6.1";
/// The node of the race.
const MEMORY_MIB: u32 = 1024;
/// Emulated, a run takes 10 to 40 s; a hog that is not stopped is given up before this.
const SECONDS: u64 = 240;

/// The other daemons, what interprets one of them, and the libraries that they load.
const PACKAGES: &str = "\
    earlyoom nohang oomd systemd-oomd python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
    libacl1 libaudit1 libblkid1 libc6 libcap-ng0 libcap2 libcrypt1 libexpat1 libffi8 libgcc-s1
    libgcrypt20 libgpg-error0 libip4tc2 libjsoncpp25 libkmod2 liblz4-1 liblzma5 libmount1 libpam0g
    libpcre2-8-0 libseccomp2 libselinux1 libssl3 libstdc++6 libsystemd-shared libsystemd0 libuuid1
    libzstd1 zlib1g libdbus-1-3";

/// Does not return when all goes well: the benchmark takes over this process, so that Ctrl-C reaches it alone.
pub fn run(mut rest: Vec<String>) -> Result<()> {
    let bench = release_binaries(&["bench"])?.join("bench");
    let plan = plan(&bench, &rest);
    if plan.on_host {
        release_binaries(&["evictd", "hog"])?;
        setup::tracefs();
    }
    if !plan.in_guest.is_empty() {
        let file = target_dir()?.join("node-race.json");
        if let Err(reason) = in_guest(plan.in_guest, &file) {
            // No QEMU, no kernel, no package: this machine's lack, which the report names.
            let text = json!({ "unavailable": format!("{reason:#}") });
            fs::write(&file, text.to_string())?;
        }
        rest.push("--node-outcome".to_owned());
        rest.push(file.display().to_string());
    }
    become_program(&bench, &rest)
}

/// Plan of what the benchmark is going to do.
#[derive(serde::Deserialize, Default)]
struct Plan {
    /// The command lines of the heats in a guest.
    in_guest: Vec<Vec<String>>,
    /// Whether there are races on this machine, which need the agent.
    on_host: bool,
}

/// Asks it; nothing where it will say by itself what is wrong with its flags.
fn plan(bench: &Path, rest: &[String]) -> Plan {
    let plan = output(Command::new(bench).args(rest).arg("--plan"));
    plan.ok()
        .and_then(|plan| serde_json::from_str(&plan).ok())
        .unwrap_or_default()
}

/// Runs the heats; the file has what came so far after each of them.
fn in_guest(jobs: Vec<Vec<String>>, file: &Path) -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the guest's kernel is for x86_64, and so must be the programs built here"
    );
    let program = |package, name, inside: &str| -> Result<(String, PathBuf)> {
        Ok((inside.to_owned(), static_program(package, name)?))
    };
    let files = vec![
        program("evictd", "evictd", "/bin/evictd")?,
        program("evictd-tests", "bench", "/tests/bench")?,
        program("evictd-tests", "hog", "/tests/hog")?,
    ];
    let race = Race {
        kernel: KERNEL,
        memory_mib: MEMORY_MIB,
        accel: "tcg",
        files,
        init: static_program("xtask", "vm-init")?,
        packages: &PACKAGES.split_whitespace().collect::<Vec<_>>(),
        name: "node-race",
        timeout: SECONDS,
    };
    let total = jobs.len();
    race::run(&race, jobs, |so_far| {
        if let Some(outcome) = so_far.jobs.last() {
            let line = |line: &&str| line.starts_with("node: ");
            let said = outcome.output.lines().rfind(line);
            let said = outcome.failure.as_deref().or(said).unwrap_or("");
            let (done, heat) = (so_far.jobs.len(), outcome.argv[2..].join(" "));
            eprintln!("[{done}/{total}] {heat}: {said}");
        }
        Ok(fs::write(file, serde_json::to_string(so_far)?)?)
    })?;
    Ok(())
}
