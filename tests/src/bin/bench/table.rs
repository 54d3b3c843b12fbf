//! The race as a table in the terminal and in the report.

use std::fmt::Write as _;

use crate::{
    calm::Beside,
    columns::{self, Column},
    contender::Contender,
    rest::Resting,
    scope::{Line, Race},
    stats::{Distribution, median, or_dash},
};

const COLUMNS: [Column<Line>; 14] = [
    ("contender", -18, |l| l.contender.clone()),
    ("way", -10, |l| l.way.clone()),
    ("MB/s", 6, |l| speed(&l.way, l.rate)),
    ("runs", 5, |l| l.runs.to_string()),
    ("OOM", 4, |l| l.oom_kills.to_string()),
    ("floor", 5, |l| l.floor_kills.to_string()),
    ("right", 5, |l| l.right_pod.to_string()),
    ("died", 4, |l| l.contender_died.to_string()),
    ("overshoot KiB p50/max", 22, |l| {
        or_dash(l.overshoot_kib, |d| format!("{:.0} / {:.0}", d.p50, d.max))
    }),
    ("crossed->signalled us p50/p99/max", 34, |l| {
        let three = |d: Distribution| format!("{:.0} / {:.0} / {:.0}", d.p50, d.p99, d.max);
        or_dash(l.signalled_us, three)
    }),
    ("exited p50", 11, |l| median(l.exited_us)),
    ("freed p50", 10, |l| median(l.freed_us)),
    ("neigh p99", 9, |l| median(l.neighbour_p99_us)),
    ("CPU %", 6, |l| {
        or_dash(l.cpu_share, |d| format!("{:.1}", d.p50 * 100.0))
    }),
];

/// The rate of a course, or of all courses.
pub fn speed(way: &str, rate: u64) -> String {
    match (way, rate) {
        ("all", _) => "all".to_owned(),
        (_, 0) => "full".to_owned(),
        (_, rate) => rate.to_string(),
    }
}

/// A table of one line per contender and course.
pub fn draw(race: &Race) -> String {
    let mut text = race
        .load
        .map_or_else(String::new, |load| format!("\nWith {load}:\n"));
    text += &columns::draw(&COLUMNS, &race.results);
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
    let columns: [Column<Beside>; 5] = [
        ("the neighbour by", -18, |b| b.contender.clone()),
        ("page faults/s", 14, |b| {
            format!("{:.0}", b.faults_per_second)
        }),
        ("x without", 9, |b| ratio(b.fault_rate_ratio)),
        ("p99 us", 9, |b| format!("{:.0}", b.p99_us)),
        ("x without", 9, |b| ratio(b.p99_ratio)),
    ];
    let table = columns::draw(&columns, lines);
    let (head, rows) = table.split_once('\n').unwrap_or_default();
    format!("\n{head}   close to the threshold, no pod killed\n{rows}")
}

fn ratio(of: Option<f64>) -> String {
    or_dash(of, |of| format!("{of:.2}"))
}

pub fn rest(resting: &[Resting]) -> String {
    if resting.is_empty() {
        return String::new();
    }
    let columns: [Column<Resting>; 8] = [
        ("at rest", -18, |r| r.contender.clone()),
        ("setting", -26, |r| r.setting.clone()),
        ("CPU %", 8, |r| format!("{:.3}", r.cpu_percent)),
        ("RSS KiB", 9, |r| r.memory_kib.rss.to_string()),
        ("anon KiB", 9, |r| r.memory_kib.anonymous.to_string()),
        ("PSS KiB", 9, |r| r.memory_kib.pss.to_string()),
        ("VmLck KiB", 9, |r| r.memory_kib.locked.to_string()),
        ("threads", 8, |r| r.threads.to_string()),
    ];
    format!("\n{}", columns::draw(&columns, resting))
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
