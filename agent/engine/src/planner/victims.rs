//! Victims that are on their way out: what they use counts as coming back, so that no other pod dies for it.

use std::collections::BTreeMap;

use crate::{
    EvictionDecision, Observation, Observations, PlannerSettings, Resource, RestoredPending,
    Signal, Snapshot, Threshold,
    eviction_state::REFUSED_NS,
    kubelet_times::POD_CLEANUP_NS,
    pending::Pending,
    record::SignalUse,
    terminating::STUCK_NS,
    units::{shift_by_gap_signed, signed},
};

const SECOND: i64 = 1_000_000_000;
/// How long a victim may take beyond its grace period until it no longer counts as on its way: it does not block the
/// next one (kubernetes/kubernetes#124081).
const DEADLINE_NANOS: i64 = STUCK_NS.cast_signed();
/// The same for the files of one that has died: they are removed when the pod's object is.
const FILES_DEADLINE_NANOS: i64 = POD_CLEANUP_NS.cast_signed();
/// Files that are seen to come are waited for beyond that, for so long in all: the kubelet may have millions to remove.
const LONGEST_REMOVAL_NANOS: i64 = 600 * SECOND;

/// A DELETE is awaited this soon after the pod's end: its record has to be written before. One that is awaited later is of
/// another pod.
const UNTIL_AWAITED_NANOS: i64 = 10 * SECOND;
/// So long pods go for files only where that is urgent, once those of [`STAYED`] victims in a row have stayed: as long as a
/// pod tolerates a node whose kubelet is silent.
const FILES_STAY_NANOS: i64 = 300 * SECOND;
/// What one pod was thought to use may have been wrong.
const STAYED: u32 = 2;
/// Less shared memory than this, in bytes, is not waited for.
const SHARED_LEAST: u64 = 1 << 20;
/// So much of a victim's files has to come within [`DEADLINE_NANOS`] to be waited for.
const PROGRESS_PART: u64 = 256;
/// Files of a victim have stayed where no more than this part of them has come at any look; the rest others may have
/// written meanwhile.
const RETURNED_PART: u64 = 8;

/// Of a large disk this part of it is as little: where fewer come, others may have removed them.
const SIGNIFICANT_PART: i64 = 1000;

/// Victims by UID.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingVictims {
    victims: BTreeMap<String, PendingVictim>,
    /// Time of the last look, in nanoseconds: what is found dead at the next one has died since.
    looked: Option<i64>,
    /// Number of victims in a row whose files have stayed, and when the last of them was given up, in nanoseconds.
    stayed: u32,
    stayed_at: i64,
    /// It was told that they stay.
    is_reported: bool,
}

#[derive(Clone, Debug)]
struct PendingVictim {
    /// End of the victim's grace period, in nanoseconds.
    end: i64,
    /// Time since which the kubelet can remove the victim's files, in nanoseconds; that end, where it is later.
    files_since: i64,
    /// Time at which some of its files were last seen to come, in nanoseconds.
    files_returned_at: i64,
    /// Time at which this agent took it over from an earlier one, in nanoseconds.
    restored_at: i64,
    /// Whether the pod was asked to end (soft), and has its grace period. A hard threshold does not wait for it.
    is_requested: bool,
    /// Whether the answer of the API server to that is still awaited.
    awaits_answer: bool,
    /// Whether it was reported that the pod is stuck, or is not for the manager to report.
    is_stuck_reported: bool,
    /// Whether the victim is no longer among the pods. Should one of its UID be there again, it is another one.
    is_dead: bool,
    /// Whether the kill was seen, and the report of the fast path has not come yet.
    is_unreported: bool,
    /// The kernel has refused SIGKILL.
    is_refused: bool,
    /// Shadow mode has chosen the pod, which was not evicted.
    is_shadow: bool,
    /// Entry from before a hard choice of a pod that was asked to end.
    requested_before: Option<Box<Self>>,
    /// Amounts expected back, for each signal that was seen: what a pod is evicted for is not all that its end brings.
    expected: Vec<Expected>,
}

