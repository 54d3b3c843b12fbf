//! The registry: metrics that events of the agent count, and the collector of all others. docs/metrics-reference.md has them all.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::Mutex,
};

use evictd_engine::{
    Cause, Owner, Pod,
    record::{KillOutcome, Stages},
};
use evictd_fastpath::VictimExit;
use evictd_store::record::RequestRecord;
use evictd_sys::mutex::locked;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::collector::MetricsCollector;

/// Evictions whose end is waited for; the fast path has no more of them in flight.
const WAITING: usize = 64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Evicted {
    signal: String,
    shadow: bool,
}

/// The stages of an eviction.
const STAGES: [&str; 5] = ["wake", "decide", "signal", "exit", "freed"];

/// Namespaces and kinds of owners that are shown under their names; others are `other`.
const OWNERS: usize = 200;
/// Label value for namespaces and kinds of owners that are not shown under their names.
const OTHER: &str = "other";
/// Kinds that Kubernetes has defined are names of DNS labels, in bytes.
const LONGEST_KIND: usize = 63;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EvictedOf {
    namespace: String,
    owner_kind: String,
    shadow: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Stage {
    stage: &'static str,
}

/// All metrics of the agent.
pub struct MetricsRegistry {
    registry: Registry,
    evictions: Family<Evicted, Counter>,
    owners: Family<EvictedOf, Counter>,
    /// Namespaces and kinds of owners that are shown under their names.
    shown: Mutex<HashSet<EvictedOf>>,
    refused: Counter,
    stuck: Counter,
    met_in_force: Counter,
    stages: Family<Stage, Histogram, fn() -> Histogram>,
    /// Number and moment of the signal of evictions that are not finished.
    signalled: Mutex<VecDeque<(u64, u64)>>,
}

/// A series for each cause from the start: `increase()` does not see the step from no series to 1.
fn evictions() -> Family<Evicted, Counter> {
    let evictions = Family::<Evicted, Counter>::default();
    for signal in Cause::names() {
        for shadow in [false, true] {
            let signal = signal.to_owned();
            drop(evictions.get_or_create(&Evicted { signal, shadow }));
        }
    }
    evictions
}

/// Creates the histograms of all stages.
fn stages() -> Family<Stage, Histogram, fn() -> Histogram> {
    let stages = Family::new_with_constructor(histogram as fn() -> Histogram);
    for stage in STAGES {
        drop(stages.get_or_create(&Stage { stage }));
    }
    stages
}

/// From 10 us to some 20 s, each bucket twice the one before.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-5, 2.0, 22))
}

impl MetricsRegistry {
    /// Registers the metrics that are counted here, and the collector.
    pub fn new(collector: MetricsCollector) -> Self {
        let mut root = Registry::default();
        // Under the name that Prometheus' client libraries give it.
        root.register(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds",
            ConstGauge::new(collector.start_time),
        );
        let registry = root.sub_registry_with_prefix("evictd");
        let evictions = evictions();
        registry.register(
            "evictions",
            "Pods evicted, by signal, soft evictions included; shadow=\"true\": only decided",
            evictions.clone(),
        );
        let owners = Family::default();
        registry.register(
            "pod_evictions",
            "The same by namespace and kind of owner: 200 of them, and then other",
            owners.clone(),
        );
        let stuck = Counter::default();
        registry.register(
            "evicted_pods_stuck",
            "Evicted pods whose processes do not end",
            stuck.clone(),
        );
        let met_in_force = Counter::default();
        registry.register(
            "thresholds_met_in_force",
            "Thresholds that were met when they came into force, by a start or a new configuration",
            met_in_force.clone(),
        );
        let refused = Counter::default();
        registry.register(
            "eviction_signals_refused",
            "Evictions whose SIGKILL the kernel refused",
            refused.clone(),
        );
        let stages = stages();
        registry.register_with_unit(
            "stage",
            "Time from one stage of an eviction to the next: wake, decide, signal, exit, freed",
            Unit::Seconds,
            stages.clone(),
        );
        registry.register_collector(Box::new(collector));
        Self {
            registry: root,
            evictions,
            owners,
            shown: Mutex::default(),
            refused,
            stuck,
            met_in_force,
            stages,
            signalled: Mutex::default(),
        }
    }

    /// Counts an evicted pod that is stuck.
    pub fn stuck(&self) {
        self.stuck.inc();
    }

    /// Counts a threshold that was met when it came into force.
    pub fn met_in_force(&self) {
        self.met_in_force.inc();
    }

    /// Counts an eviction by the fast path (with its number, for [`Self::finished`]) or by the manager. Where the
    /// kernel refused SIGKILL, only that is counted.
    pub fn evicted(
        &self,
        pod: &Pod,
        signal: &str,
        stages: Stages,
        outcome: KillOutcome,
        number: Option<u64>,
    ) {
        if outcome.refusal().is_some() {
            self.refused.inc();
            return;
        }
        let shadow = outcome.is_shadow();
        self.count(pod.owner.as_ref(), &pod.namespace, signal, shadow);
        self.observe("wake", stages.crossed, stages.woken);
        self.observe("decide", stages.woken, stages.decided);
        // Shadow mode sends none, and the kernel program kills in the moment in which it decides.
        if !shadow && stages.signalled > stages.decided {
            self.observe("signal", stages.decided, stages.signalled);
        }
        if let Some(number) = number.filter(|_| !shadow) {
            let mut signalled = locked(&self.signalled);
            if signalled.len() == WAITING {
                signalled.pop_front();
            }
            signalled.push_back((number, stages.signalled));
        }
    }

