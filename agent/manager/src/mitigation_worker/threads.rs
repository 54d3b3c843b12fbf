//! The threads that take the steps before an eviction. They are two: `memory.high` is set and taken away while a reclaim takes its time,
//! and neither waits for the end of a victim.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use evictd_engine::mitigation::Step;

use crate::{
    CommandQueue, Letter,
    mitigation_worker::{Demand, Done, Worker},
};

/// Steps that may wait for each thread. The inbox has a place for the answer to each of them.
const STEPS: usize = 16;

/// The running threads; they end when this is dropped and what they have begun is done.
pub struct StepThreads {
    reclaim: SyncSender<Demand>,
    limit: SyncSender<Demand>,
    inbox: Arc<CommandQueue>,
}

impl StepThreads {
    /// Starts the threads; what comes of a step goes to the inbox.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(worker: &Arc<Worker>, inbox: &Arc<CommandQueue>) -> io::Result<Self> {
        let worker = Arc::clone(worker);
        Self::start_with(move |demand| worker.work(demand), inbox)
    }

    fn start_with(
        work: impl Fn(&Demand) -> Done + Clone + Send + 'static,
        inbox: &Arc<CommandQueue>,
    ) -> io::Result<Self> {
        let spawn = |name: &str| {
            let (demands, queue) = sync_channel::<Demand>(STEPS);
            let (work, inbox) = (work.clone(), Arc::clone(inbox));
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    for demand in queue {
                        inbox.send(Letter::Graduated(Box::new(work(&demand))));
                    }
                })?;
            io::Result::Ok(demands)
        };
        Ok(Self {
            reclaim: spawn("reclaim")?,
            limit: spawn("memory-high")?,
            inbox: Arc::clone(inbox),
        })
    }

    /// Has a step taken. A step that finds no place is answered at once, as refused.
    pub fn take(&self, demand: Demand) {
        let thread = match demand.step {
            Step::Reclaim(_) => &self.reclaim,
            Step::Brake | Step::Release => &self.limit,
        };
        let (step, signal) = (demand.step, demand.signal);
        if thread.try_send(demand).is_err() {
            tracing::warn!(
                ?step,
                "a step before the eviction is refused: too many wait"
            );
            self.inbox.send(Letter::Graduated(Box::new(Done {
                step,
                signal,
                pods: Vec::new(),
                refusal: Some("too many steps wait".to_owned()),
                took: Duration::ZERO,
            })));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, channel},
        time::Instant,
    };

    use evictd_engine::Signal;

    use super::*;

    fn demand(step: Step) -> Demand {
        Demand {
            step,
            signal: Signal::MemoryAvailable,
            pods: Vec::new(),
            within: Duration::ZERO,
            shadow: false,
        }
    }

    fn done(demand: &Demand) -> Done {
        Done {
            step: demand.step,
            signal: demand.signal,
            pods: Vec::new(),
            refusal: None,
            took: Duration::ZERO,
        }
    }

    fn answer(inbox: &CommandQueue) -> Done {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if let Some(Letter::Graduated(done)) = inbox.next() {
                return *done;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no answer");
    }

    #[test]
    fn a_release_does_not_wait_for_a_reclaim_and_each_step_is_answered() {
        let inbox = CommandQueue::new().unwrap();
        let (go_on, wait) = channel::<()>();
        let wait = Arc::new(evictd_sys::pi_mutex::PiMutex::<Receiver<()>>::new(wait));
        let work = move |demand: &Demand| {
            if let Step::Reclaim(_) = demand.step {
                let _ = wait.lock().recv();
            }
            done(demand)
        };
        let threads = StepThreads::start_with(work, &inbox).unwrap();
        threads.take(demand(Step::Reclaim(1)));
        threads.take(demand(Step::Release));
        assert_eq!(answer(&inbox).step, Step::Release);
        // One is at work or about to be, so many wait, and the rest is too much.
        let more = STEPS + 5;
        for n in 0..more as u64 {
            threads.take(demand(Step::Reclaim(n)));
        }
        drop(go_on);
        let answers: Vec<Done> = (0..=more).map(|_| answer(&inbox)).collect();
        let refused = answers.iter().filter(|done| done.refusal.is_some());
        let refused = refused.count();
        assert!((5..=6).contains(&refused), "{refused}");
        assert!(inbox.next().is_none(), "each is answered once");
    }
}