/// Amount that a victim's end is expected to bring of what one signal watches.
#[derive(Clone, Copy, Debug)]
struct Expected {
    signal: Signal,
    /// Amount that the victim used when it was chosen, in the signal's unit; 0 once nothing more is expected.
    usage: u64,
    /// Memory of it that outlives the processes, until the kubelet removes the pod's volumes; 0 of everything else.
    shared: u64,
    /// Amount that was available when the victim was chosen, with what others have given since, in the signal's unit.
    available: i64,
    /// Part of `usage` that has returned, as of the last look, and the part at the last progress.
    returned: u64,
    progress: u64,
    /// The least that was available since the victim was chosen, and the most by which more was available after it.
    lowest: i64,
    max_rise: u64,
    /// What was available at the last look, and the most that others have used up between two looks.
    last: i64,
    max_drop: u64,
}

/// What has become of a victim's files, as far as what is available tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Files {
    Unknown,
    Stayed,
    Returned,
}

impl PendingVictims {
    /// Takes note of evictions.
    pub(super) fn remember(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        settings: &PlannerSettings,
        evictions: &[EvictionDecision],
    ) {
        for eviction in evictions {
            let pod = node.pods.iter().find(|pod| pod.uid == eviction.uid);
            let grace = pod.map_or(0, |pod| eviction.grace_to_ask(pod));
            let grace = grace.saturating_mul(SECOND);
            let requested_before = self.take_request(&eviction.uid);
            let victim = PendingVictim {
                is_requested: eviction.is_soft,
                awaits_answer: eviction.is_soft && settings.has_api_server,
                expected: self.expected(node, settings, &eviction.uid),
                requested_before,
                ..PendingVictim::new(now.saturating_add(grace))
            };
            self.victims.insert(eviction.uid.clone(), victim);
        }
    }

    /// Takes note of a pod that the fast path or the kubelet has killed, as soon as that is seen; the fast path reports
    /// it later. Whether it was none of the victims.
    pub(super) fn remember_seen(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        settings: &PlannerSettings,
        uid: &str,
    ) -> bool {
        if self.was_killed(uid) && !self.is_of_shadow(uid) {
            return false;
        }
        let requested_before = self.take_request(uid);
        let victim = PendingVictim {
            requested_before,
            is_unreported: true,
            // The fast path follows it by what it gives back: slow is not stuck.
            is_stuck_reported: true,
            expected: self.expected(node, settings, uid),
            ..PendingVictim::new(now)
        };
        self.victims.insert(uid.to_owned(), victim);
        true
    }

    /// Takes the entry of a pod that was asked to end, for one that replaces it.
    fn take_request(&mut self, uid: &str) -> Option<Box<PendingVictim>> {
        let known = self.victims.remove(uid)?;
        match known.is_requested && !known.is_shadow {
            true => Some(Box::new(known)),
            false => known.requested_before,
        }
    }

    /// The API server has refused that a pod ends, which was to be killed meanwhile.
    pub(super) fn forget_request(&mut self, uid: &str) {
        if let Some(victim) = self.victims.get_mut(uid) {
            victim.requested_before = None;
        }
    }

    /// Takes note of a pod that has ended because another client deletes it: its files are to come. One that was a victim
    /// before is none for the second time.
    pub(super) fn remember_deleted(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        settings: &PlannerSettings,
        uid: &str,
    ) {
        if self.victims.contains_key(uid) && !self.is_of_shadow(uid) {
            return;
        }
        self.remember_seen(now, node, settings, uid);
        if let Some(victim) = self.victims.get_mut(uid) {
            let expected = &mut victim.expected;
            expected.retain(|e| e.signal.resource().is_of_files() || e.shared > 0);
        }
    }

    /// Takes note of a pod that the fast path has killed, once it reports that. What was noted before stays: meanwhile
    /// some has come. Whether it was none of the victims.
    pub(super) fn remember_reported(
        &mut self,
        now: i64,
        node: Snapshot<'_>,
        settings: &PlannerSettings,
        uid: &str,
    ) -> bool {
        let known = self.victims.get_mut(uid);
        if known.is_some_and(|victim| std::mem::take(&mut victim.is_unreported)) {
            return false;
        }
        let is_new = self.remember_seen(now, node, settings, uid);
        if let Some(victim) = self.victims.get_mut(uid) {
            victim.is_unreported = false;
        }
        is_new
    }

