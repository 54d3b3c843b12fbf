//! What is kept of one eviction for whoever wants to know afterwards how it came about (R49).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::picture::{Axes, Picture};
use crate::{
    engine::{Resource, Signal},
    evict::journal::{Eviction, Finish},
};

/// Version of the form.
const VERSION: u32 = 1;
const MIB: f64 = (1 << 20) as f64;
/// Who used most, beside the picture.
const SHOWN: usize = 8;

/// A pod as it stood when somebody was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// Namespace and name.
    pub pod: String,
    /// Its working set, in bytes; absent when it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// What it had requested, in bytes.
    pub request: u64,
    /// Its priority.
    pub priority: i32,
    /// Its QoS class.
    pub qos_class: String,
    /// Whether it is the one that was evicted.
    pub evicted: bool,
}

/// One eviction, and what was seen before and after it. Times are in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Of this form.
    pub version: u32,
    /// As the journal has it.
    pub eviction: Eviction,
    /// What became of it; absent where nobody waited for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// For each signal when it was looked at, and what was available in its own unit.
    pub samples: BTreeMap<String, Vec<(u64, u64)>>,
    /// The pods in the order of eviction, where memory was short.
    pub pods: Vec<Standing>,
}

impl Incident {
    /// An eviction of which nothing else is known yet.
    pub fn new(eviction: Eviction, pods: Vec<Standing>) -> Self {
        Self {
            version: VERSION,
            eviction,
            finish: None,
            samples: BTreeMap::new(),
            pods,
        }
    }

    /// The moments of it that are known, in their order.
    pub fn moments(&self) -> Vec<(&'static str, u64)> {
        let stages = self.eviction.stages;
        let finish = self.finish.as_ref();
        let mut moments = vec![
            ("crossed", stages.crossed),
            ("woken", stages.woken),
            ("decided", stages.decided),
            (
                if self.eviction.shadow {
                    "chosen"
                } else {
                    "SIGKILL"
                },
                stages.signalled,
            ),
            ("gone", finish.map_or(0, |f| f.exited)),
            ("available again", finish.map_or(0, |f| f.freed)),
        ];
        moments.retain(|(_, time)| *time != 0);
        moments
    }

    /// The first moment that is known: times are told from there.
    pub fn start(&self) -> u64 {
        self.moments().first().map_or(0, |(_, time)| *time)
    }

    /// What was available over time, as SVG; `None` when that was not recorded.
    pub fn picture(&self) -> Option<String> {
        let eviction = &self.eviction;
        let samples = self.samples.get(&eviction.signal)?;
        let resource = eviction.signal.parse::<Signal>().ok()?.resource();
        let (scale, unit) = match resource {
            Resource::Memory | Resource::EphemeralStorage => (MIB, "MiB"),
            Resource::Inodes | Resource::Pids => (1.0, ""),
        };
        let start = self.start();
        let ms = |time: u64| (i128::from(time) - i128::from(start)) as f64 / 1e6;
        let end = self.moments().last().map_or(0.0, |(_, time)| ms(*time));
        // As much of the time before as it took, and enough to see what it came from.
        let (from, to) = (-(end * 2.0).max(250.0), (end * 1.5).max(100.0));
        let points = samples.iter().map(|(t, n)| (ms(*t), *n as f64 / scale));
        let points: Vec<_> = points.filter(|(t, _)| (from..=to).contains(t)).collect();
        let first = points.first()?.0;
        let from = from.max(first - (to - first) * 0.02);
        let threshold = eviction.threshold as f64 / scale;
        let most = points.iter().map(|(_, n)| *n).fold(threshold, f64::max);
        let axes = Axes::linear((from, to), (0.0, (most * 1.1).max(1.0)));
        let title = format!(
            "{}/{}: {}, {unit} over ms, {}",
            eviction.namespace, eviction.name, eviction.signal, eviction.time
        );
        let mut picture = Picture::new(&title, axes);
        for ms in ticks(from, to) {
            picture.x_tick(ms, &format!("{ms:.0}"));
        }
        for amount in ticks(0.0, most * 1.1) {
            picture.y_tick(amount, &format!("{amount:.0}"));
        }
        picture.marker(threshold, "threshold");
        for (row, (name, time)) in self.moments().into_iter().enumerate() {
            picture.moment(ms(time), row, &format!("{name} {:.2}", ms(time)));
        }
        picture.curve("available", &points);
        for pod in self.pods.iter().take(SHOWN) {
            let used = pod.usage.map_or(0.0, |usage| usage as f64 / MIB);
            let mark = if pod.evicted { "*" } else { "" };
            picture.remark(&format!("{used:.0} MiB {}{mark}", pod.pod));
        }
        Some(picture.finish())
    }
}

