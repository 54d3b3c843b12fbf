//! When the next pod may go: urgency decides the pace.
//!
//! A pod is evicted at machine speed only when nothing slower can save the node: when what the kernel cannot give back
//! by itself will be used up before the kubelet would have looked again. Everything else goes at the kubelet's pace,
//! one pod in ten seconds. The same rule holds for every signal; the ranking chooses the pod ([`crate::select()`]).

use serde::{Deserialize, Serialize};

use crate::{
    Resource, Signal,
    growers::STEADY_NS,
    growth::{Grown, Growth, Sample, grown_in},
    kubelet_times::MONITORING_INTERVAL_NS,
    pending::Pending,
    shortage::{LimitedGrowth, SLOW_RETURN_NS, STATISTICS_ERROR, Shortage, URGENT_WITHIN_NS},
    units::{MS, SECOND, scaled, shift_by_gap},
};

/// Time after a kill by the kernel program within which the pod's eviction is completed: the kubelet would have taken
/// note of the pressure by then. Later the pod may run again for good.
pub const KERNEL_KILL_NS: u64 = MONITORING_INTERVAL_NS;
/// A growth that is seen so soon after a SIGKILL may still be the victim's own: its threads end when they leave the
/// kernel, and statistics may be late. Only other pods' own counters tell of theirs then.
const SETTLE_NS: u64 = 10 * MS;
/// An amount that has fallen by less, in bytes, has not shrunk: counters are read one after the other.
const LEAST_SHRUNK: u64 = 1 << 20;
/// A growth is taken to go on for so many times as long as it was seen. That of process ids, which come in bursts, for
/// less: a quarter of what is left has gone then.
const EXTRAPOLATION: u64 = 16;
const PIDS_EXTRAPOLATION: u64 = 4;
/// That of memory is taken to go on for as long as it was seen where it leaves more time than this, in nanoseconds: it may
/// end before.
const UNCERTAIN_NS: u64 = SECOND / 2;
/// Usage counts as shrinking if it is less than this long ago.
const SHRINK_WINDOW_NS: u64 = 5 * MS;
/// Where only page cache is missing that has to be written first, and a growth waits for the writeback, it is urgent so late:
/// it may end before, or the page cache be written. The end of the growing pod comes in time still.
const LAST_MOMENT_NS: u64 = 3 * KILL_LATENCY_NS;
/// Freed memory must be back this long before exhaustion.
pub(crate) const MARGIN_NS: u64 = 5 * MS;
/// While memory is pending, a growth that uses up the headroom later than this takes no other pod.
const URGENT_WHILE_PENDING_NS: u64 = SECOND;
/// Time from a decision until the memory of one more victim can be back.
const NEXT_VICTIM_NS: u64 = 100 * MS;
/// Time from SIGKILL until the pod grows no more and that is seen.
pub(crate) const KILL_LATENCY_NS: u64 = 8 * MS;
/// Whether more comes back than others use is seen over this window at least.
const NET_WINDOW_NS: u64 = 16 * MS;
/// Time for which a decision waits for the usage of every pod, counted from when the threshold was met.
const USAGE_WAIT_NS: u64 = 30 * SECOND;
/// The same where no more time than this is left until exhaustion: a full disk for a moment is less than the end of
/// another pod.
pub(crate) const URGENT_USAGE_WAIT_NS: u64 = 3 * SECOND;
/// Usage read up to this long before the threshold was met is recent enough.
const USAGE_AGE_NS: u64 = 2 * SECOND;
/// The agent, or the machine, stood still where a look came so much later than it was due, in nanoseconds. After a shorter
/// delay, as on a busy machine, there are looks enough to tell a shortage that lasts.
pub const GAP_NS: u64 = MONITORING_INTERVAL_NS / 2;
/// Added to the kubelet's interval for the error of one or two samples: after that the kubelet has certainly seen the
/// threshold met.
const SAMPLE_SLACK_NS: u64 = 50 * MS;

