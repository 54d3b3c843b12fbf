//! Where things are heading at the present rate: time until a threshold, until nothing is left, until a pod
//! reaches its limit.

use std::time::Duration;

use crate::units::signed;

/// Number of samples that a trend remembers.
const SAMPLES: usize = 16;

/// The recent course of one number: what a signal has left, or what a pod uses.
///
/// It remembers samples from all of a window, however often it is told, and fits a line through them. It allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Trend {
    window_nanos: i64,
    /// Time in nanoseconds of any one clock, and value; the latest last.
    samples: [(i64, i64); SAMPLES],
    count: usize,
}

/// Forecast for a signal that must not run low, made from its trend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Time until less than the threshold is left; zero if that is the case already, `None` if it is not heading there.
    pub until_threshold: Option<Duration>,
    /// Time until nothing is left: for memory, until the OOM killer comes.
    pub until_exhausted: Option<Duration>,
}

impl Trend {
    /// A trend over this window; older samples are forgotten.
    pub fn new(window: Duration) -> Self {
        Self {
            window_nanos: i64::try_from(window.as_nanos()).unwrap_or(i64::MAX),
            samples: [(0, 0); SAMPLES],
            count: 0,
        }
    }

    /// Takes in a value; one that is not newer than the last sample is none.
    pub fn observe(&mut self, time: i64, value: i64) {
        if self.latest().is_some_and(|(last, _)| time <= last) {
            return;
        }
        let window = self.window_nanos;
        let stale = self
            .samples()
            .iter()
            .take_while(|(old, _)| time.saturating_sub(*old) > window)
            .count();
        let drop = if stale == 0 && self.count == SAMPLES {
            1
        } else {
            stale
        };
        self.samples.copy_within(drop..self.count, 0);
        self.count -= drop;
        // The latest takes the place of one that came soon after the one before.
        let apart = window / SAMPLES as i64;
        if let [.., (before, _), (last, _)] = self.samples()
            && last.saturating_sub(*before) < apart
        {
            self.count -= 1;
        }
        if let Some(slot) = self.samples.get_mut(self.count) {
            *slot = (time, value);
            self.count += 1;
        }
    }

    /// The change in units per second: the slope of the line of least squares. `None` from fewer than two samples.
    pub fn rate(&self) -> Option<f64> {
        let (origin, base) = *self.samples().first()?;
        let points = self.samples().iter().map(|(time, value)| {
            let seconds = (i128::from(*time) - i128::from(origin)) as f64 / 1e9;
            (seconds, (i128::from(*value) - i128::from(base)) as f64)
        });
        let count = self.count as f64;
        let (time, value) = points
            .clone()
            .fold((0.0, 0.0), |(t, v), (time, value)| (t + time, v + value));
        let (mean_time, mean_value) = (time / count, value / count);
        let (mut above, mut below) = (0.0, 0.0);
        for (time, value) in points {
            above += (time - mean_time) * (value - mean_value);
            below += (time - mean_time) * (time - mean_time);
        }
        (self.count > 1 && below > 0.0).then(|| above / below)
    }

    /// Time from the last sample until the line reaches a value; zero if it is there, `None` if it is heading
    /// elsewhere or at an unknown place.
    pub fn until(&self, value: i64) -> Option<Duration> {
        let (_, now) = self.latest()?;
        if now == value {
            return Some(Duration::ZERO);
        }
        let distance = (i128::from(value) - i128::from(now)) as f64;
        Duration::try_from_secs_f64(distance / self.rate()?).ok()
    }

    /// Computes the forecast for the signal: `threshold` is the amount below which it is too low.
    pub fn forecast(&self, threshold: u64) -> Forecast {
        let threshold = signed(threshold);
        let has_less_than = |amount| self.latest().is_some_and(|(_, now)| now < amount);
        let falls_below = |amount| {
            if has_less_than(amount) {
                Some(Duration::ZERO)
            } else {
                self.falls_to(amount)
            }
        };
        Forecast {
            until_threshold: falls_below(threshold),
            until_exhausted: falls_below(0),
        }
    }

    /// Computes the same as [`Trend::until`], but only downwards: standing at a value is not heading below it.
    fn falls_to(&self, value: i64) -> Option<Duration> {
        self.until(value)
            .filter(|_| self.rate().is_some_and(|rate| rate < 0.0))
    }

    fn samples(&self) -> &[(i64, i64)] {
        self.samples.get(..self.count).unwrap_or_default()
    }

    fn latest(&self) -> Option<(i64, i64)> {
        self.samples().last().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = crate::units::SECOND.cast_signed();
    const MI: i64 = 1 << 20;

    fn trend(samples: &[(i64, i64)]) -> Trend {
        let mut trend = Trend::new(Duration::from_secs(10));
        for (time, value) in samples {
            trend.observe(*time, *value);
        }
        trend
    }

    #[test]
    fn a_steady_leak_is_foretold() {
        // R44: 50Mi a second, 300Mi left, threshold 100Mi.
        let trend = trend(&[(0, 400 * MI), (SECOND, 350 * MI), (2 * SECOND, 300 * MI)]);
        assert_eq!(trend.rate(), Some(-50.0 * MI as f64));
        assert_eq!(
            trend.forecast(100 * MI as u64),
            Forecast {
                until_threshold: Some(Duration::from_secs(4)),
                until_exhausted: Some(Duration::from_secs(6))
            }
        );
    }

    #[test]
    fn what_is_not_heading_there_gets_no_time() {
        // R44
        let rising = trend(&[(0, 100), (SECOND, 200)]);
        assert_eq!(rising.forecast(150), Forecast::default());
        assert_eq!(rising.until(300), Some(Duration::from_secs(1)));
        assert_eq!(
            trend(&[(0, 100), (SECOND, 100)]).forecast(100),
            Forecast::default()
        );
        assert_eq!(trend(&[(0, 100)]).forecast(50), Forecast::default());
        assert_eq!(trend(&[]).forecast(50), Forecast::default());
        let below = trend(&[(0, 40)]).forecast(50);
        assert_eq!(
            (below.until_threshold, below.until_exhausted),
            (Some(Duration::ZERO), None)
        );
    }

    #[test]
    fn only_the_recent_past_counts() {
        let mut samples = vec![(0, 0)];
        samples.extend((0..40).map(|i| ((20 + i) * SECOND, 1000 - 10 * i)));
        assert_eq!(trend(&samples).rate().map(f64::round), Some(-10.0));
        // A clock that goes back or stands still adds nothing.
        let before = trend(&[(0, 10), (SECOND, 20)]);
        let after = trend(&[(0, 10), (SECOND, 20), (SECOND, 90), (0, 90)]);
        assert_eq!(before.rate(), after.rate());
    }

    /// A manager under PID pressure looks every 20 ms.
    #[test]
    fn the_rate_is_that_of_the_window_however_often_it_is_told() {
        // R44: 10 a second, with a jitter from look to look.
        for every in [20, 250, 1000] {
            let samples = (0..10_000 / every).map(|look| {
                let at = look * every;
                (at * SECOND / 1000, 1000 - at / 100 + 5 * (look % 2))
            });
            let rate = trend(&samples.collect::<Vec<_>>()).rate().unwrap();
            assert!((-12.0..-8.0).contains(&rate), "{every} ms: {rate}");
        }
    }

    proptest! {
        #[test]
        fn no_samples_make_it_panic(
            samples in prop::collection::vec(any::<(i64, i64)>(), 0..40),
            value in any::<i64>(),
        ) {
            let trend = trend(&samples);
            let _ = (trend.until(value), trend.forecast(value.unsigned_abs()));
        }
    }
}
