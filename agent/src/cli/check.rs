//! `evictd check`: what this kernel gives, and whether evictd is usable there.

use std::path::PathBuf;

use evictd_config::{Config, KubeletDocument};

use super::{CommandError, OutputFormat, or_installed, run::resolve_config, table::Table, to_json};
use crate::{
    check::{Check, Finding, State},
    daemon::{CONFIGZ_UNUSED, NO_PODS},
};

/// Arguments of `evictd check`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// A configuration file whose thresholds are held against this machine; without it the installed one, if there is
    /// one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's KubeletConfiguration: thresholds and reservations
    #[arg(long, value_name = "FILE", requires = "config")]
    kubelet_config: Option<PathBuf>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The report, and whether evictd is usable here.
pub(super) fn run(arguments: &Arguments) -> Result<(String, bool), CommandError> {
    let file = arguments.kubelet_config.as_deref();
    let loaded = or_installed(arguments.config.as_deref());
    let loaded = loaded.map(|path| resolve_config(path, file));
    let (config, kubelet) = loaded.transpose()?.unzip();
    let mut check = Check::of_this_machine(config.as_ref());
    let known = config.as_ref().zip(kubelet.as_ref());
    check
        .findings
        .extend(known.map(|(config, kubelet)| kubelet_configuration(config, kubelet)));
    let text = match arguments.output {
        OutputFormat::Json => to_json(&check)?,
        OutputFormat::Table => table(&check),
    };
    Ok((text, check.usable))
}

/// Whether the kubelet's thresholds are those of its file.
fn kubelet_configuration(config: &Config, kubelet: &KubeletDocument) -> Finding {
    let (state, mut detail) = match (&kubelet.unreadable, &kubelet.lenient_warnings[..]) {
        (Some(reason), _) => (State::Degraded, format!("{reason}; {}", kubelet.source)),
        (None, _) if kubelet.lacks_pod_cgroups() => {
            (State::Degraded, format!("cgroupsPerQOS: false: {NO_PODS}"))
        }
        (None, []) => (State::Ok, kubelet.source.to_string()),
        (None, mistakes) => {
            let detail = format!("{}; {}", mistakes.join("; "), kubelet.source);
            (State::Degraded, detail)
        }
    };
    let wants_configz = (config.cluster.as_ref()).is_some_and(|cluster| cluster.configz);
    if wants_configz && kubelet.holds_file() {
        detail = format!("{detail}; {CONFIGZ_UNUSED}");
    }
    Finding {
        topic: "kubelet configuration",
        state,
        detail,
    }
}

fn table(check: &Check) -> String {
    let mut table = Table::new("  TOPIC  FOUND");
    for signal in &check.signals {
        let detail = signal.detail.as_deref().unwrap_or_default();
        let (state, found) = match &signal.hook {
            Some(hook) if detail.is_empty() => (word(State::Ok), format!("hook: {hook}")),
            Some(hook) => (word(State::Ok), format!("hook: {hook} ({detail})")),
            // Only memory is what evictd cannot do without, and the verdict says so.
            None => ("none".to_owned(), format!("not watched: {detail}")),
        };
        table.row([state, signal.signal.to_owned(), found]);
        for refused in &signal.refused {
            let reason = format!("{} is refused: {}", refused.hook, refused.reason);
            table.row([String::new(), String::new(), reason]);
        }
    }
    for finding in &check.findings {
        table.row([
            word(finding.state),
            finding.topic.to_owned(),
            finding.detail.clone(),
        ]);
    }
    let status = if check.usable {
        "evictd is usable on this machine."
    } else {
        "evictd is not usable on this machine."
    };
    format!("kernel {}\n\n{}\n{status}\n", check.kernel, table.render())
}

fn word(state: State) -> String {
    match state {
        State::Ok => "ok",
        State::Degraded => "degraded",
        State::Missing => "missing",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use evictd_config::KubeletSource;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_that_stands_before_configz_is_told_of() {
        let said = |configz: bool, source| {
            let own = json!({ "cluster": { "configz": configz } });
            let config = Config::from_values(own, None).unwrap();
            let kubelet = KubeletDocument {
                source,
                ..KubeletDocument::default()
            };
            kubelet_configuration(&config, &kubelet).detail
        };
        let unused = format!("the file holds; {CONFIGZ_UNUSED}");
        assert_eq!(said(true, KubeletSource::File), unused);
        assert_eq!(said(false, KubeletSource::File), "the file holds");
        assert!(!said(true, KubeletSource::Configz).contains(CONFIGZ_UNUSED));
    }
}
