//! The threads that take the steps before an eviction: `memory.high` is taken away while a reclaim takes its time, or the disk that a
//! throttle waits for does not answer; and none of them waits for the end of a victim.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use evictd_sys::thread::wait_for_end;

use crate::{
    Command, CommandQueue,
    mitigation_worker::{Done, MitigationAction, MitigationRequest, MitigationWorker},
};

/// Steps that may wait for each thread. The command queue has a place for the answer to each of them.
const STEPS: usize = 16;

/// The running threads; they end when this is dropped and what they have begun is done.
pub struct StepThreads {
    reclaim: SyncSender<MitigationRequest>,
    release: SyncSender<MitigationRequest>,
    throttle: SyncSender<Job>,
    throttling: std::thread::JoinHandle<()>,
    commands: Arc<CommandQueue>,
}

/// For the thread that may wait for the disk.
enum Job {
    Throttle(MitigationRequest),
    /// Pods were released: the list is an old one.
    Save,
}

/// What is done about a step, and the list written.
trait Work: Clone + Send + 'static {
    fn work(&self, request: &MitigationRequest) -> Done;
    fn save(&self);
}

impl Work for Arc<MitigationWorker> {
    fn work(&self, request: &MitigationRequest) -> Done {
        MitigationWorker::work(self, request)
    }

    fn save(&self) {
        MitigationWorker::save(self);
    }
}

impl StepThreads {
    /// Starts the threads; what comes of a step goes to the commands.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(worker: &Arc<MitigationWorker>, commands: &Arc<CommandQueue>) -> io::Result<Self> {
        Self::start_with(&Arc::clone(worker), commands)
    }

    fn start_with<W: Work>(worker: &W, commands: &Arc<CommandQueue>) -> io::Result<Self> {
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let taking = || {
            let (worker, commands) = (worker.clone(), Arc::clone(commands));
            move |request: &MitigationRequest| {
                let done = worker.work(request);
                commands.send(Command::MitigationDone(Box::new(done)));
            }
        };
        let (throttle, jobs) = sync_channel(STEPS);
        let (take, saver) = (taking(), worker.clone());
        let throttling = named("throttle").spawn(move || {
            for job in jobs {
                match job {
                    Job::Throttle(request) => take(&request),
                    Job::Save => saver.save(),
                }
            }
        })?;
        let (release, requests) = sync_channel(STEPS);
        let (take, saves) = (taking(), throttle.clone());
        named("memory-high").spawn(move || {
            for request in requests {
                take(&request);
                // Where there is no place, the jobs that wait write the list as well.
                let _ = saves.try_send(Job::Save);
            }
        })?;
        let (reclaim, requests) = sync_channel(STEPS);
        let take = taking();
        named("reclaim").spawn(move || {
            for request in requests {
                take(&request);
            }
        })?;
        Ok(Self {
            reclaim,
            release,
            throttle,
            throttling,
            commands: Arc::clone(commands),
        })
    }

    /// Has a step taken. A step that finds no place is answered at once, as refused.
    pub fn take(&self, request: MitigationRequest) {
        let (step, signal) = (request.action.step(), request.signal);
        let is_taken = match request.action {
            MitigationAction::Reclaim { .. } => self.reclaim.try_send(request).is_ok(),
            MitigationAction::Throttle(_) => self.throttle.try_send(Job::Throttle(request)).is_ok(),
            MitigationAction::Release(_) | MitigationAction::ReleaseAll => {
                self.release.try_send(request).is_ok()
            }
        };
        if !is_taken {
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

    /// Ends the threads once the list is written, or after so long without it: what it still names is not throttled any more.
    pub fn stop(self, patience: Duration) {
        let _ = self.throttle.try_send(Job::Save);
        drop((self.throttle, self.release, self.reclaim));
        wait_for_end(&self.throttling, patience);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, channel},
        time::Instant,
    };

    use evictd_engine::{Signal, mitigation::Step};
    use evictd_sys::pi_mutex::PiMutex;

    use super::*;

    fn request(action: MitigationAction) -> MitigationRequest {
        MitigationRequest {
            action,
            signal: Signal::MemoryAvailable,
            shadow: false,
        }
    }

    fn reclaim(deficit: u64) -> MitigationRequest {
        request(MitigationAction::Reclaim {
            deficit,
            pods: Vec::new(),
            within: Duration::ZERO,
        })
    }

    /// Everything but a release waits until the sender is gone.
    #[derive(Clone)]
    struct Waiting(Arc<[PiMutex<Receiver<()>>; 2]>);

    impl Waiting {
        fn new() -> (Self, [std::sync::mpsc::Sender<()>; 2]) {
            let (go_on, wait) = channel();
            let (answer, disk) = channel();
            let waiting = [wait, disk].map(PiMutex::new);
            (Self(Arc::new(waiting)), [go_on, answer])
        }
    }

    impl Work for Waiting {
        fn work(&self, request: &MitigationRequest) -> Done {
            let [wait, disk] = &*self.0;
            let _ = match &request.action {
                MitigationAction::Reclaim { .. } => wait.lock().recv(),
                MitigationAction::Throttle(_) => disk.lock().recv(),
                _ => Ok(()),
            };
            Done {
                step: request.action.step(),
                signal: request.signal,
                pods: Vec::new(),
                refusal: None,
                took: Duration::ZERO,
            }
        }

        fn save(&self) {
            let _ = self.0[1].lock().recv();
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
    fn a_release_waits_neither_for_a_reclaim_nor_for_the_disk_and_each_step_is_answered() {
        let commands = CommandQueue::new().unwrap();
        let (waiting, [go_on, disk]) = Waiting::new();
        let threads = StepThreads::start_with(&waiting, &commands).unwrap();
        threads.take(reclaim(1));
        threads.take(request(MitigationAction::Throttle(Vec::new())));
        for _ in 0..3 {
            threads.take(request(MitigationAction::ReleaseAll));
            assert_eq!(answer(&commands).step, Step::Unthrottle);
        }
        drop(disk);
        assert_eq!(answer(&commands).step, Step::Throttle);
        // One is at work or about to be, so many wait, and the rest is too much.
        let more = STEPS + 5;
        for n in 0..more as u64 {
            threads.take(reclaim(n));
        }
        drop(go_on);
        let answers: Vec<Done> = (0..=more).map(|_| answer(&commands)).collect();
        let refused = answers.iter().filter(|done| done.refusal.is_some());
        let refused = refused.count();
        assert!((5..=6).contains(&refused), "{refused}");
        assert!(commands.next().is_none(), "each is answered once");
    }

    #[test]
    fn a_disk_that_hangs_holds_up_no_end() {
        let commands = CommandQueue::new().unwrap();
        let (waiting, [_go_on, disk]) = Waiting::new();
        let start = || StepThreads::start_with(&waiting, &commands).unwrap();
        let begun = Instant::now();
        start().stop(Duration::from_millis(10));
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(disk);
        start().stop(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(50));
    }
}
