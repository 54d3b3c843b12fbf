//! `evictd report --shadow`: what shadow mode would have done, and what happened instead.

use std::collections::BTreeSet;

use evictd_store::record::{EvictionRecord, Record, oom_kill::OomCause};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::cli::table::{Table, or_dash};

/// Time after a decision in which an eviction or kill is its counterpart: the kubelet's pressure transition period.
const CONSEQUENCES: SignedDuration = SignedDuration::from_mins(5);

/// The comparison of a stretch of time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comparison {
    /// Begin of the stretch, as RFC 3339.
    since: String,
    /// Beginning of the journal where that is later than `since`: nothing is known of the time before.
    #[serde(skip_serializing_if = "Option::is_none")]
    covers_since: Option<String>,
    /// Decisions of shadow mode to evict, oldest first.
    would_evict: Vec<Decision>,
    /// Number of those decisions that the kubelet followed with an eviction of its own.
    kubelet_acted: usize,
    /// Number of decisions that the OOM killer followed.
    oom_killer_acted: usize,
    /// Number of decisions that neither followed: no other component saw a need.
    nothing_followed: usize,
    /// Number of decisions that are too recent to tell.
    undecided: usize,
    /// Evictions by the kubelet, and kills for want of the node's memory, before which shadow mode had decided nothing.
    unforeseen: Vec<Foreign>,
    /// Number of times that the Node's conditions would have changed.
    node_changes: usize,
}

/// A decision of shadow mode.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    time: String,
    pod: String,
    signal: String,
    message: String,
    /// The kubelet's first eviction after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kubelet: Option<Foreign>,
    /// The OOM killer's first kill after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_killer: Option<Foreign>,
    #[serde(skip)]
    at: Timestamp,
}

/// Action of another component.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Foreign {
    time: String,
    pod: String,
    /// `kubelet` or `oomKiller`.
    by: &'static str,
    /// After the decision, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_seconds: Option<f64>,
    #[serde(skip)]
    at: Timestamp,
}

/// Since when a journal is complete.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// Older files are gone: records that were carried over from them do not cover their time.
    is_cut: bool,
    /// The first record; of a journal that is cut, the first one that is not carried over.
    first: Option<Timestamp>,
}

impl Coverage {
    pub(super) fn new(is_cut: bool) -> Self {
        Self {
            is_cut,
            first: None,
        }
    }

    /// Notes a record of the journal; in any order.
    pub(super) fn note(&mut self, record: &Record) {
        if self.is_cut && record.may_be_carried_over() {
            return;
        }
        let at = record.time().and_then(|time| time.parse().ok());
        self.first = self.first.into_iter().chain(at).min();
    }
}

/// Records of a journal since a moment, in the order of time.
#[derive(Default)]
struct Gathered {
    /// Decisions of shadow mode; those of [`CONSEQUENCES`] before the moment too, for they have to do with what
    /// follows.
    decisions: Vec<(Timestamp, EvictionRecord)>,
    foreign: Vec<Foreign>,
    node_changes: usize,
}

