//! `cargo xtask test`: every test there is, and a count of what could not run and why.

mod lanes;
mod tally;
mod times;

use std::{sync::mpsc, thread};

use anyhow::anyhow;
use clap::Parser as _;

use self::{
    lanes::{Harness, run_and_read},
    tally::Tally,
    times::Times,
};
use crate::{
    plan::{self, Executable},
    prelude::*,
    setup,
    vm::{self, Cgroup, OnMachine},
};

/// Real kernels that take part: the oldest with cgroup v1, and the newest that QEMU's software emulation runs without
/// fault (docs/kernels.md tells of 7.2). `cargo xtask vm test` runs all of them.
const KERNELS: [OnMachine; 2] = [("5.10", Cgroup::V1), ("6.12", Cgroup::V2)];
/// Seconds for each of them: more than they take on a busy machine, so that no test is skipped for want of time.
const WITHIN: &str = "900";
/// What runs there: the kernel's programs against the files that show the same numbers. `cargo xtask vm test` runs the fast
/// path too.
const IN_GUESTS: &str = "kernel::";
/// What the nightly run adds on cgroup v2, with the guest's memory in MiB: the fast path's scenes, where fexit and the kprobe can be
/// used too, and the disk of the pods' files is in that memory. The scenes of active page cache need a kernel without MGLRU;
/// of these kernels the newest alone has zswap.
const ON_V2: [(&str, &str, &str); 4] = [
    ("6.12", "fastpath::", "8192"),
    ("5.10", "fastpath::pace", "8192"),
    ("7.2", "half_the_room", "8192"),
    ("7.2", "kernel::statistics", "1024"),
];

/// Integration tests of the nightly run alone: they try the project's own tools, look for scenes that no test has, or measure
/// what no commit is judged by, and take longer than every change can wait.
const NIGHTLY: [&str; 3] = ["agent::bench_smoke", "fastpath::drawn", "kernel::overhead"];

/// Which tests.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also run the tests that are too slow for every change
    #[arg(long)]
    nightly: bool,
    /// Leave out the tests in virtual machines
    #[arg(long)]
    without_vm: bool,
    /// Flags of `cargo test`, such as a filter
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs the tests; an error when one has failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    // A filter means a search for something particular.
    let everything = arguments.rest.is_empty();
    let with_vm = everything && !arguments.without_vm;
    // Downloads wait for the network and the build for the processors.
    let preparation = thread::spawn(move || {
        setup::for_tests();
        setup::tracefs();
        if with_vm {
            vm::prepare(&KERNELS.map(|(kernel, _)| kernel));
        }
    });
    let (mut tally, mut times) = (Tally::default(), Times::start());
    if everything {
        let mut tests = harnesses()?;
        if !arguments.nightly {
            tests.retain(|test| !is_nightly(test));
        }
        // It reports its errors, and panics are printed: what is missing then is missing to the tests.
        times.lap("build", Vec::new());
        let _ = preparation.join();
        times.lap("packages and kernels, after the build", Vec::new());
        let (beside, alone) = lanes::split(tests);
        // What is short, and what runs alone, waits for much of its time: the guests have what it leaves of the processors.
        let (start, started) = mpsc::channel();
        let guests = with_vm.then(|| {
            thread::spawn(move || {
                // Where no harness is short they begin with those that run alone.
                let _ = started.recv();
                let all = KERNELS.len().to_string();
                let options = ["--within", WITHIN, "--filter", IN_GUESTS, "--jobs", &all];
                run_in_guests(&KERNELS, &options, true)
            })
        });
        // They wait for most of their time.
        let at_once = 2 * thread::available_parallelism()?.get();
        let took = lanes::run(&beside, at_once, &mut tally, |test| {
            if !lanes::is_long(test) {
                let _ = start.send(());
            }
        })?;
        drop(start);
        times.lap(
            &format!("{} harnesses, {at_once} at a time", beside.len()),
            took,
        );
        let took = lanes::run(&alone, 1, &mut tally, |_| ())?;
        times.lap(&format!("{} harnesses, one at a time", alone.len()), took);
        if let Some(guests) = guests {
            let came = guests
                .join()
                .map_err(|_| anyhow!("their thread has panicked"));
            let came = came.flatten();
            times.lap("real kernels, beside these and on", tally.add(came));
        }
        if with_vm && arguments.nightly {
            for (kernel, tests, mib) in ON_V2 {
                let options = ["--filter", tests, "--memory", mib];
                let came = run_in_guests(&[(kernel, Cgroup::V2)], &options, false);
                times.lap(&format!("{tests} on {kernel}, cgroup v2"), tally.add(came));
            }
        }
    } else {
        let _ = preparation.join();
        run_filtered(&arguments.rest, &mut tally)?;
    }
    tally.print_names();
    if everything && !arguments.nightly {
        println!(
            "\nleft to --nightly: {}; on cgroup v2 {}",
            NIGHTLY.join(", "),
            ON_V2.map(|(_, tests, _)| tests).join(", ")
        );
    }
    times.print();
    tally.print_counts();
    ensure!(!tally.has_failed(), "tests have failed");
    Ok(())
}

/// Builds all that tests start, and returns the test harnesses: unit tests first, then the integration tests by name.
fn harnesses() -> Result<Vec<Harness>> {
    // The benchmark is compiled alone.
    let mut tests = plan::build(["--bins", "--tests", "--bench", "decision"])?;
    tests.retain(|program| program.is_test && program.kind != "bench");
    tests.sort_by(|a, b| {
        let key = |e: &Executable| (e.kind == "test", e.package.clone(), e.name.clone());
        key(a).cmp(&key(b))
    });
    let mut harnesses = Vec::new();
    for test in tests {
        harnesses.extend(Harness::of(test)?);
    }
    Ok(harnesses)
}

fn is_nightly(test: &Harness) -> bool {
    NIGHTLY.contains(&&*test.title())
}

/// Runs what `cargo test` finds with these arguments.
fn run_filtered(arguments: &[String], tally: &mut Tally) -> Result<()> {
    // The tests start these by their path.
    plan::build(["--bins"])?;
    let mut cargo = plan::command("test");
    cargo.arg("--no-fail-fast").args(arguments);
    let mut lines = Vec::new();
    let status = run_and_read(&mut cargo, |line| {
        println!("{line}");
        lines.push(line.to_owned());
    })?;
    let ended = status
        .success()
        .then_some(())
        .ok_or_else(|| status.to_string());
    tally.read("cargo test", &lines, ended);
    Ok(())
}

/// Runs tests on real kernels, with these options of `cargo xtask vm test`. `gives_way`: to what runs
/// beside them.
fn run_in_guests(kernels: &[OnMachine], options: &[&str], gives_way: bool) -> Result<vm::Summary> {
    let mut options = vm::Options::parse_from(["vm test"].iter().chain(options));
    options.machine.gives_way = gives_way;
    vm::test_on(kernels, &options)
}
