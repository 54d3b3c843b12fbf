//! The innocent neighbour: a small request every millisecond, in a pod that has done nothing wrong.
//!
//! A request touches eight fresh pages. It is due at a fixed time, and its latency counts from then: a neighbour that
//! was kept waiting does not get away with fewer requests.

use evictd_tests::{prelude::*, talker::Talker};
use serde::{Deserialize, Serialize};

use crate::{
    load::fault,
    stats::{quantile, sorted},
};

const PERIOD_NS: u64 = 1_000_000;
const PAGES: usize = 8;
const PAGE: usize = 4096;
/// A minute.
const REQUESTS: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    pub requests: usize,
    /// Median latency, microseconds from when it was due.
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Page faults per second of the time that it spent on them, at the median.
    pub faults_per_second: f64,
}

pub struct Neighbour(Talker);

impl Neighbour {
    pub fn start(cgroup: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("neighbour").arg(cgroup.join("cgroup.procs"));
        Talker::start(&mut command).map(Self)
    }

    /// How it fared between two moments (ns of CLOCK_MONOTONIC); ends it. `None` when it was killed.
    pub fn finish(mut self, from: u64, to: u64) -> Option<Service> {
        self.0.tell(&format!("{from} {to}")).ok()?;
        serde_json::from_str(&self.0.hear().ok()?).ok()
    }
}

/// One request: when it was due, how long after that it was served, and how long the work took, in ns.
#[derive(Clone, Copy)]
struct Request {
    due: u64,
    latency: u64,
    work: u64,
}

/// The neighbour's own process.
pub fn live(procs: &Path) -> Result<()> {
    fs::write(procs, "0")?;
    // SAFETY: a plain integer: sleep as exactly as the clock allows.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let (ask, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        // The other end lives as long as the process.
        let _ = ask.send(read.map(|_| line));
    });
    println!("ready");
    let mut served = Vec::with_capacity(REQUESTS);
    let mut due = monotonic_ns();
    loop {
        if let Ok(line) = asked.try_recv() {
            let line = line?;
            let mut numbers = line.split_whitespace().filter_map(|n| n.parse().ok());
            let (from, to) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            let text = serde_json::to_string(&summary(&served, from, to))?;
            println!("{text}");
            return Ok(());
        }
        let start = monotonic_ns();
        fault(PAGES * PAGE)?;
        let end = monotonic_ns();
        if served.len() < REQUESTS {
            served.push(Request {
                due,
                latency: end.saturating_sub(due),
                work: end - start,
            });
        }
        due += PERIOD_NS;
        if let Some(ahead) = due.checked_sub(monotonic_ns()) {
            std::thread::sleep(Duration::from_nanos(ahead));
        }
    }
}

fn summary(served: &[Request], from: u64, to: u64) -> Service {
    let inside: Vec<_> = served
        .iter()
        .filter(|r| (from..to).contains(&r.due))
        .collect();
    let latencies = sorted(inside.iter().map(|r| r.latency as f64 / 1000.0));
    let work = sorted(inside.iter().map(|r| r.work as f64));
    let of = |share| quantile(&latencies, share).unwrap_or(0.0);
    Service {
        requests: inside.len(),
        p50_us: of(0.50),
        p99_us: of(0.99),
        max_us: of(1.0),
        faults_per_second: quantile(&work, 0.5).map_or(0.0, |ns| PAGES as f64 * 1e9 / ns),
    }
}
