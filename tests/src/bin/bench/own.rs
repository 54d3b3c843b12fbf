//! A cgroup of the contender's own, at its limit: a process in it reads through a file without end, so that every page
//! that the contender needs and has not locked has to be reclaimed from others first.

use evictd_node::cgroup::memory::Version;
use evictd_tests::{cgroup::begin_in, prelude::*, reaped::Reaped, text::number};

use crate::load::Kind;

/// Enough to start in.
const ROOM: u64 = 256 << 20;
/// What is left above the usage once it has started.
const SLACK: u64 = 4 << 20;
/// What the reader reads through: many times the slack.
pub const FILE_BYTES: usize = 64 << 20;
/// A disk may be busy with what the reader writes first.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The cgroup, with the reader once it is tight.
pub struct Own {
    // Gone before its cgroup.
    reader: Option<Reaped>,
    cgroup: TestCgroup,
    leaf: PathBuf,
}

impl Own {
    /// One, where that is what the machine has to do.
    pub fn under(load: Option<Kind>) -> Result<Option<Self>> {
        (load == Some(Kind::Reader)).then(Self::new).transpose()
    }

    /// An empty one with room.
    fn new() -> Result<Self> {
        let cgroup = TestCgroup::new("own", ROOM)?;
        let leaf = cgroup.child("daemon")?;
        Ok(Self {
            reader: None,
            cgroup,
            leaf,
        })
    }

    /// Lets a command begin as a member: it is charged here from its first page on.
    pub fn admit(&self, command: &mut Command) -> Result<()> {
        begin_in(&self.leaf, command)
    }

    /// Takes the room away, and sets the reader to work. Returns when the limit was hit.
    pub fn tighten(&mut self) -> Result<()> {
        let path = self.cgroup.path();
        let limit = self.cgroup.usage()? + SLACK;
        match self.cgroup.version() {
            // Memory alone: what fails at the limit of memory and swap is not counted by every kernel.
            Version::V1 => fs::write(path.join("memory.limit_in_bytes"), limit.to_string())?,
            Version::V2 => self.cgroup.limit_child("", limit)?,
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["load", "reader"]).stdin(Stdio::null());
        self.admit(&mut command)?;
        self.reader = Some(Reaped(command.spawn()?));
        let over = Instant::now() + TIMEOUT;
        while self.hits()? == 0 {
            if Instant::now() > over {
                let seconds = TIMEOUT.as_secs();
                bail!("the daemon's cgroup was not at its limit after {seconds} s");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn hits(&self) -> Result<u64> {
        let path = self.cgroup.path();
        match self.cgroup.version() {
            Version::V1 => {
                let hits = fs::read_to_string(path.join("memory.failcnt"))?;
                Ok(hits.trim().parse()?)
            }
            Version::V2 => {
                let events = fs::read_to_string(path.join("memory.events"))?;
                Ok(number(&events, "max").unwrap_or(0))
            }
        }
    }
}
