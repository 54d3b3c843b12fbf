//! What people and programs read: the command line's help, `evictd check`, metrics of evictions, the chart of the demo.

use std::fmt::Write as _;

use evictd::{
    check::{Check, Finding, Refused, SignalHook, State},
    telemetry::{MetricsCollector, MetricsRegistry},
};
use evictd_engine::record::{KillOutcome, Stages};
use evictd_tests::{chart, prelude::*, vectors::evictd};

use super::{check, golden};

/// Standard output of a command line.
fn said(arguments: &[&str]) -> String {
    let outcome = evictd(arguments);
    // `check` ends with 1 on a machine that cannot do all.
    assert!(outcome.code < 2, "{arguments:?}");
    outcome.stdout
}

/// The help of a command and of all below it.
fn help(command: &mut Vec<String>, all: &mut String) {
    let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
    let text = said(&[&arguments[..], &["--help"]].concat());
    writeln!(all, "$ evictd {} --help\n{text}", command.join(" ")).unwrap();
    let Some((_, below)) = text.split_once("\nCommands:\n") else {
        return;
    };
    for line in below.lines().take_while(|line| !line.is_empty()) {
        // Descriptions go on further to the right.
        let name = line.strip_prefix("  ").filter(|l| !l.starts_with(' '));
        let name = name.and_then(|l| l.split_whitespace().next());
        if let Some(name) = name.filter(|name| *name != "help") {
            command.push(name.to_owned());
            help(command, all);
            command.pop();
        }
    }
}

#[test]
fn the_command_line_is_as_ever() {
    let mut all = String::new();
    help(&mut Vec::new(), &mut all);
    for command in ["run", "check", "policy check", "replay"] {
        has(&all, &[&format!("$ evictd {command} --help\n")]);
    }
    check("help.txt", &all);
}

/// Paths of all fields, those of lists as one.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                keys(value, &format!("{path}.{name}"), found);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| keys(item, &format!("{path}[]"), found)),
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn check_has_the_keys_it_has_ever_had() {
    let hook = |is_full: bool| SignalHook {
        signal: "nodefs.available",
        hook: is_full.then(|| "sampler".into()),
        detail: is_full.then(|| "ext4 at /".into()),
        refused: vec![Refused {
            hook: "fexit".into(),
            reason: "no BTF".into(),
        }],
    };
    let finding = |state| Finding {
        topic: "eBPF",
        state,
        detail: "the object loads".into(),
    };
    let all = Check {
        usable: true,
        kernel: "6.12.1".into(),
        signals: vec![hook(true), hook(false)],
        findings: [State::Ok, State::Degraded, State::Missing]
            .map(finding)
            .to_vec(),
    };
    let text = serde_json::to_string_pretty(&all).unwrap() + "\n";
    check("check.json", &text);
    let (mut golden, mut here) = (BTreeSet::new(), BTreeSet::new());
    keys(&serde_json::from_str(&text).unwrap(), "", &mut golden);
    let said = said(&["check", "-o", "json"]);
    keys(&serde_json::from_str(&said).unwrap(), "", &mut here);
    assert!(here.is_subset(&golden), "{here:?}");
}

/// The series in order, without numbers but for the bounds of histograms. Signals with their hooks and rates depend on the
/// machine and its kernel.
pub fn series(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: BTreeSet<String> = lines
        .filter(|line| !line.starts_with("evictd_until_"))
        .map(|line| {
            let (name, _) = line.rsplit_once(' ').unwrap();
            let blank = |series: String, label: &&str| blank(&series, label);
            ["rung", "hook", "signal", "node"]
                .iter()
                .fold(name.to_owned(), blank)
        })
        .collect();
    in_order(names)
}

/// Names, types and help of all families, in order.
pub fn families(text: &str) -> String {
    in_order(
        text.lines()
            .filter(|l| l.starts_with('#'))
            .map(str::to_owned)
            .collect(),
    )
}

