//! Alerts and dashboard: they ask for what a running agent serves, they fire when they should, and each alert has its section in
//! the runbook.

use evictd_tests::{
    deploy::{self, Chart, chart, helm::helm, promtool::promtool, run},
    prelude::*,
};

/// Labels that Prometheus itself adds, those of histograms, and of kube-state-metrics.
const PROMETHEUS: [&str; 4] = ["instance", "job", "le", "daemonset"];

fn alerts() -> PathBuf {
    chart().join("files/alerts.yaml")
}

fn rules() -> Vec<Value> {
    let text = fs::read_to_string(alerts()).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    file["groups"][0]["rules"].as_array().unwrap().clone()
}

fn dashboard() -> Value {
    let text = fs::read_to_string(chart().join("files/dashboard.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What agents serve, by name: each label with the values that are known, none for a label whose values are not listed. From the
/// golden files, which are compared with a running agent.
fn served() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/files");
    let read = |name: &str| fs::read_to_string(golden.join(name)).unwrap();
    let mut served: BTreeMap<String, BTreeMap<_, BTreeSet<_>>> = BTreeMap::new();
    for text in [read("metrics-series.txt"), read("metrics-of-evictions.txt")] {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let known = served.entry(name.to_owned()).or_default();
            for label in labels
                .trim_end_matches('}')
                .split("\",")
                .filter(|l| !l.is_empty())
            {
                let (label, value) = label.split_once("=\"").unwrap();
                let values: &mut BTreeSet<String> = known.entry(label.to_owned()).or_default();
                values.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    // Gauges that a resting node does not have.
    for name in [
        "evictd_until_threshold_seconds",
        "evictd_until_exhausted_seconds",
    ] {
        assert!(read("metrics.txt").contains(&format!("# TYPE {name} gauge")));
        let signal = BTreeMap::from([("signal".to_owned(), BTreeSet::new())]);
        served.insert(name.to_owned(), signal);
    }
    served
}

/// The parts of an expression that are names of metrics, with the matchers of each.
fn metrics(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find("evictd_") {
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        let matchers = after.strip_prefix('{').and_then(|a| a.split_once('}'));
        let matchers = matchers.map_or(Vec::new(), |(inside, _)| inside.split(',').collect());
        found.push((name, matchers));
        rest = after;
    }
    found
}

/// Labels that an expression groups by.
fn groupings(expression: &str) -> Vec<&str> {
    let lists = ["by (", "on ("].into_iter().flat_map(|word| {
        let parts = expression.split(word).skip(1);
        parts.filter_map(|part| part.split_once(')').map(|(list, _)| list))
    });
    lists
        .flat_map(|list| list.split(',').map(str::trim))
        .collect()
}

/// Why an expression asks for what no agent serves.
fn check(expression: &str, shown: &str) -> Result<(), String> {
    let served = served();
    let mut labels: BTreeSet<&str> = PROMETHEUS.into_iter().collect();
    for (name, matchers) in metrics(expression) {
        let plain = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| {
            name.strip_suffix(suffix)
                .filter(|n| served.contains_key(*n))
        });
        let known = served.get(name).or_else(|| served.get(plain?));
        let known = known.ok_or_else(|| format!("{name} is not served"))?;
        labels.extend(known.keys().map(String::as_str));
        for matcher in matchers {
            let end = matcher.find(['=', '!']).ok_or("no operator")?;
            let (label, value) = matcher.split_at(end);
            let value = value.trim_start_matches(['=', '!', '~']).trim_matches('"');
            if PROMETHEUS.contains(&label) {
                continue;
            }
            let values = known
                .get(label)
                .ok_or_else(|| format!("{name} has no label {label}"))?;
            // "..." stands for values that depend on the machine.
            let open = values.is_empty() || values.contains("...") || value.starts_with('$');
            for one in value.split('|') {
                if !open && !values.contains(one) {
                    return Err(format!("{name} has no {label}={one}: {values:?}"));
                }
            }
        }
    }
    let shown = shown.split("{{").skip(1).filter_map(|part| {
        let inside = part.split_once("}}")?.0.trim();
        let label = inside
            .split_once("$labels.")
            .map_or(inside, |(_, label)| label);
        (!label.starts_with('$') && !["end", "."].contains(&label)).then_some(label)
    });
    for label in groupings(expression).into_iter().chain(shown) {
        if !labels.contains(label) {
            return Err(format!("{label} is no label of {expression}"));
        }
    }
    Ok(())
}

#[test]
fn alerts_ask_for_what_agents_serve() {
    let rules = rules();
    assert!(rules.len() >= 15);
    for rule in &rules {
        let texts = rule["annotations"].to_string();
        check(rule["expr"].as_str().unwrap(), &texts)
            .unwrap_or_else(|e| panic!("{}: {e}", rule["alert"]));
    }
}

#[test]
fn the_dashboard_asks_for_what_agents_serve() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut asked = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].to_string()), "{}", panel["id"]);
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24);
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            check(expression, target["legendFormat"].as_str().unwrap())
                .unwrap_or_else(|e| panic!("{}: {e}", panel["title"]));
            asked.extend(metrics(expression).into_iter().map(|(name, _)| name));
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    let variable = &dashboard["templating"]["list"][1]["query"]["query"];
    check(variable.as_str().unwrap(), "").unwrap();
}

