//! Cgroups joined with whatever is known of the pods in them: the entries of the fast path's table.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use evictd_engine::{Pod, model::settings::Mode};
use evictd_sys::fs::PathError;

use super::table::{PodEntry, PodTable};
use crate::{
    cgroup::{
        swap::PodSwap,
        tree::{FollowedCgroups, has_process},
    },
    pods::{
        cgroup_name,
        discovery::{PodCgroup, guess, guess_again, is_guess, pods_below},
        opener::{Opener, Unopened},
    },
    proc::machine::memory_total,
};

/// The pods of a cgroup tree with their files held open. What has not changed is not opened again.
#[derive(Debug)]
pub struct PodTableBuilder {
    root: PathBuf,
    mode: Mode,
    held: BTreeMap<PathBuf, OpenPod>,
    /// Cgroups that are held and not in the table, because their pods run in others.
    passed_over: BTreeSet<PathBuf>,
    opener: Opener,
    /// That of the table in use: the next one takes over what it knows.
    pub swap: Arc<PodSwap>,
}

#[derive(Debug)]
struct OpenPod {
    entry: Arc<PodEntry>,
    /// Since when the pod is held, whatever has changed below it.
    since: Instant,
}

impl OpenPod {
    /// The UID that its cgroup at `path` names: a static pod's is not that of its mirror.
    fn uid(&self, path: &Path) -> String {
        let name = cgroup_name::parse(path);
        name.map_or_else(|| self.entry.pod.uid.clone(), |name| name.uid)
    }
}

/// Comparison of what a source says of a pod with what is held of it.
#[derive(Clone, Debug)]
pub enum PodUpdate {
    /// The source does not know the pod.
    Unknown,
    /// The source says the same as what is held.
    Same,
    /// The source says something else than what is held: this pod.
    New(Box<Pod>),
    /// The source says that the pod is over, with this phase.
    Over(String),
}

impl PodUpdate {
    /// Compares a pod's object with the one that is held.
    pub fn new(described: Option<&Pod>, held: Option<&Pod>) -> Self {
        match described {
            None => Self::Unknown,
            Some(_) if described == held => Self::Same,
            Some(pod) => Self::New(Box::new(pod.clone())),
        }
    }
}

/// Result of a look at pods.
#[derive(Clone, Copy, Default)]
struct Visited {
    /// An entry is another one than before, or gone.
    changed: bool,
    /// Pods that only their cgroup tells of.
    unknown: usize,
}

impl Visited {
    fn add(&mut self, other: Self) {
        self.changed |= other.changed;
        self.unknown += other.unknown;
    }
}

/// A look at the tree.
#[derive(Debug)]
pub struct Refresh {
    /// The table to hand over; `None` when nothing has changed.
    pub table: Option<Box<PodTable>>,
    /// Pods that only their cgroup tells of.
    pub unknown: usize,
}

impl PodTableBuilder {
    /// Creates a builder that holds nothing yet of the tree below `root`.
    pub fn new(root: &Path, mode: Mode) -> Self {
        Self {
            root: root.to_owned(),
            mode,
            held: BTreeMap::new(),
            passed_over: BTreeSet::new(),
            opener: Opener::default(),
            swap: Arc::default(),
        }
    }

    /// Counts of pods that could not be opened, although their cgroups were there.
    pub fn unopened(&self) -> Arc<Unopened> {
        self.opener.count()
    }

    /// Compares the whole tree with what is held. `known` is asked for the pod of a UID, with what is held of it.
    pub fn refresh(&mut self, known: impl Fn(&str, Option<&Pod>) -> PodUpdate) -> Refresh {
        let mut visited = Visited::default();
        let cgroups = pods_below(&self.root);
        let mut gone: BTreeSet<PathBuf> = self.held.keys().cloned().collect();
        for cgroup in cgroups.found {
            gone.remove(&cgroup.path);
            let held = self.held.remove(&cgroup.path);
            visited.add(self.visit(cgroup, held, &known));
        }
        if cgroups.unlisted.is_some() {
            // Not seen, and there nevertheless.
            gone.retain(|path| !path.exists());
        }
        self.opener.note_listing(cgroups.unlisted.as_ref());
        visited.changed |= !gone.is_empty();
        self.held.retain(|path, _| !gone.contains(path));
        self.opener.retain(Path::exists);
        self.answer(visited)
    }

