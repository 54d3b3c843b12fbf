use super::*;
use crate::{growth::Headroom, kubelet_times::KUBELET_TURN_NS};

const MIB: u64 = 1 << 20;
const THRESHOLD: u64 = 100 * MIB;
const CAPACITY: u64 = 512 * MIB;

/// A cgroup of 512 MiB with a threshold of 100: so much of it cannot be given back, and so much is page cache that the
/// kubelet counts as used.
fn seen(hard: u64, cache: u64) -> Shortage {
    Shortage {
        available: CAPACITY.saturating_sub((hard + cache) * MIB),
        threshold: THRESHOLD,
        resolved: THRESHOLD,
        used: hard * MIB,
        headroom: Headroom {
            immediate: CAPACITY.saturating_sub(hard * MIB),
            ..Headroom::default()
        },
        ..Shortage::default()
    }
}

/// A pace that has looked every millisecond since `from` at what `of` says of each.
fn looked(pace: &mut Pace, from: u64, ms: u64, of: impl Fn(u64) -> Shortage) -> (u64, Shortage) {
    let at = |ms: u64| from + ms * MS;
    for ms in 0..=ms {
        pace.observe(at(ms), &of(ms));
    }
    (at(ms), of(ms))
}

/// What is decided of memory where nothing is pending.
fn decision(pace: &Pace, now: u64, seen: &Shortage) -> Decision {
    decide_by(PaceProfile::Sustained, pace, now, seen, Pending::default())
}

/// The same with what is pending.
fn decision_beside(pending: Pending, pace: &Pace, now: u64, seen: &Shortage) -> Decision {
    decide_by(PaceProfile::Sustained, pace, now, seen, pending)
}

fn decide_by(
    rule: PaceProfile,
    pace: &Pace,
    now: u64,
    seen: &Shortage,
    pending: Pending,
) -> Decision {
    let inputs = PaceInputs {
        now,
        pace: *pace,
        shortage: *seen,
        pending,
        profile: rule,
    };
    inputs.decide()
}

const ONE_PACED: Decision = Decision::Evict {
    urgency: Urgency::Paced { only_cache: false },
};

// R40
#[test]
fn a_growth_that_ends_before_the_kubelet_looks_is_urgent() {
    for mib_per_second in [20, 100, 1000] {
        let mut pace = Pace::default();
        let of = |ms| seen(380 + ms * mib_per_second / 1000, 0);
        let (now, at) = looked(&mut pace, SECOND, 70_000 / mib_per_second, of);
        let decision = decision(&pace, now, &at);
        assert!(decision.is_urgent(), "{mib_per_second}: {decision:?}");
    }
}

/// A buffer of 30 MiB that a pod takes and gives back makes a raised threshold no more urgent: it was seen to grow for less
/// time than is left.
// R40
#[test]
fn a_growth_that_leaves_time_is_seen_for_a_while_first() {
    let buffer = |ms: u64| [ms % 1000 / 3, 30, 1000 - ms % 1000].into_iter().min();
    let raised = |ms| Shortage {
        threshold: 450 * MIB,
        resolved: 450 * MIB,
        ..seen(100 + buffer(ms).unwrap(), 0)
    };
    let mut pace = Pace::default();
    for ms in 0..9000 {
        let (now, at) = (SECOND + ms * MS, raised(ms));
        pace.observe(now, &at);
        assert!(!decision(&pace, now, &at).is_urgent(), "{ms}");
    }
    // What goes on is urgent while there is time enough.
    let grows = |ms| Shortage {
        threshold: 450 * MIB,
        resolved: 450 * MIB,
        ..seen(100 + ms * 3 / 10, 0)
    };
    let mut pace = Pace::default();
    let urgent = (0..2000).find(|ms| {
        let (now, at) = (SECOND + ms * MS, grows(*ms));
        pace.observe(now, &at);
        decision(&pace, now, &at).is_urgent()
    });
    assert!(
        urgent.is_some_and(|ms| (600..800).contains(&ms)),
        "{urgent:?}"
    );
}

#[test]
fn a_slow_growth_goes_at_the_kubelets_pace() {
    let mut pace = Pace::default();
    let of = |ms| seen(405 + ms / 1000, 0);
    let (now, at) = looked(&mut pace, SECOND, 18_000, of);
    let wait = Decision::Wait {
        until: SECOND + 8000 * MS + MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS,
    };
    assert_eq!(decision(&pace, now, &at), wait);
    let (now, at) = looked(&mut pace, now + MS, 100, |ms| of(18_000 + ms));
    assert_eq!(decision(&pace, now, &at), ONE_PACED);
    pace.evicted(now);
    let until = now + MONITORING_INTERVAL_NS;
    let wait = Decision::Wait { until };
    let (now, at) = looked(&mut pace, now + MS, 9000, |_| seen(425, 0));
    assert_eq!(decision(&pace, now, &at), wait);
    pace.observe(until, &at);
    assert_eq!(decision(&pace, until, &at), ONE_PACED);
}