impl Gathered {
    fn of(records: impl IntoIterator<Item = Record>, since: Timestamp) -> Self {
        let mut gathered = Self::default();
        let mut known = BTreeSet::new();
        let time = |text: &str| text.parse::<Timestamp>().ok().filter(|at| *at >= since);
        let mut decide = |decisions: &mut Vec<_>, eviction: EvictionRecord| {
            // A record that waited for the API server is carried over into a new file, and is there twice.
            let at = eviction.time.parse::<Timestamp>().ok();
            if let Some(at) =
                at.filter(|at| eviction.shadow && since.duration_since(*at) <= CONSEQUENCES)
                && known.insert(eviction.id.clone())
            {
                decisions.push((at, eviction));
            }
        };
        for record in records {
            match record {
                Record::Evicted(eviction) => decide(&mut gathered.decisions, *eviction),
                Record::Requested(asked) => decide(&mut gathered.decisions, asked.as_ref().into()),
                Record::KubeletEvicted(e) => {
                    gathered.foreign.extend(time(&e.time).map(|at| Foreign {
                        pod: e.pod(),
                        time: e.time,
                        by: "kubelet",
                        after_seconds: None,
                        at,
                    }));
                }
                // A pod at a limit of its own says nothing about the node.
                Record::OomKill(kill)
                    if matches!(kill.cause, OomCause::Machine | OomCause::Scope) =>
                {
                    let pod = match &kill.pod {
                        Some(pod) => pod.to_string(),
                        None => format!("{} (no pod)", kill.comm),
                    };
                    gathered.foreign.extend(time(&kill.time).map(|at| Foreign {
                        time: kill.time.clone(),
                        pod,
                        by: "oomKiller",
                        after_seconds: None,
                        at,
                    }));
                }
                Record::ShadowNode(node) => {
                    gathered.node_changes += usize::from(time(&node.time).is_some());
                }
                _ => {}
            }
        }
        gathered.decisions.sort_by_key(|(at, _)| *at);
        gathered.foreign.sort_by_key(|f| f.at);
        gathered
    }
}

impl Comparison {
    /// Whether a record is compared.
    pub(super) fn wants(record: &Record) -> bool {
        matches!(
            record,
            Record::Evicted(_)
                | Record::Requested(_)
                | Record::KubeletEvicted(_)
                | Record::OomKill(_)
                | Record::ShadowNode(_)
        )
    }

    /// Compares what a journal has since a moment until now.
    pub(super) fn of(
        records: impl IntoIterator<Item = Record>,
        coverage: &Coverage,
        since: Timestamp,
        now: Timestamp,
    ) -> Self {
        // An empty journal covers no time.
        let begins = coverage.first.unwrap_or(now);
        // A decision in a file that is gone may have foreseen what came shortly after.
        let is_known = |at: Timestamp| {
            let known = at.duration_since(begins);
            !known.is_negative() && (!coverage.is_cut || known > CONSEQUENCES)
        };
        let Gathered {
            decisions,
            foreign,
            node_changes,
        } = Gathered::of(records, since);
        let is_after = |f: &Foreign, at: Timestamp| {
            let after = f.at.duration_since(at);
            !after.is_negative() && after <= CONSEQUENCES
        };
        let first = |at: Timestamp, by: &str| {
            let mut found = foreign
                .iter()
                .find(|f| f.by == by && is_after(f, at))?
                .clone();
            found.after_seconds = Some(found.at.duration_since(at).as_secs_f64());
            Some(found)
        };
        let unforeseen = foreign
            .iter()
            .filter(|f| is_known(f.at) && !decisions.iter().any(|(at, _)| is_after(f, *at)))
            .cloned()
            .collect();
        let would_evict: Vec<Decision> = decisions
            .iter()
            .filter(|(at, _)| *at >= since)
            .map(|(at, eviction)| Decision {
                at: *at,
                time: eviction.time.clone(),
                pod: super::name(eviction),
                signal: eviction.signal.clone(),
                message: eviction.message.trim().to_owned(),
                kubelet: first(*at, "kubelet"),
                oom_killer: first(*at, "oomKiller"),
            })
            .collect();
        let count =
            |wanted: &dyn Fn(&Decision) -> bool| would_evict.iter().filter(|d| wanted(d)).count();
        let has_none = |d: &Decision| d.kubelet.is_none() && d.oom_killer.is_none();
        let is_young = |d: &Decision| now.duration_since(d.at) < CONSEQUENCES;
        Self {
            since: since.to_string(),
            covers_since: (begins > since).then(|| begins.to_string()),
            kubelet_acted: count(&|d| d.kubelet.is_some()),
            oom_killer_acted: count(&|d| d.oom_killer.is_some()),
            nothing_followed: count(&|d| has_none(d) && !is_young(d)),
            undecided: count(&|d| has_none(d) && is_young(d)),
            would_evict,
            unforeseen,
            node_changes,
        }
    }

