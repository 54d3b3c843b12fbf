//! What lies between the fast path and the other threads: a control block towards it, with newest values and a queue of
//! kills, and a queue of events from it. Neither side waits for the other, and neither queue grows; what a full one
//! drops is counted.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_queue::ArrayQueue;
use evictd_engine::{accounting::MemoryThresholds, model::settings::RankingStrategy};
use evictd_node::{
    memory_scope::Scope,
    pods::table::{PodEntry, PodTable},
    proc::watermarks::DefaultWatermarks,
    trigger::memory::MAX_SCOPES,
};
use evictd_sys::{eventfd::EventFd, swap_slot::SwapSlot};

use crate::{FastPathEvent, in_flight::OtherKill};

/// The positions of the scopes.
pub(super) const NODE: usize = 0;
pub(super) const PODS: usize = 1;

/// Kills by the manager and the kubelet that may wait for the fast path: more than a node has pods.
pub(super) const KILLS: usize = 1024;
/// Events that may wait for a slow reader, each of a KiB: more than all victims at once make.
const EVENTS: usize = 256;

/// The control block: what main and the manager hand to the fast path: pod table, scopes, settings, kills by the
/// manager and the kubelet, protected bytes, raised watermarks, stop.
#[derive(Debug)]
pub struct FastPathControl {
    wakeup: EventFd,
    table: SwapSlot<PodTable>,
    /// Scopes that the fast path takes over next, by their positions among the scopes.
    scopes: [SwapSlot<Scope>; MAX_SCOPES as usize],
    settings: SwapSlot<FastPathSettings>,
    /// Kills by the manager and the kubelet: the pod, when (nanoseconds of CLOCK_MONOTONIC), and by which of them.
    killed: ArrayQueue<OtherKill>,
    kills_dropped: AtomicU64,
    /// Pods that the fast path follows no longer. To free one takes the allocator's lock and closes files: main does.
    left: ArrayQueue<Arc<PodEntry>>,
    /// Bytes of pods' page cache that `memory.min` protects.
    protected_cache: AtomicU64,
    /// What the kernel would keep back with default watermarks ([`DefaultWatermarks`]): `reserve`, which is 0 where they
    /// are not raised, and `low`.
    default_watermarks: [AtomicU64; 2],
    stop: AtomicBool,
}

/// Settings that may change while the fast path runs: plain values.
#[derive(Clone, Copy, Debug)]
pub struct FastPathSettings {
    /// The amounts of the node's memory.
    pub thresholds: MemoryThresholds,
    /// The capacity that they are for, in bytes: a scope with another one has its own.
    pub capacity: u64,
    /// See [`super::FastPathSetup::shadow`].
    pub shadow: bool,
    /// See [`super::FastPathSetup::strategy`].
    pub strategy: RankingStrategy,
}

