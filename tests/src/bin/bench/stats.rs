//! Distributions, as they are printed and stored.

use serde::Serialize;

/// What a set of values looks like; the unit is that of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    pub n: usize,
    pub p50: f64,
    /// The 99th percentile: the largest value where there are fewer than a hundred.
    pub p99: f64,
    pub max: f64,
}

impl Distribution {
    /// The distribution of what the runs have of a value; `None` if none has it.
    pub fn over<T>(runs: &[&T], value: impl Fn(&T) -> Option<f64>) -> Option<Self> {
        Self::of(runs.iter().filter_map(|run| value(run)))
    }

    /// The distribution of some values; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        Some(Self {
            n: sorted.len(),
            p50: quantile(&sorted, 0.50)?,
            p99: quantile(&sorted, 0.99)?,
            max: *sorted.last()?,
        })
    }
}

/// In how many of the runs something holds.
pub fn count<T>(runs: &[&T], holds: impl Fn(&T) -> bool) -> usize {
    runs.iter().filter(|run| holds(run)).count()
}

/// The median, rounded.
pub fn median(of: Option<Distribution>) -> String {
    or_dash(of, |d| format!("{:.0}", d.p50))
}

/// A value as text, or a dash.
pub fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// The values in order; what is no number is left out.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The smallest value that at least this share of the values does not exceed ("nearest rank").
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let d = Distribution::of((1..=200).map(f64::from)).unwrap();
        assert_eq!((d.n, d.p50, d.p99, d.max), (200, 100.0, 198.0, 200.0));
        let few = Distribution::of([3.0, 1.0, f64::NAN, 2.0]).unwrap();
        assert_eq!((few.n, few.p50, few.p99, few.max), (3, 2.0, 3.0, 3.0));
        assert_eq!(Distribution::of([]), None);
    }
}
