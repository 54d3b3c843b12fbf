//! Sees to it that victims are dead. SIGKILL goes through files that were open before; processes that were forked
//! meanwhile, in cgroups that were not there yet, are killed here. Without a kubelet, pods that were requested to end get
//! their time here as well ([`GracefulEnd`]).

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use evictd_node::{
    cgroup::end::{ask_to_end, kill_left, kill_until_empty},
    pods::table::PodEntry,
};
use evictd_sys::{clock::monotonic_ns, fs::PathError, thread::wait_for_end};

use super::volumes::clear;

/// Victims that may wait to be looked at; a fast path that evicts all pods of a large node does not fill it.
const WAITING: usize = 1024;
/// The shortest and the longest pause between two looks at a victim that is not dead.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How long a killed pod's processes may take to end before the pod is reported; some wait for a disk.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// A pod that got SIGKILL.
pub struct KilledPod {
    pub entry: Arc<PodEntry>,
    /// Time of the signal, in nanoseconds of CLOCK_MONOTONIC; 0 where that is not known.
    pub signalled: u64,
    /// Directories to be emptied once it is dead.
    pub left: Vec<PathBuf>,
}

/// State of a victim.
enum VictimStatus {
    /// It has processes; why they could not be signalled, if so.
    Alive(Option<PathError>),
    /// Shadow mode: it is not looked at.
    LeftAlone,
    Dead,
    /// It runs anew, and its volumes with it.
    RunsAnew,
}

/// The running thread; it looks at all victims in turn, so that one that is stuck holds up no other one.
pub struct EnsureDead {
    /// The thread ends when this is dropped.
    victims: Arc<SyncSender<KilledPod>>,
    shadow: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl EnsureDead {
    /// Starts the thread. `clear` empties the directories of a victim; it must not block.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(clear: impl Fn(Vec<PathBuf>) + Send + 'static) -> io::Result<Self> {
        let (victims, queue) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("ensure-dead".into());
        let end = move |victim: KilledPod| {
            if !victim.left.is_empty() {
                clear(victim.left);
            }
        };
        let shadow = Arc::<AtomicBool>::default();
        let is_shadow = Arc::clone(&shadow);
        let status = move |victim: &KilledPod| match is_shadow.load(Ordering::Relaxed) {
            true => VictimStatus::LeftAlone,
            false => kill_rest(victim),
        };
        let thread = thread.spawn(move || run(&queue, KILL_TIMEOUT, status, overdue, end))?;
        Ok(Self {
            victims: Arc::new(victims),
            shadow,
            thread,
        })
    }

    /// In shadow mode no victim is signalled, and none is looked at: it waits for the end of that mode.
    pub fn set_shadow(&self, shadow: bool) {
        self.shadow.store(shadow, Ordering::Relaxed);
    }

    /// Has a victim looked at.
    pub fn look_at(&self, mut victim: KilledPod) {
        if victim.signalled == 0 {
            victim.signalled = monotonic_ns();
        }
        hand_over(&self.victims, victim);
    }

    /// The handle with which threads end pods after a soft eviction.
    pub fn graceful_end(&self) -> GracefulEnd {
        GracefulEnd {
            victims: Arc::downgrade(&self.victims),
            shadow: Arc::clone(&self.shadow),
        }
    }

    /// Ends the thread when all victims are dead, or after so long without it.
    pub fn stop(self, patience: Duration) {
        drop(self.victims);
        wait_for_end(&self.thread, patience);
    }
}

fn hand_over(victims: &SyncSender<KilledPod>, victim: KilledPod) {
    if let Err(error) = victims.try_send(victim) {
        tracing::error!(%error, "an evicted pod is not looked at again: too many are not dead");
    }
}

/// Goes through all victims again and again, until each is dead or given up; `end` gets the dead. `overdue` is called
/// once for a victim that is alive after `timeout` or could not be signalled, and says whether it stays on the list.
fn run<V>(
    queue: &Receiver<V>,
    timeout: Duration,
    status: impl Fn(&V) -> VictimStatus,
    overdue: impl Fn(&V, Option<&PathError>) -> bool,
    end: impl Fn(V),
) {
    let mut under_way: Vec<(V, Instant, bool)> = Vec::new();
    loop {
        if under_way.is_empty() {
            match queue.recv() {
                Ok(victim) => under_way.push((victim, Instant::now(), false)),
                Err(_) => return,
            }
        }
        while under_way.len() < WAITING
            && let Ok(victim) = queue.try_recv()
        {
            under_way.push((victim, Instant::now(), false));
        }
        let mut at = 0;
        while let Some((victim, since, is_overdue)) = under_way.get_mut(at) {
            match status(victim) {
                VictimStatus::Dead => end(under_way.swap_remove(at).0),
                VictimStatus::LeftAlone => at += 1,
                VictimStatus::Alive(_) if *is_overdue => at += 1,
                VictimStatus::Alive(None) if since.elapsed() <= timeout => at += 1,
                VictimStatus::Alive(refusal) if overdue(victim, refusal.as_ref()) => {
                    *is_overdue = true;
                }
                VictimStatus::Alive(_) | VictimStatus::RunsAnew => {
                    drop(under_way.swap_remove(at));
                }
            }
        }
        // The longer the youngest takes, the later it is looked at.
        if let Some(age) = under_way.iter().map(|(_, since, _)| since.elapsed()).min() {
            let (shortest, longest) = PAUSES;
            std::thread::sleep((age / 16).clamp(shortest, longest));
        }
    }
}

