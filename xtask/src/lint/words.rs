//! Words that were retired: each thing has one name, the one of the kernel, the kubelet or Prometheus.
//!
//! Identifiers and comments of Rust are checked, pages of the documentation, and the chart. String literals and code in a
//! page are not: they hold formats that users depend on.

use std::path::Path;

use anyhow::Context as _;
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// Retired words with what to write instead.
const RETIRED: [(&str, &str); 31] = [
    ("anybody", "the noun: any pod, any agent"),
    ("bell", "EventFd"),
    ("catalogue", "policy store"),
    ("clearance", "permit"),
    ("deputise", "take over"),
    ("deputised", "taken over"),
    ("deputy", "standby"),
    ("errand", "scan target"),
    ("everybody", "the noun: all pods"),
    ("handover", "SwapSlot"),
    ("herself", "the noun"),
    ("himself", "the noun"),
    ("inbox", "command queue"),
    ("keeper", "the noun: the evaluator, the store"),
    ("mailbox", "control"),
    ("nobody", "the noun: no pod, no thread"),
    ("outbox", "event queue"),
    ("reflex", "fast path"),
    ("registrar", "notifier"),
    ("rehearse", "warm up"),
    ("restraint", "limiter"),
    ("roster", "pod store"),
    ("rung", "hook"),
    ("somebody", "the noun: a thread, a task"),
    ("stranger", "the noun: another server, another cgroup"),
    ("tripwire", "trigger"),
    ("walker", "disk scanner"),
    ("whoever", "the noun: the thread, the caller"),
    ("whom", "the noun"),
    ("waker", "wake thread"),
    ("wish", "action"),
];

/// What is read: the directory, whether those below it as well, and the ends of names. Decisions and results are history.
const PLACES: [(&str, bool, &[&str]); 8] = [
    ("agent", true, &["rs"]),
    ("common", true, &["rs"]),
    ("ebpf", true, &["rs"]),
    ("tests", true, &["rs"]),
    ("xtask", true, &["rs"]),
    ("docs", false, &["md"]),
    ("deploy/chart", true, &["yaml", "tpl"]),
    (".", false, &["md"]),
];

/// The retired words of all places, with the lines they stand in.
pub(super) fn violations(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for (directory, below, extensions) in PLACES {
        files(&root.join(directory), below, &mut |path| {
            let extension = path.extension().and_then(|e| e.to_str());
            let Some(extension) = extension.filter(|e| extensions.contains(e)) else {
                return Ok(());
            };
            if path.ends_with("lint/words.rs") {
                return Ok(());
            }
            let read = match extension {
                "rs" => in_source,
                "md" => in_page,
                _ => in_text,
            };
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            found.extend(read(&text).into_iter().map(|(line, word, instead)| {
                format!("{shown}:{line}: `{word}` is retired: {instead}")
            }));
            Ok(())
        })?;
    }
    found.sort();
    Ok(found)
}

/// A line, the retired word in it, and what to write instead.
type Found = (usize, &'static str, &'static str);

/// Calls back for each file of a directory, and of those below it but for what cargo has built.
fn files(
    directory: &Path,
    below: bool,
    visit: &mut impl FnMut(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if !path.is_dir() {
            visit(&path)?;
        } else if below && !path.ends_with("target") {
            files(&path, below, visit)?;
        }
    }
    Ok(())
}

/// The retired words of Rust's identifiers and comments.
fn in_source(text: &str) -> Vec<Found> {
    let (mut at, mut line) = (0, 1);
    let mut found = Vec::new();
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let piece = text.get(at..end).unwrap_or_default();
        at = end;
        if let TokenKind::Ident
        | TokenKind::LineComment { .. }
        | TokenKind::BlockComment { .. }
        | TokenKind::Lifetime { .. } = token.kind
        {
            found.extend(retired(piece, line));
        }
        line += piece.matches('\n').count();
    }
    found
}

/// Those of each line.
fn in_text(text: &str) -> Vec<Found> {
    let lines = text.lines().zip(1..);
    lines.flat_map(|(line, at)| retired(line, at)).collect()
}

/// Those of a page's prose: of no fenced block, and of no span of code.
fn in_page(text: &str) -> Vec<Found> {
    let mut fenced = false;
    let prose = text.lines().zip(1..).filter(|(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    });
    let of_line = |(line, at): (&str, usize)| {
        let outside: Vec<&str> = line.split('`').step_by(2).collect();
        retired(&outside.join(" "), at)
    };
    prose.flat_map(of_line).collect()
}

/// The retired words of one piece of text, which begins at this line.
fn retired(text: &str, line: usize) -> Vec<Found> {
    let words: Vec<String> = words(text).collect();
    let is_used = |(word, _): &&(&str, &str)| words.iter().any(|w| is_form(w, word));
    let used = RETIRED.iter().filter(is_used);
    used.map(|(word, instead)| (line, *word, *instead))
        .collect()
}

/// Whether this is the word or its plural; a genitive's `s` is a word of its own.
fn is_form(word: &str, of: &str) -> bool {
    let plural = match of.strip_suffix('y') {
        Some(stem) => word.strip_prefix(stem) == Some("ies"),
        None => matches!(word.strip_prefix(of), Some("s" | "es")),
    };
    plural || word == of
}

/// The words of an identifier or a comment, in lower case: `FastPath` and `fast_path` have the same ones.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::with_capacity(text.len() * 2);
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            spaced.push(' ');
        }
        was_lower = c.is_lowercase();
        if c.is_alphanumeric() {
            spaced.extend(c.to_lowercase());
        }
    }
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(read: fn(&str) -> Vec<Found>, text: &str) -> Vec<(usize, &str)> {
        let found = read(text).into_iter();
        found.map(|(line, word, _)| (line, word)).collect()
    }

    #[test]
    fn identifiers_and_comments_are_checked() {
        assert_eq!(
            found(
                in_source,
                "// Nobody.\nstruct MyReflex;\nfn take_mailbox() {}\n"
            ),
            [(1, "nobody"), (2, "reflex"), (3, "mailbox")]
        );
    }

    #[test]
    fn plurals_and_genitives_are_checked() {
        assert_eq!(
            found(
                in_source,
                "// The keeper's.\nlet bells; // nobodies\nfn take_wishes() {}\n"
            ),
            [(1, "keeper"), (2, "bell"), (2, "nobody"), (3, "wish")]
        );
    }

    #[test]
    fn formats_and_parts_of_words_are_not() {
        let text = "const A: &str = \"reflex\"; // to wishbone\nlet bellows;";
        assert!(found(in_source, text).is_empty());
    }

    #[test]
    fn code_in_a_page_is_not() {
        let page = "Nobody has\n`rung` two bells:\n\n```\nlet reflex\n```\nsomebody\n";
        assert_eq!(
            found(in_page, page),
            [(1, "nobody"), (2, "bell"), (7, "somebody")]
        );
    }
}
