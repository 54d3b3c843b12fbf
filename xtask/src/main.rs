//! `cargo xtask ...`: everything a developer or CI runs, each command installing what it needs.

mod bench;
mod chaos;
mod demo;
mod e2e;
mod image;
mod judge;
mod lint;
mod parallel;
mod plan;
mod release;
mod setup;
mod shell;
mod test;
mod upgrade;
mod vm;

use clap::Parser;

/// Builds, tests, shows and packages evictd.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install the eBPF toolchain; does nothing when it is there
    Setup,
    /// Show evictd at work on this machine, without a cluster; arguments go to the demo (try `-- --help`)
    Demo(demo::Arguments),
    /// Tell the whole story on the cluster that KUBECONFIG names; arguments go to the test (try `-- --help`)
    E2e(e2e::Arguments),
    /// Build the static binary and write it as an OCI image archive
    Image(image::Arguments),
    /// Measure evictd against other daemons and the machine's limits; arguments go to the benchmark (try `-- --help`)
    Bench(bench::Arguments),
    /// Let faults strike while a hog grows, and check what must hold in the end; arguments go to the program (try `-- --help`)
    Chaos(chaos::Arguments),
    /// Judge evictions of drawn incidents in hindsight; arguments go to the judge (try `-- --help`)
    Judge(judge::Arguments),
    /// Write everything that a version consists of: images, chart, CRDs, SBOM, checksums, provenance
    Release(release::Arguments),
    /// Check what the layers may import, cycles between modules, and file names
    Lint,
    /// Run every test; what cannot run here is said with its reason
    Test(test::Arguments),
    /// Go from an earlier version to this one and back, with the agents of both
    Upgrade(upgrade::Arguments),
    /// Run tests, commands or a shell inside virtual machines with real kernels
    #[command(subcommand)]
    Vm(vm::Command),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Setup => setup::run(),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::E2e(arguments) => e2e::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Judge(arguments) => judge::run(&arguments),
        Command::Release(arguments) => release::run(&arguments),
        Command::Lint => lint::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Vm(command) => vm::run(command),
    }
}
