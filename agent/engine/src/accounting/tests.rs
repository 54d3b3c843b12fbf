use std::{slice, time::Duration};

use super::*;
use crate::{
    pace::{Pace, PaceInputs},
    units::MS,
};

const MIB: u64 = 1 << 20;

/// A threshold without a minimum reclaim, and no floor.
fn at(threshold: u64) -> MemoryThresholds {
    MemoryThresholds {
        threshold: threshold * MIB,
        resolved: threshold * MIB,
        ..MemoryThresholds::default()
    }
}

/// A cgroup of v2 of 1000 MiB, guarded or not.
fn cgroup(guard: bool) -> Accounting {
    Accounting {
        capacity: 1000 * MIB,
        thresholds: at(100),
        is_machine: false,
        is_limited: true,
        is_root: false,
        counts_active_file: false,
        guard: guard.then_some(MemoryGuard {
            source: MemoryGuardSource::Counted,
            amount: 100 * MIB,
        }),
        protected_cache: 0,
    }
}

/// Page cache that is protected is not freed when it is written.
// R40
#[test]
fn what_is_to_be_written_frees_nothing_that_is_protected() {
    let dirty_or_writeback = |protected: u64, is_awaited| {
        let scope = Accounting {
            protected_cache: protected * MIB,
            guard: Some(MemoryGuard {
                source: MemoryGuardSource::Written { is_awaited },
                amount: 100 * MIB,
            }),
            ..cgroup(true)
        };
        let reading = MemoryReading {
            dirty_or_writeback: 250 * MIB,
            ..uses(700, 300)
        };
        let shortage = scope.sample(&reading, None, SwapUse::default()).shortage;
        (shortage.dirty_or_writeback / MIB, shortage.awaits_writeback)
    };
    assert_eq!(dirty_or_writeback(0, true), (250, true));
    assert_eq!(dirty_or_writeback(0, false), (250, false));
    assert_eq!(dirty_or_writeback(100, true), (200, true));
    assert_eq!(dirty_or_writeback(300, true), (0, true));
}

/// What is in use of it: page cache is inactive.
fn uses(anonymous: u64, cache: u64) -> MemoryReading {
    MemoryReading {
        usage: (anonymous + cache) * MIB,
        inactive_file: cache * MIB,
        ..MemoryReading::default()
    }
}

/// A machine of 1000 MiB on cgroup v2, guarded from 100 MiB on.
fn machine(threshold: u64) -> Accounting {
    Accounting {
        thresholds: at(threshold),
        is_machine: true,
        is_limited: false,
        is_root: true,
        guard: Some(MemoryGuard {
            source: MemoryGuardSource::Machine,
            amount: 100 * MIB,
        }),
        ..cgroup(true)
    }
}

fn memory(total: u64, available: u64, unreclaimable: u64) -> Option<MachineMemory> {
    Some(MachineMemory {
        total: total * MIB,
        available: available * MIB,
        unreclaimable: unreclaimable * MIB,
        pcp_free: 0,
    })
}

/// The kubelet counts 600 MiB of it as used and 200 of these as inactive page cache; so many of all are left.
fn look(machine: &Accounting, total: u64, available: u64) -> MemorySample {
    let left = memory(total, available, total - available);
    machine.sample(&uses(400, 200), left, SwapUse::default())
}

/// The trigger at the threshold is as far from the counter as the threshold from what is available.
fn assert_trigger_follows(scope: &Accounting, look: &MemorySample) {
    let trigger = scope.usage_limit(scope.thresholds.threshold, look.reclaimable_cache);
    let threshold = scope.thresholds.threshold;
    assert_eq!(trigger + threshold, look.usage + look.guarded_available + 1);
}

// R15: an accounting by which all page cache counts as available, and the kubelet's, by which the active part of it
// does not.
#[test]
fn active_page_cache_is_available_where_that_is_wanted() {
    let reading = MemoryReading {
        usage: 500 * MIB,
        inactive_file: 150 * MIB,
        active_file: 50 * MIB,
        ..MemoryReading::default()
    };
    let available = |counts_active_file| {
        let scope = Accounting {
            counts_active_file,
            ..cgroup(false)
        };
        let sample = scope.sample(&reading, None, SwapUse::default());
        assert_trigger_follows(&scope, &sample);
        sample.guarded_available / MIB
    };
    assert_eq!(available(false), 650);
    assert_eq!(available(true), 700);
}

