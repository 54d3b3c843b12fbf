//! Events about evicted pods and about the node (events.k8s.io/v1).
//!
//! An Event's name is made of the eviction that it is about: the same one sent twice, because the agent or the answer
//! was lost in between, is refused the second time and exists once. (`generateName` cannot do that, and one that ends
//! in a dot is refused by a 1.36 server.) What happens to the node again and again is one Event with a count.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use evictd_engine::{
    Signal,
    fleet::{FleetPace, FleetState},
    message::EVICTED,
    model::quantity::Quantity,
    units::signed,
};
use evictd_store::record::{
    EvictionRecord, Record, RequestRecord, is_own_limit,
    oom_kill::{OomCause, OomKillRecord},
};
use http::Method;
use serde_json::{Value, json};

use super::client::{ApiClient, ApiError, ApiRequest, JSON, MERGE};
use crate::eviction_api::PodRef;

/// `reportingController` of all Events.
pub(crate) const CONTROLLER: &str = "evictd";
/// Reason of an Event about a pod that was evicted although a PodDisruptionBudget protected it.
pub const OVERRIDDEN: &str = "EvictedDespiteBudget";
/// Reason of an Event about a pod that would have been evicted.
const WOULD_EVICT: &str = "WouldEvict";
/// Reason of an Event about a pod whose SIGKILL the kernel has refused.
const REFUSED: &str = "EvictionRefused";
/// Reason of an Event about an evicted pod whose processes do not end.
const STUCK: &str = "EvictedPodStuck";
/// Reason of an Event about a pod whose process the OOM killer has killed at the pod's own limit.
const OOM_AT_POD_LIMIT: &str = "OOMKilledAtPodLimit";
/// Reason of an Event about a threshold that is met as it comes into force.
const MET_IN_FORCE: &str = "EvictionThresholdMetInForce";
/// Reason of an Event about what the Node would say.
const WOULD_SET_CONDITIONS: &str = "WouldSetConditions";
/// Reason of an Event about the fleet brake.
const FLEET_BRAKE: &str = "FleetBrakePulled";
/// Namespace of Events about nodes, which have none themselves.
pub(crate) const NODE_NAMESPACE: &str = "default";
/// Longest note that the API takes, in bytes.
const NOTE_BYTES: usize = 1024;
/// Longest `reportingInstance` that the API takes, in bytes; the name of a node may be longer.
const INSTANCE_BYTES: usize = 128;
/// Longest name that the API takes, in bytes.
const NAME_BYTES: usize = 253;
/// Longest gap between evictions for which the node has one Event for all of them.
pub(crate) const SERIES_GAP: Duration = Duration::from_secs(600);
/// Shortest interval at which the count of such an Event is brought up to date.
const SERIES_PAUSE: Duration = Duration::from_secs(30);

/// Creates Events.
#[derive(Debug)]
pub struct Events {
    node: String,
    series: BTreeMap<String, Series>,
}

/// Content of an Event on a pod.
#[derive(Clone, Debug)]
pub struct EventSpec<'a> {
    /// The pod.
    pub pod: PodRef<'a>,
    /// Identifies what has happened: the same twice is one Event.
    pub id: &'a str,
    /// Time of what has happened, as RFC 3339.
    pub time: &'a str,
    /// `Evicted` for instance.
    pub reason: &'static str,
    /// Why, for people.
    pub note: String,
    /// Why, for programs, as the kubelet annotates its Event.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

impl<'a> From<&'a EvictionRecord> for EventSpec<'a> {
    fn from(eviction: &'a EvictionRecord) -> Self {
        Self {
            pod: eviction.into(),
            id: &eviction.id,
            time: &eviction.time,
            reason: match (eviction.shadow, &eviction.error) {
                (true, _) => WOULD_EVICT,
                (false, Some(_)) => REFUSED,
                (false, None) => EVICTED,
            },
            note: note(eviction),
            annotations: Some(&eviction.annotations),
        }
    }
}

/// One Event of the node that has happened several times.
#[derive(Debug)]
struct Series {
    name: String,
    count: u32,
    sent: u32,
    last: Instant,
    last_sent: Instant,
    last_time: String,
}

