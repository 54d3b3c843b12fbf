//! The chart's values: the table of its README is made from values.yaml.

use std::fmt::Write as _;

use evictd_tests::{deploy::chart, prelude::*};

use super::check;

/// What stands before the table.
const INTRODUCTION: &str = "\
# The chart's values

Made by a test from `values.yaml`. `values.schema.json` refuses a value that is not listed here. `presets/` has the values of distributions;
`docs/deploy.md` says how to install and upgrade, and `docs/configuration.md` has every field of `config`. A value without a default is a
group: the rows below it are its fields.

| value | default | meaning |
| --- | --- | --- |
";

#[test]
fn the_reference_of_the_chart_is_made_from_its_values() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let mut page = INTRODUCTION.to_owned();
    // The keys above a line, with their indentation; the comment above it.
    let (mut above, mut comment) = (Vec::<(usize, &str)>::new(), Vec::new());
    for line in text.lines() {
        let body = line.trim_start();
        if let Some(said) = body.strip_prefix('#') {
            comment.push(said.trim());
            continue;
        }
        let comment = std::mem::take(&mut comment).join(" ");
        let Some((key, _)) = body.split_once(':') else {
            continue;
        };
        let indentation = line.len() - body.len();
        above.retain(|(of, _)| *of < indentation);
        let parent = above
            .iter()
            .try_fold(&values, |value, (_, key)| value.get(key));
        // What is inside of a list is a part of its default.
        let Some(value) = parent.and_then(|parent| parent.get(key)) else {
            continue;
        };
        above.push((indentation, key));
        let keys: Vec<&str> = above.iter().map(|(_, key)| *key).collect();
        let path = keys.join(".");
        let is_group = value.as_object().is_some_and(|fields| !fields.is_empty());
        assert!(is_group || !comment.is_empty(), "{path}: has no comment");
        if is_group && comment.is_empty() {
            continue;
        }
        let default = if is_group {
            String::new()
        } else {
            format!("`{value}`")
        };
        writeln!(page, "| `{path}` | {default} | {comment} |").unwrap();
    }
    check("../../../../deploy/chart/evictd/README.md", &page);
}