    /// Looks at these pods' directories alone, at those that could not be opened before, and at what is told of the
    /// others. What it costs grows with the number of these directories; the others' files are not touched.
    pub fn follow(
        &mut self,
        directories: &BTreeSet<PathBuf>,
        known: impl Fn(&str, Option<&Pod>) -> PodUpdate,
    ) -> Refresh {
        let mut visited = Visited::default();
        let with_news = self.held.iter().filter(|(path, held)| {
            let pod = &held.entry.pod;
            let is_news = match known(&held.uid(path), Some(pod)) {
                PodUpdate::New(_) => true,
                PodUpdate::Over(phase) => phase != pod.phase,
                PodUpdate::Same | PodUpdate::Unknown => false,
            };
            is_news && !directories.contains(*path)
        });
        let mut look_at: BTreeSet<PathBuf> = with_news.map(|(path, _)| path.clone()).collect();
        look_at.extend(self.opener.failed().cloned());
        look_at.extend(directories.iter().cloned());
        let mut gone = Vec::new();
        for path in look_at {
            match cgroup_name::parse(&path) {
                // One that is there and cannot be listed is opened anew, which fails, and stays as it is.
                Some(name) if path.exists() && path.starts_with(&self.root) => {
                    let held = self.held.remove(&path);
                    let cgroup = PodCgroup { name, path };
                    visited.add(self.visit(cgroup, held, &known));
                }
                // Gone, or no pod of this scope. A pod that has moved to another directory takes its state from here.
                _ => gone.push(path),
            }
        }
        for path in gone {
            visited.changed |= self.held.remove(&path).is_some();
        }
        self.opener.retain(Path::exists);
        self.answer(visited)
    }

    /// The directory of the pod to which a path below `mount` belongs, where the hierarchy is mounted.
    /// `None` for a path that is no pod's, or a pod's of another scope.
    pub fn directory_of(&self, mount: &Path, path: &Path) -> Option<PathBuf> {
        // The first part of the path that is a pod is the pod; what follows is in it.
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        let pod = ancestors
            .into_iter()
            .find(|part| cgroup_name::parse(part).is_some())?;
        let directory = mount.join(pod);
        directory.starts_with(&self.root).then_some(directory)
    }

    /// The UIDs that the pods' cgroups have in their names; those that cannot be opened are there as well. Where not one of
    /// them has a process the runtime uses another cgroup driver than the kubelet, and the pods run elsewhere: none.
    pub fn uids(&self) -> BTreeSet<String> {
        let runs_any = self.held.keys().any(|pod| has_process(pod));
        let held = self.held.keys().filter(|_| runs_any);
        let paths = held.chain(self.opener.failed());
        let names = paths.filter_map(|path| cgroup_name::parse(path));
        names.map(|name| name.uid).collect()
    }

    /// Whether the pod of a directory has been held for so long.
    pub fn has_held(&self, directory: &Path, time: Duration) -> bool {
        let held = self.held.get(directory);
        held.is_some_and(|held| held.since.elapsed() >= time)
    }

    /// Brings one pod up to date that is there.
    fn visit(
        &mut self,
        cgroup: PodCgroup,
        held: Option<OpenPod>,
        known: impl Fn(&str, Option<&Pod>) -> PodUpdate,
    ) -> Visited {
        let mut visited = Visited::default();
        let before = held.as_ref().map(|held| &held.entry.pod);
        let (pod, is_same) = match known(&cgroup.name.uid, before) {
            PodUpdate::New(pod) => (Some(*pod), false),
            PodUpdate::Same => (before.cloned(), true),
            // What else was known of it stays true.
            PodUpdate::Over(phase) => {
                let is_same = before.is_some_and(|pod| pod.phase == phase);
                let pod = before.cloned().unwrap_or_else(|| guessed(&cgroup));
                (Some(Pod { phase, ..pod }), is_same)
            }
            // What was known of a UID once stays true although no source names it any more.
            PodUpdate::Unknown => {
                visited.unknown += 1;
                let pod = before.map(|pod| match is_guess(pod) {
                    true => guess_again(pod, &cgroup, memory()),
                    false => pod.clone(),
                });
                let is_same = pod.is_some() && pod.as_ref() == before;
                (pod, is_same)
            }
        };
        let found = FollowedCgroups::find(&cgroup.path);
        let follows = |held: &OpenPod| found.as_ref().is_ok_and(|found| held.entry.follows(found));
        match held {
            Some(held) if is_same && follows(&held) => {
                held.entry.limited.look_at_limits();
                self.held.insert(cgroup.path, held);
            }
            held => match self.open(&cgroup, pod, found, held.as_ref()) {
                Some(mut new) => {
                    visited.changed = true;
                    new.since = held.map_or(new.since, |held| held.since);
                    self.held.insert(cgroup.path, new);
                }
                // What is open of it still serves; the next look tries again.
                None if self.opener.has_failed(&cgroup.path) => {
                    self.held.extend(held.map(|held| (cgroup.path, held)));
                }
                None => visited.changed = held.is_some(),
            },
        }
        visited
    }