impl Events {
    /// Events of this node.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            series: BTreeMap::new(),
        }
    }

    /// Creates the Event of an eviction on the pod. Once for each eviction, however often it is called.
    ///
    /// # Errors
    /// No answer, or a refusal; that it is known already is none.
    pub async fn about_pod(
        &self,
        client: &ApiClient,
        event: &EventSpec<'_>,
    ) -> Result<(), ApiError> {
        create(client, &self.of_pod(event)).await
    }

    /// The Event that says this of a pod.
    pub(crate) fn of_pod(&self, event: &EventSpec<'_>) -> Value {
        let pod = event.pod;
        let mut object = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": name(pod.name, event.id),
                "namespace": pod.namespace,
            },
            "eventTime": micro_time(event.time),
            "reportingController": CONTROLLER,
            "reportingInstance": self.instance(),
            "action": if event.reason == OOM_AT_POD_LIMIT { "Killing" } else { "Evicting" },
            "reason": event.reason,
            "type": if event.reason == WOULD_EVICT { "Normal" } else { "Warning" },
            "note": cut(event.note.clone(), NOTE_BYTES),
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "related": self.node_reference(),
        });
        if let Some(annotations) = event.annotations.filter(|a| !a.is_empty()) {
            object["metadata"]["annotations"] = json!(annotations);
        }
        object
    }

    /// The Event of a record that is about no kill itself: a stuck pod, a pod at its own limit, a threshold that is met as
    /// it comes into force, or a pod that shadow mode would have asked to end.
    pub(crate) fn of_record(&self, record: &Record) -> Option<Value> {
        Some(match record {
            Record::Stuck(stuck) => {
                let event = EventSpec {
                    pod: stuck.into(),
                    id: &format!("{}-stuck", stuck.id),
                    time: &stuck.time,
                    reason: STUCK,
                    note: format!(
                        "The pod was evicted and its processes do not end; it still uses {}",
                        Quantity::bytes(stuck.usage)
                    ),
                    annotations: None,
                };
                self.of_pod(&event)
            }
            Record::OomKill(kill) if kill.cause == OomCause::PodLimit => {
                let pod = kill.pod.as_ref()?;
                let event = EventSpec {
                    pod: pod.into(),
                    id: &format!("{}-oom-{}-{}", pod.uid, kill.time, kill.pid),
                    time: &kill.time,
                    reason: OOM_AT_POD_LIMIT,
                    note: oom_note(kill),
                    annotations: None,
                };
                self.of_pod(&event)
            }
            Record::MetInForce(met) => {
                let amount = |units| quantity(&met.signal, units);
                let note = format!(
                    "The threshold of {} was already met when it came into force: {} available, {} wanted; {}.",
                    met.signal,
                    amount(met.available),
                    amount(met.threshold),
                    met.consequence(),
                );
                let what = ("Configuring", MET_IN_FORCE, "Warning");
                self.node_event(&met.id, &met.time, what, note)
            }
            Record::Requested(request) if request.shadow => {
                let event = EventSpec {
                    pod: PodRef::from(&**request),
                    id: &request.id,
                    time: &request.time,
                    reason: WOULD_EVICT,
                    note: request_note(request),
                    annotations: Some(&request.annotations),
                };
                self.of_pod(&event)
            }
            Record::ShadowNode(would) => {
                let note = match would.conditions.as_slice() {
                    [] => "Shadow mode: the Node would have none of evictd's conditions and taints any more".to_owned(),
                    conditions => format!(
                        "Shadow mode: the Node would have the conditions {}, and perhaps their taints: {}",
                        conditions.join(", "),
                        would.message,
                    ),
                };
                let what = ("Observing", WOULD_SET_CONDITIONS, "Normal");
                self.node_event(&would.id, &would.time, what, note)
            }
            _ => return None,
        })
    }

    /// Creates the Event that this node has pulled the fleet brake because so many nodes have evicted.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn about_fleet(
        &self,
        client: &ApiClient,
        state: &FleetState,
        nodes: u32,
    ) -> Result<(), ApiError> {
        let time = jiff::Timestamp::now();
        let done = match state.pace {
            FleetPace::Paused => "are paused",
            FleetPace::Normal | FleetPace::Slow => "are slowed down",
        };
        let note = format!(
            "{nodes} nodes have evicted pods lately: evictions at the kubelet's pace {done} on all nodes. Urgent ones \
            go on."
        );
        let id = format!("fleet-{}", time.as_nanosecond());
        let what = ("Pausing", FLEET_BRAKE, "Warning");
        let event = self.node_event(&id, &time.to_string(), what, note);
        create(client, &event).await
    }

    /// An Event about the node: its action, reason and type.
    fn node_event(
        &self,
        id: &str,
        time: &str,
        (action, reason, of_type): (&str, &str, &str),
        note: String,
    ) -> Value {
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name(&self.node, id), "namespace": NODE_NAMESPACE},
            "eventTime": micro_time(time),
            "reportingController": CONTROLLER,
            "reportingInstance": self.instance(),
            "action": action,
            "reason": reason,
            "type": of_type,
            "note": cut(note, NOTE_BYTES),
            "regarding": self.node_reference(),
        })
    }

    /// The Event on the node that a pod was asked to end for a soft threshold.
    pub(crate) fn of_request(&self, request: &RequestRecord) -> Value {
        self.threshold_met(&request.into(), &format!("asked {} to end", request.pod()))
    }

    /// The kubelet's Event about a threshold for which something was done.
    fn threshold_met(&self, eviction: &EvictionRecord, done: &str) -> Value {
        let signal = &*eviction.signal;
        let resource = signal.split('.').next().unwrap_or_default();
        let note = format!(
            "Attempting to reclaim {resource}: {done}, {} available, {} wanted",
            quantity(signal, eviction.available),
            quantity(signal, eviction.threshold),
        );
        let what = ("Reclaiming", "EvictionThresholdMet", "Warning");
        self.node_event(&eviction.id, &eviction.time, what, note)
    }

    /// Counts an eviction on the node: a new Event, or one more of the last. A pod above a limit of its own is none of
    /// the node's, as for the kubelet (`synchronize`).
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn about_node(
        &mut self,
        client: &ApiClient,
        eviction: &EvictionRecord,
    ) -> Result<(), ApiError> {
        if is_own_limit(&eviction.signal) {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(series) = self.series.get_mut(&eviction.signal)
            && now.duration_since(series.last) < SERIES_GAP
        {
            series.count += 1;
            series.last = now;
            series.last_time = micro_time(&eviction.time);
            return Ok(());
        }
        let event = self.threshold_met(eviction, &format!("evicted {}", eviction.pod()));
        create(client, &event).await?;
        let series = Series {
            name: name(&self.node, &eviction.id),
            count: 1,
            sent: 1,
            last: now,
            last_sent: now,
            last_time: micro_time(&eviction.time),
        };
        self.series.insert(eviction.signal.clone(), series);
        Ok(())
    }

    /// Brings the counts up to date that are due.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn flush(&mut self, client: &ApiClient) -> Result<(), ApiError> {
        self.series
            .retain(|_, s| s.last.elapsed() < SERIES_GAP || s.count > s.sent);
        let (mut gone, mut outcome) = (Vec::new(), Ok(()));
        for (signal, series) in &mut self.series {
            if series.count == series.sent || series.last_sent.elapsed() < SERIES_PAUSE {
                continue;
            }
            let body = json!({
                "series": {"count": series.count, "lastObservedTime": series.last_time},
            });
            let path = format!("{}/{}", collection(NODE_NAMESPACE), series.name);
            series.last_sent = Instant::now();
            match client
                .send(&ApiRequest::new(Method::PATCH, path, MERGE, &body))
                .await
            {
                Ok(_) => series.sent = series.count,
                // Events live for an hour: the next eviction begins another series.
                Err(e) if e.code() == 404 => gone.push(signal.clone()),
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        self.series.retain(|signal, _| !gone.contains(signal));
        outcome
    }

    /// Time until [`Events::flush`] has something to do next; `None` where it has nothing to do.
    pub fn next_flush(&self) -> Option<Duration> {
        let open = self.series.values().filter(|s| s.count > s.sent);
        open.map(|s| SERIES_PAUSE.saturating_sub(s.last_sent.elapsed()))
            .min()
    }

    /// Name of this node as the reporter, cut to `INSTANCE_BYTES`. The admission policy compares as much of its name.
    fn instance(&self) -> String {
        cut(self.node.clone(), INSTANCE_BYTES)
    }

    /// Reference to the node as the kubelet makes it in Events: by name in place of the UID, which is what `kubectl
    /// describe node` looks for.
    fn node_reference(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node})
    }
}

