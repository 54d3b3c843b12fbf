//! One run inside the guest: one daemon, one hog, and the guest's own OOM killer behind both.

use std::thread::sleep;

use evictd_tests::{
    prelude::*,
    workload::{HOG, Stage, WORKLOAD},
};
use serde::{Deserialize, Serialize};

use super::{
    Outcome, Task, guest,
    meter::{Measure, Meminfo, Meter, Sample},
    rival::Rival,
};
use crate::{
    heat::{Killer, hog_words, killer},
    trace::{Task as Thread, Trace},
};

/// A hog at 20 MB/s needs ten seconds; daemons that ask politely wait ten more.
const TIMEOUT: Duration = Duration::from_secs(60);
/// So that a second victim would be seen: the daemons' own pauses are shorter.
const AFTERMATH: Duration = Duration::from_secs(2);
/// The longest pause between two looks of any of them.
const SETTLE: Duration = Duration::from_secs(3);
/// What is left of the way to the threshold when a rate begins to count: seconds, and MiB at least, since daemons and
/// page tables take some that is not known beforehand.
const LEAD: (f64, u64) = (1.0, 40);
const POINTS: usize = 400;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHeat {
    pub contender: String,
    pub way: String,
    pub rate: u64,
    /// What the hog reached on its way to the threshold, MiB per second: emulation is slow.
    pub reached_rate: Option<f64>,
    pub killer: Killer,
    /// Only the hog's pod has lost processes, and nothing is left of it.
    pub right_pod: bool,
    pub dead: Vec<String>,
    /// Whether anything of the hog's pod was left at the end.
    pub hog_survived: bool,
    pub oom_kills: u64,
    /// Whether the daemon itself was still there.
    pub daemon_survived: bool,
    /// What the times below count from.
    pub measure: Measure,
    /// MemAvailable when the first signal was sent to the hog, MiB.
    pub available_at_kill_mib: Option<f64>,
    pub least_available_mib: Option<f64>,
    /// Guest's milliseconds from the crossing to the first signal at the hog.
    pub signalled_ms: Option<f64>,
    /// Until nothing was left of it.
    pub dead_ms: Option<f64>,
    pub total_mib: f64,
    /// The end of what the daemon said.
    pub log: String,
    /// MemAvailable over time: milliseconds from the crossing, MiB.
    pub curve: Vec<(f64, f64)>,
}

impl NodeHeat {
    /// For the thread that waits.
    pub fn summary(&self) -> String {
        let signalled = self.signalled_ms.map(|ms| format!(" after {ms:.0} ms"));
        format!(
            "{:?}{}; dead: {}",
            self.killer,
            signalled.unwrap_or_default(),
            self.dead.join(" ")
        )
    }
}