    fn answer(&mut self, Visited { changed, unknown }: Visited) -> Refresh {
        let others = self.without_their_pods();
        let changed = others != self.passed_over || changed;
        self.passed_over = others;
        let chosen = self.held.iter();
        let chosen = chosen.filter(|(path, _)| !self.passed_over.contains(*path));
        let entries = chosen.map(|(_, held)| Arc::clone(&held.entry));
        let table = || PodTable::after(&self.swap, entries.collect());
        Refresh {
            table: changed.then(|| Box::new(table())),
            unknown,
        }
    }

    /// The cgroups in which their pods do not run. A kubelet that was given another driver or `--cgroup-root` leaves
    /// the former ones: of several, a pod's own is one with processes, and the newest of them.
    fn without_their_pods(&self) -> BTreeSet<PathBuf> {
        let mut of_pods: BTreeMap<String, Vec<(&PathBuf, &PodEntry)>> = BTreeMap::new();
        for (path, held) in &self.held {
            let cgroups = of_pods.entry(held.uid(path)).or_default();
            cgroups.push((path, &held.entry));
        }
        let several = of_pods.values_mut().filter(|cgroups| cgroups.len() > 1);
        let others = several.flat_map(|cgroups| {
            // The kernel counts ids of cgroups upwards.
            cgroups.sort_by_cached_key(|(_, entry)| (!entry.is_empty(), entry.memory.id()));
            cgroups.pop();
            cgroups.iter().map(|(path, _)| PathBuf::clone(path))
        });
        others.collect()
    }

    fn open(
        &mut self,
        cgroup: &PodCgroup,
        pod: Option<Pod>,
        found: Result<FollowedCgroups, PathError>,
        held: Option<&OpenPod>,
    ) -> Option<OpenPod> {
        let pod = pod.unwrap_or_else(|| guessed(cgroup));
        // It may run in a cgroup of another driver's by now.
        let in_another = || {
            self.held
                .values()
                .find(|held| held.entry.pod.uid == pod.uid)
        };
        let before = held.or_else(in_another).map(|held| &*held.entry);
        let opener = &mut self.opener;
        let entry = opener.open(pod, &cgroup.path, found, self.mode, before)?;
        Some(OpenPod {
            entry,
            since: Instant::now(),
        })
    }
}

fn guessed(group: &PodCgroup) -> Pod {
    guess(group, memory())
}

