//! The race as a table in the terminal and in the report.

use std::fmt::Write as _;

use crate::{
    calm::Beside,
    contender::Contender,
    rest::Resting,
    scope::{Line, Race},
    stats::Distribution,
};

/// A table of one line per contender and course.
pub fn draw(race: &Race) -> String {
    let mut text = race
        .load
        .map_or_else(String::new, |load| format!("\nWith {load}:\n"));
    text += &format!(
        "{:<18} {:<10} {:>6} {:>5} {:>4} {:>5} {:>5} {:>4}  {:>21}  {:>33}  {:>10} {:>10} {:>9} {:>6}\n",
        "contender",
        "way",
        "MB/s",
        "runs",
        "OOM",
        "floor",
        "right",
        "died",
        "overshoot KiB p50/max",
        "crossed->signalled us p50/p99/max",
        "exited p50",
        "freed p50",
        "neigh p99",
        "CPU %"
    );
    for line in &race.results {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", row(line));
    }
    for (limit, took) in [
        (
            "bare wake-up (eventfd -> FIFO thread -> SIGKILL)",
            race.bare_wake_up_us,
        ),
        ("bare work (100 us of a FIFO thread)", race.bare_work_us),
    ] {
        if let Some(d) = took {
            let _ = writeln!(
                text,
                "{limit}, {} runs: p50 {:.0} us, p99 {:.0} us, max {:.0} us",
                d.n, d.p50, d.p99, d.max
            );
        }
    }
    text += &ratios(race);
    text += &calm(&race.calm);
    for (name, reason) in &race.absent {
        let _ = writeln!(text, "{name}: did not take part: {reason}");
    }
    text
}

/// The neighbour while no pod is killed.
fn calm(lines: &[Beside]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<18} {:>14} {:>9} {:>9} {:>9}   close to the threshold, nobody killed\n",
        "the neighbour by", "page faults/s", "x without", "p99 us", "x without"
    );
    let ratio = |r: Option<f64>| r.map_or_else(|| "-".into(), |r| format!("{r:.2}"));
    for line in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<18} {:>14.0} {:>9} {:>9.0} {:>9}",
            line.contender,
            line.faults_per_second,
            ratio(line.fault_rate_ratio),
            line.p99_us,
            ratio(line.p99_ratio)
        );
    }
    text
}

pub fn rest(resting: &[Resting]) -> String {
    if resting.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<18} {:<26} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8}\n",
        "at rest", "setting", "CPU %", "RSS KiB", "anon KiB", "PSS KiB", "VmLck KiB", "threads"
    );
    for r in resting {
        let m = r.memory_kib;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<18} {:<26} {:>8.3} {:>9} {:>9} {:>9} {:>9} {:>8}",
            r.contender, r.setting, r.cpu_percent, m.rss, m.anonymous, m.pss, m.locked, r.threads
        );
    }
    text
}

/// How much sooner than the best other daemon each hook of evictd has signalled.
fn ratios(race: &Race) -> String {
    let of = |name: &str| {
        let line = race
            .results
            .iter()
            .find(|l| l.contender == name && l.way == "all")?;
        Some(line.signalled_us?.p50)
    };
    let mut text = String::new();
    for contender in Contender::ALL {
        let name = contender.name();
        let Some(mine) = of(&name).filter(|_| matches!(contender, Contender::Evictd(_))) else {
            continue;
        };
        let against = |other: &str, theirs: Option<f64>| {
            theirs.map_or_else(String::new, |theirs| {
                format!("  {:.1} x {other}", theirs / mine)
            })
        };
        let _ = write!(text, "{name}: crossed->signalled p50 {mine:.0} us:");
        for other in Contender::ALL.iter().filter(|c| c.is_other_daemon()) {
            text += &against(&other.name(), of(&other.name()));
        }
        text += &against("the spinner", of(&Contender::Spinner.name()));
        text += &against("the bare wake-up", race.bare_wake_up_us.map(|d| d.p50));
        text.push('\n');
    }
    text
}

fn row(line: &Line) -> String {
    let rate = match (line.way.as_str(), line.rate) {
        ("all", _) => "all".to_owned(),
        (_, 0) => "full".to_owned(),
        (_, rate) => rate.to_string(),
    };
    let two = |d: Option<Distribution>| {
        d.map_or_else(|| "-".into(), |d| format!("{:.0} / {:.0}", d.p50, d.max))
    };
    let three = |d: Option<Distribution>| {
        d.map_or_else(
            || "-".into(),
            |d| format!("{:.0} / {:.0} / {:.0}", d.p50, d.p99, d.max),
        )
    };
    let median =
        |d: Option<Distribution>| d.map_or_else(|| "-".into(), |d| format!("{:.0}", d.p50));
    let share = line
        .cpu_share
        .map_or_else(|| "-".into(), |d| format!("{:.1}", d.p50 * 100.0));
    format!(
        "{:<18} {:<10} {rate:>6} {:>5} {:>4} {:>5} {:>5} {:>4}  {:>21}  {:>33}  {:>10} {:>10} {:>9} {share:>6}",
        line.contender,
        line.way,
        line.runs,
        line.oom_kills,
        line.floor_kills,
        line.right_pod,
        line.contender_died,
        two(line.overshoot_kib),
        three(line.signalled_us),
        median(line.exited_us),
        median(line.freed_us),
        median(line.neighbour_p99_us),
    )
}