pub fn run(task: &Task) -> Result<Outcome> {
    let rival = Rival::named(&task.rival)
        .with_context(|| format!("{}: no agent has this name", task.rival))?;
    guest::prepare()?;
    let before = Meminfo::read()?;
    let hog = hog_arguments(task, before);
    let hog: Vec<&str> = hog.iter().map(String::as_str).collect();
    // The limit is the machine's own size, which is never reached: the OOM killer is the whole guest's.
    let mut stage = Stage::start("node", before.total, &hog, false)?;
    let files = tempfile::tempdir()?;
    let mut running = match rival.start(&stage, task.threshold, files.path()) {
        Ok(running) => running,
        Err(error) => return Ok(Outcome::Absent(format!("{error:#}"))),
    };
    let hog_pod = stage.directory_of(HOG).unwrap_or_default();
    let trace = Trace::start_for("sig == 9 || sig == 15")?;
    stage.start_ahead()?;
    sleep(SETTLE);
    trace.clear()?;
    let meter = Meter::start(&hog_pod)?;
    let oom_before = oom_kills()?;
    let start = monotonic_ns();
    stage.release_hog()?;
    let over = Instant::now() + TIMEOUT;
    while !meter.hog_is_gone() && Instant::now() < over {
        sleep(Duration::from_millis(5));
    }
    sleep(AFTERMATH);
    let oom_kills = oom_kills()?.saturating_sub(oom_before);
    let samples = meter.finish()?;
    let dead = stage.dead();
    // The hog's own process may be gone and its children not.
    let survived = samples.last().is_some_and(|s| s.hog_lives);
    let is_hog = |thread: &Thread| thread.name == "hog" && !stage.is_bystander(thread.tid);
    let kills = trace.kills()?;
    let first = kills.iter().find(|kill| is_hog(&kill.receiver));
    let killer = killer(oom_kills > 0, first, is_hog);
    let measure = rival.measure();
    let crossing = crossing(&samples, measure, task.threshold);
    let since = |ns: u64| crossing.map(|at| (ns as f64 - at as f64) / 1e6);
    let gone = samples.iter().find(|s| !s.hog_lives).map(|s| s.time_ns);
    let at_kill = first.and_then(|kill| samples.iter().rfind(|s| s.time_ns <= kill.time_ns));
    Ok(Outcome::Heat(Box::new(NodeHeat {
        contender: task.rival.clone(),
        way: task.way.clone(),
        rate: task.rate,
        reached_rate: crossing.and_then(|at| reached_rate(&samples, start, at)),
        killer,
        right_pod: !survived && dead == [HOG],
        dead: dead.iter().map(ToString::to_string).collect(),
        hog_survived: survived,
        oom_kills,
        daemon_survived: running.is_alive(),
        measure,
        available_at_kill_mib: at_kill.map(|s| mib(s.memory.available)),
        least_available_mib: samples.iter().map(|s| s.memory.available).min().map(mib),
        signalled_ms: first.and_then(|kill| since(kill.time_ns)),
        dead_ms: gone.and_then(since),
        total_mib: mib(before.total),
        log: running.log(),
        curve: curve(&samples, crossing.unwrap_or(start)),
    })))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn crossing(samples: &[Sample], measure: Measure, threshold: u64) -> Option<u64> {
    let below = |s: &&Sample| s.memory.of(measure) < threshold;
    samples.iter().find(below).map(|s| s.time_ns)
}

/// MiB per second between the hog's release and the crossing, where that is long enough to tell.
fn reached_rate(samples: &[Sample], start: u64, crossing: u64) -> Option<f64> {
    let at = |ns: u64| samples.iter().find(|s| s.time_ns >= ns);
    let (first, last) = (at(start)?, at(crossing)?);
    let seconds = (last.time_ns - first.time_ns) as f64 / 1e9;
    let taken = mib(first.memory.available) - mib(last.memory.available);
    (seconds > 0.02 && taken > 1.0).then(|| taken / seconds)
}

fn curve(samples: &[Sample], zero: u64) -> Vec<(f64, f64)> {
    let point = |s: &Sample| {
        let ms = (s.time_ns as f64 - zero as f64) / 1e6;
        let round = |v: f64| (v * 10.0).round() / 10.0;
        (round(ms), round(mib(s.memory.available)))
    };
    let every = samples.len().div_ceil(POINTS).max(1);
    samples.iter().step_by(every).map(point).collect()
}

fn oom_kills() -> Result<u64> {
    evictd_tests::cgroup::oom_kills_of_machine(Path::new("/proc"))
}

fn hog_arguments(task: &Task, memory: Meminfo) -> Vec<String> {
    let total = memory.total / MIB;
    let others: u64 = WORKLOAD.iter().map(|role| role.usage_mib(total)).sum();
    let distance = (memory.available / MIB).saturating_sub(others + task.threshold / MIB);
    let lead = ((task.rate as f64 * LEAD.0) as u64).max(LEAD.1);
    let course = (task.way.as_str(), task.rate);
    hog_words(course, [distance, lead], total * 4, guest::DISK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kill;

    fn sample(ms: u64, available: u64) -> Sample {
        Sample {
            time_ns: ms * 1_000_000,
            memory: Meminfo {
                total: 1000 * MIB,
                available: available * MIB,
                kubelet: (available + 50) * MIB,
            },
            hog_lives: true,
        }
    }

    #[test]
    fn each_measure_has_its_own_crossing() {
        let samples = [sample(0, 200), sample(1000, 90), sample(2000, 40)];
        let at = |measure| crossing(&samples, measure, 100 * MIB).map(|ns| ns / 1_000_000);
        assert_eq!(at(Measure::MemAvailable), Some(1000));
        assert_eq!(at(Measure::Kubelet), Some(2000));
        assert_eq!(reached_rate(&samples, 0, 1_000_000_000), Some(110.0));
    }

    #[test]
    fn a_kill_of_the_oom_killer_is_no_daemons() {
        let thread = |name: &str| Thread {
            tid: 7,
            name: name.to_owned(),
        };
        let by = |sender: &str| Kill {
            time_ns: 1,
            sender: thread(sender),
            receiver: thread("hog"),
        };
        let is_hog = |thread: &Thread| thread.name == "hog";
        assert_eq!(killer(true, Some(&by("earlyoom")), is_hog), Killer::Oom);
        assert_eq!(killer(false, Some(&by("earlyoom")), is_hog), Killer::Daemon);
        assert_eq!(killer(false, Some(&by("hog")), is_hog), Killer::Floor);
        assert_eq!(killer(false, None, is_hog), Killer::None);
    }
}
