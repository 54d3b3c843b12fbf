//! Race 2: a cgroup with a limit plays the node, and each contender in turn has to save it.

use evictd_tests::{interrupt::interrupted, prelude::*};
use serde::Serialize;

use crate::{
    bare,
    calm::{self, Beside},
    contender::Contender,
    heat::{self, Heat, Killer, Plan},
    load::{self, Load},
    stats::{Distribution, count},
    trace::Trace,
    work,
};

pub struct Programme {
    pub contenders: Vec<Contender>,
    /// Ways and rates (MiB/s, 0: full speed).
    pub courses: Vec<(String, u64)>,
    pub runs: u32,
    /// The node in bytes.
    pub size: u64,
    /// The threshold in bytes.
    pub threshold: u64,
    /// Pods beside the cast.
    pub crowd: u32,
    /// What else the machine has to do.
    pub load: Option<load::Kind>,
    /// Whether it has to be over soon.
    pub is_quick: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Race {
    /// What else the machine had to do.
    pub load: Option<&'static str>,
    /// Contenders that could not take part, and why.
    pub absent: Vec<(String, String)>,
    pub bare_wake_up_us: Option<Distribution>,
    #[serde(skip)]
    pub bare: Vec<f64>,
    /// 100 us of work, microseconds.
    pub bare_work_us: Option<Distribution>,
    #[serde(skip)]
    pub work: Vec<f64>,
    /// One line per contender and course, and one per contender over all courses (`way` is `all`).
    pub results: Vec<Line>,
    /// The neighbour while no pod is killed.
    pub calm: Vec<Beside>,
    pub heats: Vec<Heat>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub contender: String,
    pub way: String,
    pub rate: u64,
    pub runs: usize,
    /// Runs in which the OOM killer was needed.
    pub oom_kills: usize,
    pub floor_kills: usize,
    /// Runs in which only the hog died.
    pub right_pod: usize,
    /// Runs that the contender has not survived.
    pub contender_died: usize,
    pub overshoot_kib: Option<Distribution>,
    /// Microseconds from the crossing, over the runs that the contender itself has won.
    pub woken_us: Option<Distribution>,
    pub decided_us: Option<Distribution>,
    pub signalled_us: Option<Distribution>,
    pub exited_us: Option<Distribution>,
    pub freed_us: Option<Distribution>,
    /// The contender's share of one CPU while the race was on.
    pub cpu_share: Option<Distribution>,
    /// The neighbour's 99th percentile of each run.
    pub neighbour_p99_us: Option<Distribution>,
    pub neighbour_faults_per_second: Option<Distribution>,
}

/// Runs all of it. A contender that cannot start is out, with its reason.
pub fn run(programme: &Programme) -> Result<Race> {
    let trace = Trace::start()?;
    let _busy = programme.load.map(Load::start).transpose()?;
    let bare = bare::measure(if programme.runs < 5 { 50 } else { 200 });
    let mut absent = Vec::new();
    let work = work::measure(if programme.is_quick { 1000 } else { 5000 });
    let mut or_absent = |name: &str, measured: Result<Vec<f64>>| {
        measured.unwrap_or_else(|error| {
            absent.push((name.to_owned(), format!("{error:#}")));
            Vec::new()
        })
    };
    let bare = or_absent("bare wake-up", bare);
    let work = or_absent("bare work", work);
    let mut heats: Vec<Heat> = Vec::new();
    let total = programme.contenders.len() * programme.courses.len() * programme.runs as usize;
    let mut done = 0;
    // Run by run and not contender by contender: what else the machine does hits all alike.
    'race: for run in 0..programme.runs {
        for (way, rate) in &programme.courses {
            for contender in &programme.contenders {
                done += 1;
                let name = contender.name();
                if absent.iter().any(|(out, _)| *out == name) {
                    continue;
                }
                let plan = Plan {
                    programme,
                    contender: *contender,
                    way,
                    rate: *rate,
                    // Evenly over the interval, another order than that of the runs.
                    phase: (f64::from(run) * 0.618 + 0.31).fract(),
                };
                match heat::run(&plan, &trace) {
                    Ok(heat) => {
                        progress(done, total, &heat);
                        heats.push(heat);
                    }
                    // What has been run so far is reported.
                    Err(_) if interrupted() => break 'race,
                    // An hour of runs is not lost to the last of them.
                    Err(error) => {
                        let before = heats.iter().filter(|h| h.contender == name).count();
                        absent.push((name, reason(before, &error)));
                    }
                }
            }
        }
    }
    let calm = match interrupted() {
        true => Vec::new(),
        false => calm::run(programme, &absent)?,
    };
    Ok(Race {
        calm,
        load: programme.load.map(load::Kind::name),
        absent,
        bare_wake_up_us: Distribution::of(bare.iter().copied()),
        bare,
        bare_work_us: Distribution::of(work.iter().copied()),
        work,
        results: results(programme, &heats),
        heats,
    })
}

