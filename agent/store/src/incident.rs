//! What is kept of one eviction, to tell afterwards how it came about.

use std::{collections::BTreeMap, time::Duration};

use evictd_engine::{Resource, Signal, history::Sample, pace::Judged};
use serde::{Deserialize, Serialize};

use crate::{
    record::{EvictionRecord, OutcomeRecord, RequestRecord},
    svg::{Axes, Picture},
};

/// Version of the form.
const VERSION: u32 = 1;
const MIB: f64 = (1 << 20) as f64;
/// What was seen so long before an eviction belongs to it.
pub const BEFORE_NS: u64 = 60_000_000_000;
/// Who used most, beside the picture.
const SHOWN: usize = 8;

/// A pod as it stood when a pod was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankedPod {
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
    pub eviction: EvictionRecord,
    /// How the pod was asked to go, under a soft threshold; absent where it was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<RequestRecord>,
    /// What the moment of the eviction was decided from; absent for other signals than memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// What became of it; absent where that was not waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<OutcomeRecord>,
    /// For each signal when it was looked at, and what was available in its own unit.
    pub samples: BTreeMap<String, Vec<(u64, u64)>>,
    /// The pods in the order of eviction, where memory was short.
    pub pods: Vec<RankedPod>,
}

impl Incident {
    /// An eviction of which nothing else is known yet.
    pub fn new(eviction: EvictionRecord) -> Self {
        Self {
            version: VERSION,
            eviction,
            asked: None,
            judged: None,
            finish: None,
            samples: BTreeMap::new(),
            pods: Vec::new(),
        }
    }

    /// A pod was asked to go, or would have been.
    pub fn of_asked(asked: RequestRecord) -> Self {
        let eviction = EvictionRecord::from(&asked);
        Self {
            asked: Some(asked),
            ..Self::new(eviction)
        }
    }

    /// The time that the pod was given, if it was asked and not killed.
    pub fn grace(&self) -> Option<Duration> {
        let asked = self.asked.as_ref().filter(|asked| !asked.shadow)?;
        let seconds = u64::try_from(asked.grace_period_seconds).unwrap_or(0);
        Some(Duration::from_secs(seconds))
    }

    /// Takes those of the samples that belong to it and that it has not got; oldest first for each signal.
    pub fn see(&mut self, samples: &[Sample]) {
        let since = self.start().saturating_sub(BEFORE_NS);
        for sample in samples.iter().filter(|sample| sample.time >= since) {
            let of_signal = self.samples.entry(sample.signal.to_string()).or_default();
            if of_signal.last().is_none_or(|(time, _)| *time < sample.time) {
                of_signal.push((sample.time, sample.available));
            }
        }
    }

    /// The memory of a pod that was asked to end is not waited for: what was seen tells when enough was available.
    pub fn settle(&mut self) {
        if self.grace().is_none() {
            return;
        }
        let samples = self.samples.get(&self.eviction.signal);
        let after = samples.into_iter().flatten();
        let mut after = after.filter(|(time, _)| *time >= self.eviction.stages.signalled);
        let last = after
            .clone()
            .next_back()
            .map_or(0, |(_, available)| *available);
        let enough = after.find(|(_, available)| *available >= self.eviction.threshold);
        let unknown = || OutcomeRecord::unknown(&self.eviction.id);
        let finish = self.finish.get_or_insert_with(unknown);
        finish.freed = enough.map_or(0, |(time, _)| *time);
        finish.available = last;
    }

    /// The moments of it that are known, in their order.
    pub fn moments(&self) -> Vec<(&'static str, u64)> {
        let stages = self.eviction.stages;
        let finish = self.finish.as_ref();
        let mut moments = vec![
            ("crossed", stages.crossed),
            ("woken", stages.woken),
            ("decided", stages.decided),
            (self.deed(), stages.signalled),
            (self.end(), finish.map_or(0, |f| f.exited)),
            ("available again", finish.map_or(0, |f| f.freed)),
        ];
        moments.retain(|(_, time)| *time != 0);
        // A pod that was asked may give back enough before it is gone.
        moments.sort_by_key(|(_, time)| *time);
        moments
    }

    fn end(&self) -> &'static str {
        match self.asked {
            // It is looked for every second.
            Some(_) => "found gone",
            None => "gone",
        }
    }

    fn deed(&self) -> &'static str {
        match (&self.asked, self.eviction.shadow) {
            (_, true) => "chosen",
            (Some(_), false) => "asked to go",
            (None, false) => "SIGKILL",
        }
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

pub mod files;
#[cfg(test)]
pub mod tests;
