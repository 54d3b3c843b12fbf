//! What a program or the kernel has said.

/// Asserts that the text has all of these parts.
#[track_caller]
pub fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Asserts that the text begins so.
#[track_caller]
pub fn begins(text: &str, expected: &str) {
    assert!(text.starts_with(expected), "{text}: not {expected}");
}

/// The number behind a name, in a text that has a line for each name.
pub fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '\t']))?;
    rest.split_whitespace().next()?.parse().ok()
}