/// At the kubelet's own threshold it may have evicted a pod of which the API server does not tell yet.
// R43
#[test]
fn the_kubelet_has_its_turn_at_its_own_threshold() {
    let shared = |hard: u64| Shortage {
        is_kubelets: true,
        ..seen(hard, 0)
    };
    let until = SECOND + MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS + KUBELET_TURN_NS;
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, SECOND, 14_040, |_| shared(420));
    assert_eq!(decision(&pace, now, &at), Decision::Wait { until });
    pace.observe(until, &at);
    assert_eq!(decision(&pace, until, &at), ONE_PACED);
    pace.evicted(until);
    let next = until + MONITORING_INTERVAL_NS + KUBELET_TURN_NS;
    let (now, at) = looked(&mut pace, until + MS, 13_990, |_| shared(420));
    assert_eq!(decision(&pace, now, &at), Decision::Wait { until: next });
    pace.observe(next, &at);
    assert_eq!(decision(&pace, next, &at), ONE_PACED);

    // What becomes urgent in the kubelet's turn goes at once.
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, SECOND, 12_000, |_| shared(420));
    assert_eq!(decision(&pace, now, &at), Decision::Wait { until });
    let (now, at) = looked(&mut pace, now + MS, 500, |ms| shared(420 + ms / 10));
    assert!(decision(&pace, now, &at).is_urgent());

    // For what the memory guard alone finds short the kubelet has none: its own count finds 120 MiB.
    let guarded = Shortage {
        beyond_guard: 28 * MIB,
        guard_amount: THRESHOLD,
        ..shared(420)
    };
    let mut pace = Pace::default();
    let until = SECOND + MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS;
    let (now, at) = looked(&mut pace, SECOND, 10_040, |_| guarded);
    assert_eq!(decision(&pace, now, &at), Decision::Wait { until });
    pace.observe(until, &at);
    assert_eq!(decision(&pace, until, &at), ONE_PACED);

    // Where its own count finds it met later, its turn comes later.
    let mut pace = Pace::default();
    let (now, _) = looked(&mut pace, SECOND, 9_900, |_| guarded);
    let at = shared(420);
    pace.observe(now + MS, &at);
    let until = now + MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS + KUBELET_TURN_NS;
    let waits = decision(&pace, now + MS, &at);
    assert_eq!(waits, Decision::Wait { until });
}

/// The kubelet, which looks once in ten seconds, may not have seen it either.
// R40
#[test]
fn a_shortage_that_ends_within_the_kubelets_interval_takes_no_pod() {
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, SECOND, 9990, |_| seen(420, 0));
    assert!(matches!(decision(&pace, now, &at), Decision::Wait { .. }));
    let enough = seen(400, 0);
    pace.observe(now + MS, &enough);
    assert_eq!(decision(&pace, now + MS, &enough), Decision::Calm);
    // A soft threshold has lasted its grace period.
    let at = seen(420, 0);
    pace.observe(now + 2 * MS, &at);
    assert_eq!(
        decide_by(
            PaceProfile::Soft,
            &pace,
            now + 2 * MS,
            &at,
            Pending::default()
        ),
        ONE_PACED
    );
}

/// What others grew by is known when a pod goes that did not grow itself.
#[test]
fn growth_stays_known_when_the_victim_has_not_grown() {
    let of = |ms: u64| seen(380 + ms / 10, 0);
    let after = |is_still: bool| {
        let mut pace = Pace::default();
        let (now, _) = looked(&mut pace, SECOND, 900, of);
        match is_still {
            true => pace.evicted_holding(now, Some((5 * MIB, SECOND))),
            false => pace.evicted(now),
        }
        // It is gone a millisecond later.
        let at = Shortage {
            used: (465 + 6) * MIB - 5 * MIB,
            ..of(901)
        };
        pace.observe(now + MS, &at);
        decision(&pace, now + MS, &at).is_urgent()
    };
    assert!(after(true));
    assert!(!after(false));
}

/// Swap takes what does not fit; what grows waits for the device, and has grown all the same.
#[test]
fn swap_is_room_until_it_is_full() {
    let of = |left: u64| {
        let mut seen = seen(512, 0);
        (seen.headroom.swap, seen.swapped) = (left * MIB, (3000 - left) * MIB);
        seen
    };
    let decide = |left: u64| {
        let mut pace = Pace::default();
        let (now, at) = looked(&mut pace, SECOND, 1100, |ms| of(left + 110 - ms / 10));
        decision(&pace, now, &at)
    };
    assert!(!decide(2000).is_urgent(), "100 MiB/s would take 20 s");
    assert!(decide(100).is_urgent());
}

