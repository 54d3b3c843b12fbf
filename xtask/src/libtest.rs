//! What a test harness prints, and the tests under it.

/// The rest of a line `SKIPPED NAME: REASON`. The harness's own "test NAME ... " may come before it.
pub fn skipped(line: &str) -> Option<&str> {
    line.split_once("SKIPPED ").map(|(_, rest)| rest)
}

/// Parses the numbers of tests that have passed and failed from the harness's closing line; `None` for another line.
pub fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, result) = line.split_once("test result: ")?;
    let number = |word: &str| {
        let before = result.split(word).next()?.trim().rsplit(' ').next()?;
        before.parse::<u64>().ok()
    };
    Some((number("passed").unwrap_or(0), number("failed").unwrap_or(0)))
}

/// The first panic: where, and the first line of what it said.
pub fn panic(output: &str) -> Option<String> {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("panicked at "));
    let (_, place) = lines.next()?.split_once("panicked at ")?;
    let said = lines.next().unwrap_or("");
    Some(format!("{place} {said}").trim().to_owned())
}
