//! `evictd report`: how an eviction came about, stage by stage, and what became of it. It reads what the agent has
//! left in its state directory, whether or not it still runs.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use evictd_config::duration;
use evictd_engine::{Cause, Resource};
use evictd_store::{
    incident::{Incident, RankedPod, files},
    journal::{self, Damage},
    record::{EvictionRecord, OutcomeRecord, PaceRecord, Reported, resource_of_signal},
};
use serde_json::{Value, json, to_value};

use super::{
    CommandError,
    evictions::{EvictionSummary, Evictions, Wanted, each_record, evictions},
    print, state_dir_of,
    table::{Table, amount_of, bytes, or_dash, printable},
    to_json,
};
use crate::cli::input::bad;

mod page;
mod shadow;

/// Arguments of `evictd report`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The eviction: its id, the last characters of the id if only one incident ends with them, or `latest`; without an
    /// id: list all evictions
    incident: Option<String>,
    /// What shadow mode would have evicted, what the kubelet and the OOM killer did instead and when, and how often no
    /// other component saw a need
    #[arg(long, conflicts_with = "incident")]
    shadow: bool,
    /// How far --shadow looks back
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse, requires = "shadow")]
    since: Duration,
    /// List no more than so many, the newest
    #[arg(long, value_name = "N", conflicts_with_all = ["incident", "shadow"])]
    newest: Option<usize>,
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

/// Format in which a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// A picture, as SVG.
    Svg,
    /// A page with everything, as one HTML file that loads nothing.
    Html,
}

/// Prints the report. Returns what is missing in it, because a file cannot be read.
pub(super) fn run(
    arguments: &Arguments,
    stdout: &mut impl io::Write,
) -> Result<Option<CommandError>, CommandError> {
    let dir = state_dir(arguments)?;
    let lacks = match &arguments.incident {
        _ if arguments.shadow => compare(arguments, &dir, stdout)?,
        Some(wanted) => one(arguments, &dir, wanted, stdout)?,
        None => all(arguments, &dir, stdout)?,
    };
    Ok(lacks.error())
}

/// Files and lines that a report does not have.
struct MissingData {
    texts: Vec<String>,
    is_damage: bool,
}

impl MissingData {
    fn of(damage: &[Damage]) -> Self {
        Self {
            texts: damage.iter().map(ToString::to_string).collect(),
            is_damage: damage.iter().any(|damage| !damage.is_unknown_event),
        }
    }

    /// Adds incident files that cannot be read.
    fn and(mut self, files: impl IntoIterator<Item = String>) -> Self {
        let journal = self.texts.len();
        self.texts.extend(files);
        self.is_damage |= self.texts.len() > journal;
        self
    }

    fn error(self) -> Option<CommandError> {
        match self.is_damage {
            true => Some(CommandError::Damaged(self.texts)),
            false => (!self.texts.is_empty()).then_some(CommandError::PassedOver(self.texts)),
        }
    }
}

/// Refuses the formats for one incident where none is named.
fn refuse_picture(output: Format) -> Result<(), CommandError> {
    let option = match output {
        Format::Table | Format::Json => return Ok(()),
        Format::Svg => "-o svg",
        Format::Html => "-o html",
    };
    Err(bad(option, "shows one incident, and none is named"))
}

/// Prints a comparison of what shadow mode would have done with what happened.
fn compare(
    arguments: &Arguments,
    dir: &Path,
    stdout: &mut impl io::Write,
) -> Result<MissingData, CommandError> {
    refuse_picture(arguments.output)?;
    let mut coverage = shadow::Coverage::new(journal::is_cut(dir));
    let mut records = Vec::new();
    let damage = each_record(dir, |record| {
        coverage.note(&record);
        if shadow::Comparison::wants(&record) {
            records.push(record);
        }
    })?;
    let now = jiff::Timestamp::now();
    let since = now.checked_sub(arguments.since);
    let since = since.unwrap_or(jiff::Timestamp::MIN);
    let compared = shadow::Comparison::of(records, &coverage, since, now);
    let text = match arguments.output {
        Format::Json => to_json(&compared)?,
        _ => printable(compared.text()),
    };
    print(stdout, &text)?;
    Ok(MissingData::of(&damage))
}