/// Why a pod may go at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Urgency {
    /// The headroom will be used up before the kubelet would have looked again.
    Urgent {
        /// Nanoseconds until then, at the growth that was seen.
        exhausted_in: u64,
        /// Growth that was seen, in the signal's unit per second.
        growth: u64,
    },
    /// The pod goes at the kubelet's pace.
    Paced {
        /// The threshold is met by memory that the kernel could give back, and has been for as long as the kubelet
        /// needs to see it.
        only_cache: bool,
    },
}

impl Urgency {
    /// Whether the pod goes at machine speed.
    pub fn is_urgent(self) -> bool {
        matches!(self, Self::Urgent { .. })
    }
}

/// Decision about evictions at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Decision {
    /// No threshold is met.
    Calm,
    /// No eviction before this time (nanoseconds), unless it becomes urgent.
    Wait {
        /// The earliest time of a paced eviction; `u64::MAX` where only urgency can lead to one.
        until: u64,
    },
    /// A pod goes. The planner looks again before the next one; the fast path asks `Relief`.
    Evict {
        /// Urgency: why the pod goes at this moment.
        urgency: Urgency,
    },
}

impl Decision {
    /// Whether a pod may be evicted at once.
    pub fn is_urgent(self) -> bool {
        matches!(self, Self::Evict { urgency } if urgency.is_urgent())
    }
}

/// State of one signal of one scope that is kept between two looks. Allocates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    #[serde(deserialize_with = "crate::growth::in_order")]
    growth: Growth,
    /// Time since which every look has found the threshold met, by the kubelet's count or the memory guard's, in
    /// nanoseconds; `None` while it is not met.
    met_since: Option<u64>,
    /// Time of the last look at which the memory guard alone found it met, and not the kubelet's own count, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_guard_at: Option<u64>,
    /// Time since which the threshold has been met by memory that the kernel cannot give back, in nanoseconds; `None`
    /// while it is not.
    #[serde(rename = "shortSince")]
    unreclaimable_since: Option<u64>,
    last_eviction: Option<u64>,
    /// Time of the last eviction for another disk, which gives nothing back to this, in nanoseconds: the kubelet's pace is one
    /// for both, which may share a pool (ZFS, btrfs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_elsewhere: Option<u64>,
    /// Evictions since the threshold was met, or the memory guard found too little left.
    evictions: u32,
    /// A pod was evicted for this signal, not only for another one that shares the resource: the minimum reclaim
    /// counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "wasChosen")]
    has_own_eviction: bool,
}

impl Pace {
    /// Takes in a look: the growth, and whether the threshold is met. `now` never goes back. Memory that a victim gave
    /// back in the middle of the look would pass for a growth of others: such a look tells nothing of growth.
    pub fn observe(&mut self, now: u64, seen: &Shortage) {
        if seen.skew <= seen.noise(self.is_met()) {
            let mut sample = Sample {
                time: now,
                amount: (seen.used.saturating_sub(seen.dying)).saturating_add(seen.estimated),
                dying: seen.dying,
                deferred: seen.headroom.deferred,
                swapped: seen.swapped,
                swap: seen.swap_free,
                kernel: seen.kernel,
                stat_lag: seen.stat_lag.saturating_add(seen.estimated),
                pcp_free: seen.pcp_free,
            };
            let freed_late = self.growth.freed_late(sample);
            sample.stat_lag = sample.stat_lag.saturating_add(freed_late);
            self.growth.observe(sample);
        }
        let is_met_by_kubelet = seen.is_met_by_kubelet(self.is_resolving(now));
        if !is_met_by_kubelet {
            self.has_own_eviction = false;
            self.by_guard_at = Some(now);
        }
        let is_met = seen.is_met(self.is_resolving(now));
        self.met_since = is_met.then(|| self.met_since.unwrap_or(now));
        let is_short = is_met && seen.is_short(self.unreclaimable_since.is_some());
        self.unreclaimable_since = is_short.then(|| self.unreclaimable_since.unwrap_or(now));
        if !is_met {
            self.by_guard_at = None;
            // For what the memory guard alone finds short, too, each further pod waits.
            if !seen.is_nearly_exhausted(false) || !self.has_evicted_lately(now) {
                self.evictions = 0;
            }
        }
    }

