//! `cargo xtask vm facts`: asks each kernel what it has, and prints the answers side by side as Markdown.

use super::{MachineOptions, protocol::Status, run_one, table::render};
use crate::prelude::*;

const SCRIPT: &str = include_str!("facts.sh");
/// The prototypes are read out of all of BTF by an interpreter under emulation.
const TIMEOUT: u64 = 900;

/// Facts in the order in which they came, each with one value for each kernel.
type Facts = Vec<(String, Vec<String>)>;

/// Prints the facts of the given kernels.
pub fn print(kernels: &[&str], machine: &MachineOptions) -> Result<()> {
    let mut sections = Vec::new();
    for (column, kernel) in kernels.iter().enumerate() {
        eprintln!("vm: asking {kernel}");
        let command = ["sh", "-c", SCRIPT].map(str::to_owned).into();
        let mut output = Vec::new();
        let status = run_one(kernel, machine, TIMEOUT, command, |bytes| {
            output.extend_from_slice(bytes)
        })?;
        ensure!(
            status == Status::Exited(0),
            "kernel {kernel}: {status:?}: {}",
            String::from_utf8_lossy(&output)
        );
        add(&mut sections, column, &String::from_utf8_lossy(&output));
    }
    for (title, facts) in &sections {
        println!("### {title}\n\n{}", markdown(facts, kernels));
    }
    Ok(())
}

/// Adds one kernel's answers as the column of that number. What a kernel does not mention is left empty.
fn add(sections: &mut Vec<(String, Facts)>, column: usize, output: &str) {
    let mut title = "";
    for line in output.lines() {
        if let Some(next) = line.strip_prefix("## ") {
            title = next;
        } else if let Some((name, value)) = line.split_once('\t') {
            let cells = named(named(sections, title), name);
            cells.resize(column, String::new());
            cells.push(value.trim().to_owned());
        }
    }
}

/// The entry of this name, which is added where it is not there.
fn named<'a, T: Default>(list: &'a mut Vec<(String, T)>, name: &str) -> &'a mut T {
    let at = list.iter().position(|(known, _)| known == name);
    let at = at.unwrap_or_else(|| {
        list.push((name.to_owned(), T::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Values that are the same on all kernels are given once; long ones become a table row each.
fn markdown(facts: &Facts, kernels: &[&str]) -> String {
    let rows = facts.iter().flat_map(|(name, values)| {
        let mut runs: Vec<(usize, usize, &str)> = Vec::new();
        for (column, value) in values.iter().enumerate() {
            match runs.last_mut() {
                Some((_, last, same)) if *same == value => *last = column,
                _ => runs.push((column, column, value)),
            }
        }
        let mut name = name.as_str();
        runs.into_iter()
            .map(|(first, last, value)| {
                let which = match (first, last) {
                    (0, last) if last + 1 == kernels.len() => "all".to_owned(),
                    _ if first == last => kernels[first].to_owned(),
                    _ => format!("{} to {}", kernels[first], kernels[last]),
                };
                // The name stands in the first row of several only.
                [
                    std::mem::take(&mut name).to_owned(),
                    which,
                    value.to_owned(),
                ]
            })
            .collect::<Vec<_>>()
    });
    render(["fact", "kernels", "value"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_stand_side_by_side_and_equal_ones_once() {
        let mut sections = Vec::new();
        add(&mut sections, 0, "## A\nx\t1\ny\t-\n");
        add(&mut sections, 1, "## A\nx\t1\ny\t2 3 \n## B\nz\t4\n");
        assert_eq!(sections.len(), 2);
        assert_eq!(
            markdown(&sections[0].1, &["5.10", "6.1"]),
            "| fact | kernels | value |\n| ---- | ------- | ----- |\n| x    | all     | 1     |\n\
             | y    | 5.10    | -     |\n|      | 6.1     | 2 3   |\n"
        );
        assert_eq!(
            sections[1].1,
            [("z".to_owned(), vec![String::new(), "4".to_owned()])]
        );
    }
}