#[test]
fn what_the_machine_lacks_is_lacking() {
    let scope = machine(100);
    let look = look(&scope, 1000, 90);
    assert_eq!(look.guarded_available, 90 * MIB);
    assert_trigger_follows(&scope, &look);
}

/// Memory that is plugged in, or that a balloon takes, is read before the capacity follows, and is no growth then
/// either.
#[test]
fn memory_that_comes_or_goes_is_no_growth() {
    for (total, available) in [(1000, 90), (3000, 2090), (950, 40)] {
        let shortage = look(&machine(100), total, available).shortage;
        assert_eq!(shortage.used, 910 * MIB);
        assert_eq!(shortage.headroom.immediate, available * MIB);
    }
}

// R40
#[test]
fn growth_is_urgent_where_only_protected_cache_is_left() {
    let decide = |guard: bool, protected: u64| {
        let scope = Accounting {
            protected_cache: protected * MIB,
            ..cgroup(guard)
        };
        let sample = |anonymous| scope.sample(&uses(anonymous, 400), None, SwapUse::default());
        let mut pace = Pace::default();
        for (ms, anonymous) in [(1, 520), (11, 540), (21, 560)] {
            pace.observe(ms * MS, &sample(anonymous).shortage);
        }
        let look = sample(560);
        assert_trigger_follows(&scope, &look);
        // The kubelet's count decides what is not urgent.
        assert_eq!(look.shortage.available, 440 * MIB);
        let inputs = PaceInputs {
            now: 21 * MS,
            pace,
            shortage: look.shortage,
            ..PaceInputs::default()
        };
        let is_urgent = inputs.decide().is_urgent();
        let immediate = look.shortage.headroom.immediate;
        (look.guarded_available / MIB, immediate / MIB, is_urgent)
    };
    assert_eq!(decide(true, 0), (440, 440, false));
    assert_eq!(decide(true, 300), (140, 140, false));
    assert_eq!(decide(true, 400), (40, 40, true));
    // The guard is switched off.
    assert_eq!(decide(false, 400), (440, 40, false));
    // A moment ago there was more of it.
    assert_eq!(decide(true, 700), (40, 40, true));
}

#[test]
fn what_the_machine_cannot_take_back_is_no_room() {
    let scope = Accounting {
        protected_cache: 200 * MIB,
        ..machine(100)
    };
    let look = look(&scope, 1000, 250);
    assert_eq!(look.guarded_available, 50 * MIB);
    assert_trigger_follows(&scope, &look);
    let shortage = look.shortage;
    assert_eq!(
        (shortage.used, shortage.headroom.immediate),
        (750 * MIB, 50 * MIB)
    );
    assert_eq!(shortage.available, 250 * MIB);
}

/// Page cache that is read takes free memory, and of a little of it `MemAvailable` takes half for needed.
// R40
#[test]
fn what_mem_available_leaves_out_is_no_growth() {
    let scope = machine(100);
    let look = |available: u64, unreclaimable: u64| {
        let memory = memory(1000, available, unreclaimable);
        let sample = scope.sample(&uses(400, 200), memory, SwapUse::default());
        (sample.guarded_available / MIB, sample.shortage.used / MIB)
    };
    assert_eq!(look(119, 670), (119, 670));
    assert_eq!(look(94, 670), (94, 670));
    assert_eq!(look(44, 720), (44, 720));
}

/// The OOM killer does not come before it is used up.
// R15
#[test]
fn swap_that_pods_may_use_is_left_on_the_machine() {
    let memory = memory(1000, 64, 936);
    for (protected, usable, available) in [(0, 0, 64), (0, 30, 94), (0, 1000, 600), (20, 1000, 600)]
    {
        let scope = Accounting {
            protected_cache: protected * MIB,
            ..machine(100)
        };
        let swap = SwapUse {
            swapped: 100 * MIB,
            usable: usable * MIB,
        };
        let look = scope.sample(&uses(400, 200), memory, swap);
        let seen = [look.guarded_available, look.shortage.available];
        assert_eq!(seen.map(|bytes| bytes / MIB), [available; 2]);
        assert_trigger_follows(&scope, &look);
    }
}

/// The guard is about the last bytes, not about the threshold.
#[test]
fn a_generous_threshold_stays_the_kubelets() {
    let available = |threshold, left| look(&machine(threshold), 1000, left).guarded_available / MIB;
    assert_eq!(available(500, 110), 510);
    assert_eq!(available(500, 90), 490);
    // A guard above the threshold would evict where nothing is short.
    assert_eq!(available(50, 60), 60);
}