/// A pod that may swap goes, and takes what it was allowed to with it.
#[test]
fn swap_that_pods_may_not_use_any_more_is_no_growth() {
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, SECOND, 100, |ms| {
        let mut seen = seen(450, 0);
        seen.swapped = 1000 * MIB;
        seen.headroom.swap = if ms < 90 { 2000 * MIB } else { 0 };
        seen
    });
    assert!(!decision(&pace, now, &at).is_urgent());
}

/// Memory is not short: page cache is in the way of the kubelet's formula only.
#[test]
fn cache_alone_evicts_only_if_it_lasts() {
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, SECOND, 9990, |_| seen(150, 300));
    let until = SECOND + MONITORING_INTERVAL_NS + SAMPLE_SLACK_NS;
    assert_eq!(decision(&pace, now, &at), Decision::Wait { until });
    // One look that finds enough, and it begins anew.
    pace.observe(now + MS, &seen(150, 200));
    let (now, at) = looked(&mut pace, now + 2 * MS, 9990, |_| seen(150, 300));
    assert!(matches!(decision(&pace, now, &at), Decision::Wait { .. }));
    let (now, at) = looked(&mut pace, now + MS, 100, |_| seen(150, 300));
    assert_eq!(
        decision(&pace, now, &at),
        Decision::Evict {
            urgency: Urgency::Paced { only_cache: true },
        }
    );
}

#[test]
fn a_growth_beside_cache_is_urgent_once_memory_is_short() {
    let mut pace = Pace::default();
    let of = |ms| seen(300 + ms * 2 / 10, 512 - 300 - ms * 2 / 10 - 20);
    let (now, at) = looked(&mut pace, SECOND, 300, of);
    assert!(pace.is_met());
    assert!(!decision(&pace, now, &at).is_urgent());
    let (now, at) = looked(&mut pace, now + MS, 265, |ms| of(301 + ms));
    assert!(decision(&pace, now, &at).is_urgent());
}

/// However fast it grows: the last moment begins when memory is short.
#[test]
fn no_growth_is_urgent_before_memory_is_short() {
    for (left, urgent) in [(101, false), (99, true)] {
        let mut pace = Pace::default();
        let of = |ms| seen(512 - left - 10 * (10 - ms), 100);
        let (now, at) = looked(&mut pace, SECOND, 10, of);
        assert!(pace.is_met());
        let decision = decision(&pace, now, &at);
        assert_eq!(decision.is_urgent(), urgent, "{left}: {decision:?}");
    }
}

/// Memory comes from one victim, and others use up more than that: what is left, in 150 ms. Another victim's is due
/// before.
#[test]
fn what_has_not_begun_to_come_is_waited_for() {
    let decide = |begins: Option<u64>| {
        let mut pace = Pace::default();
        pace.evicted(SECOND);
        let of = |ms| Shortage {
            dying: (300 - ms) * MIB,
            ..seen(420 + ms / 3, 0)
        };
        let (now, at) = looked(&mut pace, SECOND + MS, 60, of);
        let mut pending = Pending::default();
        pending.add_soon(260 * MIB, SECOND + 20 * MS);
        let pending = Pending {
            flows: true,
            flows_since: Some(SECOND + 2 * MS),
            begins,
            ..pending
        };
        (now, decision_beside(pending, &pace, now, &at))
    };
    let (now, decision) = decide(None);
    assert!(decision.is_urgent(), "{decision:?}");
    let (_, decision) = decide(Some(now + 300 * MS));
    assert!(decision.is_urgent(), "it comes too late: {decision:?}");
    let waits = Decision::Wait { until: u64::MAX };
    let (_, decision) = decide(Some(now + 20 * MS));
    assert_eq!(decision, waits);
}

/// On cgroup v1 page cache that has to be written first gives nothing to a fast growth.
#[test]
fn dirty_cache_counts_for_a_slow_growth_only() {
    let of = |hard: u64, dirty: u64| {
        let mut seen = seen(hard, 0);
        seen.headroom.immediate -= dirty * MIB;
        (seen.headroom.deferred, seen.headroom.deferred_per_second) = (dirty * MIB, 32 * MIB);
        seen.guard_amount = THRESHOLD;
        seen
    };
    let decide = |per_ten_ms: u64| {
        let mut pace = Pace::default();
        let of = |ms| of(150 + ms * per_ten_ms / 10, 350 - ms * per_ten_ms / 10);
        let (now, at) = looked(&mut pace, SECOND, 100, of);
        assert!(!pace.is_met(), "the kubelet sees none of it");
        decision(&pace, now, &at)
    };
    assert_eq!(decide(0), Decision::Calm);
    assert!(decide(10).is_urgent());
}

