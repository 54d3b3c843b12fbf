//! One run: one contender, one hog, one way to allocate.

use evictd_engine::accounting::MemoryThresholds;
use evictd_node::memory_scope::{Scope, ScopeKind};
use evictd_tests::{
    interrupt::interrupted,
    prelude::*,
    workload::{HOG, Stage, WORKLOAD},
};
use serde::{Deserialize, Serialize};

use crate::{
    contender::{Contender, Running},
    neighbour::{Neighbour, Service},
    observer::{Crossing, Observer, Sample},
    own::Own,
    process::{Exit, cpu_time},
    scope::Programme,
    trace::{Kill, Task, Trace},
};

/// The slowest poller at the slowest rate needs six seconds.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Until the memory of a killed hog is back.
const RETURN: Duration = Duration::from_secs(3);
/// So that a second victim would be seen.
const AFTERMATH: Duration = Duration::from_millis(100);
/// What is left of the way to the threshold when a rate begins to count.
const LEAD_SECONDS: f64 = 0.4;
/// No more than this, in MiB: an agent that is stopped further away than hooks are attached leaves no floor.
const MOST_LEAD: u64 = 100;

#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub programme: &'a Programme,
    pub contender: Contender,
    pub way: &'a str,
    /// MiB per second, 0 for full speed.
    pub rate: u64,
    /// 0..1: where in its interval a poller starts.
    pub phase: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Killer {
    Daemon,
    /// evictd's program in the kernel, past the floor.
    Floor,
    /// The OOM killer was needed, whatever else acted.
    Oom,
    /// Nothing in time.
    None,
}

/// Microseconds from the crossing; what was not seen is left out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// The contender ran (its own word).
    pub woken: Option<f64>,
    /// It had chosen (its own word).
    pub decided: Option<f64>,
    /// SIGKILL was sent to the hog (the kernel's word).
    pub signalled: Option<f64>,
    /// The hog's first process was gone (its parent's word).
    pub exited: Option<f64>,
    /// The threshold was available again (sampled).
    pub freed: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heat {
    pub contender: String,
    pub way: String,
    pub rate: u64,
    pub killer: Killer,
    /// Only the hog died.
    pub right_pod: bool,
    pub dead: Vec<&'static str>,
    /// The contender itself was gone before it was told to end.
    pub contender_died: bool,
    /// The largest usage past the limit, KiB.
    pub overshoot_kib: Option<f64>,
    pub stages: Stages,
    /// CPU time of the contender from the hog's start to the end, microseconds.
    pub cpu_us: Option<f64>,
    /// From the hog's start to the end, microseconds.
    pub duration_us: f64,
    /// The neighbour in that time.
    pub neighbour: Option<Service>,
    /// How often the contender's own cgroup hit its limit, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_limit_hits: Option<u64>,
    pub stopwatch: &'static str,
    /// Memory over time, with the moment of the crossing.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    #[serde(skip)]
    pub crossing: Option<Crossing>,
}

impl Plan<'_> {
    /// Starts the contender. Where its own memory is to be short it runs in a cgroup of its own, which has to
    /// outlive it and comes first for that.
    pub fn start(&self, stage: &Stage, files: &Path) -> Result<(Option<Own>, Running)> {
        let mut own = Own::under(self.programme.load)?;
        let contender = self.contender;
        let threshold = self.programme.threshold;
        let running = contender.start(stage, threshold, self.phase, files, own.as_ref())?;
        if let Some(own) = &mut own {
            own.tighten()?;
        }
        Ok((own, running))
    }

    /// The node with all its pods, in a cgroup of this name.
    pub fn stage(&self, name: &str) -> Result<Stage> {
        let hog = hog_arguments(self);
        let hog: Vec<&str> = hog.iter().map(String::as_str).collect();
        let mut stage = Stage::start(name, self.programme.size, &hog, true)?;
        stage.crowd(self.programme.crowd)?;
        Ok(stage)
    }
}

