//! `cargo xtask vm`: the project's tests on real kernels, each booted under QEMU with an initramfs of its own.
//!
//! docs/kernels.md says how a developer uses it.

mod apt;
mod boots;
mod build;
mod facts;
pub mod guest;
mod initramfs;
mod kernels;
mod modules;
mod outcome;
mod programs;
mod protocol;
mod qemu;
mod suite;
mod table;
mod unpacked;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::shell::workspace_root;

use self::{
    kernels::{Fetched, KERNELS, Kernel},
    protocol::{Job, Report, Status},
    qemu::{Event, Machine},
};
pub use self::{
    qemu::Cgroup,
    suite::{OnMachine, Options, prepare, test, test_on},
    table::{Summary, render},
};

/// What `cargo xtask vm` can do.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run the kernel-facing tests on every kernel of the matrix, or on those that are named
    Test(Options),
    /// Run one command inside a kernel; its output and its exit code are the command's
    Run {
        /// A kernel of the matrix: 5.10, 6.1, 6.12 or 7.2
        kernel: String,
        #[command(flatten)]
        machine: MachineOptions,
        /// Seconds until the command is killed
        #[arg(long, default_value_t = 300)]
        timeout: u64,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// A shell inside a kernel; the agent is in PATH, the tests are in /tests. Leave with exit, or Ctrl-A x
    Shell {
        /// A kernel of the matrix: 5.10, 6.1, 6.12 or 7.2
        kernel: String,
        #[command(flatten)]
        machine: MachineOptions,
    },
    /// What each kernel offers to a pressure daemon: hooks, prototypes, fields, files; as Markdown
    Facts {
        /// Kernels of the matrix; all when none is named
        kernels: Vec<String>,
        #[command(flatten)]
        machine: MachineOptions,
    },
    /// The kernels of the matrix, and which of them are on this disk
    List,
}

/// What a virtual machine has.
#[derive(clap::Args, Debug, Clone)]
pub struct MachineOptions {
    /// The cgroup version inside [default: v2; for `test` both]
    #[arg(long, value_enum)]
    pub cgroup: Option<Cgroup>,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    pub memory: u32,
    /// QEMU's accelerator; kvm needs a machine that has it
    #[arg(long, default_value = "tcg", value_parser = ["tcg", "kvm"])]
    pub accel: String,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            cgroup: None,
            memory: 1024,
            accel: "tcg".to_owned(),
        }
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Test(options) => {
            let summary = test(&options)?;
            if summary.failed() > 0 {
                println!("vm: the output of each test is in {}", logs().display());
                process::exit(1);
            }
            Ok(())
        }
        Command::Run {
            kernel,
            machine,
            timeout,
            command,
        } => {
            let status = run_one(&kernel, &machine, timeout, command, |bytes| {
                let mut stdout = std::io::stdout();
                // The reader of this may have left; the machine still goes down in order.
                let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
            })?;
            // The command's own exit code is this one's, as a shell would have it.
            process::exit(match status {
                Status::Exited(code) => code,
                Status::Killed(signal) => 128 + signal,
                Status::TimedOut => bail!("the command was killed after {timeout} s"),
                Status::NotStarted(reason) => bail!("{reason}"),
            })
        }
        Command::Shell { kernel, machine } => {
            let job = Job {
                argv: vec!["sh".into(), "-l".into()],
                timeout_secs: 0,
                terminal: true,
            };
            let (kernel, dir) = prepare_one(&kernel, &machine, job)?;
            println!("vm: kernel {}; Ctrl-A x ends it", kernel.release);
            let status = machine
                .machine(&kernel, &dir.join("initramfs"), &dir.join("console"))
                .interactive()?;
            fs::remove_dir_all(&dir)?;
            if !status.success() {
                bail!("QEMU ended with {status}");
            }
            Ok(())
        }
        Command::Facts { kernels, machine } => {
            let all = KERNELS.map(|(name, _)| name);
            let named: Vec<&str> = kernels.iter().map(String::as_str).collect();
            facts::print(if named.is_empty() { &all } else { &named }, &machine)
        }
        Command::List => {
            for (name, suite) in KERNELS {
                let cached = Kernel::cached(&cache(), name);
                let release =
                    cached.map_or_else(|| "not fetched yet".to_owned(), |kernel| kernel.release);
                println!("{name:6} {suite:20} {release}");
            }
            Ok(())
        }
    }
}

