//! The thread: wait, look, decide, act.

mod execute;
pub mod mitigation;
pub mod node_reclaim;
mod note_kills;

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::AsRawFd as _,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use evictd_engine::{
    Manager, NodeCondition, Observation, Observations, Pod, Resource, Signal, SignalForecast,
    Snapshot, Threshold, history::Recorder, limiter::Restraint, model::settings::GraduatedConfig,
    permit::LastResort, record::NodeState,
};
use evictd_node::{
    pods::table::Entry,
    trigger::counter::{Crossed, Drift},
};
use evictd_sys::{clock::now_ns, poll::poll};
use tokio::sync::mpsc;

use super::usage::Measured;
use crate::{
    Inbox, Letter, Members, Note, Reclaiming, Sensors, Walker,
    manager_loop::{execute::is_short, mitigation::Graduating, node_reclaim::Reclaims},
};

/// What woke the thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wake {
    pub woken: u64,
    pub crossed: Option<(Signal, Crossed)>,
}

pub(super) struct Loop {
    pub manager: Manager,
    pub thresholds: Vec<Threshold>,
    pub sensors: Sensors,
    pub measured: Measured,
    pub walker: Arc<Walker>,
    pub members: Members,
    /// Those of the members that have processes: the others have ended, whoever ended them.
    pub running: Vec<Pod>,
    pub restraint: Arc<Restraint>,
    pub shadow: bool,
    pub notes: mpsc::Sender<Note>,
    pub inbox: Arc<Inbox>,
    pub status: Arc<Mutex<Status>>,
    pub recorder: Arc<Recorder>,
    pub reclaims: Reclaims,
    pub graduating: Graduating,
    pub told: NodeState,
    pub message: String,
    /// Signals for which shadow mode has named somebody during this pressure.
    pub shadow_told: BTreeSet<String>,
    pub decided: u64,
    pub rounds: u64,
    pub comebacks: u64,
}

impl Loop {
    pub fn new(
        setup: Setup,
        notes: mpsc::Sender<Note>,
        (inbox, status, recorder): (Arc<Inbox>, Arc<Mutex<Status>>, Arc<Recorder>),
    ) -> Self {
        let Setup {
            settings,
            sensors,
            walker,
            members,
            restraint,
            shadow,
            reclaims,
            graduated,
            // The thread has seen to it.
            memory_v1: _,
            earlier,
        } = setup;
        let disks = sensors.disks.as_ref();
        let shares = disks.and_then(|d| d.tripwire.share_reader());
        let mut measured = Measured::new(Arc::clone(&walker), shares, settings.mode);
        measured.set_members(&members);
        let mut manager = Manager::new(settings.clone());
        manager.restore(signed(now_ns()), &earlier);
        Self {
            thresholds: settings.layout.apply(&settings.eviction.thresholds),
            manager,
            sensors,
            measured,
            walker,
            running: members.pods.clone(),
            members,
            restraint,
            shadow,
            notes,
            inbox,
            status,
            recorder,
            reclaims: Reclaims::new(reclaims),
            graduating: Graduating::new(graduated),
            told: NodeState::default(),
            message: String::new(),
            shadow_told: BTreeSet::new(),
            decided: 0,
            rounds: 0,
            comebacks: 0,
        }
    }

    /// Until the inbox says that it is over.
    pub fn run(&mut self) {
        let mut interval = Duration::ZERO;
        loop {
            self.wait(interval);
            if self.inbox.stopped() {
                return;
            }
            let wake = Wake {
                woken: now_ns(),
                crossed: self.sensors.crossed(),
            };
            for letter in self.inbox.take() {
                self.read(letter);
            }
            interval = self.turn(wake);
            self.inbox.note_turn(wake.woken);
        }
    }

    fn wait(&self, interval: Duration) {
        let [pids, inodes] = self.sensors.fds();
        poll([pids, inodes, self.inbox.fd().as_raw_fd()], Some(interval));
    }

    fn read(&mut self, letter: Letter) {
        let now = signed(now_ns());
        match letter {
            Letter::Members(members) => {
                self.measured.set_members(&members);
                self.running.clone_from(&members.pods);
                self.members = members;
            }
            Letter::PodsMemory(scope) => self.sensors.pods_memory = Some(*scope),
            Letter::EvictedElsewhere {
                uid,
                signal,
                available,
            } => {
                let mut dip = self.sensors.look(now);
                if let Some(seen) = dip.get(signal) {
                    let available = signed(available).min(seen.available);
                    dip.set(signal, Observation { available, ..seen });
                }
                let node = Snapshot {
                    observations: &dip,
                    pods: &self.running,
                    usages: self.measured.usages(),
                };
                self.manager.evicted_elsewhere(now, node, &uid, signal);
            }
            Letter::SoftSettled { chosen, gone } => {
                let entry = gone.as_ref().and_then(|g| self.members.entry(&g.uid));
                if let Some(entry) = entry.cloned() {
                    self.restraint.charge(&entry.clearance, now_ns());
                    // It may be another one than the one that was chosen: a budget protected that.
                    self.unbrake(&entry);
                }
                let observations = Observations::default();
                let node = Snapshot {
                    observations: &observations,
                    pods: &self.running,
                    usages: self.measured.usages(),
                };
                self.manager.settle_soft(now, node, &chosen, gone.as_ref());
            }
            Letter::Reclaimed(removed) => self.reclaimed(removed),
            Letter::Graduated(done) => self.graduated(*done),
            Letter::Settings {
                settings,
                shadow,
                graduated,
            } => {
                self.graduating.reconfigure(graduated);
                self.thresholds = settings.layout.apply(&settings.eviction.thresholds);
                self.manager.reconfigure(*settings);
                if std::mem::replace(&mut self.shadow, shadow) != shadow {
                    self.manager.forget_victims();
                    self.shadow_told.clear();
                }
            }
        }
    }

