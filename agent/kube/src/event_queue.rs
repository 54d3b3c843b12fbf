//! Events on their way to the API server. Each is sent again until the server has it: its name keeps it one Event.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use evictd_store::record::{Record, RequestRecord};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    backoff::Backoff,
    client::ApiClient,
    events::{EventSpec, Events, create, is_oom},
    reporter::{ATTEMPTS, RETRY_DELAYS},
};

/// Events that may wait; more are given up.
const WAITING: usize = 256;
/// How many of them may be about OOM kills, which pods can cause at will: the others always find room.
const WAITING_OOM: usize = WAITING / 2;

/// Takes Events, and sends them in its own time.
#[derive(Clone)]
pub struct EventQueue {
    events: Arc<Events>,
    client: Arc<ApiClient>,
    sender: mpsc::UnboundedSender<Value>,
    places: Arc<QueueSlots>,
}

/// How many Events wait.
#[derive(Debug, Default)]
pub struct QueueSlots {
    all: AtomicUsize,
    oom: AtomicUsize,
}

impl QueueSlots {
    /// Number of Events that the API server has not taken yet.
    pub fn taken(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Takes a place; false where none is left.
    fn take(&self, is_oom: bool) -> bool {
        if self.taken() >= WAITING || (is_oom && self.oom.load(Ordering::Relaxed) >= WAITING_OOM) {
            return false;
        }
        self.all.fetch_add(1, Ordering::Relaxed);
        self.oom.fetch_add(usize::from(is_oom), Ordering::Relaxed);
        true
    }

    fn give_back(&self, is_oom: bool) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.oom.fetch_sub(usize::from(is_oom), Ordering::Relaxed);
    }
}

impl EventQueue {
    /// A queue of this node, and its task, which ends when all that fill the queue are gone and the API server has all
    /// Events.
    pub fn start(client: &Arc<ApiClient>, node: &str) -> (Self, JoinHandle<()>) {
        // As many as are counted fit.
        let (sender, queue) = mpsc::unbounded_channel();
        let places = Arc::<QueueSlots>::default();
        let sending = Sending {
            client: Arc::clone(client),
            places: Arc::clone(&places),
            unsent: VecDeque::new(),
            backoff: Backoff::new(RETRY_DELAYS),
            retry: Instant::now(),
        };
        let started = Self {
            events: Arc::new(Events::new(node)),
            client: Arc::clone(client),
            sender,
            places,
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

    /// Tells the node of a pod that was asked to end; false where there is no room. It never waits.
    pub fn about_request(&self, request: &RequestRecord) -> bool {
        self.send(self.events.of_request(request))
    }

    fn send(&self, event: Value) -> bool {
        let has_room = self.places.take(is_oom(&event));
        match has_room {
            // The receiver is gone where the agent ends.
            true => drop(self.sender.send(event)),
            false => give_up(&self.client, &event, &"too many Events wait"),
        }
        has_room
    }

    /// Number of Events that the API server has not taken yet.
    pub fn waiting(&self) -> usize {
        self.places.taken()
    }

    /// The same, for a caller that asks when the queue is gone.
    pub fn places(&self) -> Arc<QueueSlots> {
        Arc::clone(&self.places)
    }
}

/// An Event, and how often it was refused.
type Unsent = (Value, u32);

struct Sending {
    client: Arc<ApiClient>,
    places: Arc<QueueSlots>,
    /// Events that were not taken, in the order in which they are tried again.
    unsent: VecDeque<Unsent>,
    backoff: Backoff,
    /// Time at which the first of them is tried again.
    retry: Instant,
}

impl Sending {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Value>) {
        let mut is_closed = false;
        while !is_closed || !self.unsent.is_empty() {
            tokio::select! {
                next = queue.recv(), if !is_closed => match next {
                    Some(event) => self.send_new(event).await,
                    // Seconds are left: they begin with the shortest pauses. The caller that waits ends the task.
                    None => {
                        (is_closed, self.backoff) = (true, Backoff::new(RETRY_DELAYS));
                        self.pause();
                    }
                },
                () = sleep_until(self.retry), if !self.unsent.is_empty() => self.send_again().await,
            }
        }
    }

    /// Sends an Event for the first time. It waits for no other, and the attempts of the others are not used up by it.
    async fn send_new(&mut self, event: Value) {
        let first = self.unsent.front().map(|(_, refusals)| *refusals);
        match (self.try_once((event, 0)).await, first) {
            (false, None) => self.pause(),
            // The API server answers again: the first was not refused, and waits for nothing else.
            (true, Some(0)) => {
                self.backoff = Backoff::new(RETRY_DELAYS);
                self.retry = Instant::now();
            }
            _ => {}
        }
    }

    /// Sends the first that was not taken again. Where it is taken the next follows at once.
    async fn send_again(&mut self) {
        let Some(first) = self.unsent.pop_front() else {
            return;
        };
        match self.try_once(first).await {
            true => self.backoff = Backoff::new(RETRY_DELAYS),
            false => self.pause(),
        }
    }

    fn pause(&mut self) {
        self.retry = Instant::now() + self.backoff.next_delay();
    }

    /// Sends an Event; false if it has to be tried again, after the others.
    async fn try_once(&mut self, (event, mut refusals): Unsent) -> bool {
        if let Err(error) = create(&self.client, &event).await {
            refusals += u32::from(!error.is_retryable());
            if refusals < ATTEMPTS {
                tracing::debug!(%error, "an Event could not be sent");
                self.unsent.push_back((event, refusals));
                return false;
            }
            give_up(&self.client, &event, &error);
        }
        self.places.give_back(is_oom(&event));
        true
    }
}

fn give_up(client: &ApiClient, event: &Value, error: &dyn std::fmt::Display) {
    client.counters.reports_failed.add();
    let (reason, name) = (&event["reason"], &event["regarding"]["name"]);
    tracing::error!(%reason, %name, %error, "an Event is given up");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_leave_room_for_other_events() {
        let places = QueueSlots::default();
        let ooms = (0..1000).filter(|_| places.take(true)).count();
        assert_eq!(ooms, WAITING_OOM);
        let others = (0..1000).filter(|_| places.take(false)).count();
        assert_eq!(ooms + others, WAITING);
        places.give_back(false);
        assert!(!places.take(true) && places.take(false));
        places.give_back(true);
        assert!(places.take(true) && !places.take(true));
        (0..WAITING_OOM).for_each(|_| places.give_back(true));
        (0..others).for_each(|_| places.give_back(false));
        assert_eq!(places.taken(), 0);
        let others = (0..1000).filter(|_| places.take(false)).count();
        assert_eq!((others, places.take(true)), (WAITING, false));
    }
}
