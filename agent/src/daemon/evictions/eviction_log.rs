//! Turns events of both loops into journal records and log lines.

use std::time::Duration;

use evictd_engine::{
    ManagedPod as _, Message, NodeState, Pod,
    message::{EVICTED, PHASE},
    mitigation::Step,
    record::{KillOutcome, Stages},
    units::nanos,
};
use evictd_fastpath::{self as fastpath, EARLIER, FastPathEvent, VictimExit};
use evictd_manager::{self as manager, MitigationOutcome, NodeReclaimOutcome, ThresholdMet};
use evictd_node::pods::table::PodEntry;
use evictd_policy::PauseState;
use evictd_store::{
    disk_queue::DiskQueue,
    record::{
        EvictionRecord, MetInForce, OutcomeRecord, PaceRecord, Record, RequestRecord, StuckPod,
        mitigation::{MitigatedPod, MitigationRecord},
        node_reclaim::NodeReclaimed,
        other_signals, requested, resource_of_signal,
        shadow::{KubeletEviction, ShadowNode},
    },
};
use evictd_sys::clock::{boot_id, monotonic_ns};

use super::message::MessageBuilder;
use crate::daemon::{policies::PauseLog, wall_clock::wall_clock};

/// The wall clock's time of an eviction; in shadow mode no signal was sent.
fn time_of(stages: Stages) -> String {
    wall_clock(stages.signalled.max(stages.decided))
}

/// Turns events into journal records and log lines.
pub struct EvictionLog {
    journal: DiskQueue,
    run: String,
    messages: MessageBuilder,
    pauses: PauseLog,
    /// Thresholds of the manager that were met as they came into force.
    met: u64,
    /// States that the Node would have had in shadow mode, counted.
    shadow_nodes: u64,
}

impl EvictionLog {
    /// Goes on where this journal ends, with messages from this builder.
    pub fn new(journal: DiskQueue, messages: MessageBuilder) -> Self {
        // Without procfs the start time alone tells two runs apart.
        let run = format!("{}-{}", boot_id(), monotonic_ns());
        let pauses = PauseLog::from_journal(journal.dir()).unwrap_or_else(|error| {
            tracing::warn!(%error, "whether evictions were paused before cannot be read");
            PauseLog::default()
        });
        Self {
            journal,
            run,
            messages,
            pauses,
            met: 0,
            shadow_nodes: 0,
        }
    }

    /// Records for the pauses that began or ended since the last call.
    pub fn record_pauses(&mut self, pauses: &PauseState) -> impl Iterator<Item = Record> + use<> {
        self.pauses.changes(pauses).into_iter().map(Record::Paused)
    }

    /// Takes messages from another builder from now on.
    pub fn set_message_builder(&mut self, messages: MessageBuilder) {
        self.messages = messages;
    }

    /// Logs an event of the fast path, and returns its record, if the journal has records of this kind.
    pub fn record(&mut self, event: &FastPathEvent) -> Option<Record> {
        let record = match event {
            FastPathEvent::Evicted(evicted) => {
                if evicted.last_resort {
                    tracing::error!(
                        pod = %evicted.pod.pod,
                        "the policies deny all evictions: the last resort took this pod"
                    );
                }
                let record = self.eviction(evicted);
                log_evicted(&record);
                Record::Evicted(Box::new(record))
            }
            FastPathEvent::Finished(finished) => {
                let record = self.finish(finished);
                log_finished(&finished.pod.pod, &record);
                Record::Finished(record)
            }
            FastPathEvent::Stuck(stuck) => {
                let pod = &stuck.pod.pod;
                self.stuck(self.id_of(stuck.number, pod), pod, stuck.usage)?
            }
            FastPathEvent::MetInForce {
                signal,
                available,
                threshold,
                number,
                shadow,
            } => {
                let met = ThresholdMet {
                    signal: *signal,
                    is_hard: true,
                    available: *available,
                    threshold: *threshold,
                };
                met_in_force(format!("{}-met-{number}", self.run), met, *shadow)
            }
            FastPathEvent::NoCandidates {
                signal,
                available,
                threshold,
                held,
            } => {
                tracing::error!(
                    %signal,
                    available,
                    threshold,
                    paused = held.paused,
                    urgent_only = held.urgent_only,
                    denied = held.denied,
                    in_vain = held.in_vain,
                    "the threshold is met and no pod may be evicted"
                );
                return None;
            }
            FastPathEvent::KernelKill(pod, ago) => {
                let pod = pod.as_ref().map(|entry| entry.pod.to_string());
                let ago = Duration::from_nanos(*ago);
                tracing::error!(
                    pod,
                    ?ago,
                    "the kernel program has killed a process of a pod that is not evicted for it"
                );
                return None;
            }
            FastPathEvent::HookLost { errno } => {
                let error = refusal(*errno);
                tracing::error!(
                    error,
                    "the hook could not be attached; the sampler goes on alone"
                );
                return None;
            }
            FastPathEvent::ScopeGone { signal, errno } => {
                let error = refusal(*errno);
                tracing::error!(%signal, error, "the scope's memory cannot be read");
                return None;
            }
        };
        Some(record)
    }

