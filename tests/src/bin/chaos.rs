//! `cargo xtask chaos`: faults strike while a hog grows.

use std::process::ExitCode;

use clap::{Parser, ValueEnum as _};
use evictd_tests::{
    chaos::{Case, Fault, Outcome},
    prelude::*,
};

/// Lets each fault strike an agent while a hog grows at each rate, and tells what did not hold in the end.
#[derive(Parser)]
#[command(name = "cargo xtask chaos")]
struct Arguments {
    /// These faults alone
    #[arg(long, value_enum)]
    fault: Vec<Fault>,
    /// MiB per second of the hog; 0: as fast as it can
    #[arg(long, default_values_t = [20, 60, 200, 0])]
    rate: Vec<u64>,
    /// How many times each
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// The seed of the first time
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let faults = match &*arguments.fault {
        [] => Fault::value_variants(),
        these => these,
    };
    let mut kept = BTreeMap::<(String, u64), u64>::new();
    let mut broken = 0;
    for &fault in faults {
        for &rate in &arguments.rate {
            for seed in arguments.seed..arguments.seed + arguments.runs {
                let case = Case { fault, rate, seed };
                match case.run()? {
                    Outcome::Kept => *kept.entry((fault.to_string(), rate)).or_default() += 1,
                    Outcome::Skipped(why) => println!("{case}: SKIPPED: {why}"),
                    Outcome::Broken { violations, log } => {
                        broken += 1;
                        println!("{case}: {}\n{log}", violations.join("; "));
                    }
                }
            }
        }
    }
    println!(
        "| fault | MiB/s | runs in which all held, of {} |",
        arguments.runs
    );
    println!("| --- | --- | --- |");
    for ((fault, rate), runs) in kept {
        println!("| {fault} | {rate} | {runs} |");
    }
    println!("{broken} broken");
    Ok(match broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
