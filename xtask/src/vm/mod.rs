//! `cargo xtask vm`: the project's tests on real kernels, each booted under QEMU with an initramfs of its own.
//!
//! docs/kernels.md says how a developer uses it.

mod boots;
mod build;
mod facts;
mod guest;
mod initramfs;
mod kernels;
mod modules;
pub mod outcome;
mod programs;
mod protocol;
mod qemu;
pub mod race;
mod suite;
mod table;
mod unpacked;

use std::{io::Write as _, process};

use anyhow::anyhow;

use self::{
    guest::{Event, Guest, How},
    kernels::{KERNELS, Kernel},
    protocol::{Job, Status},
    qemu::Machine,
};

pub use self::{
    qemu::Cgroup,
    suite::{OnMachine, Options, prepare, test, test_on},
    table::{Summary, render},
};
use crate::prelude::*;

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

/// Options of a virtual machine.
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
    /// Others that want a processor have most of it
    #[arg(skip)]
    pub gives_way: bool,
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
            let status = run_one(&kernel, &machine, timeout, command, show)?;
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
            let (kernel, files) = prepare_one(&kernel, &machine)?;
            let dir = tempfile::tempdir_in(cache())?;
            let initramfs = dir.path().join("initramfs");
            initramfs::write(&initramfs, &kernel, &files, &[], &[job])?;
            println!("vm: kernel {}; Ctrl-A x ends it", kernel.release);
            let shell = Machine {
                kernel: &kernel,
                options: &machine,
                initramfs: &initramfs,
                console: &dir.path().join("console"),
                disk: None,
            };
            let status = shell.interactive()?;
            ensure!(status.success(), "QEMU ended with {status}");
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
    fn cgroup(&self) -> Cgroup {
        self.cgroup.unwrap_or(Cgroup::V2)
    }
}

/// The kernel of that name; an error where it cannot run with this cgroup version.
fn kernel(name: &str, cgroup: Cgroup) -> Result<Kernel> {
    programs::ensure()?;
    let found = suite::available(name, cgroup)?;
    found.map_err(|reason| anyhow!("kernel {name} cannot be had: {reason}"))
}

/// Everything for a boot: the kernel, and the files of its root.
fn prepare_one(name: &str, options: &MachineOptions) -> Result<(Kernel, Vec<(String, PathBuf)>)> {
    let kernel = kernel(name, options.cgroup())?;
    Ok((kernel, initramfs::files(&build::build()?)?))
}

/// Runs one command inside and hands on what it writes, as it comes.
fn run_one(
    name: &str,
    options: &MachineOptions,
    timeout: u64,
    command: Vec<String>,
    mut on_output: impl FnMut(&[u8]),
) -> Result<Status> {
    let (kernel, files) = prepare_one(name, options)?;
    let dir = tempfile::tempdir_in(cache())?;
    let guest = Guest {
        kernel: &kernel,
        options,
        disk: None,
        files: &files,
        trees: &[],
        consoles: &dir.path().join(""),
        end: None,
    };
    let mut status = None;
    let unmet = guest::run(&guest, vec![guest::job(command, timeout)], |event| {
        match event {
            Event::Up { .. } => {}
            Event::Output(bytes) => on_output(bytes),
            Event::Ended(ended) => match ended.how {
                How::ByItself(how) => status = Some(how),
                How::Down(why) | How::NotUp(why) => {
                    // What the kernel said last is what one wants to know now.
                    eprint!("{}", String::from_utf8_lossy(&fs::read(ended.console)?));
                    bail!("the command did not end: {why}; the kernel's console is above");
                }
            },
        }
        Ok(())
    })?;
    status.with_context(|| unmet.unwrap_or_else(|| "the command was not run".to_owned()))
}

/// Hands on what is written inside. The reader of this may have left; the machine still goes down in order.
fn show(bytes: &[u8]) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
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