    /// Formats the comparison for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "since {}: {} pods would have been evicted\n  the kubelet evicted within 5 min after {} of these \
            decisions\n  \
             the OOM killer killed within 5 min after {}\n  neither did after {}: no other component saw a need\n  \
             the Node's conditions would have changed {} times\n",
            self.since,
            self.would_evict.len(),
            self.kubelet_acted,
            self.oom_killer_acted,
            self.nothing_followed,
            self.node_changes,
        );
        if let Some(begins) = &self.covers_since {
            text +=
                &format!("  the journal begins at {begins}: nothing is known of the time before\n");
        }
        if self.undecided > 0 {
            let young = self.undecided;
            text += &format!("  of {young} it is too early to say: they are less than 5 min old\n");
        }
        if !self.would_evict.is_empty() {
            let mut table = Table::new("TIME  POD  SIGNAL  KUBELET  OOM KILLER");
            for decision in &self.would_evict {
                table.row([
                    decision.time.clone(),
                    decision.pod.clone(),
                    decision.signal.clone(),
                    cell(decision.kubelet.as_ref()),
                    cell(decision.oom_killer.as_ref()),
                ]);
            }
            text += &format!("\n{}", table.render());
        }
        if !self.unforeseen.is_empty() {
            text += "\nwithout a decision before:\n";
            for foreign in &self.unforeseen {
                text += &format!("  {} {} {}\n", foreign.time, foreign.by, foreign.pod);
            }
        }
        text
    }
}

