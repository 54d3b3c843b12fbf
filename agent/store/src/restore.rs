//! What limits and recreations count must outlive the agent: the journal has it, and the next agent takes it from
//! there.
//!
//! Limits count within periods of CLOCK_MONOTONIC, which begins anew with each boot. A record of the same boot has its
//! moment on that clock; the age of any other one is taken from the wall clock, which may have been set meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};

use evictd_engine::{
    Pod, Signal,
    kubelet_times::MONITORING_INTERVAL_NS,
    limiter::RestoredEviction,
    units::{SECOND, signed},
};

use crate::record::{
    Record,
    counted::{Clocks, Counted, RecreationRecord, condition},
    is_own_limit,
};

/// Records that are kept; of more the oldest are forgotten. Each limit counts no more than
/// [`evictd_engine::permit::MAX_EVICTIONS_PER_QUOTA`] evictions.
const KEPT: usize = 1024;
/// Stuck pods that are kept longer than others, which may have been evicted since: one that is not known would be evicted again.
const KEPT_STUCK: usize = 64;
/// An eviction that is older, in nanoseconds, is none that is under way, unless its pod is stuck.
pub const UNDER_WAY_NS: i64 = 600 * SECOND_NS;
/// A record that grants more is not believed.
const LONGEST_GRACE_SECONDS: i64 = 86_400;
const SECOND_NS: i64 = SECOND.cast_signed();
/// Beginning of the key of the record that a pod is stuck.
const STUCK: &str = "stuck ";

/// A moment as a record has it.
struct Moment<'a> {
    boot: &'a str,
    at: u64,
    time: &'a str,
}

/// Records that count, in the order of the journal.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Each with its own key.
    records: VecDeque<(String, Record)>,
    ids: HashSet<String>,
}

impl Counts {
    /// Whether a line of the journal may be of use here.
    pub fn wants(line: &[u8]) -> bool {
        const EVENTS: [&[u8]; 6] = [
            b"evicted",
            b"asked",
            b"counted",
            b"comeback",
            b"stuck",
            b"timeBound",
        ];
        let rest = line.strip_prefix(br#"{"event":""#);
        rest.is_some_and(|rest| EVENTS.iter().any(|event| rest.starts_with(event)))
    }

    /// Takes in a record in the order of the journal. What was carried over counts once.
    pub fn note(&mut self, record: &Record) {
        let counted = match record {
            Record::Evicted(e) if !e.is_kill() => return,
            Record::Evicted(e) => Counted::from(e.as_ref()),
            Record::Requested(a) if a.shadow || a.may_be_refused => return,
            Record::Requested(a) => Counted::from(a.as_ref()),
            Record::Counted(counted) => counted.as_ref().clone(),
            Record::Recreated(recreation) => {
                let id = format!("recreation {}", recreation.uid);
                return self.keep(id, record.clone());
            }
            Record::Stuck(stuck) => return self.keep(of_stuck(&stuck.id), record.clone()),
            Record::TimeBound(bound) => {
                let id = format!("time bound {}", bound.time);
                return self.keep(id, record.clone());
            }
            _ => return,
        };
        self.keep(counted.id.clone(), Record::Counted(Box::new(counted)));
    }

    fn keep(&mut self, id: String, record: Record) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        if self.records.len() == KEPT {
            let mut ids = self.records.iter().map(|(id, _)| id);
            // A stuck pod has two records.
            let other = ids.position(|id| !self.is_of_stuck(id));
            let oldest = other.filter(|&at| at <= 2 * KEPT_STUCK).unwrap_or(0);
            if let Some((oldest, _)) = self.records.remove(oldest) {
                self.ids.remove(&oldest);
            }
        }
        self.records.push_back((id, record));
    }

