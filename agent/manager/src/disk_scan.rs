//! How much disk each pod uses: a thread that walks all pods' directories, over and over, slowly.
//!
//! The kubelet walks once a minute. A walk at the moment of pressure would be too late, and a fast one would take the
//! disk from the pods that need it: this thread has the lowest priority and sleeps most of the time. While a disk is
//! short it sleeps less, and no longer stands behind all others. What hooks count since a walk is added
//! by [`DiskUse::since`].
//!
//! A pod with very many files holds up no other one: its walk is interrupted and goes on when the others had their turn
//! ([`schedule`]). A walk of minutes may count a file twice: where the pod would be above a limit of its own by it, a
//! *close* walk follows, which does not rest. What a close walk finds that others have made wait counts for no limit; the
//! next one goes first for longer.

mod disk_use;
mod pod_walk;
mod schedule;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use evictd_engine::node_reclaim::LayerUsage;
use evictd_node::{
    fs::mounts::{MountPoints, MountTable},
    pods::dirs::PodDirs,
    trigger::inodes::CgroupCountReader,
};
use evictd_sys::{
    clock::monotonic_ns,
    eventfd::EventFd,
    fs::PathError,
    pi_mutex::{PiMutex, PiMutexGuard},
    poll::poll,
    priority::BackgroundPriority,
};

use disk_use::LayersAnswer;
use pod_walk::PodWalk;
use schedule::{NextStep, Schedule};

pub(crate) use disk_use::container;
pub use disk_use::{DiskUse, Found};

/// Entries that are looked at in one go.
const STEP: usize = 128;
/// Entries of one pod until the next one has its turn.
const SLICE: usize = 16_384;
/// Ratio of the thread's sleep to the time that it has worked: 5 % of a CPU, but for close walks.
const REST: u32 = 19;
/// Ratio of the thread's sleep to the time that it has worked while a disk is short, once all pods were walked: a
/// quarter of a CPU.
const PRESSED_REST: u32 = 3;
/// The thread waits for no longer than this without a sign of life.
const BEAT: Duration = Duration::from_secs(30);
/// Without a sign of life for so long it is stuck in a call to a filesystem.
const STUCK: Duration = Duration::from_secs(600);

/// Finds a pod's directories when its turn has come. What is mounted there is not to be touched.
pub type DirResolver = Arc<dyn Fn(&MountPoints) -> PodDirs + Send + Sync>;

/// A pod to be walked.
#[derive(Clone)]
pub struct ScanTarget {
    /// The pod's UID.
    pub uid: String,
    /// Ids of the pod's cgroup and of those below.
    pub cgroups: Vec<u64>,
    /// The least limit that the pod sets for its own files, in bytes: above it a walk has to be certain.
    pub least_limit: Option<u64>,
    /// Resolver of the pod's directories.
    pub places: DirResolver,
}

#[cfg(test)]
impl ScanTarget {
    /// A pod of no cgroup and without a limit.
    fn of(uid: &str, dirs: impl Fn() -> PodDirs + Send + Sync + 'static) -> Self {
        Self {
            uid: uid.to_owned(),
            cgroups: Vec::new(),
            least_limit: None,
            places: Arc::new(move |_| dirs()),
        }
    }
}

/// All are replaced as a whole: the mutex is held for the exchange of pointers.
#[derive(Default)]
struct State {
    targets: Arc<Vec<ScanTarget>>,
    found: Arc<Found>,
    answer: Arc<LayersAnswer>,
    overlays_error: Option<Arc<str>>,
}

/// The scanner, seen from outside.
pub struct DiskScanner {
    state: PiMutex<State>,
    /// Wakes the thread at a change, also one that comes just before it sleeps.
    changed: EventFd,
    /// The newest start of a shortage, in nanoseconds of CLOCK_MONOTONIC; 0 where no disk is short.
    short_since: AtomicU64,
    stop: AtomicBool,
    revision: AtomicU64,
    /// The last sign of life, in nanoseconds of CLOCK_MONOTONIC.
    heartbeat: AtomicU64,
}