impl FastPathControl {
    /// An empty control block.
    ///
    /// # Errors
    /// No eventfd can be made.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            wakeup: EventFd::new()?,
            table: SwapSlot::default(),
            scopes: Default::default(),
            settings: SwapSlot::default(),
            killed: ArrayQueue::new(KILLS),
            kills_dropped: AtomicU64::new(0),
            left: ArrayQueue::new(KILLS),
            protected_cache: AtomicU64::new(0),
            default_watermarks: Default::default(),
            stop: AtomicBool::new(false),
        }))
    }

    /// Hands over a new table; one that was not taken yet is replaced. Frees the tables that the fast path has retired.
    pub fn send_table(&self, table: Box<PodTable>) {
        self.table.publish(table);
        self.wakeup.notify();
    }

    /// Frees the tables and pods that the fast path has retired: of pods that are gone they hold files open. For the thread
    /// that sends.
    pub fn free_retired(&self) {
        self.table.free_used();
        while self.left.pop().is_some() {}
    }

    /// Leaves a pod to be freed by main; where it does not come for as many, here.
    pub(super) fn leave(&self, pod: Arc<PodEntry>) {
        drop(self.left.push(pod));
    }

    /// Hands over the pods' cgroup: it is new, another one, or of another size.
    pub fn send_pods_scope(&self, scope: Box<Scope>) {
        self.send_scope(PODS, scope);
    }

    /// Hands over the node's scope, whose capacity has changed.
    pub fn send_node_scope(&self, scope: Box<Scope>) {
        self.send_scope(NODE, scope);
    }

    fn send_scope(&self, index: usize, scope: Box<Scope>) {
        if let Some(slot) = self.scopes.get(index) {
            slot.publish(scope);
            self.wakeup.notify();
        }
    }

    /// Hands over new settings; those that were not taken yet are replaced.
    pub fn send_settings(&self, settings: FastPathSettings) {
        self.settings.publish(Box::new(settings));
        self.wakeup.notify();
    }

    /// Notes that the manager or the kubelet has killed a pod: its memory is pending. Neither blocks nor allocates. The queue has room for all pods of a node; it fills only where
    /// victims do not end for long, and drops the oldest kill then: what that brings is no longer waited for.
    pub fn note_kill(&self, kill: OtherKill) {
        if self.killed.force_push(kill).is_some() {
            self.kills_dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.wakeup.notify();
    }

    /// Kills that were dropped since the start, because the queue was full.
    pub fn kills_dropped(&self) -> u64 {
        self.kills_dropped.load(Ordering::Relaxed)
    }

    pub(super) fn take_kill(&self) -> Option<OtherKill> {
        self.killed.pop()
    }

    pub(super) fn take_settings(&self) -> Option<FastPathSettings> {
        let boxed = self.settings.take()?;
        let settings = *boxed;
        self.settings.retire(boxed);
        Some(settings)
    }

    /// The scope that was handed over for this position and not taken yet.
    pub(super) fn take_scope(&self, index: usize) -> Option<Box<Scope>> {
        self.scopes.get(index)?.take()
    }

    /// Leaves a scope to be freed by the sender.
    pub(super) fn retire_scope(&self, index: usize, scope: Box<Scope>) {
        if let Some(slot) = self.scopes.get(index) {
            slot.retire(scope);
        }
    }

    /// Sets the bytes of pods' page cache that the kernel does not reclaim: the next sample counts them as no headroom.
    pub fn set_protected_cache(&self, bytes: u64) {
        self.protected_cache.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn protected_cache(&self) -> u64 {
        self.protected_cache.load(Ordering::Relaxed)
    }

    /// Sets the default watermarks, where the machine's are raised: the next sample goes by them.
    pub fn set_default_watermarks(&self, defaults: Option<DefaultWatermarks>) {
        let [reserve, low] = &self.default_watermarks;
        // The other number stays while they are not raised: none that is read beside a reserve is 0.
        if let Some(defaults) = defaults {
            low.store(defaults.low, Ordering::Relaxed);
        }
        let raised = defaults.map_or(0, |defaults| defaults.reserve);
        reserve.store(raised, Ordering::Release);
    }

    pub(super) fn default_watermarks(&self) -> Option<DefaultWatermarks> {
        let [reserve, low] = &self.default_watermarks;
        let reserve = reserve.load(Ordering::Acquire);
        let low = low.load(Ordering::Relaxed);
        (reserve > 0).then_some(DefaultWatermarks { reserve, low })
    }

    /// Asks the fast path to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wakeup.notify();
    }

    /// Starts another cycle of the fast path.
    pub(super) fn wake(&self) {
        self.wakeup.notify();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes the newest table, if there is one. The table in use before is left to be freed by the sender.
    pub(super) fn take_table(&self, current: &mut Box<PodTable>) -> bool {
        self.wakeup.clear();
        let Some(mut new) = self.table.take() else {
            return false;
        };
        new.inherit(current);
        self.table.retire(std::mem::replace(current, new));
        true
    }
}

/// Queue of events from the fast path to the daemon.
#[derive(Debug)]
pub struct FastPathEventQueue {
    wakeup: EventFd,
    events: ArrayQueue<FastPathEvent>,
    dropped: AtomicU64,
}

impl FastPathEventQueue {
    /// An empty event queue.
    ///
    /// # Errors
    /// No eventfd can be made.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            wakeup: EventFd::new()?,
            events: ArrayQueue::new(EVENTS),
            dropped: AtomicU64::new(0),
        }))
    }

    pub(super) fn send(&self, event: FastPathEvent) {
        if self.events.push(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.wakeup.notify();
    }

    /// The oldest event.
    pub fn next(&self) -> Option<FastPathEvent> {
        self.wakeup.clear();
        self.events.pop()
    }

    /// Events that were dropped since the start, because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl AsFd for FastPathEventQueue {
    /// Becomes readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }
}

impl AsRawFd for FastPathEventQueue {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.wakeup.fd().as_raw_fd()
    }
}
