//! The documents: `docs/SUMMARY.md` lists every page, and every relative link leads to a file and a heading that are there.

use evictd_tests::{
    deploy::{checkout, files_below},
    prelude::*,
};
use mdbook_driver::MDBook;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Documents outside of `docs`.
const OTHERS: [&str; 4] = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
];

/// What the links and pictures of a page name.
fn links(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url),
        _ => None,
    };
    let targets = Parser::new(text).filter_map(target);
    targets.map(|target| target.to_string()).collect()
}

/// The fragment of a heading, as GitHub makes it.
fn slug(heading: &str) -> String {
    let text = heading.trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The fragments of a page: of headings that are the same, the second one has `-1` behind it.
fn fragments(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut found = BTreeSet::new();
    let mut heading = None;
    for event in Parser::new(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(heading)) => heading.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(whole)) => {
                let slug = slug(whole);
                heading = None;
                let count = counts.entry(slug.clone()).or_default();
                found.insert(match *count {
                    0 => slug,
                    count => format!("{slug}-{count}"),
                });
                *count += 1;
            }
            _ => {}
        }
    }
    found
}

/// The pages of `docs`, and the others.
fn pages() -> BTreeSet<PathBuf> {
    let mut files = files_below(&checkout().join("docs"), "md").unwrap();
    files.extend(OTHERS.iter().map(|name| checkout().join(name)));
    files
}

#[test]
fn the_summary_lists_every_page() {
    let docs = checkout().join("docs");
    let summary = docs.join("SUMMARY.md");
    let mut there = files_below(&docs, "md").unwrap();
    there.remove(&summary);
    let text = fs::read_to_string(&summary).unwrap();
    let links = links(&text);
    let listed: BTreeSet<PathBuf> = links.iter().map(|link| docs.join(link)).collect();
    assert_eq!(listed.len(), links.len(), "a page is listed twice");
    assert_eq!(listed, there);
}

