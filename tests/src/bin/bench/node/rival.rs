//! The daemons of the node race, each with what its package recommends and with the race's threshold.

use clap::ValueEnum;
use evictd_tests::{prelude::*, staged, workload::Stage};

use super::{
    daemon::Daemon,
    guest, manager,
    meter::{Measure, Meminfo},
};

/// systemd-oomd knows no amounts, but how long tasks wait for memory: `ManagedOOMMemoryPressureLimit=` of the pods' cgroup,
/// in percent. Its default of 60 % for 30 s is made for desktops; the least time that it takes is a second.
const PRESSURE_PERCENT: u32 = 10;
/// Where it looks for more than its own configuration.
const OOMD_CONF: &str = "/etc/systemd/oomd.conf.d";

/// In the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rival {
    Nothing,
    Earlyoom,
    Nohang,
    Oomd,
    SystemdOomd,
    /// With the threshold as the kubelet counts what is available.
    Evictd,
    /// With a threshold that is met where MemAvailable is at the race's: the others' amount.
    EvictdLevel,
}

impl Rival {
    /// The name in tables and on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no variant is hidden");
        value.get_name().to_owned()
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    pub fn measure(self) -> Measure {
        match self {
            Self::Evictd => Measure::Kubelet,
            _ => Measure::MemAvailable,
        }
    }

    /// Starts it; returns when it watches. The error is what it said instead.
    pub fn start(self, stage: &Stage, threshold: u64, files: &Path) -> Result<Running> {
        match self {
            Self::Nothing => Ok(Running::None),
            Self::Evictd => evictd(stage, threshold, files),
            Self::EvictdLevel => {
                let memory = Meminfo::read()?;
                let gap = memory.kubelet.saturating_sub(memory.available);
                evictd(stage, threshold + gap, files)
            }
            Self::Earlyoom => {
                let kib = threshold / 1024;
                let mut command = Command::new("/usr/bin/earlyoom");
                // Debian's arguments; SIGTERM at the threshold, SIGKILL at half of it, which is its default.
                command.args(["-r", "3600", "-M", &format!("{kib},{}", kib / 2)]);
                started(&mut command, "mem total", 0)
            }
            Self::Nohang => {
                let config = files.join("nohang.conf");
                let text = fs::read_to_string("/etc/nohang/nohang.conf")?;
                fs::write(&config, nohang(&text, threshold))?;
                let mut command = Command::new("/usr/bin/python3.11");
                command
                    .args(["-u", "/usr/sbin/nohang", "--monitor", "--config"])
                    .arg(&config);
                started(&mut command, "Monitoring has started", 0)
            }
            Self::Oomd => {
                let config = files.join("oomd.json");
                fs::write(&config, oomd(stage, threshold)?)?;
                let mut command = Command::new("/usr/bin/oomd");
                // Its default is to look every 5 s; whole seconds are what it can do.
                command.args(["--interval", "1", "--config"]).arg(&config);
                started(&mut command, "oomd running", 0)
            }
            Self::SystemdOomd => {
                let node = below_root(stage)?;
                manager::play(&format!("/{node}"), PRESSURE_PERCENT)?;
                fs::create_dir_all(OOMD_CONF)?;
                let conf = Path::new(OOMD_CONF).join("race.conf");
                let text = "[OOM]\nDefaultMemoryPressureDurationSec=1s\n";
                fs::write(conf, text)?;
                let mut command = Command::new("/lib/systemd/systemd-oomd");
                command
                    .env("SYSTEMD_LOG_TARGET", "console")
                    .env("SYSTEMD_LOG_LEVEL", "debug");
                // The unit's OOMScoreAdjust.
                started(&mut command, "systemd-oomd started", -900)
            }
        }
    }
}

fn started(command: &mut Command, ready: &str, oom_score: i32) -> Result<Running> {
    Daemon::start(command, ready, oom_score).map(Running::Daemon)
}

/// The package's configuration with other thresholds: SIGTERM, and SIGKILL at half of that as in earlyoom.
fn nohang(text: &str, threshold: u64) -> String {
    let mib = threshold / MIB;
    let changed = |line: &str| match line.split(" = ").next() {
        Some("soft_threshold_min_mem") => format!("soft_threshold_min_mem = {mib} M\n"),
        Some("hard_threshold_min_mem") => format!("hard_threshold_min_mem = {} M\n", mib / 2),
        _ => format!("{line}\n"),
    };
    text.lines().map(changed).collect()
}

/// Its documented detectors know usage and pressure, not what is available: the pods' cgroup may use what leaves the
/// threshold available as things are now. Its documented action picks among the pods.
fn oomd(stage: &Stage, threshold: u64) -> Result<String> {
    let available = Meminfo::read()?.available;
    let limit = stage.memory.usage()? + available.saturating_sub(threshold);
    let node = below_root(stage)?;
    let pods = format!("{node}/burstable/*,{node}/besteffort/*,{node}/pod-*");
    let text = serde_json::json!({
        "rulesets": [{
            "name": "the node has too little memory",
            "detectors": [[
                "the pods use too much",
                {
                    "name": "memory_above",
                    "args": {"cgroup": node, "threshold": format!("{}M", limit / MIB), "duration": "0"},
                },
            ]],
            "actions": [{"name": "kill_by_memory_size_or_growth", "args": {"cgroup": pods}}],
        }],
    });
    Ok(text.to_string())
}

/// The pods' cgroup as a path below the root of the hierarchy, without a slash before it.
fn below_root(stage: &Stage) -> Result<String> {
    let below = stage.cgroup.path().strip_prefix("/sys/fs/cgroup");
    Ok(below?.display().to_string())
}

fn evictd(stage: &Stage, threshold: u64, files: &Path) -> Result<Running> {
    let config = serde_json::json!({
        "evictionHard": { "memory.available": threshold.to_string() },
    });
    let agent = staged::start(files, &stage.manifest_from_root(), config, |_| {})?;
    // As the kubelet does for a pod that is critical to the node.
    guest::set_oom_score(agent.pid(), -997)?;
    Ok(Running::Evictd(agent))
}

/// A contender at work; ended when dropped.
pub enum Running {
    None,
    Evictd(Agent),
    Daemon(Daemon),
}

impl Running {
    /// Whether it has lived until now; what never ran has not died.
    pub fn is_alive(&mut self) -> bool {
        match self {
            Self::None => true,
            Self::Evictd(agent) => Path::new(&format!("/proc/{}/exe", agent.pid())).exists(),
            Self::Daemon(daemon) => daemon.is_alive(),
        }
    }

    /// The end of what it has said.
    pub fn log(&self) -> String {
        match self {
            Self::Daemon(daemon) => daemon.log(),
            Self::None | Self::Evictd(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thresholds_of_nohang_are_changed() {
        let text = "a = 1\nsoft_threshold_min_mem = 5 %\n##  soft_threshold_min_mem\nhard_threshold_min_mem = 2 %\n";
        assert_eq!(
            nohang(text, 100 * MIB),
            "a = 1\nsoft_threshold_min_mem = 100 M\n##  soft_threshold_min_mem\nhard_threshold_min_mem = 50 M\n"
        );
    }

    #[test]
    fn a_name_belongs_to_one_contender() {
        for rival in Rival::value_variants() {
            assert_eq!(Rival::named(&rival.name()), Some(*rival));
        }
        assert_eq!(Rival::named("kubelet"), None);
    }
}
