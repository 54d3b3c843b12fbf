//! Relieves pressure: who goes, and the signal.

use std::sync::Arc;

use super::{
    inflight::{MAX_IN_FLIGHT, Victim},
    report::{Evicted, Report, Stages},
    scope::Look,
    thread::now_ns,
    watch::{Cause, Watch},
};
use crate::{
    engine::{CandidateState, Demand, Resource, Rules, select},
    kernel::ladder::MemoryHook,
    pods::table::PodTable,
};

impl Watch {
    /// Kills as many as it takes until what is available and what is coming covers the threshold.
    pub(super) fn relieve(&mut self, look: &Look) {
        if self.setup.shadow && self.decided {
            // Nobody dies, so that nothing changes: one decision per pressure is all there is to tell.
            return;
        }
        let rules = self.rules();
        let room = self
            .setup
            .victims_at_once
            .saturating_sub(MAX_IN_FLIGHT - self.in_flight.room());
        let mut room = room.min(self.in_flight.room());
        let deficit = self
            .setup
            .scope
            .limits()
            .resolved
            .saturating_sub(look.available);
        let mut coming = self.in_flight.coming();
        self.load_candidates();
        let mut victims = [0; MAX_IN_FLIGHT];
        while let (Some(demand), 1..) = (Demand::after(deficit, coming), room) {
            let PodTable {
                entries,
                candidates,
            } = &mut *self.setup.table;
            let exact = |i: usize| entries.get(i)?.memory.read().map(|r| r.working_set()).ok();
            let chosen = select(candidates, rules, demand, exact, &mut victims[..room]);
            if chosen.count == 0 {
                self.say_nobody_left(look);
                return;
            }
            for &victim in &victims[..chosen.count] {
                let working_set = self
                    .setup
                    .table
                    .candidates
                    .get(victim)
                    .map_or(0, |c| c.usage);
                // A pod that died by itself in between gives nothing; the next turn of the loop asks again.
                if self.kill(victim, working_set, look) {
                    coming = coming.saturating_add(working_set);
                    room -= 1;
                }
            }
        }
    }

    /// Fresh upper bounds for everybody: one number each. Only those that come first are read in full.
    fn load_candidates(&mut self) {
        let PodTable {
            entries,
            candidates,
        } = &mut *self.setup.table;
        for (entry, candidate) in entries.iter().zip(candidates.iter_mut()) {
            candidate.is_exact = false;
            candidate.state = if entry.protected {
                CandidateState::Protected
            } else if self.in_flight.contains(entry) {
                CandidateState::OnItsWay
            } else {
                match entry.memory.usage() {
                    Ok(usage) => {
                        candidate.usage = usage;
                        CandidateState::Eligible
                    }
                    Err(_) => CandidateState::Gone,
                }
            };
        }
    }

    /// Signals one pod; false when that gives nothing: it was empty already, or the kernel refuses.
    fn kill(&mut self, index: usize, working_set: u64, look: &Look) -> bool {
        let Some(entry) = self.setup.table.entries.get(index) else {
            return false;
        };
        let entry = Arc::clone(entry);
        let decided = now_ns();
        let mut errno = 0;
        if !self.setup.shadow {
            match entry.killer.kill() {
                Ok(round) if round.empty => return false,
                Ok(_) => {}
                Err(e) => errno = e.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        let signalled = now_ns();
        self.decided = true;
        self.evictions += 1;
        let limits = self.setup.scope.limits();
        let Cause {
            crossed,
            woken,
            usage,
            hook,
        } = self.cause;
        if !self.setup.shadow {
            self.in_flight.push(Victim {
                pod: Arc::clone(&entry),
                number: self.evictions,
                signalled,
                // What was refused gives nothing; its pod is left alone until the deadline, and the next one goes.
                expected: if errno == 0 { working_set } else { 0 },
                exited: 0,
                peak_usage: look.usage,
            });
        }
        self.setup.outbox.send(Report::Evicted(Evicted {
            pod: entry,
            number: self.evictions,
            stages: Stages {
                crossed,
                woken,
                decided,
                signalled,
            },
            hook: hook.unwrap_or(MemoryHook::Sampler),
            usage_at_crossing: usage,
            usage_at_decision: look.usage,
            available: look.available,
            threshold: limits.threshold,
            working_set,
            shadow: self.setup.shadow,
            errno,
        }));
        errno == 0
    }

    fn say_nobody_left(&mut self, look: &Look) {
        if !self.nobody_left && self.in_flight.is_empty() {
            self.nobody_left = true;
            let threshold = self.setup.scope.limits().threshold;
            self.setup.outbox.send(Report::NobodyLeft {
                available: look.available,
                threshold,
            });
        }
    }

    /// Tells the kernel who goes first, for the case that this thread cannot run when the floor is reached (R41).
    pub(super) fn name_first_victim(&mut self) {
        if self.setup.shadow
            || self.setup.scope.limits().floor.is_none()
            || !self.setup.tripwire.has_program()
        {
            return;
        }
        self.load_candidates();
        let rules = self.rules();
        let PodTable {
            entries,
            candidates,
        } = &mut *self.setup.table;
        let exact = |i: usize| entries.get(i)?.memory.read().map(|r| r.working_set()).ok();
        let mut first = [0];
        let chosen = select(candidates, rules, Demand::First, exact, &mut first);
        let victim = (chosen.count > 0)
            .then(|| entries.get(first[0]).map(|e| e.memory.id()))
            .flatten();
        if victim != self.first_victim && self.setup.tripwire.set_first_victim(victim).is_ok() {
            self.first_victim = victim;
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            strategy: self.setup.strategy,
            resource: Resource::Memory,
            system_over_reserved: false,
        }
    }
}
