//! Attributes a kill of the OOM killer to a pod, a limit, and the evictions before it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use evictd_engine::{
    Resource,
    record::KillOutcome,
    units::{SECOND, nanos},
};
use evictd_fastpath::FastPathEvent;
use evictd_node::{
    pods::{cgroup_name, table::PodEntry},
    trigger::{
        memory::{CHARGE_BATCH, is_unlimited},
        oom::{self, LEVELS, Level, UNKNOWN},
    },
};
use evictd_store::record::oom_kill::{AtLimit, Before, OomCause, OomKillRecord, PodName, log_kill};
use evictd_sys::{clock::monotonic_ns, page::page_size};

use crate::daemon::wall_clock::wall_clock;

/// Bound on evictions that are remembered, on pods that are gone, and on processes.
const REMEMBERED: usize = 64;
/// An eviction that ended longer before a kill has nothing to do with it, in nanoseconds.
const RECENT_NS: u64 = 5 * SECOND;
/// For one limit of a pod's own, or of another cgroup, there is one record in so long, in nanoseconds: a pod that makes
/// the kernel kill without end does not fill the journal.
const ONE_RECORD_NS: u64 = 60 * SECOND;
/// Limits that have records of their own at the same time; all others share one.
const LIMITS: usize = 64;
/// No cgroup has this id.
const OTHERS: u64 = 0;

/// Kills since the start of the agent.
#[derive(Debug, Default)]
pub struct OomCounters {
    /// The OOM killer was first.
    pub first: AtomicU64,
    /// Kills that came although an eviction was under way or had just ended.
    pub after_eviction: AtomicU64,
    /// Pods at limits of their own.
    pub pod_limit: AtomicU64,
    /// Everything else: other cgroups at their limits.
    pub other_limit: AtomicU64,
    /// Those of which neither the pod nor the limit is known.
    pub unattributed: AtomicU64,
}

/// How a pod that was evicted ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By SIGKILL, sent here: what dies of it is no kill of the OOM killer.
    Killed,
    /// By the API server, the kubelet or SIGTERM, so that it may go on for a while.
    NotBySigkill,
    /// Not at all: the kernel has refused SIGKILL.
    Refused,
    /// Not at all: it was only decided, in shadow mode.
    Shadow,
}

impl Ending {
    /// Whether the pod ends by it.
    fn ends_pod(self) -> bool {
        matches!(self, Self::Killed | Self::NotBySigkill)
    }
}

impl From<KillOutcome> for Ending {
    fn from(outcome: KillOutcome) -> Self {
        match outcome {
            KillOutcome::Killed => Self::Killed,
            KillOutcome::Shadow => Self::Shadow,
            KillOutcome::Refused(_) => Self::Refused,
        }
    }
}

/// An eviction whose end the fast path does not report.
#[derive(Debug)]
pub struct NotedEviction {
    /// The pod.
    pub pod: PodName,
    /// Time of the signal or of the request, in nanoseconds of CLOCK_MONOTONIC.
    pub signalled: u64,
    /// The pod's time to end by itself.
    pub grace: Duration,
    /// How it ends.
    pub ending: Ending,
    /// What was short; `None` above a limit of the pod's own, or where that is not known.
    pub resource: Option<Resource>,
}

/// One eviction that is remembered.
#[derive(Debug)]
struct Remembered {
    /// Number by which the fast path reports the victim's end; `None` where it reports none.
    number: Option<u64>,
    pod: PodName,
    signalled: u64,
    /// Time of the end; 0 while the eviction is under way.
    ended: u64,
    /// Time from `signalled` on in which the eviction has to do with a kill, where its end is not reported, in
    /// nanoseconds.
    lasts: u64,
    ending: Ending,
    /// Whether memory was short: what went for a disk does not come before a kill of the OOM killer.
    for_memory: bool,
}