    /// One look and what follows from it; the time until the next one.
    fn turn(&mut self, wake: Wake) -> Duration {
        let seen = self.look();
        self.record(&seen);
        let node = Snapshot {
            observations: &seen,
            pods: &self.running,
            usages: self.measured.usages(),
        };
        let mut round = self.manager.step(signed(now_ns()), node);
        let evictions = std::mem::take(&mut round.evictions);
        self.act(evictions, &seen, wake);
        self.reclaim(&round, &seen);
        self.graduate(&seen);
        self.tell(round, &seen);
        if self.sensors.arm(&self.thresholds, &seen) {
            return Duration::ZERO;
        }
        self.sensors.next_look(&self.thresholds, &seen)
    }

    /// Observations, and the use of everything that is short.
    pub(super) fn look(&mut self) -> Observations {
        let seen = self.sensors.look(signed(now_ns()));
        self.measured.take_walks();
        let short = |t: &&Threshold| is_short(t, &seen);
        let resources: BTreeSet<Resource> = self
            .thresholds
            .iter()
            .filter(short)
            .map(|t| t.signal.resource())
            .collect();
        let disk = [Resource::EphemeralStorage, Resource::Inodes];
        self.walker
            .set_pressed(disk.iter().any(|d| resources.contains(d)));
        if !resources.is_empty() || self.manager.awaits_victims() {
            self.find_running();
        }
        for resource in resources {
            self.measured
                .measure(resource, &self.members, &self.sensors);
        }
        self.ask_policies();
        seen
    }

    /// What the policies say of everybody at this moment.
    fn ask_policies(&mut self) {
        let now = now_ns();
        let by_uid = self.members.entries.iter().map(|e| (e.pod.uid.as_str(), e));
        let by_uid: HashMap<&str, &Arc<Entry>> = by_uid.collect();
        for pod in &mut self.running {
            if let Some(entry) = by_uid.get(pod.uid.as_str()) {
                let clearance = &entry.clearance;
                pod.order = clearance.order();
                pod.is_spared = !self.restraint.lets_go(clearance, now, LastResort::Nobody);
            }
        }
    }

    fn find_running(&mut self) {
        let Members { entries, pods } = &self.members;
        let both = entries.iter().zip(pods);
        let running = both.filter(|(entry, _)| !entry.killer.is_empty());
        self.running = running.map(|(_, pod)| pod.clone()).collect();
    }
}

pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the rounds need.
pub struct Setup {
    /// Thresholds, layout and all that the engine is told.
    pub settings: evictd_engine::Settings,
    /// What is looked at.
    pub sensors: Sensors,
    /// Walks the pods' directories.
    pub walker: Arc<Walker>,
    /// Who runs here at the start.
    pub members: Members,
    /// What holds for all pods: limits and the pause.
    pub restraint: Arc<Restraint>,
    /// Decide, tell, and do nothing.
    pub shadow: bool,
    /// Who may do what [`Note::Reclaim`] asks for: pods wait for it, for a while.
    pub reclaims: Reclaiming,
    /// What is done about a soft threshold on memory before a pod is evicted.
    pub graduated: GraduatedConfig,
    /// A directory of cgroup v1's memory hierarchy, where there is one (`leave_memory_limit`).
    pub memory_v1: Option<PathBuf>,
    /// What an earlier agent has done.
    pub earlier: evictd_engine::Earlier,
}

/// What the last round saw, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// What was left of everything.
    pub observations: Observations,
    /// The thresholds in force.
    pub thresholds: Vec<Threshold>,
    /// Where signals are heading.
    pub forecasts: Vec<SignalForecast>,
    /// The conditions that hold.
    pub conditions: BTreeSet<NodeCondition>,
    /// How far the counts of hooks were off, by signal.
    pub drift: Vec<(Signal, Drift)>,
    /// Rounds since the start.
    pub rounds: u64,
    /// Pods that came back after an eviction.
    pub comebacks: u64,
}
