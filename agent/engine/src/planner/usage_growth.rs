//! Which pod makes the growth of a signal, by what the pods used at the looks before.

use std::collections::HashMap;

use crate::{Signal, growth::scaled, pace::MONITORING_INTERVAL_NS};

/// What each pod used when a shortage was first looked at, in the signal's unit.
#[derive(Clone, Debug, Default)]
pub struct UsageGrowth {
    begins: HashMap<(Signal, String), Begin>,
}

#[derive(Clone, Copy, Debug)]
struct Begin {
    time: u64,
    usage: u64,
    latest: u64,
}

impl UsageGrowth {
    /// A pod uses so much now (nanoseconds of one clock). Answers with what it grows by per second; 0 where that is not known.
    pub fn note(&mut self, signal: Signal, uid: &str, now: u64, usage: u64) -> u64 {
        let new = Begin {
            time: now,
            usage,
            latest: now,
        };
        let begin = self.begins.entry((signal, uid.to_owned())).or_insert(new);
        // An earlier shortage, or a growth of long ago.
        if now.saturating_sub(begin.latest) > MONITORING_INTERVAL_NS || usage < begin.usage {
            *begin = new;
        }
        begin.latest = now;
        scaled(usage - begin.usage, now.saturating_sub(begin.time))
    }

    /// Forgets what was not asked for in a monitoring interval.
    pub fn forget_old(&mut self, now: u64) {
        self.begins
            .retain(|_, begin| now.saturating_sub(begin.latest) <= MONITORING_INTERVAL_NS);
    }
}