impl Remembered {
    /// Whether it was under way at a time or had ended shortly before.
    fn is_recent(&self, at: u64) -> bool {
        let since = |time: u64| at.saturating_sub(time);
        self.signalled <= at
            && (self.ended == 0 || since(self.ended) < RECENT_NS)
            && (self.number.is_some() || since(self.signalled) < self.lasts)
    }

    /// Whether it was under way at a time.
    fn is_in_flight(&self, at: u64) -> bool {
        self.ending.ends_pod() && (self.ended == 0 || self.ended > at)
    }
}

/// Attributes OOM kills to a pod, a limit and earlier evictions.
#[derive(Debug)]
pub struct OomAttributor {
    /// Root of the hierarchy, and its id.
    root: (PathBuf, u64),
    /// Ids of the cgroups that are watched, the node's first.
    scopes: Vec<u64>,
    /// Cgroup ids of the pods that are here.
    pods: Vec<(u64, PodName)>,
    /// Pods that were here before, oldest first: their kills may be read after they are gone.
    gone: VecDeque<(u64, PodName)>,
    evictions: VecDeque<Remembered>,
    /// Processes that were marked last, and when, in nanoseconds of CLOCK_MONOTONIC: the kernel marks each thread.
    marked: VecDeque<(u32, u64)>,
    /// Reads how many kills the kernel has counted by now.
    count: fn() -> Option<u64>,
    /// Kills of that count for which a kill was attributed or passed over.
    attributed: u64,
    /// The count at the last read.
    counted: u64,
    /// Records by the id of the cgroup that was at its limit.
    limits: HashMap<u64, LimitRecord>,
    counters: Arc<OomCounters>,
}

/// The last record of the kills for one limit.
#[derive(Debug)]
struct LimitRecord {
    /// Time of the record, in nanoseconds of CLOCK_MONOTONIC.
    at: u64,
    /// Kills since then.
    more: u64,
    /// The last of these.
    last: Option<OomKillRecord>,
}

impl OomAttributor {
    /// Attributes kills below this root of the memory hierarchy. `scopes`: ids of the cgroups that are watched, the
    /// node's first. `count` reads how many processes the kernel has killed by now.
    pub fn new(root: &Path, scopes: Vec<u64>, count: fn() -> Option<u64>) -> Self {
        let kills = count().unwrap_or(0);
        let id = fs::metadata(root).map_or(0, |m| m.ino());
        Self {
            root: (root.to_owned(), id),
            scopes,
            pods: Vec::new(),
            gone: VecDeque::new(),
            evictions: VecDeque::new(),
            marked: VecDeque::new(),
            count,
            attributed: kills,
            counted: kills,
            limits: HashMap::new(),
            counters: Arc::default(),
        }
    }

    /// Counters of the kills.
    pub fn counters(&self) -> Arc<OomCounters> {
        Arc::clone(&self.counters)
    }

    /// Counts kills of which neither the pod nor the limit is known.
    pub fn count_unattributed(&self, kills: u64) {
        self.counters
            .unattributed
            .fetch_add(kills, Ordering::Relaxed);
    }

    /// The node's scope may be another cgroup now.
    pub fn set_node_scope(&mut self, id: u64) {
        if let Some(node) = self.scopes.first_mut() {
            *node = id;
        }
    }

    /// The pods' cgroup is watched too, or is another one now.
    pub fn set_pods_scope(&mut self, id: u64) {
        self.scopes.truncate(1);
        self.scopes.push(id);
    }

    /// Takes over the pods of the node.
    pub fn set_pods(&mut self, entries: &[Arc<PodEntry>]) {
        let now = entries
            .iter()
            .map(|e| (e.memory.id(), PodName::from(&e.pod)));
        let before = std::mem::replace(&mut self.pods, now.collect());
        let now: HashSet<u64> = self.pods.iter().map(|(id, _)| *id).collect();
        let gone = before.into_iter().filter(|(id, _)| !now.contains(id));
        self.gone.extend(gone);
        let too_many = self.gone.len().saturating_sub(REMEMBERED);
        drop(self.gone.drain(..too_many));
    }

