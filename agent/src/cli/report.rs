//! `evictd report`: how an eviction came about, stage by stage, and what became of it (R49). It reads what the agent has
//! left in its state directory, whether or not it still runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use serde_json::json;

use super::{
    CommandError, or_installed,
    table::{Alignment, Table, amount_of, bytes},
    to_json,
};
use crate::{
    config::{Config, DEFAULT_STATE_DIR},
    engine::{Resource, Signal},
    evict::journal::{self, Eviction, Finish, Record, Reported},
    observe::cgroup::PathError,
    telemetry::{Incident, Standing, read_incident},
};

/// Names the newest one.
const LATEST: &str = "latest";

/// What `evictd report` is told.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The eviction: its id, an end of it that no other one has, or `latest`; without it all are listed
    incident: Option<String>,
    /// The agent's configuration file, which names its state directory; without it the installed one
    #[arg(long, value_name = "FILE", conflicts_with = "state_dir")]
    config: Option<PathBuf>,
    /// The agent's state directory
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// How to print it; a picture is of one incident
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// How a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// A picture, as SVG.
    Svg,
}

/// What the journal knows of one eviction.
struct Known {
    eviction: Eviction,
    finish: Option<Finish>,
    reported: Option<Reported>,
}

pub(super) fn run(arguments: &Arguments) -> Result<String, CommandError> {
    let dir = state_dir(arguments)?;
    let known = known(&dir)?;
    let Some(wanted) = &arguments.incident else {
        return match arguments.output {
            Format::Table => Ok(list(&known)),
            Format::Json => {
                let evictions: Vec<_> = known.iter().map(|k| &k.eviction).collect();
                to_json(&evictions)
            }
            Format::Svg => Err(bad("-o svg", "is a picture of one incident: which?")),
        };
    };
    let known = find(known, wanted, &dir)?;
    let recorded = read_incident(&dir, &known.eviction.id)?;
    let (pods, samples) = recorded.map(|r| (r.pods, r.samples)).unwrap_or_default();
    // What both have is told as the journal has it, which is on disk before anything else.
    let incident = Incident {
        finish: known.finish,
        samples,
        ..Incident::new(known.eviction, pods)
    };
    match arguments.output {
        Format::Table => Ok(text(&incident, known.reported.as_ref())),
        Format::Json => to_json(&json!({ "incident": incident, "reported": known.reported })),
        Format::Svg => incident.picture().ok_or_else(|| {
            bad(
                wanted,
                "was not recorded, so that there is nothing to draw; the journal has its stages",
            )
        }),
    }
}

