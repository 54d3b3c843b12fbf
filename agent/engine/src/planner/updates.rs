//! What the planner takes in between two plans: settings, what an earlier agent has done, kills of the fast path, and
//! what became of pods that were chosen.

use super::{
    Cause, EvictionDecision, Mode, Planner, PlannerSettings, Resource, RestoredState, Signal,
    Snapshot, Threshold, unsigned_ns,
};
use crate::{
    record::{Departure, KillOutcome},
    units::{SECOND, signed},
};

impl Planner {
    /// Replaces the settings; what is known of thresholds that stay, of victims and of recreations is kept.
    pub fn reconfigure(&mut self, settings: PlannerSettings) {
        let thresholds = settings.layout.apply(&settings.eviction.thresholds);
        let transition = settings.eviction.pressure_transition_period;
        for signal in Signal::ALL {
            for is_hard in [false, true] {
                let of_it = |t: &&Threshold| t.signal == signal && t.is_hard() == is_hard;
                let before = self.pressure.thresholds().filter(of_it);
                let now = thresholds.iter().filter(of_it);
                if !before.map(Threshold::bound).eq(now.map(Threshold::bound)) {
                    self.paces.of_mut(signal, is_hard).reset();
                }
            }
        }
        self.pressure.set_thresholds(thresholds, transition);
        self.settings = settings;
    }

    /// Goes on where an earlier agent has ended: before the first step. The kubelet forgets.
    pub fn restore(&mut self, now: i64, restored: &RestoredState) {
        if self.settings.mode == Mode::Kubelet {
            return;
        }
        for victim in &restored.victims {
            self.pending.restore(now, &self.settings, victim);
        }
        let RestoredState {
            evictions,
            recreations,
            last,
            ..
        } = restored;
        for (signal, at) in last {
            self.note_eviction_for(*at, *signal);
        }
        self.recreations.restore(now, evictions, recreations);
    }

    /// Shadow mode begins or ends: no pod that it has chosen was evicted, and no threshold was met before.
    pub fn change_shadow_mode(&mut self) {
        self.reported_in_shadow.clear();
        self.pending.forget_shadow();
        self.paces.reset();
    }

    /// Forgets all victims, because no pod was evicted after all.
    pub fn forget_victims(&mut self) {
        self.pending.clear();
    }

    /// Shadow mode has reported a pod for the hard or the soft threshold of a signal: no other one is chosen for it.
    pub fn note_reported_in_shadow(&mut self, signal: Signal, is_hard: bool) {
        self.reported_in_shadow.insert((signal, is_hard));
    }

    /// Forgets the reports of shadow mode for thresholds that are no longer met, and, where there were any, all pods that it has
    /// chosen: they are pods like any other under the next pressure. Whether there were any.
    pub fn forget_shadow_reports(&mut self) -> bool {
        let before = self.reported_in_shadow.len();
        let pressure = &self.pressure;
        self.reported_in_shadow.retain(|key| {
            let mut of_it = pressure.thresholds().filter(|t| t.key() == *key);
            of_it.any(|threshold| pressure.is_under_pressure(threshold))
        });
        let were_any = self.reported_in_shadow.len() != before;
        if were_any {
            self.pending.forget_shadow();
        }
        were_any
    }

    /// A pod that was chosen lives on, or had ended by itself: it is as if it had not been chosen.
    pub fn cancel_eviction(&mut self, uid: &str) {
        self.forget_choice(uid);
        self.choices.roll_back(uid, false, &mut self.paces);
    }

    fn forget_choice(&mut self, uid: &str) {
        self.pending.forget(uid);
        self.recreations.forget(uid);
    }

    /// Takes note of what became of a pod that the planner or the fast path has chosen; [`Self::cancel_eviction`] is
    /// for one that was not killed after all: its limits no longer allow it, or it had ended.
    pub fn note_outcome(&mut self, uid: &str, outcome: KillOutcome) {
        match outcome {
            KillOutcome::Killed => return self.forget_task_growth(),
            // It counts as a victim until the pressure is over.
            KillOutcome::Shadow => self.pending.mark_shadow(uid),
            KillOutcome::Refused(_) => {
                self.pending.mark_refused(uid);
                self.choices.roll_back(uid, true, &mut self.paces);
            }
        }
        // It lives on: its owner puts no pod here again.
        self.recreations.forget(uid);
    }

    /// While one pod is being asked to end, soft thresholds ask for no other one.
    pub fn set_soft_request_under_way(&mut self, is_under_way: bool) {
        self.is_soft_request_under_way = is_under_way;
    }

