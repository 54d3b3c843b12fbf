//! Sees to it that victims are dead: what was signalled through files that were open may have had children in groups
//! that were not there yet.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use evictd_node::{cgroup::end::kill_left, pods::table::PodEntry};
use evictd_sys::{clock::monotonic_ns, thread::wait_for_end};

use super::eviction_log::PATIENCE;

/// Victims that may wait to be looked at; a fast path that evicts all pods of a large node does not fill it.
const WAITING: usize = 1024;
/// The shortest and the longest pause between two looks at a victim that is not dead.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// A pod that got SIGKILL.
pub(super) struct Victim {
    pub entry: Arc<PodEntry>,
    /// When, in nanoseconds of CLOCK_MONOTONIC; 0 where that is not known.
    pub signalled: u64,
    /// Directories to be emptied afterwards.
    pub left: Vec<PathBuf>,
}

/// The running thread; it looks at all victims in turn, so that one that is stuck holds up no other one.
pub(super) struct EnsureDead {
    victims: SyncSender<Victim>,
    thread: std::thread::JoinHandle<()>,
}

impl EnsureDead {
    /// Starts the thread. `clear` empties the directories of a victim; it must not block.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(clear: impl Fn(Vec<PathBuf>) + Send + 'static) -> std::io::Result<Self> {
        let (victims, queue) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("ensure-dead".into());
        let end = move |victim: Victim| {
            if !victim.left.is_empty() {
                clear(victim.left);
            }
        };
        let thread = thread.spawn(move || run(&queue, is_done, end))?;
        Ok(Self { victims, thread })
    }

    /// Has a victim looked at.
    pub fn look_at(&self, mut victim: Victim) {
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

/// Goes through all victims again and again, until each is done.
fn run<V>(queue: &Receiver<V>, is_done: impl Fn(&V, Duration) -> bool, end: impl Fn(V)) {
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
        let done = |(victim, since): &mut (V, Instant)| is_done(victim, since.elapsed());
        for (victim, _) in under_way.extract_if(.., done) {
            end(victim);
        }
        // The longer the youngest takes, the later it is looked at.
        if let Some(age) = under_way.iter().map(|(_, since)| since.elapsed()).min() {
            let (shortest, longest) = PAUSES;
            std::thread::sleep((age / 16).clamp(shortest, longest));
        }
    }
}

/// Kills what is left; whether there is no more to be done.
fn is_done(victim: &Victim, after: Duration) -> bool {
    let (entry, signalled) = (&victim.entry, victim.signalled);
    match kill_left(entry.killer.path(), signalled) {
        Ok(true) => true,
        Ok(false) if after > PATIENCE => {
            tracing::error!(pod = %entry.pod, ?after, "an evicted pod is not dead");
            true
        }
        Ok(false) => false,
        Err(error) => {
            tracing::error!(pod = %entry.pod, %error, "an evicted pod is not dead");
            true
        }
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
        let is_done = |name: &&str, _| *name != "stuck";
        let end = move |name| dead.send(name).unwrap();
        let thread = std::thread::spawn(move || run(&queue, is_done, end));
        for name in ["stuck", "stuck", "stuck", "stuck", "stuck", "first"] {
            victims.send(name).unwrap();
        }
        let next = || deaths.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(next(), "first");
        victims.send("second").unwrap();
        assert_eq!(next(), "second");
        assert!(!thread.is_finished());
    }
}
