//! Says what the scan of the pods' disk use cannot do: the thread itself has no time for the log.

use evictd_manager::DiskScanner;

/// What was said, each once.
#[derive(Debug, Default)]
pub(super) struct ScanWatch {
    is_stuck: bool,
}

impl ScanWatch {
    /// To be called at each tick.
    pub fn tick(&mut self, scanner: &DiskScanner) {
        let is_stuck = scanner.is_stuck();
        match (std::mem::replace(&mut self.is_stuck, is_stuck), is_stuck) {
            (false, true) => tracing::warn!(
                "the scan of the pods' disk use waits for a filesystem that does not answer: their numbers grow old"
            ),
            (true, false) => tracing::info!("the scan of the pods' disk use goes on"),
            _ => {}
        }
    }
}
