//! An incident as one HTML file: no script, nothing loaded, light and dark, on paper and 400 pixels wide.

use std::io;

use evictd_engine::{Cause, RankKey, Resource, pace::PaceInputs};
use evictd_store::{
    chart::STYLE as CHART_STYLE,
    incident::{Incident, RankedPod},
    record::{PaceRecord, Reported, resource_of_signal},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{amount, expectation, heading, name, notes, priority, urgency};
use crate::cli::table::{bytes, or_dash};

const STYLE: &str = include_str!("page.css");
/// The policy for browsers: the page loads and runs nothing.
const CONTENT: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// Interval at which the kubelet looks, in nanoseconds.
const KUBELET_LOOKS_NS: f64 = evictd_engine::kubelet_times::MONITORING_INTERVAL_NS as f64;
/// Sizes of the chart, in pixels: on a screen or paper, and on a telephone.
const WIDE: (u32, u32) = (900, 400);
const NARROW: (u32, u32) = (370, 340);
/// Shares of pods; they repeat after so many.
const SHARES: [&str; 8] = [
    "#d55e00", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#4c6ef5", "#8c564b", "#bcbd22",
];

/// The page.
///
/// # Errors
/// The recorded times do not make a chart.
pub(super) fn page(incident: &Incident, reported: Option<&Reported>) -> io::Result<String> {
    let eviction = &incident.eviction;
    let title = heading(incident);
    let pace = eviction.pace.as_ref();
    let chart = chart(incident)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(CONTENT);
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(CHART_STYLE)) }
            }
            body { main {
                h1 { (title) }
                p.faint { (eviction.time) }
                blockquote { (eviction.message.trim()) }
                (facts(incident, reported))
                h2 { "Why at that moment" }
                @if let Some(pace) = pace {
                    p { (sentence(&urgency(eviction, pace))) }
                    p { (sentence(&expectation(eviction, pace, incident.finish.as_ref()))) }
                } @else {
                    p { "The reason for the moment was not recorded." }
                }
                h2 { "Stages" }
                (strip(incident, reported))
                h2 { (eviction.signal) }
                (chart)
                @if !incident.pods.is_empty() {
                    h2 { "Memory by pod" }
                    (shares(incident))
                    h2 { "Order of eviction" }
                    (ranking(incident))
                }
                h2 { "Without evictd" }
                p { (kubelet(incident)) }
                p { (oom_killer(incident)) }
                p.faint {
                    "Incident " (eviction.id) ". "
                    @if incident.pace_inputs.is_some() {
                        "The decision can be made again from its file: evictd replay incidents/" (eviction.id) ".json"
                    }
                }
            } }
        }
    };
    Ok(page.into_string())
}

/// A sentence: with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first
        .into_iter()
        .flatten()
        .chain(letters)
        .chain(['.'])
        .collect()
}

fn facts(incident: &Incident, reported: Option<&Reported>) -> Markup {
    let eviction = &incident.eviction;
    let mut facts = vec![
        ("available", amount(eviction, eviction.available)),
        ("threshold", amount(eviction, eviction.threshold)),
        ("the pod used", amount(eviction, eviction.working_set)),
        ("it had requested", amount(eviction, eviction.request)),
        ("hook", eviction.hook.clone()),
    ];
    if let Some(capacity) = incident.capacity {
        facts.push(("memory of the node", bytes(capacity.into())));
    }
    if let Some(finish) = incident.finish.as_ref().filter(|f| f.peak_usage > 0) {
        facts.push(("largest usage after", bytes(finish.peak_usage.into())));
    }
    let asked = incident.asked.as_ref();
    if let Some(why) = asked.and_then(|asked| asked.override_reason.as_ref()) {
        facts.push(("its budget was overridden", why.clone()));
    }
    if let Some(error) = &eviction.error {
        facts.push(("the kernel refused the signal", error.clone()));
    }
    if let Some(reported) = reported {
        facts.push(("the API server", reported.outcome.clone()));
    }
    html! { dl { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
}

/// The moments of the eviction in their order, each with the time since the first one in nanoseconds.
fn stages(incident: &Incident, reported: Option<&Reported>) -> Vec<(&'static str, u64)> {
    let eviction = &incident.eviction;
    let mut moments = incident.moments();
    if let Some(pace_inputs) = &incident.pace_inputs {
        let stages = eviction.stages;
        if (stages.woken..=stages.decided).contains(&pace_inputs.now) {
            moments.push(("sampled", pace_inputs.now));
        }
    }
    // The journal has both times by the wall clock; the record is made just after the signal.
    let wall = |time: &str| time.parse::<jiff::Timestamp>().ok();
    let took = reported.and_then(|r| Some(wall(&r.time)?.duration_since(wall(&eviction.time)?)));
    if let Some(nanos) = took.and_then(|took| u64::try_from(took.as_nanos()).ok()) {
        let signalled = eviction.stages.signalled;
        moments.push(("reported", signalled.saturating_add(nanos)));
    }
    moments.sort_by_key(|(_, time)| *time);
    let start = incident.start();
    let since = |(name, time): (_, u64)| (name, time.saturating_sub(start));
    moments.into_iter().map(since).collect()
}

fn strip(incident: &Incident, reported: Option<&Reported>) -> Markup {
    let mut before = 0;
    html! { ol.strip { @for (name, since) in stages(incident, reported) {
        li {
            b { (name) }
            span { (duration(since)) }
            span.faint { "+" (duration(since - std::mem::replace(&mut before, since))) }
        }
    } } }
}

/// Nanoseconds, in the shortest form.
fn duration(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        0.0 => "0".to_owned(),
        n if n < 1e6 => format!("{:.0} \u{b5}s", n / 1e3),
        n if n < 1e8 => format!("{:.1} ms", n / 1e6),
        n if n < 1e9 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.1} s", n / 1e9),
    }
}

