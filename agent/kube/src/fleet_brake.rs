//! The fleet brake over the API server: two ConfigMaps, no server of its own.
//!
//! `NAME-evictions` has one entry for each node that has evicted lately, with the time. Nothing watches it: a node that
//! has evicted reads it from the API server's cache, and adds its entry unless there are enough already, at most once
//! in `REPORT_EVERY`, or in a quarter of a window below two minutes, and after a random wait. The answer to that write
//! has all entries. The node that finds enough writes `NAME`, which all watch and which changes a few times in an
//! incident. So five thousand nodes that evict at once make some hundred writes, and then reads at a rate of nodes by
//! that time.
//!
//! Without the API server the state that a node has read last holds until its end, over restarts too; the node goes on
//! at its own pace.
//!
//! An inactive brake is silent, and so is an unavailable one. So each agent looks for both ConfigMaps at its start, and
//! logs what is missing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use evictd_config::{ConfigMapName, FleetConfig, kube::decode::unix_seconds};
use evictd_engine::{
    fleet::{FleetPace, FleetState},
    limiter::EvictionLimiter,
    units::signed,
};
use evictd_sys::{clock::monotonic_ns, mutex::locked};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::watcher::{self, Event},
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    client::{ApiClient, ApiError, ApiRequest, MERGE},
    events,
    watch::{Events, WatchFailure, WatchHandler, follow, run_watcher},
};

/// A node reports its evictions no more often, where the window within which they count is not short.
const REPORT_EVERY: Duration = Duration::from_secs(30);
/// Of a short window, a pause between two reports and a wait before one take no more than these parts.
const PARTS_OF_WINDOW: (u32, u32) = (4, 8);
/// Longest random time that a node waits before it writes, so that not all nodes write before any of them has read what
/// others wrote.
const SPREAD: Duration = Duration::from_secs(5);
/// Interval at which the agent looks whether the node has evicted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A ConfigMap that was missing is looked for again after about so many times the time between two reports: 10 minutes where
/// the window is not short.
const LOOK_AGAIN: u32 = 20;
/// Behind the name of the ConfigMap with the state: the one with the nodes' entries.
pub(crate) const ENTRIES: &str = "-evictions";
/// Entries beyond which a node adds its own only where it takes old ones away.
const MAX_ENTRIES: usize = 2000;
/// Old entries that one write takes away.
const MAX_REMOVED: usize = 64;

/// State that the watched ConfigMap shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedState {
    pub(crate) state: FleetState,
    resource_version: Option<String>,
}

/// Times of a node's reports.
#[derive(Clone, Copy, Debug)]
pub struct ReportTimes {
    /// Longest random wait before a report.
    pub spread: Duration,
    /// Pause between two reports.
    pub every: Duration,
}

impl ReportTimes {
    fn within(window: Duration) -> Self {
        let (every, spread) = PARTS_OF_WINDOW;
        Self {
            spread: SPREAD.min(window / spread),
            every: REPORT_EVERY.min(window / every),
        }
    }
}

/// One of the brake's ConfigMaps.
#[derive(Debug)]
struct UsedConfigMap {
    /// With its namespace.
    name: String,
    /// Whether it could be used the last time; `None` before that.
    is_usable: Mutex<Option<bool>>,
}

impl UsedConfigMap {
    fn new(name: String) -> Self {
        let is_usable = Mutex::default();
        Self { name, is_usable }
    }

    fn is_usable(&self) -> Option<bool> {
        *locked(&self.is_usable)
    }

    /// Takes note of what has come of using it; trouble is logged once.
    fn note(&self, trouble: Option<&str>) {
        let before = locked(&self.is_usable).replace(trouble.is_none());
        let config_map = &self.name;
        match trouble {
            Some(reason) if before != Some(false) => tracing::warn!(
                config_map,
                reason,
                "the fleet brake is unavailable: many nodes that evict do not slow each other down"
            ),
            Some(reason) => {
                tracing::debug!(config_map, reason, "the fleet brake is still unavailable");
            }
            None if before == Some(false) => {
                tracing::info!(
                    config_map,
                    "a ConfigMap of the fleet brake can be used again"
                );
            }
            None => {}
        }
    }
}

