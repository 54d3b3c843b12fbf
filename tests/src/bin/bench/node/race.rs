//! What the heats of the node race give together.

use evictd_tests::prelude::*;
use serde::{Deserialize, Serialize};

use super::{MARK, NodeHeat, Outcome, Programme, Task};
use crate::{
    heat::Killer,
    stats::{Distribution, count},
};

/// What `cargo xtask bench` brings back from the guest.
#[derive(Deserialize)]
struct Brought {
    /// Why it was not run, if it was not.
    unavailable: Option<String>,
    #[serde(flatten)]
    guest: Guest,
    #[serde(default)]
    jobs: Vec<Job>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Guest {
    pub kernel: String,
    pub memory_mib: u32,
    pub emulator: String,
    /// Debian's versions of what took part.
    pub packages: Vec<String>,
}

#[derive(Deserialize)]
struct Job {
    argv: Vec<String>,
    output: String,
    failure: Option<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Race {
    /// Why it was not run, if it was not.
    pub unavailable: Option<String>,
    #[serde(flatten)]
    pub guest: Guest,
    pub threshold_mib: u64,
    /// Rivals that did not start, and why.
    pub absent: Vec<(String, String)>,
    /// One line per contender and course, and one per contender over all courses (`way` is `all`).
    pub results: Vec<Line>,
    pub heats: Vec<NodeHeat>,
    /// Runs that have no result, with the reason: the guest panicked, or hung.
    pub broken: Vec<(Task, String)>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub contender: String,
    pub way: String,
    pub rate: u64,
    pub runs: usize,
    /// Runs that the daemon ended before the OOM killer had to.
    pub in_time: usize,
    /// Runs in which the OOM killer was needed.
    pub oom_kills: usize,
    /// Runs in which only the hog died.
    pub right_pod: usize,
    /// Pods that died and had done nothing, over all runs.
    pub innocents: usize,
    /// Runs in which something of the hog was left after a minute.
    pub hog_survived: usize,
    /// Runs in which the daemon itself was killed.
    pub daemon_died: usize,
    /// Runs in which the guest went down or hung.
    pub broken: usize,
    pub reached_rate: Option<Distribution>,
    pub available_at_kill_mib: Option<Distribution>,
    /// Guest's milliseconds from the crossing, over the runs that the daemon itself has won.
    pub signalled_ms: Option<Distribution>,
    pub dead_ms: Option<Distribution>,
}

pub fn read(file: &Path, programme: &Programme) -> Result<Race> {
    let brought: Brought = serde_json::from_slice(&fs::read(file)?)?;
    let mut race = Race {
        unavailable: brought.unavailable,
        guest: brought.guest,
        threshold_mib: programme.threshold >> 20,
        ..Race::default()
    };
    for job in brought.jobs {
        let Some(task) = task(&job.argv) else {
            bail!("no heat: {:?}", job.argv);
        };
        match said(&job) {
            Ok(Outcome::Heat(heat)) => race.heats.push(*heat),
            Ok(Outcome::Absent(reason)) => {
                let absent = (task.rival, reason);
                if !race.absent.iter().any(|(name, _)| *name == absent.0) {
                    race.absent.push(absent);
                }
            }
            Err(reason) => race.broken.push((task, reason)),
        }
    }
    race.results = results(programme, &race);
    Ok(race)
}

fn task(argv: &[String]) -> Option<Task> {
    let [_, _, rival, way, rate, threshold] = argv else {
        return None;
    };
    Some(Task {
        rival: rival.clone(),
        way: way.clone(),
        rate: rate.parse().ok()?,
        threshold: threshold.parse().ok()?,
    })
}

/// What a job has said; or what became of it instead.
fn said(job: &Job) -> Result<Outcome, String> {
    let line = job.output.lines().find_map(|l| l.strip_prefix(MARK));
    match line.map(serde_json::from_str) {
        Some(Ok(said)) => Ok(said),
        Some(Err(error)) => Err(format!("its result cannot be read: {error}")),
        None => {
            let failure = job.failure.as_deref().unwrap_or("it said nothing");
            let error = job.output.lines().rfind(|l| l.starts_with("bench: "));
            let error = error.map_or_else(String::new, |line| format!(": {line}"));
            Err(format!("{failure}{error}"))
        }
    }
}

fn results(programme: &Programme, race: &Race) -> Vec<Line> {
    let mut lines = Vec::new();
    for rival in &programme.rivals {
        let name = rival.name();
        for (way, rate) in &programme.courses {
            lines.extend(line(race, &name, Some((way, *rate))));
        }
        lines.extend(line(race, &name, None));
    }
    lines
}

fn line(race: &Race, contender: &str, course: Option<(&String, u64)>) -> Option<Line> {
    let is_it = |way: &String, rate: u64| course.is_none_or(|c| c == (way, rate));
    let mine = |h: &&NodeHeat| h.contender == contender && is_it(&h.way, h.rate);
    let heats: Vec<&NodeHeat> = race.heats.iter().filter(mine).collect();
    let lost = |(t, _): &&(Task, String)| t.rival == contender && is_it(&t.way, t.rate);
    let broken = race.broken.iter().filter(lost).count();
    let is_won = |h: &NodeHeat| matches!(h.killer, Killer::Daemon | Killer::Floor);
    // The OOM killer's time is not the daemon's.
    let won: Vec<&NodeHeat> = heats.iter().copied().filter(|h| is_won(h)).collect();
    let won = |value: fn(&NodeHeat) -> Option<f64>| Distribution::over(&won, value);
    let all = |value: fn(&NodeHeat) -> Option<f64>| Distribution::over(&heats, value);
    let count = |holds: fn(&NodeHeat) -> bool| count(&heats, holds);
    let innocents = heats
        .iter()
        .flat_map(|h| &h.dead)
        .filter(|name| *name != "hog");
    (!heats.is_empty() || broken > 0).then(|| Line {
        contender: contender.to_owned(),
        way: course.map_or_else(|| "all".to_owned(), |(way, _)| way.clone()),
        rate: course.map_or(0, |(_, rate)| rate),
        runs: heats.len() + broken,
        in_time: count(is_won),
        oom_kills: count(|h| h.killer == Killer::Oom),
        right_pod: count(|h| h.right_pod),
        innocents: innocents.count(),
        hog_survived: count(|h| h.hog_survived),
        daemon_died: count(|h| !h.daemon_survived),
        broken,
        reached_rate: all(|h| h.reached_rate),
        available_at_kill_mib: all(|h| h.available_at_kill_mib),
        signalled_ms: won(|h| h.signalled_ms),
        dead_ms: won(|h| h.dead_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(output: &str, failure: Option<&str>) -> Job {
        Job {
            argv: Vec::new(),
            output: output.to_owned(),
            failure: failure.map(str::to_owned),
        }
    }

    #[test]
    fn a_guest_that_goes_down_is_no_result() {
        let down = job(
            "x\n",
            Some("the machine went down: Kernel panic - not syncing: x"),
        );
        let reason = said(&down).err();
        assert_eq!(
            reason.as_deref(),
            Some("the machine went down: Kernel panic - not syncing: x")
        );
        let error = job("bench: mount /dev/vda: x\n", Some("exit code 2"));
        assert_eq!(
            said(&error).err().as_deref(),
            Some("exit code 2: bench: mount /dev/vda: x")
        );
        let absent = job("NODE-HEAT {\"absent\":\"no bus\"}\n", None);
        assert!(matches!(said(&absent), Ok(Outcome::Absent(reason)) if reason == "no bus"));
    }
}
