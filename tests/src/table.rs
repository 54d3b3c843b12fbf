//! Tables in tests, a row a line.

use serde_json::Value;

/// The rows of a table, whose columns have ` | ` between them.
pub fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).map(|line| {
        let columns: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let columns = columns.try_into();
        columns.unwrap_or_else(|_| panic!("not {N} columns: {line}"))
    })
}

/// A value in a row: JSON, or YAML in one line.
pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}