    /// Those of stuck pods and the newest ones that fit into so many bytes as lines, by their keys; the oldest first.
    pub fn newest(&self, bytes: u64) -> Vec<String> {
        let mut left = bytes;
        // One that is too long hides no others.
        let fits = |(_, record): &&(String, Record)| {
            let length = serde_json::to_vec(record).map_or(u64::MAX, |line| line.len() as u64 + 1);
            let rest = left.checked_sub(length);
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let newest = self.records.iter().rev();
        let (stuck, others): (Vec<_>, Vec<_>) = newest.partition(|(id, _)| self.is_of_stuck(id));
        let fitting = stuck.into_iter().chain(others).filter(fits);
        let fitting: HashSet<&str> = fitting.map(|(id, _)| id.as_str()).collect();
        let ids = self.records.iter().map(|(id, _)| id);
        ids.filter(|id| fitting.contains(id.as_str()))
            .cloned()
            .collect()
    }

    /// A record by its key.
    pub fn get(&self, id: &str) -> Option<&Record> {
        let kept = self.records.iter().find(|(kept, _)| kept == id);
        kept.map(|(_, record)| record)
    }

    /// The last eviction of a pod, by its UID.
    pub fn eviction_of(&self, uid: &str) -> Option<&str> {
        self.records
            .iter()
            .rev()
            .find_map(|(id, record)| match record {
                Record::Counted(counted) if counted.uid == uid => Some(id.as_str()),
                _ => None,
            })
    }

    /// Whether it was written down that the pod of an eviction is stuck.
    pub fn knows_stuck(&self, id: &str) -> bool {
        self.ids.contains(&of_stuck(id))
    }

    /// Whether a key is of the eviction of a stuck pod, or of the record that it is stuck.
    fn is_of_stuck(&self, id: &str) -> bool {
        let stuck = id.strip_prefix(STUCK);
        stuck.map_or_else(|| self.knows_stuck(id), |id| self.ids.contains(id))
    }

    /// All of it with the moments at which it was, by these clocks.
    pub fn restore(&self, clocks: &Clocks) -> Restored {
        let (mut evictions, mut recreations) = (Vec::new(), Vec::new());
        // Nothing was later than what was written down after it.
        let mut latest = clocks.wall;
        let mut is_bound_needed = false;
        for (_, record) in self.records.iter().rev() {
            let Some(moment) = moment(record) else {
                continue;
            };
            let is_same_boot = !clocks.boot.is_empty()
                && moment.boot == clocks.boot
                && (1..=clocks.monotonic).contains(&moment.at);
            let ago = if is_same_boot {
                let ago = i128::from(clocks.monotonic - moment.at);
                let wall = clocks.wall.as_nanosecond() - ago;
                latest = jiff::Timestamp::from_nanosecond(wall).map_or(latest, |t| t.min(latest));
                ago
            } else {
                match moment.time.parse::<jiff::Timestamp>() {
                    Ok(time) if time <= latest => latest = time,
                    _ => is_bound_needed |= latest == clocks.wall,
                }
                clocks.wall.as_nanosecond() - latest.as_nanosecond()
            };
            let now = signed(clocks.monotonic);
            let at = i64::try_from(i128::from(now) - ago).unwrap_or(i64::MIN);
            match record {
                Record::Counted(counted) => evictions.push(RestoredPod {
                    begun: at,
                    at: match counted.is_agreed {
                        true => at,
                        // It counts from its end, which is then at the latest.
                        false => at.saturating_add(grace_ns(counted)),
                    },
                    end: at.saturating_add(grace_ns(counted)),
                    since: latest.as_second(),
                    is_same_boot,
                    is_stuck: self.knows_stuck(&counted.id),
                    counted: counted.as_ref().clone(),
                }),
                Record::Recreated(recreation) => recreations.push((at, recreation.clone())),
                _ => {}
            }
        }
        evictions.reverse();
        recreations.reverse();
        Restored {
            now: signed(clocks.monotonic),
            evictions,
            recreations,
            is_bound_needed,
        }
    }
}

/// The key of the record that the pod of an eviction is stuck.
fn of_stuck(id: &str) -> String {
    format!("{STUCK}{id}")
}

fn grace_ns(counted: &Counted) -> i64 {
    let grace = counted.grace_period_seconds.unwrap_or(0);
    grace.clamp(0, LONGEST_GRACE_SECONDS) * SECOND_NS
}

fn moment(record: &Record) -> Option<Moment<'_>> {
    let (boot, at, time) = match record {
        Record::Counted(c) => (c.boot.as_str(), c.at, &c.time),
        Record::Recreated(r) => (r.boot.as_str(), r.at, &r.time),
        Record::TimeBound(b) => ("", 0, &b.time),
        _ => return None,
    };
    Some(Moment { boot, at, time })
}

