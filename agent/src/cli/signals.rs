//! What is left of everything, and how long it lasts at the present rate.

use std::time::Duration;

use evictd_engine::{Forecast, Observation, Signal, Threshold, Trend};
use serde::{Serialize, Serializer};

use super::table::{Alignment, Table, amount_of};

/// What is left of one signal, held against one threshold. Amounts are in the signal's unit.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SignalJson {
    #[serde(serialize_with = "name")]
    pub(super) signal: Signal,
    /// Absent if it cannot be read here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity: Option<i64>,
    pub(super) threshold: i64,
    pub(super) grace_period_seconds: f64,
    /// Whether less than the threshold is left.
    pub(super) met: bool,
    /// At the present rate; absent when it is not heading there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_threshold_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_exhausted_seconds: Option<f64>,
}

fn name<S: Serializer>(signal: &Signal, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(signal)
}

impl SignalJson {
    /// One threshold, against what was seen of its signal last and before.
    pub fn new(
        threshold: &Threshold,
        observation: Option<Observation>,
        trend: Option<&Trend>,
    ) -> Self {
        let amount = threshold.amount(observation.map_or(0, |o| o.capacity));
        let trend = observation.and(trend);
        let forecast: Option<Forecast> = trend.map(|trend| trend.forecast(amount));
        let seconds = |until: fn(&Forecast) -> Option<Duration>| {
            forecast.as_ref().and_then(until).map(|d| d.as_secs_f64())
        };
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        Self {
            signal: threshold.signal,
            available: observation.map(|o| o.available),
            capacity: observation.map(|o| o.capacity),
            threshold: amount,
            grace_period_seconds: threshold.grace_period.as_secs_f64(),
            met: observation.is_some_and(|o| o.available < amount),
            until_threshold_seconds: seconds(|f| f.until_threshold),
            until_exhausted_seconds: seconds(|f| f.until_exhausted),
        }
    }
}

/// For people, a line each.
pub(super) fn table(signals: &[SignalJson]) -> String {
    let mut table = Table::new(&[
        ("SIGNAL", Alignment::Left),
        ("AVAILABLE", Alignment::Right),
        ("CAPACITY", Alignment::Right),
        ("THRESHOLD", Alignment::Right),
        ("THRESHOLD IN", Alignment::Right),
        ("NOTHING LEFT IN", Alignment::Right),
        ("NOTE", Alignment::Left),
    ]);
    for s in signals {
        let amount = |amount: Option<i64>| match amount {
            Some(amount) => amount_of(s.signal.resource(), amount.into()),
            None => "-".to_owned(),
        };
        let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), duration);
        let note = match (s.available, s.met, s.grace_period_seconds > 0.0) {
            (None, ..) => "not to be seen here".to_owned(),
            (_, met, soft) => {
                let soft = soft.then(|| format!("soft, {}", duration(s.grace_period_seconds)));
                let met = met.then(|| "met".to_owned());
                soft.into_iter().chain(met).collect::<Vec<_>>().join(", ")
            }
        };
        table.row([
            s.signal.to_string(),
            amount(s.available),
            amount(s.capacity),
            amount(Some(s.threshold)),
            time(s.until_threshold_seconds),
            time(s.until_exhausted_seconds),
            note,
        ]);
    }
    table.render()
}

/// Seconds as people say them; a day is beyond every rate.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 86_400.0 => format!("{:.0} h", s / 3600.0),
        _ => "> 1 d".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let shown = [0.0, 9.96, 60.0, 600.0, 7200.0, 1e9].map(duration);
        assert_eq!(shown, ["0.0 s", "10.0 s", "60 s", "10 min", "2 h", "> 1 d"]);
    }
}
