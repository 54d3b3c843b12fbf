use std::cell::Cell;

use super::*;

const MIB: u64 = 1 << 20;

fn pages(count: u64) -> u64 {
    count * page_size()
}

/// What a look of a scope with 100 MiB available finds when this many bytes of page cache are missing in `memory.stat`.
fn look(missing: u64) -> Look {
    Look {
        available: 100 * MIB - missing,
        unlisted: 5 * MIB + missing,
        ..Look::default()
    }
}

/// Looks with a threshold of 50 MiB, and what is missing as a function of the time in microseconds; what was seen at last and
/// how many looks that took.
fn watch(lag: &mut Lag, missing: impl Fn(u64) -> u64) -> (Look, u64, u64) {
    let (now, looks) = (Cell::new(0), Cell::new(0));
    let read = || {
        looks.set(looks.get() + 1);
        Ok(look(missing(now.get() / 1000)))
    };
    let after = |pause: Duration| {
        now.set(now.get() + u64::try_from(pause.as_nanos()).unwrap());
        now.get()
    };
    let certain = |look: &Look, missing: u64| look.available + missing < 50 * MIB;
    let seen = lag.look(read, certain, after).unwrap();
    (seen, looks.get(), now.get())
}

/// Page cache that is only not yet added up is no working set.
#[test]
fn what_is_missing_for_a_moment_is_waited_for() {
    let mut lag = Lag::new(2);
    watch(&mut lag, |_| 0);
    let (seen, looks, _) = watch(&mut lag, |us| if us < 250 { 80 * MIB } else { 0 });
    assert_eq!((seen, looks), (look(0), 4));
}

/// Not a lag but memory that no line tells of: somebody really takes it.
#[test]
fn what_stays_missing_is_believed_and_then_usual() {
    let mut lag = Lag::new(2);
    watch(&mut lag, |_| 0);
    let (seen, _, took) = watch(&mut lag, |_| 80 * MIB);
    assert_eq!((seen, took), (look(80 * MIB), PATIENCE_NS));
    let (_, looks, _) = watch(&mut lag, |_| 80 * MIB);
    assert_eq!(looks, 1);
}

#[test]
fn nobody_waits_where_it_makes_no_difference() {
    let mut lag = Lag::new(2);
    watch(&mut lag, |_| 0);
    let certain = |_: &Look, _| true;
    let read = || Ok(look(80 * MIB));
    let now = Cell::new(0);
    let at = |pause: Duration| {
        assert!(pause.is_zero());
        now.get()
    };
    lag.look(read, certain, at).unwrap();
    // That has not made it the usual: a look for which it matters has what is left of the patience.
    let (_, looks, _) = watch(&mut lag, |us| if us < 50 { 80 * MIB } else { 0 });
    assert_eq!(looks, 2);
    lag.look(read, certain, at).unwrap();
    now.set(PATIENCE_NS);
    lag.look(read, certain, at).unwrap();
    let (_, looks, _) = watch(&mut lag, |_| 80 * MIB);
    assert_eq!(looks, 1);
}

/// What CPUs keep to themselves, and a little kernel memory, is nothing to wait for, however many CPUs there are.
#[test]
fn what_cpus_keep_to_themselves_is_no_lag() {
    for cpus in [1, 2, 128] {
        let mut lag = Lag::new(cpus);
        watch(&mut lag, |_| 0);
        let (_, looks, _) = watch(&mut lag, |_| 2 * MIB + pages(3 * 64) * cpus);
        assert_eq!(looks, 1, "{cpus} CPUs");
    }
}

/// Kernel memory that is given back is believed at once; so is another scope.
#[test]
fn the_usual_follows() {
    let mut lag = Lag::new(2);
    watch(&mut lag, |_| 80 * MIB);
    watch(&mut lag, |_| 0);
    let (_, looks, _) = watch(&mut lag, |us| if us < 50 { 80 * MIB } else { 0 });
    assert_eq!(looks, 2);
    lag.forget();
    let (seen, looks, _) = watch(&mut lag, |_| 80 * MIB);
    assert_eq!((seen, looks), (look(80 * MIB), 1));
}