#[derive(Clone, Debug)]
struct RestoredPod {
    /// Time at which the pod was killed or asked to go, in nanoseconds of this boot's CLOCK_MONOTONIC; below zero if it
    /// was before that.
    begun: i64,
    /// Limits count it from then on, as above.
    at: i64,
    /// Time at which the pod's time to end is over, in nanoseconds of this boot's CLOCK_MONOTONIC.
    end: i64,
    /// Time of the record by the wall clock, in seconds since 1970.
    since: i64,
    is_same_boot: bool,
    is_stuck: bool,
    counted: Counted,
}

impl RestoredPod {
    /// Whether the pod was asked to go, instead of killed.
    fn is_requested(&self) -> bool {
        self.counted.grace_period_seconds.is_some()
    }
}

/// A pod that was killed in this boot, shortly before the agent started; its processes may be there still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredKill {
    /// The pod's UID.
    pub uid: String,
    /// The eviction's id in the journal.
    pub id: String,
    /// The signal that was short.
    pub signal: String,
    /// Time at which the pod was signalled, in nanoseconds of CLOCK_MONOTONIC.
    pub signalled: u64,
    /// Whether the pod was found to be stuck.
    pub is_stuck: bool,
}

/// A pod that was asked to go in this boot. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredRequest {
    /// The pod's UID.
    pub uid: String,
    /// The signal that was short.
    pub signal: String,
    /// Time of the request, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// Rest of the pod's time, in nanoseconds; 0 if it is over.
    pub left: u64,
}

/// Evictions and recreations of the time before this agent, as the journal has them.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    now: i64,
    /// Oldest first.
    evictions: Vec<RestoredPod>,
    recreations: Vec<(i64, RecreationRecord)>,
    /// A record is later than now and than nothing that follows it.
    pub is_bound_needed: bool,
}

impl Restored {
    /// Pods that were killed in the last ten minutes of this boot, and those that were found stuck, each once with its
    /// last kill, oldest first. Whether anything is left of them is for the caller to see, by their cgroups. Pods that
    /// were asked to go are not among them.
    pub fn victims(&self) -> Vec<RestoredKill> {
        let kill = |e: &RestoredPod| RestoredKill {
            uid: e.counted.uid.clone(),
            id: e.counted.id.clone(),
            signal: e.counted.signal.clone(),
            signalled: e.counted.at,
            is_stuck: e.is_stuck,
        };
        let killed: Vec<_> = self.under_way().filter(|e| !e.is_requested()).collect();
        let mut later = HashSet::new();
        let newest_first = killed.into_iter().rev();
        let last = newest_first.filter(|e| later.insert(&*e.counted.uid));
        let mut victims: Vec<_> = last.map(kill).collect();
        victims.reverse();
        victims
    }

    /// When pods of this boot were last evicted for each signal within the kubelet's interval, in nanoseconds of
    /// CLOCK_MONOTONIC; the oldest first.
    pub fn last_evictions(&self) -> Vec<(Signal, u64)> {
        let mut last = Vec::new();
        let now = u64::try_from(self.now).unwrap_or(0);
        let is_recent = |e: &&RestoredPod| {
            e.is_same_boot && now.saturating_sub(e.counted.at) < MONITORING_INTERVAL_NS
        };
        for eviction in self.evictions.iter().filter(is_recent) {
            if let Ok(signal) = eviction.counted.signal.parse::<Signal>() {
                last.retain(|(other, _)| *other != signal);
                last.push((signal, eviction.counted.at));
            }
        }
        last
    }

    /// Pods that were asked to go in this boot, and whose time is not over or was over less than ten minutes ago; the
    /// oldest first.
    pub fn requests(&self) -> Vec<RestoredRequest> {
        let now = u64::try_from(self.now).unwrap_or(0);
        let asked = |e: &RestoredPod| {
            let grace = u64::try_from(grace_ns(&e.counted)).unwrap_or(0);
            Some(RestoredRequest {
                uid: e.counted.uid.clone(),
                signal: e.counted.signal.clone(),
                at: e.counted.at,
                left: e.counted.grace_period_seconds.map(|_| {
                    let end = e.counted.at.saturating_add(grace);
                    end.saturating_sub(now)
                })?,
            })
        };
        self.under_way().filter_map(asked).collect()
    }

