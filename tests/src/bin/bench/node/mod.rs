//! Race 1: a whole node in a virtual machine, with its own OOM killer and the daemons that Debian has.
//!
//! `cargo xtask bench` asks for the plan, runs each heat as a job of its own inside the guest, and gives back what they
//! have printed.

mod daemon;
mod guest;
mod heat;
mod manager;
mod meter;
pub mod race;
mod rival;
pub mod table;

use clap::Args;
use serde::{Deserialize, Serialize};

use evictd_tests::prelude::*;

pub use heat::NodeHeat;
pub use rival::Rival;

/// Begins the line that a heat inside the guest prints.
const MARK: &str = "NODE-HEAT ";
/// Where the benchmark lies inside the guest.
const INSIDE: &str = "/tests/bench";

/// One heat, as the guest is told.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Who takes part
    pub rival: String,
    /// The hog's way
    pub way: String,
    /// MiB per second, 0 for full speed
    pub rate: u64,
    /// Bytes that must be available
    pub threshold: u64,
}

/// What a heat says, as one line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Heat(Box<NodeHeat>),
    /// The contender did not start, for this reason.
    Absent(String),
}

pub struct Programme {
    pub rivals: Vec<Rival>,
    pub courses: Vec<(String, u64)>,
    pub runs: u32,
    pub threshold: u64,
}

impl Programme {
    /// The command line of every heat: run by run, so that what else the machine does hits all alike.
    pub fn jobs(&self) -> Vec<Vec<String>> {
        let mut jobs = Vec::new();
        for _ in 0..self.runs {
            for (way, rate) in &self.courses {
                for rival in &self.rivals {
                    let threshold = self.threshold.to_string();
                    let words = [
                        INSIDE,
                        "node-heat",
                        &rival.name(),
                        way,
                        &rate.to_string(),
                        &threshold,
                    ];
                    jobs.push(words.map(str::to_owned).into());
                }
            }
        }
        jobs
    }
}

/// Runs one heat: inside the guest only, because it takes the whole machine to the edge.
pub fn run(task: &Task) -> Result<()> {
    ensure!(
        evictd_tests::skip::in_guest(),
        "node-heat runs only in a guest of cargo xtask bench --race node"
    );
    let said = heat::run(task)?;
    match &said {
        Outcome::Heat(heat) => println!("node: {}", heat.summary()),
        Outcome::Absent(reason) => println!("node: did not take part: {reason}"),
    }
    println!("{MARK}{}", serde_json::to_string(&said)?);
    Ok(())
}
