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
    Command, CommandQueue,
    mitigation_worker::{Done, MitigationRequest, MitigationWorker},
};

/// Steps that may wait for each thread. The commands has a place for the answer to each of them.
const STEPS: usize = 16;

/// The running threads; they end when this is dropped and what they have begun is done.
pub struct StepThreads {
    reclaim: SyncSender<MitigationRequest>,
    limit: SyncSender<MitigationRequest>,
    commands: Arc<CommandQueue>,
}

impl StepThreads {
    /// Starts the threads; what comes of a step goes to the commands.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(worker: &Arc<MitigationWorker>, commands: &Arc<CommandQueue>) -> io::Result<Self> {
        let worker = Arc::clone(worker);
        Self::start_with(move |request| worker.work(request), commands)
    }

    fn start_with(
        work: impl Fn(&MitigationRequest) -> Done + Clone + Send + 'static,
        commands: &Arc<CommandQueue>,
    ) -> io::Result<Self> {
        let spawn = |name: &str| {
            let (demands, queue) = sync_channel::<MitigationRequest>(STEPS);
            let (work, commands) = (work.clone(), Arc::clone(commands));
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    for request in queue {
                        commands.send(Command::MitigationDone(Box::new(work(&request))));
                    }
                })?;
            io::Result::Ok(demands)
        };
        Ok(Self {
            reclaim: spawn("reclaim")?,
            limit: spawn("memory-high")?,
            commands: Arc::clone(commands),
        })
    }

    /// Has a step taken. A step that finds no place is answered at once, as refused.
    pub fn take(&self, request: MitigationRequest) {
        let thread = match request.step {
            Step::Reclaim(_) => &self.reclaim,
            Step::Throttle | Step::Unthrottle => &self.limit,
        };
        let (step, signal) = (request.step, request.signal);
        if thread.try_send(request).is_err() {
            tracing::warn!(
                ?step,
                "a step before the eviction is refused: too many wait"
            );
            self.commands.send(Command::MitigationDone(Box::new(Done {
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

    fn request(step: Step) -> MitigationRequest {
        MitigationRequest {
            step,
            signal: Signal::MemoryAvailable,
            pods: Vec::new(),
            within: Duration::ZERO,
            shadow: false,
        }
    }

    fn done(request: &MitigationRequest) -> Done {
        Done {
            step: request.step,
            signal: request.signal,
            pods: Vec::new(),
            refusal: None,
            took: Duration::ZERO,
        }
    }

    fn answer(commands: &CommandQueue) -> Done {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if let Some(Command::MitigationDone(done)) = commands.next() {
                return *done;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no answer");
    }

    #[test]
    fn a_release_does_not_wait_for_a_reclaim_and_each_step_is_answered() {
        let commands = CommandQueue::new().unwrap();
        let (go_on, wait) = channel::<()>();
        let wait = Arc::new(evictd_sys::pi_mutex::PiMutex::<Receiver<()>>::new(wait));
        let work = move |request: &MitigationRequest| {
            if let Step::Reclaim(_) = request.step {
                let _ = wait.lock().recv();
            }
            done(request)
        };
        let threads = StepThreads::start_with(work, &commands).unwrap();
        threads.take(request(Step::Reclaim(1)));
        threads.take(request(Step::Unthrottle));
        assert_eq!(answer(&commands).step, Step::Unthrottle);
        // One is at work or about to be, so many wait, and the rest is too much.
        let more = STEPS + 5;
        for n in 0..more as u64 {
            threads.take(request(Step::Reclaim(n)));
        }
        drop(go_on);
        let answers: Vec<Done> = (0..=more).map(|_| answer(&commands)).collect();
        let refused = answers.iter().filter(|done| done.refusal.is_some());
        let refused = refused.count();
        assert!((5..=6).contains(&refused), "{refused}");
        assert!(commands.next().is_none(), "each is answered once");
    }
}
