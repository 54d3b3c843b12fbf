//! Chaos: a hog on its way to the threshold, and a fault that strikes the agent or what it leans on at a drawn moment. Whatever
//! the fault, the same must hold in the end: no OOM kill, no innocent pod dead, the eviction told, and told once.

mod fault;
mod kernel_map;
mod node;

use std::fmt;

use crate::{prelude::*, skip::skipped};

pub use fault::Fault;

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub fault: Fault,
    /// Growth of the hog, in MiB per second; 0 for as fast as it can.
    pub rate: u64,
    /// The moment of the fault is drawn by it.
    pub seed: u64,
}

#[derive(Debug)]
pub enum Outcome {
    Kept,
    /// Conditions that did not hold, and the agent's log.
    Broken {
        /// A sentence each.
        violations: Vec<String>,
        log: String,
    },
    /// Reason why this machine cannot show the case.
    Skipped(String),
}

impl Case {
    /// The usage at which the fault strikes, in MiB.
    pub fn strikes_at(&self) -> u64 {
        node::LEAST_MIB + fastrand::Rng::with_seed(self.seed).u64(..node::RANGE_MIB)
    }

    /// Whether it strikes while the hog is well before its threshold.
    pub fn strikes_before(&self) -> bool {
        self.strikes_at() < node::THRESHOLD_MIB - 10
    }

    /// Plays it as a test of this name.
    pub fn play(self, test: &str) {
        match self.run().expect("a scene") {
            Outcome::Kept => {}
            Outcome::Skipped(why) => skipped(test, &why),
            Outcome::Broken { violations, log } => panic!("{self}: {violations:#?}\n{log}"),
        }
    }

    /// Plays it.
    /// An error says nothing of the agent: the scene cannot be set.
    pub fn run(self) -> Result<Outcome> {
        if let Some(why) = self.fault.cannot_strike() {
            return Ok(Outcome::Skipped(why));
        }
        let mut random = fastrand::Rng::with_seed(!self.seed);
        let mut node = node::Node::new(self.fault)?;
        node.start()?;
        if self.fault.needs_guard() && !node.is_guarded() {
            return Ok(Outcome::Skipped("the hook cannot be pinned here".into()));
        }
        let mut hog = node.start_hog(self.rate)?;
        node.wait_for_usage(self.strikes_at(), &mut hog);
        if self.strikes_before() && !hog.is_alive() {
            bail!("the hog has ended before the fault");
        }
        let struck = fault::strike(self.fault, &mut node, &mut hog, &mut random)?;
        let ended = hog.wait();
        struck.heal(&mut node)?;
        let violations = node.violations(self.fault, ended);
        Ok(if violations.is_empty() {
            Outcome::Kept
        } else {
            Outcome::Broken {
                violations,
                log: node.log(),
            }
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, rate, seed } = self;
        match rate {
            0 => write!(f, "{fault} at full speed, seed {seed}"),
            _ => write!(f, "{fault} at {rate} MiB/s, seed {seed}"),
        }
    }
}