pub fn run(plan: &Plan<'_>, trace: &Trace) -> Result<Heat> {
    let mut stage = plan.stage("bench")?;
    let files = tempfile::Builder::new().prefix("evictd-bench-").tempdir()?;
    let quiet_pod = stage.directory_of("api").unwrap_or_default();
    let neighbour = Neighbour::start(&quiet_pod)?;
    let amount = plan.contender.amount(plan.programme.threshold);
    let observer = Observer::start(scope(stage.cgroup.path(), amount)?, amount)?;
    let stopwatch = observer.stopwatch;
    let (own, mut running) = plan.start(&stage, files.path())?;
    let exit = Exit::of(stage.hog_pid());
    stage.start_ahead()?;
    // Every contender has time to see what is coming.
    std::thread::sleep(AFTERMATH);
    plan.contender.last_moment(&mut running)?;
    trace.clear()?;
    let cpu_before = running.pid().and_then(|pid| cpu_time(pid).ok());
    let start = monotonic_ns();
    stage.release_hog()?;
    let over = Instant::now() + TIMEOUT;
    while exit.time().is_none() && !oom_killed(&stage) && Instant::now() < over {
        ensure!(!interrupted(), "interrupted");
        std::thread::sleep(Duration::from_millis(1));
    }
    wait_for_return(&stage, amount)?;
    // The OOM reaper gives memory back before the process has ended.
    until(RETURN, || exit.time().is_some() || !oom_killed(&stage));
    std::thread::sleep(AFTERMATH);
    let end = monotonic_ns();
    let cpu_after = running.pid().and_then(|pid| cpu_time(pid).ok());
    let contender_died = running.has_died()?;
    let service = neighbour.finish(start, end);
    let seen = observer.finish()?;
    let status = running.status(files.path());
    let mut dead = stage.dead();
    if service.is_none() {
        dead.push("neighbour");
    }
    let kills = trace.kills()?;
    // Its threads and the processes that it has forked have its name.
    let is_hog = |task: &Task| task.name == "hog" && !stage.is_bystander(task.tid);
    let first = kills.iter().find(|kill| is_hog(&kill.receiver));
    let killer = killer(oom_killed(&stage), first, is_hog);
    // A hog of many processes is signalled when the last one of the first round is.
    let round = status.map_or(0, |v| v.signalled);
    let signalled = first.map(|first| {
        let same = |kill: &&Kill| kill.sender == first.sender && kill.time_ns <= round;
        let last = kills.iter().rfind(same).map_or(0, |kill| kill.time_ns);
        last.max(first.time_ns)
    });
    let crossing = seen.acted_upon(first.map(|kill| kill.time_ns));
    let samples = seen.samples;
    let since = |at: u64| crossing.map(|c| (at as f64 - c.time_ns as f64) / 1000.0);
    let freed = crossing.and_then(|c| {
        let back = |s: &&Sample| s.time_ns > exit.time().unwrap_or(c.time_ns) && s.beyond < 0;
        samples.iter().find(back).map(|s| s.time_ns)
    });
    let overshoot = crossing.map(|c| overshoot(plan.way, &stage, c, &samples));
    Ok(Heat {
        contender: plan.contender.name(),
        way: plan.way.to_owned(),
        rate: plan.rate,
        killer,
        right_pod: dead.iter().all(|name| *name == HOG) && killer != Killer::None,
        dead,
        contender_died,
        overshoot_kib: overshoot,
        stages: Stages {
            woken: status.and_then(|v| since(v.woken)),
            decided: status.and_then(|v| since(v.decided)),
            signalled: signalled.and_then(since),
            exited: exit.time().and_then(since),
            freed: freed.and_then(since),
        },
        cpu_us: cpu_before
            .zip(cpu_after)
            .map(|(b, a)| a.saturating_sub(b) as f64 / 1000.0),
        duration_us: (end - start) as f64 / 1000.0,
        neighbour: service,
        own_limit_hits: own.as_ref().map(Own::hits).transpose()?,
        stopwatch,
        samples,
        crossing,
    })
}

/// Whatever else acted: where the OOM killer was needed, it was needed.
pub fn killer(oom: bool, first: Option<&Kill>, is_hog: impl Fn(&Task) -> bool) -> Killer {
    match first {
        _ if oom => Killer::Oom,
        None => Killer::None,
        Some(kill) if is_hog(&kill.sender) => Killer::Floor,
        Some(_) => Killer::Daemon,
    }
}

/// Goes on after this time, unless it is interrupted.
pub fn wait(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        ensure!(!interrupted(), "interrupted");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The kernel's own peak where only the hog moves the usage; where inactive_file moves the limit too, the largest
/// sample past the limit of its moment.
fn overshoot(way: &str, stage: &Stage, crossing: Crossing, samples: &[Sample]) -> f64 {
    let kib = |bytes: i64| bytes as f64 / 1024.0;
    let sampled = || samples.iter().map(|s| s.beyond).max().unwrap_or(0);
    if way == "cache" {
        return kib(sampled());
    }
    let limit = i64::try_from(crossing.limit).unwrap_or(i64::MAX);
    let peak = stage.peak().and_then(|peak| i64::try_from(peak).ok());
    kib(peak.map_or_else(sampled, |peak| peak - limit))
}

fn oom_killed(stage: &Stage) -> bool {
    stage.memory.oom_kills().is_ok_and(|kills| kills > 0)
}

/// A cgroup as the node, of which so many bytes must be available.
pub fn scope(cgroup: &Path, amount: u64) -> Result<Scope> {
    let memory = MemoryCgroup::open(cgroup)?;
    let thresholds = |_| MemoryThresholds {
        threshold: amount,
        resolved: amount,
        ..MemoryThresholds::default()
    };
    Ok(Scope::open(memory, ScopeKind::Node, thresholds, false)?)
}

fn wait_for_return(stage: &Stage, amount: u64) -> Result<()> {
    let scope = scope(stage.cgroup.path(), amount)?;
    let over = Instant::now() + RETURN;
    while scope.sample()?.guarded_available < amount && Instant::now() < over {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn hog_arguments(plan: &Plan<'_>) -> Vec<String> {
    let Programme {
        size, threshold, ..
    } = plan.programme;
    let others: u64 = WORKLOAD.iter().map(|r| r.usage_mib(size / MIB)).sum();
    let lead = ((plan.rate as f64 * LEAD_SECONDS) as u64).clamp(8, MOST_LEAD);
    let distance = ((size - threshold) / MIB).saturating_sub(others);
    let course = (plan.way, plan.rate);
    hog_words(course, [distance, lead], size / MIB * 8, "/var/tmp")
}

/// Far too much, in its way. It has taken the lead of the other pods when the race begins; at a rate it starts shortly
/// before the threshold, which is so many MiB away, or a slow run would take a minute. Page cache is of files on the disk.
pub fn hog_words(
    (way, rate): (&str, u64),
    [distance, lead]: [u64; 2],
    mib: u64,
    disk: &str,
) -> Vec<String> {
    let head = match rate {
        0 => distance / 3,
        _ => distance.saturating_sub(lead),
    };
    let head = head.max(1);
    let dir = if way == "cache" { disk } else { "/dev/shm" };
    let words = format!("--way {way} --rate {rate} --head {head} --mib {mib} --dir {dir}");
    words.split(' ').map(str::to_owned).collect()
}