fn reason(runs_before: usize, error: &Error) -> String {
    match runs_before {
        0 => format!("{error:#}"),
        runs => format!("only in {runs} runs: {error:#}"),
    }
}

fn progress(done: usize, total: usize, heat: &Heat) {
    let killer = match heat.killer {
        Killer::Daemon => "killed in time",
        Killer::Floor => "the floor killed",
        Killer::Oom => "OOM",
        Killer::None => "no pod killed",
    };
    let speed = match heat.rate {
        0 => "full speed".to_owned(),
        rate => format!("{rate} MB/s"),
    };
    let signalled = heat.stages.signalled.map(|us| format!(" {us:.0} us"));
    let died = if heat.contender_died {
        ", and died"
    } else {
        ""
    };
    eprintln!(
        "[{done}/{total}] {} {} {speed}: {killer}{}{died}",
        heat.contender,
        heat.way,
        signalled.unwrap_or_default()
    );
}

fn results(programme: &Programme, heats: &[Heat]) -> Vec<Line> {
    let mut lines = Vec::new();
    for contender in &programme.contenders {
        let name = contender.name();
        let mine: Vec<&Heat> = heats.iter().filter(|h| h.contender == name).collect();
        for (way, rate) in &programme.courses {
            let course: Vec<&Heat> = mine
                .iter()
                .copied()
                .filter(|h| h.way == *way && h.rate == *rate)
                .collect();
            lines.extend(line(&name, way, *rate, &course));
        }
        lines.extend(line(&name, "all", 0, &mine));
    }
    lines
}

fn line(contender: &str, way: &str, rate: u64, heats: &[&Heat]) -> Option<Line> {
    // The OOM killer's time is not the contender's.
    let won: Vec<&Heat> = heats
        .iter()
        .copied()
        .filter(|h| h.killer != Killer::Oom)
        .collect();
    let won = |value: fn(&Heat) -> Option<f64>| Distribution::over(&won, value);
    let all = |value: fn(&Heat) -> Option<f64>| Distribution::over(heats, value);
    let count = |holds: fn(&Heat) -> bool| count(heats, holds);
    (!heats.is_empty()).then(|| Line {
        contender: contender.to_owned(),
        way: way.to_owned(),
        rate,
        runs: heats.len(),
        oom_kills: count(|h| h.killer == Killer::Oom),
        floor_kills: count(|h| h.killer == Killer::Floor),
        right_pod: count(|h| h.right_pod),
        contender_died: count(|h| h.contender_died),
        overshoot_kib: all(|h| h.overshoot_kib),
        woken_us: won(|h| h.stages.woken),
        decided_us: won(|h| h.stages.decided),
        signalled_us: won(|h| h.stages.signalled),
        exited_us: won(|h| h.stages.exited),
        freed_us: won(|h| h.stages.freed),
        cpu_share: all(|h| Some(h.cpu_us? / h.duration_us)),
        neighbour_p99_us: all(|h| Some(h.neighbour?.p99_us)),
        neighbour_faults_per_second: all(|h| Some(h.neighbour?.faults_per_second)),
    })
}