    fn under_way(&self) -> impl Iterator<Item = &RestoredPod> {
        let is_recent = |e: &RestoredPod| self.now.saturating_sub(e.end) <= UNDER_WAY_NS;
        // What is stuck may be there for hours.
        let is_under_way = move |e: &&RestoredPod| e.is_same_boot && (e.is_stuck || is_recent(e));
        self.evictions.iter().filter(is_under_way)
    }

    /// Lists the evictions that limits have to count.
    pub fn evictions(&self) -> Vec<RestoredEviction> {
        let restored = |e: &RestoredPod| RestoredEviction {
            at_own_limit: is_own_limit(&e.counted.signal),
            is_requested: e.is_requested(),
            begun: e.begun,
            at: e.at,
            is_same_boot: e.is_same_boot,
            pod: Pod {
                namespace: e.counted.namespace.clone(),
                name: e.counted.name.clone(),
                uid: e.counted.uid.clone(),
                owner: e.counted.workload.as_ref().and_then(|w| w.owner.clone()),
                labels: e.counted.workload.clone().unwrap_or_default().labels,
                ..Pod::default()
            },
            is_workload_known: e
                .counted
                .workload
                .as_ref()
                .is_some_and(|workload| !workload.is_partial),
        };
        // One that was killed before it had gone as it was asked to counts once. A manifest's pod runs again with its
        // UID: a kill after the end of a request is of another run.
        let mut killed = HashMap::new();
        let newest_first = self.evictions.iter().rev();
        let counted = newest_first.filter(|e| {
            let uid = &*e.counted.uid;
            if !e.is_requested() {
                killed.insert(uid, e.begun);
                return true;
            }
            let ended_by = killed.remove(uid);
            ended_by.is_none_or(|at| !e.counted.is_agreed && at > e.end)
        });
        let mut counted: Vec<_> = counted.map(restored).collect();
        counted.reverse();
        counted
    }

    /// What the engine has to know. `is_there` is asked whether something is left of a pod (its UID) that was to go at
    /// a moment, in nanoseconds of CLOCK_MONOTONIC.
    pub fn planner_state(
        &self,
        is_there: impl Fn(&str, u64) -> bool,
    ) -> evictd_engine::RestoredState {
        let killed = self
            .under_way()
            .map(|e| (e.counted.uid.clone(), e.counted.at));
        let victims = self.under_way().map(|e| evictd_engine::RestoredPending {
            uid: e.counted.uid.clone(),
            at: e.end,
            is_requested: e.is_requested(),
            is_dead: !is_there(&e.counted.uid, e.counted.at),
            signal: e.counted.signal.parse().ok(),
            usage: e.counted.usage,
            available: signed(e.counted.available),
            other_signals: {
                let others = e.counted.other_signals.iter();
                let known = others.filter_map(|(name, freed)| Some((name.parse().ok()?, *freed)));
                known.collect()
            },
        });
        let evictions = self.evictions.iter().filter_map(|e| {
            let workload = e.counted.workload.as_ref()?;
            // Pods above a limit of their own are no pressure's.
            let signal: Signal = e.counted.signal.parse().ok()?;
            Some(evictd_engine::RestoredOwnerEviction {
                at: e.at,
                since: e.since,
                uid: e.counted.uid.clone(),
                owner_uid: workload.owner.as_ref()?.uid.clone(),
                condition: signal.node_condition(),
            })
        });
        let recreations = self.recreations.iter().filter_map(|(at, recreation)| {
            Some(evictd_engine::RestoredRecreation {
                at: *at,
                recreation: evictd_engine::Recreation {
                    uid: recreation.uid.clone(),
                    owner_uid: recreation.owner_uid.clone(),
                    condition: condition(&recreation.condition)?,
                    count: recreation.count,
                    hold: std::time::Duration::from_secs(recreation.hold_seconds),
                },
            })
        });
        let last = self.last_evictions().into_iter();
        let last = last.map(|(signal, at)| (signal, signed(at)));
        evictd_engine::RestoredState {
            victims: victims.collect(),
            killed: killed.collect(),
            evictions: evictions.collect(),
            recreations: recreations.collect(),
            last: last.collect(),
        }
    }

    /// Number of the restored evictions.
    pub fn len(&self) -> usize {
        self.evictions.len()
    }

    /// Whether it knows of no eviction.
    pub fn is_empty(&self) -> bool {
        self.evictions.is_empty()
    }
}

#[cfg(test)]
mod tests;