/// Whether an Event is about an OOM kill.
pub(crate) fn is_oom(event: &Value) -> bool {
    event["reason"] == OOM_AT_POD_LIMIT
}

/// Creates an Event.
///
/// # Errors
/// No answer, or a refusal; that it is known already is none.
pub(crate) async fn create(client: &ApiClient, event: &Value) -> Result<(), ApiError> {
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let request = ApiRequest::new(Method::POST, collection(namespace), JSON, event);
    match client.send(&request).await {
        // By this agent or by the one before. Whether another one has taken the name is not known: agents may not read
        // Events.
        Err(e) if e.is_already_there() => Ok(()),
        // The namespace is gone or going, and the pod with it.
        Err(e) if e.code() == 404 || e.has_cause("NamespaceTerminating") => Ok(()),
        answer => answer,
    }
}

pub(crate) fn collection(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

/// `<object>.<16 hexadecimal digits>`, as client-go names Events, with digits that the eviction determines.
fn name(object: &str, id: &str) -> String {
    let room = NAME_BYTES - 17;
    let mut object: String = object.chars().take(room).collect();
    // A label must end in a letter or digit.
    object.truncate(object.trim_end_matches(['.', '-']).len());
    format!("{object}.{:016x}", fnv1a(id))
}

/// FNV-1a, 64 bits: the same everywhere and for ever, which the standard library's hashes do not promise.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// An amount of a signal, in its unit; of a pod's own limit, which is no signal, in bytes.
fn quantity(signal: &str, units: u64) -> Quantity {
    match signal.parse::<Signal>() {
        Ok(signal) => signal.quantity(signed(units)),
        Err(_) => Quantity::bytes(units),
    }
}

/// The kubelet's words, and what it does not know. Of a pod above a limit of its own these are all.
fn note(e: &EvictionRecord) -> String {
    let mut note = e.message.trim_end().to_owned();
    if !is_own_limit(&e.signal) {
        note += &numbers(
            &e.signal,
            [e.available, e.threshold, e.working_set, e.request],
        );
    }
    let stages = &e.stages;
    if let Some(error) = &e.error {
        note = format!("{note} SIGKILL was refused: {error}.");
    } else if !e.shadow && stages.crossed != 0 {
        let micros = stages.signalled.saturating_sub(stages.crossed) / 1000;
        note = format!(
            "{note} Killed {micros} us after the kernel saw it ({}).",
            e.hook
        );
    }
    note
}

/// The note on a pod that is asked to end.
pub(crate) fn request_note(r: &RequestRecord) -> String {
    let known = [r.available, r.threshold, r.working_set, r.request];
    let mut note = r.message.trim_end().to_owned() + &numbers(&r.signal, known);
    if let Some(why) = &r.override_reason {
        note += &format!(" A PodDisruptionBudget was overridden: {why}.");
    }
    let has = if r.shadow { "would have" } else { "has" };
    note + &format!(" It {has} {} s to end.", r.grace_period_seconds)
}

/// What was known of a signal: what was available, the threshold, and what the pod used and had requested.
fn numbers(signal: &str, known: [u64; 4]) -> String {
    let [available, threshold, used, requested] = known.map(|units| quantity(signal, units));
    format!(
        " evictd: {signal} {available} available, threshold {threshold}; the pod used {used} and requested {requested}."
    )
}

/// Builds the note on an OOM kill: which process was killed, and by which limit.
fn oom_note(kill: &OomKillRecord) -> String {
    let bytes = |n| Quantity::bytes(n).to_string();
    let others = kill.processes.map_or(String::new(), |all| {
        format!(", and {} more with it", all - 1)
    });
    let used = kill.rss.map_or(String::new(), |rss| {
        format!(", which used {} itself", bytes(rss))
    });
    let limit = kill.at_limit.as_ref().map_or(String::new(), |at| {
        format!(
            ": cgroup {} is at its limit of {}",
            at.cgroup,
            bytes(at.limit)
        )
    });
    format!(
        "The OOM killer has killed {} (process {}){used}{others}{limit}. That limit is the pod's own: no eviction, and the \
        node had memory left.",
        kill.comm, kill.pid
    )
}

fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

/// `metav1.MicroTime`: exactly six digits after the second.
pub(crate) fn micro_time(time: &str) -> String {
    let time: jiff::Timestamp = time.parse().unwrap_or_else(|_| jiff::Timestamp::now());
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_determined() {
        let a = name("web-1", "boot-1-1");
        assert_eq!(a, name("web-1", "boot-1-1"));
        assert_ne!(a, name("web-1", "boot-1-2"));
        assert!(
            a.starts_with("web-1.") && a.len() == "web-1.".len() + 16,
            "{a}"
        );
        let long = name(&format!("{}.b", "a".repeat(235)), "x");
        assert!(long.len() <= NAME_BYTES && !long.contains(".."), "{long}");
    }

    #[test]
    fn times_have_six_digits() {
        assert_eq!(
            micro_time("2026-11-21T02:00:00Z"),
            "2026-11-21T02:00:00.000000Z"
        );
        assert_eq!(
            micro_time("2026-11-21T02:00:00.1234567Z"),
            "2026-11-21T02:00:00.123456Z"
        );
    }

    #[test]
    fn a_long_name_of_a_node_is_cut_where_the_api_takes_no_more() {
        let node = "n".repeat(200);
        let event = Events::new(&node).node_event("x", "", ("", "", ""), String::new());
        assert_eq!(event["reportingInstance"], "n".repeat(128));
        assert_eq!(event["regarding"]["name"], *node);
    }

    #[test]
    fn a_note_fits() {
        assert_eq!(cut("é".repeat(800), NOTE_BYTES).len(), NOTE_BYTES);
    }
}