    /// Logs an eviction of the manager, and returns its record.
    pub fn record_manager_eviction(
        &mut self,
        decided: &manager::ManagerEviction,
    ) -> EvictionRecord {
        let pod = &decided.pod.pod;
        // What is limited by an emptyDir's size is not requested.
        let resource = resource_of_signal(&decided.signal);
        let timing = decided.eviction.timing.as_deref();
        let id = format!("{}-rounds-{}", self.run, decided.number);
        let message = &decided.eviction.message;
        let record = EvictionRecord {
            signal: decided.signal.clone(),
            hook: decided.hook.clone(),
            available: decided.available,
            threshold: decided.threshold,
            working_set: decided.usage,
            request: resource.map_or(0, |resource| requested(pod, resource)),
            pace: timing.map(|timing| PaceRecord::of(timing, decided.usage)),
            other_signals: other_signals(&decided.eviction),
            ..without_amounts(id, pod, message, decided.stages, decided.outcome)
        };
        log_evicted(&record);
        record
    }

    /// Logs a threshold of the manager that is met as it comes into force, and returns its record.
    pub fn record_met(&mut self, met: ThresholdMet, shadow: bool) -> Record {
        self.met += 1;
        met_in_force(format!("{}-rounds-met-{}", self.run, self.met), met, shadow)
    }

    /// Logs a victim of the manager whose processes do not end, and returns its record; `None` if the journal has one,
    /// by the fast path or an earlier agent.
    pub fn record_stuck(&self, entry: &PodEntry) -> Option<Record> {
        let id = self.journal.eviction_of(&entry.pod.uid)?;
        self.stuck(id, &entry.pod, entry.memory_usage())
    }

    /// A stuck pod, unless the journal has it: the other loop, or an agent before this one, may have found it out.
    fn stuck(&self, id: String, pod: &Pod, usage: u64) -> Option<Record> {
        let is_new = !self.journal.knows_stuck(&id);
        is_new.then(|| Record::Stuck(log_stuck(id, pod, usage)))
    }

    /// Logs the end of a reclaim, and returns its record.
    pub fn record_reclaimed(&self, reclaimed: &NodeReclaimOutcome) -> Record {
        let record = node_reclaimed(reclaimed);
        tracing::info!(
            containers = record.containers,
            sandboxes = record.sandboxes,
            images = record.images,
            image_bytes = record.image_bytes,
            freed = ?record.freed,
            is_enough = record.is_enough,
            took = ?reclaimed.took,
            "the reclaim by the container runtime is over"
        );
        Record::Reclaimed(record)
    }

    /// Logs the end of a mitigation step, and returns its record.
    pub fn record_mitigation(&self, mitigation: &MitigationOutcome) -> Record {
        let record = mitigation_action(mitigation);
        tracing::info!(
            step = record.step,
            signal = record.signal,
            pods = record.pods.len(),
            usage_given = record.pods.iter().map(|pod| pod.usage_given).sum::<u64>(),
            working_set_given = record
                .pods
                .iter()
                .map(|pod| pod.working_set_given)
                .sum::<u64>(),
            available_before = record.available_before,
            available_after = record.available_after,
            "a mitigation step has ended"
        );
        Record::Mitigated(record)
    }

    /// Builds the record of the conditions that the Node would have.
    pub fn record_shadow_node(&mut self, state: &NodeState) -> Record {
        self.shadow_nodes += 1;
        Record::ShadowNode(ShadowNode {
            id: format!("{}-node-{}", self.run, self.shadow_nodes),
            time: jiff::Timestamp::now().to_string(),
            conditions: state
                .conditions
                .iter()
                .map(|c| c.as_str().to_owned())
                .collect(),
            message: state.message.clone(),
        })
    }

    /// Records of the pods that the kubelet has evicted, without those that this agent has evicted.
    pub fn record_kubelet_evictions(
        &self,
        evicted: Vec<KubeletEviction>,
    ) -> impl Iterator<Item = Record> + use<> {
        let journal = self.journal.clone();
        let is_foreign = move |e: &KubeletEviction| journal.eviction_of(&e.uid).is_none();
        evicted
            .into_iter()
            .filter(is_foreign)
            .map(Record::KubeletEvicted)
    }

