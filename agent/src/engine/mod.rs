//! Decides: thresholds, state, ranking. No I/O, no clock, no async.