    /// Takes the outcome of a soft eviction: `gone` is the pod that goes in the end, if one does, and how.
    pub fn soft_eviction_finished(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        chosen_uid: &str,
        gone: Option<(&EvictionDecision, Departure)>,
    ) {
        self.is_soft_request_under_way = false;
        let has_api_server = self.settings.has_api_server;
        // The pod was chosen before it was asked for: to ask may take a minute, and the pace goes by the answer.
        if has_api_server
            && let Some((gone, _)) = gone
            && let Cause::Pressure(signal) = gone.cause
            && !self.pending.is_of_kill(&gone.uid)
        {
            self.note_eviction_for(now, signal);
        }
        let departure = gone.map(|(_, departure)| departure);
        let gone = gone.map(|(gone, _)| gone);
        if let Some(gone) = gone.filter(|gone| gone.uid == chosen_uid) {
            if departure == Some(Departure::GoneBefore) {
                // Another client has ended it, or it had completed: what its owner puts here comes by itself.
                self.recreations.forget(chosen_uid);
            }
            let pod = node.pods.iter().find(|pod| pod.uid == gone.uid);
            if has_api_server {
                let grace = pod.map_or(0, |pod| gone.grace_to_ask(pod));
                let grace = grace.saturating_mul(signed(SECOND));
                self.pending.begin_grace(chosen_uid, now, grace);
            }
            return;
        }
        // What was killed for a hard threshold meanwhile stays a victim.
        if self.pending.is_of_kill(chosen_uid) {
            self.pending.forget_request(chosen_uid);
        } else {
            match gone {
                // The pace counts the one that goes in its stead.
                Some(_) => self.forget_choice(chosen_uid),
                None => self.cancel_eviction(chosen_uid),
            }
        }
        let Some(gone) = gone.filter(|gone| !self.pending.is_of_kill(&gone.uid)) else {
            return;
        };
        let decisions = std::slice::from_ref(gone);
        self.pending.remember(now, node, &self.settings, decisions);
        self.pending.note_answer(&gone.uid);
        if departure != Some(Departure::GoneBefore)
            && let Cause::Pressure(signal) = gone.cause
        {
            self.recreations
                .remember(now, node, decisions, signal.node_condition());
        }
    }

    /// The fast path has killed a pod, as was seen just now: it is not evicted again, and what its end brings is on its
    /// way, for every signal. [`Planner::note_fastpath_eviction`] follows.
    pub fn note_fastpath_kill(&mut self, now: i64, node: Snapshot<'_>, uid: &str) {
        if self.pending.remember_seen(now, node, &self.settings, uid) {
            self.forget_task_growth();
        }
    }

    /// A pod was killed for whatever resource: the growth of process IDs that was seen may have been its own.
    fn forget_task_growth(&mut self) {
        for (_, pace) in self.paces.of_resource_mut(Resource::Pids) {
            pace.forget_growth();
        }
    }

    /// A pod that is being deleted, for whatever reason, has ended: the kubelet removes its files, and no other pod goes for
    /// them meanwhile. The kubelet itself waits for none but its own victims.
    pub fn note_end_of_deleted(&mut self, now: i64, node: Snapshot<'_>, uid: &str) {
        if self.settings.mode == Mode::Evictd {
            self.pending
                .remember_deleted(now, node, &self.settings, uid);
        }
    }

    /// The kubelet has evicted a pod, for a resource that is short or (`None`) for a limit of the pod's own. It is a
    /// victim like the planner's own, and the next eviction keeps its distance.
    pub fn note_kubelet_eviction(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        uid: &str,
        resource: Option<Resource>,
    ) {
        if self.pending.remember_seen(now, node, &self.settings, uid) {
            self.forget_task_growth();
        }
        if let Some(resource) = resource {
            self.note_eviction_of(now, resource, |_| true);
        }
    }

    /// The fast path has evicted a pod, on what it saw then: the dip is over before the planner looks, and the
    /// condition holds nevertheless; and the pod's owner is known if it comes back. It is a victim like the planner's
    /// own, but for its `outcome` ([`Self::note_outcome`]): where the kernel has refused SIGKILL it was an attempt.
    pub fn note_fastpath_eviction(
        &mut self,
        now: i64,
        dip: Snapshot<'_>,
        uid: &str,
        signal: Signal,
        outcome: KillOutcome,
    ) {
        // The due thresholds are dropped: the fast path acts on them.
        self.update_pressure(now, dip.observations);
        let is_new = self
            .pending
            .remember_reported(now, dip, &self.settings, uid);
        if is_new && outcome == KillOutcome::Killed {
            self.forget_task_growth();
        }
        if matches!(outcome, KillOutcome::Refused(_)) {
            for (_, pace) in self.paces.of_resource_mut(signal.resource()) {
                pace.note_refusal(unsigned_ns(now));
            }
        } else {
            // By the kubelet's count, at the dip: no look of the planner's may have seen it.
            let is_met = self
                .pressure
                .thresholds()
                .any(|t| t.signal == signal && t.is_hard() && t.is_met(dip.observations, false));
            match is_met {
                true => self.note_eviction(now, signal, true),
                false => self.note_eviction_for(now, signal),
            }
            let condition = signal.node_condition();
            // What the pods' cgroup has is not observed where its threshold is cut.
            self.pressure.note_condition(condition, now);
        }
        // Forgotten below where the pod lives on.
        if let Some(pod) = dip.pods.iter().find(|pod| pod.uid == uid) {
            self.recreations
                .remember_pod(now, pod, signal.node_condition());
        }
        // Its growth was forgotten when its kill was seen.
        if outcome != KillOutcome::Killed {
            self.note_outcome(uid, outcome);
        }
    }
}