    /// Takes note of so many nanoseconds until `now` in which no look was taken although one was due, [`GAP_NS`] or
    /// more: the threshold was not seen met then, no victim could end, and what has grown may have ended since.
    pub fn exclude_gap(&mut self, late: u64, now: u64) {
        let times = [
            &mut self.met_since,
            &mut self.by_guard_at,
            &mut self.unreclaimable_since,
            &mut self.last_eviction,
            &mut self.last_elsewhere,
        ];
        for since in times.into_iter().flatten() {
            shift_by_gap(since, late, now);
        }
        self.forget_growth();
    }

    /// The fastest growth of `noise` bytes or more that is seen, in bytes per second.
    pub fn fastest_growth(&self, noise: u64) -> u64 {
        self.growth.fastest(noise)
    }

    /// Whether the minimum reclaim counts: the kubelet has seen the threshold met for certain, or a pod was evicted for
    /// it. A shorter shortage ends where the threshold does.
    pub fn is_resolving(&self, now: u64) -> bool {
        let is_seen = |since| now.saturating_sub(since) >= MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS;
        self.has_own_eviction || self.met_by_kubelet_since().is_some_and(is_seen)
    }

    /// Time since which the kubelet's own count has found the threshold met, in nanoseconds: the memory guard may have before.
    fn met_by_kubelet_since(&self) -> Option<u64> {
        // `None` is less than any time.
        self.met_since.and(self.met_since.max(self.by_guard_at))
    }

    /// Whether the threshold is met, by the kubelet's count or the memory guard's.
    pub fn is_met(&self) -> bool {
        self.met_since.is_some()
    }

    /// Time since which the threshold has been met, in nanoseconds.
    pub(crate) fn met_since(&self) -> Option<u64> {
        self.met_since
    }

    /// Time, in nanoseconds, from which on a pod may go at the kubelet's pace; `None` while the threshold is not met.
    pub(crate) fn due_at(&self, profile: PaceProfile) -> Option<u64> {
        let met_since = self.met_since?;
        Some(met_since.saturating_add(profile.min_met_ns()))
    }

    /// A pod was evicted for this, or for something else that it gives back to this as well, or before the agent was
    /// started. Its growth is not told from that of others: growth is seen anew.
    pub fn evicted(&mut self, now: u64) {
        self.evicted_holding(now, None);
    }

    /// Notes an eviction as [`Self::evicted`] does. `still`: what the pod has held at every moment since a time. All that grew
    /// since then was others.
    pub fn evicted_holding(&mut self, now: u64, still: Option<(u64, u64)>) {
        self.last_eviction = Some(now);
        self.evictions = self.evictions.saturating_add(1);
        match still {
            Some((held, since)) => self.growth.exclude_victim(held, since),
            None => self.forget_growth(),
        }
    }

    /// A pod was evicted for another disk: the next one here that is not urgent keeps its distance.
    pub(crate) fn evicted_elsewhere(&mut self, now: u64) {
        self.last_elsewhere = Some(now);
    }

    /// Notes that a pod was evicted for this signal: where the threshold was met by the kubelet's own count, it stays so from now
    /// on until its minimum reclaim is available. For what the memory guard alone has found short the kubelet asks for none.
    pub fn note_own_eviction(&mut self, is_met_by_kubelet: bool) {
        self.has_own_eviction |= is_met_by_kubelet;
    }

    /// The pod that was chosen at `at` was not evicted: what was known `before` counts, but for what was seen since.
    /// `keeps_pace`: it was an attempt all the same, after which the next one that is not urgent waits.
    pub(crate) fn roll_back(&mut self, at: u64, keeps_pace: bool, before: &Self) {
        if self.last_elsewhere == Some(at) && !keeps_pace {
            self.last_elsewhere = before.last_elsewhere;
        }
        if self.last_eviction != Some(at) {
            return;
        }
        if !keeps_pace {
            self.last_eviction = before.last_eviction;
        }
        self.evictions = self.evictions.min(before.evictions);
        self.has_own_eviction &= before.has_own_eviction;
        if self.growth.latest().is_none() {
            self.growth = before.growth;
        }
    }

