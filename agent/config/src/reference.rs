//! Checks and writes the table in `docs/configuration.md`: fields, values and defaults come from the decoder, the
//! meanings from the page itself. A field that is new, gone or not described fails the test.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
};

use serde_json::{Value, json};

use super::Config;

/// Fields without a default that [`spelled_out`] has to name.
const NAMES: [&str; 3] = [
    "cluster.nodeName",
    "cluster.fleetBrake.configMap",
    "metricsAddress",
];

thread_local! {
    static TAKEN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Records that a decoder has asked for this field.
pub fn note(path: String) {
    TAKEN.with_borrow_mut(|taken| taken.insert(path));
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(name: &str) -> Value {
    let path = repository().join("tests/tests/golden/files").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Documents that together have every field.
fn documents() -> [Value; 3] {
    let newer = json!({
        "cluster": {
            "nodeName": "node-1",
            "admissionPolicies": false,
            "evictedPods": "Fail",
            "serviceCIDRs": ["10.96.0.0/12"],
            "formerTaintKeyPrefixes": ["b/"],
            "taint": { "keyPrefix": "a/", "effect": "NoSchedule", "setAfter": "1s", "removeAfter": "1s" },
            "fleetBrake": {
                "configMap": "evictd/fleet", "window": "5m", "slowNodes": 5, "pauseNodes": 6, "pause": "1h",
                "slowInterval": "1m",
            },
            "tenantPolicies": { "maxGrace": "1m" },
        },
        "cri": { "enabled": true },
        "evictionHardAboveKubelet": { "memory.available": "100Mi" },
        "evictionHardFallback": { "memory.available": "100Mi" },
        "evictionRates": { "node": { "evictions": 1, "period": "1m", "exemptGrowers": true } },
        "graduatedAction": { "reclaim": { "enabled": true }, "throttle": { "enabled": true } },
        "metricsAddress": "127.0.0.1:1",
        "metricsTls": { "certificateFile": "/tls.crt", "privateKeyFile": "/tls.key", "authorization": false },
        "pinnedGuard": { "enabled": true, "directory": "/sys/fs/bpf/evictd", "expireAfter": "1m" },
    });
    [
        golden("configuration.yaml"),
        golden("configuration-embedded.yaml"),
        newer,
    ]
}

/// A document with the maps that are absent by default, each with the fields it must have; and the same document with
/// all their defaults.
fn spelled_out() -> [Value; 2] {
    let least = json!({
        "cluster": {
            "nodeName": "node-1", "taint": {}, "fleetBrake": { "configMap": "evictd/fleet" }, "tenantPolicies": {},
        },
        "metricsAddress": "127.0.0.1:1",
        "metricsTls": {},
    });
    let all = json!({
        "cluster": {
            "nodeName": "node-1",
            "admissionPolicies": true,
            "evictedPods": "Delete",
            "taint": {
                "keyPrefix": "evictd.dev/", "effect": "PreferNoSchedule", "setAfter": "10s", "removeAfter": "0s",
            },
            "fleetBrake": {
                "configMap": "evictd/fleet", "window": "10m", "slowNodes": 10, "pauseNodes": 20, "pause": "30m",
                "slowInterval": "5m",
            },
            "tenantPolicies": { "maxGrace": "0s" },
        },
        "metricsAddress": "127.0.0.1:1",
        "metricsTls": { "authorization": true },
        "pinnedGuard": { "enabled": true, "directory": "/sys/fs/bpf/evictd", "expireAfter": "10m" },
    });
    [least, all]
}

/// The fields that the decoder asks for.
fn fields() -> BTreeSet<String> {
    TAKEN.take();
    for document in documents() {
        Config::from_values(document, None).unwrap_or_else(|e| panic!("{e}"));
    }
    TAKEN.take()
}

/// A field's JSON pointer. The name of a signal has a dot of its own.
fn pointer(field: &str) -> String {
    let apart = field.replace("memory.available", "memory\0available");
    let apart = apart.replace('.', "/").replace('\0', ".");
    format!("/{apart}")
}

/// Why the decoder refuses this value of a field.
fn refusal(field: &str, value: &Value) -> Option<String> {
    let mut refused = documents().into_iter().filter_map(|mut document| {
        *document.pointer_mut(&pointer(field))? = value.clone();
        let error = Config::from_values(document, None).err()?.to_string();
        let error = error.strip_prefix(field)?.to_owned();
        let (_, reason) = error.split_once(&format!(": {value}: "))?;
        Some(reason.to_owned())
    });
    refused.next()
}

/// The values that a field takes, from the decoder's refusals of wrong ones.
fn values(field: &str) -> String {
    let kind = |value: &Value| {
        let reason = refusal(field, value)?;
        let kind = reason
            .trim_start_matches("must be ")
            .trim_start_matches("is not ");
        // The rest of the message is advice.
        let kind = kind
            .split(';')
            .next()
            .unwrap_or_default()
            .trim_end_matches(", not negative");
        Some(kind.to_owned())
    };
    let any = kind(&json!(0.5)).unwrap_or_else(|| panic!("{field} takes anything"));
    let takes = match any.as_str() {
        "a string" => kind(&json!("?")).unwrap_or(any),
        _ => any,
    };
    match takes.strip_prefix("one of ") {
        Some(names) => format!("one of `{}`", names.replace(", ", "`, `")),
        None => takes,
    }
}

fn default(field: &str, defaults: &[Value]) -> String {
    let found = defaults.iter().find_map(|d| d.pointer(&pointer(field)));
    let text = match found {
        None => return String::new(),
        Some(_) if NAMES.contains(&field) => return String::new(),
        Some(Value::Array(items)) if items.is_empty() => return String::new(),
        Some(Value::Object(signals)) => {
            let signals = signals
                .iter()
                .map(|(signal, value)| format!("{signal}<{value}"));
            signals.collect::<Vec<_>>().join(", ")
        }
        Some(value) => value.to_string(),
    };
    format!("`{}`", text.replace('"', ""))
}

/// The meanings of the fields that the page has.
fn descriptions(page: &str) -> BTreeMap<&str, &str> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ");
        let field = cells.next()?.strip_suffix('`')?;
        Some((field, cells.nth(2)?))
    });
    rows.collect()
}

