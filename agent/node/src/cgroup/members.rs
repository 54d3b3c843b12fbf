//! Signals the processes of a cgroup and no other process.
//!
//! A list of PIDs is old when it is read: a process may have left the cgroup since, or have ended, and its PID may be
//! another process's. So each listed process is opened by a pidfd, the list is made anew, and what it still names is
//! signalled by its pidfd. A PID that was given away before the pidfd was opened is that of a process outside, which
//! the new list does not name. With one that was given away afterwards the pidfd still means the process that has
//! ended.
//!
//! Deciding threads run this: it takes no heap, no lock, and a stack of a fixed size.

use std::io;

use evictd_sys::fs::{errno, is_gone};

use rustix::{io::Errno, process::kill_process};

use crate::proc::pidfd::{Pidfd, Signal, pid_of};

/// Makes a list of the processes of a cgroup, as they are at the moment of the call, and calls back for each.
pub type List<'a> = dyn Fn(&mut dyn FnMut(i32)) -> io::Result<()> + 'a;

/// Pidfds that are held at once: each batch costs one more list, and its descriptors.
const BATCH: usize = 128;
/// Processes of a cgroup that a deciding thread signals at once: a list is made for each batch, so that the time grows with the
/// square of their number. It goes on with the next ones when it kills again; the threads that may take their time signal all.
pub const MAX_AT_ONCE: u32 = 1024;
/// The first batch is smaller, so that the first signals do not wait for many descriptors; each is twice the one
/// before.
const FIRST_BATCH: usize = 8;

/// Result of signalling all processes of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillResult {
    /// Processes that were signalled; 0 where the kernel has killed them by `cgroup.kill`, which does not say how many.
    pub processes: u32,
    /// Whether no process was listed.
    pub empty: bool,
    /// Error number of the first refusal: of a signal, or of a list.
    pub refused: Option<i32>,
}

impl KillResult {
    /// No process was there.
    pub(super) const EMPTY: Self = Self {
        processes: 0,
        empty: true,
        refused: None,
    };

    /// Adds what was done in another cgroup.
    pub(super) fn add(&mut self, other: Self) {
        self.processes += other.processes;
        self.empty &= other.empty;
        self.refused = self.refused.or(other.refused);
    }

    /// Takes note of an error, unless it says that a cgroup or a process is gone.
    pub(super) fn note(&mut self, error: &io::Error) {
        if !is_gone(error) {
            self.refused.get_or_insert(errno(error));
        }
    }

    /// # Errors
    /// The refusal, where nothing was signalled.
    pub(super) fn or_refusal(self) -> io::Result<Self> {
        match self.refused {
            Some(errno) if self.processes == 0 => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(self),
        }
    }
}

/// Sends a signal once to every process that a list names, or to the first `most` of them, whatever is refused
/// meanwhile. Those that begin while this runs may be missed. A cgroup that is gone is an empty one.
pub fn signal_members(signal: Signal, most: u32, list: &List<'_>) -> KillResult {
    signal_from(signal, 0, most, list).0
}

/// Signals like [`signal_members`], from a position in the list on: those before it were signalled and may take their time to
/// end. Returns the position to go on with as well, 0 where the list has come to its end.
pub(super) fn signal_from(
    signal: Signal,
    from: u32,
    most: u32,
    list: &List<'_>,
) -> (KillResult, u32) {
    let mut sent = Sent::new(signal);
    let mut batch = Batch::new();
    let (mut is_lacking, mut listed_before, mut tried) = (false, 0, 0);
    let listed = list(&mut |pid| {
        if listed_before < from {
            listed_before += 1;
        } else if !is_lacking && tried < most {
            tried += 1;
            is_lacking = batch.add(pid, list, &mut sent).is_err();
        }
    });
    if tried == 0 && listed_before > 0 {
        return signal_from(signal, 0, most, list);
    }
    if let Err(e) = listed {
        sent.result.note(&e);
    }
    // Even if all that were listed have ended: they may have forked before.
    if !is_lacking && tried > 0 && (batch.count > 0 || sent.result.empty) {
        is_lacking = batch.signal(list, &mut sent).is_err();
    }
    // Gives its descriptors back.
    batch.clear();
    if is_lacking {
        sent.by_number(list);
    }
    let is_cut = tried == most && !is_lacking;
    (
        sent.result,
        if is_cut { from.saturating_add(most) } else { 0 },
    )
}

