use std::cell::Cell;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// What a look finds where 400 MiB are charged, 5 of them kernel memory, and 100 are available, when this many bytes of
/// page cache are missing in `memory.stat`.
fn lagging(missing: u64) -> MemorySample {
    MemorySample {
        usage: 400 * MIB,
        guarded_available: (100 * MIB).saturating_sub(missing),
        uncategorized: 5 * MIB + missing,
        ..MemorySample::default()
    }
}

/// A clock and a kernel.
#[derive(Default)]
struct Machine {
    now: Cell<u64>,
    looks: Cell<u64>,
    added_up: Cell<u64>,
}

impl Machine {
    /// A look with a threshold of 50 MiB, at a kernel that tells what is missing.
    fn look(&self, stat_lag: &mut StatLag, missing: impl Fn(&Self) -> u64) -> MemorySample {
        self.looks.set(0);
        self.added_up.set(0);
        let read = || {
            self.looks.set(self.looks.get() + 1);
            Ok(lagging(missing(self)))
        };
        let is_short =
            |sample: &MemorySample, missing: u64| sample.guarded_available + missing < 50 * MIB;
        let add_up = || self.added_up.set(self.added_up.get() + 1);
        let after = |pause: Duration| {
            self.pass(u64::try_from(pause.as_nanos()).unwrap());
            self.now.get()
        };
        stat_lag.sample(read, is_short, add_up, after).unwrap().0
    }

    fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    fn did(&self) -> (u64, u64) {
        (self.looks.get(), self.added_up.get())
    }
}

/// One that has seen what is usual.
fn stat_lag() -> (Machine, StatLag) {
    let (machine, mut stat_lag) = (Machine::default(), StatLag::new(2, false));
    machine.look(&mut stat_lag, |_| 0);
    (machine, stat_lag)
}

/// Page cache that is only not yet flushed is no working set.
#[test]
fn lagging_statistics_are_flushed_without_a_pause() {
    let (machine, mut stat_lag) = stat_lag();
    let missing = |machine: &Machine| match machine.added_up.get() {
        0 => 80 * MIB,
        _ => 0,
    };
    assert_eq!(machine.look(&mut stat_lag, missing), lagging(0));
    assert_eq!((machine.did(), machine.now.get()), ((2, 1), 0));
}

/// Another reader is in the middle of a flush.
#[test]
fn what_is_missing_for_a_moment_is_waited_for() {
    let (machine, mut stat_lag) = stat_lag();
    let missing = |machine: &Machine| match machine.now.get() {
        0..250_000 => 80 * MIB,
        _ => 0,
    };
    assert_eq!(machine.look(&mut stat_lag, missing), lagging(0));
    assert_eq!(machine.did(), (5, 4));
}

/// Not a lag but memory that is in no line: it is really in use.
#[test]
fn what_stays_missing_is_believed_and_then_usual() {
    let (machine, mut stat_lag) = stat_lag();
    assert_eq!(machine.look(&mut stat_lag, |_| 80 * MIB), lagging(80 * MIB));
    assert_eq!(machine.now.get(), FLUSH_DEADLINE_NS);
    machine.look(&mut stat_lag, |_| 80 * MIB);
    assert_eq!(machine.did(), (1, 0));
}

/// What it is, the next look tells: it is said, and the kernel is told to flush.
// R40
#[test]
fn nothing_is_waited_for_that_is_short_all_the_same() {
    let (machine, mut stat_lag) = stat_lag();
    // 20 MiB less than the threshold, with all that may be missing.
    let read = || {
        let mut sample = lagging(60 * MIB);
        sample.guarded_available -= 30 * MIB;
        Ok(sample)
    };
    let is_short =
        |sample: &MemorySample, missing: u64| sample.guarded_available + missing < 90 * MIB;
    let told = Cell::new(0);
    let after = |pause: Duration| {
        assert!(pause.is_zero());
        0
    };
    let sampled = stat_lag.sample(read, is_short, || told.set(told.get() + 1), after);
    let (sample, missing) = sampled.unwrap();
    assert_eq!(
        (sample.shortage.stat_lag, missing, told.get()),
        (60 * MIB, 60 * MIB, 1)
    );
    // That has not made it the usual.
    machine.look(&mut stat_lag, |machine| {
        if machine.added_up.get() == 0 {
            60 * MIB
        } else {
            0
        }
    });
    assert_eq!(machine.did(), (2, 1));
}

