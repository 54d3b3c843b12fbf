//! Words that were retired: each thing has one name, the one of the kernel, the kubelet or Prometheus.
//!
//! Identifiers and comments are checked. String literals are not: they hold formats that users depend on.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// Retired words with what to write instead.
const RETIRED: [(&str, &str); 26] = [
    ("anybody", "the noun: any pod, any agent"),
    ("bell", "EventFd"),
    ("catalogue", "policy store"),
    ("clearance", "permit"),
    ("deputy", "standby"),
    ("errand", "scan target"),
    ("everybody", "the noun: all pods"),
    ("handover", "SwapSlot"),
    ("herself", "the noun"),
    ("himself", "the noun"),
    ("inbox", "command queue"),
    ("mailbox", "control"),
    ("nobody", "the noun: no pod, no thread"),
    ("outbox", "event queue"),
    ("reflex", "fast path"),
    ("registrar", "notifier"),
    ("rehearse", "warm up"),
    ("restraint", "limiter"),
    ("roster", "pod store"),
    ("somebody", "the noun: a thread, a task"),
    ("tripwire", "trigger"),
    ("walker", "disk scanner"),
    ("whoever", "the noun: the thread, the caller"),
    ("whom", "the noun"),
    ("waker", "wake thread"),
    ("wish", "action"),
];

/// The retired words in Rust sources, with their places.
pub(super) fn violations(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for directory in ["agent", "common", "ebpf", "tests", "xtask"] {
        sources(&root.join(directory), &mut |path| {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            found.extend(retired(&text).map(|(line, word, instead)| {
                format!("{shown}:{line}: `{word}` is retired: {instead}")
            }));
            Ok(())
        })?;
    }
    found.sort();
    Ok(found)
}

/// Calls back for each Rust source below a directory, but for this list of words and what cargo has built.
fn sources(
    directory: &Path,
    visit: &mut impl FnMut(&PathBuf) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, visit)?;
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("lint/words.rs") {
            visit(&path)?;
        }
    }
    Ok(())
}

/// The retired words of a source with the lines they stand in.
fn retired(text: &str) -> impl Iterator<Item = (usize, &'static str, &'static str)> {
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
            let words: Vec<String> = words(piece).collect();
            let is_used = |(word, _): &&(&str, &str)| words.iter().any(|w| w == word);
            found.extend(RETIRED.iter().filter(is_used).map(|(w, i)| (line, *w, *i)));
        }
        line += piece.matches('\n').count();
    }
    found.into_iter()
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

    fn found(text: &str) -> Vec<(usize, &str)> {
        retired(text).map(|(line, word, _)| (line, word)).collect()
    }

    #[test]
    fn identifiers_and_comments_are_checked() {
        assert_eq!(
            found("// Nobody.\nstruct MyReflex;\nfn take_mailbox() {}\n"),
            [(1, "nobody"), (2, "reflex"), (3, "mailbox")]
        );
    }

    #[test]
    fn formats_and_parts_of_words_are_not() {
        assert!(found("const A: &str = \"reflex\"; // to wishbone\nlet bells;").is_empty());
    }
}
