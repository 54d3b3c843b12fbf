//! The stages of one eviction, in microseconds.

use std::fmt::Write as _;

use evictd_store::record::{EvictionRecord, OutcomeRecord};

/// A table of the stages: when each was reached after the crossing, and how long it took.
pub fn draw(eviction: &EvictionRecord, finish: &OutcomeRecord) -> String {
    let s = eviction.stages;
    let stages = [
        (
            "crossed",
            s.crossed,
            "the kernel saw the usage reach the threshold",
        ),
        ("woken", s.woken, "the fast path ran"),
        (
            "decided",
            s.decided,
            "the victim was chosen, on values read after that",
        ),
        (
            "signalled",
            s.signalled,
            "SIGKILL was sent to all its processes",
        ),
        ("exited", finish.exited, "its last process was gone"),
        (
            "memory back",
            finish.freed,
            "the threshold was available again",
        ),
    ];
    let zero = stages
        .iter()
        .map(|(_, at, _)| *at)
        .find(|at| *at > 0)
        .unwrap_or(0);
    let mut text = String::new();
    let mut last = zero;
    for (name, at, meaning) in stages {
        // Writing to a String cannot fail.
        let _ = if at == 0 {
            writeln!(text, "  {name:<12} {:>10}    {:>9}   {meaning}", "-", "")
        } else {
            let (since, step) = (micros(zero, at), micros(last, at));
            last = at;
            writeln!(
                text,
                "  {name:<12} {since:>10.1} us {:>9}   {meaning}",
                format!("+{step:.1}")
            )
        };
    }
    text
}

fn micros(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

/// The usage at which the threshold is met, in bytes: what the trigger was set to, from the values of the decision.
pub fn limit(eviction: &EvictionRecord) -> u64 {
    (eviction.usage_at_decision + eviction.available).saturating_sub(eviction.threshold)
}