impl DiskScanner {
    /// Starts the thread; it ends when [`Self::stop`] is called.
    ///
    /// # Errors
    /// The system has no thread or descriptor to give.
    pub fn start(cgroup_counts: Option<CgroupCountReader>) -> std::io::Result<Arc<Self>> {
        let scanner = Arc::new(Self {
            state: PiMutex::default(),
            changed: EventFd::new()?,
            short_since: AtomicU64::default(),
            stop: AtomicBool::new(false),
            revision: AtomicU64::new(0),
            heartbeat: AtomicU64::new(monotonic_ns()),
        });
        let own = Arc::clone(&scanner);
        std::thread::Builder::new()
            .name("disk-scan".into())
            .spawn(move || own.run(cgroup_counts.as_ref()))?;
        Ok(scanner)
    }

    /// The pods to scan from now on. What is known of others is forgotten.
    pub fn set_targets(&self, targets: Vec<ScanTarget>) {
        let old = std::mem::replace(&mut self.lock().targets, Arc::new(targets));
        drop(old);
        self.update(|found, targets, _| {
            let known: HashSet<&str> = targets.iter().map(|target| target.uid.as_str()).collect();
            found.retain(|uid, _| known.contains(uid.as_str()));
        });
        self.changed.notify();
    }

    /// Changes a copy of what was found, without the mutex, and puts it in place if no other thread has changed
    /// anything meanwhile.
    fn update(&self, change: impl Fn(&mut Found, &[ScanTarget], &LayersAnswer)) {
        loop {
            let (targets, before, answer) = {
                let state = self.lock();
                (
                    Arc::clone(&state.targets),
                    Arc::clone(&state.found),
                    Arc::clone(&state.answer),
                )
            };
            let mut found = Found::clone(&before);
            change(&mut found, &targets, &answer);
            let found = Arc::new(found);
            let mut state = self.lock();
            if Arc::ptr_eq(&state.found, &before)
                && Arc::ptr_eq(&state.targets, &targets)
                && Arc::ptr_eq(&state.answer, &answer)
            {
                // `before` keeps the old one until the mutex is free.
                state.found = found;
                return;
            }
        }
    }

    /// What writable layers use by the runtime's count, for those that cannot be walked, and when it was asked, in
    /// nanoseconds of CLOCK_MONOTONIC.
    pub fn set_layers(&self, layers: LayerUsage, requested_at: u64) {
        let answer = Arc::new(LayersAnswer {
            layers,
            requested_at,
        });
        let old = std::mem::replace(&mut self.lock().answer, answer);
        drop(old);
        self.update(|found, _, answer| {
            for known in found.values_mut() {
                Arc::make_mut(known).fill(answer);
            }
        });
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// While a disk is short walks follow one another sooner, the first of them without rest. The last one that became short
    /// is so since `newest`, in nanoseconds of CLOCK_MONOTONIC: its first walks are later ones.
    pub fn set_short_since(&self, newest: Option<u64>) {
        let newest = newest.unwrap_or(0);
        if self.short_since.swap(newest, Ordering::Relaxed) != newest {
            self.changed.notify();
        }
    }

    /// Whether the thread hangs in a call to a filesystem: what is known of pods grows old, and new ones stay unknown.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck_at(monotonic_ns())
    }

    fn is_stuck_at(&self, now: u64) -> bool {
        let quiet = now.saturating_sub(self.heartbeat.load(Ordering::Relaxed));
        Duration::from_nanos(quiet) >= STUCK
    }

    /// Why the node's overlays could not be read at the last look, where they could not: what is known of them is old.
    pub fn overlays_error(&self) -> Option<Arc<str>> {
        self.lock().overlays_error.clone()
    }

    /// Takes what has come of a look at the node's overlays. This thread does not log.
    fn note_overlays(&self, look: Result<(), PathError>) {
        let error = look.err().map(|error| Arc::from(error.to_string()));
        let old = std::mem::replace(&mut self.lock().overlays_error, error);
        drop(old);
    }

    /// Rises whenever [`Self::found`] may have changed: by a walk, a part of one, or the runtime's numbers.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The last walk of every pod that was walked.
    pub fn found(&self) -> Arc<Found> {
        Arc::clone(&self.lock().found)
    }