/// What CPUs keep to themselves, a little kernel memory and a few huge pages on their way are nothing to wait for,
/// however many CPUs there are; it is flushed all the same, until it turns out to stay.
#[test]
fn a_little_is_not_waited_for() {
    for cpus in [1, 2, 32] {
        let (machine, mut stat_lag) = (Machine::default(), StatLag::new(cpus, false));
        machine.look(&mut stat_lag, |_| 0);
        let missing = 8 * MIB + 3 * 64 * page_size() * cpus;
        let unlisted = |sample: MemorySample| sample.shortage.stat_lag;
        let first = machine.look(&mut stat_lag, |_| missing);
        assert_eq!(
            (machine.did(), unlisted(first)),
            ((1, 1), missing),
            "{cpus} CPUs"
        );
        machine.pass(FLUSH_DEADLINE_NS);
        let later = machine.look(&mut stat_lag, |_| missing);
        assert_eq!((machine.did(), unlisted(later)), ((1, 0), 0), "{cpus} CPUs");
    }
}

/// A lag that grows little by little, and is gone for a moment whenever the kernel is told to flush, never becomes
/// usual.
#[test]
fn a_lag_does_not_become_usual() {
    let (machine, mut stat_lag) = stat_lag();
    let (mut missing, mut added_up) = (0, 0);
    for _ in 0..1000 {
        missing += MIB;
        assert!(missing < 4 * MIB, "added up in good time");
        machine.look(&mut stat_lag, |_| missing);
        if machine.added_up.get() > 0 {
            added_up += 1;
            missing = 0;
        }
        machine.pass(10 * FLUSH_DEADLINE_NS);
    }
    assert!(added_up > 200);
    // However fast it comes back.
    let mut seen = lagging(0);
    for _ in 0..10 {
        let back = |machine: &Machine| {
            if machine.added_up.get() == 0 {
                80 * MIB
            } else {
                0
            }
        };
        seen = machine.look(&mut stat_lag, back);
        machine.pass(10 * FLUSH_DEADLINE_NS);
    }
    assert_eq!(seen, lagging(0));
}

/// Where kernel memory has a counter, all that is uncategorized lags until the kernel has flushed by itself. So much of it as
/// counters differ by tells no growth; the rest is in use. What is in no line for good becomes usual.
#[test]
fn a_lag_that_no_flush_ends_counts_as_far_as_it_is_long() {
    let (machine, mut stat_lag) = (Machine::default(), StatLag::new(2, true));
    machine.look(&mut stat_lag, |_| 0);
    for _ in 0..3 {
        let sample = machine.look(&mut stat_lag, |_| 80 * MIB);
        assert_eq!(sample.shortage.stat_lag, stat_lag.slack);
        machine.pass(FLUSH_DEADLINE_NS);
    }
    machine.pass(COUNTED_DEADLINE_NS);
    let later = machine.look(&mut stat_lag, |_| 80 * MIB);
    assert_eq!(later.shortage.stat_lag, 0);
    let more = machine.look(&mut stat_lag, |_| 160 * MIB);
    assert_eq!(more.shortage.stat_lag, stat_lag.slack);
}

/// Kernel memory that is given back is believed at once; so is another scope.
#[test]
fn the_usual_follows() {
    let (machine, mut stat_lag) = (Machine::default(), StatLag::new(2, false));
    machine.look(&mut stat_lag, |_| 80 * MIB);
    machine.look(&mut stat_lag, |_| 0);
    machine.look(&mut stat_lag, |machine| {
        if machine.looks.get() < 2 { 80 * MIB } else { 0 }
    });
    assert_eq!(machine.did(), (2, 1));
    stat_lag.forget();
    assert_eq!(machine.look(&mut stat_lag, |_| 80 * MIB), lagging(80 * MIB));
    assert_eq!(machine.did(), (1, 0));
}

proptest! {
    /// Whatever the number of CPUs and the size of the machine: page cache as large as the threshold that is not added
    /// up yet takes no pod. 100Mi is the kubelet's default; with 123 CPUs the slack of the CPUs alone is as much.
    #[test]
    fn the_guard_stays_on(
        cpus in prop_oneof![1_u64..=1024, Just(256), Just(512)],
        threshold in 17 * MIB..2 << 40,
        above in 0_u64..=100,
    ) {
        let (now, added_up) = (Cell::new(0), Cell::new(false));
        // So much more than the threshold is available, in per cent of half of it.
        let available = threshold + threshold / 200 * above;
        let read = |missing: u64| MemorySample {
            usage: 4 << 40,
            guarded_available: available - missing,
            uncategorized: missing,
            ..MemorySample::default()
        };
        let is_short = |sample: &MemorySample, missing: u64| sample.guarded_available + missing < threshold;
        let after = |pause: Duration| {
            now.set(now.get() + u64::try_from(pause.as_nanos()).unwrap());
            now.get()
        };
        let mut stat_lag = StatLag::new(cpus, false);
        stat_lag.bound(threshold);
        stat_lag.sample(|| Ok(read(0)), is_short, || (), after).unwrap();
        let missing = || if added_up.get() { 0 } else { threshold };
        let looks = || Ok(read(missing()));
        let (seen, left) = stat_lag.sample(looks, is_short, || added_up.set(true), after).unwrap();
        prop_assert_eq!((seen.guarded_available, left), (available, 0));
    }
}