    /// Takes note of what the fast path has done.
    pub fn note(&mut self, event: &FastPathEvent) {
        match event {
            FastPathEvent::Evicted(evicted) => self.remember(Remembered {
                number: (evicted.outcome == KillOutcome::Killed).then_some(evicted.number),
                pod: PodName::from(&evicted.pod.pod),
                signalled: evicted.stages.signalled,
                ended: 0,
                lasts: RECENT_NS,
                ending: evicted.outcome.into(),
                for_memory: true,
            }),
            FastPathEvent::Finished(finished) => {
                let mut evictions = self.evictions.iter_mut();
                if let Some(eviction) = evictions.find(|e| e.number == Some(finished.number)) {
                    let seen = finished.exited.max(finished.threshold_cleared);
                    eviction.ended = if seen == 0 { monotonic_ns() } else { seen };
                }
            }
            _ => {}
        }
    }

    /// Takes note of an eviction whose end the fast path does not report: by the manager, by the kubelet, or a soft one.
    pub fn note_eviction(&mut self, noted: NotedEviction) {
        self.remember(Remembered {
            number: None,
            pod: noted.pod,
            signalled: noted.signalled,
            ended: 0,
            lasts: nanos(noted.grace).saturating_add(RECENT_NS),
            ending: noted.ending,
            for_memory: noted.resource == Some(Resource::Memory),
        });
    }

    fn remember(&mut self, eviction: Remembered) {
        push(&mut self.evictions, eviction);
    }