fn cell(foreign: Option<&Foreign>) -> String {
    or_dash(foreign.map(|foreign| {
        let after = foreign.after_seconds.unwrap_or_default();
        format!("{} after {after:.1} s", foreign.pod)
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn records() -> Vec<Record> {
        let eviction = |id: &str, time: &str, shadow: bool| {
            json!({
                "event": "evicted", "id": id, "time": time, "namespace": "shop", "name": "web", "uid": id,
                "reason": "Evicted",
                "message": "low\n", "signal": "memory.available", "shadow": shadow, "hook": "sampler",
                "stages": {"crossed": 0, "woken": 0, "decided": 0, "signalled": 0}, "available": 1, "threshold": 2,
                "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0,
            })
        };
        let kubelet = |time: &str, name: &str| {
            json!({
                "event": "kubeletEvicted", "time": time, "namespace": "shop", "name": name, "uid": name,
                "message": "m",
            })
        };
        let oom = |time: &str, cause: &str| {
            json!({
                "event": "oomKill", "time": time, "at": 0, "pid": 7, "comm": "java", "cgroup": "", "oomScoreAdj": 0,
                "cause": cause, "before": [], "wasFirst": true,
            })
        };
        let lines: Vec<Value> = vec![
            eviction("old", "2026-11-22T00:00:00Z", true),
            eviction("a", "2026-11-22T02:00:00Z", true),
            eviction("a", "2026-11-22T02:00:00Z", true),
            kubelet("2026-11-22T02:00:09.5Z", "api"),
            oom("2026-11-22T02:01:00Z", "machine"),
            eviction("real", "2026-11-22T03:00:00Z", false),
            eviction("b", "2026-11-22T04:00:00Z", true),
            oom("2026-11-22T04:01:00Z", "podLimit"),
            kubelet("2026-11-22T04:06:00Z", "late"),
            json!({"event": "shadowNode", "id": "n", "time": "2026-11-22T04:00:00Z",
                "conditions": ["MemoryPressure"], "message": "m"}),
        ];
        let read = |line: Value| serde_json::from_value(line).expect("a record");
        lines.into_iter().map(read).collect()
    }

    fn coverage(records: &[Record], is_cut: bool) -> Coverage {
        let mut coverage = Coverage::new(is_cut);
        records.iter().for_each(|record| coverage.note(record));
        coverage
    }

    fn compare(records: Vec<Record>, since: Timestamp, now: Timestamp) -> Comparison {
        let coverage = coverage(&records, false);
        Comparison::of(records, &coverage, since, now)
    }

    #[test]
    fn each_decision_is_compared_with_what_followed() {
        let since = "2026-11-22T01:00:00Z".parse().expect("a time");
        let compared = compare(records(), since, Timestamp::MAX);
        let counts = (
            compared.would_evict.len(),
            compared.kubelet_acted,
            compared.oom_killer_acted,
            compared.nothing_followed,
            compared.node_changes,
        );
        assert_eq!(counts, (2, 1, 1, 1, 1));
        let kubelet = compared.would_evict[0].kubelet.as_ref().expect("it acted");
        assert_eq!(
            (kubelet.pod.as_str(), kubelet.after_seconds),
            ("shop/api", Some(9.5))
        );
        let unforeseen: Vec<&str> = compared.unforeseen.iter().map(|f| f.pod.as_str()).collect();
        assert_eq!(unforeseen, ["shop/late"], "more than five minutes later");
        let text = compared.text();
        assert!(text.contains("2 pods would have been evicted"), "{text}");
        assert!(text.contains("shop/api after 9.5 s"), "{text}");
        assert!(
            text.contains("neither did after 1: no other component saw a need"),
            "{text}"
        );
    }

    #[test]
    fn the_ends_of_the_time_make_no_difference() {
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        // The decision was made before, what followed comes after.
        let since = time("2026-11-22T02:00:05Z");
        let late = compare(records(), since, Timestamp::MAX);
        let unforeseen: Vec<&str> = late.unforeseen.iter().map(|f| f.pod.as_str()).collect();
        assert_eq!(unforeseen, ["shop/late"]);
        assert_eq!(late.would_evict.len(), 1);
        // Of the last one it is not known yet.
        let now = time("2026-11-22T04:00:03Z");
        let early = compare(records(), since, now);
        assert_eq!((early.nothing_followed, early.undecided), (0, 1));
        assert!(early.text().contains("of 1 it is too early to say"));
    }

    #[test]
    fn what_the_journal_does_not_cover_is_said() {
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let since = time("2026-11-21T00:00:00Z");
        let whole = compare(records(), since, Timestamp::MAX);
        assert_eq!(whole.covers_since.as_deref(), Some("2026-11-22T00:00:00Z"));
        let line =
            "the journal begins at 2026-11-22T00:00:00Z: nothing is known of the time before";
        assert!(whole.text().contains(line), "{}", whole.text());
        let later = compare(records(), time("2026-11-22T00:00:00Z"), Timestamp::MAX);
        assert_eq!(later.covers_since, None);
        // Evictions may be carried over into the files that are left: they say nothing about their time.
        let cut: Vec<Record> = records().split_off(6);
        let coverage = coverage(&cut, true);
        let cut = Comparison::of(cut, &coverage, since, Timestamp::MAX);
        assert_eq!(cut.covers_since.as_deref(), Some("2026-11-22T04:00:00Z"));
        let late: Vec<&str> = cut.unforeseen.iter().map(|f| f.pod.as_str()).collect();
        assert_eq!(late, ["shop/late"]);
        let empty = compare(Vec::new(), since, Timestamp::MAX);
        assert!(empty.covers_since.is_some());
    }

    #[test]
    fn the_end_of_all_time_is_a_time() {
        let mut records = records();
        for record in &mut records {
            if let Record::Evicted(eviction) = record {
                "9999-12-30T22:00:00.99Z".clone_into(&mut eviction.time);
            }
        }
        let compared = compare(records, Timestamp::MIN, Timestamp::MAX);
        assert_eq!(compared.would_evict.len(), 3);
        assert_eq!(compared.undecided, 3);
    }
}