/// One node's part of the fleet brake.
pub struct FleetBrake {
    client: Arc<ApiClient>,
    config: FleetConfig,
    node: String,
    limiter: Arc<EvictionLimiter>,
    published: Mutex<PublishedState>,
    /// The one with the published state: whether it is there.
    published_map: UsedConfigMap,
    /// The one with the entries: whether they could be read, and written where that was needed.
    entries_map: UsedConfigMap,
    times: ReportTimes,
    /// Evictions before this time, in nanoseconds of CLOCK_MONOTONIC, are those of an earlier agent.
    begun: i64,
}

impl FleetBrake {
    /// A part that is not yet running.
    pub fn new(
        client: Arc<ApiClient>,
        config: FleetConfig,
        node: &str,
        limiter: Arc<EvictionLimiter>,
    ) -> Arc<Self> {
        let times = ReportTimes::within(config.rules.window);
        Self::with_times(client, config, node, limiter, times)
    }

    /// Creates a part with other times.
    pub fn with_times(
        client: Arc<ApiClient>,
        config: FleetConfig,
        node: &str,
        limiter: Arc<EvictionLimiter>,
        times: ReportTimes,
    ) -> Arc<Self> {
        let map = |suffix| UsedConfigMap::new(format!("{}{suffix}", config.config_map));
        Arc::new(Self {
            client,
            published_map: map(""),
            entries_map: map(ENTRIES),
            config,
            node: node.to_owned(),
            limiter,
            published: Mutex::default(),
            times,
            begun: signed(monotonic_ns()),
        })
    }

    /// Follows the published state, and reports this node's evictions, for ever.
    pub async fn run(self: Arc<Self>) {
        let handler = Follower {
            fleet: Arc::clone(&self),
            incoming: PublishedState::default(),
        };
        tokio::select! {
            () = run_watcher(&self.client, handler) => {}
            () = self.report_evictions() => {}
        }
    }

    /// Whether both ConfigMaps are there and the last report has reached them.
    pub fn is_available(&self) -> bool {
        let maps = [&self.published_map, &self.entries_map];
        maps.map(UsedConfigMap::is_usable) == [Some(true); 2]
    }

    fn note_entries(&self, result: &Result<(), ApiError>) {
        let trouble = result.as_ref().err().map(ToString::to_string);
        self.entries_map.note(trouble.as_deref());
    }

    fn note_published(&self) {
        let is_there = self.published().resource_version.is_some();
        let trouble = (!is_there).then_some("there is no such ConfigMap");
        self.published_map.note(trouble);
    }

    async fn report_evictions(&self) {
        // None yet.
        let mut reported = None;
        let mut look = Some(Instant::now() + self.times.spread.mul_f64(fastrand::f64()));
        loop {
            tokio::time::sleep(POLL_INTERVAL.min(self.times.every)).await;
            if look.is_some_and(|at| at <= Instant::now()) {
                let found = self.entries().await.map(drop);
                self.note_entries(&found);
                let later = self.times.every * LOOK_AGAIN;
                let again = || Instant::now() + later.mul_f64(0.5 + fastrand::f64());
                look = found.is_err().then(again);
            }
            let last = self.limiter.last_eviction();
            // In shadow mode nothing is written, and nothing is wrong with that.
            if last == reported || self.client.is_shadow() {
                continue;
            }
            tokio::time::sleep(self.times.spread.mul_f64(fastrand::f64())).await;
            let Some(evicted) = last.and_then(|last| self.time_that_counts(last)) else {
                // The API server was away for so long that this eviction says nothing about the present.
                reported = last;
                look = Some(Instant::now());
                continue;
            };
            let is_restored = last.is_some_and(|last| last < self.begun);
            let answer = self.report(evicted, is_restored).await;
            let is_whole = answer == Ok(true);
            self.note_entries(&answer.map(drop));
            if is_whole {
                // Evictions since then are for the next report.
                reported = last;
                look = None;
            }
            tokio::time::sleep(self.times.every).await;
        }
    }

    /// The wall clock's time of an eviction at this CLOCK_MONOTONIC, unless it no longer counts.
    fn time_that_counts(&self, last: i64) -> Option<Timestamp> {
        let age = signed(monotonic_ns()).saturating_sub(last).max(0);
        let age = Duration::from_nanos(age.unsigned_abs());
        let counts = age < self.config.rules.window;
        counts.then(|| {
            Timestamp::now()
                .saturating_sub(age)
                .unwrap_or(Timestamp::MIN)
        })
    }

