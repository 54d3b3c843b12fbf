//! `docs/requirements.md` names for each row the tests that prove it: those with the row's number in a comment, `// R12`.

use evictd_tests::{
    deploy::{checkout, files_below},
    prelude::*,
};

/// Rows of the requirements.
const ROWS: std::ops::RangeInclusive<u32> = 1..=49;

/// Where tests are, with the part of a path that their names leave out.
const PLACES: [(&str, &str); 2] = [("tests/tests", "tests/tests/"), ("agent", "")];

/// For each row the files with its tests, and the names of these; no name is the whole file.
type Proofs = BTreeMap<u32, BTreeMap<String, BTreeSet<String>>>;

/// The rows that a comment names: `R3`, `R4 to R11`.
fn rows(comment: &str) -> BTreeSet<u32> {
    let word = |word: &str| -> Option<u32> {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        word.strip_prefix('R')?.parse().ok()
    };
    let words: Vec<&str> = comment.split_whitespace().collect();
    let mut found: BTreeSet<u32> = words.iter().filter_map(|w| word(w)).collect();
    for range in words.windows(3).filter(|w| w[1] == "to") {
        if let (Some(first), Some(last)) = (word(range[0]), word(range[2])) {
            found.extend(first..=last);
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let name = line.strip_prefix("async ").unwrap_or(line);
    name.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn is_test(line: &str) -> bool {
    line.trim_start().starts_with("#[test]") || line.trim_start().starts_with("#[tokio::test")
}

/// Whether the function of this line has the attribute of a test, or is a row of `scenes!`.
fn is_test_function(lines: &[&str], at: usize) -> bool {
    let attributes = lines[..at].iter().rev();
    let mut attributes = attributes.take_while(|l| l.trim_start().starts_with(['#', '/']));
    lines[at].contains(" => ") || attributes.any(|l| is_test(l))
}

/// The test of the comment in this line: the function that follows, or the one around it.
fn test_of<'a>(lines: &[&'a str], at: usize) -> Option<&'a str> {
    let is_between = |l: &&str| l.trim_start().starts_with(['#', '/']);
    let next = at + lines[at..].iter().take_while(|l| is_between(l)).count();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let around = |i: &usize| function(lines[*i]).is_some() && indent(lines[*i]) < indent(lines[at]);
    let found = match lines.get(next).and_then(|l| function(l)) {
        Some(_) => next,
        None => (0..at).rev().find(around)?,
    };
    is_test_function(lines, found).then(|| function(lines[found]))?
}

fn collect(file: &str, text: &str, proofs: &mut Proofs) {
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            continue;
        };
        for row in rows(comment) {
            let of_row = proofs.entry(row).or_default();
            let tests = of_row.entry(file.to_owned()).or_default();
            if !comment.starts_with('!') {
                let test = test_of(&lines, at);
                let test = test.unwrap_or_else(|| panic!("{file}:{}: no test's comment", at + 1));
                tests.insert(test.to_owned());
            }
        }
    }
}

fn proofs() -> Proofs {
    let mut proofs = Proofs::new();
    for (place, _) in PLACES {
        let mut files = files_below(&checkout().join(place), "rs").unwrap();
        // Its comments say what a row's number looks like.
        files.retain(|f| !f.ends_with("requirements.rs"));
        for file in files {
            let name = file.strip_prefix(checkout()).unwrap().to_str().unwrap();
            collect(name, &fs::read_to_string(&file).unwrap(), &mut proofs);
        }
    }
    proofs
}

/// The last cell of a row.
fn cell(proofs: &BTreeMap<String, BTreeSet<String>>) -> String {
    let of_file = |(file, tests): (&String, &BTreeSet<String>)| {
        let left_out = PLACES.iter().find_map(|(_, left_out)| {
            let rest = file.strip_prefix(left_out)?;
            rest.strip_suffix(".rs")
        });
        let name = left_out.unwrap();
        let name = name.strip_suffix("/mod").unwrap_or(name);
        let tests: Vec<String> = tests.iter().map(|t| format!(" `{t}`")).collect();
        format!("[{name}](../{file}){}", tests.join(","))
    };
    let files: Vec<String> = proofs.iter().map(of_file).collect();
    files.join("; ")
}

/// The document with the tests that there are.
fn document(old: &str, proofs: &Proofs) -> String {
    let line = |line: &str| {
        let row = line.strip_prefix("| R").and_then(|l| l.split_once(" | "));
        let Some((number, rest)) = row else {
            return format!("{line}\n");
        };
        let requirement = rest.split(" | ").next().unwrap();
        let proofs = proofs.get(&number.parse().unwrap());
        let proofs = proofs.unwrap_or_else(|| panic!("R{number} has no test"));
        format!("| R{number} | {requirement} | {} |\n", cell(proofs))
    };
    old.lines().map(line).collect()
}

#[test]
fn the_document_has_every_row_and_its_tests() {
    let path = checkout().join("docs/requirements.md");
    let old = fs::read_to_string(&path).unwrap();
    let proofs = proofs();
    let numbers = old.lines().filter_map(|line| {
        let (number, _) = line.strip_prefix("| R")?.split_once(" |")?;
        number.parse::<u32>().ok()
    });
    assert!(numbers.eq(ROWS), "the document's rows");
    assert!(proofs.keys().all(|row| ROWS.contains(row)), "{proofs:?}");
    let new = document(&old, &proofs);
    if std::env::var_os("EVICTD_BLESS").is_some() {
        fs::write(&path, new).unwrap();
    } else {
        assert!(
            new == old,
            "docs/requirements.md differs from the tests' comments; EVICTD_BLESS=1 and this test write it anew"
        );
    }
}

#[test]
fn a_comment_belongs_to_the_test_below_it_or_around_it() {
    let text = "// R1, R3 to R5: it holds.\n#[test]\nfn first() {\n    // R9\n    let a = 1;\n}\n\
                scenes! {\n    // R7\n    fn second() unless why() => scene(1);\n}\n";
    let mut proofs = Proofs::new();
    collect("tests/tests/a.rs", text, &mut proofs);
    assert_eq!(
        proofs.keys().copied().collect::<Vec<_>>(),
        [1, 3, 4, 5, 7, 9]
    );
    assert_eq!(cell(&proofs[&7]), "[a](../tests/tests/a.rs) `second`");
    assert_eq!(cell(&proofs[&9]), "[a](../tests/tests/a.rs) `first`");
}

#[test]
#[should_panic(expected = "tests/tests/a.rs:1: no test's comment")]
fn a_comment_without_a_test_is_refused() {
    collect(
        "tests/tests/a.rs",
        "// R1\nfn helper() {}\n",
        &mut Proofs::new(),
    );
}

#[test]
#[should_panic(expected = "R2 has no test")]
fn a_row_without_a_test_is_refused() {
    document("| R2 | what | |\n", &Proofs::new());
}