#[test]
fn every_relative_link_leads_to_something() {
    let mut wrong = Vec::new();
    for file in &pages() {
        let text = fs::read_to_string(file).unwrap();
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let is_there = match fragment {
                "" => target.exists(),
                fragment => {
                    let text = fs::read_to_string(&target).unwrap_or_default();
                    fragments(&text).contains(fragment)
                }
            };
            if !is_there {
                wrong.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The commands of a page that begin with `helm`, in its text and in its examples.
fn helm_commands(text: &str) -> Vec<&str> {
    let commands = text.lines().flat_map(|line| {
        let starts = line.match_indices("helm ").filter(|(at, _)| {
            let before = line[..*at].chars().next_back();
            before.is_none_or(|c| c == '`' || c == ' ')
        });
        starts.map(|(at, _)| line[at..].split(['`', '#', ';', '|', '&']).next().unwrap())
    });
    commands.collect()
}

/// Helm looks in the context's namespace, in which evictd's release is not.
#[test]
fn helm_is_told_the_namespace_of_the_release() {
    let mut named = 0;
    for file in &pages() {
        for command in helm_commands(&fs::read_to_string(file).unwrap()) {
            let words: Vec<&str> = command.split_whitespace().collect();
            if !words.contains(&"evictd") {
                continue;
            }
            named += 1;
            let has_namespace = words
                .windows(2)
                .any(|w| ["-n", "--namespace"].contains(&w[0]) && w[1] == "evictd");
            assert!(has_namespace, "{}: {command}", file.display());
        }
    }
    assert!(named > 5, "{named}");
}

/// The messages that a page has readers look for in the log are in the code.
#[test]
fn log_messages_are_the_codes() {
    let page = fs::read_to_string(checkout().join("docs/records.md")).unwrap();
    let (_, table) = page.split_once("| level | `message` begins with").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let messages = table
        .lines()
        .skip(2)
        .map(|row| row.split('`').nth(1).unwrap());
    let sources = files_below(&checkout().join("agent"), "rs").unwrap();
    let code: String = sources
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let missing: Vec<&str> = messages.filter(|message| !code.contains(message)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The file that a page calls by its path or, for integration tests, by its module; `None`: these words are no file.
fn test_file(words: &str) -> Option<PathBuf> {
    if words.ends_with(".rs") {
        return Some(checkout().join(words));
    }
    let (program, module) = words.split_once("::")?;
    let below = checkout().join("tests/tests").join(program);
    let files = [format!("{module}.rs"), format!("{module}/mod.rs")];
    let files = files.map(|file| below.join(file));
    files
        .iter()
        .find(|file| file.exists())
        .or(files.first())
        .cloned()
}

/// Counts the tests that a page names, and finds those that are not in the file that is said before them, or in the page's own.
fn named_tests(page: &str, own: &[PathBuf]) -> (usize, Vec<String>) {
    let page = fs::read_to_string(checkout().join(page)).unwrap();
    let (mut files, mut wrong, mut tests) = (own.to_vec(), Vec::new(), 0);
    let mut parts = page.split('`');
    while let (Some(between), Some(words)) = (parts.next(), parts.next()) {
        // A list goes on.
        if ![":", ","].contains(&between.trim()) {
            files = own.to_vec();
        }
        let is_test = words.matches('_').count() > 3 && !words.starts_with("evictd_");
        let is_there = match test_file(words) {
            Some(file) => {
                files = vec![file];
                files[0].exists()
            }
            None if is_test => {
                tests += 1;
                let text = |file| fs::read_to_string(file).unwrap_or_default();
                let named = format!("fn {words}(");
                files.iter().any(|file| text(file).contains(&named))
            }
            None => true,
        };
        if !is_there {
            wrong.push(words.to_owned());
        }
    }
    (tests, wrong)
}

#[test]
fn the_tests_that_pages_name_are_where_the_page_says() {
    let own = ["conformance::victims", "conformance::beyond"].map(|own| test_file(own).unwrap());
    let (tests, wrong) = named_tests("docs/differences.md", &own);
    assert!(wrong.is_empty() && tests > 50, "{tests} {wrong:#?}");
    let (tests, wrong) = named_tests("docs/decisions/0039-pace-reviews.md", &[]);
    assert!(wrong.is_empty() && tests > 100, "{tests} {wrong:#?}");
}

/// An agent that the rollback has not reached evicts as before: the pause must outlast it.
#[test]
fn a_pause_is_removed_after_the_rollback_has_reached_all() {
    let runbook = fs::read_to_string(checkout().join("docs/runbook.md")).unwrap();
    let (_, section) = runbook.split_once("## EvictdManyNodesEvict\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut rest = section;
    for step in [
        "pause all agents",
        "helm -n evictd rollback evictd",
        "kubectl -n evictd rollout status daemonset/",
        "kubectl -n evictd delete configmap evictd-pause",
    ] {
        let (_, after) = rest.split_once(step).unwrap_or_else(|| panic!("{step}"));
        rest = after;
    }
}

/// What the links of a built page name.
fn hrefs(page: &str) -> Vec<String> {
    let targets = page.split("href=\"").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once('"'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn the_book_is_built_and_its_links_lead_to_something() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = MDBook::load(checkout()).unwrap();
    book.config.build.build_dir = dir.path().into();
    book.build().unwrap();
    let pages = files_below(dir.path(), "html").unwrap();
    assert!(pages.len() > files_below(&checkout().join("docs"), "md").unwrap().len());
    let mut wrong = Vec::new();
    for page in &pages {
        let directory = page.parent().unwrap();
        let depth = directory.strip_prefix(dir.path()).unwrap().components();
        let above = "../".repeat(depth.count() + 1);
        for link in hrefs(&fs::read_to_string(page).unwrap()) {
            let path = link.split(['#', '?']).next().unwrap_or_default();
            // Files of the checkout, which the pages on their own lead to.
            let is_outside = link.contains(':') || path.starts_with(&above);
            if !(is_outside || path.is_empty() || directory.join(path).exists()) {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn headings_have_the_fragments_that_github_gives_them() {
    let text =
        "# A page\n## `kernelFloor`, and what it does\n## A page\n```\n# no heading\n```\n#none\n";
    let expected = ["a-page", "a-page-1", "kernelfloor-and-what-it-does"];
    assert_eq!(fragments(text), BTreeSet::from(expected.map(str::to_owned)));
}

#[test]
fn code_has_no_links() {
    let text = "See [`a`](a.md#b) and `[c](c.md)`.\n```\n[d](d.md)\n```\n";
    assert_eq!(links(text), ["a.md#b"]);
}
