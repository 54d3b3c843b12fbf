//! Victims on their way out: what they still hold counts as coming (R43), so that nobody else dies for it.

use std::sync::Arc;

use super::{
    report::Finished,
    scope::{Look, Scope},
};
use crate::pods::table::Entry;

/// Victims that may be on their way at once; more deaths at a time than this wait for the next look.
pub const MAX_IN_FLIGHT: usize = 64;
/// A victim that is not gone by then no longer blocks the next one (kubernetes/kubernetes#124081).
const DEADLINE_NS: u64 = 2_000_000_000;

/// One victim between SIGKILL and the return of its memory.
#[derive(Debug)]
pub struct Victim {
    pub pod: Arc<Entry>,
    pub number: u64,
    /// Index of the scope that it was chosen for.
    pub scope: usize,
    /// Chosen only (R47): what it uses counts as coming for as long as the pressure lasts.
    pub shadow: bool,
    pub signalled: u64,
    /// Bytes that its death was expected to give.
    pub expected: u64,
    pub exited: u64,
    pub peak_usage: u64,
}

impl Victim {
    /// Bytes that are still to come. Does not allocate.
    fn coming(&self) -> u64 {
        if self.shadow {
            return self.pod.memory.usage().unwrap_or(0);
        }
        // Once the last process is gone, what is still charged is page cache and tmpfs: it stays.
        if self.exited != 0 {
            return 0;
        }
        // Unreadable means removed: everything has come.
        self.pod.memory.usage().unwrap_or(0).min(self.expected)
    }
}

/// The victims, in a place that never grows.
#[derive(Debug, Default)]
pub struct InFlight {
    victims: Vec<Victim>,
}

impl InFlight {
    pub fn new() -> Self {
        Self {
            victims: Vec::with_capacity(MAX_IN_FLIGHT),
        }
    }

    /// Whether nobody is on the way out in earnest.
    pub fn is_empty(&self) -> bool {
        self.victims.iter().all(|v| v.shadow)
    }

    /// How many more victims there is room for.
    pub fn room(&self) -> usize {
        MAX_IN_FLIGHT.saturating_sub(self.victims.len())
    }

    /// Takes a victim; the caller has asked for room.
    pub fn push(&mut self, victim: Victim) {
        if self.room() > 0 {
            self.victims.push(victim);
        }
    }

    pub fn contains(&self, entry: &Entry) -> bool {
        self.victims
            .iter()
            .any(|v| v.pod.memory.id() == entry.memory.id())
    }

    /// Bytes that the victims which `scope` counts still hold and are about to give back.
    pub fn coming(&self, scope: &Scope) -> u64 {
        self.victims
            .iter()
            .filter(|v| scope.holds(&v.pod))
            .map(Victim::coming)
            .fold(0, u64::saturating_add)
    }

    /// The pressure is over: whom shadow mode has chosen is a pod like any other again.
    pub fn forget_shadows(&mut self) {
        self.victims.retain(|v| !v.shadow);
    }

    /// Notes who has exited, signals again those that have not, and hands out who is done: gone and the scope's
    /// threshold available again, or gone for as long as it takes to see that it never will be, or past the deadline.
    ///
    /// `at` answers with the last look at a scope, and its threshold in bytes.
    pub fn step(
        &mut self,
        now: u64,
        at: impl Fn(usize) -> (Look, u64),
        mut done: impl FnMut(Finished),
    ) {
        for victim in self.victims.iter_mut().filter(|v| !v.shadow) {
            let (look, _) = at(victim.scope);
            victim.peak_usage = victim.peak_usage.max(look.usage);
            if victim.exited == 0 {
                if victim.pod.killer.is_empty() {
                    victim.exited = now;
                } else {
                    // A fork that was under way when its parent was signalled; refusals were reported already.
                    let _ = victim.pod.killer.kill();
                }
            }
        }
        let mut next = 0;
        while let Some(victim) = self.victims.get(next) {
            let (look, threshold) = at(victim.scope);
            let freed = victim.exited != 0 && look.available >= threshold;
            let expired = now.saturating_sub(victim.signalled) > DEADLINE_NS;
            if victim.shadow || (!freed && !expired) {
                next += 1;
                continue;
            }
            let victim = self.victims.swap_remove(next);
            done(Finished {
                pod: victim.pod,
                number: victim.number,
                exited: victim.exited,
                freed: if freed { now } else { 0 },
                peak_usage: victim.peak_usage,
                available: look.available,
            });
        }
    }
}
