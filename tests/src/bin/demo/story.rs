//! What happens: first without evictd, then with it.

use evictd_store::record::OutcomeRecord;
use evictd_tests::{
    chart,
    interrupt::interrupted,
    prelude::*,
    sampling::Sampling,
    staged::{self, STATE},
    workload::{HOG, Stage, WORKLOAD},
};

use crate::{Arguments, timeline};

const TIMEOUT: Duration = Duration::from_secs(60);
/// After the end, so that a second victim would be seen.
const AFTERMATH: Duration = Duration::from_millis(300);

/// Tells the whole story; true when evictd has won every run.
pub fn tell(arguments: &Arguments) -> Result<bool> {
    if let Some(why) = evictd_tests::skip::no_memory_cgroups() {
        let reason = format!("{why}: cgroups are made and processes killed");
        bail!(reason);
    }
    let size = u64::try_from(arguments.size.value())?;
    let threshold = u64::try_from(arguments.threshold.value())?;
    if size < 64 << 20 || threshold * 3 > size {
        let reason = "--size must be at least 64Mi, and --threshold at most a third of it";
        bail!(reason);
    }
    introduce(arguments, size);

    println!("\n=== Without evictd: the kernel's OOM killer alone ===\n");
    without(arguments, size, size - threshold)?;
    let mut won = 0;
    for run in 1..=arguments.runs {
        println!("\n=== With evictd{} ===\n", run_of(run, arguments.runs));
        if with(arguments, size, run == 1)? {
            won += 1;
        } else {
            break;
        }
    }
    println!(
        "\n{won} of {} runs: the right pod evicted, no other pod dead, no OOM kill",
        arguments.runs
    );
    Ok(won == arguments.runs)
}

fn run_of(run: u32, runs: u32) -> String {
    if runs > 1 {
        format!(", run {run} of {runs}")
    } else {
        String::new()
    }
}

fn introduce(arguments: &Arguments, size: u64) {
    println!(
        "A cgroup of {} counts as the node; hard threshold memory.available<{}.",
        arguments.size, arguments.threshold
    );
    println!("Its pods:\n");
    println!(
        "  {:<8} {:<11} {:>8} {:>9}",
        "pod", "class", "priority", "request"
    );
    for role in &WORKLOAD {
        let request = format!("{} MiB", role.request_mib(size >> 20));
        println!(
            "  {:<8} {:<11} {:>8} {request:>9}",
            role.name, role.qos, role.priority
        );
    }
    let rate = match arguments.rate {
        0 => "as fast as this machine can".to_owned(),
        rate => format!("at {rate} MiB/s"),
    };
    println!("\n{HOG} allocates without end, {rate}.");
}

/// The node with all pods on it; the hog wants more than there is, so that it has to be stopped.
fn play(arguments: &Arguments, size: u64) -> Result<Stage> {
    let (far_too_much, rate) = ((size >> 17).to_string(), arguments.rate.to_string());
    Stage::start(
        "demo",
        size,
        &["--rate", &rate, "--mib", &far_too_much],
        false,
    )
}

/// Memory over time: one number every half millisecond.
fn record(node: &Stage) -> Result<Sampling<Vec<(Duration, u64)>>> {
    let memory = MemoryCgroup::open(node.cgroup.path())?;
    let (start, samples) = (Instant::now(), Vec::with_capacity(1 << 16));
    let look = move |samples: &mut Vec<_>| {
        let usage = memory
            .usage()
            .ok()
            .filter(|_| samples.len() < samples.capacity());
        samples.extend(usage.map(|usage| (start.elapsed(), usage)));
        Ok(())
    };
    Ok(Sampling::start(Duration::from_micros(500), samples, look))
}

fn without(arguments: &Arguments, size: u64, threshold_usage: u64) -> Result<()> {
    let mut node = play(arguments, size)?;
    let recorder = record(&node)?;
    node.release_hog()?;
    wait_until("the OOM killer to act", || {
        Ok((!node.dead().is_empty()).then_some(()))
    })?;
    std::thread::sleep(AFTERMATH);
    let samples = recorder.finish()?;
    let kills = node.memory.oom_kills()?;
    print!("{}", chart::draw(&samples, size, threshold_usage));
    println!(
        "\nThe OOM killer killed {kills} process(es); dead: {}.",
        node.dead().join(", ")
    );
    ensure!(
        kills != 0,
        "the OOM killer did not act although the node was full"
    );
    Ok(())
}

fn with(arguments: &Arguments, size: u64, in_full: bool) -> Result<bool> {
    let mut node = play(arguments, size)?;
    let files = tempfile::Builder::new().prefix("evictd-demo-").tempdir()?;
    let mut agent = start_agent(arguments, &node, files.path())?;
    let recorder = record(&node)?;
    node.release_hog()?;
    let state = files.path().join(STATE);
    let (eviction, finish) = wait_until("an eviction in the journal", || first_eviction(&state))?;
    std::thread::sleep(AFTERMATH);
    let samples = recorder.finish()?;
    let kills = node.memory.oom_kills()?;
    let limit = timeline::limit(&eviction);
    if in_full {
        print!("{}", chart::draw(&samples, size, limit));
        println!();
    }
    print!("{}", timeline::draw(&eviction, &finish));
    let sampled = samples.iter().map(|(_, usage)| *usage).max().unwrap_or(0);
    let overshoot = node.peak().unwrap_or(sampled).saturating_sub(limit);
    println!(
        "\n  overshoot past the threshold: {} KiB (hook: {})",
        overshoot >> 10,
        eviction.hook
    );
    println!(
        "  evicted: {}/{}: {}",
        eviction.namespace,
        eviction.name,
        eviction.message.trim_end()
    );
    let dead = node.dead();
    println!("  dead: {}; OOM kills: {kills}", dead.join(", "));
    let code = agent.terminate()?;
    let (records, _) = journal::read(&state)?;
    let evictions = records
        .iter()
        .filter(|r| matches!(r, Record::Evicted(_)))
        .count();
    let checks = [
        (
            eviction.name == HOG,
            "the pod that the kubelet's order picks was evicted",
        ),
        (dead == [HOG], "the others live"),
        (evictions == 1, "one eviction is in the journal"),
        (kills == 0, "the OOM counter has not moved"),
        (finish.exited > 0 && finish.freed > 0, "its memory is back"),
        (code == Some(0), "the agent ended cleanly"),
    ];
    for (holds, what) in checks {
        if !holds {
            println!("  FAILED: {what}");
        }
    }
    Ok(checks.iter().all(|(holds, _)| *holds))
}

/// The first eviction of a journal, once its end is there too.
fn first_eviction(state: &Path) -> Result<Option<(EvictionRecord, OutcomeRecord)>> {
    let (records, _) = journal::read(state)?;
    let evicted = records_of!(&records, Record::Evicted(e) => e)
        .into_iter()
        .next();
    Ok(evicted.and_then(|e| {
        let ends = records_of!(&records, Record::Finished(f) if f.id == e.id => f.clone());
        Some(((**e).clone(), ends.into_iter().next()?))
    }))
}

fn wait_until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(!interrupted(), "interrupted");
        ensure!(Instant::now() <= end, "waited {TIMEOUT:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start_agent(arguments: &Arguments, node: &Stage, files: &Path) -> Result<Agent> {
    let config = serde_json::json!({
        "scope": { "cgroup": node.cgroup.path() },
        "evictionHard": { "memory.available": arguments.threshold.to_string() },
        "memoryHook": arguments.hook,
    });
    staged::start(files, &node.manifest(), config, |_| {})
}