    /// Notes that the kernel has refused SIGKILL: no eviction, but the next pod that is not urgent waits as after one.
    pub fn note_refusal(&mut self, now: u64) {
        self.last_eviction = Some(now);
    }

    /// Time at which a pod was last evicted, in nanoseconds; `None` if none was.
    pub fn last_eviction(&self) -> Option<u64> {
        self.last_eviction
    }

    /// Whether a pod was evicted since the kubelet could have looked.
    pub fn has_evicted_lately(&self, now: u64) -> bool {
        let is_late = |last| now.saturating_sub(last) < MONITORING_INTERVAL_NS;
        self.last_eviction.is_some_and(is_late)
    }

    /// Victims that still hold so many bytes are followed no longer: what was counted as theirs has become others', and
    /// would look like a growth.
    pub fn release_victims(&mut self, held: u64) {
        if held >= LEAST_SHRUNK {
            self.forget_growth();
        }
    }

    /// Forgets the growth that was seen: what was counted as victims' has become others'.
    pub fn forget_growth(&mut self) {
        self.growth = Growth::default();
    }

    /// The scope or its threshold is another one; when a pod was last evicted stays known.
    pub fn reset(&mut self) {
        *self = Self {
            last_eviction: self.last_eviction,
            last_elsewhere: self.last_elsewhere,
            ..Self::default()
        };
    }

    /// Whether growth that is seen now may still be that of the last victim.
    pub(crate) fn is_settling(&self, now: u64) -> bool {
        is_just_before(self.last_eviction, now)
    }

    /// Whether what is seen to grow now may be the last victim's of another disk: it may have files here, too.
    pub(crate) fn is_settling_elsewhere(&self, now: u64) -> bool {
        is_just_before(self.last_elsewhere, now)
    }

    /// Whether limits of the pods' own end the growth before the headroom is used up: three quarters of it are of such pods
    /// at least, as far as windows of different lengths tell.
    fn ends_at_limits(&self, seen: &Shortage) -> bool {
        let LimitedGrowth {
            grown,
            growth,
            left,
        } = seen.limited_growth;
        // What is used by then, that of others included.
        let is_bounded = |part: u64, all: u64| {
            let used = scaled(left, all, part).max(left);
            part > 0
                && part.saturating_add(part / 3) >= all
                && used.saturating_add(STATISTICS_ERROR) <= seen.headroom.immediate
        };
        // That of the cgroups was seen over a quarter of a second: not what was seen of all for a moment is compared with it.
        self.growth.over(STEADY_NS).is_some_and(|all| {
            is_bounded(grown, all.amount)
                || all.elapsed >= STEADY_NS && is_bounded(growth, all.per_second())
        })
    }

    /// The growth per second over a quarter of a second, or over as long as one was seen; `None` where none was.
    pub(crate) fn steady_growth(&self) -> Option<u64> {
        self.growth.over(STEADY_NS).map(Grown::per_second)
    }

    /// Computes the time, in nanoseconds, since which the growth is compared with that of pods that have limits of
    /// their own ([`LimitedGrowth`]).
    pub fn steady_since(&self) -> u64 {
        let latest = self.growth.latest().unwrap_or(0);
        let steady = self.growth.over(STEADY_NS);
        latest.saturating_sub(steady.map_or(0, |grown| grown.elapsed))
    }
}

/// All that one decision was made from, so that it can be made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaceInputs {
    /// Moment of the decision, in nanoseconds of CLOCK_MONOTONIC.
    pub now: u64,
    /// State that was known from the looks before.
    pub pace: Pace,
    /// Amounts that were seen at this look.
    #[serde(rename = "seen")]
    pub shortage: Shortage,
    /// Amount that earlier victims were expected to give back.
    pub pending: Pending,
    /// Profile by whose rule the decision was made.
    #[serde(default, skip_serializing_if = "PaceProfile::is_lasting")]
    #[serde(rename = "rule")]
    pub profile: PaceProfile,
}

