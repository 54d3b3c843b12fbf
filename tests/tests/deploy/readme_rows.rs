//! The README's table of requirements: every row is there, and what is said to prove it exists.

use std::{collections::BTreeSet, path::Path};

/// Rows of the requirements.
const ROWS: std::ops::RangeInclusive<u32> = 1..=49;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Rows, and what proves them, of each line of the table.
fn table() -> Vec<(String, String)> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| rows | what | proven by |").unwrap();
    let lines = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rows, _, proof] = cells[..] else {
            panic!("three cells: {line}");
        };
        (rows.to_owned(), proof.to_owned())
    });
    cells.collect()
}

/// The numbers of `R3 to R5, R19`.
fn numbers(rows: &str) -> impl Iterator<Item = u32> {
    rows.split(", ").flat_map(|part| {
        let number = |row: &str| row.strip_prefix('R')?.parse::<u32>().ok();
        let range = match part.split_once(" to ") {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(part).zip(number(part)),
        };
        let (first, last) = range.unwrap_or_else(|| panic!("no row: {part}"));
        first..=last
    })
}

#[test]
fn every_row_is_there() {
    let told: BTreeSet<u32> = table().iter().flat_map(|(rows, _)| numbers(rows)).collect();
    assert_eq!(told, ROWS.collect());
}

#[test]
fn what_proves_a_row_exists() {
    for (rows, proof) in table() {
        let names: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{rows}");
        for name in names.iter().filter(|name| !name.starts_with("evictd ")) {
            let path = name.replace("::", "/");
            let places = [
                format!("tests/tests/{path}.rs"),
                format!("tests/tests/{path}/mod.rs"),
                path,
            ];
            let is_there = places.iter().any(|place| root().join(place).exists());
            assert!(is_there, "{rows}: {name}");
        }
    }
}
