//! The threads that take the steps before an eviction: `memory.high` is taken away while a reclaim takes its time, or
//! the disk that a throttle waits for does not answer; and none of them waits for the end of a victim.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use evictd_sys::thread::wait_for_end;

use super::{MitigationAction, MitigationRequest, MitigationWorker, StepEffect};

/// Steps that may wait for each thread. [`CommandQueue`](crate::CommandQueue) has a place for the answer to each of
/// them.
const STEPS: usize = 16;

/// Called with the effect of each step, on the thread that took it.
type Answer = Arc<dyn Fn(StepEffect) + Send + Sync>;

/// The running threads; they end when this is dropped and what they have begun is done.
pub struct MitigationThreads {
    reclaim: SyncSender<MitigationRequest>,
    release: SyncSender<MitigationRequest>,
    throttle: SyncSender<Job>,
    throttling: std::thread::JoinHandle<()>,
    note: Box<dyn Fn(&MitigationAction) + Send + Sync>,
    answer: Answer,
}

/// Job for the thread that may wait for the disk.
enum Job {
    Throttle(MitigationRequest),
    /// Pods were released: the list is an old one.
    Save,
}

impl MitigationThreads {
    /// Starts the threads. `answer` gets the effect of each step; it must not block.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        worker: &Arc<MitigationWorker>,
        answer: impl Fn(StepEffect) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let [noting, working, saving] = std::array::from_fn(|_| Arc::clone(worker));
        Self::start_with(
            move |action| noting.note(action),
            move |request| working.work(request),
            move || saving.save(),
            Arc::new(answer),
        )
    }

    fn start_with(
        note: impl Fn(&MitigationAction) + Send + Sync + 'static,
        work: impl Fn(&MitigationRequest) -> StepEffect + Clone + Send + 'static,
        save: impl Fn() + Send + 'static,
        answer: Answer,
    ) -> io::Result<Self> {
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let taking = || {
            let (work, answer) = (work.clone(), Arc::clone(&answer));
            move |request: &MitigationRequest| answer(work(request))
        };
        let (throttle, jobs) = sync_channel(STEPS);
        let take = taking();
        let throttling = named("throttle").spawn(move || {
            for job in jobs {
                match job {
                    Job::Throttle(request) => take(&request),
                    Job::Save => save(),
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
            note: Box::new(note),
            answer,
        })
    }

    /// Has a step taken. A step that finds no place is answered at once, as refused.
    pub fn take(&self, request: MitigationRequest) {
        (self.note)(&request.action);
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
            (self.answer)(StepEffect {
                step,
                signal,
                pods: Vec::new(),
                refusal: Some("too many steps wait".to_owned()),
                took: Duration::ZERO,
            });
        }
    }

    /// Ends the threads once the list is written, or after so long without it: what it still names is not throttled any
    /// more.
    pub fn stop(self, patience: Duration) {
        let _ = self.throttle.try_send(Job::Save);
        drop((self.throttle, self.release, self.reclaim));
        wait_for_end(&self.throttling, patience);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, RecvTimeoutError, channel},
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

        fn work(&self, request: &MitigationRequest) -> StepEffect {
            let [wait, disk] = &*self.0;
            let _ = match &request.action {
                MitigationAction::Reclaim { .. } => wait.lock().recv(),
                MitigationAction::Throttle(_) => disk.lock().recv(),
                _ => Ok(()),
            };
            StepEffect {
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

    fn start(waiting: &Waiting) -> (MitigationThreads, Receiver<StepEffect>) {
        let (answer, answers) = channel();
        let answer = Arc::new(move |effect| answer.send(effect).unwrap_or_default());
        let [working, saving] = [(); 2].map(|()| waiting.clone());
        let work = move |request: &MitigationRequest| working.work(request);
        let threads = MitigationThreads::start_with(|_| {}, work, move || saving.save(), answer);
        let threads = threads.unwrap();
        (threads, answers)
    }

    #[test]
    fn a_release_waits_neither_for_a_reclaim_nor_for_the_disk_and_each_step_is_answered() {
        let (waiting, [go_on, disk]) = Waiting::new();
        let (threads, answers) = start(&waiting);
        let answer = || answers.recv_timeout(Duration::from_secs(20)).unwrap();
        threads.take(reclaim(1));
        threads.take(request(MitigationAction::Throttle(Vec::new())));
        for _ in 0..3 {
            threads.take(request(MitigationAction::ReleaseAll));
            assert_eq!(answer().step, Step::Unthrottle);
        }
        drop(disk);
        assert_eq!(answer().step, Step::Throttle);
        // One is at work or about to be, so many wait, and the rest is too much.
        let more = STEPS + 5;
        for n in 0..more as u64 {
            threads.take(reclaim(n));
        }
        drop(go_on);
        let refused = (0..=more).filter(|_| answer().refusal.is_some()).count();
        assert!((5..=6).contains(&refused), "{refused}");
        drop(threads);
        let more = answers.recv_timeout(Duration::from_secs(20));
        assert_eq!(
            more.unwrap_err(),
            RecvTimeoutError::Disconnected,
            "each is answered once"
        );
    }

    #[test]
    fn a_disk_that_hangs_holds_up_no_end() {
        let (waiting, [_go_on, disk]) = Waiting::new();
        let begun = Instant::now();
        start(&waiting).0.stop(Duration::from_millis(10));
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(disk);
        start(&waiting).0.stop(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(50));
    }
}
