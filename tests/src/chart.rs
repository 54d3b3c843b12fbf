//! Memory over time, drawn in the terminal.

use std::{fmt::Write as _, time::Duration};

const COLUMNS: usize = 72;
pub const ROWS: usize = 12;
const MIB: f64 = (1 << 20) as f64;
/// An eighth of a cell each.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the samples between the moment the memory starts to move and shortly after it has stopped to. `limit` is the
/// node's size, `threshold` the usage at which evictd acts, both in bytes.
pub fn draw(samples: &[(Duration, u64)], limit: u64, threshold: u64) -> String {
    let Some(window) = interesting(samples) else {
        return "  (nothing was recorded)\n".to_owned();
    };
    let (start, end) = (window[0].0, window[window.len() - 1].0);
    let span = (end - start).as_secs_f64().max(1e-6);
    let mut columns = [0_u64; COLUMNS];
    let mut last = window[0].1;
    for (i, column) in columns.iter_mut().enumerate() {
        let from = span * i as f64 / COLUMNS as f64;
        let to = span * (i + 1) as f64 / COLUMNS as f64;
        let inside = window
            .iter()
            .filter(|(t, _)| (from..to).contains(&(*t - start).as_secs_f64()));
        // A column without a sample of its own shows the one before.
        let peak = inside.map(|(_, usage)| *usage).max();
        last = peak.unwrap_or(last);
        *column = last;
    }
    let top = limit.max(columns.iter().copied().max().unwrap_or(0)) as f64;
    let row_of = |bytes: u64| ((bytes as f64 / top) * ROWS as f64).ceil() as usize;
    let (limit_row, threshold_row) = (row_of(limit), row_of(threshold));
    let mut text = String::new();
    for row in (1..=ROWS).rev() {
        let label = match row {
            r if r == limit_row => format!("{:6.0} MiB", limit as f64 / MIB),
            r if r == threshold_row => format!("{:6.0} MiB", threshold as f64 / MIB),
            _ => " ".repeat(10),
        };
        let name = match row {
            r if r == limit_row => " node is full",
            r if r == threshold_row => " threshold",
            _ => "",
        };
        let line: String = columns
            .iter()
            .map(|bytes| match cell(*bytes as f64 / top * ROWS as f64, row) {
                ' ' if row == limit_row => '─',
                ' ' if row == threshold_row => '┄',
                block => block,
            })
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {label} │{line}{name}");
    }
    let _ = writeln!(text, "             └{}", "─".repeat(COLUMNS));
    let _ = writeln!(
        text,
        "              0{:>width$.1} ms",
        span * 1000.0,
        width = COLUMNS - 4
    );
    text
}

/// The block for a row (from 1) of a bar so many rows high.
fn cell(height: f64, row: usize) -> char {
    let filled = ((height - (row - 1) as f64) * 8.0).round().clamp(0.0, 8.0);
    BLOCKS[filled as usize]
}

/// From a little before the first change to a little after the last one.
fn interesting(samples: &[(Duration, u64)]) -> Option<&[(Duration, u64)]> {
    const STILL: u64 = 1 << 20;
    let (_, first) = samples.first()?;
    let (_, last) = samples.last()?;
    let from = samples
        .iter()
        .position(|(_, u)| u.abs_diff(*first) > STILL)?;
    let to = samples
        .iter()
        .rposition(|(_, u)| u.abs_diff(*last) > STILL)?;
    let margin = (to.saturating_sub(from) / 8).max(2);
    let window = samples.get(from.saturating_sub(margin)..(to + margin).min(samples.len()))?;
    (window.len() >= 2).then_some(window)
}