impl PaceInputs {
    /// Decides what to do about the look that was taken last.
    pub fn decide(&self) -> Decision {
        match self.urgency() {
            Some((exhausted_in, grown)) if self.profile != PaceProfile::Soft => {
                self.decide_urgent(exhausted_in, grown)
            }
            _ => self.decide_paced(),
        }
    }

    /// Decides at machine speed: the headroom is used up in `exhausted_in` nanoseconds by the growth that was seen.
    fn decide_urgent(&self, exhausted_in: u64, grown: Grown) -> Decision {
        let growth = grown.per_second();
        match self.can_wait(exhausted_in, growth) {
            true => Decision::Wait { until: u64::MAX },
            false => Decision::Evict {
                urgency: Urgency::Urgent {
                    exhausted_in,
                    growth,
                },
            },
        }
    }

    /// Whether no pod has to go yet for a growth that uses up the headroom in `exhausted_in` nanoseconds.
    fn can_wait(&self, exhausted_in: u64, growth: u64) -> bool {
        let pending = self.pending;
        let is_early = exhausted_in > URGENT_WHILE_PENDING_NS;
        let Some(due) = pending.due else {
            return is_early && self.is_too_soon(exhausted_in);
        };
        let wait = due.saturating_sub(self.now).saturating_add(MARGIN_NS);
        // A pod that goes later is in time, too, and may not have to go. Files are not removed so fast: next to nothing
        // of them that comes too late is not waited for.
        let is_worth = self.profile == PaceProfile::Sustained
            || wait < exhausted_in
            || pending.amount >= grown_in(growth, URGENT_WHILE_PENDING_NS);
        if is_early && is_worth {
            return true;
        }
        // Enough is on its way, of shared memory alone, and too late.
        let headroom = self.shortage.usable().in_time();
        let is_late =
            pending.soon == 0 && grown_in(growth, wait) <= headroom.saturating_add(pending.amount);
        if is_late && self.is_too_soon(exhausted_in) {
            return true;
        }
        match pending.flows_since {
            Some(began) => self.flows_in_time(exhausted_in, began),
            None => self.is_in_time(exhausted_in, growth, wait),
        }
    }

    /// Whether less time has passed since the last eviction for this than is left until exhaustion: each further pod
    /// waits for half of what remains, so that the effect of the last one is seen first.
    fn is_too_soon(&self, exhausted_in: u64) -> bool {
        let is_recent = |last: u64| self.now.saturating_sub(last) < exhausted_in;
        self.profile == PaceProfile::Sustained
            && self.pace.evictions > 0
            && self.pace.last_eviction.is_some_and(is_recent)
    }

    /// Decides at the kubelet's pace, once the threshold has been met for as long as the rule asks for.
    fn decide_paced(&self) -> Decision {
        let (pace, seen) = (&self.pace, &self.shortage);
        let Some(ripe) = pace.due_at(self.profile) else {
            return Decision::Calm;
        };
        let resolves = pace.is_resolving(self.now);
        let deficit = seen.deficit(resolves);
        if self.pending.amount >= deficit.max(1) {
            return Decision::Wait { until: u64::MAX };
        }
        let after_last = pace
            .last_eviction
            .max(pace.last_elsewhere)
            .map_or(0, |last| last.saturating_add(MONITORING_INTERVAL_NS));
        // After an eviction, too: the kubelet's next look comes within its interval.
        let turn = seen.kubelets_turn(resolves);
        let min_met = self.profile.min_met_ns();
        let by_kubelet = pace.met_by_kubelet_since().filter(|_| turn > 0);
        let ripe = by_kubelet.map_or(ripe, |since| since.saturating_add(min_met));
        let until = ripe.max(after_last).saturating_add(turn);
        if self.now < until {
            return Decision::Wait { until };
        }
        let only_cache = pace.unreclaimable_since.is_none();
        Decision::Evict {
            urgency: Urgency::Paced { only_cache },
        }
    }