    /// Counts the pods of which no walk has come to its end yet.
    pub fn unknown_pods(&self) -> usize {
        let state = self.lock();
        let (targets, found) = (Arc::clone(&state.targets), Arc::clone(&state.found));
        drop(state);
        let is_whole = |target: &ScanTarget| found.get(&target.uid).is_some_and(|u| u.is_whole());
        targets.iter().filter(|target| !is_whole(target)).count()
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

    fn heartbeat(&self) {
        self.heartbeat.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// The newest start of a shortage, where a disk is short.
    fn short_since(&self) -> Option<u64> {
        let newest = self.short_since.load(Ordering::Relaxed);
        (newest > 0).then_some(newest)
    }

    fn run(&self, cgroup_counts: Option<&CgroupCountReader>) {
        let mut mounts = MountTable::default();
        let mut schedule = Schedule::default();
        let mut priority = None;
        while !self.is_stopped() {
            // Before the look: what changes after it ends the wait.
            self.changed.clear();
            self.heartbeat();
            let targets = Arc::clone(&self.lock().targets);
            let (now, short_since) = (monotonic_ns(), self.short_since());
            // A walk must not slow a pod down; but where a disk is short evictions wait for it, on a machine that others
            // keep busy.
            let wanted = match short_since {
                None => BackgroundPriority::Idle,
                Some(_) => BackgroundPriority::Low,
            };
            if priority.replace(wanted) != Some(wanted) {
                // Best effort.
                let _ = wanted.set();
            }
            schedule.follow(&targets, short_since, now);
            match schedule.next(now) {
                NextStep::Wait(left) => {
                    poll([Some(self.changed.fd())], Some(left.min(BEAT)));
                }
                turn => self.run_slice(turn, &mut schedule, &mut mounts, cgroup_counts),
            }
        }
    }

    /// Goes on with one pod until it is done, its slice is over, or there is a new pod.
    fn run_slice(
        &self,
        turn: NextStep,
        schedule: &mut Schedule,
        mounts: &mut MountTable,
        cgroup_counts: Option<&CgroupCountReader>,
    ) {
        // The look for a pod's directories is work as well: a pod with many containers pays for it.
        let mut began = Instant::now();
        // An old table is better than none.
        let _ = mounts.refresh();
        let mut scan = match turn {
            NextStep::Start(target) => {
                self.note_overlays(mounts.refresh_overlays());
                Box::new(PodWalk::begin(target, mounts.points(), cgroup_counts))
            }
            NextStep::Resume(mut scan) => {
                scan.pass_by(mounts.points());
                scan
            }
            NextStep::Wait(_) => return,
        };
        let short_since = self.short_since();
        let mut entries = 0;
        while !self.is_stopped() {
            // A turn takes long: a server that does not answer may have been mounted meanwhile.
            if mounts.refresh().unwrap_or(false) {
                scan.pass_by(mounts.points());
            }
            let is_done = scan.step(mounts.points());
            entries += STEP;
            let worked = began.elapsed();
            scan.worked += worked;
            let rest = match scan.is_close() || schedule.awaits_close_walk(monotonic_ns()) {
                true => 0,
                false => schedule.rest(),
            };
            if is_done {
                let found = scan.finish(monotonic_ns(), cgroup_counts);
                if !self.walk_closely(&scan, &found, schedule, mounts, cgroup_counts) {
                    self.publish(&scan.target.uid, found);
                    schedule.done(&scan);
                }
                return self.rest(worked * rest, schedule);
            }
            self.rest(worked * rest, schedule);
            let is_new = schedule.has_new_targets(&self.lock().targets);
            if entries >= SLICE || is_new || self.short_since() != short_since {
                break;
            }
            began = Instant::now();
        }
        if !self.is_walked(&scan.target.uid) {
            let so_far = scan.so_far(monotonic_ns());
            if self.walk_closely(&scan, &so_far, schedule, mounts, cgroup_counts) {
                return;
            }
            self.publish(&scan.target.uid, so_far);
        }
        schedule.park(scan);
    }

    /// Begins a close walk where what a walk has found, with the runtime's numbers, is too uncertain; whether it is.
    fn walk_closely(
        &self,
        scan: &PodWalk,
        found: &DiskUse,
        schedule: &mut Schedule,
        mounts: &mut MountTable,
        cgroup_counts: Option<&CgroupCountReader>,
    ) -> bool {
        let Some(least) = scan.uncertain_above(monotonic_ns()) else {
            return false;
        };
        let answer = Arc::clone(&self.lock().answer);
        let mut found = found.clone();
        found.fill(&answer);
        if found.usage.bytes_of_files() <= least {
            return false;
        }
        self.note_overlays(mounts.refresh_overlays());
        let close = scan.begin_closely(mounts.points(), cgroup_counts);
        schedule.walk_closely(close, scan.worked);
        true
    }

    /// Whether a walk of a pod has come to its end, and has looked at all.
    fn is_walked(&self, uid: &str) -> bool {
        self.found().get(uid).is_some_and(|found| found.is_whole())
    }

    /// Makes known what a walk has found.
    fn publish(&self, uid: &str, walk: DiskUse) {
        self.update(|found, targets, answer| {
            let mut walk = walk.clone();
            walk.fill(answer);
            let is_news = |known: &Arc<DiskUse>| walk.replaces(known);
            // It may be gone by now.
            if targets.iter().any(|target| target.uid == uid) && found.get(uid).is_none_or(is_news)
            {
                found.insert(uid.to_owned(), Arc::new(walk));
            }
        });
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// Sleeps for so long, or until there is a new pod or a disk becomes short.
    fn rest(&self, rest: Duration, schedule: &Schedule) {
        let short_since = self.short_since();
        let until = Instant::now() + rest;
        loop {
            self.changed.clear();
            self.heartbeat();
            let left = until.saturating_duration_since(Instant::now());
            let is_new = schedule.has_new_targets(&self.lock().targets);
            let is_over = left.is_zero() || is_new || self.short_since() != short_since;
            if is_over || self.is_stopped() {
                return;
            }
            poll([Some(self.changed.fd())], Some(left.min(BEAT)));
        }
    }
}

#[cfg(test)]
mod tests {
    use evictd_engine::{
        FsUsage, Pod, VolumeUsage, model::settings::Mode, node_reclaim::PodLayers, units::SECOND,
    };

    use super::*;
    use crate::{PodSet, usage::UsageCollector};

    fn wait(is_there: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_there() {
            assert!(Instant::now() < until, "it does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn target(uid: &str, dir: &tempfile::TempDir) -> ScanTarget {
        let volumes = vec![("scratch".into(), dir.path().to_owned())];
        ScanTarget::of(uid, move || PodDirs::fixed(volumes.clone()))
    }

    /// A walk that was given up for others begins anew.
    #[test]
    fn what_is_known_of_a_pod_does_not_shrink_before_its_walk_is_whole() {
        let scanner = DiskScanner::start(None).unwrap();
        scanner.stop();
        scanner.set_targets(vec![ScanTarget::of("u", PodDirs::default)]);
        let volume = |n: u64| {
            let fs = FsUsage {
                bytes: Some(n),
                inodes: Some(n),
            };
            let mut walk = DiskUse::default();
            let name = "scratch".into();
            walk.usage.volumes.push(VolumeUsage { name, fs });
            walk
        };
        let bytes = || scanner.found()["u"].usage.volumes[0].fs.bytes.unwrap();
        for (so_far, known) in [(5, 5), (3, 5), (6, 6)] {
            scanner.publish("u", volume(so_far));
            assert_eq!(bytes(), known);
        }
        let mut whole = volume(2);
        whole.usage.ephemeral_storage = Some(2);
        scanner.publish("u", whole);
        assert_eq!(bytes(), 2);
        // The next walk is under way.
        scanner.publish("u", volume(9));
        assert_eq!(bytes(), 2);
        // It has ended, and could not look at all.
        let ended = |n: u64| {
            let mut walk = volume(n);
            walk.has_ended = true;
            walk
        };
        for (found, known, is_whole) in
            [(1, 2, true), (9, 9, false), (3, 9, false), (10, 10, false)]
        {
            scanner.publish("u", ended(found));
            assert_eq!(bytes(), known);
            assert_eq!(scanner.is_walked("u"), is_whole);
        }
        // The files that are there no longer are known to be gone.
        let mut whole = volume(1);
        whole.usage.ephemeral_storage = Some(1);
        scanner.publish("u", whole);
        assert_eq!(bytes(), 1);
    }

    #[test]
    fn pods_are_walked_and_the_dead_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..300 {
            std::fs::write(dir.path().join(format!("f{n}")), "x").unwrap();
        }
        let scanner = DiskScanner::start(None).unwrap();
        scanner.set_short_since(Some(monotonic_ns()));
        let target = target("u", &dir);
        scanner.set_targets(vec![target]);
        wait(|| scanner.revision() > 0);
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

    // R10
    #[test]
    fn a_huge_pod_delays_no_new_one() {
        let huge = tempfile::tempdir().unwrap();
        for n in 0..100_000 {
            std::fs::File::create(huge.path().join(format!("f{n}"))).unwrap();
        }
        let small = tempfile::tempdir().unwrap();
        std::fs::write(small.path().join("f"), vec![1; 8192]).unwrap();
        let scanner = DiskScanner::start(None).unwrap();
        // The thread waits in the look for the directories until both pods are there.
        let (go_on, wait_for) = std::sync::mpsc::channel::<()>();
        let wait_for = PiMutex::new(wait_for);
        let dir = huge.path().to_owned();
        let held = ScanTarget::of("huge", move || {
            let _ = wait_for.lock().recv();
            PodDirs::fixed(vec![("scratch".into(), dir.clone())])
        });
        scanner.set_targets(vec![held.clone()]);
        scanner.set_targets(vec![held, target("small", &small)]);
        drop(go_on);
        // It is at work, and what it has found until then counts already.
        wait(|| scanner.is_walked("small"));
        assert!(!scanner.is_walked("huge"));
        let so_far = std::cell::Cell::new(0);
        wait(|| {
            let found = scanner.found();
            let volume = found.get("huge").map(|huge| huge.usage.volumes[0].fs);
            so_far.set(volume.and_then(|fs| fs.inodes).unwrap_or(0));
            so_far.get() > 0
        });
        assert!(so_far.get() < 100_000, "{so_far:?}");
        // In turns it comes to its end.
        scanner.set_short_since(Some(monotonic_ns()));
        wait(|| scanner.is_walked("huge"));
        let found = scanner.found();
        assert_eq!(found["huge"].usage.volumes[0].fs.inodes, Some(100_001));
        assert!(!scanner.is_stuck());
        scanner.stop();
    }

    #[test]
    fn a_thread_without_a_sign_of_life_is_stuck() {
        let scanner = DiskScanner::start(None).unwrap();
        scanner.stop();
        // Until it has ended.
        wait(|| Arc::strong_count(&scanner) == 1);
        assert!(!scanner.is_stuck());
        assert!(scanner.is_stuck_at(monotonic_ns() + 600 * SECOND));
    }

    // R10
    #[test]
    fn the_runtimes_numbers_stand_in_for_layers_that_cannot_be_walked() {
        let layer = tempfile::tempdir().unwrap();
        let places = PodDirs {
            layers: vec![("walked".into(), layer.path().to_owned())],
            unknown: vec![
                ("hidden".into(), "why".into()),
                ("other".into(), "why".into()),
            ],
            runtime_uid: "of-the-runtime".into(),
            ..PodDirs::default()
        };
        let target = ScanTarget::of("u", move || places.clone());
        let scanner = DiskScanner::start(None).unwrap();
        scanner.set_targets(vec![target]);
        wait(|| scanner.is_walked("u"));
        let unknown = || {
            let found = scanner.found();
            let names = found["u"].unknown_layers().map(|(name, _)| name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(unknown(), ["hidden", "other"]);
        let own = scanner.found()["u"].usage.ephemeral_storage.unwrap();
        for (pass, bytes) in [5 << 20, 7 << 20].into_iter().enumerate() {
            let fs = FsUsage {
                bytes: Some(bytes),
                inodes: Some(9),
            };
            let layers = ["walked", "hidden"].map(|name| (name.to_owned(), fs));
            let before = scanner.revision();
            let layers = PodLayers {
                layers: layers.into(),
                have_ended: false,
            };
            let layers = [("of-the-runtime".to_owned(), layers)].into();
            scanner.set_layers(layers, monotonic_ns());
            assert!(scanner.revision() > before);
            if pass == 1 {
                // A walk that ends later has them too.
                scanner.set_short_since(Some(monotonic_ns()));
                let seen = scanner.found()["u"].began;
                wait(|| scanner.found()["u"].began != seen);
            }
            let found = scanner.found();
            let usage = &found["u"].usage;
            let of = |name: &str| usage.containers.iter().find(|c| c.name == name);
            assert_eq!(of("hidden").unwrap().rootfs, fs);
            assert_eq!(of("walked").unwrap().rootfs.inodes, Some(1));
            assert_eq!(usage.ephemeral_storage, Some(own + bytes));
            assert_eq!(unknown(), ["other"]);
        }
        scanner.stop();
    }

    #[test]
    fn overlays_that_cannot_be_read_are_told() {
        let scanner = DiskScanner::start(None).unwrap();
        scanner.stop();
        wait(|| Arc::strong_count(&scanner) == 1);
        assert!(scanner.overlays_error().is_none());
        let path = std::path::Path::new("/proc/1/mountinfo");
        let error = PathError::at(path)(std::io::ErrorKind::PermissionDenied.into());
        scanner.note_overlays(Err(error));
        let told = scanner.overlays_error().unwrap();
        assert!(told.contains("/proc/1/mountinfo"), "{told}");
        scanner.note_overlays(Ok(()));
        assert!(scanner.overlays_error().is_none());
    }

    /// There is nothing to walk: the look for directories is all the work.
    #[test]
    fn the_look_for_directories_is_work_that_the_thread_rests_from() {
        const LOOKUP_TIME: Duration = Duration::from_millis(20);
        let begun = Arc::new(PiMutex::new(Vec::new()));
        let target = |uid: &str| {
            let begun = Arc::clone(&begun);
            ScanTarget::of(uid, move || {
                begun.lock().push(Instant::now());
                std::thread::sleep(LOOKUP_TIME);
                PodDirs::default()
            })
        };
        let scanner = DiskScanner::start(None).unwrap();
        scanner.set_targets(vec![target("a"), target("b")]);
        wait(|| begun.lock().len() == 2);
        scanner.stop();
        let begun = begun.lock();
        assert!(begun[1] - begun[0] >= LOOKUP_TIME * REST);
    }

    // R10
    #[test]
    fn the_planner_is_told_what_is_uncertain() {
        let scanner = DiskScanner::start(None).unwrap();
        scanner.stop();
        scanner.set_targets(vec![target("u", &tempfile::tempdir().unwrap())]);
        let pods = PodSet {
            pods: Arc::new(vec![Pod {
                uid: "u".into(),
                ..Pod::default()
            }]),
            ..PodSet::default()
        };
        let mut usages = UsageCollector::new(Arc::clone(&scanner), None, Mode::Evictd);
        usages.set_pods(&pods);
        for is_uncertain in [true, false] {
            let mut walk = DiskUse::default();
            walk.usage.is_uncertain = is_uncertain;
            scanner.publish("u", walk);
            usages.take_walks();
            assert_eq!(usages.usages()["u"].is_uncertain, is_uncertain);
        }
    }

    /// Each change comes while the thread goes to sleep, or may: with a lost one the next walk would be a minute late.
    #[test]
    fn no_change_is_lost() {
        let scanner = DiskScanner::start(None).unwrap();
        for n in 0..200 {
            let before = scanner.revision();
            let target = ScanTarget::of(&n.to_string(), PodDirs::default);
            scanner.set_targets(vec![target]);
            let until = Instant::now() + Duration::from_secs(20);
            while scanner.revision() == before {
                assert!(Instant::now() < until, "change {n} is lost");
                std::thread::yield_now();
            }
        }
        scanner.stop();
    }
}
