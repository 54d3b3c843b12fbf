//! Golden files: every form that evictd writes or shows, as it was when it was agreed to. What differs is a change of a
//! format; `EVICTD_BLESS=1` writes the files anew.

mod configuration;
mod daemon;
mod journal;
mod shown;
mod state;
mod values;

use evictd_tests::prelude::*;

/// Where a golden file is.
fn path(name: &str) -> PathBuf {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/files");
    PathBuf::from(here).join(name)
}

/// The text of a golden file.
fn golden(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Compares with the golden file, or writes it.
fn check(name: &str, text: &str) {
    if std::env::var_os("EVICTD_BLESS").is_some_and(|v| v == "1") {
        return fs::write(path(name), text).unwrap();
    }
    if let Some(difference) = difference(&golden(name), text) {
        panic!("{name}, line {difference}\nEVICTD_BLESS=1 accepts this form");
    }
}

/// The first line that differs, with its number.
fn difference(golden: &str, text: &str) -> Option<String> {
    let (mut old, mut new) = (golden.lines(), text.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                let shown = |line: Option<&str>| line.unwrap_or("(end of the file)").to_owned();
                let (old, new) = (shown(old), shown(new));
                return Some(format!("{number}:\n  golden: {old}\n  now:    {new}"));
            }
        }
    }
    // Line ends are part of a form.
    (golden != text).then(|| "ends: differ".to_owned())
}

#[test]
fn the_line_that_differs_is_named() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let changed = difference("a\nb\n", "a\nc\n").unwrap();
    assert_eq!(changed, "2:\n  golden: b\n  now:    c");
    let longer = difference("a\n", "a\nb\n").unwrap();
    assert_eq!(longer, "2:\n  golden: (end of the file)\n  now:    b");
    assert_eq!(difference("a\n", "a").unwrap(), "ends: differ");
}
