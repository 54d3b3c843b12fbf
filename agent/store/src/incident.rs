//! What is kept of one eviction, to show afterwards how it came about.

use std::{collections::BTreeMap, io, time::Duration};

use evictd_engine::{Resource, pace::PaceInputs, recorder::SignalSample, units::SECOND};
use serde::{Deserialize, Serialize};

use crate::{
    chart::Chart,
    record::{EvictionRecord, OutcomeRecord, RequestRecord, resource_of_signal},
};

/// Version of the form.
const VERSION: u32 = 1;
const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;
/// Length of the time before an eviction that belongs to it, in nanoseconds.
pub const BEFORE_NS: u64 = 60 * SECOND;

/// A pod as it stood when a pod was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankedPod {
    /// Namespace and name.
    pub pod: String,
    /// UID of the pod; empty in the file of an older agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Working set of the pod, in bytes; absent when it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// Memory that the pod had requested, in bytes.
    pub request: u64,
    /// Priority of the pod.
    pub priority: i32,
    /// Whether the priority is not known: the pod goes after all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub priority_unknown: bool,
    /// Order number that a policy gives the pod.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub order: i16,
    /// QoS class of the pod.
    pub qos_class: String,
    /// Whether it is the one that was evicted.
    pub evicted: bool,
    /// Working set of the pod when the incident was written, in bytes; 0 when its cgroup was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_after: Option<u64>,
    /// The oom_score_adj of its containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Whether the pod is never evicted: critical pods and, in the kubelet's mode, static ones; where pods are asked to
    /// go, those as well that the API server cannot end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// Why policies did not let it go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spared: Option<String>,
    /// Whether the pod was evicted before and was still on its way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// Whether the pod had no processes: between two runs of its container its end gives no memory back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub empty: bool,
    /// Place of the pod in the order of eviction, from 1 on, where pods before it are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
}

/// Order in which the pods of an incident stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankedBy {
    /// The strategy, in the word of the configuration.
    pub strategy: String,
    /// When the last pod's use was read, in nanoseconds of CLOCK_MONOTONIC: pods may have grown since the decision.
    pub read: u64,
}

/// One eviction, and what was seen before and after it. Times are in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// Version of this form.
    pub version: u32,
    /// Eviction as the journal has it.
    pub eviction: EvictionRecord,
    /// Request by which the pod was asked to go, under a soft threshold; absent where it was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<RequestRecord>,
    /// What the moment of the eviction was decided from; absent where `pace` is, and where the kernel program has
    /// killed by itself.
    #[serde(default, rename = "judged", skip_serializing_if = "Option::is_none")]
    pub pace_inputs: Option<PaceInputs>,
    /// Outcome of the eviction; absent where that was not waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<OutcomeRecord>,
    /// Samples of each signal: when it was looked at, and what was available in its own unit.
    pub samples: BTreeMap<String, Vec<(u64, u64)>>,
    /// The pods in the order of eviction, where memory was short.
    pub pods: Vec<RankedPod>,
    /// The order of `pods`; absent where there are none, and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranked_by: Option<RankedBy>,
    /// Memory of the node, in bytes; absent for other signals, and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// The pod that the kubelet's own order puts first, by namespace and name; absent in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_victim: Option<String>,
    /// The pod that the OOM killer would have chosen at that moment, by namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_victim: Option<String>,
}

impl Incident {
    /// An eviction of which nothing else is known yet.
    pub fn new(eviction: EvictionRecord) -> Self {
        Self {
            version: VERSION,
            eviction,
            asked: None,
            pace_inputs: None,
            finish: None,
            samples: BTreeMap::new(),
            pods: Vec::new(),
            ranked_by: None,
            capacity: None,
            kubelet_victim: None,
            oom_victim: None,
        }
    }

    /// A pod was asked to go, or would have been.
    pub fn from_request(asked: RequestRecord) -> Self {
        let eviction = EvictionRecord::from(&asked);
        Self {
            pace_inputs: asked.pace_inputs.as_deref().copied(),
            asked: Some(asked),
            ..Self::new(eviction)
        }
    }

    /// The time that the pod was given, if it was asked and not killed.
    pub fn grace(&self) -> Option<Duration> {
        let asked = self.asked.as_ref().filter(|asked| !asked.shadow);
        asked.map(RequestRecord::grace)
    }

    /// Takes those of the samples that belong to it and that it has not got; oldest first for each signal.
    pub fn see(&mut self, samples: &[SignalSample]) {
        let since = self.start().saturating_sub(BEFORE_NS);
        for sample in samples.iter().filter(|sample| sample.time >= since) {
            let of_signal = self.samples.entry(sample.signal.to_string()).or_default();
            if of_signal.last().is_none_or(|(time, _)| *time < sample.time) {
                of_signal.push((sample.time, sample.available));
            }
        }
    }