fn chart(incident: &Incident) -> io::Result<Markup> {
    let Some(chart) = incident.chart() else {
        return Ok(html! { p { "What was available before and after was not recorded." } });
    };
    let (wide, narrow) = (chart.draw(WIDE)?, chart.draw(NARROW)?);
    let about = "What was available over time, and the limits it is held against";
    Ok(html! { figure role="img" aria-label=(about) {
        div.wide { (PreEscaped(wide)) }
        div.narrow { (PreEscaped(narrow)) }
    } })
}

/// Builds the part that shows what each pod had of the node's memory when the decision was made, and at the end.
fn shares(incident: &Incident) -> Markup {
    let finish = incident.finish.as_ref();
    let after = finish.map(|finish| finish.available);
    let is_known = incident.pods.iter().any(|pod| pod.usage_after.is_some());
    html! {
        p { "At the decision" }
        (bar(incident, Some(incident.eviction.available), |pod| pod.usage))
        @if is_known {
            p { "When the incident was written" }
            (bar(incident, after, |pod| pod.usage_after))
        }
        ul.legend {
            @for (pod, colour) in incident.pods.iter().zip(SHARES.iter().cycle()) {
                li { span.swatch style={ "background:" (colour) } {} (pod.pod) }
            }
            @if incident.capacity.is_some() {
                li { span.swatch.other {} "everything else" }
                li { span.swatch.free {} "available" }
            }
        }
    }
}

fn bar(
    incident: &Incident,
    available: Option<u64>,
    usage: impl Fn(&RankedPod) -> Option<u64>,
) -> Markup {
    let used: Vec<u64> = incident
        .pods
        .iter()
        .map(|p| usage(p).unwrap_or(0))
        .collect();
    let total = used
        .iter()
        .fold(0_u64, |sum, used| sum.saturating_add(*used));
    let rest = incident.capacity.zip(available);
    let rest = rest.map(|(all, free)| (all.saturating_sub(free).saturating_sub(total), free));
    html! { div.bar {
        @for ((pod, used), colour) in incident.pods.iter().zip(&used).zip(SHARES.iter().cycle()) {
            @let label = format!("{}: {}", pod.pod, bytes((*used).into()));
            i title=(label) style={ "flex:" (used) " 0 0;background:" (colour) } {}
        }
        @if let Some((other, free)) = rest {
            i.other title={ "everything else: " (bytes(other.into())) } style={ "flex:" (other) " 0 0" } {}
            i.free title={ "available: " (bytes(free.into())) } style={ "flex:" (free) " 0 0" } {}
        }
    } }
}

