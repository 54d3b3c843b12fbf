//! Words that were retired: each thing has one name, the one of the kernel, the kubelet or Prometheus.
//!
//! Identifiers and comments of Rust are checked, pages of the documentation, and the chart. String literals and code in a
//! page are not: they hold formats that users depend on.

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};
use walkdir::WalkDir;

use crate::prelude::*;

/// Retired words with what to write instead.
const RETIRED: [(&str, &str); 37] = [
    ("anybody", "the noun: any pod, any agent"),
    ("bell", "EventFd"),
    ("catalogue", "policy store"),
    ("clearance", "permit"),
    ("comeback", "recreation"),
    ("deputise", "take over"),
    ("deputised", "taken over"),
    ("deputy", "standby"),
    ("door", "the noun: how long no pod comes back"),
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
    ("ruling", "matched rules"),
    ("rung", "hook"),
    ("somebody", "the noun: a thread, a task"),
    ("standstill", "gap without samples"),
    ("stranger", "the noun: another server, another cgroup"),
    ("tripwire", "trigger"),
    ("undying", "held in exit"),
    ("unwritten", "dirty or under writeback"),
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
pub(super) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (directory, below, extensions) in PLACES {
        let depth = if below { usize::MAX } else { 1 };
        let walk = WalkDir::new(root.join(directory))
            .min_depth(1)
            .max_depth(depth);
        // But for what cargo has built.
        for entry in walk.into_iter().filter_entry(|e| e.file_name() != "target") {
            let entry = entry?;
            let path = entry.path();
            let extension = path.extension().and_then(|e| e.to_str());
            let Some(extension) = extension.filter(|e| extensions.contains(e)) else {
                continue;
            };
            if path.ends_with("lint/words.rs") {
                continue;
            }
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            for (line, word, instead) in retired(extension, &text) {
                found.push(format!("{shown}:{line}: `{word}` is retired: {instead}"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The retired words of a file with such a name: the line, the word, and what to write instead.
fn retired(extension: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let text = match extension {
        "rs" => names_and_comments(text),
        "md" => prose(text),
        _ => text.to_owned(),
    };
    let mut found = Vec::new();
    for (line, words) in (1..).zip(text.lines().map(words)) {
        let is_used = |(word, _): &(&str, &str)| words.iter().any(|w| is_form(w, word));
        let used = RETIRED.into_iter().filter(is_used);
        found.extend(used.map(|(word, instead)| (line, word, instead)));
    }
    found
}

/// Rust with all but its identifiers and comments blank.
fn names_and_comments(mut text: &str) -> String {
    let blank = |c| if c == '\n' { c } else { ' ' };
    let tokens = tokenize(text, FrontmatterAllowed::No);
    let kept = tokens.map(|token| {
        let (piece, rest) = text.split_at(token.len as usize);
        text = rest;
        match token.kind {
            TokenKind::Ident
            | TokenKind::LineComment { .. }
            | TokenKind::BlockComment { .. }
            | TokenKind::Lifetime { .. } => piece.to_owned(),
            _ => piece.chars().map(blank).collect(),
        }
    });
    kept.collect()
}

/// A page without its fenced blocks and spans of code.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let kept = page.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        let outside = line.split('`').step_by(2).filter(|_| !fenced && !is_fence);
        outside.collect::<Vec<_>>().join(" ") + "\n"
    });
    kept.collect()
}

/// Whether this is the word or its plural; a genitive's `s` is a word of its own.
fn is_form(word: &str, of: &str) -> bool {
    let plural = match of.strip_suffix('y') {
        Some(stem) => matches!(word.strip_prefix(stem), Some("ies" | "ys")),
        None => matches!(word.strip_prefix(of), Some("s" | "es")),
    };
    plural || word == of
}

/// The words of an identifier or a comment, in lower case: `FastPath` and `fast_path` have the same ones.
fn words(text: &str) -> Vec<String> {
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
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(extension: &str, text: &str) -> Vec<(usize, &'static str)> {
        let found = retired(extension, text).into_iter();
        found.map(|(line, word, _)| (line, word)).collect()
    }

    #[test]
    fn identifiers_and_comments_are_checked() {
        assert_eq!(
            found("rs", "// Nobody.\nstruct MyReflex;\nfn take_mailbox() {}\n"),
            [(1, "nobody"), (2, "reflex"), (3, "mailbox")]
        );
    }

    #[test]
    fn plurals_and_genitives_are_checked() {
        assert_eq!(
            found(
                "rs",
                "// The keeper's.\nfn nobodys_bells() {} // nobodies\nfn take_wishes() {}\n"
            ),
            [(1, "keeper"), (2, "bell"), (2, "nobody"), (3, "wish")]
        );
    }

    #[test]
    fn formats_and_parts_of_words_are_not() {
        let text = "const A: &str = \"reflex\"; // to wishbone\nlet bellows;";
        assert!(found("rs", text).is_empty());
    }

    #[test]
    fn code_in_a_page_is_not() {
        let page = "Nobody has\n`rung` two bells:\n\n```\nlet reflex\n```\nsomebody\n";
        assert_eq!(
            found("md", page),
            [(1, "nobody"), (2, "bell"), (7, "somebody")]
        );
    }
}
