//! Tables in the terminal and in the report.

/// A heading, the width (negative: texts begin at the left), and a row's text.
pub type Column<T> = (&'static str, isize, fn(&T) -> String);

/// The headings, and a line for each row.
pub fn draw<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let line = |text: &dyn Fn(&Column<T>) -> String| {
        let cells = columns.iter().map(|column| match column.1 {
            width if width < 0 => format!("{:<1$}", text(column), width.unsigned_abs()),
            width => format!("{:>1$}", text(column), width.unsigned_abs()),
        });
        cells.collect::<Vec<_>>().join(" ") + "\n"
    };
    let rows = rows.iter().map(|row| line(&|column| (column.2)(row)));
    line(&|column| column.0.to_owned()) + &rows.collect::<String>()
}
