//! The live view on a terminal: samples the node every interval, and follows the keys meanwhile.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use evictd_engine::Signal;
use evictd_node::proc::psi::Psi;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    Watch,
    view::{PastEviction, State, View, draw},
};
use crate::cli::{
    CommandError,
    evictions::{self, REQUESTS, Wanted},
    explained::PolicyReporting,
};

/// Time for which a journal that was read is not read again.
const JOURNAL: Duration = Duration::from_secs(10);
/// Evictions that are shown.
const PAST: usize = 3;
const RESOURCES: [&str; 3] = ["memory", "io", "cpu"];

/// Shows the view until the user quits. Then the terminal is as before, also after an error.
///
/// # Errors
/// The terminal cannot be used, or what the agent has written cannot be read.
pub(super) fn run(watch: &mut Watch<'_>, interval: Duration) -> Result<(), CommandError> {
    // A rate takes two samples.
    watch.sample()?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(watch, interval, |view, state| {
        terminal.draw(|frame| draw(frame, view, state)).map(drop)
    });
    let restored = ratatui::try_restore();
    shown?;
    Ok(restored?)
}

fn show(
    watch: &mut Watch<'_>,
    interval: Duration,
    mut draw: impl FnMut(&View, &mut State) -> io::Result<()>,
) -> Result<(), CommandError> {
    let mut state = State::new(interval);
    let mut past = (Instant::now(), past(&watch.config.state_dir));
    loop {
        let sample = watch.sample()?;
        let end = Instant::now() + interval;
        if past.0.elapsed() > JOURNAL {
            past = (Instant::now(), self::past(&watch.config.state_dir));
        }
        loop {
            let mut signals = watch.signals(&sample);
            // Signals that cannot be read here come last, and memory first.
            signals.sort_by_key(|s| (s.available.is_none(), s.signal != Signal::MemoryAvailable));
            let signal = state.signal(&signals).unwrap_or(Signal::MemoryAvailable);
            let view = View {
                pods: watch.pods(&sample, signal),
                signals,
                signal,
                pressure: pressure(),
                past: past.1.clone(),
                unknown: sample.node.unknown,
                are_policies_unknown: watch.policies == PolicyReporting::Unknown,
            };
            draw(&view, &mut state)?;
            // Rates of change are those of the samples: between two of them only the keys change anything.
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if is_end(key) => return Ok(()),
                Event::Key(key) if key.kind == KeyEventKind::Press => state.press(key.code, &view),
                _ => {}
            }
        }
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// The last evictions, the newest first; none where nothing was written yet.
fn past(state_dir: &Path) -> Vec<PastEviction> {
    // `evictd report` says what cannot be read.
    let Ok((found, _)) = evictions::evictions(state_dir, Wanted::Newest(REQUESTS)) else {
        return Vec::new();
    };
    // A budget may have refused the others.
    let gone = found.known.iter().rev().filter(|known| known.is_agreed);
    gone.take(PAST).map(PastEviction::new).collect()
}

/// Reads the pressure of the node, as far as this kernel has it.
fn pressure() -> Vec<(&'static str, Psi)> {
    let read = |name: &'static str| {
        let path = Path::new("/proc/pressure").join(name);
        Some((name, Psi::read(&path).ok()?))
    };
    RESOURCES.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Its budget protects it, at each look of the agent.
    #[test]
    fn a_pod_that_was_asked_in_vain_is_no_eviction() {
        let dir = tempfile::tempdir().unwrap();
        let record = |id: &str, event: &str, may_be_refused: bool| {
            let record = json!({
                "event": event, "id": id, "time": "2026-11-22T03:00:00Z", "namespace": "shop", "name": id, "uid": id,
                "reason": "Evicted", "message": "low", "signal": "memory.available", "shadow": false, "hook": "sampler",
                "stages": {"crossed": 0, "woken": 0, "decided": 0, "signalled": 0}, "available": 1, "threshold": 2,
                "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0, "gracePeriodSeconds": 30,
                "decided": 0, "mayBeRefused": may_be_refused,
            });
            record.to_string() + "\n"
        };
        let protected = (0..PAST).map(|n| record(&format!("protected-{n}"), "asked", true));
        let gone = [
            record("web", "evicted", false),
            record("db", "asked", false),
        ];
        let lines: String = gone.into_iter().chain(protected).collect();
        std::fs::write(dir.path().join("journal.jsonl"), lines).unwrap();
        let shown = past(dir.path()).into_iter();
        let shown: Vec<_> = shown.map(|past| (past.pod, past.note)).collect();
        let expected = [("shop/db", "asked, 30 s"), ("shop/web", "")];
        assert_eq!(
            shown,
            expected.map(|(pod, note)| (pod.to_owned(), note.to_owned()))
        );
    }
}
