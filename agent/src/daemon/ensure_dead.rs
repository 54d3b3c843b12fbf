//! Sees to it that victims are dead: what was signalled through files that were open may have had children in groups
//! that were not there yet.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use evictd_node::{
    cgroup::end::{end_gracefully, kill_left},
    pods::table::PodEntry,
};
use evictd_sys::{clock::monotonic_ns, thread::wait_for_end};
use jiff::Timestamp;

/// Victims that may wait to be looked at; a fast path that evicts all pods of a large node does not fill it.
const WAITING: usize = 1024;
/// The shortest and the longest pause between two looks at a victim that is not dead.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How long a killed pod's processes may take to go before they are reported; some wait for a disk.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// A pod that got SIGKILL.
pub(super) struct KilledPod {
    pub entry: Arc<PodEntry>,
    /// Time of the signal, in nanoseconds of CLOCK_MONOTONIC; 0 where that is not known.
    pub signalled: u64,
    /// Directories to be emptied once it is dead.
    pub left: Vec<PathBuf>,
}

/// State of a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VictimStatus {
    Alive,
    Dead,
    /// The victim does not die, or that is not to be seen, as was logged; or it runs anew.
    GivenUp,
}

/// The running thread; it looks at all victims in turn, so that one that is stuck holds up no other one.
pub(super) struct EnsureDead {
    victims: SyncSender<KilledPod>,
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
        let thread = thread.spawn(move || run(&queue, kill_rest, end))?;
        Ok(Self { victims, thread })
    }

    /// Has a victim looked at.
    pub fn look_at(&self, mut victim: KilledPod) {
        if victim.signalled == 0 {
            victim.signalled = monotonic_ns();
        }
        if let Err(error) = self.victims.try_send(victim) {
            tracing::error!(%error, "an evicted pod is not looked at again: too many are not dead");
        }
    }

    /// Ends the thread when all victims are dead, or after so long without it.
    pub fn stop(self, patience: Duration) {
        drop(self.victims);
        wait_for_end(&self.thread, patience);
    }
}

/// Goes through all victims again and again, until each is dead or given up; `end` gets the dead.
fn run<V>(queue: &Receiver<V>, status: impl Fn(&V, Duration) -> VictimStatus, end: impl Fn(V)) {
    let mut under_way: Vec<(V, Instant)> = Vec::new();
    loop {
        if under_way.is_empty() {
            match queue.recv() {
                Ok(victim) => under_way.push((victim, Instant::now())),
                Err(_) => return,
            }
        }
        while under_way.len() < WAITING
            && let Ok(victim) = queue.try_recv()
        {
            under_way.push((victim, Instant::now()));
        }
        let mut at = 0;
        while let Some((victim, since)) = under_way.get(at) {
            match status(victim, since.elapsed()) {
                VictimStatus::Alive => at += 1,
                VictimStatus::Dead => end(under_way.swap_remove(at).0),
                VictimStatus::GivenUp => drop(under_way.swap_remove(at)),
            }
        }
        // The longer the youngest takes, the later it is looked at.
        if let Some(age) = under_way.iter().map(|(_, since)| since.elapsed()).min() {
            let (shortest, longest) = PAUSES;
            std::thread::sleep((age / 16).clamp(shortest, longest));
        }
    }
}

/// Kills what is left.
fn kill_rest(victim: &KilledPod, after: Duration) -> VictimStatus {
    let (entry, signalled) = (&victim.entry, victim.signalled);
    match kill_left(entry.killer.path(), signalled) {
        Ok(true) if entry.is_empty() => VictimStatus::Dead,
        // It runs anew, and its volumes with it.
        Ok(true) => VictimStatus::GivenUp,
        Ok(false) if after > KILL_TIMEOUT => {
            tracing::error!(pod = %entry.pod, ?after, "an evicted pod is not dead");
            VictimStatus::GivenUp
        }
        Ok(false) => VictimStatus::Alive,
        Err(error) => {
            tracing::error!(pod = %entry.pod, %error, "an evicted pod is not dead");
            VictimStatus::GivenUp
        }
    }
}

/// Ends a pod that was asked to go and has this time left, calls `on_end`, and empties the pod's directories. For
/// threads that may take their time.
pub(super) fn end_asked(
    entry: &PodEntry,
    grace: Duration,
    directories: &[PathBuf],
    on_end: impl FnOnce(),
) {
    match end_gracefully(entry.killer.path(), grace, KILL_TIMEOUT) {
        // It has ended, or was killed when its time was over.
        Ok(()) => {
            on_end();
            clear(directories, None);
        }
        Err(error) => {
            tracing::error!(pod = %entry.pod, %error, "a pod that was asked to go is not gone");
        }
    }
}

/// Empties directories; they themselves stay, for the next pod. What has changed since `until` stays as well.
pub(super) fn clear(directories: &[PathBuf], until: Option<Timestamp>) {
    for directory in directories {
        if let Err(error) = empty(directory, until) {
            tracing::warn!(directory = %directory.display(), %error, "an emptyDir is not empty");
        }
    }
}

/// What cannot be removed does not keep the rest.
fn empty(directory: &PathBuf, until: Option<Timestamp>) -> io::Result<()> {
    let mut result = Ok(());
    for entry in fs::read_dir(directory)? {
        let removed = entry.and_then(|entry| remove(&entry, until));
        result = result.and(removed);
    }
    result
}

fn remove(entry: &fs::DirEntry, until: Option<Timestamp>) -> io::Result<()> {
    let metadata = entry.metadata()?;
    if until.is_some_and(|until| metadata.ctime() > until.as_second()) {
        return Ok(());
    }
    match metadata.is_dir() {
        true => fs::remove_dir_all(entry.path()),
        false => fs::remove_file(entry.path()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn victims_that_are_stuck_hold_up_no_other_one() {
        let (victims, queue) = channel();
        let (dead, deaths) = channel();
        let status = |name: &&str, _| match *name {
            "stuck" => VictimStatus::Alive,
            "given up" => VictimStatus::GivenUp,
            _ => VictimStatus::Dead,
        };
        let end = move |name| dead.send(name).unwrap();
        let thread = std::thread::spawn(move || run(&queue, status, end));
        for name in ["stuck", "stuck", "given up", "stuck", "stuck", "first"] {
            victims.send(name).unwrap();
        }
        let next = || deaths.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(next(), "first", "volumes of a pod that is not dead stay");
        victims.send("second").unwrap();
        assert_eq!(next(), "second");
        assert!(!thread.is_finished());
    }
}
