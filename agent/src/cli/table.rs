//! Tables of text for people, and amounts as people read them.

use evictd_engine::Resource;

/// A table whose columns are as wide as their widest cell.
#[derive(Debug)]
pub(super) struct Table {
    /// Whether a column is aligned to the right, as numbers are.
    right_aligned: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// A format's width has an end, and a finding may be longer.
fn pad(cell: &str, width: usize) -> String {
    " ".repeat(width.saturating_sub(cell.chars().count()))
}

impl Table {
    /// A table with these headings, with two spaces between them. A column of numbers has a `>` behind its heading: it is
    /// aligned to the right.
    pub(super) fn new(headings: &str) -> Self {
        let headings = headings.split("  ");
        let texts = headings
            .clone()
            .map(|heading| heading.trim_end_matches('>'));
        Self {
            right_aligned: headings.map(|heading| heading.ends_with('>')).collect(),
            rows: vec![texts.map(str::to_owned).collect()],
        }
    }

    /// Adds a row: as many cells as there are columns.
    pub(super) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into().into_iter();
        let one_line = |cell: String| printable(cell).replace(['\n', '\t'], " ");
        self.rows.push(cells.map(one_line).collect());
    }

    /// The table as lines of text.
    pub(super) fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right_aligned.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let columns = widths.iter().zip(&self.right_aligned);
            let cells = row.iter().zip(columns);
            let cells = cells.map(|(cell, (width, is_right))| match is_right {
                false => cell.clone() + &pad(cell, *width),
                true => pad(cell, *width) + cell,
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A cell for a value that may be absent.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A text for a terminal. Users of pods choose names of processes and messages: a control character in them is shown as
/// U+FFFD.
pub(super) fn printable(text: String) -> String {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(is_control) {
        true => text.replace(is_control, "\u{fffd}"),
        false => text,
    }
}

/// An amount of a resource: bytes, or a count.
pub(super) fn amount_of(resource: Resource, amount: i128) -> String {
    match resource {
        Resource::Memory | Resource::EphemeralStorage => bytes(amount),
        Resource::Inodes | Resource::Pids => amount.to_string(),
    }
}

/// Bytes with a binary suffix and one digit behind the point.
pub(super) fn bytes(amount: i128) -> String {
    const SUFFIXES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = amount as f64;
    let mut suffix = 0;
    while scaled.abs() >= 1024.0 && suffix + 1 < SUFFIXES.len() {
        scaled /= 1024.0;
        suffix += 1;
    }
    if suffix == 0 {
        format!("{amount} B")
    } else {
        format!("{scaled:.1} {}", SUFFIXES[suffix])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_reach_no_terminal() {
        let mut table = Table::new("COMM");
        table.row(["a\u{1b}[2Jb\nc\u{9b}d".to_owned()]);
        assert_eq!(table.render(), "COMM\na\u{fffd}[2Jb c\u{fffd}d\n");
        assert_eq!(printable("a\tb\r\n".to_owned()), "a\tb\u{fffd}\n");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("POD  USAGE>");
        table.row(["default/a".to_owned(), bytes(1536)]);
        table.row(["b".to_owned(), bytes(-3 << 30)]);
        assert_eq!(
            table.render(),
            "POD           USAGE\ndefault/a   1.5 KiB\nb          -3.0 GiB\n"
        );
    }
}