    fn eviction(&self, e: &fastpath::EvictionReport) -> EvictionRecord {
        let pod = &e.pod.pod;
        let (id, message) = (self.id(e.number), self.messages.of(e));
        // The manager alone knows `other_signals`.
        EvictionRecord {
            signal: e.signal.to_string(),
            hook: e.hook.to_string(),
            available: e.available,
            kubelet_available: e.kubelet_available,
            threshold: e.threshold,
            usage_at_crossing: e.usage_at_crossing,
            usage_at_decision: e.usage_at_decision,
            working_set: e.working_set,
            request: pod.memory_request,
            pace: Some(PaceRecord {
                expected: e.expected,
                shmem: e.shmem,
                by_kernel: e.by_kernel,
                out_of_order: e.out_of_order,
                ..PaceRecord::of_inputs(e.urgency, &e.pace_inputs)
            }),
            ..without_amounts(id, pod, &message, e.stages, e.outcome)
        }
    }

    fn finish(&self, f: &VictimExit) -> OutcomeRecord {
        OutcomeRecord {
            id: self.id_of(f.number, &f.pod.pod),
            exited: f.exited,
            freed: f.threshold_cleared,
            peak_usage: f.peak_usage,
            available: f.available,
        }
    }

    /// The eviction of a pod, which may be an earlier agent's.
    fn id_of(&self, number: u64, pod: &Pod) -> String {
        let earlier = (number == EARLIER).then(|| self.journal.eviction_of(&pod.uid));
        earlier.flatten().unwrap_or_else(|| self.id(number))
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }
}

/// Logs the request of a soft eviction.
pub fn log_request(request: &RequestRecord) {
    let asks = if request.shadow {
        "would be asked to go"
    } else {
        "asked to go"
    };
    tracing::warn!(
        pod = request.pod(),
        grace_period_seconds = request.grace_period_seconds,
        urgent = request.pace.as_ref().map(|pace| pace.urgent),
        room = request.pace.as_ref().map(|pace| pace.room),
        pending = request.pace.as_ref().map(|pace| pace.pending),
        expected = request.pace.as_ref().map(|pace| pace.expected),
        "{asks}: {}",
        request.message.trim_end()
    );
}