    /// Takes over a pod that an earlier agent has chosen.
    pub(super) fn restore(
        &mut self,
        now: i64,
        settings: &PlannerSettings,
        restored: &RestoredPending,
    ) {
        self.looked = Some(now);
        let RestoredPending {
            usage, available, ..
        } = *restored;
        let chosen_for = |signal: &Signal| {
            let one = restored.signal;
            one.is_some_and(|one| settings.layout.watch_the_same(one, *signal))
        };
        let signals = Signal::ALL.into_iter().filter(chosen_for);
        let mut freed: Vec<_> = signals
            .map(|signal| (signal, SignalUse { usage, available }))
            .collect();
        // The layout of the disks may be another one by now.
        let others = restored.other_signals.iter();
        freed.extend(others.filter(|(signal, _)| !chosen_for(signal)));
        for (signal, freed) in &freed {
            self.note_returned(restored.at.min(now), *signal, freed.available);
        }
        let expected = freed.into_iter().map(|(signal, freed)| Expected {
            // What came before the start is not known.
            max_rise: u64::MAX,
            ..self.expected_of(&restored.uid, signal, freed, 0)
        });
        let is_fastpath_signal = |signal| settings.fastpath_signals.contains(&signal);
        let victim = PendingVictim {
            is_requested: restored.is_requested,
            is_stuck_reported: !restored.is_requested
                && restored.signal.is_some_and(is_fastpath_signal),
            is_dead: restored.is_dead,
            // It has ten seconds to show that its files are being removed.
            files_returned_at: now,
            restored_at: now,
            expected: expected.collect(),
            ..PendingVictim::new(match restored.is_dead {
                true => restored.at.min(now),
                false => restored.at,
            })
        };
        self.victims.insert(restored.uid.clone(), victim);
    }

    /// Leaves out so many nanoseconds until `now` in which no look was taken.
    pub(super) fn exclude_gap(&mut self, late: i64, now: i64) {
        if let Some(looked) = &mut self.looked {
            shift_by_gap_signed(looked, late, now);
        }
        for victim in self.victims.values_mut() {
            for since in [
                &mut victim.end,
                &mut victim.files_since,
                &mut victim.files_returned_at,
                &mut victim.restored_at,
            ] {
                shift_by_gap_signed(since, late, now);
            }
        }
    }

    /// Takes note of what has come, and of victims that are no longer among the pods: files may still have to be removed,
    /// and tasks to be reaped.
    pub(super) fn take_look(&mut self, now: i64, node: Snapshot<'_>) {
        let before = self.looked.replace(now).unwrap_or(i64::MIN);
        for (uid, victim) in &mut self.victims {
            if !victim.is_dead && !node.pods.iter().any(|pod| pod.uid == *uid) {
                victim.is_dead = true;
                // One that was asked did not need all of its time: what is left of it is due sooner.
                victim.end = victim.end.min(now);
                victim.files_since = victim.end.max(before);
            }
        }
        let is_over = |victim: &PendingVictim| now >= victim.deadline(Resource::EphemeralStorage);
        for victim in self.victims.values_mut() {
            // As long as a pod is not deleted, no kubelet is told to remove its files: it has all of its time after that.
            let known_since = victim.files_since.max(victim.restored_at);
            let is_deleted = now.saturating_sub(known_since) > UNTIL_AWAITED_NANOS;
            let is_awaited = node.bounds.awaits_removals && victim.awaits_files();
            if victim.is_dead && is_awaited && !is_deleted {
                victim.files_since = now;
            }
            let expected = victim.expected.iter_mut();
            match expected.map(|e| e.observe_files(node.observations)).max() {
                Some(Files::Returned) => self.stayed = 0,
                Some(Files::Stayed) if victim.is_dead && is_over(victim) => {
                    self.stayed += 1;
                    self.stayed_at = now;
                }
                _ => {}
            }
        }
        for signal in Signal::ALL {
            if let Some(seen) = node.observations.get(signal) {
                self.note_returned(now, signal, seen.available);
            }
        }
        self.victims
            .retain(|_, victim| !victim.is_dead || !is_over(victim));
        let may_be_asked = |victim: &PendingVictim| {
            victim.is_refused && now >= victim.end.saturating_add(signed(REFUSED_NS))
        };
        let again = self
            .victims
            .iter()
            .filter(|(_, victim)| may_be_asked(victim));
        let again: Vec<String> = again.map(|(uid, _)| uid.clone()).collect();
        again.iter().for_each(|uid| self.forget(uid));
    }