fn bad(what: &str, reason: &str) -> CommandError {
    CommandError::Argument {
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

fn state_dir(arguments: &Arguments) -> Result<PathBuf, CommandError> {
    if let Some(dir) = &arguments.state_dir {
        return Ok(dir.clone());
    }
    match or_installed(arguments.config.as_deref()) {
        Some(path) => Ok(Config::load(path)?.state_dir),
        None => Ok(PathBuf::from(DEFAULT_STATE_DIR)),
    }
}

/// Every eviction of the journal, oldest first.
fn known(dir: &Path) -> Result<Vec<Known>, CommandError> {
    // A directory that is not there has no journal, which is not the same as an empty one.
    std::fs::read_dir(dir).map_err(PathError::at(dir))?;
    let (records, _) = journal::read(dir)?;
    let mut known: Vec<Known> = Vec::new();
    let mut places = BTreeMap::new();
    for record in records {
        match record {
            // What waited for the API server is carried over into a new file, and is there twice.
            Record::Evicted(eviction) if !places.contains_key(&eviction.id) => {
                places.insert(eviction.id.clone(), known.len());
                known.push(Known {
                    eviction: *eviction,
                    finish: None,
                    reported: None,
                });
            }
            Record::Finished(finish) => {
                if let Some(known) = places.get(&finish.id).and_then(|i| known.get_mut(*i)) {
                    known.finish = Some(finish);
                }
            }
            Record::Reported(reported) => {
                if let Some(known) = places.get(&reported.id).and_then(|i| known.get_mut(*i)) {
                    known.reported = Some(reported);
                }
            }
            _ => {}
        }
    }
    Ok(known)
}

fn find(mut known: Vec<Known>, wanted: &str, dir: &Path) -> Result<Known, CommandError> {
    let total = known.len();
    if wanted == LATEST
        && let Some(newest) = known.pop()
    {
        return Ok(newest);
    }
    let is_it = |known: &Known| !wanted.is_empty() && known.eviction.id.ends_with(wanted);
    let exact = known.iter().position(|k| k.eviction.id == wanted);
    let mut matching = known.iter().enumerate().filter(|(_, k)| is_it(k));
    match (exact, matching.next(), matching.next()) {
        (Some(place), ..) => Ok(known.swap_remove(place)),
        (None, Some((place, _)), None) => Ok(known.swap_remove(place)),
        (None, Some(_), Some(_)) => Err(bad(wanted, "is the end of more than one incident's id")),
        (None, None, _) => {
            let dir = dir.display();
            let reason = format!("is none of the {total} incidents in {dir}");
            Err(bad(wanted, &reason))
        }
    }
}

fn list(known: &[Known]) -> String {
    let mut table = Table::new(&[
        ("TIME", Alignment::Left),
        ("POD", Alignment::Left),
        ("SIGNAL", Alignment::Left),
        ("AVAILABLE", Alignment::Right),
        ("THRESHOLD", Alignment::Right),
        ("NOTE", Alignment::Left),
        ("INCIDENT", Alignment::Left),
    ]);
    for Known { eviction, .. } in known {
        let note = match (&eviction.error, eviction.shadow) {
            (Some(error), _) => format!("refused: {error}"),
            (None, true) => "shadow".to_owned(),
            (None, false) => String::new(),
        };
        table.row([
            eviction.time.clone(),
            name(eviction),
            eviction.signal.clone(),
            amount(eviction, eviction.available),
            amount(eviction, eviction.threshold),
            note,
            eviction.id.clone(),
        ]);
    }
    table.render()
}

fn name(eviction: &Eviction) -> String {
    match eviction.namespace.as_str() {
        "" => eviction.name.clone(),
        namespace => format!("{namespace}/{}", eviction.name),
    }
}

fn amount(eviction: &Eviction, amount: u64) -> String {
    let resource = eviction.signal.parse().map(Signal::resource);
    // A limit of the pod's own is one of bytes.
    amount_of(
        resource.unwrap_or(Resource::EphemeralStorage),
        amount.into(),
    )
}

fn text(incident: &Incident, reported: Option<&Reported>) -> String {
    let eviction = &incident.eviction;
    let was = if eviction.shadow {
        "would have been"
    } else {
        "was"
    };
    let mut text = format!(
        "{} {was} evicted at {}\n\n{}\n\n{}: {} available, threshold {}; told by: {}\n",
        name(eviction),
        eviction.time,
        eviction.message.trim(),
        eviction.signal,
        amount(eviction, eviction.available),
        amount(eviction, eviction.threshold),
        eviction.hook,
    );
    text += &format!(
        "the pod used {}, and had requested {}\n\n",
        amount(eviction, eviction.working_set),
        amount(eviction, eviction.request)
    );
    let start = incident.start();
    for (name, time) in incident.moments() {
        let since = time.saturating_sub(start) as f64 / 1000.0;
        text += &format!("{since:>14.0} us  {name}\n");
    }
    text.push('\n');
    if let Some(error) = &eviction.error {
        text += &format!("the kernel refused the signal: {error}\n");
    }
    match &incident.finish {
        Some(finish) if finish.peak_usage > 0 => {
            text += &format!(
                "the largest usage after that was {}; at the end {} were available\n",
                bytes(finish.peak_usage.into()),
                amount(eviction, finish.available)
            );
        }
        _ => {}
    }
    if let Some(reported) = reported {
        text += &format!(
            "the API server: {} at {}\n",
            reported.outcome, reported.time
        );
    }
    if !incident.pods.is_empty() {
        text += &format!("\n{}", standings(&incident.pods));
    }
    let samples = incident.samples.get(&eviction.signal).map_or(0, Vec::len);
    text += &match samples {
        0 => "\nwhat was seen before and after was not recorded\n".to_owned(),
        count => format!(
            "\n{count} looks were recorded; a picture of them: evictd report {} -o svg\n",
            eviction.id
        ),
    };
    text
}

fn standings(pods: &[Standing]) -> String {
    let mut table = Table::new(&[
        ("#", Alignment::Right),
        ("POD", Alignment::Left),
        ("USAGE", Alignment::Right),
        ("REQUEST", Alignment::Right),
        ("PRIORITY", Alignment::Right),
        ("QOS", Alignment::Left),
        ("NOTE", Alignment::Left),
    ]);
    for (position, pod) in pods.iter().enumerate() {
        let note = if pod.evicted { "evicted" } else { "" };
        table.row([
            (position + 1).to_string(),
            pod.pod.clone(),
            pod.usage
                .map_or_else(|| "-".to_owned(), |u| bytes(u.into())),
            bytes(pod.request.into()),
            pod.priority.to_string(),
            pod.qos_class.clone(),
            note.to_owned(),
        ]);
    }
    table.render()
}