impl MachineOptions {
    fn machine<'a>(
        &'a self,
        kernel: &'a Kernel,
        initramfs: &'a Path,
        console: &'a Path,
    ) -> Machine<'a> {
        Machine {
            kernel,
            cgroup: self.cgroup.unwrap_or(Cgroup::V2),
            initramfs,
            console,
            memory_mib: self.memory,
            accel: &self.accel,
            disk: None,
        }
    }
}

/// Everything for a boot with one job: the kernel, and a directory with its initramfs, for its console too.
fn prepare_one(name: &str, options: &MachineOptions, job: Job) -> Result<(Kernel, PathBuf)> {
    programs::ensure()?;
    let (name, suite) = matrix_entry(name)?;
    let kernel = match kernels::fetch(&cache(), name, suite)? {
        Fetched::Ready(kernel) => kernel,
        Fetched::Unavailable(reason) => bail!("kernel {name} cannot be had: {reason}"),
    };
    let cgroup = options.cgroup.unwrap_or(Cgroup::V2);
    if cgroup == Cgroup::V1
        && let Some(reason) = kernel.lacks_v1()?
    {
        bail!("{reason}");
    }
    let programs = build::build()?;
    // By process id: two shells at once must not share these.
    let dir = cache().join(format!("run-{name}-{cgroup}-{}", process::id()));
    fs::create_dir_all(&dir)?;
    initramfs::write(&dir.join("initramfs"), &kernel, &programs, &[job])?;
    Ok((kernel, dir))
}

/// Runs one command inside and hands on what it writes, as it comes.
fn run_one(
    name: &str,
    options: &MachineOptions,
    timeout: u64,
    command: Vec<String>,
    mut on_output: impl FnMut(&[u8]),
) -> Result<Status> {
    let job = Job {
        argv: command,
        timeout_secs: timeout,
        terminal: false,
    };
    let (kernel, dir) = prepare_one(name, options, job)?;
    let (initramfs, console) = (dir.join("initramfs"), dir.join("console"));
    let mut ended = None;
    let mut problem = None;
    let end = options
        .machine(&kernel, &initramfs, &console)
        .run(|event| match event {
            Event::Output(bytes) => {
                on_output(&bytes);
                None
            }
            Event::Report(Report::Ready { unmet, .. }) => {
                problem = unmet;
                None
            }
            Event::Report(Report::Started { .. }) => Some(Duration::from_secs(timeout)),
            Event::Report(Report::Ended { status, .. }) => {
                ended = Some(status);
                Some(Duration::ZERO)
            }
        })?;
    if let Some(reason) = problem {
        bail!("{reason}");
    }
    let Some(status) = ended else {
        // What the kernel said last is what one wants to know now.
        let said = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        fs::remove_dir_all(&dir)?;
        eprint!("{said}");
        bail!("the command did not end: {end}; the kernel's console is above");
    };
    fs::remove_dir_all(&dir)?;
    Ok(status)
}

fn matrix_entry(name: &str) -> Result<(&'static str, &'static str)> {
    KERNELS
        .into_iter()
        .find(|(known, _)| *known == name)
        .with_context(|| {
            let known: Vec<&str> = KERNELS.iter().map(|(name, _)| *name).collect();
            format!(
                "kernel {name:?}: not in the matrix, which has {}",
                known.join(", ")
            )
        })
}

pub fn cache() -> PathBuf {
    workspace_root().join("target/vm")
}

/// Consoles, test output and result tables of the last runs.
fn logs() -> PathBuf {
    cache().join("runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_outside_the_matrix_is_named_with_the_known_ones() {
        let reason = matrix_entry("4.19").err().map(|e| e.to_string());
        assert_eq!(
            reason.as_deref(),
            Some("kernel \"4.19\": not in the matrix, which has 5.10, 6.1, 6.12, 7.2")
        );
        assert_eq!(
            matrix_entry("6.12").ok(),
            Some(("6.12", "bookworm-backports"))
        );
    }
}