    /// Computes what each victim has given back of what a signal watches, of which so much is available. A rise is of one
    /// victim alone: first of those that are dead, then of those that were killed, the oldest first. Others may use up what
    /// came, and then it counts as not come; but not where all of a victim's had come, or it was late.
    fn note_returned(&mut self, now: i64, signal: Signal, available: i64) {
        let mut victims: Vec<&mut PendingVictim> = self.victims.values_mut().collect();
        victims.sort_by_key(|v| (!v.is_dead, v.is_refused || v.is_requested, v.end));
        let (mut of_others, mut for_good, mut has_progressed) = (0, 0, false);
        for victim in &mut victims {
            let is_late = victim.is_late(now, signal.resource());
            let mut expected = victim.expected.iter_mut();
            let Some(expected) = expected.find(|e| e.signal == signal) else {
                continue;
            };
            expected.available = expected.available.saturating_add(for_good);
            let rise = available.saturating_sub(expected.available.saturating_add(of_others));
            if !is_late {
                expected.returned = u64::try_from(rise).unwrap_or(0).min(expected.usage);
            }
            has_progressed |= victim.is_dead && expected.has_progressed();
            let returned = signed(expected.returned);
            if is_late || expected.returned == expected.usage {
                for_good = returned.saturating_add(for_good);
                (expected.usage, expected.returned) = (0, 0);
            } else {
                of_others = returned.saturating_add(of_others);
            }
        }
        // The kubelet removes the files of several at once: which of them have come is not known.
        let is_awaited = |e: &Expected| e.signal == signal && e.usage > 0;
        for victim in victims.into_iter().filter(|v| has_progressed && v.is_dead) {
            if victim.expected.iter().any(is_awaited) {
                victim.files_returned_at = now;
            }
        }
    }

    /// Computes what the end of a pod will bring, as far as it is known. What is available without what others have given
    /// back so far: [`Self::note_returned`] counts that for them.
    fn expected(&self, node: Snapshot<'_>, settings: &PlannerSettings, uid: &str) -> Vec<Expected> {
        let freed = settings.freed_of_all_signals(node, uid);
        let shared = node.usages.get(uid).map_or(0, |usage| usage.memory_shared);
        freed
            .map(|(signal, freed)| self.expected_of(uid, signal, freed, shared))
            .collect()
    }

    /// The same of one signal.
    fn expected_of(&self, uid: &str, signal: Signal, freed: SignalUse, shared: u64) -> Expected {
        let given_by_others = self.given_by_others(uid, signal);
        let lasts = signal.resource() == Resource::Memory && shared >= SHARED_LEAST;
        Expected {
            signal,
            usage: freed.usage,
            shared: if lasts { shared.min(freed.usage) } else { 0 },
            available: freed.available.saturating_sub(given_by_others),
            returned: 0,
            progress: 0,
            lowest: freed.available,
            max_rise: 0,
            last: freed.available,
            max_drop: 0,
        }
    }

    /// What the victims but one have given back so far of what a signal watches, as [`Self::note_returned`] counts it.
    fn given_by_others(&self, uid: &str, signal: Signal) -> i64 {
        let others = self.victims.iter().filter(|(other, _)| *other != uid);
        let expected = others.flat_map(|(_, victim)| &victim.expected);
        let returned = expected.filter(|e| e.signal == signal).map(|e| e.returned);
        signed(returned.fold(0, u64::saturating_add))
    }

