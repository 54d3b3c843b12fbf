//! The report folder: `results.json`, `table.txt` and the pictures.

use evictd_tests::{prelude::*, text::number};
use serde::Serialize;

use crate::{
    node,
    rest::Resting,
    scope::{Programme, Race},
    storm::Storms,
    svg, table,
};

/// Everything that one run of the benchmark has found.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<node::race::Race>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Race>,
    /// Race 3: the same with something else to do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<Race>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rest: Vec<Resting>,
    /// What following cgroups costs that come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storm: Option<Storms>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    pub date: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_mib: u64,
    pub evictd: &'static str,
    pub command: String,
    /// `/proc/loadavg` before and after: others may have been at work.
    pub load_before: String,
    pub load_after: String,
}

impl Report {
    /// An empty report of this machine, now.
    pub fn begin() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": "));
        let memory = number(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0);
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self {
            machine: Machine {
                date: jiff::Timestamp::now().to_string(),
                kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
                cpu: model.unwrap_or_default().1.trim().to_owned(),
                cpus: std::thread::available_parallelism().map_or(1, usize::from),
                memory_mib: memory / 1024,
                evictd: env!("CARGO_PKG_VERSION"),
                command: format!("cargo xtask bench {}", arguments.join(" ")),
                load_before: read("/proc/loadavg").trim().to_owned(),
                load_after: String::new(),
            },
            ..Self::default()
        }
    }

    pub fn write(mut self, dir: &Path, programme: &Programme) -> Result<()> {
        self.machine.load_after = fs::read_to_string("/proc/loadavg")?.trim().to_owned();
        fs::create_dir_all(dir)?;
        let mut text = String::new();
        if let Some(race) = &self.node {
            text += &node::table::draw(race);
            if let Some(picture) = node::table::picture(race) {
                fs::write(dir.join("node.svg"), picture)?;
            }
        }
        if let Some(race) = &self.scope {
            text += &table::draw(race);
            for (name, picture) in [
                ("memory.svg", svg::memory(race, programme)),
                ("latency.svg", svg::latency(race)),
            ] {
                if let Some(picture) = picture {
                    fs::write(dir.join(name), picture)?;
                }
            }
        }
        for race in &self.busy {
            text += &table::draw(race);
        }
        text += &table::rest(&self.rest);
        fs::write(dir.join("table.txt"), text)?;
        fs::write(dir.join("results.json"), serde_json::to_vec(&self)?)?;
        println!("report: {}", dir.display());
        Ok(())
    }
}