#[test]
fn the_page_has_every_field() {
    let path = repository().join("docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let described = descriptions(&page);
    let [least, all_defaults] = spelled_out();
    let read = |document: &Value| Config::from_values(document.clone(), None).unwrap();
    assert_eq!(read(&least), read(&all_defaults));
    // The defaults without a cluster come last: they have no container runtime.
    let defaults = [
        golden("configuration-cluster-defaults.yaml"),
        all_defaults,
        golden("configuration-defaults.yaml"),
    ];
    let all = fields();
    let is_map = |field: &String| all.iter().any(|f| f.starts_with(&format!("{field}.")));
    let mut table =
        String::from("| field | takes | default | meaning |\n| --- | --- | --- | --- |\n");
    for field in all.iter().filter(|field| !is_map(field)) {
        let (takes, default) = (values(field), default(field, &defaults));
        let meaning = described.get(field.as_str()).unwrap_or(&"");
        writeln!(table, "| `{field}` | {takes} | {default} | {meaning} |").unwrap();
    }
    let (begin, end) = ("<!-- fields -->\n", "<!-- /fields -->");
    let (head, rest) = page.split_once(begin).expect("where the table begins");
    let (_, foot) = rest.split_once(end).expect("where it ends");
    let now = format!("{head}{begin}{table}{end}{foot}");
    if std::env::var_os("EVICTD_BLESS").is_some_and(|v| v == "1") {
        fs::write(&path, &now).unwrap();
    } else {
        assert!(
            now == page,
            "docs/configuration.md is not up to date: EVICTD_BLESS=1 writes it"
        );
    }
    let silent = descriptions(&now);
    let silent: Vec<_> = silent.iter().filter(|(_, text)| text.is_empty()).collect();
    assert!(silent.is_empty(), "not described: {silent:?}");
}