    /// Amount that must be available by the kubelet's count for it to find the threshold not met: with the minimum reclaim once that
    /// counts.
    pub fn kubelet_needs(&self) -> u64 {
        self.shortage.needed(self.pace.is_resolving(self.now))
    }

    /// Whether pods that could give back `attainable` together may go for this, beside what is pending: at the
    /// kubelet's pace a shortage that all of them cannot end takes one pod, and no other one in vain.
    pub(crate) fn can_end_shortage(&self, urgency: Urgency, attainable: u64) -> bool {
        // Above the threshold it is the minimum reclaim that is not there.
        let deficit = match self.shortage.deficit(false) {
            0 => self.shortage.deficit(true),
            deficit => deficit,
        };
        urgency.is_urgent()
            || self.pace.evictions == 0
            || attainable.saturating_add(self.pending.amount) >= deficit
    }

    /// Time, in nanoseconds, since which the usage of every pod has to be known, if a decision waits for that: another
    /// pod would go in the stead of one that has filled the disk since. `None` where it does not wait.
    pub(crate) fn waits_for_usage_since(&self, urgency: Urgency) -> Option<u64> {
        let lasts = match urgency {
            Urgency::Urgent { exhausted_in, .. } if exhausted_in <= URGENT_USAGE_WAIT_NS => {
                URGENT_USAGE_WAIT_NS
            }
            _ => USAGE_WAIT_NS,
        };
        let met_since = self.pace.met_since?;
        (self.now < met_since.saturating_add(lasts)).then(|| met_since.saturating_sub(USAGE_AGE_NS))
    }

    /// Whether what is pending, of which nothing has come, saves the node from a growth that uses up the headroom in
    /// `exhausted_in`. The first of it is due after `wait`.
    fn is_in_time(&self, exhausted_in: u64, per_second: u64, wait: u64) -> bool {
        let headroom = self.shortage.usable().in_time();
        // Until a next pod's memory can be there, if one has to go then.
        let until_next = grown_in(per_second, wait.saturating_add(NEXT_VICTIM_NS));
        exhausted_in > wait && until_next <= headroom.saturating_add(self.pending.amount)
    }

    /// The same of what has come since it `began`: the kernel weighs what comes against what others use.
    fn flows_in_time(&self, exhausted_in: u64, began: u64) -> bool {
        let (now, growth) = (self.now, &self.pace.growth);
        let headroom = self.shortage.usable().in_time();
        let since = began.max(self.pace.last_eviction.unwrap_or(0));
        let until = since.saturating_add(NET_WINDOW_NS);
        if now < until {
            let comes = growth.exhausts_net(headroom, began, MS).is_none()
                && now >= began.saturating_add(MS);
            return comes || exhausted_in > until - now + KILL_LATENCY_NS;
        }
        // What has not begun to come is weighed once it has; until then there is time for another death.
        let enough = self.pending.begins.map_or(SLOW_RETURN_NS, |begins| {
            begins.saturating_sub(now).saturating_add(NEXT_VICTIM_NS)
        });
        let end = growth.exhausts_net(headroom, since, NET_WINDOW_NS / 2);
        end.is_none_or(|end| end > enough)
    }

    /// Whether what is left is used up within so long by growth that was seen `since` a moment, over `shortest` at least.
    pub(crate) fn is_exhausted_within(&self, within: u64, since: u64, shortest: u64) -> bool {
        let headroom = self.shortage.usable().in_time();
        let end = self.pace.growth.exhausts_net(headroom, since, shortest);
        end.is_some_and(|end| end < within)
    }

