//! `cargo xtask ...`: everything a developer or CI runs, each command installing what it needs.

mod apt;
mod bench;
mod e2e;
mod image;
mod libtest;
mod lint;
mod parallel;
mod plan;
mod prelude;
mod programs;
mod release;
mod setup;
mod shell;
mod test;
mod upgrade;
mod vm;

use clap::Parser;

use programs::Rest;

/// Builds, tests, shows and packages evictd.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install the eBPF toolchain; does nothing when it is there
    Setup,
    /// Show evictd at work on this machine, without a cluster; arguments go to the demo (try `-- --help`)
    ///
    /// Flags of the demo: --size, --threshold, --rate, --runs, --hook
    Demo(Rest),
    /// Tell the whole story on the cluster that KUBECONFIG names; arguments go to the test (try `-- --help`)
    ///
    /// Flags of the test: --image, --node, --rate, --threshold, --installed, --privileged, --keep
    E2e(Rest),
    /// Build the static binary and write it as an OCI image archive
    Image(image::Arguments),
    /// Measure evictd against other daemons and the machine's limits; arguments go to the benchmark (try `-- --help`)
    ///
    /// Flags of the benchmark: --quick, --race, --runs, --only, --ways, --rates, --out
    Bench(Rest),
    /// Let faults strike while a hog grows, and check what must hold in the end; arguments go to the program (try `-- --help`)
    ///
    /// Flags of the program: --fault, --rate, --runs, --seed
    Chaos(Rest),
    /// Judge evictions of drawn incidents in hindsight; arguments go to the judge (try `-- --help`)
    ///
    /// Flags of the judge: --incidents, --first, --seed, --output
    Judge(Rest),
    /// Write everything that a version consists of: images, chart, CRDs, SBOM, checksums, provenance
    Release(release::Arguments),
    /// Check what the layers may import, cycles between modules, file names, and words
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
        Command::Demo(Rest { rest }) => programs::demo(&rest),
        Command::E2e(Rest { rest }) => e2e::run(&rest),
        Command::Image(arguments) => image::run(&arguments),
        Command::Bench(Rest { rest }) => bench::run(rest),
        Command::Chaos(Rest { rest }) => programs::chaos(&rest),
        Command::Judge(Rest { rest }) => programs::judge(&rest),
        Command::Release(arguments) => release::run(&arguments),
        Command::Lint => lint::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Vm(command) => vm::run(command),
    }
}
