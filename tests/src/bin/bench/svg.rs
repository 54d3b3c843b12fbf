//! The pictures: memory over time, and how long it took from the crossing to SIGKILL.

use std::collections::BTreeSet;

use evictd_store::chart::Chart;

use crate::{
    heat::{Heat, Killer},
    scope::{Programme, Race},
    stats::{quantile, sorted},
};

const MIB: f64 = (1 << 20) as f64;
/// In pixels.
const SIZE: (u32, u32) = (860, 420);

/// Memory over time around the crossing, one line per contender: the first run of `touch` at full speed.
pub fn memory(race: &Race, programme: &Programme) -> Option<String> {
    const BEFORE_MS: f64 = -40.0;
    const AFTER_MS: f64 = 200.0;
    let size = programme.size as f64 / MIB;
    let threshold = (programme.size - programme.threshold) as f64 / MIB;
    let is_course = |h: &&Heat| h.way == "touch" && h.rate == 0 && h.crossing.is_some();
    let shown = first_of_each(race.heats.iter().filter(is_course), |h| &h.contender);
    let mut chart = Chart::new(
        "ms since the threshold was crossed",
        BEFORE_MS..AFTER_MS,
        "MiB used",
        0.0..size * 1.08,
    );
    chart.title("Memory of the node, a hog at full speed");
    chart.level(size, "OOM killer");
    chart.level(threshold, "threshold");
    for heat in &shown {
        let crossing = heat.crossing?.time_ns as f64;
        let points: Vec<(f64, f64)> = heat
            .samples
            .iter()
            .map(|s| ((s.time_ns as f64 - crossing) / 1e6, s.usage as f64 / MIB))
            .filter(|(ms, _)| (BEFORE_MS..=AFTER_MS).contains(ms))
            .collect();
        chart.curve(&heat.contender, points);
    }
    (!shown.is_empty()).then(|| chart.draw_file(SIZE).ok())?
}

/// The first of these of each contender.
pub fn first_of_each<'a, T>(
    heats: impl Iterator<Item = &'a T>,
    contender: fn(&T) -> &str,
) -> Vec<&'a T> {
    let mut seen = BTreeSet::new();
    heats.filter(|heat| seen.insert(contender(heat))).collect()
}

/// From the crossing to SIGKILL: the share of runs that were signalled by then, over all courses.
pub fn latency(race: &Race) -> Option<String> {
    let mut curves: Vec<(String, Vec<f64>)> = Vec::new();
    if !race.bare.is_empty() {
        curves.push(("bare wake-up".into(), sorted(race.bare.iter().copied())));
    }
    if !race.work.is_empty() {
        // Thousands of them: each half of a percent is drawn.
        let work = sorted(race.work.iter().copied());
        let shares = (1..=200).map(|i| f64::from(i) / 200.0);
        let drawn = shares.filter_map(|share| quantile(&work, share)).collect();
        curves.push(("bare work".into(), drawn));
    }
    for line in race.results.iter().filter(|line| line.way == "all") {
        let won = race
            .heats
            .iter()
            .filter(|h| h.contender == line.contender && h.killer != Killer::Oom);
        let values = sorted(won.filter_map(|h| h.stages.signalled));
        if !values.is_empty() {
            curves.push((line.contender.clone(), values));
        }
    }
    let longest = curves
        .iter()
        .filter_map(|(_, v)| v.last())
        .fold(1e3_f64, |a, b| a.max(*b));
    let end = 10_f64.powf(longest.log10().ceil());
    let mut chart = Chart::new(
        "time since the crossing",
        1.0..end,
        "share of runs",
        0.0..1.0,
    )
    .with_log_x(|us| match us {
        us if *us < 1e3 => format!("{us:.0} us"),
        us if *us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.0} s", us / 1e6),
    })
    .with_y_label(|share| format!("{:.0} %", share * 100.0));
    chart.title("From the crossing to SIGKILL: runs signalled by then");
    chart.title("Runs lost to the OOM killer are left out.");
    let any = !curves.is_empty();
    for (name, values) in curves {
        let n = values.len() as f64;
        let mut points = vec![(values[0].max(1.0), 0.0)];
        for (i, value) in values.iter().enumerate() {
            let (before, after) = (i as f64 / n, (i + 1) as f64 / n);
            points.extend([(value.max(1.0), before), (value.max(1.0), after)]);
        }
        chart.curve(&name, points);
    }
    any.then(|| chart.draw_file(SIZE).ok())?
}