    /// The growth that uses up the headroom before the kubelet would have looked again, if one does.
    fn urgency(&self) -> Option<(u64, Grown)> {
        let (seen, pace) = (&self.shortage, &self.pace);
        let steady = LEAST_SHRUNK.min(seen.threshold / 16);
        let has_evicted = |last: u64| self.now < last.saturating_add(SECOND);
        let may_end =
            self.profile == PaceProfile::Sustained || pace.last_eviction.is_some_and(has_evicted);
        if may_end && pace.growth.shrinks(SHRINK_WINDOW_NS, steady) {
            // A death has ended it, also one that the OOM killer has caused.
            return None;
        }
        let is_met = self.is_met();
        let noise = seen.noise(is_met);
        let (end, grown) = pace
            .growth
            .exhausts(seen.usable(), noise, |seen| self.profile.lasts(seen))?;
        let within = match (self.is_for_growers(), seen.awaits_writeback) {
            (true, true) => LAST_MOMENT_NS,
            (true, false) => SLOW_RETURN_NS,
            (false, _) => URGENT_WITHIN_NS,
        };
        let is_urgent =
            end < within && seen.is_nearly_exhausted(is_met) && !pace.ends_at_limits(seen);
        is_urgent.then_some((end, grown))
    }

    /// Whether an urgent decision takes no pod but those that grow: the kubelet asks for none, and what is missing the
    /// kernel has once it is written.
    pub(crate) fn is_for_growers(&self) -> bool {
        self.shortage
            .is_nearly_exhausted_but_for_dirty_cache(self.is_met())
    }

    /// Whether the threshold is met, by the kubelet's count or the memory guard's, with all that was read since the look.
    fn is_met(&self) -> bool {
        self.shortage.is_met(self.pace.is_resolving(self.now))
    }
}

/// Whether growth that is seen now may still be that of a pod that was evicted last.
fn is_just_before(last: Option<u64>, now: u64) -> bool {
    last.is_some_and(|last| now < last.saturating_add(SETTLE_NS))
}

/// How a decision is made, and how long something has to be short before a pod goes that is not urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PaceProfile {
    /// Shortage that may end by itself (memory): as long as the kubelet needs to see it for certain.
    #[default]
    #[serde(rename = "lasting")]
    Sustained,
    /// Shortage that does not come and go by itself (disk, inodes), and is looked at by the second: the first look
    /// counts.
    #[serde(rename = "firstLook")]
    Immediate,
    /// Process ids: they may come back by themselves, as memory does, and grow in bursts.
    #[serde(rename = "processIds")]
    Pids,
    /// A soft threshold whose grace period is over: nothing is urgent, as there is a hard threshold below it.
    Soft,
}

impl PaceProfile {
    /// The profile of the hard or the soft threshold of a signal.
    pub fn for_threshold(signal: Signal, is_hard: bool) -> Self {
        match signal.resource() {
            _ if !is_hard => Self::Soft,
            Resource::Memory => Self::Sustained,
            Resource::Pids => Self::Pids,
            Resource::EphemeralStorage | Resource::Inodes => Self::Immediate,
        }
    }

    fn is_lasting(&self) -> bool {
        *self == Self::Sustained
    }

    /// Nanoseconds for which the threshold has to be met before a pod goes that is not urgent.
    fn min_met_ns(self) -> u64 {
        match self {
            Self::Sustained | Self::Pids => MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS,
            Self::Immediate | Self::Soft => 0,
        }
    }

    /// The shortest window, in nanoseconds, over which growth was seen that uses up the headroom in `exhausted_in`.
    pub(crate) fn shortest_window(self, exhausted_in: u64) -> u64 {
        match self {
            Self::Pids => exhausted_in / PIDS_EXTRAPOLATION,
            Self::Sustained if exhausted_in > UNCERTAIN_NS => exhausted_in,
            Self::Sustained | Self::Immediate | Self::Soft => exhausted_in / EXTRAPOLATION,
        }
    }

    /// For how long, in nanoseconds, a growth is taken to go on that was seen for so many.
    fn lasts(self, seen: u64) -> u64 {
        match self {
            Self::Pids => seen.saturating_mul(PIDS_EXTRAPOLATION),
            Self::Immediate | Self::Soft => seen.saturating_mul(EXTRAPOLATION),
            Self::Sustained => {
                let soon = seen.saturating_mul(EXTRAPOLATION).min(UNCERTAIN_NS);
                soon.max(seen)
            }
        }
    }
}

#[cfg(test)]
mod tests;
