//! Where the time went: a table at the end of `cargo xtask test`.

use super::lanes::Durations;
use crate::{prelude::*, vm::render};

/// So many of a step's parts are named.
const NAMED: usize = 10;

/// Durations of the steps, and of the slowest parts of some.
pub struct Times {
    begin: Instant,
    lap: Instant,
    rows: Vec<[String; 2]>,
}

impl Times {
    pub fn start() -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            lap: now,
            rows: Vec::new(),
        }
    }

    /// Ends this step, of whose parts the slowest are shown, and begins the next.
    pub fn lap(&mut self, step: &str, mut parts: Durations) {
        let now = Instant::now();
        self.rows.push([step.to_owned(), seconds(now - self.lap)]);
        self.lap = now;
        parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let rows = parts.into_iter().take(NAMED);
        self.rows
            .extend(rows.map(|(part, took)| [format!("  {part}"), seconds(took)]));
    }

    /// Prints the table; the last row is all of it.
    pub fn print(mut self) {
        let all = ["all".to_owned(), seconds(self.begin.elapsed())];
        self.rows.push(all);
        print!(
            "\n{}",
            render(["where the time went", "seconds"], self.rows)
        );
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.1}", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_parts_follow_their_step() {
        let mut times = Times::start();
        let part = |n: u64| (format!("t{n}"), Duration::from_secs(n));
        times.lap("tests", (0..12).map(part).collect());
        let names: Vec<&str> = times.rows.iter().map(|[name, _]| &**name).collect();
        assert_eq!(names.len(), 1 + NAMED);
        assert_eq!(names[..3], ["tests", "  t11", "  t10"]);
        assert_eq!(times.rows[1][1], "11.0");
    }
}