/// The kernel does not tell slab that it can give back from slab in use: no fast growth counts on it.
#[test]
fn slab_of_a_cgroup_is_room_for_a_slow_growth_only() {
    let reading = MemoryReading {
        usage: 900 * MIB,
        inactive_file: 100 * MIB,
        slab_reclaimable: 150 * MIB,
        ..MemoryReading::default()
    };
    let look = cgroup(false).sample(&reading, None, SwapUse::default());
    let headroom = look.shortage.headroom;
    assert_eq!(
        (look.shortage.used, look.guarded_available),
        (650 * MIB, 200 * MIB)
    );
    assert_eq!(
        (headroom.immediate, headroom.deferred),
        (200 * MIB, 150 * MIB)
    );
    assert_eq!(
        look.reclaimable,
        100 * MIB,
        "the floor counts on none of it"
    );
}

#[test]
fn half_of_the_threshold_stands_in_for_a_floor_that_is_not_below_it() {
    let value = |text: &str| text.parse::<ThresholdValue>().unwrap();
    let hard = Threshold {
        signal: Signal::MemoryAvailable,
        value: value("100Mi"),
        grace_period: Duration::ZERO,
        min_reclaim: Some(value("20Mi")),
    };
    let of = |signal, floor| {
        MemoryThresholds::from_thresholds(slice::from_ref(&hard), signal, 1000 * MIB, floor)
    };
    for (floor, below, replaced) in [
        (Floor::Off, None, None),
        (Floor::Half, Some(50), None),
        (Floor::Of(&value("99Mi")), Some(99), None),
        (Floor::Of(&value("150Mi")), Some(50), Some(150)),
    ] {
        let expected = MemoryThresholds {
            threshold: 100 * MIB,
            resolved: 120 * MIB,
            floor: below.map(|mib: u64| mib * MIB),
            is_kubelets: false,
        };
        assert_eq!(of(Signal::MemoryAvailable, floor), expected);
        let told = floor.replaced(100 * MIB, signed(1000 * MIB));
        assert_eq!(told, replaced.map(|mib: u64| mib * MIB));
        let nothing = of(Signal::AllocatableMemoryAvailable, floor);
        assert_eq!(nothing, MemoryThresholds::default());
        assert_eq!(floor.replaced(0, signed(1000 * MIB)), None);
    }
}

#[test]
fn the_kernel_kills_a_task_that_has_used_up_what_was_left() {
    let thresholds = MemoryThresholds {
        floor: Some(80 * MIB),
        ..at(160)
    };
    assert_eq!(thresholds.step(), 10 * MIB);
    let pod = PublishedPod {
        held: 95 * MIB,
        huge_pages: 0,
        rank: 0,
        ranks: 16,
    };
    let limits_of = |pod| thresholds.kill_limits(pod, 260 * MIB, 2 * MIB);
    let limits = |rank| limits_of(PublishedPod { rank, ..pod });
    let expected = |min_task: u64| KillLimits {
        min_task_bytes: min_task * MIB,
        max_task_bytes: 370 * MIB,
        min_pod_bytes: 105 * MIB,
    };
    assert_eq!(
        limits(0),
        expected(210),
        "95 + 100, and a step; 95 + 260 / 32, in quarters of a step"
    );
    assert_eq!(limits(3), expected(225));
    // The pod's cgroup is charged for them, and no task's counter shows them.
    let huge_pages = limits_of(PublishedPod {
        huge_pages: 1000 * MIB,
        ..pod
    });
    assert_eq!(
        huge_pages,
        KillLimits {
            min_pod_bytes: 1105 * MIB,
            ..expected(210)
        }
    );
}

/// Up to 16 pods that grow alike use up what was left while the agent is stopped: each has grown enough to be killed for it.
#[test]
fn pods_that_grow_alike_are_killed_by_the_guard() {
    for (threshold, headroom) in [(100, 100), (100, 300), (100, 1024), (1024, 1100)] {
        for growers in 1..=16 {
            let pod = PublishedPod {
                held: 40 * MIB,
                huge_pages: 0,
                rank: 0,
                ranks: 16,
            };
            let limits = at(threshold).kill_limits(pod, headroom * MIB, 2 * MIB);
            let grown = (40 + headroom / growers) * MIB;
            assert!(
                grown >= limits.min_pod_bytes,
                "{growers} of {headroom}: {limits:?}"
            );
        }
    }
}