/// The memory guard alone has found memory short, and a pod went for that: the kubelet's threshold was not met, and its minimum
/// reclaim does not count.
#[test]
fn an_eviction_for_the_guard_alone_asks_for_no_minimum_reclaim() {
    // On the machine what is available is bounded by the memory guard.
    for (available, beyond_guard, resolves) in [
        (450, 0, false),
        (50, 0, true),
        (50, 900, false),
        (50, 40, true),
    ] {
        let seen = |available: u64| Shortage {
            available: available * MIB,
            beyond_guard: beyond_guard * MIB,
            threshold: 100 * MIB,
            resolved: 600 * MIB,
            ..Shortage::default()
        };
        let mut pace = Pace::default();
        // For longer than the kubelet needs to see it.
        for second in 1..=12 {
            pace.observe(second * SECOND, &seen(available));
        }
        pace.evicted(12 * SECOND);
        pace.note_own_eviction(seen(available).is_met_by_kubelet(false));
        pace.observe(13 * SECOND, &seen(510));
        assert_eq!(pace.is_met(), resolves, "{available} {beyond_guard}");
        // The kubelet's count is what ends it.
        pace.observe(14 * SECOND, &seen(600 - beyond_guard.min(500)));
        assert!(!pace.is_met(), "{available} {beyond_guard}");
    }
}

/// Above the threshold, with so much in use and so much page cache that is to be written.
fn beside_dirty_cache(hard: u64, dirty_or_writeback: u64) -> Shortage {
    let mut seen = seen(hard, 0);
    (seen.guard_amount, seen.dirty_or_writeback) = (THRESHOLD, dirty_or_writeback * MIB);
    seen.awaits_writeback = true;
    seen.headroom.immediate -= dirty_or_writeback * MIB;
    (seen.headroom.deferred, seen.headroom.deferred_per_second) =
        (dirty_or_writeback * MIB, 32 * MIB);
    seen
}

/// Hot pages of a database are on the active list: the kubelet does not count them as available.
// R40
#[test]
fn active_page_cache_that_is_to_be_written_makes_no_growth_urgent() {
    for (threshold, dirty_or_writeback, is_urgent) in
        [(100, 300, false), (100, 100, true), (450, 300, true)]
    {
        let of = |ms| Shortage {
            available: 27 * MIB,
            threshold: threshold * MIB,
            resolved: threshold * MIB,
            ..beside_dirty_cache(512 - 100 - dirty_or_writeback + ms, dirty_or_writeback)
        };
        let mut pace = Pace::default();
        let (now, at) = looked(&mut pace, SECOND, 75, of);
        assert!(pace.is_met());
        let decision = decision(&pace, now, &at);
        assert_eq!(
            decision.is_urgent(),
            is_urgent,
            "{threshold} {dirty_or_writeback}: {decision:?}"
        );
    }
}

/// Reclaim by generations does not wait for the writeback.
// R40
#[test]
fn where_a_growth_does_not_wait_for_the_writeback_it_is_urgent_sooner() {
    let of = |ms| Shortage {
        awaits_writeback: false,
        ..beside_dirty_cache(120 + ms / 10, 300)
    };
    for (ms, is_urgent) in [(600, false), (800, true)] {
        let mut pace = Pace::default();
        let (now, at) = looked(&mut pace, SECOND, ms, of);
        assert_eq!(decision(&pace, now, &at).is_urgent(), is_urgent, "{ms}");
    }
}

/// The kubelet asks for no pod, and the kernel has what is missing once it is written.
// R40
#[test]
fn beside_what_is_to_be_written_a_growth_is_urgent_at_the_last_moment() {
    for (hard, dirty_or_writeback, ms, is_urgent) in [
        (120, 300, 60, false),
        (120, 300, 90, false),
        (320, 100, 60, false),
        (320, 100, 75, true),
        // The kubelet's threshold is met.
        (400, 60, 30, true),
    ] {
        let mut pace = Pace::default();
        let of = |ms| beside_dirty_cache(hard + ms, dirty_or_writeback);
        let (now, at) = looked(&mut pace, SECOND, ms, of);
        let decision = decision(&pace, now, &at);
        assert_eq!(decision.is_urgent(), is_urgent, "{hard} {ms}: {decision:?}");
    }
}

// R43
#[test]
fn what_the_guard_has_taken_counts_until_enough_is_left() {
    let mut pace = Pace::default();
    pace.evicted(SECOND);
    pace.observe(SECOND + MS, &beside_dirty_cache(320, 100));
    assert_eq!(pace.evictions, 1);
    let mut later = pace;
    later.observe(
        SECOND + MONITORING_INTERVAL_NS,
        &beside_dirty_cache(320, 100),
    );
    assert_eq!(later.evictions, 0, "nor for ever");
    pace.observe(SECOND + 2 * MS, &beside_dirty_cache(200, 100));
    assert_eq!(pace.evictions, 0);
}

