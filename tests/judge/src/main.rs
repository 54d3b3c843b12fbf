//! `cargo xtask judge`: drawn incidents, judged in hindsight.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use evictd_judge::{Report, replay};

/// Lets evictd's core, the kubelet's way and a poller go through drawn incidents, and tells which pods did not have to go.
#[derive(Parser)]
#[command(name = "cargo xtask judge")]
struct Arguments {
    /// How many incidents
    #[arg(long, default_value_t = 10_000)]
    incidents: u64,
    /// The seed of the first one
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Show the course of this one alone
    #[arg(long)]
    seed: Option<u64>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        print!("{}", replay(seed));
        return ExitCode::SUCCESS;
    }
    let report = Report::of(arguments.first, arguments.incidents);
    match arguments.output {
        Output::Text => print!("{report}"),
        Output::Json => println!("{:#}", report.json()),
    }
    ExitCode::SUCCESS
}
