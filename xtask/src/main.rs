//! `cargo xtask ...`: everything a developer or CI runs, each command installing what it needs.

mod setup;
mod shell;
mod vm;

use clap::Parser;

/// Builds, tests, shows and packages evictd.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install the eBPF toolchain; does nothing when it is there
    Setup,
    /// Run tests, commands or a shell inside virtual machines with real kernels
    #[command(subcommand)]
    Vm(vm::Command),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Setup => setup::run(),
        Command::Vm(command) => vm::run(command),
    }
}