/// A process that ends by itself, or by the OOM killer, gives back what had grown.
// R40
#[test]
fn a_growth_that_is_given_back_is_not_urgent() {
    let mut pace = Pace::default();
    let (now, _) = looked(&mut pace, SECOND, 100, |ms| seen(400 + ms, 0));
    let (now, at) = looked(&mut pace, now + MS, 10, |ms| seen(500 - ms, 0));
    assert!(!decision(&pace, now, &at).is_urgent());
}

#[test]
fn what_is_pending_is_waited_for_as_long_as_there_is_time() {
    let mut pace = Pace::default();
    let of = |ms| seen(380 + ms, 0);
    let (now, at) = looked(&mut pace, SECOND, 40, of);
    assert!(decision(&pace, now, &at).is_urgent());
    pace.evicted(now);
    let mut pending = Pending::default();
    pending.add(200 * MIB, now + 50 * MS);
    // Its growth has ended with it.
    let (later, at) = looked(&mut pace, now + MS, 10, |_| of(41));
    let waits = Decision::Wait { until: u64::MAX };
    assert_eq!(decision_beside(pending, &pace, later, &at), waits);
    // Another pod goes on, fast enough to be there before the memory is back.
    let (later, at) = looked(&mut pace, later + MS, 20, |ms| of(41 + 3 * ms));
    let decision = decision_beside(pending, &pace, later, &at);
    assert!(decision.is_urgent(), "{decision:?}");
    // Slower, it is not there before.
    let mut pace = Pace::default();
    pace.evicted(now);
    let (later, at) = looked(&mut pace, now + 3 * MS, 20, |ms| of(41 + ms / 2));
    assert_eq!(decision_beside(pending, &pace, later, &at), waits);
}

/// A few files that a victim leaves behind save no node whose disk fills up, and are pending for half a minute.
#[test]
fn what_is_pending_and_is_next_to_nothing_is_not_waited_for() {
    let decide = |amount| {
        let mut pace = Pace::default();
        pace.evicted(SECOND);
        let mut pending = Pending::default();
        pending.add(amount, 30 * SECOND);
        let of = |ms| seen(420 + ms / 20, 0);
        let (now, at) = looked(&mut pace, SECOND + 3 * MS, 400, of);
        decide_by(PaceProfile::Immediate, &pace, now, &at, pending)
    };
    assert!(decide(MIB).is_urgent());
    assert!(!decide(60 * MIB).is_urgent());
}

/// Memory that comes late does not save a node that is in a hurry.
#[test]
fn tmpfs_that_comes_too_late_takes_the_next_pod_with_it() {
    let mut pace = Pace::default();
    pace.evicted(SECOND);
    let mut pending = Pending::default();
    pending.add(200 * MIB, 6 * SECOND);
    let of = |ms| seen(390 + ms / 20, 0);
    let waits = Decision::Wait { until: u64::MAX };
    let (now, at) = looked(&mut pace, SECOND + 3 * MS, 1300, of);
    assert!(decision(&pace, now, &at).is_urgent());
    assert_eq!(
        decision_beside(pending, &pace, now, &at),
        waits,
        "there is time"
    );
    let (now, at) = looked(&mut pace, now + MS, 350, |ms| of(1301 + ms));
    assert!(decision_beside(pending, &pace, now, &at).is_urgent());
    let (now, at) = looked(&mut pace, now + MS, 400, |_| of(1651));
    let mut calm = Pace::default();
    calm.observe(now, &at);
    assert_eq!(
        decision_beside(pending, &calm, now, &at),
        Decision::Wait { until: u64::MAX }
    );
}

// R11
#[test]
fn the_minimum_reclaim_goes_at_the_kubelets_pace() {
    let mut pace = Pace::default();
    let with_reclaim = |hard| Shortage {
        resolved: 300 * MIB,
        ..seen(hard, 0)
    };
    let (now, at) = looked(&mut pace, SECOND, 100, |ms| with_reclaim(350 + ms));
    assert!(decision(&pace, now, &at).is_urgent());
    pace.note_own_eviction(true);
    pace.evicted(now);
    // The threshold is satisfied again, the minimum reclaim is not.
    let (later, at) = looked(&mut pace, now + 3 * MS, 5000, |_| with_reclaim(320));
    let Decision::Wait { until } = decision(&pace, later, &at) else {
        panic!("it is not urgent");
    };
    assert!(until >= now + MONITORING_INTERVAL_NS && until < now + MONITORING_INTERVAL_NS + SECOND);
    let (later, at) = looked(&mut pace, later, (until - later) / MS + 1, |_| at);
    assert_eq!(decision(&pace, later, &at), ONE_PACED);
}