    /// A pod that was chosen for a soft threshold is deleted only now: its time begins, unless it has ended by itself. One that is
    /// to be killed meanwhile has it should the kernel refuse that.
    pub(super) fn begin_grace(&mut self, uid: &str, now: i64, grace: i64) {
        if let Some(victim) = self.request_mut(uid) {
            let grace = if victim.is_dead { 0 } else { grace };
            victim.end = now.saturating_add(grace);
            victim.files_since = victim.end;
        }
        self.note_answer(uid);
    }

    /// The API server has agreed that a pod ends.
    pub(super) fn note_answer(&mut self, uid: &str) {
        if let Some(victim) = self.request_mut(uid) {
            victim.awaits_answer = false;
        }
    }

    fn request_mut(&mut self, uid: &str) -> Option<&mut PendingVictim> {
        let victim = self.victims.get_mut(uid)?;
        match victim.is_requested {
            true => Some(victim),
            false => victim.requested_before.as_deref_mut(),
        }
    }

    /// Whether the rates count a pod that was asked to end: they do from the API server's answer on.
    pub(super) fn is_charged(&self, uid: &str) -> bool {
        let victim = self.victims.get(uid);
        victim.is_some_and(|victim| !victim.awaits_answer)
    }

    /// Whether a pod was killed, and perhaps has ended since.
    pub(super) fn is_of_kill(&self, uid: &str) -> bool {
        let victim = self.victims.get(uid);
        victim.is_some_and(|victim| !victim.is_requested)
    }

    /// The UIDs of those that have processes although their time is over; each once. That of a pod begins with the API server's
    /// answer.
    pub(super) fn take_stuck(&mut self, now: i64) -> Vec<String> {
        let stuck = |(uid, victim): (&String, &mut PendingVictim)| {
            let is_left_out = victim.is_dead
                || victim.is_stuck_reported
                || victim.is_refused
                || victim.awaits_answer;
            let is_new = !is_left_out && now >= victim.stuck_at();
            victim.is_stuck_reported |= is_new;
            is_new.then(|| uid.clone())
        };
        self.victims.iter_mut().filter_map(stuck).collect()
    }

    /// Whether the files of a further victim would stay as those of an earlier one have.
    pub(super) fn files_stay(&self, now: i64) -> bool {
        self.stayed >= STAYED && now.saturating_sub(self.stayed_at) < FILES_STAY_NANOS
    }

    /// Whether files stay, and that was not told yet.
    pub(super) fn take_files_stay(&mut self, now: i64) -> bool {
        let stay = self.files_stay(now);
        stay && !std::mem::replace(&mut self.is_reported, stay)
    }

    /// Nothing is short that files would help.
    pub(super) fn forget_files(&mut self) {
        (self.stayed, self.is_reported) = (0, false);
    }

    /// None of them goes.
    pub(super) fn clear(&mut self) {
        self.victims.clear();
    }

    /// Forgets what shadow mode has chosen; one that was asked to end before is asked still.
    pub(super) fn forget_shadow(&mut self) {
        let shadow = self.victims.iter().filter(|(_, victim)| victim.is_shadow);
        let shadow: Vec<String> = shadow.map(|(uid, _)| uid.clone()).collect();
        shadow.iter().for_each(|uid| self.forget(uid));
    }

    fn is_of_shadow(&self, uid: &str) -> bool {
        self.victims.get(uid).is_some_and(|victim| victim.is_shadow)
    }

    pub(super) fn mark_shadow(&mut self, uid: &str) {
        if let Some(victim) = self.victims.get_mut(uid) {
            victim.is_shadow = true;
        }
    }

    /// The kernel has refused SIGKILL for a pod: its end is not expected, and it is not chosen again for a while.
    pub(super) fn mark_refused(&mut self, uid: &str) {
        if let Some(victim) = self.victims.get_mut(uid) {
            victim.is_refused = true;
        }
    }

    /// A pod does not go after all.
    pub(super) fn forget(&mut self, uid: &str) {
        let forgotten = self.victims.remove(uid);
        if let Some(requested) = forgotten.and_then(|victim| victim.requested_before) {
            self.victims.insert(uid.to_owned(), *requested);
        }
    }

