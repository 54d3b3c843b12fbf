//! A cgroup that plays a node, with pods in it, and a fast path that watches it.

use std::os::fd::AsFd as _;

use evictd_engine::{
    accounting::MemoryThresholds, eviction_state::EvictionState, limiter::EvictionLimiter,
    model::settings::RankingStrategy,
};
use evictd_fastpath::{
    BlockedBy, EvictionReport, FastPath, FastPathControl, FastPathEvent, FastPathEventQueue,
    FastPathSetup, FastPathStatus, VictimExit,
};
use evictd_node::{
    memory_scope::{Scope, ScopeKind},
    pods::table::{PodEntry, PodTable},
    proc::machine::{MemAvailable, memory_total},
    trigger::{hook::HookUnavailable, memory},
};
use evictd_sys::poll::poll;

use crate::{prelude::*, stalled::thread_named};

pub const MIB: u64 = 1 << 20;

pub struct Node {
    pub cgroup: TestCgroup,
    pub limiter: Arc<EvictionLimiter>,
    pods: Vec<(Pod, PathBuf)>,
}

/// Options of the fast path of a node.
#[derive(Clone, Copy)]
pub struct Options {
    pub hook: Option<MemoryHook>,
    pub threshold: u64,
    /// Bytes below which the kernel acts by itself.
    pub floor: Option<u64>,
    /// Decide only.
    pub shadow: bool,
    /// Watch the whole machine instead of the node's own cgroup.
    pub machine: bool,
    /// Watch the pods' cgroup too, if it has a limit: this much must be available in it.
    pub pods_threshold: Option<u64>,
    /// Bytes available in the pods' cgroup below which the kernel acts by itself.
    pub pods_floor: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hook: None,
            threshold: 100 * MIB,
            floor: None,
            shadow: false,
            machine: false,
            pods_threshold: None,
            pods_floor: None,
        }
    }
}

impl Options {
    /// Woken by this hook.
    pub fn on(hook: MemoryHook) -> Self {
        Self {
            hook: Some(hook),
            ..Self::default()
        }
    }

    /// With a threshold of so many MiB.
    pub fn at(mib: u64) -> Self {
        Self {
            threshold: mib * MIB,
            ..Self::default()
        }
    }
}

/// The root of the machine's memory cgroups, and its memory in bytes.
pub fn machine() -> Result<(MemoryCgroup, u64)> {
    let (root, _) = crate::cgroup::memory_root().context("no memory cgroups")?;
    let root = MemoryCgroup::open(&root)?;
    let total = memory_total(Path::new("/proc"))?;
    Ok((root, total))
}

/// What the machine has available by the kernel's own count, in bytes.
pub fn mem_available() -> u64 {
    let file = MemAvailable::open(Path::new("/proc")).expect("/proc/meminfo");
    file.read().expect("/proc/meminfo").available
}

/// A fast path at work on a node.
pub struct Watched {
    fastpath: Option<FastPath>,
    events: Arc<FastPathEventQueue>,
    status: Arc<FastPathStatus>,
    pub control: Arc<FastPathControl>,
    pub hook: MemoryHook,
    /// Better hooks, with the reason why each was refused.
    pub refused: Vec<(MemoryHook, String)>,
    // The programs stay attached for as long as it lives.
    _object: Option<BpfObject>,
}

impl Node {
    /// A node of so many MiB without pods.
    pub fn new(name: &str, mib: u64) -> Result<Self> {
        Ok(Self {
            cgroup: TestCgroup::new(name, mib * MIB)?,
            limiter: Arc::default(),
            pods: Vec::new(),
        })
    }

    /// Adds a BestEffort pod of priority 0, and returns its cgroup.
    #[track_caller]
    pub fn best_effort(&mut self, name: &str) -> PathBuf {
        self.pod(name, QosClass::BestEffort, 0, 0)
    }

    /// Adds a pod and returns its cgroup: as the kubelet lays them out.
    #[track_caller]
    pub fn pod(&mut self, name: &str, qos: QosClass, priority: i32, request: u64) -> PathBuf {
        self.pod_in("", name, qos, priority, request)
    }

    /// Adds a pod below a cgroup of the node, such as `kubepods`, and returns the pod's cgroup.
    #[track_caller]
    pub fn pod_in(
        &mut self,
        parent: &str,
        name: &str,
        qos: QosClass,
        priority: i32,
        request: u64,
    ) -> PathBuf {
        let class = match qos {
            QosClass::BestEffort => "besteffort",
            QosClass::Burstable => "burstable",
            QosClass::Guaranteed => "",
        };
        let pod = Path::new(parent).join(class).join(format!("pod-{name}"));
        let cgroup = self.cgroup.child(&pod.display().to_string());
        let cgroup = cgroup.expect("a cgroup");
        let pod = Pod {
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            name: name.into(),
            priority,
            qos,
            memory_request: request,
            ..Pod::default()
        };
        self.pods.push((pod, cgroup.clone()));
        cgroup
    }

    /// Changes what is known of a pod.
    pub fn edit(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        if let Some((pod, _)) = self.pods.iter_mut().find(|(pod, _)| pod.name == name) {
            change(pod);
        }
    }

    /// The table of the pods as they are now, as a new agent opens them.
    pub fn table(&self) -> Box<PodTable> {
        self.table_with(|_| Arc::default())
    }

    /// The table of the pods as they are now, made anew by the agent that has made `before`.
    pub fn table_after(&self, before: &PodTable) -> Box<PodTable> {
        self.table_with(|uid| {
            let same = before.entries.iter().find(|entry| entry.pod.uid == uid);
            same.map_or_else(Arc::default, |entry| Arc::clone(&entry.eviction_state))
        })
    }