fn in_order(lines: BTreeSet<String>) -> String {
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The series without this label's value.
fn blank(series: &str, label: &str) -> String {
    let begin = format!("{label}=\"");
    match series.split_once(&begin) {
        Some((before, rest)) => {
            let after = rest.split_once('"').map_or("", |(_, after)| after);
            format!("{before}{begin}...\"{after}")
        }
        None => series.to_owned(),
    }
}

#[test]
fn metrics_of_evictions_are_as_ever() {
    let metrics = MetricsRegistry::new(MetricsCollector::default());
    let stages = Stages {
        crossed: 1,
        woken: 2,
        decided: 3,
        signalled: 4,
    };
    let (pod, signal) = (Pod::default(), "memory.available");
    metrics.evicted(&pod, signal, stages, KillOutcome::Killed, None);
    let text = metrics.exposition().unwrap();
    let shown = families(&text) + &series(&text);
    check("metrics-of-evictions.txt", &shown);
}

/// The page names no metric that an agent does not show; the reference has them all.
#[test]
fn the_page_of_metrics_names_no_other_metric() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '*');
    let in_code = page.split('`').skip(1).step_by(2);
    let named = in_code.filter_map(|code| {
        let end = code.find(|c| !word(c)).unwrap_or(code.len());
        let is_metric = ["evictd_", "process_"].iter().any(|p| code.starts_with(p));
        is_metric.then_some(&code[..end])
    });
    let named: BTreeSet<&str> = named.collect();
    let text = golden("metrics.txt") + &golden("metrics-of-evictions.txt");
    let families = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let is_bare = kind == "counter" && !name.ends_with("_total");
        Some(if is_bare {
            format!("{name}_total")
        } else {
            name.to_owned()
        })
    });
    let families: BTreeSet<String> = families.collect();
    let is_of = |name: &str, family: &str| match name.strip_suffix('*') {
        Some(prefix) => family.starts_with(prefix),
        None => name == family,
    };
    let gone = named
        .iter()
        .filter(|n| !families.iter().any(|f| is_of(n, f)));
    let gone: Vec<_> = gone.collect();
    assert!(named.len() > 40 && gone.is_empty(), "{gone:?}");
}

/// Series that an agent at rest does not have.
const NOT_AT_REST: &str = "\
evictd_policy_conflicts{rules=\"...\"}
evictd_policy_contradictions{rules=\"...\"}
evictd_until_exhausted_seconds{signal=\"...\"}
evictd_until_threshold_seconds{signal=\"...\"}
";

/// What the code says of each metric, beside the page for people.
#[test]
fn the_reference_of_metrics_is_the_codes() {
    let text = golden("metrics.txt") + &golden("metrics-of-evictions.txt");
    let series = golden("metrics-series.txt") + &text + NOT_AT_REST;
    let meta = |keyword: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix(keyword)?.trim_start().split_once(' ')?;
            Some((name.trim_end_matches("_total").to_owned(), rest.to_owned()))
        });
        lines.collect()
    };
    let (helps, kinds) = (meta("# HELP"), meta("# TYPE"));
    let labels_of = |name: &str| -> BTreeSet<&str> {
        let of_it = series.lines().filter_map(|line| {
            let (of, labels) = line.split_once('{')?;
            let is_it = of
                .strip_prefix(name)
                .is_some_and(|rest| ["", "_total", "_bucket", "_sum", "_count"].contains(&rest));
            is_it.then_some(labels)
        });
        let names = of_it.flat_map(|labels| labels.split(',').filter_map(|l| l.split_once("=\"")));
        names
            .map(|(label, _)| label)
            .filter(|l| *l != "le")
            .collect()
    };
    let mut page = String::from(
        "# Metrics, as the code has them\n\nMade by the tests from what an agent serves: names, types, labels and the texts of `# HELP`. \
         [metrics.md](metrics.md) says how\nto read them; `Deprecated:` begins the text of a former name.\n\n\
         | metric | type | labels | what it is |\n| --- | --- | --- | --- |\n",
    );
    for (name, kind) in &kinds {
        let names = labels_of(name);
        let help = helps.get(name).map_or("", |help| help.as_str());
        // The label names in it are code.
        let as_code = |word: &str| match names.contains(word) {
            true => format!("`{word}`"),
            false => word.to_owned(),
        };
        let help: Vec<String> = help.split(' ').map(as_code).collect();
        let help = help.join(" ");
        let labels: Vec<String> = names.iter().map(|l| format!("`{l}`")).collect();
        let suffix = if kind == "counter" { "_total" } else { "" };
        writeln!(
            page,
            "| `{name}{suffix}` | {kind} | {} | {help} |",
            labels.join(", ")
        )
        .unwrap();
    }
    assert!(
        helps.len() > 80
            && page.contains("| `evictd_evictions_total` | counter | `shadow`, `signal` |")
    );
    check("../../../../docs/metrics-reference.md", &page);
}

#[test]
fn a_ramp_is_drawn_up_to_the_limit_line() {
    let ms = Duration::from_millis;
    let mib = 1 << 20;
    let mut samples: Vec<_> = (0..20).map(|i| (ms(i), 10 * mib)).collect();
    samples.extend((20..60).map(|i| (ms(i), (i - 10) * 2 * mib)));
    samples.extend((60..80).map(|i| (ms(i), 10 * mib)));
    let chart = chart::draw(&samples, 128 * mib, 96 * mib);
    assert_eq!(chart.lines().count(), chart::ROWS + 2);
    assert!(chart.contains("128 MiB │") && chart.contains("96 MiB │"));
    assert!(chart.contains("node is full") && chart.contains(" threshold"));
    let highest = chart.lines().position(|l| l.contains('█')).unwrap();
    assert!((1..5).contains(&highest), "{chart}");
}

#[test]
fn nothing_that_moves_is_said() {
    assert!(chart::draw(&[], 1, 1).contains("nothing"));
    assert!(chart::draw(&[(Duration::ZERO, 5); 10], 1, 1).contains("nothing"));
}
