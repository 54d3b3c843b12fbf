//! What goes wrong, and how it is put right.

use std::{fmt, thread::sleep};

use clap::ValueEnum;

use super::{kernel_map::disable_triggers, node::Node};
use crate::{
    disk::Frozen,
    prelude::*,
    runtime::{self, Runtime},
    stalled::Stalled,
};

/// Longest time from the hog's end to the kill of what is killed after it.
const STAGES: Duration = Duration::from_millis(60);
/// Words of an agent that finds another one on its state directory.
const IN_USE: &str = "another evictd runs on it";
/// Seconds by which the clock is set wrong.
const CLOCK_SECONDS: i64 = 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// None: the scene itself.
    None,
    /// SIGSTOP, until the hog has died.
    AgentStopped,
    /// SIGKILL on the hog's way; the next agent comes when the hog has died.
    AgentKilled,
    /// SIGKILL somewhere between the hog's SIGKILL and the end of the report.
    AgentKilledAfterwards,
    /// SIGKILL, and the next agent at once.
    AgentRestarted,
    /// SIGTERM, and the next agent at once.
    AgentUpgraded,
    /// A second agent with the same configuration.
    SecondAgent,
    /// The fast path's thread stands still.
    FastPathStalled,
    /// The manager's thread stands still.
    ManagerStalled,
    /// The main thread stands still.
    MainStalled,
    /// The agent's pins are removed from outside.
    Unpinned,
    /// Every trigger in the kernel's map is put out of reach from outside.
    MapEdited,
    /// The state directory's disk is full.
    DiskFull,
    /// The state directory and its files are immutable.
    JournalReadOnly,
    /// The state directory's disk does not answer.
    DiskHangs,
    /// The API server is away.
    ApiAway,
    /// The API server takes requests and does not answer.
    ApiHangs,
    /// The API server does what it is asked, and its answers are lost.
    ApiLosesAnswers,
    /// The API server refuses with every status that was recorded or is documented for overload.
    ApiRefuses,
    /// The container runtime restarts.
    RuntimeRestarted,
    /// The kubelet answers nothing through the API server.
    KubeletAway,
    /// The wall clock jumps an hour ahead, and back.
    ClockJumps,
}

enum Struck {
    Nothing,
    Stopped,
    NoAgent,
    Stalled(Stalled),
    Full(PathBuf),
    ReadOnly,
    Frozen(Frozen),
    ApiAway,
    Clock,
}

pub(super) struct Healing(Struck);

impl Fault {
    /// Why it cannot strike on this machine, if it cannot.
    pub(super) fn cannot_strike(self) -> Option<String> {
        let is_clock = self == Self::ClockJumps && !in_guest();
        is_clock.then(|| "the clock of a machine that is not a guest is left alone".into())
    }

    /// Whether the kernel has to act in the agent's place.
    pub(super) fn needs_guard(self) -> bool {
        matches!(self, Self::AgentStopped | Self::AgentKilled)
    }

    /// Whether it strikes the disk that has the state directory.
    pub(super) fn is_of_disk(self) -> bool {
        matches!(
            self,
            Self::DiskFull | Self::JournalReadOnly | Self::DiskHangs
        )
    }

