//! The flight recorder: what was left of each signal in the last looks.
//!
//! One thread writes and never waits; a reader gets what was not overwritten meanwhile. It has its place from the
//! start and takes no more.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Signal;

/// Samples that are kept, of all signals together: at least 0.25 s at the highest rate (two scopes, 0.5 ms
/// apart), about 15 minutes at one a second.
const SAMPLES: usize = 1024;
/// Least time between two samples of one signal, in nanoseconds: the fast path looks more often shortly before a
/// threshold.
const CLOSEST_NS: u64 = 500_000;

/// Amount that was left of a signal at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalSample {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// The signal.
    pub signal: Signal,
    /// Amount that was available, in the signal's unit.
    pub available: u64,
}

#[derive(Debug, Default)]
struct Slot {
    time: AtomicU64,
    signal: AtomicU64,
    available: AtomicU64,
}

/// The last samples, of all signals together.
#[derive(Debug)]
pub struct Recorder {
    slots: Box<[Slot]>,
    /// Number of samples ever written.
    written: AtomicU64,
    /// Time at which each signal was written last.
    last: [AtomicU64; Signal::ALL.len()],
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            slots: (0..SAMPLES).map(|_| Slot::default()).collect(),
            written: AtomicU64::new(0),
            last: Default::default(),
        }
    }
}

impl Recorder {
    /// Keeps a sample, unless one of this signal was kept a moment ago. For one thread at a time; it does not allocate.
    pub fn record(&self, time: u64, signal: Signal, available: u64) {
        let last = &self.last[signal as usize];
        if time.saturating_sub(last.load(Ordering::Relaxed)) >= CLOSEST_NS {
            self.record_always(time, signal, available);
        }
    }

    /// Keeps a sample whatever was kept before it: a decision depends on it. Otherwise as [`Self::record`].
    pub fn record_always(&self, time: u64, signal: Signal, available: u64) {
        self.last[signal as usize].store(time, Ordering::Relaxed);
        let written = self.written.load(Ordering::Relaxed);
        // All earlier slots are complete. A reader that sees one of the stores below also sees this count, and drops
        // the slot.
        self.written.store(written + 1, Ordering::Release);
        fence(Ordering::Release);
        if let Some(slot) = self.slots.get(written as usize % SAMPLES) {
            slot.time.store(time, Ordering::Relaxed);
            slot.signal.store(signal as u64, Ordering::Relaxed);
            slot.available.store(available, Ordering::Relaxed);
        }
    }

    /// The samples since a moment, oldest first.
    pub fn since(&self, time: u64) -> Vec<SignalSample> {
        let length = SAMPLES as u64;
        // The newest may be half written.
        let end = self.written.load(Ordering::Acquire).saturating_sub(1);
        let begin = (end + 1).saturating_sub(length);
        let read = |number: u64| {
            let slot = self.slots.get(number as usize % SAMPLES)?;
            let available = slot.available.load(Ordering::Relaxed);
            let signal = slot.signal.load(Ordering::Relaxed) as usize;
            let sample = SignalSample {
                time: slot.time.load(Ordering::Relaxed),
                signal: *Signal::ALL.iter().find(|s| **s as usize == signal)?,
                available,
            };
            Some((number, sample))
        };
        let samples: Vec<_> = (begin..end).filter_map(read).collect();
        fence(Ordering::Acquire);
        let overwritten = self.written.load(Ordering::Relaxed).saturating_sub(length);
        let kept = samples
            .into_iter()
            .filter(|(number, sample)| *number >= overwritten && sample.time >= time);
        kept.map(|(_, sample)| sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::units::MS;

    #[test]
    fn the_last_samples_are_kept() {
        let recorder = Recorder::default();
        assert!(recorder.since(0).is_empty());
        for i in 1..=3000 {
            recorder.record(i * MS, Signal::MemoryAvailable, i);
            // Too close to the one before.
            recorder.record(i * MS + 1, Signal::MemoryAvailable, 0);
        }
        // As close as that, and needed.
        recorder.record_always(3000 * MS + 2, Signal::MemoryAvailable, 3001);
        let samples = recorder.since(2990 * MS);
        let seen: Vec<u64> = samples.iter().map(|s| s.available).collect();
        assert_eq!(seen, (2990..=3000).collect::<Vec<_>>());
        assert_eq!(recorder.since(0).len(), SAMPLES - 1);
        // Another signal has its own pace.
        recorder.record(3001 * MS, Signal::PidAvailable, 7);
        recorder.record(3002 * MS, Signal::PidAvailable, 8);
        let pids = recorder
            .since(0)
            .into_iter()
            .rfind(|s| s.signal == Signal::PidAvailable);
        assert_eq!(pids.map(|s| s.available), Some(7));
    }

    /// What is read fits together, however fast it is overwritten.
    #[test]
    fn no_sample_is_a_mixture() {
        let (recorder, over) = (Recorder::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=400_000 {
                    recorder.record(i * MS, Signal::ALL[i as usize % 2], i * MS);
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                for sample in recorder.since(0) {
                    assert_eq!(sample.time, sample.available);
                    assert_eq!(sample.signal, Signal::ALL[(sample.time / MS) as usize % 2]);
                }
            }
        });
    }
}
