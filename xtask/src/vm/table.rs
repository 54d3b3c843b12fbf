//! What came out: one row a test, one line a signal and hook, printed as tables.

use std::time::Duration;

use serde::Serialize;

use super::outcome::{MatrixRow, Outcome};

/// Everything that one run of the matrix found.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// A row for each kernel, cgroup version and test.
    pub rows: Vec<Row>,
    /// Rows that tests printed about signals and hooks.
    pub matrix: Vec<MatrixRow>,
    /// Each kernel with a cgroup version, and how long its boots and tests took.
    #[serde(skip)]
    pub machines: Vec<(String, Duration)>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub kernel: String,
    pub cgroup: String,
    pub test: String,
    pub outcome: Outcome,
    pub millis: u64,
}

impl Summary {
    /// A kernel, or a cgroup version on it, that is not tested or could not go on; and why.
    pub fn add_machine(&mut self, kernel: &str, cgroup: &str, outcome: Outcome) {
        println!("vm: kernel {kernel}, cgroup {cgroup}: {outcome}");
        self.rows.push(Row {
            kernel: kernel.to_owned(),
            cgroup: cgroup.to_owned(),
            test: "*".to_owned(),
            outcome,
            millis: 0,
        });
    }

    /// Adds what another machine has brought.
    pub fn merge(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.matrix.extend(other.matrix);
        self.machines.extend(other.machines);
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(&row.outcome)).count()
    }

    pub fn passed(&self) -> usize {
        self.count(|outcome| *outcome == Outcome::Passed)
    }

    /// Lists the tests that could not run, where, and why.
    pub fn skipped(&self) -> Vec<String> {
        let reason = |row: &Row| match &row.outcome {
            Outcome::Skipped(reason) => Some(format!(
                "kernel {} cgroup {} {}: {reason}",
                row.kernel, row.cgroup, row.test
            )),
            _ => None,
        };
        self.rows.iter().filter_map(reason).collect()
    }

    pub fn failures(&self) -> Vec<String> {
        let name = |row: &Row| format!("kernel {} cgroup {} {}", row.kernel, row.cgroup, row.test);
        let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_));
        self.rows.iter().filter(failed).map(name).collect()
    }

    pub fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// Prints the tables and the closing line.
    pub fn print(&self) {
        println!("\n{}", self.tests_table());
        if !self.matrix.is_empty() {
            println!("{}", self.matrix_table());
        }
        let passed = self.passed();
        let skipped = self.skipped().len();
        println!(
            "vm: {passed} passed, {} failed, {skipped} skipped",
            self.failed()
        );
    }

    fn tests_table(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let time = format!("{:.1} s", Duration::from_millis(row.millis).as_secs_f64());
            [
                row.kernel.clone(),
                row.cgroup.clone(),
                row.test.clone(),
                time,
                row.outcome.to_string(),
            ]
        });
        render(
            ["kernel", "cgroup", "test", "time", "result"],
            rows.collect(),
        )
    }

    fn matrix_table(&self) -> String {
        let rows = self.matrix.iter().map(|row| {
            [
                &row.kernel,
                &row.cgroup,
                &row.signal,
                &row.hook,
                &row.detail,
            ]
            .map(String::clone)
        });
        render(
            ["kernel", "cgroup", "signal", "hook", "detail"],
            rows.collect(),
        )
    }
}

/// A table that is plain text and Markdown in one. The last column, which holds sentences, is not padded.
pub fn render<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut widths = head.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row).take(N - 1) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule = widths.map(|width| "-".repeat(width));
    let mut table = line(head) + &line(rule.each_ref().map(String::as_str));
    for row in &rows {
        table += &line(row.each_ref().map(String::as_str));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let table = render(
            ["a", "bb"],
            vec![["xyz".into(), "1".into()], ["y".into(), "333".into()]],
        );
        assert_eq!(
            table,
            "| a   | bb |\n| --- | -- |\n| xyz | 1  |\n| y   | 333 |\n"
        );
    }
}
