//! Starts and ends the reflex thread.

use std::{io, sync::Arc};

use super::{
    mailbox::{Mailbox, Outbox},
    scope::Scope,
    thread::{Refusals, become_fifo, lock_memory, touch_stack},
    watch::Watch,
};
use crate::{
    config::RankingStrategy, kernel::tripwire::Tripwire, pods::table::PodTable, policy::Restraint,
};

/// What a reflex needs.
pub struct Setup {
    /// The node, and the pods' cgroup if that one is watched too: at least one, at most
    /// [`MAX_SCOPES`](crate::kernel::tripwire::MAX_SCOPES).
    pub scopes: Vec<Scope>,
    /// The rung that watches them, built for the same cgroups in the same order.
    pub tripwire: Box<dyn Tripwire>,
    /// The pods at the start.
    pub table: Box<PodTable>,
    /// Decide, report, and kill nothing (R47).
    pub shadow: bool,
    /// Pods that may be on their way out at once: 1 is the kubelet's way, more is R43.
    pub victims_at_once: usize,
    /// The order of eviction.
    pub strategy: RankingStrategy,
    /// What holds for all pods: limits, the pause, the last resort.
    pub restraint: Arc<Restraint>,
    /// Where new tables come from.
    pub mailbox: Arc<Mailbox>,
    /// Where reports go.
    pub outbox: Arc<Outbox>,
}

/// A running reflex thread.
pub struct Reflex {
    thread: std::thread::JoinHandle<()>,
    mailbox: Arc<Mailbox>,
    tid: i32,
}

impl Reflex {
    /// Starts the thread and waits until its wires are armed.
    ///
    /// # Errors
    /// The thread cannot be started, a scope cannot be read, a wire cannot be armed.
    pub fn start(setup: Setup) -> io::Result<(Self, Refusals)> {
        let mailbox = Arc::clone(&setup.mailbox);
        let (started, ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("reflex".into())
            .spawn(move || {
                let refusals = Refusals {
                    lock: lock_memory(),
                    fifo: become_fifo(),
                };
                touch_stack();
                let mut watch = Watch::new(setup);
                let armed = watch.settle();
                let go = armed.is_ok();
                // SAFETY: no preconditions.
                let tid = unsafe { libc::gettid() };
                if started.send(armed.map(|()| (refusals, tid))).is_ok() && go {
                    watch.run();
                }
            })?;
        let (refusals, tid) = ready
            .recv()
            .map_err(|_| io::Error::other("the reflex thread ended before it was ready"))??;
        Ok((
            Self {
                thread,
                mailbox,
                tid,
            },
            refusals,
        ))
    }

    /// The kernel's id of the thread, for its counters in `/proc/self/task`.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Ends the thread.
    pub fn stop(self) {
        self.mailbox.stop();
        if self.thread.join().is_err() {
            tracing::error!("the reflex thread has panicked");
        }
    }
}