    /// The memory of a pod that was asked to end is not waited for: the samples show when enough was available.
    pub fn fill_outcome(&mut self) {
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
            (self.action(), stages.signalled),
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

    fn action(&self) -> &'static str {
        match (&self.asked, self.eviction.shadow) {
            (_, true) => "chosen",
            (Some(_), false) => "asked to go",
            (None, false) if self.eviction.error.is_some() => "SIGKILL refused",
            (None, false) => "SIGKILL",
        }
    }

    /// The first moment that is known: times count from there.
    pub fn start(&self) -> u64 {
        self.moments().first().map_or(0, |(_, time)| *time)
    }

    /// Chart of what was available over time; `None` when that was not recorded.
    pub fn chart(&self) -> Option<Chart> {
        let eviction = &self.eviction;
        let samples = self.samples.get(&eviction.signal)?;
        let resource = resource_of_signal(&eviction.signal)?;
        let start = self.start();
        let ms = |time: u64| (i128::from(time) - i128::from(start)) as f64 / 1e6;
        let end = self.moments().last().map_or(0.0, |(_, time)| ms(*time));
        // As much of the time before as it took, and enough to see what it came from.
        let (from, to) = (-(end * 2.0).max(250.0), (end * 1.5).max(100.0));
        let is_near = |(time, _): &&(u64, u64)| (from..=to).contains(&ms(*time));
        let near: Vec<_> = samples.iter().filter(is_near).collect();
        // The first look may be later than the first moment, which is at 0.
        let first = ms(near.first()?.0).min(0.0);
        let from = from.max(first - (to - from) * 0.02);
        let (time_scale, time_unit) = match to - from {
            extent if extent > 20_000.0 => (1000.0, "s"),
            _ => (1.0, "ms"),
        };

        let limits = self.limits();
        let amounts = near.iter().map(|(_, available)| *available as f64);
        let levels = limits.iter().map(|(amount, _)| *amount as f64);
        let (least, most) = amounts
            .chain(levels)
            .fold((0.0_f64, 1.0_f64), |(l, m), amount| {
                (l.min(amount), m.max(amount))
            });
        let (scale, unit) = match resource {
            Resource::Inodes | Resource::Pids => match most {
                most if most >= 1e7 => (1e6, format!("million {}", resource.as_str())),
                most if most >= 1e5 => (1e3, format!("thousand {}", resource.as_str())),
                _ => (1.0, resource.as_str().to_owned()),
            },
            _ if most >= 10.0 * GIB => (GIB, "GiB".to_owned()),
            _ => (MIB, "MiB".to_owned()),
        };
        let mut chart = Chart::new(
            &format!("{time_unit} since {}", self.moments().first()?.0),
            from / time_scale..to / time_scale,
            &format!("{unit} available"),
            least * 1.1 / scale..most * 1.1 / scale,
        );
        for (amount, name) in limits {
            chart.level(amount as f64 / scale, name);
        }
        for (name, time) in self.moments() {
            chart.moment(ms(time) / time_scale, name);
        }
        let point = |(time, amount): &(u64, u64)| (ms(*time) / time_scale, *amount as f64 / scale);
        chart.curve("available", near.into_iter().map(point).collect());
        Some(chart)
    }

    /// What the amount that is available is held against, in the signal's unit. The last one may be below zero: page
    /// cache that the kubelet counts as used can still be given back.
    pub fn limits(&self) -> Vec<(i128, &'static str)> {
        let mut limits = vec![(self.eviction.threshold.into(), "threshold")];
        if resource_of_signal(&self.eviction.signal) != Some(Resource::Memory) {
            return limits;
        }
        let Some(seen) = self
            .pace_inputs
            .as_ref()
            .map(|pace_inputs| &pace_inputs.shortage)
        else {
            limits.push((0, "OOM killer"));
            return limits;
        };
        let nothing_left = i128::from(seen.available) - i128::from(seen.headroom.immediate);
        if seen.guard_amount > 0 {
            limits.push((nothing_left + i128::from(seen.guard_amount), "guard"));
        }
        limits.push((nothing_left, "OOM killer"));
        limits
    }

    /// The chart as an SVG file; `None` when there is nothing to draw.
    ///
    /// # Errors
    /// The recorded times do not make a chart.
    pub fn picture(&self) -> io::Result<Option<String>> {
        let Some(mut chart) = self.chart() else {
            return Ok(None);
        };
        let eviction = &self.eviction;
        chart.title(format!(
            "{}/{}: {}",
            eviction.namespace, eviction.name, eviction.signal
        ));
        chart.title(&eviction.time);
        chart.draw_file((860, 420)).map(Some)
    }
}

fn is_zero(order: &i16) -> bool {
    *order == 0
}

pub mod files;
mod order;
#[cfg(test)]
pub mod tests;
