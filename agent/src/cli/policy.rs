//! `evictd policy`: check policies, say what they make of a pod, and render what Kubernetes itself must know of them.

use std::path::{Path, PathBuf};

use evictd_config::one_line;
use evictd_policy::{PodEvictionPolicy, conflict, evaluator::Explanation, file, tolerations};
use serde_json::{Value, json};

use super::{
    CommandError, OutputFormat,
    explained::{Explained, PolicyReporting},
    input::invalid,
    state_dir_of,
    table::{Table, printable},
    to_json,
};

/// Note on a rule of a policy in shadow mode.
pub(super) const SHADOW: &str = " (shadow: it changes nothing)";

/// Arguments of `evictd policy`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Read policies and say what is in them; a mistake is named with its place.
    Check {
        /// Files, and directories of files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Say which rules hold for a pod, what its gates have answered, and whether it could be evicted now.
    Explain {
        /// `namespace/name`, a name, or a UID
        #[arg(value_name = "POD")]
        pod: String,
        /// The agent's configuration file, which names its state directory; without it the installed one
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Print the MutatingAdmissionPolicies that give pods the tolerations of their rules, for `kubectl apply -f -`.
    Render {
        /// Files, and directories of files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    match &arguments.command {
        Command::Check { files } => check(files),
        Command::Explain {
            pod,
            config,
            output,
        } => explain(pod, config.as_deref(), *output),
        Command::Render { files } => {
            let policies = file::load(files)?;
            let items: Vec<Value> = policies.iter().flat_map(tolerations::admission).collect();
            to_json(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
        }
    }
}

fn check(files: &[PathBuf]) -> Result<String, CommandError> {
    let (policies, tenants) = file::load_all(files)?;
    let mut table = Table::new("POLICY  PRECEDENCE>  RULES>  GATES>  NOTE");
    for policy in &policies {
        table.row([
            policy.name.clone(),
            policy.precedence.to_string(),
            policy.rules.len().to_string(),
            policy.gates.len().to_string(),
            if policy.shadow { "shadow" } else { "" }.to_owned(),
        ]);
    }
    for PodEvictionPolicy {
        namespace, name, ..
    } in &tenants
    {
        let name = format!("{namespace}/{name}");
        let none = || "-".to_owned();
        table.row([name, none(), none(), none(), "of its namespace".to_owned()]);
    }
    let mut text = table.render();
    for policy in &policies {
        if let Some(warning) = policy.warning() {
            text += &format!("note: {}: {warning}\n", one_line(&policy.name));
        }
    }
    for found in conflict::among(&policies) {
        let (name, words) = (one_line(&found.one.name), one_line(&found.words()));
        text += &format!("note: {name}: {words}\n");
    }
    Ok(text)
}

fn explain(pod: &str, config: Option<&Path>, output: OutputFormat) -> Result<String, CommandError> {
    let state_dir = state_dir_of(config)?;
    let is_fresh = PolicyReporting::ask(&state_dir) == PolicyReporting::Reported;
    let explained = Explained::read(&state_dir)?;
    let age = explained.age()?;
    let is_it = |e: &&Explanation| {
        let name = e.pod.split_once('/').map_or("", |(_, name)| name);
        e.pod == pod || name == pod || e.uid == pod
    };
    let found: Vec<&Explanation> = explained.pods.iter().filter(is_it).collect();
    match (found.as_slice(), output) {
        ([], _) => Err(invalid(
            &explained.path,
            format!("{pod}: no such pod on this node"),
        )),
        (found, OutputFormat::Json) => to_json(&found),
        (found, OutputFormat::Table) => {
            let old = (!is_fresh).then_some(age.as_secs());
            Ok(printable(found.iter().map(|e| say(e, old)).collect()))
        }
    }
}

/// Describes one pod's explanation. `old` is its age in seconds, where no agent keeps it up to date.
fn say(explanation: &Explanation, old: Option<u64>) -> String {
    let mut text = format!("{} ({})\n", explanation.pod, explanation.uid);
    if let Some(seconds) = old {
        text += &format!("  as it was {seconds} s ago: no agent answers\n");
    }
    text += match (&explanation.reason, explanation.may_go) {
        (Some(reason), _) => format!("  could not be evicted: {reason}\n"),
        (None, true) => "  could be evicted\n".to_owned(),
        (None, false) => "  could not be evicted\n".to_owned(),
    }
    .as_str();
    if explanation.order != 0 {
        text += &format!("  order {}\n", explanation.order);
    }
    if explanation.rules.is_empty() {
        text += "  no rule speaks of it\n";
    }
    for rule in &explanation.rules {
        let shadow = if rule.shadow { SHADOW } else { "" };
        let says = if rule.says_yes { "yes" } else { "no" };
        text += &format!("  rule {}{shadow}: {}: {says}\n", rule.rule, rule.evict);
        for gate in &rule.gates {
            let answer = match gate.answer {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => format!("unknown, which means {}", gate.on_unknown),
            };
            let age = gate
                .age_seconds
                .map_or_else(String::new, |age| format!(", answered {age:.1} s ago"));
            let error = gate
                .error
                .as_ref()
                .map_or_else(String::new, |e| format!(" ({e})"));
            text += &format!("    gate {}: {answer}{age}{error}\n", gate.gate);
        }
    }
    text
}
