//! The node race as a table and as a picture.

use std::fmt::Write as _;

use evictd_store::chart::Chart;

use super::{
    NodeHeat,
    race::{Line, Race},
};
use crate::stats::Distribution;

/// One line per contender and course.
pub fn draw(race: &Race) -> String {
    if let Some(reason) = &race.unavailable {
        return format!("\nThe node race was not run: {reason}\n");
    }
    let mut text = format!(
        "\nA guest of {} MiB, kernel {}, threshold {} MiB ({}: times are not those of hardware):\n",
        race.memory_mib, race.kernel, race.threshold_mib, race.emulator
    );
    text += &format!(
        "{:<13} {:<10} {:>5} {:>5} {:>7} {:>4} {:>5} {:>9} {:>8} {:>6} {:>7}  {:>12} {:>19} {:>19}\n",
        "contender",
        "way",
        "MB/s",
        "runs",
        "in time",
        "OOM",
        "right",
        "innocents",
        "hog left",
        "d.dead",
        "reached",
        "avail. MiB",
        "signalled ms p50/max",
        "dead ms p50/max"
    );
    for line in &race.results {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", row(line));
    }
    for (name, reason) in &race.absent {
        let _ = writeln!(text, "{name}: did not take part: {reason}");
    }
    for (task, reason) in &race.broken {
        let rate = speed(task.rate);
        let _ = writeln!(
            text,
            "{} {} {rate}: no result: {reason}",
            task.rival, task.way
        );
    }
    text
}

fn speed(rate: u64) -> String {
    match rate {
        0 => "full".to_owned(),
        rate => rate.to_string(),
    }
}

fn row(line: &Line) -> String {
    let rate = match line.way.as_str() {
        "all" => "all".to_owned(),
        _ => speed(line.rate),
    };
    let median =
        |d: Option<Distribution>| d.map_or_else(|| "-".into(), |d| format!("{:.0}", d.p50));
    let two = |d: Option<Distribution>| {
        d.map_or_else(|| "-".into(), |d| format!("{:.1} / {:.1}", d.p50, d.max))
    };
    format!(
        "{:<13} {:<10} {rate:>5} {:>5} {:>7} {:>4} {:>5} {:>9} {:>8} {:>6} {:>7}  {:>12} {:>19} {:>19}",
        line.contender,
        line.way,
        line.runs,
        line.in_time,
        line.oom_kills,
        line.right_pod,
        line.innocents,
        line.hog_survived,
        line.daemon_died,
        median(line.reached_rate),
        median(line.available_at_kill_mib),
        two(line.signalled_ms),
        two(line.dead_ms),
    )
}

/// MemAvailable over time, one line per contender: the first runs of one course.
pub fn picture(race: &Race) -> Option<String> {
    const FROM_S: f64 = -2.0;
    const TO_S: f64 = 8.0;
    // Slow enough to see who sleeps, fast enough to matter; otherwise what was run first.
    let wanted = race.heats.iter().find(|h| h.way == "touch" && h.rate == 50);
    let course = wanted.or_else(|| race.heats.first())?;
    let mut shown: Vec<&NodeHeat> = Vec::new();
    for heat in &race.heats {
        let is_course = heat.way == course.way && heat.rate == course.rate;
        if is_course && !shown.iter().any(|h| h.contender == heat.contender) {
            shown.push(heat);
        }
    }
    let top = shown.iter().map(|h| h.total_mib).fold(0.0, f64::max);
    let mut chart = Chart::new(
        "s since the threshold was crossed",
        FROM_S..TO_S,
        "MiB available",
        0.0..top,
    );
    chart.title(format!(
        "MemAvailable of a {} MiB guest, {} at {} MB/s (emulated)",
        race.memory_mib,
        course.way,
        speed(course.rate)
    ));
    chart.level(race.threshold_mib as f64, "threshold");
    for heat in shown {
        let points: Vec<(f64, f64)> = heat
            .curve
            .iter()
            .map(|(ms, mib)| (ms / 1000.0, *mib))
            .filter(|(s, _)| (FROM_S..=TO_S).contains(s))
            .collect();
        chart.curve(&heat.contender, points);
    }
    chart.draw_file((860, 420)).ok()
}