    /// Whether a record may be missing from the journal: it could not be written. The API server hears of it all the same.
    pub(super) fn may_lose_record(self) -> bool {
        matches!(self, Self::DiskFull | Self::JournalReadOnly)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

/// Strikes, at once or when the hog has died.
pub(super) fn strike(
    fault: Fault,
    node: &mut Node,
    hog: &mut Hog,
    random: &mut fastrand::Rng,
) -> Result<Healing> {
    let stalled = |node: &Node, thread| Stalled::new(node.pid(), thread).map(Struck::Stalled);
    let struck = match fault {
        Fault::None => Struck::Nothing,
        Fault::AgentStopped => {
            node.agent()?.stop()?;
            Struck::Stopped
        }
        Fault::AgentKilled => {
            node.kill();
            Struck::NoAgent
        }
        Fault::AgentKilledAfterwards => {
            hog.wait()?;
            sleep(STAGES.mul_f64(random.f64()));
            node.kill();
            Struck::NoAgent
        }
        Fault::AgentRestarted => {
            node.kill();
            node.start()?;
            Struck::Nothing
        }
        Fault::AgentUpgraded => {
            node.end()?;
            node.start()?;
            Struck::Nothing
        }
        Fault::SecondAgent => {
            // The state directory is what it must find in use, not the port.
            let address = node.member.config["healthAddress"].take();
            let second = node.another();
            node.member.config["healthAddress"] = address;
            match second {
                Err(error) if error.to_string().contains(IN_USE) => Struck::Nothing,
                Err(error) => return Err(error),
                Ok(_) => bail!("two agents have one state directory"),
            }
        }
        Fault::FastPathStalled => stalled(node, "fastpath")?,
        Fault::ManagerStalled => stalled(node, "manager")?,
        Fault::MainStalled => stalled(node, "evictd")?,
        Fault::Unpinned => {
            fs::remove_dir_all(node.pins())?;
            Struck::Nothing
        }
        Fault::MapEdited => {
            disable_triggers(node.pid())?;
            Struck::Nothing
        }
        Fault::DiskFull => Struck::Full(fill(node)?),
        Fault::JournalReadOnly => {
            chattr(node, "+i")?;
            Struck::ReadOnly
        }
        Fault::DiskHangs => Struck::Frozen(node.disk()?.freeze()?),
        Fault::ApiAway => {
            node.member.server.go_away();
            Struck::ApiAway
        }
        Fault::ApiHangs => inject(node, "", &[InjectedFault::Hang; 3]),
        Fault::ApiLosesAnswers => inject(node, "", &[InjectedFault::Lost; 3]),
        Fault::ApiRefuses => {
            let statuses = [401, 403, 429, 500, 503];
            inject(node, "", &statuses.map(InjectedFault::Status))
        }
        Fault::RuntimeRestarted => {
            node.runtime = None;
            let socket = node.socket();
            // Its successor binds the same path.
            let _ = fs::remove_file(&socket);
            node.runtime = Some(Runtime::start(&socket, runtime::State::default())?);
            Struck::Nothing
        }
        // It has met the start.
        Fault::KubeletAway => Struck::Nothing,
        Fault::ClockJumps => {
            move_clock(CLOCK_SECONDS)?;
            Struck::Clock
        }
    };
    Ok(Healing(struck))
}

impl Healing {
    /// Puts it right; an agent runs afterwards.
    pub fn heal(self, node: &mut Node) -> Result<()> {
        match self.0 {
            Struck::Nothing => Ok(()),
            // Dropped, they go on.
            Struck::Stalled(_thread) => Ok(()),
            Struck::Frozen(_disk) => Ok(()),
            Struck::Stopped => node.agent()?.go_on(),
            Struck::NoAgent => node.start(),
            Struck::Full(file) => Ok(fs::remove_file(file)?),
            Struck::ReadOnly => chattr(node, "-i"),
            Struck::ApiAway => node.member.server.come_back(),
            Struck::Clock => move_clock(-CLOCK_SECONDS),
        }
    }
}

/// The next requests below a path go wrong, one after the other, whenever they come: most of them with the report.
fn inject(node: &Node, path: &'static str, faults: &[InjectedFault]) -> Struck {
    let mut state = node.member.server.state();
    for what in faults {
        state.fails("", path, 1, *what);
    }
    Struck::Nothing
}

/// Leaves no byte of the state directory's disk.
fn fill(node: &Node) -> Result<PathBuf> {
    let path = node.disk()?.path().join("filler");
    let mut file = File::create(&path)?;
    let mut piece = vec![0; 1 << 20];
    while !piece.is_empty() {
        if file.write_all(&piece).is_err() {
            piece.truncate(piece.len() / 2);
        }
    }
    Ok(path)
}

/// Makes the state directory immutable, or no longer so: what is open cannot be written either.
fn chattr(node: &Node, how: &str) -> Result<()> {
    let state = node.disk()?.path().join("state");
    let status = Command::new("chattr")
        .args(["-R", how])
        .arg(state)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => bail!("chattr {how}: {status}"),
    }
}

fn move_clock(by: i64) -> Result<()> {
    use nix::time::{ClockId, clock_gettime, clock_settime};
    let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
    let then = nix::sys::time::TimeSpec::new(now.tv_sec() + by, now.tv_nsec());
    Ok(clock_settime(ClockId::CLOCK_REALTIME, then)?)
}