/// Prints which evictions there were.
fn all(
    arguments: &Arguments,
    dir: &Path,
    stdout: &mut impl io::Write,
) -> Result<MissingData, CommandError> {
    refuse_picture(arguments.output)?;
    let wanted = arguments.newest.map_or(Wanted::All, Wanted::Newest);
    let (found, damage) = evictions(dir, wanted)?;
    match arguments.output {
        Format::Json => match print_list(&found, stdout) {
            // A reader that closes the pipe is no error.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        },
        _ => {
            let mut text = list(&found.known);
            let left_out = found.left_out();
            if left_out > 0 {
                text += &format!("\n{left_out} older ones are left out\n");
            }
            print(stdout, &text)?;
        }
    }
    let files = found.damaged.iter().map(ToString::to_string);
    Ok(MissingData::of(&damage).and(files))
}

/// Prints the list for programs, one eviction after the other: a full journal has thousands, and this runs beside an
/// agent, within its memory limit.
fn print_list(found: &Evictions, stdout: &mut impl io::Write) -> io::Result<()> {
    let mut separator = "[";
    for known in &found.known {
        let mut eviction = listed(known)?;
        if separator == "[" && found.left_out() > 0 {
            eviction["olderLeftOut"] = found.left_out().into();
        }
        stdout.write_all(separator.as_bytes())?;
        serde_json::to_writer(&mut *stdout, &eviction)?;
        separator = ",";
    }
    if found.known.is_empty() {
        stdout.write_all(b"[")?;
    }
    stdout.write_all(b"]\n")
}

/// Prints one eviction, from the journal where its incident file is damaged.
fn one(
    arguments: &Arguments,
    dir: &Path,
    wanted: &str,
    stdout: &mut impl io::Write,
) -> Result<MissingData, CommandError> {
    let (found, damage) = evictions(dir, Wanted::Named(wanted))?;
    let mut known = found.find(wanted, dir)?;
    let (reported, is_agreed) = (known.reported.take(), known.is_agreed);
    let incident = known.incident();
    let mut damaged = None;
    let incident = match files::read(dir, &incident.eviction.id) {
        // Its end may be in the journal alone, which is written first.
        Ok(Some(recorded)) => Incident {
            finish: incident.finish.or(recorded.finish),
            ..recorded
        },
        Ok(None) => incident,
        Err(error) => {
            damaged = Some(error.to_string());
            incident
        }
    };
    let text = match arguments.output {
        Format::Table => {
            let text = text(&incident, reported.as_ref());
            let note = if is_agreed {
                ""
            } else {
                "no agreement is known: its budget refused, or the API server did not answer\n"
            };
            printable(text + note)
        }
        Format::Json => to_json(&json!({ "incident": incident, "reported": reported }))?,
        Format::Html => page::page(&incident, reported.as_ref())?,
        Format::Svg => incident.picture()?.ok_or_else(|| match &damaged {
            Some(reason) => CommandError::Damaged(vec![reason.clone()]),
            None => bad(
                wanted,
                "was not recorded, so that there is nothing to draw; the journal has its stages",
            ),
        })?,
    };
    print(stdout, &text)?;
    Ok(MissingData::of(&damage).and(damaged))
}

fn state_dir(arguments: &Arguments) -> Result<PathBuf, CommandError> {
    if let Some(dir) = &arguments.state_dir {
        return Ok(dir.clone());
    }
    Ok(state_dir_of(arguments.config.as_deref())?)
}

/// An eviction as the list for programs has it.
fn listed(known: &EvictionSummary) -> io::Result<Value> {
    let mut eviction = to_value(&known.eviction)?;
    if let Some(asked) = &known.asked {
        eviction["gracePeriodSeconds"] = asked.grace_period_seconds.into();
        eviction["agreed"] = known.is_agreed.into();
    }
    Ok(eviction)
}

fn list(known: &[EvictionSummary]) -> String {
    let mut table = Table::new("TIME  POD  SIGNAL  AVAILABLE>  THRESHOLD>  NOTE  INCIDENT");
    for known in known {
        let eviction = &known.eviction;
        table.row([
            eviction.time.clone(),
            name(eviction),
            eviction.signal.clone(),
            amount(eviction, eviction.available),
            amount(eviction, eviction.threshold),
            note(known),
            eviction.id.clone(),
        ]);
    }
    table.render()
}

/// A note on an eviction that was no kill.
pub(super) fn note(known: &EvictionSummary) -> String {
    let eviction = &known.eviction;
    match (&eviction.error, eviction.shadow, &known.asked) {
        (Some(error), ..) => format!("refused: {error}"),
        (None, true, _) => "shadow".to_owned(),
        (None, false, Some(_)) if !known.is_agreed => NOT_AGREED.to_owned(),
        (None, false, Some(asked)) => format!("asked, {} s", asked.grace_period_seconds),
        (None, false, None) => String::new(),
    }
}

/// Note on a request without a known agreement.
pub(super) const NOT_AGREED: &str = "asked, and not agreed to";

fn name(eviction: &EvictionRecord) -> String {
    match eviction.namespace.as_str() {
        "" => eviction.name.clone(),
        namespace => format!("{namespace}/{}", eviction.name),
    }
}

fn amount(eviction: &EvictionRecord, amount: u64) -> String {
    // A limit of the pod's own is one of bytes.
    let resource = resource_of_signal(&eviction.signal).unwrap_or(Resource::EphemeralStorage);
    amount_of(resource, amount.into())
}

/// Describes what happened to the pod, without the time.
fn heading(incident: &Incident) -> String {
    if incident.eviction.error.is_some() {
        let name = name(&incident.eviction);
        return format!("{name} was chosen; the kernel refused SIGKILL");
    }
    let was = match incident.eviction.shadow {
        true => "would have been",
        false => "was",
    };
    let done = match &incident.asked {
        Some(asked) => format!("asked to go within {} s", asked.grace_period_seconds),
        None => "evicted".to_owned(),
    };
    format!("{} {was} {done}", name(&incident.eviction))
}

fn text(incident: &Incident, reported: Option<&Reported>) -> String {
    let eviction = &incident.eviction;
    let mut text = format!(
        "{} at {}\n\n{}\n\n{}",
        heading(incident),
        eviction.time,
        eviction.message.trim(),
        eviction.signal,
    );
    text += &match Cause::named(&eviction.signal) {
        // The message has the amounts.
        Some(Cause::LocalStorage(_)) => format!("; hook: {}\n\n", eviction.hook),
        _ => format!(
            ": {} available, threshold {}; hook: {}\nthe pod used {}, and had requested {}\n\n",
            amount(eviction, eviction.available),
            amount(eviction, eviction.threshold),
            eviction.hook,
            amount(eviction, eviction.working_set),
            amount(eviction, eviction.request)
        ),
    };
    if let Some(pace) = &eviction.pace {
        text += &format!("{}\n", urgency(eviction, pace));
        text += &format!(
            "{}\n\n",
            expectation(eviction, pace, incident.finish.as_ref())
        );
    }
    let start = incident.start();
    for (name, time) in incident.moments() {
        let since = time.saturating_sub(start) as f64 / 1000.0;
        text += &format!("{since:>14.0} us  {name}\n");
    }
    text.push('\n');
    let asked = incident.asked.as_ref();
    if let Some(why) = asked.and_then(|asked| asked.override_reason.as_ref()) {
        text += &format!("its PodDisruptionBudget was overridden: {why}\n");
    }
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
        Some(finish) if asked.is_some() => {
            text += &format!(
                "at the end {} were available\n",
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

/// Why the pod went at that moment.
fn urgency(eviction: &EvictionRecord, pace: &PaceRecord) -> String {
    let amount = |bytes| amount(eviction, bytes);
    match pace {
        PaceRecord {
            by_kernel: true, ..
        } => "killed by the kernel's program: the agent had not come by then".to_owned(),
        PaceRecord { urgent: true, .. } => format!(
            "urgent: {} were left, used up in {:.1} s at {} per second; the kubelet looks every 10 s",
            amount(pace.room),
            pace.exhausted_in as f64 / 1e9,
            amount(pace.growth),
        ),
        PaceRecord {
            only_cache: true, ..
        } => {
            "not urgent: page cache has met the threshold for 10 s or more; one pod in 10 s at most"
                .to_owned()
        }
        _ => format!(
            "not urgent: {} were left and did not go fast; one pod in 10 s at most",
            amount(pace.room)
        ),
    }
}

/// Describes what the victim was expected to give back, and what it gave.
fn expectation(
    eviction: &EvictionRecord,
    pace: &PaceRecord,
    finish: Option<&OutcomeRecord>,
) -> String {
    let amount = |bytes| amount(eviction, bytes);
    let mut text = format!("expected to come: {}", amount(pace.expected));
    if pace.shmem > 0 {
        let shared = amount(pace.shmem);
        text += &format!(", {shared} of it when the kubelet unmounts it");
    }
    if pace.pending > 0 {
        text += &format!(", {} from victims of before", amount(pace.pending));
    }
    if let Some(finish) = finish {
        let came = finish.available.saturating_sub(eviction.available);
        text += &format!("; {} more were available at the end", amount(came));
    }
    text
}

fn standings(pods: &[RankedPod]) -> String {
    let mut table = Table::new("#>  POD  USAGE>  REQUEST>  PRIORITY>  QOS  NOTE");
    for (position, pod) in pods.iter().enumerate() {
        table.row([
            pod.place.unwrap_or(position + 1).to_string(),
            pod.pod.clone(),
            or_dash(pod.usage.map(|usage| bytes(usage.into()))),
            bytes(pod.request.into()),
            priority(pod),
            pod.qos_class.clone(),
            notes(pod).join(", "),
        ]);
    }
    table.render()
}

/// A priority that is not known is none.
fn priority(pod: &RankedPod) -> String {
    or_dash((!pod.priority_unknown).then_some(pod.priority))
}

/// Lists what the numbers of a pod do not explain about its place.
fn notes(pod: &RankedPod) -> Vec<String> {
    let mut notes = Vec::new();
    if pod.evicted {
        notes.push("evicted".to_owned());
    }
    if pod.order != 0 {
        notes.push(format!("a policy's order {}", pod.order));
    }
    if pod.priority_unknown {
        notes.push("its priority is not known: ranked last".to_owned());
    }
    if pod.terminating {
        notes.push("evicted before, still ending".to_owned());
    }
    if pod.empty {
        notes.push("without processes".to_owned());
    }
    if pod.protected {
        notes.push("protected".to_owned());
    }
    if let Some(why) = &pod.spared {
        notes.push(match why.as_str() {
            "" => "denied by a policy".to_owned(),
            why => format!("denied: {why}"),
        });
    }
    notes
}

#[cfg(test)]
mod tests;
