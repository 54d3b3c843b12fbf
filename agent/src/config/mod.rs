//! The configuration file: thresholds, quantities, durations.