/// The agent does not run for twelve seconds: two looks are not ten seconds of a shortage.
// R43
#[test]
fn a_time_without_looks_is_no_time_of_a_shortage() {
    let mut pace = Pace::default();
    let (now, _) = looked(&mut pace, SECOND, 100, |_| seen(450, 0));
    pace.exclude_gap(12 * SECOND, now + 12 * SECOND);
    let (later, at) = looked(&mut pace, now + 12 * SECOND, 100, |_| seen(450, 0));
    assert!(matches!(decision(&pace, later, &at), Decision::Wait { .. }));
    let (later, at) = looked(&mut pace, later, 10_000, |_| seen(450, 0));
    assert_eq!(decision(&pace, later, &at), ONE_PACED);
}

/// Nor of the last victim's end.
// R43
#[test]
fn the_next_pod_does_not_go_at_the_first_look_after_a_gap() {
    let goes_on = |is_noted: bool| {
        let mut pace = Pace::default();
        let (now, _) = looked(&mut pace, SECOND, 11_000, |_| seen(450, 0));
        pace.evicted(now);
        let later = now + 30 * SECOND;
        if is_noted {
            pace.exclude_gap(30 * SECOND, later);
        }
        let (later, at) = looked(&mut pace, later, 1, |_| seen(450, 0));
        decision(&pace, later, &at)
    };
    assert_eq!(goes_on(false), ONE_PACED);
    assert!(matches!(goes_on(true), Decision::Wait { .. }));
}

/// What has grown while the agent did not run may have ended. What goes on is seen at once.
// R43
#[test]
fn a_growth_from_before_a_stall_is_not_taken_to_go_on() {
    let decide = |per_second: u64| {
        let mut pace = Pace::default();
        let (now, _) = looked(&mut pace, SECOND, 100, |_| seen(300, 0));
        let of = |ms| seen(440 + ms * per_second / 1000, 0);
        pace.exclude_gap(12 * SECOND, now + 12 * SECOND);
        let (now, at) = looked(&mut pace, now + 12 * SECOND, 100, of);
        decision(&pace, now, &at)
    };
    assert!(!decide(0).is_urgent());
    assert!(decide(200).is_urgent());
}

/// A pod went for a disk, or for memory days ago, before the agent was started again: the threshold has never been met.
// R11
#[test]
fn an_eviction_for_something_else_brings_no_minimum_reclaim_into_force() {
    let mut pace = Pace::default();
    pace.evicted(SECOND);
    let of = |_| Shortage {
        resolved: THRESHOLD + 50 * MIB,
        ..seen(380, 0)
    };
    let (now, at) = looked(&mut pace, 2 * SECOND, 30_000, of);
    assert_eq!(decision(&pace, now, &at), Decision::Calm);
    assert!(!pace.is_met());
}

/// Eight seconds are left when a pod goes, be it for another scope, and what grows is seen to.
// R11
#[test]
fn whatever_a_pod_was_evicted_for_the_next_one_waits_for_half_of_what_is_left() {
    let of = |ms| seen(340 + ms / 100, 0);
    let mut pace = Pace::default();
    let (now, at) = looked(&mut pace, MS, 8900, of);
    assert!(decision(&pace, now, &at).is_urgent());
    pace.evicted_holding(now, Some((0, MS)));
    let waits = Decision::Wait { until: u64::MAX };
    let (now, at) = looked(&mut pace, now + MS, 3000, |ms| of(8901 + ms));
    assert_eq!(decision(&pace, now, &at), waits);
    let (now, at) = looked(&mut pace, now + MS, 2500, |ms| of(11_902 + ms));
    assert!(decision(&pace, now, &at).is_urgent());
}

#[test]
fn a_shortage_that_no_pod_can_end_takes_one() {
    let mut pace = Pace::default();
    let at = seen(450, 0);
    pace.observe(SECOND, &at);
    let can_end = |pace: &Pace, urgency, attainable| {
        let inputs = PaceInputs {
            pace: *pace,
            shortage: at,
            ..PaceInputs::default()
        };
        inputs.can_end_shortage(urgency, attainable)
    };
    let paced = Urgency::Paced { only_cache: false };
    assert!(can_end(&pace, paced, MIB));
    pace.evicted(SECOND);
    assert!(!can_end(&pace, paced, MIB));
    assert!(can_end(&pace, paced, 100 * MIB));
    let urgent = Urgency::Urgent {
        exhausted_in: 0,
        growth: 0,
    };
    assert!(can_end(&pace, urgent, MIB));
}

/// The first pod has ended the shortage, and all others together cannot give the minimum reclaim.
#[test]
fn a_minimum_reclaim_that_no_pod_can_end_takes_one() {
    let mut pace = Pace::default();
    let resolved = THRESHOLD + 200 * MIB;
    let at = |mib_used| Shortage {
        resolved,
        ..seen(mib_used, 0)
    };
    pace.observe(SECOND, &at(450));
    pace.note_own_eviction(true);
    pace.evicted(SECOND);
    let (now, seen) = (12 * SECOND, at(390));
    pace.observe(now, &seen);
    let inputs = PaceInputs {
        now,
        pace,
        shortage: seen,
        ..PaceInputs::default()
    };
    assert_eq!(inputs.decide(), ONE_PACED);
    let paced = Urgency::Paced { only_cache: false };
    assert!(!inputs.can_end_shortage(paced, 120 * MIB));
    assert!(inputs.can_end_shortage(paced, 200 * MIB));
}