    /// Attributes one kill, counts and logs it, and returns its record. `None` where the victim is none of the node's,
    /// or where a later record has it, with others for the same limit: by [`Self::due`], or with the next kill.
    pub fn attribute(&mut self, kill: &oom::OomKill) -> Option<OomKillRecord> {
        let node = self.scopes.first()?;
        // What lies deeper than the levels go: the node is not among them, and a pod is.
        let is_cut = levels(kill).len() == LEVELS;
        let is_here = |l: &Level| l.id == *node || is_cut && self.pod(l.id).is_some();
        let is_here = levels(kill).iter().any(is_here);
        if self.is_marked(kill) {
            return None;
        }
        if !is_here {
            self.is_counted(kill.processes);
            return None;
        }
        let (record, limit) = self.record_of(kill);
        let pod = record.pod.as_ref();
        let is_dying = pod.is_some_and(|pod| self.is_dying(&pod.uid, kill.time_ns));
        if is_dying || !self.is_counted(kill.processes) {
            return None;
        }
        let counter = match record.cause {
            OomCause::PodLimit => &self.counters.pod_limit,
            OomCause::OtherLimit => &self.counters.other_limit,
            _ if record.was_first => &self.counters.first,
            _ => &self.counters.after_eviction,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let record = match record.cause {
            OomCause::PodLimit | OomCause::OtherLimit => self.fold(limit, record)?,
            OomCause::Machine | OomCause::Scope => record,
        };
        log_kill(&record);
        Some(record)
    }

    /// Whether a process was marked just before: another thread of it, or one that had the mark and needs more memory.
    fn is_marked(&mut self, kill: &oom::OomKill) -> bool {
        let (pid, now) = (kill.pid, kill.time_ns);
        self.marked
            .retain(|(_, at)| now.saturating_sub(*at) < RECENT_NS);
        if let Some((_, at)) = self.marked.iter_mut().find(|(known, _)| *known == pid) {
            *at = now;
            return true;
        }
        push(&mut self.marked, (pid, now));
        false
    }

    /// Whether evictd had sent SIGKILL to the processes of a pod at a time: the OOM killer then only helps them to end.
    fn is_dying(&self, uid: &str, at: u64) -> bool {
        let mut evictions = self.evictions.iter();
        evictions.any(|e| {
            e.ending == Ending::Killed && e.pod.uid == uid && e.is_recent(at) && e.is_in_flight(at)
        })
    }

    /// Whether the kernel has counted one more kill than were attributed: it does not count a process that was ending
    /// already. It counts each process of a decision, and the victim of a group twice (`oom_kill_process`).
    fn is_counted(&mut self, processes: u32) -> bool {
        let Some(kills) = (self.count)() else {
            return true;
        };
        let is_counted = self.attributed < kills;
        if is_counted {
            let again = u64::from(processes > 1);
            self.attributed = kills.min(self.attributed + u64::from(processes) + again);
        }
        is_counted
    }

    /// Ends a read of all records that there were: kills that the kernel had counted before it have no record to come.
    pub fn finish_read(&mut self) {
        self.attributed = self.attributed.max(self.counted);
        self.counted = (self.count)().unwrap_or(0);
    }

    /// The first kill for a limit has a record at once, later ones have one together.
    fn fold(&mut self, limit: u64, kill: OomKillRecord) -> Option<OomKillRecord> {
        let is_known = self.limits.contains_key(&limit);
        let limit = match self.limits.len() < LIMITS || is_known {
            true => limit,
            false => OTHERS,
        };
        let at = kill.at;
        match self.limits.get_mut(&limit) {
            Some(record) if at.saturating_sub(record.at) < ONE_RECORD_NS => {
                record.more += 1;
                record.last = Some(kill);
                None
            }
            record => {
                let more = record.map_or(0, |record| record.more);
                let last = None;
                self.limits.insert(limit, LimitRecord { at, more: 0, last });
                Some(OomKillRecord { more, ..kill })
            }
        }
    }

    /// Logs and returns the records that are due by now, in nanoseconds of CLOCK_MONOTONIC, of kills without one so
    /// far.
    pub fn due(&mut self, now: u64) -> Vec<OomKillRecord> {
        let mut due = Vec::new();
        self.limits.retain(|_, record| {
            if now.saturating_sub(record.at) < ONE_RECORD_NS {
                return true;
            }
            let Some(last) = record.last.take() else {
                return false;
            };
            let more = record.more - 1;
            (record.at, record.more) = (now, 0);
            due.push(OomKillRecord { more, ..last });
            true
        });
        due.iter().for_each(log_kill);
        due
    }

    /// The record of a kill, and the id of the cgroup that was at its limit, as in [`oom::OomKill::limit_id`].
    fn record_of(&self, kill: &oom::OomKill) -> (OomKillRecord, u64) {
        let levels = levels(kill);
        let page = page_size();
        let (cgroup, _) = self.path(levels.iter().map(|l| l.id));
        let known = levels.iter().position(|l| self.pod(l.id).is_some());
        let named = cgroup_name::parse(&cgroup);
        let pod = known
            .and_then(|at| self.pod(levels[at].id).cloned())
            .or_else(|| {
                named.as_ref().map(|path| PodName {
                    uid: path.uid.clone(),
                    ..PodName::default()
                })
            });
        let limit = at_limit(kill, levels);
        let limit_id = limit.map_or(kill.limit_id, |at| levels[at].id);
        let is_own = |at: usize| match known {
            Some(pod) => at <= pod,
            // The path of a cgroup that is there still says whether it is a pod's or a container's.
            None => {
                let (path, is_whole) = self.path(levels[at..].iter().map(|l| l.id));
                is_whole && cgroup_name::parse(&path).is_some()
            }
        };
        let cause = match limit_id {
            // The limit may lie above the levels.
            UNKNOWN if levels.len() == LEVELS => OomCause::OtherLimit,
            0 | UNKNOWN => OomCause::Machine,
            id if self.scopes.contains(&id) => OomCause::Scope,
            _ if limit.is_some_and(is_own) => OomCause::PodLimit,
            _ => OomCause::OtherLimit,
        };
        let before = self.before(kill.time_ns);
        let is_short = matches!(cause, OomCause::Machine | OomCause::Scope);
        let scope = self.scopes.first();
        let scope = levels.iter().find(|l| Some(&l.id) == scope);
        let kill = OomKillRecord {
            time: wall_clock(kill.time_ns),
            at: kill.time_ns,
            pid: kill.pid,
            processes: (kill.processes > 1).then_some(kill.processes),
            comm: text(&kill.comm),
            cgroup: shown(&cgroup),
            pod,
            oom_score_adj: kill.oom_score_adj,
            rss: (kill.rss != UNKNOWN).then(|| kill.rss.saturating_mul(page)),
            cause,
            at_limit: limit.map(|at| {
                let (path, _) = self.path(levels[at..].iter().map(|l| l.id));
                AtLimit {
                    cgroup: shown(&path),
                    usage: levels[at].usage.saturating_mul(page),
                    limit: levels[at].max.saturating_mul(page),
                }
            }),
            scope_usage: scope.map(|l| l.usage.saturating_mul(page)),
            was_first: is_short && !before.iter().any(|b| !b.shadow),
            before,
            more: 0,
        };
        (kill, limit_id)
    }

    fn pod(&self, id: u64) -> Option<&PodName> {
        let mut all = self.pods.iter().chain(&self.gone);
        all.find(|(known, _)| *known == id).map(|(_, name)| name)
    }

    /// Evictions for memory that were under way at that moment or had ended shortly before, oldest first. Where the kernel
    /// has refused SIGKILL none was: memory was not coming back.
    fn before(&self, at: u64) -> Vec<Before> {
        let before = |e: &Remembered| Before {
            pod: e.pod.clone(),
            nanos_before: at - e.signalled,
            in_flight: e.is_in_flight(at),
            shadow: e.ending == Ending::Shadow,
        };
        let recent = self.evictions.iter();
        let recent =
            recent.filter(|e| e.ending != Ending::Refused && e.for_memory && e.is_recent(at));
        recent.map(before).collect()
    }

    /// The path of the cgroup with the first of these ids, whose ancestors have the others, below the root; and whether
    /// all of it is there still.
    fn path(&self, ids: impl DoubleEndedIterator<Item = u64>) -> (PathBuf, bool) {
        let (root, root_id) = &self.root;
        let mut at = root.clone();
        for id in ids.rev().skip_while(|id| id != root_id).skip(1) {
            let Some(next) = child(&at, id) else {
                return (self.below_root(&at), false);
            };
            at = next;
        }
        (self.below_root(&at), true)
    }

    fn below_root(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path.strip_prefix(&self.root.0).unwrap_or(path))
    }
}

/// The levels that are there, from the victim's cgroup to the root.
fn levels(kill: &oom::OomKill) -> &[Level] {
    let count = kill.levels.iter().take_while(|l| l.id != 0).count();
    &kill.levels[..count]
}

/// Finds the level that was at its limit: the one that was passed to `oom_kill_process`, or else the lowest one that is
/// full.
fn at_limit(kill: &oom::OomKill, levels: &[Level]) -> Option<usize> {
    let page_shift = page_size().ilog2();
    // A charge is tried in batches: what is so close to its limit when a task in it is killed was at its limit.
    let is_full = |l: &Level| !is_unlimited(l.max, page_shift) && l.usage + CHARGE_BATCH >= l.max;
    match kill.limit_id {
        0 => None,
        UNKNOWN => levels.iter().position(is_full),
        id => levels.iter().position(|l| l.id == id),
    }
}

fn child(dir: &Path, id: u64) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?;
    let mut entries = entries.flatten();
    let found = entries.find(|e| e.metadata().is_ok_and(|m| m.is_dir() && m.ino() == id))?;
    Some(found.path())
}

/// Adds one, and drops the oldest where there are too many.
fn push<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

#[cfg(test)]
mod tests;
