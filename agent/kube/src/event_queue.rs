//! Events on their way to the API server. Each is sent again until the server has it: its name keeps it one Event.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use backon::ExponentialBackoff;
use evictd_store::record::Record;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    client::ApiClient,
    events::{EventSpec, Events, create},
    reporter::{ATTEMPTS, PAUSES, pauses},
};

/// Events that may wait; more are given up.
const WAITING: usize = 256;

/// Takes Events, and sends them in its own time.
#[derive(Clone)]
pub struct EventQueue {
    events: Arc<Events>,
    connection: Arc<ApiClient>,
    sender: mpsc::UnboundedSender<Value>,
    waiting: Arc<AtomicUsize>,
}

impl EventQueue {
    /// A queue of this node, and its task, which ends when all that fill the queue are gone and the API server has taken
    /// every Event.
    pub fn start(connection: &Arc<ApiClient>, node: &str) -> (Self, JoinHandle<()>) {
        // As many as are counted fit.
        let (sender, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let sending = Sending {
            connection: Arc::clone(connection),
            waiting: Arc::clone(&waiting),
            events: VecDeque::new(),
            backoff: pauses(),
        };
        let started = Self {
            events: Arc::new(Events::new(node)),
            connection: Arc::clone(connection),
            sender,
            waiting,
        };
        (started, tokio::spawn(sending.run(queue)))
    }

    /// Tells of a pod. It never waits.
    pub fn about_pod(&self, event: &EventSpec<'_>) {
        self.send(self.events.of_pod(event));
    }

    /// Tells of a record, where it has an Event of its own. It never waits.
    pub fn about_record(&self, record: &Record) {
        if let Some(event) = self.events.of_record(record) {
            self.send(event);
        }
    }

    fn send(&self, event: Value) {
        if self.waiting.load(Ordering::Relaxed) >= WAITING {
            give_up(&self.connection, &event, &"too many Events wait");
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The receiver is gone where the agent ends.
        let _ = self.sender.send(event);
    }

    /// How many the API server has not taken yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The same, for one who asks when the queue is gone.
    pub fn counter(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting)
    }
}

/// An Event, and how often it was refused.
type Unsent = (Value, u32);

struct Sending {
    connection: Arc<ApiClient>,
    waiting: Arc<AtomicUsize>,
    events: VecDeque<Unsent>,
    backoff: ExponentialBackoff,
}

impl Sending {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Value>) {
        let mut is_closed = false;
        loop {
            let Some(event) = self.events.pop_front() else {
                match queue.recv().await {
                    Some(event) => self.events.push_back((event, 0)),
                    None => return,
                }
                continue;
            };
            let Some(event) = self.try_once(event).await else {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.backoff = pauses();
                continue;
            };
            // It holds up no other.
            self.events.push_back(event);
            let pause = self.backoff.next().unwrap_or(PAUSES.1);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                next = queue.recv(), if !is_closed => match next {
                    Some(event) => self.events.push_front((event, 0)),
                    // Seconds are left: they begin with the shortest pauses. Who waits for this task ends it.
                    None => (is_closed, self.backoff) = (true, pauses()),
                },
            }
        }
    }

    /// The Event again, where it has to be tried again.
    async fn try_once(&self, (event, mut refusals): Unsent) -> Option<Unsent> {
        let error = create(&self.connection, &event).await.err()?;
        refusals += u32::from(!error.is_retryable());
        if refusals == ATTEMPTS {
            give_up(&self.connection, &event, &error);
            return None;
        }
        tracing::debug!(%error, "an Event could not be sent");
        Some((event, refusals))
    }
}

fn give_up(connection: &ApiClient, event: &Value, error: &dyn std::fmt::Display) {
    connection.counters.report_refused.add();
    let (reason, name) = (&event["reason"], &event["regarding"]["name"]);
    tracing::error!(%reason, %name, %error, "an Event is given up");
}