/// Signal, with the result of sending it so far.
struct Sent {
    signal: Signal,
    result: KillResult,
}

impl Sent {
    fn new(signal: Signal) -> Self {
        Self {
            signal,
            result: KillResult::EMPTY,
        }
    }

    fn note(&mut self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.result.processes += 1,
            Err(e) => self.result.note(&e),
        }
    }

    /// Without pidfds: for a caller that has no descriptor or memory left (EMFILE, ENFILE, ENOMEM), or whose container
    /// forbids them (ENOSYS, EPERM). The new list is the check, and each process is signalled as soon as the list names
    /// it. What is left is the chance that a process ends, is reaped, and its PID is given away within these
    /// microseconds; to let the whole pod live would be sure harm.
    fn by_number(&mut self, list: &List<'_>) {
        let listed = list(&mut |pid| {
            self.result.empty = false;
            self.note(signal_by_number(pid, self.signal));
        });
        if let Err(e) = listed {
            self.result.note(&e);
        }
    }
}

/// Processes that were listed and are held by pidfds.
struct Batch {
    members: [(i32, Option<Pidfd>); BATCH],
    count: usize,
    room: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            members: [const { (0, None) }; BATCH],
            count: 0,
            room: FIRST_BATCH,
        }
    }

    /// Takes in a listed process; signals the batch when it is full.
    ///
    /// # Errors
    /// It cannot be opened, or the list cannot be made.
    fn add(&mut self, pid: i32, list: &List<'_>, sent: &mut Sent) -> io::Result<()> {
        let opened = match Pidfd::open(pid) {
            // The batch itself may hold the last descriptors.
            Err(_) if self.count > 0 => {
                self.signal(list, sent)?;
                Pidfd::open(pid)
            }
            opened => opened,
        };
        let (Some(pidfd), Some(slot)) = (opened?, self.members.get_mut(self.count)) else {
            return Ok(());
        };
        *slot = (pid, Some(pidfd));
        self.count += 1;
        if self.count < self.room {
            return Ok(());
        }
        self.room = BATCH.min(self.room * 2);
        self.signal(list, sent)
    }

    /// Signals those of the batch that a new list names, and lets go of all.
    ///
    /// # Errors
    /// The list cannot be made.
    fn signal(&mut self, list: &List<'_>, sent: &mut Sent) -> io::Result<()> {
        let members = self.members.get_mut(..self.count).unwrap_or_default();
        // v1's list is sorted, v2's is not.
        members.sort_unstable_by_key(|(pid, _)| *pid);
        let listed = list(&mut |pid| {
            sent.result.empty = false;
            if let Ok(at) = members.binary_search_by_key(&pid, |(pid, _)| *pid)
                && let Some((_, pidfd)) = members.get_mut(at)
                && let Some(pidfd) = pidfd.take()
            {
                sent.note(pidfd.signal(sent.signal));
            }
        });
        self.clear();
        match listed {
            Err(e) if !is_gone(&e) => Err(e),
            _ => Ok(()),
        }
    }

    fn clear(&mut self) {
        for (_, pidfd) in self.members.iter_mut().take(self.count) {
            *pidfd = None;
        }
        self.count = 0;
    }
}

fn signal_by_number(pid: i32, signal: Signal) -> io::Result<()> {
    let pid = pid_of(pid).ok_or(Errno::SRCH)?;
    Ok(kill_process(pid, signal)?)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn those_that_were_signalled_and_stay_do_not_hold_up_the_next_ones() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut children: Vec<Child> = std::iter::repeat_with(sleep).take(3).collect();
        let pids: Vec<i32> = children.iter().map(|c| c.id().cast_signed()).collect();
        let list: &List<'_> = &|each| {
            pids.iter().for_each(|pid| each(*pid));
            Ok(())
        };
        let signalled = |from| {
            let (result, next) = signal_from(Signal::CONT, from, 2, list);
            (result.processes, result.empty, next)
        };
        assert_eq!(signalled(0), (2, false, 2));
        assert_eq!(signalled(2), (1, false, 0));
        // Some have ended meanwhile.
        assert_eq!(signalled(4), (2, false, 2));
        let gone = signal_from(Signal::CONT, 2, 2, &|_| Ok(()));
        assert_eq!(gone, (KillResult::EMPTY, 0));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