    fn path(&self, suffix: &str) -> String {
        let ConfigMapName { namespace, name } = &self.config.config_map;
        format!("/api/v1/namespaces/{namespace}/configmaps/{name}{suffix}")
    }

    /// The nodes' entries, from the API server's cache.
    async fn entries(&self) -> Result<BTreeMap<String, i64>, ApiError> {
        let query = format!("{}?resourceVersion=0", self.path(ENTRIES));
        let found = self.client.call(&ApiRequest::get(query)).await?;
        Ok(entries(&found))
    }

    /// Reports an eviction of that time, unless enough other nodes have, and pulls the brake if they are too many. For one of
    /// an earlier agent only if that is news: the brake may have been released since. `false`: it is to be pulled once it is known
    /// what is published.
    async fn report(&self, evicted: Timestamp, is_restored: bool) -> Result<bool, ApiError> {
        let rules = &self.config.rules;
        let now = Timestamp::now().as_second();
        let mut entries = self.entries().await?;
        let evicted_at = evicted.as_second();
        let is_known = |at: &i64| rules.counts(*at, now) && at.saturating_add(1) >= evicted_at;
        if is_restored && entries.get(&self.node).is_some_and(is_known) {
            return Ok(true);
        }
        let fresh = |entries: &BTreeMap<String, i64>| {
            let fresh = entries.values().filter(|at| rules.counts(**at, now));
            u32::try_from(fresh.count()).unwrap_or(u32::MAX)
        };
        let others = entries.iter().filter(|(node, _)| **node != self.node);
        let (ahead, others): (Vec<i64>, Vec<i64>) = others
            .map(|(_, at)| *at)
            .partition(|at| rules.is_ahead(*at, now));
        // A few that are far ahead are wrong clocks'; where most are, this node's is behind.
        let newest = match ahead.len() > others.len() {
            true => ahead.into_iter().max(),
            false => others.into_iter().max(),
        };
        let is_full = entries.len() >= MAX_ENTRIES;
        // A wrong clock of this node makes no entry of the others old, unless they take all room.
        let is_old = |at: i64| {
            !rules.counts(at, now) && (is_full || newest.is_some_and(|new| !rules.counts(at, new)))
        };
        let old = entries.iter().filter(|(_, at)| is_old(**at));
        let mut data: Map<String, Value> = old
            .take(MAX_REMOVED)
            .map(|(node, _)| (node.clone(), Value::Null))
            .collect();
        // A write that takes old ones away makes room, however many there are.
        let has_room = !is_full || !data.is_empty();
        if fresh(&entries) < rules.pause_nodes && has_room {
            let evicted = format!("{evicted:.0}");
            data.insert(self.node.clone(), evicted.into());
            let body = json!({ "data": data });
            let request = ApiRequest::new(Method::PATCH, self.path(ENTRIES), MERGE, &body);
            entries = self::entries(&self.client.call(&request).await?);
        } else if is_restored {
            return Ok(true);
        }
        let published = self.published();
        let Some(state) = rules.next_state(published.state, fresh(&entries), now) else {
            return Ok(true);
        };
        let Some(version) = published.resource_version else {
            // What is not known to be there might be weakened.
            return Ok(false);
        };
        let pulled = self.pull(state, fresh(&entries), &version).await;
        pulled.map(|()| true)
    }