/// The victim's own growth is not another pod's.
#[test]
fn a_victim_that_grows_takes_no_other_pod_with_it() {
    let pending = |now: u64| {
        let mut pending = Pending::default();
        pending.add_soon(200 * MIB, now + 50 * MS);
        pending
    };
    for (own, urgent) in [(100, false), (0, true)] {
        let mut pace = Pace::default();
        pace.evicted(SECOND);
        let of = |ms: u64| Shortage {
            dying: 200 * MIB + ms * own * MIB * 4 / 100,
            ..seen(420 + 4 * ms, 0)
        };
        let (now, at) = looked(&mut pace, SECOND + MS, 10, of);
        assert_eq!(
            decision_beside(pending(now), &pace, now, &at).is_urgent(),
            urgent
        );
    }
}

/// Between the read of the scope and that of its victim the victim has given back 100 MiB.
#[test]
fn what_comes_back_in_the_middle_of_a_look_is_no_growth_of_others() {
    for (skew, urgent) in [(0, true), (100, false)] {
        let mut pace = Pace::default();
        pace.evicted(SECOND);
        let of = |ms: u64| {
            let torn = ms >= 10;
            Shortage {
                dying: if torn { 100 * MIB } else { 200 * MIB },
                skew: if torn { skew * MIB } else { 0 },
                ..seen(420, 0)
            }
        };
        let (now, at) = looked(&mut pace, SECOND + MS, 11, of);
        let decision = decision(&pace, now, &at);
        assert_eq!(decision.is_urgent(), urgent, "{skew}");
    }
}

/// A writer's page cache was charged between the read of the statistics and that of the counter.
// R40
#[test]
fn what_no_statistics_list_is_no_growth_of_a_pod() {
    for (stat_lag, urgent) in [(0, true), (8, false)] {
        let mut pace = Pace::default();
        let of = |ms: u64| {
            let torn = ms == 10;
            Shortage {
                stat_lag: if torn { stat_lag * MIB } else { 0 },
                ..seen(470 + if torn { 8 } else { 0 }, 0)
            }
        };
        let (now, at) = looked(&mut pace, SECOND, 10, of);
        let decision = decision(&pace, now, &at);
        assert_eq!(decision.is_urgent(), urgent, "{stat_lag}");
    }
}

/// The pages of a process that ends leave the statistics before they are free, and count as page cache meanwhile. Where
/// the process waits for a CPU they count as used again.
// R40
#[test]
fn a_new_estimate_of_page_cache_is_no_growth() {
    let mut pace = Pace::default();
    let of = |ms: u64| {
        let estimated = if (50..80).contains(&ms) { 40 } else { 0 };
        Shortage {
            estimated: estimated * MIB,
            ..seen(430 - estimated, 0)
        }
    };
    let (now, at) = looked(&mut pace, SECOND, 90, of);
    let decision = decision(&pace, now, &at);
    assert!(!decision.is_urgent(), "{decision:?}");
    // Page cache that is estimated and then listed is none either; what is listed as anonymous is.
    for (listed, urgent) in [(430, false), (470, true)] {
        let mut pace = Pace::default();
        let of = |ms: u64| Shortage {
            estimated: if (50..80).contains(&ms) { 40 * MIB } else { 0 },
            ..seen(if ms < 80 { 430 } else { listed }, 0)
        };
        let (now, at) = looked(&mut pace, SECOND, 90, of);
        assert_eq!(
            decision_beside(Pending::default(), &pace, now, &at).is_urgent(),
            urgent,
            "{listed}"
        );
    }
}

proptest::proptest! {
    /// Whatever is seen, paced evictions are ten seconds apart.
    #[test]
    fn the_pace_is_kept(looks in proptest::collection::vec((1_u64..500, 300_u64..512, 0_u64..200), 1..400)) {
        let (mut pace, mut now, mut last) = (Pace::default(), SECOND, None);
        for (ms, hard, cache) in looks {
            now += ms * MS;
            let at = seen(hard, cache.min(512 - hard));
            pace.observe(now, &at);
            if let Decision::Evict { urgency } = decision(&pace, now, &at) {
                if let (Urgency::Paced { .. }, Some(last)) = (urgency, last) {
                    proptest::prop_assert!(now - last >= MONITORING_INTERVAL_NS);
                }
                last = Some(now);
                pace.evicted(now);
            }
        }
    }
}