    /// Whether a pod was evicted already; it is not evicted twice, even if it takes too long.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.living(uid).is_some()
    }

    /// A victim that is among the pods still.
    fn living(&self, uid: &str) -> Option<&PendingVictim> {
        self.victims.get(uid).filter(|victim| !victim.is_dead)
    }

    /// Whether a pod was killed, not only asked to end, and is there still.
    pub(super) fn was_killed(&self, uid: &str) -> bool {
        self.living(uid).is_some_and(|victim| !victim.is_requested)
    }

    /// Whether a pod was only asked to end.
    pub(super) fn is_requested(&self, uid: &str) -> bool {
        self.living(uid).is_some_and(|victim| victim.is_requested)
    }

    /// Whether the kernel has refused to kill a pod, not long ago.
    pub(super) fn is_refused(&self, uid: &str) -> bool {
        self.living(uid).is_some_and(|victim| victim.is_refused)
    }

    /// Whether a pod is there still although its time is over.
    pub(super) fn is_overdue(&self, uid: &str, now: i64) -> bool {
        self.living(uid)
            .is_some_and(|victim| now >= victim.stuck_at())
    }

    /// Whether the kubelet would still wait for the end of a victim and for the removal of its files
    /// (`waitForPodsCleanup`). A hard threshold does not wait for a pod that was only asked.
    pub(super) fn awaits_cleanup(&self, now: i64, is_hard: bool) -> bool {
        let is_awaited = |victim: &PendingVictim| match victim.is_dead {
            true => victim.awaits_files() || victim.awaits_volumes(),
            false => !(victim.is_refused || is_hard && victim.is_requested),
        };
        let mut victims = self.victims.values();
        victims.any(|v| now < v.end.saturating_add(FILES_DEADLINE_NANOS) && is_awaited(v))
    }

    /// Computes how much of what a threshold watches is on its way back, and by when.
    pub(super) fn pending(
        &self,
        now: i64,
        node: Snapshot<'_>,
        settings: &PlannerSettings,
        threshold: &Threshold,
    ) -> Pending {
        let mut pending = Pending::default();
        let signal = threshold.signal;
        let resource = signal.resource();
        let counts = |victim: &PendingVictim| {
            let waits = !threshold.is_hard() || !victim.is_requested || victim.is_dead;
            let is_stuck = !victim.is_dead && now >= victim.stuck_at();
            waits && !victim.is_refused && !is_stuck && now < victim.deadline(resource)
        };
        let on_their_way = self.victims.iter().filter(|(_, victim)| counts(victim));
        for (uid, victim) in on_their_way {
            let pod = node.pods.iter().find(|pod| pod.uid == *uid);
            // It may have died since the look. What has ended of one that still dies is no longer counted as its own.
            let left = victim.left(signal);
            let amount = match (pod.filter(|_| !victim.is_dead), node.usages.get(uid)) {
                (Some(pod), Some(usage)) => {
                    settings.freed_by_eviction(signal, pod, usage).max(left)
                }
                _ => left,
            };
            // Processes end at once; files wait for the kubelet, at most until the deadline.
            let due = match resource {
                Resource::Memory | Resource::Pids => now.saturating_add(SECOND / 2),
                Resource::EphemeralStorage | Resource::Inodes => victim.deadline(resource),
            };
            pending.add(amount, u64::try_from(due).unwrap_or(0));
        }
        pending
    }
}

/// Fewer bytes or inodes than these tell nothing: others write and remove as much at any time.
pub(super) fn significant(resource: Resource) -> Option<u64> {
    match resource {
        Resource::EphemeralStorage => Some(16 << 20),
        Resource::Inodes => Some(1000),
        Resource::Memory | Resource::Pids => None,
    }
}

impl Expected {
    /// What has not come yet. Memory of the processes is back with the last of them.
    fn left(&self) -> u64 {
        let left = self.usage.saturating_sub(self.returned);
        match self.signal.resource() {
            Resource::Memory => left.min(self.shared),
            _ => left,
        }
    }