fn ranking(incident: &Incident) -> Markup {
    html! { table {
        thead { tr {
            th { "#" } th { "pod" } th.number { "usage" } th.number { "request" } th.number { "priority" }
            th { "QoS" } th.number { "OOM score" } th { "why there" }
        } }
        tbody { @for (position, pod) in incident.pods.iter().enumerate() {
            tr.evicted[pod.evicted] {
                td data-label="#" { (pod.place.unwrap_or(position + 1)) }
                td data-label="pod" { (pod.pod) }
                td.number data-label="usage" { (or_dash(pod.usage.map(|u| bytes(u.into())))) }
                td.number data-label="request" { (bytes(pod.request.into())) }
                td.number data-label="priority" { (priority(pod)) }
                td data-label="QoS" { (pod.qos_class) }
                td.number data-label="OOM score" { (or_dash(pod.oom_score_adj)) }
                td data-label="why there" { (reason(pod)) }
            }
        } }
    } }
}

/// Why a pod stands where it stands, and whether it could go.
fn reason(pod: &RankedPod) -> String {
    let mut reasons = notes(pod);
    let usage = match pod.usage {
        None => "no numbers".to_owned(),
        Some(usage) if usage > pod.request => {
            format!("{} above its request", bytes((usage - pod.request).into()))
        }
        Some(usage) => format!("{} below its request", bytes((pod.request - usage).into())),
    };
    reasons.insert(usize::from(pod.evicted), usage);
    reasons.join(", ")
}

/// What the kubelet would have done, and when: it synchronizes every ten seconds, at a moment that is not known here.
fn kubelet(incident: &Incident) -> String {
    let eviction = &incident.eviction;
    let recorded = incident.kubelet_victim.as_deref();
    let choice = recorded.or_else(|| kubelet_choice(&incident.pods));
    let choice = choice.unwrap_or("a pod by its own order");
    if incident.asked.is_some() {
        return format!(
            "The kubelet would have asked {choice} to go at its first look after the grace period of the soft \
            threshold, at most 10 s later."
        );
    }
    if let Some(Cause::LocalStorage(_)) = Cause::named(&eviction.signal) {
        return "The kubelet would have evicted this pod at its next look, at most 10 s later: it exceeded a limit of \
            its own."
            .to_owned();
    }
    let by_kernel = eviction.pace.as_ref().is_some_and(|pace| pace.by_kernel);
    if by_kernel {
        return "What the kubelet would have found is not known: the kernel's program has killed, before the agent looked."
            .to_owned();
    }
    let counted = eviction.kubelet_available.unwrap_or(eviction.available);
    let inputs = incident.pace_inputs.as_ref();
    let needed = inputs.map_or(0, PaceInputs::kubelet_needs);
    if counted >= eviction.threshold.max(needed) {
        return "The kubelet would have done nothing: by its count the threshold was not met."
            .to_owned();
    }
    match &eviction.pace {
        Some(pace) if pace.urgent && (pace.exhausted_in as f64) < KUBELET_LOOKS_NS => {
            let chance = pace.exhausted_in as f64 / KUBELET_LOOKS_NS * 100.0;
            let chance = match chance {
                c if c < 1.0 => "less than 1".to_owned(),
                c => format!("{c:.0}"),
            };
            format!(
                "The kubelet looks every 10 s, and would have evicted {choice} at its next look. Nothing would have \
                been left after {}: it would have come in time in {chance} of 100 cases.",
                duration(pace.exhausted_in)
            )
        }
        _ => {
            format!("The kubelet would have evicted {choice} at its next look, at most 10 s later.")
        }
    }
}

/// The pod that the kubelet's own order puts first among those that are recorded, for files of older versions, which do
/// not name it.
fn kubelet_choice(pods: &[RankedPod]) -> Option<&str> {
    let key = |pod: &&RankedPod| RankKey::for_kubelet(pod.priority, pod.request, pod.usage);
    let first = pods.iter().filter(|pod| !pod.protected).min_by_key(key);
    first.map(|pod| pod.pod.as_str())
}

fn oom_killer(incident: &Incident) -> String {
    let eviction = &incident.eviction;
    if resource_of_signal(&eviction.signal) != Some(Resource::Memory) {
        return "The OOM killer has no part in this: memory was not short.".to_owned();
    }
    let when = match &eviction.pace {
        Some(PaceRecord {
            urgent: true,
            by_kernel: false,
            exhausted_in,
            ..
        }) => format!(", {} after the decision", duration(*exhausted_in)),
        _ => String::new(),
    };
    match &incident.oom_victim {
        None => "What the OOM killer would have chosen was not recorded.".to_owned(),
        Some(pod) if *pod == name(eviction) => {
            format!("The OOM killer would have taken a process of the same pod{when}.")
        }
        Some(pod) => format!("The OOM killer would have taken a process of {pod} instead{when}."),
    }
}

#[cfg(test)]
mod tests;