/// A counter that comes with its first count has no increase then.
#[test]
fn what_is_counted_is_served_from_the_start() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/files");
    let at_rest = fs::read_to_string(golden.join("metrics-series.txt")).unwrap();
    let alerts = rules().into_iter().map(|rule| rule["expr"].clone());
    let panels = dashboard()["panels"].as_array().unwrap().clone();
    let panels = panels.into_iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    let mut counted = BTreeSet::new();
    for expression in alerts.chain(targets.map(|target| target["expr"].clone())) {
        let expression = expression.as_str().unwrap();
        for call in ["increase(", "rate("] {
            for part in expression.split(call).skip(1) {
                let (name, matchers) = metrics(part)[0].clone();
                counted.insert(name.to_owned());
                let is_of = |line: &&str| {
                    let after = line.strip_prefix(name);
                    after.is_some_and(|after| after.is_empty() || after.starts_with('{'))
                };
                let mut series = at_rest.lines().filter(is_of);
                let fixed = matchers.iter().filter(|m| m.contains("=\""));
                let fixed: Vec<_> = fixed.filter(|m| !m.contains("instance")).collect();
                let is_there = series.any(|line| fixed.iter().all(|m| line.contains(**m)));
                assert!(
                    is_there,
                    "{name} {fixed:?} is not served before its first count"
                );
            }
        }
    }
    assert!(counted.len() > 15, "{counted:?}");
}

#[test]
fn a_name_or_label_that_is_not_served_is_found() {
    for [expression, shown, expected] in rows(
        r#"
        evictd_eviction_total > 0 |  | evictd_eviction_total is not served
        evictd_paused{kind="file"} == 1 |  | has no label kind
        evictd_paused{by=~"file|disk"} == 1 |  | has no by=disk
        sum by (signal) (evictd_paused) |  | signal is no label
        evictd_paused == 1 | {{ $labels.signal }} | signal is no label
        "#,
    ) {
        has(&check(expression, shown).unwrap_err(), &[expected]);
    }
}

#[test]
fn every_alert_has_its_section_in_the_runbook() {
    let runbook = fs::read_to_string(deploy::dir().join("../docs/runbook.md")).unwrap();
    let sections: Vec<&str> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .filter(|title| title.starts_with("Evictd"))
        .collect();
    let mut alerts = Vec::new();
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap().to_owned();
        let link = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], link);
        for field in ["summary", "description"] {
            assert!(rule["annotations"][field].is_string(), "{name}: {field}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["info", "warning", "critical"].contains(&severity),
            "{name}"
        );
        alerts.push(name);
    }
    assert_eq!(sections, alerts, "sections in the alerts' order");
}

#[test]
fn promtool_takes_the_rules_and_they_fire() {
    skip_if!(promtool().err());
    let promtool = promtool().unwrap();
    run(Command::new(promtool)
        .args(["check", "rules"])
        .arg(alerts()))
    .unwrap();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/alerts.test.yaml");
    let text = fs::read_to_string(&cases).unwrap();
    run(Command::new(promtool).args(["test", "rules"]).arg(&cases)).unwrap();
    // Every alert fires in one of the cases.
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap();
        has(&text, &[&format!("alertname=\"{name}\"")]);
    }
}

#[test]
fn the_chart_brings_both() {
    skip_if!(helm().err());
    let render = |values: &Value| Chart::of(values).unwrap();
    let objects = render(&json!({"metrics": {
        "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}, "runbook": "https://example.org/runbook"},
        "grafanaDashboard": {"enabled": true},
    }}));
    let rule = &objects["PrometheusRule"];
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let shipped = &rule["spec"]["groups"][0]["rules"];
    assert_eq!(shipped.as_array().unwrap().len(), rules().len());
    for (shipped, rule) in shipped.as_array().unwrap().iter().zip(rules()) {
        assert_eq!(shipped["expr"], rule["expr"]);
        let url = shipped["annotations"]["runbook_url"].as_str().unwrap();
        begins(url, "https://example.org/runbook#evictd");
        let [shipped, rule] = [shipped, &rule].map(|rule| &rule["annotations"]["summary"]);
        assert_eq!(shipped, rule);
    }
    let boards = |chart: &Chart| -> Vec<Value> {
        let texts = chart
            .0
            .iter()
            .filter_map(|o| o["data"]["evictd.json"].as_str());
        texts
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    };
    assert_eq!(boards(&objects), [dashboard()]);
    let none = render(&json!({}));
    none.has("PrometheusRule | -");
    assert!(boards(&none).is_empty());
}
