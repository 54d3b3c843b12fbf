//! The node race as a table and as a picture.

use std::fmt::Write as _;

use evictd_store::chart::Chart;

use super::{
    NodeHeat,
    race::{Line, Race},
};
use crate::{
    columns::{self, Column},
    stats::{Distribution, median, or_dash},
    svg::first_of_each,
    table::speed,
};

const COLUMNS: [Column<Line>; 14] = [
    ("contender", -13, |l| l.contender.clone()),
    ("way", -10, |l| l.way.clone()),
    ("MB/s", 5, |l| speed(&l.way, l.rate)),
    ("runs", 5, |l| l.runs.to_string()),
    ("in time", 7, |l| l.in_time.to_string()),
    ("OOM", 4, |l| l.oom_kills.to_string()),
    ("right", 5, |l| l.right_pod.to_string()),
    ("innocents", 9, |l| l.innocents.to_string()),
    ("hog left", 8, |l| l.hog_survived.to_string()),
    ("d.dead", 6, |l| l.daemon_died.to_string()),
    ("reached", 7, |l| median(l.reached_rate)),
    ("avail. MiB", 13, |l| median(l.available_at_kill_mib)),
    ("signalled ms p50/max", 19, |l| two(l.signalled_ms)),
    ("dead ms p50/max", 19, |l| two(l.dead_ms)),
];

fn two(of: Option<Distribution>) -> String {
    or_dash(of, |d| format!("{:.1} / {:.1}", d.p50, d.max))
}

/// One line per contender and course.
pub fn draw(race: &Race) -> String {
    if let Some(reason) = &race.unavailable {
        return format!("\nThe node race was not run: {reason}\n");
    }
    let (guest, threshold) = (&race.guest, race.threshold_mib);
    let mut text = format!(
        "\nA guest of {} MiB, kernel {}, threshold {threshold} MiB ({}: times are not those of hardware):\n",
        guest.memory_mib, guest.kernel, guest.emulator
    );
    text += &columns::draw(&COLUMNS, &race.results);
    for (name, reason) in &race.absent {
        let _ = writeln!(text, "{name}: did not take part: {reason}");
    }
    for (task, reason) in &race.broken {
        let rate = speed(&task.way, task.rate);
        let _ = writeln!(
            text,
            "{} {} {rate}: no result: {reason}",
            task.rival, task.way
        );
    }
    text
}

/// MemAvailable over time, one line per contender: the first runs of one course.
pub fn picture(race: &Race) -> Option<String> {
    const FROM_S: f64 = -2.0;
    const TO_S: f64 = 8.0;
    // Slow enough to see which thread sleeps, fast enough to matter; otherwise what was run first.
    let wanted = race.heats.iter().find(|h| h.way == "touch" && h.rate == 50);
    let course = wanted.or_else(|| race.heats.first())?;
    let is_course = |h: &&NodeHeat| h.way == course.way && h.rate == course.rate;
    let shown = first_of_each(race.heats.iter().filter(is_course), |h| &h.contender);
    let top = shown.iter().map(|h| h.total_mib).fold(0.0, f64::max);
    let mut chart = Chart::new(
        "s since the threshold was crossed",
        FROM_S..TO_S,
        "MiB available",
        0.0..top,
    );
    chart.title(format!(
        "MemAvailable of a {} MiB guest, {} at {} MB/s (emulated)",
        race.guest.memory_mib,
        course.way,
        speed(&course.way, course.rate)
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