/// Kills what is left.
fn kill_rest(victim: &KilledPod) -> VictimStatus {
    let entry = &victim.entry;
    match kill_left(entry.killer.path(), victim.signalled) {
        Ok(true) if entry.is_empty() => VictimStatus::Dead,
        Ok(true) => VictimStatus::RunsAnew,
        Ok(false) => VictimStatus::Alive(None),
        Err(error) => VictimStatus::Alive(Some(error)),
    }
}

/// Reports a victim that does not die. Volumes are emptied however late it does: until then other pods go for them.
fn overdue(victim: &KilledPod, refusal: Option<&PathError>) -> bool {
    let pod = &victim.entry.pod;
    match refusal {
        Some(error) => tracing::error!(%pod, %error, "an evicted pod is not dead"),
        None => tracing::error!(%pod, after = ?KILL_TIMEOUT, "an evicted pod is not dead"),
    }
    !victim.left.is_empty()
}

/// Ends pods after a soft eviction, where no kubelet does.
pub struct GracefulEnd {
    /// Whatever has not ended is handed over, unless the agent ends.
    victims: Weak<SyncSender<KilledPod>>,
    shadow: Arc<AtomicBool>,
}

impl GracefulEnd {
    /// Ends a pod that was asked to go and has this time left, calls `on_end`, and empties the pod's directories. False
    /// where shadow mode lets it live. For threads that may take their time.
    pub fn run(
        &self,
        entry: &Arc<PodEntry>,
        grace: Duration,
        left: Vec<PathBuf>,
        on_end: impl FnOnce(),
    ) -> bool {
        let (path, pod) = (entry.killer.path(), &entry.pod);
        let end = Instant::now() + grace;
        let lives = || {
            let in_shadow = self.shadow.load(Ordering::Relaxed);
            if in_shadow {
                tracing::warn!(%pod, "shadow mode: a pod that was asked to go is not killed at the end of its time");
            }
            in_shadow
        };
        // This thread may have waited for others.
        if lives() {
            return false;
        }
        let ended = match ask_to_end(path, grace) {
            Ok(false) if lives() => return false,
            Ok(false) => kill_until_empty(path, KILL_TIMEOUT),
            asked => asked.map(drop),
        };
        match ended {
            Ok(()) => {
                on_end();
                clear(&left, None);
            }
            Err(error) => {
                tracing::error!(%pod, %error, "a pod that was asked to go is not gone");
                // A cgroup that cannot be opened takes no time from the pod.
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                if let Some(victims) = self.victims.upgrade() {
                    let (entry, signalled) = (Arc::clone(entry), monotonic_ns());
                    let victim = KilledPod {
                        entry,
                        signalled,
                        left,
                    };
                    hand_over(&victims, victim);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, sync::mpsc::channel};

    use evictd_engine::{Pod, model::settings::Mode};

    use super::*;

    #[test]
    fn victims_that_are_stuck_hold_up_no_other_one() {
        let (victims, queue) = channel();
        let (dead, deaths) = channel();
        let lives = Cell::new(3);
        let status = move |name: &&str| match *name {
            "stuck" | "given up" => VictimStatus::Alive(None),
            "late" if lives.get() > 0 => {
                lives.set(lives.get() - 1);
                VictimStatus::Alive(None)
            }
            _ => VictimStatus::Dead,
        };
        let told = Cell::new(0);
        let overdue = move |name: &&str, _: Option<&PathError>| {
            told.set(told.get() + i32::from(*name == "late"));
            assert!(told.get() < 2, "it is told once");
            *name != "given up"
        };
        let end = move |name| dead.send(name).unwrap();
        let thread = std::thread::spawn(move || run(&queue, Duration::ZERO, status, overdue, end));
        for name in ["stuck", "stuck", "given up", "stuck", "stuck", "first"] {
            victims.send(name).unwrap();
        }
        let next = || deaths.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(next(), "first", "volumes of a pod that is not dead stay");
        victims.send("late").unwrap();
        assert_eq!(next(), "late", "its volumes are emptied all the same");
        assert!(!thread.is_finished());
    }

    /// A pod that was killed, and one that was asked to go.
    #[test]
    fn volumes_of_a_pod_whose_end_is_refused_are_emptied_when_it_is_dead() {
        for grace in [None, Some(Duration::ZERO), Some(Duration::from_secs(1))] {
            let dir = tempfile::tempdir().unwrap();
            let (pod, volume) = (dir.path().join("pod"), dir.path().join("volume"));
            fs::create_dir(&pod).unwrap();
            for file in ["memory.current", "memory.stat", "cgroup.procs"] {
                fs::write(pod.join(file), "").unwrap();
            }
            let entry = PodEntry::open(Pod::default(), &pod, Mode::Evictd).unwrap();
            let entry = Arc::new(entry);
            // For a while its cgroup cannot be opened.
            fs::remove_dir_all(&pod).unwrap();
            std::os::unix::fs::symlink(&pod, &pod).unwrap();
            let (clear, cleared) = channel();
            let ensure_dead = EnsureDead::start(move |left| clear.send(left).unwrap()).unwrap();
            let (left, signalled) = (vec![volume.clone()], 1);
            if let Some(grace) = grace {
                let (end, begin) = (ensure_dead.graceful_end(), Instant::now());
                assert!(end.run(&entry, grace, left, || panic!("it has not ended")));
                assert!(begin.elapsed() >= grace, "its time was taken from it");
            } else {
                ensure_dead.look_at(KilledPod {
                    entry,
                    signalled,
                    left,
                });
            }
            assert!(cleared.recv_timeout(Duration::from_millis(300)).is_err());
            fs::remove_file(&pod).unwrap();
            let cleared = cleared.recv_timeout(Duration::from_secs(20));
            assert_eq!(cleared.unwrap(), [volume]);
        }
    }
}