/// Some four to eight round numbers of that range.
fn ticks(from: f64, to: f64) -> impl Iterator<Item = f64> {
    let rough = (to - from).max(1.0) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
    let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    (first..=last).map(move |n| n as f64 * step)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::reflex::Stages;

    /// A hog at full speed, evicted a tenth of a millisecond after the crossing.
    pub fn incident(id: &str) -> Incident {
        let eviction = Eviction {
            id: id.to_owned(),
            time: "2026-11-22T12:00:00Z".to_owned(),
            namespace: "default".to_owned(),
            name: "hog".to_owned(),
            uid: "u".to_owned(),
            phase: None,
            reason: "Evicted".to_owned(),
            message: "The node was low on resource: memory.".to_owned(),
            signal: "memory.available".to_owned(),
            shadow: false,
            hook: "tracepoint".to_owned(),
            stages: Stages {
                crossed: 1_000_000_000,
                woken: 1_000_040_000,
                decided: 1_000_080_000,
                signalled: 1_000_100_000,
            },
            available: 99 << 20,
            threshold: 100 << 20,
            usage_at_crossing: 412 << 20,
            usage_at_decision: 413 << 20,
            working_set: 300 << 20,
            request: 0,
            error: None,
        };
        let sample = |ms: u64| (ms * 1_000_000, (1100 - ms) << 20);
        Incident {
            version: VERSION,
            eviction,
            finish: Some(Finish {
                id: id.to_owned(),
                exited: 1_010_000_000,
                freed: 1_030_000_000,
                peak_usage: 413 << 20,
                available: 400 << 20,
            }),
            samples: [(
                "memory.available".to_owned(),
                (900..1020).map(sample).collect(),
            )]
            .into(),
            pods: vec![Standing {
                pod: "default/hog".to_owned(),
                usage: Some(300 << 20),
                request: 0,
                priority: 0,
                qos_class: "BestEffort".to_owned(),
                evicted: true,
            }],
        }
    }

    // R49
    #[test]
    fn a_picture_shows_the_way_to_it() {
        let incident = incident("a");
        let picture = incident.picture().unwrap();
        for word in [
            "<polyline",
            "threshold",
            "SIGKILL 0.10",
            "available again 30.00",
            "hog*",
        ] {
            assert!(picture.contains(word), "{word}: {picture}");
        }
        let text = serde_json::to_string(&incident).unwrap();
        assert_eq!(serde_json::from_str::<Incident>(&text).unwrap(), incident);
    }

    #[test]
    fn ticks_are_round() {
        let of = |from, to| ticks(from, to).collect::<Vec<_>>();
        assert_eq!(of(-249.0, 100.0), [-200.0, -100.0, 0.0, 100.0]);
        assert_eq!(of(0.0, 236.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
    }

    #[test]
    fn what_was_not_recorded_is_not_drawn() {
        let mut incident = incident("a");
        incident.samples.clear();
        assert_eq!(incident.picture(), None);
        incident.eviction.stages.crossed = 0;
        assert_eq!(incident.start(), 1_000_040_000);
    }
}