    /// A soft eviction to which the API server has agreed, or, in shadow mode, its request.
    pub fn requested(&self, request: &RequestRecord) {
        let workload = request.workload.as_ref();
        let owner = workload.and_then(|workload| workload.owner.as_ref());
        self.count(owner, &request.namespace, &request.signal, request.shadow);
    }

    fn count(&self, owner: Option<&Owner>, namespace: &str, signal: &str, shadow: bool) {
        let signal = signal.to_owned();
        self.evictions
            .get_or_create(&Evicted { signal, shadow })
            .inc();
        let of = |namespace: &str, owner_kind: &str| EvictedOf {
            namespace: namespace.to_owned(),
            owner_kind: owner_kind.to_owned(),
            shadow,
        };
        let kind = match owner.map_or("", |owner| owner.kind.as_str()) {
            // The API server does not bound what an ownerReference says.
            kind if kind.len() > LONGEST_KIND => OTHER,
            kind => kind,
        };
        let mut labels = of(namespace, kind);
        let mut shown = locked(&self.shown);
        if shown.len() < OWNERS {
            shown.insert(labels.clone());
        } else if !shown.contains(&labels) {
            labels = of(OTHER, OTHER);
        }
        drop(shown);
        self.owners.get_or_create(&labels).inc();
    }

    /// Observes the end of an eviction by the fast path.
    pub fn finished(&self, finished: &VictimExit) {
        let mut signalled = locked(&self.signalled);
        let Some(at) = signalled.iter().position(|(n, _)| *n == finished.number) else {
            return;
        };
        let from = signalled.remove(at).map_or(0, |(_, from)| from);
        self.observe("exit", from, finished.exited);
        self.observe("freed", from, finished.threshold_cleared);
    }

    /// A moment of 0 is not known.
    fn observe(&self, stage: &'static str, from: u64, to: u64) {
        if from != 0 && to >= from {
            let seconds = (to - from) as f64 / 1e9;
            self.stages.get_or_create(&Stage { stage }).observe(seconds);
        }
    }

    /// The exposition, in the text format of OpenMetrics.
    ///
    /// # Errors
    /// None that is known: it is written to memory.
    pub fn exposition(&self) -> Result<String, fmt::Error> {
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.registry)?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(kind: &str) -> Pod {
        Pod {
            namespace: "shop".into(),
            owner: Some(Owner {
                kind: kind.into(),
                ..Owner::default()
            }),
            ..Pod::default()
        }
    }

    fn evict(metrics: &MetricsRegistry, pod: &Pod, outcome: KillOutcome) {
        metrics.evicted(pod, "memory.available", Stages::default(), outcome, None);
    }

    #[test]
    fn a_refused_signal_evicts_no_pod() {
        let metrics = MetricsRegistry::new(MetricsCollector::default());
        evict(&metrics, &pod("Job"), KillOutcome::Refused(1));
        let text = metrics.exposition().unwrap();
        for line in [
            "evictd_evictions_total{signal=\"memory.available\",shadow=\"false\"} 0",
            "evictd_eviction_signals_refused_total 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("namespace=\"shop\""), "{text}");
    }

    // R48
    #[test]
    fn only_a_signal_that_the_agent_sends_takes_time() {
        let metrics = MetricsRegistry::new(MetricsCollector::default());
        let evict = |outcome, signalled| {
            let stages = Stages {
                crossed: 1,
                woken: 2,
                decided: 3,
                signalled,
            };
            metrics.evicted(&pod("Job"), "memory.available", stages, outcome, None);
        };
        evict(KillOutcome::Shadow, 4);
        evict(KillOutcome::Killed, 3);
        let count = "evictd_stage_seconds_count{stage=\"signal\"}";
        let text = metrics.exposition().unwrap();
        assert!(!text.contains(&format!("{count} 1")), "{text}");
        evict(KillOutcome::Killed, 4);
        let text = metrics.exposition().unwrap();
        assert!(text.contains(&format!("{count} 1\n")), "{text}");
    }

    #[test]
    fn a_kind_of_any_length_is_shown_as_other() {
        let metrics = MetricsRegistry::new(MetricsCollector::default());
        evict(
            &metrics,
            &pod(&"k".repeat(LONGEST_KIND)),
            KillOutcome::Killed,
        );
        evict(&metrics, &pod(&"k".repeat(1 << 20)), KillOutcome::Killed);
        let text = metrics.exposition().unwrap();
        assert!(text.contains("owner_kind=\"other\",shadow=\"false\"} 1"));
        assert!(text.len() < 64 << 10, "{}", text.len());
    }
}
