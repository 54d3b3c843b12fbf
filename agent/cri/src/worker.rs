//! The task that talks to the runtime: one reclaim at a time, and a look at the images from time to time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use evictd_config::CriConfig;
use evictd_engine::{
    NodeReclaim,
    node_reclaim::{KnownPods, LayerUsage, Removed},
};
use evictd_sys::clock::monotonic_ns;
use tokio::{sync::mpsc, task::JoinHandle};

use super::client::CriError;
use crate::{Reclaimer, RuntimeDisks};

/// Interval at which images are looked at: the kubelet's `ImageGCPeriod`.
const IMAGE_GC_PERIOD: Duration = Duration::from_secs(300);

/// Time that the end of a reclaim waits for the usage of writable layers.
const LAYERS: Duration = Duration::from_secs(1);

/// Request for a reclaim.
#[derive(Clone, Debug)]
pub struct Request {
    /// Kinds of reclaim, in this order: what a disk that is short is helped by.
    pub what: Vec<NodeReclaim>,
    /// Pods of this node.
    pub known: KnownPods,
}

/// Counters of what was done so far; all of them only grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reclaims that were begun.
    pub reclaims: AtomicU64,
    /// Times that the runtime did not answer, or not as one.
    pub unavailable: AtomicU64,
    /// Containers removed.
    pub containers: AtomicU64,
    /// Sandboxes removed.
    pub sandboxes: AtomicU64,
    /// Images removed.
    pub images: AtomicU64,
    /// Size of the removed images, in bytes.
    pub image_bytes: AtomicU64,
    /// Removals that the runtime refused.
    pub refused: AtomicU64,
    /// Reclaims that have run out of time.
    pub cut_short: AtomicU64,
    /// Reclaims after which no pod had to go.
    pub enough: AtomicU64,
}

/// The running task, seen from outside.
pub struct CriWorker {
    requests: mpsc::Sender<Request>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

/// Event that the task reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CriEvent {
    /// A reclaim is at its end: what was removed, or `None` when there is no runtime to ask.
    Reclaimed(Option<Removed>),
    /// Usage of writable layers: sent at each look, and before each reclaim is at its end.
    Layers {
        /// Use of the writable layers, by pod.
        layers: LayerUsage,
        /// Time at which the runtime was asked, in nanoseconds of CLOCK_MONOTONIC.
        requested_at: u64,
    },
    /// Filesystems of images and writable layers: sent at each look.
    Disks(RuntimeDisks),
}

impl CriWorker {
    /// Starts the task.
    pub fn start(config: CriConfig, on_event: impl Fn(CriEvent) + Send + Sync + 'static) -> Self {
        // The manager asks for the next one only when this one is over.
        let (requests, mut queue) = mpsc::channel::<Request>(1);
        let counters = Arc::new(Counters::default());
        let mut work = Work {
            reclaimer: Reclaimer::new(config.clone()),
            config,
            counters: Arc::clone(&counters),
            is_away: false,
            on_event,
        };
        let task = tokio::spawn(async move {
            let mut looks = tokio::time::interval(IMAGE_GC_PERIOD);
            looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                let asked = tokio::select! {
                    biased;
                    request = queue.recv() => Some(request),
                    _ = looks.tick() => {
                        // A request that comes meanwhile does not wait for its end.
                        tokio::select! {
                            biased;
                            request = queue.recv() => Some(request),
                            () = work.look() => None,
                        }
                    }
                };
                match asked {
                    Some(Some(request)) => work.answer(&request).await,
                    Some(None) => return,
                    None => {}
                }
            }
        });
        Self {
            requests,
            counters,
            task,
        }
    }

    /// Asks for a reclaim; false when one is under way.
    pub fn ask(&self, request: Request) -> bool {
        self.requests.try_send(request).is_ok()
    }

    /// Takes note of whether a reclaim has brought what was needed.
    pub fn note(&self, is_enough: bool) {
        add(&self.counters.enough, is_enough.into());
    }

    /// Returns the counters of what was done.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for CriWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work<T> {
    config: CriConfig,
    reclaimer: Reclaimer,
    counters: Arc<Counters>,
    /// The runtime did not answer the last time; said once.
    is_away: bool,
    on_event: T,
}

impl<T: Fn(CriEvent)> Work<T> {
    async fn look(&mut self) {
        let looked = self.reclaimer.look().await;
        self.note(looked.as_ref().err());
        if looked.is_ok() {
            // Not every runtime has these calls: what they would tell stays unknown.
            let requested_at = monotonic_ns();
            match Reclaimer::layers(&self.config).await {
                Ok(layers) => (self.on_event)(CriEvent::Layers {
                    layers,
                    requested_at,
                }),
                Err(error) => {
                    tracing::debug!(%error, "the runtime does not tell of writable layers")
                }
            }
            match Reclaimer::disks(&self.config).await {
                Ok(disks) => (self.on_event)(CriEvent::Disks(disks)),
                Err(error) => tracing::debug!(%error, "the runtime does not tell of its disks"),
            }
        }
    }

    /// Reclaims. At the same time it asks for the sizes of writable layers: which pod is evicted, if the reclaim is not
    /// enough, depends on them.
    async fn answer(&mut self, request: &Request) {
        let (config, requested_at) = (self.config.clone(), monotonic_ns());
        let layers = tokio::spawn(async move { Reclaimer::layers(&config).await });
        let removed = self.reclaim(request).await;
        let asking = layers.abort_handle();
        if let Ok(Ok(Ok(layers))) = tokio::time::timeout(LAYERS, layers).await {
            (self.on_event)(CriEvent::Layers {
                layers,
                requested_at,
            });
        }
        asking.abort();
        (self.on_event)(CriEvent::Reclaimed(removed));
    }

    async fn reclaim(&mut self, request: &Request) -> Option<Removed> {
        add(&self.counters.reclaims, 1);
        let (error, removed) = match self.reclaimer.reclaim(&request.what, &request.known).await {
            Ok(removed) => (None, removed),
            Err((error, removed)) => (Some(error), removed),
        };
        self.note(error.as_ref());
        let counters = &self.counters;
        add(&counters.containers, removed.containers);
        add(&counters.sandboxes, removed.sandboxes);
        add(&counters.images, removed.images);
        add(&counters.image_bytes, removed.image_bytes);
        add(&counters.refused, removed.refused);
        add(&counters.cut_short, removed.is_cut_short.into());
        if let Some(refusal) = &removed.refusal {
            let refused = removed.refused;
            tracing::warn!(%refusal, refused, "the runtime does not remove everything");
        }
        if removed.left_to_kubelet > 0 {
            let containers = removed.left_to_kubelet;
            tracing::info!(
                containers,
                "containers of pods that are over are left to the kubelet"
            );
        }
        let any = removed.containers + removed.sandboxes + removed.images > 0;
        (error.is_none() || any).then_some(removed)
    }

    fn note(&mut self, error: Option<&CriError>) {
        if let Some(error) = error {
            add(&self.counters.unavailable, 1);
            if !self.is_away {
                let socket = self.config.socket.display();
                tracing::warn!(
                    %error,
                    %socket,
                    "the container runtime is unavailable: evictd reclaims nothing from the node"
                );
            }
        } else if self.is_away {
            let socket = self.config.socket.display();
            tracing::info!(%socket, "the container runtime answers again");
        }
        self.is_away = error.is_some();
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