/// Without procfs there are no scores to compute requests from. It may change: memory can be plugged in.
fn memory() -> u64 {
    memory_total(Path::new("/proc")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, symlink},
        sync::atomic::Ordering,
    };

    use super::*;

    const UID: &str = "027b1a11-f972-4ec6-943f-db9a81fa1086";

    #[test]
    fn a_pod_that_cannot_be_opened_is_reported_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join(format!("kubepods/pod{UID}"));
        fs::create_dir_all(&pod).unwrap();
        for file in ["memory.stat", "memory.usage_in_bytes"] {
            fs::write(pod.join(file), "1").unwrap();
        }
        // ELOOP: there, and not to be opened.
        let procs = pod.join("cgroup.procs");
        symlink(&procs, &procs).unwrap();
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let look = |joined: &mut PodTableBuilder| {
            joined
                .refresh(|_, _| PodUpdate::Unknown)
                .table
                .map(|t| t.entries.len())
        };
        let unopened = joined.unopened();
        let count = || {
            let Unopened { total, now, .. } = &*unopened;
            (total.load(Ordering::Relaxed), now.load(Ordering::Relaxed))
        };
        assert_eq!((look(&mut joined), count()), (None, (1, 1)));
        assert_eq!((look(&mut joined), count()), (None, (1, 1)), "told once");
        fs::remove_file(&procs).unwrap();
        fs::write(&procs, "").unwrap();
        assert_eq!((look(&mut joined), count()), (Some(1), (1, 0)));
        // A container has come, and the pod cannot be opened anew: what is open of it stays.
        let kill = pod.join("cgroup.kill");
        symlink(&kill, &kill).unwrap();
        fs::create_dir(pod.join("c1")).unwrap();
        assert_eq!((look(&mut joined), count()), (None, (2, 1)));
        assert_eq!(joined.held.len(), 1);
        // Gone is no trouble.
        fs::remove_dir_all(&pod).unwrap();
        assert_eq!((look(&mut joined), count()), (Some(0), (2, 0)));
        assert_eq!(joined.opener.failed().count(), 0);
    }

    fn pod_dir(root: &Path, uid: &str) -> PathBuf {
        let pod = root.join(format!("kubepods/pod{uid}"));
        fs::create_dir_all(pod.join("c1")).unwrap();
        for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
            fs::write(pod.join(file), "1").unwrap();
        }
        pod
    }

    /// Its cgroup is seen before the limit is written and before a process is in it.
    // R12
    #[test]
    fn a_pod_that_only_its_cgroup_tells_of_is_guessed_again() {
        let dir = tempfile::tempdir().unwrap();
        let guaranteed = pod_dir(dir.path(), UID);
        let burstable = dir.path().join(format!("kubepods/burstable/pod{UID}x"));
        fs::create_dir_all(burstable.join("c1")).unwrap();
        for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
            fs::write(burstable.join(file), "").unwrap();
        }
        fs::write(burstable.join("c1/cgroup.procs"), "").unwrap();
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let look = |joined: &mut PodTableBuilder| joined.refresh(|_, _| PodUpdate::Unknown).table;
        let requests = |table: Box<PodTable>| -> Vec<_> {
            let requests = table.entries.iter().map(|entry| entry.pod.memory_request);
            requests.collect()
        };
        assert_eq!(look(&mut joined).map(requests), Some(vec![0, 0]));
        assert!(look(&mut joined).is_none());
        fs::write(guaranteed.join("memory.limit_in_bytes"), "8388608").unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let score = format!("/proc/{}/oom_score_adj", child.id());
        fs::write(&score, "900").unwrap();
        fs::write(burstable.join("c1/cgroup.procs"), child.id().to_string()).unwrap();
        let known = look(&mut joined).map(requests).unwrap();
        assert!(known[0] == 8 << 20 && known[1] > 8 << 20, "{known:?}");
        // Between two runs it tells less.
        fs::write(burstable.join("c1/cgroup.procs"), "").unwrap();
        assert!(look(&mut joined).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A kubelet with the systemd driver beside a runtime with cgroupfs makes cgroups in which no pod runs.
    #[test]
    fn cgroups_in_which_no_pod_runs_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let pods = [UID.to_owned(), format!("{UID}x")].map(|uid| pod_dir(dir.path(), &uid));
        for pod in &pods {
            fs::write(pod.join("cgroup.procs"), "").unwrap();
        }
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        joined.refresh(|_, _| PodUpdate::Unknown);
        assert!(joined.uids().is_empty());
        fs::write(pods[0].join("c1/cgroup.procs"), "7\n").unwrap();
        assert_eq!(joined.uids().len(), 2);
    }

    #[test]
    fn only_the_pods_that_have_changed_are_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let uid = |n: usize| format!("027b1a11-f972-4ec6-943f-{n:012}");
        let pods: Vec<PathBuf> = (0..3).map(|n| pod_dir(root, &uid(n))).collect();
        let named = |name: &str, uid: &str| Pod {
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..Pod::default()
        };
        let mut joined = PodTableBuilder::new(root, Mode::Evictd);
        let described =
            |uid: &str, held: Option<&Pod>| PodUpdate::new(Some(&named("a", uid)), held);
        let all = |table: &PodTable| table.entries.clone();
        let first = all(&joined.refresh(described).table.unwrap());
        assert_eq!(first.len(), 3);
        assert!(joined.refresh(described).table.is_none());

        let nothing = BTreeSet::new();
        assert!(joined.follow(&nothing, described).table.is_none());
        // A container of the second pod has come; the others keep their open files.
        fs::create_dir(pods[1].join("c2")).unwrap();
        let touched = |n: usize| BTreeSet::from([pods[n].clone()]);
        assert!(joined.follow(&touched(0), described).table.is_none());
        let second = all(&joined.follow(&touched(1), described).table.unwrap());
        let kept = |one: &[Arc<PodEntry>], other: &[Arc<PodEntry>]| -> Vec<bool> {
            let pairs = one.iter().zip(other);
            pairs.map(|(one, other)| Arc::ptr_eq(one, other)).collect()
        };
        assert_eq!(kept(&first, &second), [true, false, true]);
        // Another name of the third: seen without any directory.
        let renamed = |of: &str, held: Option<&Pod>| match of == uid(2) {
            true => PodUpdate::new(Some(&named("b", of)), held),
            false => described(of, held),
        };
        let third = all(&joined.follow(&nothing, renamed).table.unwrap());
        assert_eq!(third[2].pod.name, "b");
        assert_eq!(kept(&second, &third), [true, true, false]);
        // It is over: its other values stay, and that is told once.
        let over = |of: &str, held: Option<&Pod>| match of == uid(2) {
            true => PodUpdate::Over("Succeeded".to_owned()),
            false => described(of, held),
        };
        let fourth = all(&joined.follow(&nothing, over).table.unwrap());
        assert!(fourth[2].pod.is_over() && fourth[2].pod.name == "b");
        assert!(joined.refresh(over).table.is_none());
        joined.follow(&nothing, renamed);
        // Gone, and come.
        fs::remove_dir_all(&pods[0]).unwrap();
        assert_eq!(
            joined
                .follow(&touched(0), renamed)
                .table
                .unwrap()
                .entries
                .len(),
            2
        );
        let new = pod_dir(root, &uid(7));
        let come = joined
            .follow(&BTreeSet::from([new]), renamed)
            .table
            .unwrap();
        assert_eq!(come.entries.len(), 3);
        assert!(
            joined.refresh(renamed).table.is_none(),
            "a full look finds nothing else"
        );
    }

    #[test]
    fn a_pod_has_the_cgroup_in_which_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let uid = UID.replace('-', "_");
        let cgroupfs = pod_dir(dir.path(), UID);
        let systemd = (dir.path()).join(format!("kubepods.slice/kubepods-pod{uid}.slice"));
        fs::create_dir_all(&systemd).unwrap();
        for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
            fs::write(systemd.join(file), "").unwrap();
        }
        let runs = |pod: &Path, is_running: bool| {
            let processes = if is_running { "1\n" } else { "" };
            fs::write(pod.join("cgroup.procs"), processes).unwrap();
        };
        runs(&cgroupfs, true);
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let known = |_: &str, _: Option<&Pod>| PodUpdate::Unknown;
        let paths = |table: Box<PodTable>| -> Vec<PathBuf> {
            let paths = table.entries.iter().map(|e| e.memory.path().to_owned());
            paths.collect()
        };
        assert_eq!(
            joined.refresh(known).table.map(paths),
            Some(vec![cgroupfs.clone()])
        );
        // The kubelet has another driver by now: no cgroup comes or goes.
        let mut look = || joined.follow(&BTreeSet::new(), known).table.map(paths);
        for (before, after) in [(&cgroupfs, &systemd), (&systemd, &cgroupfs)] {
            assert_eq!(look(), None);
            runs(after, true);
            runs(before, false);
            assert_eq!(look(), Some(vec![after.clone()]));
        }
        // Where it runs in neither or in both, the newer one.
        let id = |path: &PathBuf| fs::metadata(path).unwrap().ino();
        let (older, newer) = match id(&cgroupfs) < id(&systemd) {
            true => (&cgroupfs, &systemd),
            false => (&systemd, &cgroupfs),
        };
        for is_running in [false, true] {
            runs(older, true);
            runs(newer, false);
            look();
            runs(older, is_running);
            runs(newer, is_running);
            assert_eq!(look(), Some(vec![newer.clone()]));
        }
        fs::remove_dir_all(newer).unwrap();
        assert_eq!(look(), Some(vec![older.clone()]));
    }

    /// All files that an entry shares with another one.
    fn shares(one: &PodEntry, other: &PodEntry) -> [bool; 3] {
        let limited = |entry: &PodEntry| -> Vec<_> {
            let limited = entry.limited.iter();
            limited.map(|(_, one)| std::ptr::from_ref(one)).collect()
        };
        [
            Arc::ptr_eq(&one.memory, &other.memory),
            Arc::ptr_eq(&one.killer, &other.killer),
            limited(one) == limited(other),
        ]
    }

    #[test]
    fn another_description_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod_dir(dir.path(), UID);
        let container = pod.join("c1");
        for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
            fs::write(container.join(file), "1").unwrap();
        }
        let limit = || fs::write(container.join("memory.limit_in_bytes"), "4096").unwrap();
        limit();
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let mut look = |ip: &str| {
            let pod = Pod {
                uid: UID.to_owned(),
                ip: ip.to_owned(),
                ..Pod::default()
            };
            let look = joined.refresh(|_, held| PodUpdate::new(Some(&pod), held));
            Arc::clone(&look.table.unwrap().entries[0])
        };
        let first = look("10.0.0.1");
        assert_eq!(first.limited.iter().count(), 1);
        let second = look("10.0.0.2");
        assert_eq!(second.pod.ip, "10.0.0.2");
        assert_eq!(shares(&first, &second), [true, true, true]);
        // Another container has come: what is open of the first one stays.
        fs::create_dir(pod.join("c2")).unwrap();
        let third = look("10.0.0.2");
        assert_eq!(shares(&second, &third), [true, false, true]);
        // The first one was started again: another cgroup of the same name.
        fs::rename(&container, pod.join("c3")).unwrap();
        fs::create_dir(&container).unwrap();
        fs::rename(pod.join("c3"), dir.path().join("gone")).unwrap();
        let fourth = look("10.0.0.2");
        assert_eq!(shares(&third, &fourth), [true, false, false]);
        assert_eq!(fourth.limited.iter().count(), 0);
        // Its limit is written after it was made: that is no event, and the next look finds it.
        for file in ["memory.stat", "memory.usage_in_bytes", "cgroup.procs"] {
            fs::write(container.join(file), "1").unwrap();
        }
        limit();
        let fifth = look("10.0.0.2");
        assert_eq!(shares(&fourth, &fifth), [true, true, false]);
        assert_eq!(fifth.limited.iter().count(), 1);
        // The pod itself is another one.
        fs::rename(&pod, dir.path().join("old")).unwrap();
        let sixth = (pod_dir(dir.path(), UID), look("10.0.0.3")).1;
        assert_eq!(shares(&fifth, &sixth), [false; 3]);
        // So it is with what was seen of its containers.
        assert!(Arc::ptr_eq(&first.seen, &fifth.seen));
        assert!(!Arc::ptr_eq(&fifth.seen, &sixth.seen));
    }

    #[test]
    fn a_pod_with_more_cgroups_than_are_followed_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod_dir(dir.path(), UID);
        let mut joined = PodTableBuilder::new(dir.path(), Mode::Evictd);
        let unopened = joined.unopened();
        let mut look = || {
            let look = joined.refresh(|_, _| PodUpdate::Unknown);
            (look.table.is_some(), unopened.cut.load(Ordering::Relaxed))
        };
        assert_eq!(look(), (true, 0));
        for below in 0..1000 {
            fs::create_dir(pod.join(format!("c1/{below}"))).unwrap();
        }
        assert_eq!(look(), (true, 1));
        assert_eq!(look(), (false, 1));
        fs::remove_dir_all(pod.join("c1")).unwrap();
        assert_eq!(look(), (true, 0));
    }

    #[test]
    fn paths_belong_to_the_pod_that_they_lie_in() {
        let joined = PodTableBuilder::new(Path::new("/mnt/node"), Mode::Evictd);
        let of = |path: String| joined.directory_of(Path::new("/mnt"), Path::new(&path));
        let pod = format!("node/kubepods/burstable/pod{UID}");
        let directory = Some(Path::new("/mnt").join(&pod));
        assert_eq!(of(pod.clone()), directory);
        assert_eq!(of(format!("{pod}/c1")), directory);
        assert_eq!(of(format!("{pod}/c1/init.scope")), directory);
        for other in [
            "node/kubepods/burstable".to_owned(),
            "system.slice/cron.service".to_owned(),
            format!("other/kubepods/pod{UID}/c1"),
        ] {
            assert_eq!(of(other.clone()), None, "{other}");
        }
    }
}