    /// Publishes a state in place of the one of this `resourceVersion`.
    async fn pull(&self, state: FleetState, nodes: u32, version: &str) -> Result<(), ApiError> {
        let until = Timestamp::from_second(state.until).map(|time| time.to_string());
        let body = json!({
            // Another node may have been faster.
            "metadata": {"resourceVersion": version},
            "data": {
                "pace": state.pace.as_str(),
                "until": until.unwrap_or_default(),
                "nodes": nodes.to_string(),
                "by": self.node,
            },
        });
        let request = ApiRequest::new(Method::PATCH, self.path(""), MERGE, &body);
        match self.client.call(&request).await {
            Ok(map) => {
                self.take(read(&map));
                let events = events::Events::new(&self.node);
                // From one node, in place of thousands.
                let sent = events.about_fleet(&self.client, &state, nodes).await;
                if let Err(error) = sent {
                    tracing::debug!(%error, "no Event tells of the fleet brake");
                }
                Ok(())
            }
            Err(error) if error.code() == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What was published last, as far as this node has heard.
    pub(crate) fn published_state(&self) -> FleetState {
        self.published().state
    }

    /// Takes what an earlier agent of this node has heard last, before the API server is asked.
    pub(crate) fn restore(&self, state: FleetState) {
        self.take(PublishedState {
            state,
            resource_version: None,
        });
    }

    fn published(&self) -> PublishedState {
        locked(&self.published).clone()
    }

    /// Takes a published state. Only the time that is left is kept, so that it ends without the API server.
    fn take(&self, published: PublishedState) {
        let now = Timestamp::now().as_second();
        let state = self.config.rules.in_force(published.state, now);
        let before = std::mem::replace(&mut *locked(&self.published), published);
        let left = Duration::from_secs(u64::try_from(state.until - now).unwrap_or(0));
        self.limiter
            .set_fleet(state.pace, left, &self.config.rules, monotonic_ns());
        if self.config.rules.in_force(before.state, now).pace != state.pace {
            let pace = state.pace.as_str();
            match state.pace {
                FleetPace::Normal => tracing::info!(pace, "the fleet brake is no longer active"),
                FleetPace::Slow | FleetPace::Paused => tracing::warn!(
                    pace,
                    ?left,
                    "the fleet brake is active: evictions at the kubelet's pace are held back, urgent ones are not"
                ),
            }
        }
    }
}

/// The times of nodes' evictions.
fn entries(map: &Value) -> BTreeMap<String, i64> {
    let data = map["data"].as_object().into_iter().flatten();
    data.filter_map(|(node, time)| Some((node.clone(), unix_seconds(time.as_str()?)?)))
        .collect()
}

/// The state that a ConfigMap publishes; one without sense publishes none.
fn read(map: &Value) -> PublishedState {
    let text = |field: &str| map["data"][field].as_str().unwrap_or_default();
    let pace = FleetPace::ALL
        .into_iter()
        .find(|p| p.as_str() == text("pace"));
    let state = pace.zip(unix_seconds(text("until")));
    PublishedState {
        state: state.map_or_else(FleetState::default, |(pace, until)| FleetState {
            pace,
            until,
        }),
        resource_version: map["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned),
    }
}

struct Follower {
    fleet: Arc<FleetBrake>,
    /// State that an unfinished list has brought so far.
    incoming: PublishedState,
}

pub(crate) fn published(map: &ConfigMap) -> PublishedState {
    // A ConfigMap has always a form in JSON.
    read(&serde_json::to_value(map).unwrap_or_default())
}

impl WatchHandler for Follower {
    type Object = ConfigMap;

    const RARE_RETRY: bool = true;

    fn open(&self, client: Client) -> Events<ConfigMap> {
        let ConfigMapName { namespace, name } = &self.fleet.config.config_map;
        let fields = format!("metadata.name={name}");
        let api = Api::<ConfigMap>::namespaced(client, namespace);
        follow(api, Some(&fields))
    }

    fn apply(&mut self, event: Event<ConfigMap>) {
        let published = match event {
            Event::Init => {
                self.incoming = PublishedState::default();
                return;
            }
            Event::InitApply(map) => {
                self.incoming = published(&map);
                return;
            }
            Event::InitDone => std::mem::take(&mut self.incoming),
            Event::Apply(map) => published(&map),
            Event::Delete(_) => PublishedState::default(),
        };
        self.fleet.take(published);
        self.fleet.note_published();
    }

    fn failed(&mut self, failure: WatchFailure, error: &watcher::Error) {
        tracing::warn!(%error, "the watch of the fleet brake has stopped: what is known of it ends by itself");
        if failure != WatchFailure::Passing {
            self.fleet.published_map.note(Some(&error.to_string()));
        }
    }

    fn recovered(&mut self) {
        tracing::info!("the watch of the fleet brake works again");
        self.fleet.note_published();
    }
}