    /// Whether enough files have come since the last time to say that the kubelet removes them.
    fn has_progressed(&mut self) -> bool {
        let Some(least) = significant(self.signal.resource()) else {
            return false;
        };
        let step = least.max(self.usage / PROGRESS_PART);
        let has_progressed = self.returned >= self.progress.saturating_add(step);
        if has_progressed {
            self.progress = self.returned;
        }
        has_progressed
    }

    /// Takes in what is available of the signal. Nothing is known of few files, nor where others use up as much meanwhile: on a
    /// full disk, or its reserve for root.
    fn observe_files(&mut self, seen: &Observations) -> Files {
        let is_enough = significant(self.signal.resource()).is_some_and(|n| self.usage >= n);
        let Some(Observation {
            available,
            capacity,
            ..
        }) = seen.get(self.signal).filter(|_| is_enough)
        else {
            return Files::Unknown;
        };
        let amount = |difference: i64| u64::try_from(difference).unwrap_or(0);
        self.lowest = self.lowest.min(available);
        let rise = amount(available.saturating_sub(self.lowest));
        self.max_rise = self.max_rise.max(rise);
        let before = std::mem::replace(&mut self.last, available);
        let drop = amount(before.saturating_sub(available));
        self.max_drop = self.max_drop.max(drop);
        let part = self.usage / RETURNED_PART;
        match self.max_rise > part {
            true if signed(self.usage) >= capacity / SIGNIFICANT_PART => Files::Returned,
            false if self.max_drop <= part && self.lowest > 0 => Files::Stayed,
            _ => Files::Unknown,
        }
    }
}

impl PendingVictim {
    fn new(end: i64) -> Self {
        Self {
            end,
            files_since: end,
            files_returned_at: i64::MIN,
            restored_at: i64::MIN,
            is_requested: false,
            awaits_answer: false,
            is_stuck_reported: false,
            is_dead: false,
            is_unreported: false,
            is_refused: false,
            is_shadow: false,
            requested_before: None,
            expected: Vec::new(),
        }
    }

    /// Whether files of it are still to come.
    fn awaits_files(&self) -> bool {
        let mut expected = self.expected.iter();
        expected.any(|e| e.signal.resource().is_of_files() && e.left() > 0)
    }

    /// Whether memory is still to come that its volumes hold.
    fn awaits_volumes(&self) -> bool {
        self.expected.iter().any(|e| e.shared > 0 && e.left() > 0)
    }

    /// Has processes then still: it is stuck.
    fn stuck_at(&self) -> i64 {
        self.end.saturating_add(DEADLINE_NANOS)
    }

    /// Whether the kubelet gives back what the victim holds of a resource, once the pod has ended.
    fn is_of_kubelet(&self, resource: Resource) -> bool {
        let outlives = |e: &Expected| e.shared > 0;
        resource.is_of_files() || resource == Resource::Memory && self.expected.iter().any(outlives)
    }

    /// Whether what the victim holds of a resource comes no more, or comes unawaited. The kubelet has not begun to give it back
    /// while the victim has processes.
    fn is_late(&self, now: i64, resource: Resource) -> bool {
        (self.is_dead || !self.is_of_kubelet(resource)) && now >= self.deadline(resource)
    }

    /// Computes the time until which the victim counts as on its way for a resource.
    fn deadline(&self, resource: Resource) -> i64 {
        if !self.is_of_kubelet(resource) {
            return self.end.saturating_add(DEADLINE_NANOS);
        }
        let since = self.end.max(self.files_since);
        if resource == Resource::Memory {
            return since.saturating_add(FILES_DEADLINE_NANOS);
        }
        let longest = since.saturating_add(LONGEST_REMOVAL_NANOS);
        let going_on = self
            .files_returned_at
            .saturating_add(DEADLINE_NANOS)
            .min(longest);
        since.saturating_add(FILES_DEADLINE_NANOS).max(going_on)
    }

    /// What has not come yet of what a signal watches.
    fn left(&self, signal: Signal) -> u64 {
        let expected = self.expected.iter().find(|e| e.signal == signal);
        expected.map_or(0, Expected::left)
    }
}