/// Of 300 MiB of a victim 40 are uncharged and not free yet: they are used, and no one's.
// R43
#[test]
fn what_a_victim_frees_late_is_no_growth_of_others() {
    let at = |hard: u64, dying: u64| Shortage {
        dying: dying * MIB,
        ..seen(hard, 0)
    };
    let mut pace = Pace::default();
    pace.evicted(SECOND);
    looked(&mut pace, SECOND + MS, 100, |_| at(480, 300));
    let now = SECOND + 102 * MS;
    let pending = |ms: u64| Pending {
        amount: 5 * MIB,
        due: Some(now + ms * MS),
        ..Pending::default()
    };
    pace.observe(now, &at(480, 260));
    let decision = decision_beside(pending(1), &pace, now, &at(480, 260));
    assert!(!decision.is_urgent(), "{decision:?}");
    // The same of others: it is there at the next look, too.
    pace.observe(now + MS, &at(480, 260));
    let decision = decision_beside(pending(1), &pace, now + MS, &at(480, 260));
    assert!(decision.is_urgent(), "{decision:?}");
}

/// A pod that leaks up to its own limit is killed there: nothing has to go for it, where enough is left then.
#[test]
fn a_growth_that_ends_at_a_limit_of_its_own_is_not_urgent() {
    // 100 MiB a second, and in the end a burst, as after a pause of the machine.
    let is_urgent = |left: u64, growth: u64, burst: u64| {
        let grown = |ms: u64| ms / 10 + burst * (ms / 698);
        let grows = |ms: u64| Shortage {
            limited_growth: LimitedGrowth {
                grown: 0,
                growth: growth * MIB,
                left: left.saturating_sub(grown(ms)) * MIB,
            },
            ..seen(375 + grown(ms), 0)
        };
        let mut pace = Pace::default();
        let (now, last) = looked(&mut pace, 1, 700, grows);
        decision(&pace, now, &last).is_urgent()
    };
    assert!(!is_urgent(80, 100, 0));
    assert!(!is_urgent(80, 130, 8), "a burst of 4 GiB a second");
    assert!(is_urgent(135, 100, 0), "nothing would be left by then");
    assert!(is_urgent(80, 50, 0), "half of the growth has no such limit");
    assert!(is_urgent(80, 100, 30), "another pod has begun to grow");
}

/// A pod has met its limit, and the growth of all is seen anew since an eviction: it is another pod's.
// R43
#[test]
fn a_growth_of_before_bounds_none_of_a_moment() {
    let mut pace = Pace::default();
    let grows = |ms: u64| Shortage {
        limited_growth: LimitedGrowth {
            grown: 0,
            growth: 1000 * MIB,
            left: 0,
        },
        ..seen(395 + ms / 2, 0)
    };
    let (now, last) = looked(&mut pace, 1, 100, grows);
    assert!(decision(&pace, now, &last).is_urgent());
}

/// The same where it is over so fast, or the agent has seen so little, that no growth was seen for a quarter of a
/// second.
#[test]
fn a_burst_up_to_a_limit_of_its_own_is_not_urgent() {
    // Nothing, and then 500 MiB a second.
    let is_urgent = |quiet: u64, theirs: u64, left: u64| {
        let grown = |ms: u64| ms.saturating_sub(quiet) / 2;
        let mut pace = Pace::default();
        let (now, last) = looked(&mut pace, 1, quiet + 160, |ms| seen(345 + grown(ms), 0));
        assert!(decision(&pace, now, &last).is_urgent());
        let bounded = LimitedGrowth {
            grown: theirs * MIB,
            growth: 0,
            left: left * MIB,
        };
        let last = Shortage {
            limited_growth: bounded,
            ..last
        };
        decision(&pace, now, &last).is_urgent()
    };
    // 75 of the 80 MiB were seen of the pod.
    for quiet in [0, 90, 1000] {
        assert!(!is_urgent(quiet, 75, 48));
        assert!(is_urgent(quiet, 40, 48), "half of it is of others");
        assert!(is_urgent(quiet, 75, 85), "nothing would be left by then");
    }
}

#[test]
fn what_is_taken_back_leaves_a_pace_as_it_was() {
    let mut pace = Pace::default();
    let seen = |used| Shortage {
        available: 10,
        threshold: 20,
        resolved: 30,
        used,
        ..Shortage::default()
    };
    pace.observe(SECOND, &seen(100));
    pace.evicted(2 * SECOND);
    pace.observe(3 * SECOND, &seen(200));
    pace.observe(4 * SECOND, &seen(300));
    let before = pace;
    let choose = |pace: &mut Pace| {
        pace.evicted(5 * SECOND);
        pace.note_own_eviction(true);
    };
    choose(&mut pace);
    assert_ne!(pace, before);
    pace.roll_back(5 * SECOND, false, &before);
    assert_eq!(pace, before);
    // Another pod has gone since.
    choose(&mut pace);
    pace.evicted(6 * SECOND);
    let since = pace;
    pace.roll_back(5 * SECOND, false, &before);
    assert_eq!(pace, since);
}