    fn table_with(&self, state: impl Fn(&str) -> Arc<EvictionState>) -> Box<PodTable> {
        let entries = self.pods.iter().filter_map(|(pod, dir)| {
            let mut entry = PodEntry::open(pod.clone(), dir, Mode::Evictd).ok()?;
            entry.eviction_state = state(&pod.uid);
            Some(Arc::new(entry))
        });
        Box::new(PodTable::new(entries.collect()))
    }

    /// Starts a fast path on this node; `Err` inside when the hook is refused here.
    pub fn watch(&self, options: Options) -> Result<Result<Watched, HookUnavailable>> {
        self.watch_table(self.table(), options)
    }

    /// Starts a fast path on this node where the hook is certain to be there.
    #[track_caller]
    pub fn watched(&self, options: Options) -> Watched {
        self.watched_with(self.table(), options)
    }

    /// The same with a table that was made before.
    #[track_caller]
    pub fn watched_with(&self, table: Box<PodTable>, options: Options) -> Watched {
        let watched = self.watch_table(table, options);
        watched.expect("a fast path").expect("a hook")
    }

    fn watch_table(
        &self,
        table: Box<PodTable>,
        options: Options,
    ) -> Result<Result<Watched, HookUnavailable>> {
        let amounts = |threshold, floor| MemoryThresholds {
            threshold,
            resolved: threshold,
            floor,
            is_kubelets: false,
        };
        let thresholds = |_| amounts(options.threshold, options.floor);
        let (cgroup, kind) = if options.machine {
            let (root, total) = machine()?;
            (root, ScopeKind::Machine { total })
        } else {
            let cgroup = MemoryCgroup::open(self.cgroup.path())?;
            (cgroup, ScopeKind::Node)
        };
        let scope = Scope::open(cgroup, kind, thresholds, false);
        let mut scopes = vec![scope?];
        if let Some(threshold) = options.pods_threshold {
            let pods = self.cgroup.path().join("kubepods");
            let pods = MemoryCgroup::open(&pods)?;
            let thresholds = |_| amounts(threshold, options.pods_floor);
            let limit = pods.limit().ok().flatten().unwrap_or(u64::MAX);
            let scope = Scope::open(pods, ScopeKind::Pods { limit }, thresholds, false);
            scopes.push(scope?);
        }
        let cgroups: Vec<_> = scopes.iter().map(Scope::cgroup).collect();
        let (object, built) = memory::load(BpfObject::load(), &cgroups, options.hook);
        let built = match built {
            Ok(built) => built,
            Err(refused) => return Ok(Err(refused)),
        };
        let (control, events) = (FastPathControl::new()?, FastPathEventQueue::new()?);
        let status = Arc::<FastPathStatus>::default();
        let (fastpath, _) = FastPath::start(FastPathSetup {
            scopes,
            trigger: built.trigger,
            table,
            restored: Vec::new(),
            last_eviction: None,
            is_pinned: false,
            shadow: options.shadow,
            mode: Mode::Evictd,
            strategy: RankingStrategy::Kubelet,
            limiter: Arc::clone(&self.limiter),
            control: Arc::clone(&control),
            events: Arc::clone(&events),
            status: Arc::clone(&status),
        })?;
        Ok(Ok(Watched {
            fastpath: Some(fastpath),
            events,
            status,
            control,
            hook: built.selected_hook.hook,
            refused: built.selected_hook.refused,
            _object: object.ok(),
        }))
    }
}

impl Watched {
    /// The next report, if one comes in time; that a threshold was met at the start is no news to a test that has laid it so.
    pub fn report(&self, timeout: Duration) -> Option<FastPathEvent> {
        let end = Instant::now() + timeout;
        loop {
            match self.events.next() {
                Some(FastPathEvent::MetInForce { .. }) => continue,
                Some(report) => return Some(report),
                None => {}
            }
            let left = end.checked_duration_since(Instant::now())?;
            poll([Some(self.events.as_fd())], Some(left));
        }
    }

    /// The next eviction, other reports passed over.
    pub fn evicted(&self, timeout: Duration) -> Option<EvictionReport> {
        loop {
            if let FastPathEvent::Evicted(evicted) = self.report(timeout)? {
                return Some(evicted);
            }
        }
    }

    /// The next eviction, which has to be of this pod.
    #[track_caller]
    pub fn evicts(&self, name: &str) -> EvictionReport {
        let evicted = self.evicted(SOON).expect("an eviction");
        assert_eq!(evicted.pod.pod.name, name);
        evicted
    }

    /// The next report but for ends of evictions, which has to say that no pod may be evicted: for which signal, and what holds the
    /// pods back.
    #[track_caller]
    pub fn has_no_candidates(&self) -> (Signal, BlockedBy) {
        loop {
            match self.report(SOON) {
                Some(FastPathEvent::Finished(_)) => {}
                Some(FastPathEvent::NoCandidates { signal, held, .. }) => return (signal, held),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next end of an eviction, other reports passed over.
    pub fn finished(&self, timeout: Duration) -> Option<VictimExit> {
        loop {
            if let FastPathEvent::Finished(finished) = self.report(timeout)? {
                return Some(finished);
            }
        }
    }

    /// The kernel's id of the fast path thread.
    pub fn tid(&self) -> i32 {
        self.fastpath.as_ref().map_or(0, FastPath::tid)
    }

    pub fn take_overs(&self) -> u64 {
        self.status.take_overs()
    }
}

/// The id of the standby thread, if there is one, where this process watches one node.
pub fn standby_thread() -> Option<i32> {
    thread_named(std::process::id(), "standby").unwrap()
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(fastpath) = self.fastpath.take() {
            fastpath.stop();
        }
    }
}
