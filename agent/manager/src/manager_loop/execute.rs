//! Does what a round came to: kills at once, or hands over whom to ask.

use std::sync::Arc;

use evictd_engine::{
    Cause, Eviction, Observations, Signal, Snapshot, Threshold,
    permit::LastResort,
    record::{Numbers, Stages},
};
use evictd_sys::clock::now_ns;

use crate::{
    Decided, Note, SoftChoice, SoftDemand,
    manager_loop::{Loop, Wake, signed},
};

/// Whether a threshold is met, or was and is not resolved yet.
pub(super) fn is_short(threshold: &Threshold, seen: &Observations) -> bool {
    seen.get(threshold.signal).is_some_and(|now| {
        let wanted = threshold.resolved_amount(now.capacity);
        i128::from(now.available) < i128::from(wanted)
    })
}

impl Loop {
    /// Carries evictions out, in their order.
    pub(super) fn act(&mut self, evictions: Vec<Eviction>, seen: &Observations, wake: Wake) {
        let short: Vec<Signal> = self
            .thresholds
            .iter()
            .filter(|t| is_short(t, seen))
            .map(|t| t.signal)
            .collect();
        let told_before = self.shadow_told.len();
        self.shadow_told.retain(|told| {
            // Anything else is a pod above a limit of its own.
            told.parse()
                .map_or(true, |signal: Signal| short.contains(&signal))
        });
        if self.shadow_told.len() != told_before {
            // Whom this pressure would have taken is a pod like any other under the next one.
            self.manager.forget_victims();
        }
        for eviction in evictions {
            let told = match eviction.cause {
                Cause::Pressure(signal) => signal.to_string(),
                Cause::LocalStorage(_) => eviction.uid.clone(),
            };
            // Nobody dies, so that nothing changes: one decision per pressure is all there is to tell.
            if self.shadow && !self.shadow_told.insert(told) {
                continue;
            }
            if eviction.is_soft {
                self.ask(eviction, seen);
            } else {
                self.kill(eviction, seen, wake);
            }
        }
    }

    fn kill(&mut self, eviction: Eviction, seen: &Observations, wake: Wake) {
        let Some(entry) = self.members.entry(&eviction.uid) else {
            return;
        };
        let pod = Arc::clone(entry);
        let decided = now_ns();
        // Several are chosen at once: the one before may have used up what this one's limits had left.
        let resort = LastResort::Nobody;
        if !self.restraint.lets_go(&pod.clearance, decided, resort) {
            self.manager.spare(&eviction.uid);
            return;
        }
        let mut errno = 0;
        if !self.shadow {
            match pod.killer.kill() {
                // It has ended by itself; what it leaves behind is the node's to clean up.
                Ok(round) if round.empty => return,
                Ok(_) => self.restraint.charge(&pod.clearance, decided),
                Err(e) => errno = e.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        let signalled = now_ns();
        self.decided += 1;
        let (signal, numbers) = match eviction.cause {
            Cause::Pressure(signal) => {
                let numbers = self.numbers(signal, &eviction, seen);
                (signal.to_string(), Some(numbers))
            }
            Cause::LocalStorage(limit) => (limit.to_owned(), None),
        };
        let crossed = wake.crossed.filter(|(of, _)| of.as_str() == signal);
        let hook = match (crossed, eviction.cause) {
            (Some((of, _)), _) => self.sensors.hook(of).to_string(),
            (None, Cause::Pressure(_)) => "sampler".to_owned(),
            (None, Cause::LocalStorage(_)) => "walker".to_owned(),
        };
        self.message = eviction.message.text.trim_end().to_owned();
        self.note(Note::Evicted(Box::new(Decided {
            pod,
            number: self.decided,
            signal,
            hook,
            stages: Stages {
                crossed: crossed.map_or(0, |(_, crossed)| crossed.trip.time_ns),
                woken: wake.woken,
                decided,
                signalled,
            },
            available: numbers.map_or(0, |n| n.available),
            threshold: numbers.map_or(0, |n| n.threshold),
            usage: numbers.map_or(0, |n| n.usage),
            shadow: self.shadow,
            errno,
            eviction,
        })));
    }

    fn ask(&mut self, eviction: Eviction, seen: &Observations) {
        let Cause::Pressure(signal) = eviction.cause else {
            return;
        };
        let node = Snapshot {
            observations: seen,
            pods: &self.running,
            usages: self.measured.usages(),
        };
        let choice = |eviction: Eviction| {
            Some(SoftChoice {
                pod: Arc::clone(self.members.entry(&eviction.uid)?),
                numbers: self.numbers(signal, &eviction, seen),
                eviction,
            })
        };
        let alternatives = self.manager.alternatives(node, &eviction);
        let candidates = alternatives.into_iter().filter_map(choice).collect();
        let is_met_and_hard = |t: &Threshold| {
            t.signal == signal
                && t.is_hard()
                && seen
                    .get(signal)
                    .is_some_and(|now| signed(t.amount(now.capacity)) > now.available)
        };
        self.message = eviction.message.text.trim_end().to_owned();
        let demand = SoftDemand {
            signal,
            hard: self.thresholds.iter().any(is_met_and_hard),
            candidates,
            shadow: self.shadow,
        };
        self.manager.hold_soft(!self.shadow);
        if let Some(choice) = demand.candidates.first() {
            self.unbrake(&choice.pod);
        }
        self.note(Note::Soft(Box::new(demand)));
    }

    /// What the records say of a signal; zeros where it was not seen.
    fn numbers(&self, signal: Signal, eviction: &Eviction, seen: &Observations) -> Numbers {
        let Some(now) = seen.get(signal) else {
            return Numbers {
                signal,
                available: 0,
                threshold: 0,
                usage: 0,
            };
        };
        let threshold = self
            .thresholds
            .iter()
            .find(|t| t.signal == signal && t.is_hard() != eviction.is_soft);
        let pod = self.members.pods.iter().find(|pod| pod.uid == eviction.uid);
        let usage = self.measured.usages().get(&eviction.uid);
        let layout = self.sensors.layout();
        Numbers {
            signal,
            available: u64::try_from(now.available).unwrap_or(0),
            threshold: threshold.map_or(0, |t| t.amount(now.capacity)),
            usage: match (pod, usage) {
                (Some(pod), Some(usage)) => layout.usage(signal, pod, usage),
                _ => 0,
            },
        }
    }
}
