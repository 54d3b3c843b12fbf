//! `cargo xtask ...`: everything a developer or CI runs, each command installing what it needs.

mod setup;
mod shell;

use clap::Parser;

/// Builds, tests, shows and packages evictd.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install the eBPF toolchain; does nothing when it is there
    Setup,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Setup => setup::run(),
    }
}
