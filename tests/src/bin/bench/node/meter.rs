//! The memory of the guest over time, by both measures that daemons go by.

use std::{
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicBool, Ordering},
};

use evictd_tests::{prelude::*, sampling::Sampling, text::number};
use serde::{Deserialize, Serialize};

const INTERVAL: Duration = Duration::from_millis(2);
const SAMPLES: usize = 1 << 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// The kernel's own estimate.
    MemAvailable,
    /// The kubelet's memory.available: capacity - (anon + file) + inactive_file.
    #[serde(rename = "memory.available")]
    Kubelet,
}

/// `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    pub total: u64,
    pub available: u64,
    /// The kubelet's memory.available of a node on cgroup v2: the root's `memory.stat` has these numbers too.
    pub kubelet: u64,
}

impl Meminfo {
    pub fn read() -> Result<Self> {
        Self::read_from(&File::open("/proc/meminfo")?)
    }

    fn read_from(file: &File) -> Result<Self> {
        let mut text = [0; 4096];
        let length = file.read_at(&mut text, 0)?;
        Ok(Self::parse(
            std::str::from_utf8(&text[..length]).unwrap_or(""),
        ))
    }

    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let (mut used, mut inactive) = (0, 0);
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(name), Some(kib)) = (words.next(), words.next()) else {
                continue;
            };
            let bytes = kib.parse::<u64>().unwrap_or(0) * 1024;
            match name {
                "MemTotal:" => found.total = bytes,
                "MemAvailable:" => found.available = bytes,
                "AnonPages:" | "Cached:" | "Buffers:" | "SwapCached:" => used += bytes,
                "Inactive(file):" => inactive = bytes,
                _ => {}
            }
        }
        found.kubelet = found.total.saturating_sub(used) + inactive;
        found
    }

    /// What is available by one of the measures.
    pub fn of(&self, measure: Measure) -> u64 {
        match measure {
            Measure::MemAvailable => self.available,
            Measure::Kubelet => self.kubelet,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub memory: Meminfo,
    /// Whether a process of the hog's pod is left.
    pub hog_lives: bool,
}

pub struct Meter {
    hog_is_gone: Arc<AtomicBool>,
    sampling: Sampling<Vec<Sample>>,
}

impl Meter {
    /// Starts to look at the guest, and at the cgroup of the hog's pod.
    pub fn start(hog: &Path) -> Result<Self> {
        let meminfo = File::open("/proc/meminfo")?;
        let hog = File::open(hog.join("cgroup.events"))?;
        let hog_is_gone = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&hog_is_gone);
        // Nothing is to be allocated where there is nothing left.
        let samples = Vec::with_capacity(SAMPLES);
        let sampling = Sampling::start(INTERVAL, samples, move |samples| {
            let sample = Sample {
                memory: Meminfo::read_from(&meminfo)?,
                time_ns: monotonic_ns(),
                hog_lives: field(&hog, "populated")? == Some(1),
            };
            gone.store(!sample.hog_lives, Ordering::Relaxed);
            if samples.len() < SAMPLES {
                samples.push(sample);
            }
            Ok(())
        });
        Ok(Self {
            hog_is_gone,
            sampling,
        })
    }

    /// Whether no process is left in the hog's pod.
    pub fn hog_is_gone(&self) -> bool {
        self.hog_is_gone.load(Ordering::Relaxed)
    }

    pub fn finish(self) -> Result<Vec<Sample>> {
        self.sampling.finish()
    }
}

/// The number behind a name in a held file of `name number` lines.
fn field(file: &File, name: &str) -> Result<Option<u64>> {
    let mut text = [0; 512];
    let length = file.read_at(&mut text, 0)?;
    let text = std::str::from_utf8(&text[..length]).unwrap_or("");
    Ok(number(text, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_measures_come_from_meminfo() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\nBuffers: 10 kB\nCached: 290 kB\n\
                    SwapCached: 0 kB\nInactive(file): 120 kB\nAnonPages: 500 kB\n";
        let memory = Meminfo::parse(text);
        assert_eq!(memory.of(Measure::MemAvailable), 250 << 10);
        assert_eq!(memory.of(Measure::Kubelet), (1000 - 800 + 120) << 10);
    }
}