/// Logs that a pod is stuck, and returns the record.
fn log_stuck(id: String, pod: &Pod, usage: u64) -> StuckPod {
    tracing::error!(
        %pod,
        usage,
        "the evicted pod is stuck: its processes do not end; another pod goes in its place where one must"
    );
    StuckPod {
        id,
        time: jiff::Timestamp::now().to_string(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        usage,
    }
}

/// Logs that a threshold is met as it comes into force, and returns the record.
fn met_in_force(id: String, met: ThresholdMet, shadow: bool) -> Record {
    let met = MetInForce {
        id,
        time: jiff::Timestamp::now().to_string(),
        signal: met.signal.to_string(),
        available: met.available,
        threshold: met.threshold,
        soft: !met.is_hard,
        shadow,
    };
    tracing::warn!(
        signal = %met.signal,
        available = met.available,
        threshold = met.threshold,
        "this threshold was already met when it came into force: {}",
        met.consequence()
    );
    Record::MetInForce(met)
}

/// The record of an eviction, without its signal and what was measured.
fn without_amounts(
    id: String,
    pod: &Pod,
    message: &Message,
    stages: Stages,
    outcome: KillOutcome,
) -> EvictionRecord {
    EvictionRecord {
        id,
        time: time_of(stages),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        phase: (!outcome.is_shadow()).then(|| PHASE.to_owned()),
        reason: EVICTED.to_owned(),
        message: message.text.clone(),
        annotations: message.annotations(),
        shadow: outcome.is_shadow(),
        stages,
        error: outcome.refusal().map(refusal),
        workload: Some(pod.into()),
        ..EvictionRecord::default()
    }
}

/// The reason of the kernel behind an errno.
fn refusal(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

fn log_evicted(e: &EvictionRecord) {
    let micros = |to: u64, from: u64| {
        if from == 0 {
            0
        } else {
            to.saturating_sub(from) / 1000
        }
    };
    tracing::warn!(
        pod = e.pod(),
        shadow = e.shadow,
        hook = e.hook,
        wake_us = micros(e.stages.woken, e.stages.crossed),
        decide_us = micros(e.stages.decided, e.stages.woken),
        signal_us = micros(e.stages.signalled, e.stages.decided),
        urgent = e.pace.as_ref().map(|pace| pace.urgent),
        exhausted_in_ms = e
            .pace
            .as_ref()
            .filter(|pace| pace.urgent)
            .map(|pace| pace.exhausted_in / 1_000_000),
        by_kernel = e.pace.as_ref().filter(|pace| pace.by_kernel).map(|_| true),
        room = e.pace.as_ref().map(|pace| pace.room),
        pending = e.pace.as_ref().map(|pace| pace.pending),
        expected = e.pace.as_ref().map(|pace| pace.expected),
        error = e.error,
        "{}{}",
        match (e.shadow, &e.error) {
            (true, _) => "would evict: ",
            (false, Some(_)) => "SIGKILL was refused: ",
            (false, None) => "evicted: ",
        },
        e.message.trim_end(),
    );
}

fn log_finished(pod: &Pod, f: &OutcomeRecord) {
    if f.exited == 0 {
        tracing::error!(%pod, "the evicted pod has processes left");
    } else if f.freed == 0 {
        tracing::warn!(%pod, available = f.available, "the evicted pod's memory was not enough");
    } else {
        tracing::info!(%pod, available = f.available, "the threshold is no longer met");
    }
}

/// The record of a reclaim that has just ended.
fn node_reclaimed(reclaimed: &NodeReclaimOutcome) -> NodeReclaimed {
    let removed = &reclaimed.removed;
    let freed = reclaimed.freed.iter();
    NodeReclaimed {
        time: jiff::Timestamp::now().to_string(),
        what: reclaimed
            .what
            .iter()
            .map(|w| w.as_str().to_owned())
            .collect(),
        containers: removed.containers,
        sandboxes: removed.sandboxes,
        images: removed.images,
        image_bytes: removed.image_bytes,
        refused: removed.refused,
        is_cut_short: removed.is_cut_short,
        freed: freed.map(|(signal, n)| (signal.to_string(), *n)).collect(),
        is_enough: reclaimed.is_enough,
        took: nanos(reclaimed.took),
    }
}

/// The record of a mitigation step that has just ended.
fn mitigation_action(mitigation: &MitigationOutcome) -> MitigationRecord {
    let effect = &mitigation.effect;
    let step = match effect.step {
        Step::Reclaim(_) => "reclaim",
        Step::Throttle => "brake",
        Step::Unthrottle => "release",
    };
    let pods = effect.pods.iter().map(|pod| MitigatedPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        asked: pod.given.requested,
        usage_given: pod.given.usage(),
        working_set_given: pod.given.working_set(),
        high: pod.high,
    });
    MitigationRecord {
        time: jiff::Timestamp::now().to_string(),
        step: step.to_owned(),
        signal: effect.signal.to_string(),
        pods: pods.collect(),
        available_before: mitigation.available_before,
        available_after: mitigation.available_after,
        took: nanos(effect.took),
        refusal: effect.refusal.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evictd_engine::model::settings::Mode;
    use evictd_fastpath::StuckVictim;
    use evictd_store::{disk_queue::DiskThread, journal::Journal};

    use super::*;

    // R43
    #[test]
    fn that_a_pod_is_stuck_is_told_once_by_both_loops() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("memory.current", "0"),
            ("memory.stat", ""),
            ("cgroup.procs", ""),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let pod = Pod {
            uid: "a".to_owned(),
            ..Pod::default()
        };
        let pod = Arc::new(PodEntry::open(pod, dir.path(), Mode::Evictd).unwrap());
        let told = |first: fn(&mut EvictionLog, &Arc<PodEntry>) -> Option<Record>| {
            let state = tempfile::tempdir().unwrap();
            let mut journal = Journal::open(state.path()).unwrap();
            journal.restore().unwrap();
            let disk = DiskThread::start(journal).unwrap();
            let messages = MessageBuilder {
                thresholds: Vec::new(),
            };
            let mut log = EvictionLog::new(disk.queue().clone(), messages);
            let earlier = r#"{"event":"counted","id":"earlier","time":"","boot":"","at":1,
                "namespace":"","name":"","uid":"a","signal":"nodefs.available"}"#;
            let earlier = serde_json::from_str(earlier).unwrap();
            disk.queue().append(earlier).unwrap();
            let Some(Record::Stuck(stuck)) = first(&mut log, &pod) else {
                panic!("the first one tells");
            };
            assert_eq!(stuck.id, "earlier");
            disk.queue().append(Record::Stuck(stuck)).unwrap();
            [by_fastpath(&mut log, &pod), by_manager(&mut log, &pod)]
                .into_iter()
                .flatten()
                .count()
        };
        assert_eq!([told(by_fastpath), told(by_manager)], [0, 0]);
    }

    fn by_fastpath(log: &mut EvictionLog, pod: &Arc<PodEntry>) -> Option<Record> {
        log.record(&FastPathEvent::Stuck(StuckVictim {
            pod: Arc::clone(pod),
            number: EARLIER,
            usage: 1,
        }))
    }

    fn by_manager(log: &mut EvictionLog, pod: &Arc<PodEntry>) -> Option<Record> {
        log.record_stuck(pod)
    }
}
