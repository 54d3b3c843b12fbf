//! Signals for people and programs: what is available, the thresholds, and how long it lasts at the present rate.

use std::time::Duration;

use evictd_engine::{
    Forecast, Observation, Signal, Threshold, ThresholdValue, Trend, units::signed,
};
use serde::{Serialize, Serializer};

use super::table::{Table, amount_of, or_dash};

/// State of one signal, held against one threshold. Amounts are in the signal's unit.
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
    /// `null` where it is a share of a capacity that cannot be read here.
    pub(super) threshold: Option<i64>,
    /// The threshold as it was configured.
    #[serde(skip)]
    pub(super) configured: String,
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
    /// One threshold, with the last observation of its signal and the trend.
    pub fn new(
        threshold: &Threshold,
        observation: Option<Observation>,
        trend: Option<&Trend>,
    ) -> Self {
        let capacity = match (&threshold.value, observation) {
            (_, Some(observation)) => Some(observation.capacity),
            // A quantity is the same for every capacity.
            (ThresholdValue::Quantity(_), None) => Some(0),
            (_, None) => None,
        };
        let amount = capacity.map(|capacity| threshold.amount(capacity));
        let trend = observation.and(trend).zip(amount);
        let forecast: Option<Forecast> = trend.map(|(trend, amount)| trend.forecast(amount));
        let seconds = |until: fn(&Forecast) -> Option<Duration>| {
            forecast.as_ref().and_then(until).map(|d| d.as_secs_f64())
        };
        let amount = amount.map(signed);
        Self {
            signal: threshold.signal,
            available: observation.map(|o| o.available),
            capacity: observation.map(|o| o.capacity),
            threshold: amount,
            configured: threshold.value.to_string(),
            grace_period_seconds: threshold.grace_period.as_secs_f64(),
            met: observation
                .zip(amount)
                .is_some_and(|(o, amount)| o.available < amount),
            until_threshold_seconds: seconds(|f| f.until_threshold),
            until_exhausted_seconds: seconds(|f| f.until_exhausted),
        }
    }

    /// The signal, and that the threshold is a soft one.
    pub fn name(&self) -> String {
        let soft = if self.grace_period_seconds > 0.0 {
            " soft"
        } else {
            ""
        };
        format!("{}{soft}", self.signal)
    }

    /// The threshold as an amount, or as it was configured.
    pub fn threshold(&self) -> String {
        let amount = |amount: i64| amount_of(self.signal.resource(), amount.into());
        self.threshold
            .map_or_else(|| self.configured.clone(), amount)
    }

    /// Describes when the threshold is met at the present rate.
    pub fn met_in(&self) -> String {
        match self.met {
            true => "met".to_owned(),
            false => or_dash(self.until_threshold_seconds.map(duration)),
        }
    }
}

/// Columns of a terminal whose width is not known.
const WIDTH: usize = 80;

/// Formats the signals for people, a line each; without the capacity where the line would be too long for a terminal.
pub(super) fn table(signals: &[SignalJson]) -> String {
    let whole = table_with(signals, true);
    match whole.lines().all(|line| line.chars().count() <= WIDTH) {
        true => whole,
        false => table_with(signals, false),
    }
}

fn table_with(signals: &[SignalJson], capacity: bool) -> String {
    let heading = if capacity { "CAPACITY>  " } else { "" };
    let mut table = Table::new(&format!(
        "SIGNAL  AVAILABLE>  {heading}THRESHOLD>  MET IN>  NONE IN>"
    ));
    for s in signals {
        let amount = |amount: i64| amount_of(s.signal.resource(), amount.into());
        let mut row = vec![
            s.name(),
            s.available.map_or_else(|| "not seen".to_owned(), amount),
            s.threshold(),
            s.met_in(),
            or_dash(s.until_exhausted_seconds.map(duration)),
        ];
        if capacity {
            row.insert(2, or_dash(s.capacity.map(amount)));
        }
        table.row(row);
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

    fn threshold(signal: Signal, value: &str, grace: u64) -> Threshold {
        Threshold {
            signal,
            value: value.parse().unwrap(),
            grace_period: Duration::from_secs(grace),
            min_reclaim: None,
        }
    }

    // The signal cannot be seen where the disk is not mounted, in a container for instance.
    #[test]
    fn a_share_of_what_cannot_be_seen_stays_a_share() {
        let of = |value: &str| {
            SignalJson::new(&threshold(Signal::ImageFsAvailable, value, 0), None, None)
        };
        let json = |value: &str| serde_json::to_value(of(value)).unwrap();
        assert_eq!(json("15%")["threshold"], serde_json::Value::Null);
        assert_eq!(json("1Gi")["threshold"], 1 << 30);
        let text = table(&[of("15%"), of("1Gi")]);
        assert!(
            text.contains(" 15% ") && text.contains(" 1.0 GiB "),
            "{text}"
        );
        assert!(!text.contains("0 B") && text.contains("not seen"), "{text}");
    }

    #[test]
    fn the_table_fits_on_a_terminal() {
        let row = |signal: Signal| {
            // As wide as amounts get: 1023.9 GiB, and ten digits.
            let (value, amount) = match signal.resource().is_of_bytes() {
                true => ("1048473Mi", 1_048_473 << 20),
                false => ("4Gi", 4 << 30),
            };
            let large = Observation {
                available: amount,
                capacity: amount,
                time: None,
            };
            // The kubelet has no soft threshold on it.
            let grace = if signal == Signal::AllocatableMemoryAvailable {
                0
            } else {
                90
            };
            let mut row = SignalJson::new(&threshold(signal, value, grace), Some(large), None);
            row.until_threshold_seconds = Some(7199.0);
            row.until_exhausted_seconds = Some(7199.0);
            row
        };
        let text = table(&Signal::ALL.map(row));
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(
            text.contains("1023.9 GiB") && !text.contains("CAPACITY"),
            "{text}"
        );
        assert!(text.contains("memory.available soft"), "{text}");
        let small = table(&[SignalJson::new(
            &threshold(Signal::MemoryAvailable, "100Mi", 0),
            None,
            None,
        )]);
        assert!(small.contains("CAPACITY"), "{small}");
    }

    #[test]
    fn durations_are_short() {
        let shown = [0.0, 9.96, 60.0, 600.0, 7200.0, 1e9].map(duration);
        assert_eq!(shown, ["0.0 s", "10.0 s", "60 s", "10 min", "2 h", "> 1 d"]);
    }
}
