//! The contenders, and how each is started.

use evictd_tests::{
    prelude::*,
    staged::{self, STATE},
    talker::Talker,
    workload::{HOG, Stage},
};

use crate::{judge::Verdict, own::Own};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The kernel's OOM killer alone.
    Nothing,
    Evictd(MemoryHook),
    /// evictd's kernel floor while the agent is stopped by SIGSTOP.
    Floor,
    Poll(Duration),
    /// The kubelet's notifier of cgroup v1.
    Notifier,
    /// The limit of everything that runs in userspace.
    Spinner,
}

impl Contender {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::Nothing,
        Self::Poll(Duration::from_secs(10)),
        Self::Poll(Duration::from_millis(100)),
        Self::Notifier,
        Self::Evictd(MemoryHook::Fexit),
        Self::Evictd(MemoryHook::Kprobe),
        Self::Evictd(MemoryHook::Tracepoint),
        Self::Evictd(MemoryHook::Eventfd),
        Self::Evictd(MemoryHook::Sampler),
        Self::Floor,
        Self::Spinner,
    ];

    /// Its name in tables and on the command line.
    pub fn name(self) -> String {
        match self {
            Self::Nothing => "nothing".into(),
            Self::Evictd(hook) => format!("evictd-{hook}"),
            Self::Floor => "evictd-floor".into(),
            Self::Poll(interval) if interval.as_secs() > 0 => {
                format!("poll-{}s", interval.as_secs())
            }
            Self::Poll(interval) => format!("poll-{}ms", interval.as_millis()),
            Self::Notifier => "v1-notifier".into(),
            Self::Spinner => "spinner".into(),
        }
    }

    /// Whether it is a daemon that a user could run instead of evictd.
    pub fn is_other_daemon(self) -> bool {
        matches!(self, Self::Poll(_) | Self::Notifier)
    }

    /// The amount that it acts at, in bytes available.
    pub fn amount(self, threshold: u64) -> u64 {
        match self {
            Self::Floor => threshold / 2,
            _ => threshold,
        }
    }

    /// Starts it on a stage, in a cgroup of its own if there is one, and returns when it watches. `phase` in 0..1 says
    /// where in its interval a poller starts.
    pub fn start(
        self,
        stage: &Stage,
        threshold: u64,
        phase: f64,
        files: &Path,
        own: Option<&Own>,
    ) -> Result<Running> {
        let manifest = files.join("pods.json");
        fs::write(&manifest, stage.manifest())?;
        let competitor = |words: &[String]| {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("compete").arg(&words[0]);
            command
                .arg(stage.cgroup.path())
                .arg(&manifest)
                .arg(threshold.to_string())
                .args(&words[1..]);
            if let Some(own) = own {
                own.admit(&mut command)?;
            }
            Talker::start(&mut command).map(Running::Competitor)
        };
        match self {
            Self::Nothing => Ok(Running::None),
            Self::Poll(interval) => {
                let ms = interval.as_millis();
                let phase = (ms as f64 * phase) as u64;
                competitor(&["poll".into(), ms.to_string(), phase.to_string()])
            }
            Self::Notifier => competitor(&["notified".into()]),
            Self::Spinner => competitor(&["spin".into(), stage.hog_pid().to_string()]),
            Self::Evictd(hook) => evictd(stage, threshold, hook.name(), files, own),
            Self::Floor => evictd(stage, threshold, "auto", files, own),
        }
    }

    /// Called when the hog is on its way, shortly before the threshold: from here the floor is alone, and the spinner
    /// spins, which on few CPUs starves everything that would have to be set up.
    pub fn last_moment(self, running: &mut Running) -> Result<()> {
        match (self, running) {
            (Self::Floor, Running::Evictd(agent)) => agent.stop(),
            (Self::Spinner, Running::Competitor(spinner)) => Ok(spinner.tell("")?),
            _ => Ok(()),
        }
    }
}

fn evictd(
    stage: &Stage,
    threshold: u64,
    hook: &str,
    files: &Path,
    own: Option<&Own>,
) -> Result<Running> {
    let config = serde_json::json!({
        "scope": { "cgroup": stage.cgroup.path() },
        "evictionHard": { "memory.available": threshold.to_string() },
        "memoryHook": hook,
    });
    let mut admitted = Ok(());
    let admit = |command: &mut Command| {
        if let Some(own) = own {
            admitted = own.admit(command);
        }
    };
    let agent = staged::start(files, &stage.manifest(), config, admit)?;
    admitted?;
    Ok(Running::Evictd(agent))
}

/// A contender at work; ended when dropped.
pub enum Running {
    None,
    Evictd(Agent),
    Competitor(Talker),
}

impl Running {
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Evictd(agent) => Some(agent.pid()),
            Self::Competitor(competitor) => Some(competitor.child.id()),
        }
    }

    /// Whether it has ended by itself, or was ended from outside.
    pub fn has_died(&mut self) -> Result<bool> {
        match self {
            Self::None => Ok(false),
            Self::Evictd(agent) => agent.has_ended(),
            Self::Competitor(competitor) => Ok(competitor.child.try_wait()?.is_some()),
        }
    }

    /// What it says of its own stages, if it has killed. A competitor ends with that.
    pub fn status(&mut self, files: &Path) -> Option<Verdict> {
        match self {
            Self::None => None,
            Self::Competitor(competitor) => {
                competitor.child.kill().ok()?;
                serde_json::from_str(&competitor.hear().ok()?).ok()
            }
            Self::Evictd(_) => {
                let (records, _) = journal::read(&files.join(STATE)).ok()?;
                records.into_iter().find_map(|r| match r {
                    Record::Evicted(e) if e.name == HOG => Some(Verdict {
                        woken: e.stages.woken,
                        decided: e.stages.decided,
                        signalled: e.stages.signalled,
                    }),
                    _ => None,
                })
            }
        }
    }
}
