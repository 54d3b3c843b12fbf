//! How much disk each pod uses: a thread that walks all pods' directories, over and over, slowly.
//!
//! The kubelet walks once a minute. A walk at the moment of pressure would be too late, and a fast one would take the
//! disk from those who need it: this thread has the lowest priority and sleeps most of the time, except while a disk is
//! short. What hooks count since a walk is added by [`DiskUse::since`].

use std::{
    collections::{HashMap, HashSet},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use evictd_engine::{ContainerUsage, FsUsage, PodUsage, VolumeUsage};
use evictd_node::{
    fs::du::{Usage, Walk, lower_priority},
    trigger::inodes::ShareReader,
};
use evictd_sys::{
    clock::monotonic_ns,
    eventfd::EventFd,
    pi_mutex::{PiMutex, PiMutexGuard},
    poll::poll,
};

use crate::{PodDirs, pod_dirs::Named};

/// A walk over all pods begins this long after the last one did, at the soonest (the kubelet's
/// `volumeStatsAggPeriod`).
const PERIOD: Duration = Duration::from_secs(60);
/// The same while a disk is short.
const PRESSED_PERIOD: Duration = Duration::from_secs(2);
/// Entries that are looked at in one go.
const STEP: usize = 128;
/// It sleeps so many times as long as it has worked: 5 % of a CPU at most.
const REST: u32 = 19;

/// Finds a pod's directories when its turn has come.
pub type DirResolver = Arc<dyn Fn() -> PodDirs + Send + Sync>;

/// A pod to be walked.
#[derive(Clone)]
pub struct ScanTarget {
    /// The pod's UID.
    pub uid: String,
    /// Ids of the pod's cgroup and of those below.
    pub cgroups: Vec<u64>,
    /// Its directories.
    pub places: DirResolver,
}

/// What a walk has found for one pod.
#[derive(Clone, Debug, Default)]
pub struct DiskUse {
    /// In the form of the kubelet's summary.
    pub usage: PodUsage,
    /// Inodes made less those removed when the walk was half way through, by filesystem.
    pub counted: [i64; FILESYSTEMS],
    /// When the walk began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: u64,
}

/// Filesystems that can have counts.
pub const FILESYSTEMS: usize = evictd_node::trigger::inodes::MAX_FILESYSTEMS as usize;

impl DiskUse {
    /// Inodes that the pod has made since the walk on a filesystem, less those removed.
    pub fn since(&self, filesystem: usize, counted_now: i64) -> i64 {
        let then = self.counted.get(filesystem).copied().unwrap_or(0);
        counted_now.saturating_sub(then)
    }
}

/// The last walk of every pod that was walked, by UID.
pub type Found = HashMap<String, Arc<DiskUse>>;

/// Both are replaced as a whole: the mutex is held for the exchange of pointers.
#[derive(Default)]
struct State {
    targets: Arc<Vec<ScanTarget>>,
    found: Arc<Found>,
}

/// The scanner, seen from outside.
pub struct DiskScanner {
    state: PiMutex<State>,
    /// Tells the thread of a change, also one that comes just before it sleeps.
    changed: EventFd,
    pressed: AtomicBool,
    stop: AtomicBool,
    cycles: AtomicU64,
}

impl DiskScanner {
    /// Starts the thread; it ends when [`Self::stop`] is called.
    ///
    /// # Errors
    /// The system has no thread or descriptor to give.
    pub fn start(shares: Option<ShareReader>) -> std::io::Result<Arc<Self>> {
        let scanner = Arc::new(Self {
            state: PiMutex::default(),
            changed: EventFd::new()?,
            pressed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            cycles: AtomicU64::new(0),
        });
        let own = Arc::clone(&scanner);
        std::thread::Builder::new()
            .name("disk-scan".into())
            .spawn(move || {
                lower_priority();
                own.run(shares.as_ref());
            })?;
        Ok(scanner)
    }

    /// The pods to scan from now on. What is known of others is forgotten.
    pub fn set_targets(&self, targets: Vec<ScanTarget>) {
        let old = std::mem::replace(&mut self.lock().targets, Arc::new(targets));
        drop(old);
        self.update(|found, targets| {
            let known: HashSet<&str> = targets.iter().map(|e| e.uid.as_str()).collect();
            found.retain(|uid, _| known.contains(uid.as_str()));
        });
        self.changed.notify();
    }

    /// Changes a copy of what was found, without the mutex, and puts it in place if no other thread has changed it meanwhile.
    fn update(&self, change: impl Fn(&mut Found, &[ScanTarget])) {
        loop {
            let (targets, before) = {
                let state = self.lock();
                (Arc::clone(&state.targets), Arc::clone(&state.found))
            };
            let mut found = Found::clone(&before);
            change(&mut found, &targets);
            let found = Arc::new(found);
            let mut state = self.lock();
            if Arc::ptr_eq(&state.found, &before) && Arc::ptr_eq(&state.targets, &targets) {
                // `before` keeps the old one until the mutex is free.
                state.found = found;
                return;
            }
        }
    }

    /// While a disk is short walks follow one another without rest.
    pub fn set_pressed(&self, pressed: bool) {
        if self.pressed.swap(pressed, Ordering::Relaxed) != pressed {
            self.changed.notify();
        }
    }

    /// Counts the pods that were walked; when it changes there is something new in [`Self::found`].
    pub fn scanned(&self) -> u64 {
        self.cycles.load(Ordering::Acquire)
    }

    /// The last walk of every pod that was walked.
    pub fn found(&self) -> Arc<Found> {
        Arc::clone(&self.lock().found)
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.changed.notify();
    }

    fn lock(&self) -> PiMutexGuard<'_, State> {
        self.state.lock()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, shares: Option<&ShareReader>) {
        loop {
            let began = Instant::now();
            let targets = Arc::clone(&self.lock().targets);
            for target in targets.iter() {
                let Some(walked) = self.scan(target, shares) else {
                    return;
                };
                let walked = Arc::new(walked);
                self.update(|found, targets| {
                    // It may be gone by now.
                    if targets.iter().any(|e| e.uid == target.uid) {
                        found.insert(target.uid.clone(), Arc::clone(&walked));
                    }
                });
                self.cycles.fetch_add(1, Ordering::Release);
            }
            if !self.rest(began, &targets) {
                return;
            }
        }
    }

    /// Waits until the next scan is due, or a new pod is there; false when it is over.
    fn rest(&self, began: Instant, known: &[ScanTarget]) -> bool {
        let known: HashSet<&str> = known.iter().map(|e| e.uid.as_str()).collect();
        loop {
            // Before the look: what changes after it ends the wait.
            self.changed.clear();
            let targets = Arc::clone(&self.lock().targets);
            let news = targets.iter().any(|e| !known.contains(e.uid.as_str()));
            let period = if self.pressed.load(Ordering::Relaxed) {
                PRESSED_PERIOD
            } else {
                PERIOD
            };
            let left = period.saturating_sub(began.elapsed());
            if self.is_stopped() || news || left.is_zero() {
                return !self.is_stopped();
            }
            poll([self.changed.fd().as_raw_fd()], Some(left));
        }
    }

    /// One pod; `None` when it is over.
    fn scan(&self, target: &ScanTarget, shares: Option<&ShareReader>) -> Option<DiskUse> {
        let mut found = DiskUse {
            began: monotonic_ns(),
            ..DiskUse::default()
        };
        let places = (target.places)();
        // One reading before and one after stand for the middle of the walk.
        let counted = |index| shares.map_or(0, |s| s.net(&target.cgroups, index));
        let before: [i64; FILESYSTEMS] = std::array::from_fn(counted);
        let usage = &mut found.usage;
        for (name, fs) in self.each(&places.volumes)? {
            usage.volumes.push(VolumeUsage { name, fs });
        }
        for (name, fs) in self.each(&places.layers)? {
            container(usage, name).rootfs = fs;
        }
        for (name, fs) in self.each(&places.logs)? {
            container(usage, name).logs = fs;
        }
        usage.ephemeral_storage = Some(bytes(usage));
        found.counted = std::array::from_fn(|i| i64::midpoint(before[i], counted(i)));
        Some(found)
    }

    /// Walks some directories one by one.
    fn each(&self, named: &Named) -> Option<Vec<(String, FsUsage)>> {
        let mut found = Vec::new();
        for (name, path) in named {
            if let Some(usage) = self.one(path)? {
                let usage = FsUsage {
                    bytes: Some(usage.bytes),
                    inodes: Some(usage.inodes),
                };
                found.push((name.clone(), usage));
            }
        }
        Some(found)
    }

    /// One directory; the inner `None` is one that cannot be looked at.
    fn one(&self, path: &Path) -> Option<Option<Usage>> {
        let Ok(mut walk) = Walk::new(&[path]) else {
            return Some(None);
        };
        loop {
            let began = Instant::now();
            let done = walk.step(STEP);
            if done {
                return Some(Some(walk.found().0));
            }
            let until = Instant::now() + began.elapsed() * REST;
            loop {
                self.changed.clear();
                if self.is_stopped() {
                    return None;
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || self.pressed.load(Ordering::Relaxed) {
                    break;
                }
                poll([self.changed.fd().as_raw_fd()], Some(left));
            }
        }
    }
}

fn container(usage: &mut PodUsage, name: String) -> &mut ContainerUsage {
    let at = usage.containers.iter().position(|c| c.name == name);
    let at = at.unwrap_or_else(|| {
        usage.containers.push(ContainerUsage {
            name,
            ..ContainerUsage::default()
        });
        usage.containers.len() - 1
    });
    &mut usage.containers[at]
}

fn bytes(usage: &PodUsage) -> u64 {
    let containers = usage.containers.iter().flat_map(|c| [c.rootfs, c.logs]);
    let volumes = usage.volumes.iter().map(|v| v.fs);
    let each = containers.chain(volumes).map(|fs| fs.bytes.unwrap_or(0));
    each.fold(0, u64::saturating_add)
}

/// Directories that are given beforehand.
pub fn fixed(volumes: Vec<(String, PathBuf)>) -> DirResolver {
    Arc::new(move || PodDirs {
        volumes: volumes.clone(),
        ..PodDirs::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_walked_and_the_dead_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..300 {
            std::fs::write(dir.path().join(format!("f{n}")), "x").unwrap();
        }
        let scanner = DiskScanner::start(None).unwrap();
        scanner.set_pressed(true);
        let target = ScanTarget {
            uid: "u".into(),
            cgroups: Vec::new(),
            places: fixed(vec![("scratch".into(), dir.path().to_owned())]),
        };
        scanner.set_targets(vec![target]);
        while scanner.scanned() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = scanner.found();
        let volume = &found["u"].usage.volumes[0];
        assert_eq!(
            (volume.name.as_str(), volume.fs.inodes),
            ("scratch", Some(301))
        );
        assert_eq!(found["u"].usage.ephemeral_storage, volume.fs.bytes);
        scanner.set_targets(Vec::new());
        assert!(scanner.found().is_empty());
        scanner.stop();
    }

    /// Each change comes while the thread goes to sleep, or may: with a lost one the next walk would be a minute late.
    #[test]
    fn no_change_is_lost() {
        let scanner = DiskScanner::start(None).unwrap();
        for n in 0..200 {
            let before = scanner.scanned();
            let target = ScanTarget {
                uid: n.to_string(),
                cgroups: Vec::new(),
                places: fixed(Vec::new()),
            };
            scanner.set_targets(vec![target]);
            let until = Instant::now() + PERIOD / 3;
            while scanner.scanned() == before {
                assert!(Instant::now() < until, "change {n} is lost");
                std::thread::yield_now();
            }
        }
        scanner.stop();
    }
}
