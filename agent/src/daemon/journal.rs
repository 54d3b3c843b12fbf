//! What the agent writes to its state directory: records of the journal, and files. The thread `journal` waits for the
//! disk; a record is reported to the API server when it is written.

use std::{collections::VecDeque, io, time::Duration};

use evictd_store::{
    disk_queue::{DiskQueue, DiskThread, RECORDS},
    journal::Journal,
    record::{Record, oom_kill::OomCause},
    restore::Restored,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::Agent;

/// A disk that works on one job for so long is logged as hanging.
const HANGS: Duration = Duration::from_secs(2);

/// Reads the past from the journal and hands the journal over to the thread that writes it from now on.
pub(super) fn start(mut journal: Journal) -> io::Result<(DiskThread, Restored)> {
    let restored = restore(&mut journal);
    Ok((DiskThread::start(journal)?, restored))
}

/// Reads what limits and recreations have counted before. A journal that cannot be read is logged and does not stop the
/// agent.
fn restore(journal: &mut Journal) -> Restored {
    match journal.restore() {
        Ok(restored) => {
            if !restored.is_empty() {
                tracing::info!(
                    evictions = restored.len(),
                    "limits go on counting where an earlier agent has ended"
                );
            }
            restored
        }
        Err(error) => {
            tracing::error!(%error, "what limits have counted before cannot be read: they begin anew");
            Restored::default()
        }
    }
}

/// The thread, and what comes back from it.
pub(super) struct JournalWriter {
    thread: DiskThread,
    /// Records for the API server that were handed over and are not acknowledged, the oldest first: as many as find a
    /// place in the queue at most.
    waiting: VecDeque<Record>,
    /// One message for each record that is on disk, or never will be, in the same order.
    acknowledged: mpsc::Receiver<()>,
    acknowledge: mpsc::Sender<()>,
    is_hanging: bool,
}

impl JournalWriter {
    pub fn new(thread: DiskThread) -> Self {
        let (acknowledge, acknowledged) = mpsc::channel(RECORDS);
        Self {
            thread,
            waiting: VecDeque::new(),
            acknowledged,
            acknowledge,
            is_hanging: false,
        }
    }

    /// The next record that may be reported to the API server now. Can be dropped at any time without losing one.
    pub async fn acknowledged(&mut self) -> Option<Record> {
        self.acknowledged.recv().await?;
        self.waiting.pop_front()
    }

    /// Hands over a record. What has to be reported to the API server comes back by [`Self::acknowledged`]; at once, as
    /// the error, what finds no place.
    fn append(&mut self, record: Record) -> Result<(), Box<Record>> {
        if !is_for_cluster(&record) {
            // It was logged and counted.
            let _ = self.thread.queue().append(record);
            return Ok(());
        }
        let acknowledge = self.acknowledge.clone();
        let queue = self.thread.queue();
        queue.append_then(record.clone(), move || {
            // The agent has ended otherwise.
            let _ = acknowledge.blocking_send(());
        })?;
        self.waiting.push_back(record);
        Ok(())
    }

    pub fn queue(&self) -> &DiskQueue {
        self.thread.queue()
    }

    /// Logs a disk that does not answer, and that it does again.
    pub fn watch(&mut self) {
        let (busy, queue) = (self.thread.queue().busy(), self.thread.queue());
        let is_hanging = busy > HANGS;
        if is_hanging == std::mem::replace(&mut self.is_hanging, is_hanging) {
            return;
        }
        if is_hanging {
            tracing::error!(
                dir = %queue.dir().display(),
                records = queue.records(),
                "the disk does not answer: evictions go on, their records and reports wait"
            );
        } else {
            tracing::warn!(records = queue.records(), "the disk answers again");
        }
    }

    /// Whether all that was handed over is on disk, or never will be, and its reports were taken from here.
    pub fn is_written(&self) -> bool {
        let queue = self.thread.queue();
        queue.records() == 0 && self.waiting.is_empty()
    }

    /// Waits until what was handed over is on disk, but not beyond a moment. Answers with all records that were not
    /// taken from here: what a disk that does not answer will not have is reported all the same.
    async fn flush(&mut self, by: Instant) -> VecDeque<Record> {
        let (done, flushed) = tokio::sync::oneshot::channel();
        let asked = self.thread.queue().flush(move || {
            let _ = done.send(());
        });
        if asked.is_ok() {
            let wait = async {
                let mut flushed = flushed;
                loop {
                    tokio::select! {
                        // The thread waits for none of its messages to be taken.
                        Some(()) = self.acknowledged.recv() => {}
                        _ = &mut flushed => return,
                    }
                }
            };
            // `close` says what is lost.
            let _ = timeout_at(by, wait).await;
        }
        std::mem::take(&mut self.waiting)
    }

    /// Ends the thread; a disk that does not answer is given up at a moment.
    pub fn close(self, by: Instant) {
        drop(self.acknowledged);
        let patience = by.saturating_duration_since(Instant::now());
        if let Err(records) = self.thread.close(patience) {
            tracing::error!(
                records,
                "the agent ends without these records: the disk does not answer"
            );
        }
    }
}

impl Agent {
    /// Has a record written to the journal. It is reported to the API server when it is on disk, or when it is certain
    /// that it will not be: killing in time matters more than reports, and reports more than the journal. A killed pod
    /// alone says at once what has ended it.
    pub(super) fn append_to_journal(&mut self, record: Record) {
        if let Record::Evicted(eviction) = &record
            && let Some(cluster) = self.pod_source.cluster_mut()
        {
            cluster.announce(eviction);
        }
        if let Err(record) = self.journal.append(record) {
            self.pod_source.report(*record);
        }
    }

    /// Has a file of the state directory written. Says whether it will be.
    pub(super) fn write_file(&self, write: impl FnOnce() + Send + 'static) -> bool {
        self.journal.thread.queue().write_file(write).is_ok()
    }

    /// Reports what has waited for the disk, once it is there or the disk is given up.
    pub(super) async fn flush_journal(&mut self, by: Instant) {
        for record in self.journal.flush(by).await {
            self.pod_source.report(record);
        }
    }
}

/// Whether it is reported to the API server.
fn is_for_cluster(record: &Record) -> bool {
    match record {
        Record::Evicted(_) | Record::Stuck(_) | Record::MetInForce(_) | Record::ShadowNode(_) => {
            true
        }
        Record::Requested(request) => request.shadow,
        Record::OomKill(kill) => kill.cause == OomCause::PodLimit,
        _ => false,
    }
}
