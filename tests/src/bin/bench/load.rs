//! What keeps the machine busy during a race.

use std::io::Seek as _;

use clap::ValueEnum;
use evictd_tests::{mapped::touch, prelude::*, reaped::Reaped};
use memmap2::MmapMut;

use crate::own::FILE_BYTES;

/// A kind of load, one process of it per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Page faults without end.
    Faults,
    /// Writes that wait for the disk.
    Io,
    /// Reading through a file without end, inside the contender's own cgroup, which is at its limit.
    Reader,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Faults => "page faults on every CPU",
            Self::Io => "synchronous writes on every CPU",
            Self::Reader => "the contender's own cgroup at its limit",
        }
    }
}

/// A running load; ended when dropped.
pub struct Load(Vec<Reaped>);

impl Load {
    /// Starts it, outside of every node that is played; what belongs into a contender's cgroup starts with the contender.
    pub fn start(kind: Kind) -> Result<Self> {
        let cpus = match kind {
            Kind::Reader => 0,
            Kind::Faults | Kind::Io => std::thread::available_parallelism()?.get(),
        };
        let mut load = Self(Vec::new());
        let name = kind.to_possible_value();
        let name = name.as_ref().map_or("", |value| value.get_name());
        for _ in 0..cpus {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["load", name]).stdin(Stdio::null());
            load.0.push(Reaped(command.spawn()?));
        }
        Ok(load)
    }
}

/// The load's own process.
pub fn work(kind: Kind) -> Result<()> {
    match kind {
        Kind::Faults => loop {
            fault(1 << 20)?;
        },
        Kind::Io => {
            let mut file: File = tempfile::tempfile_in("/var/tmp")?;
            let block = vec![1; 1 << 20];
            loop {
                for _ in 0..16 {
                    file.write_all(&block)?;
                    file.sync_data()?;
                }
                file.rewind()?;
            }
        }
        Kind::Reader => {
            let mut file: File = tempfile::tempfile_in("/var/tmp")?;
            let mut block = vec![1; 1 << 20];
            for _ in 0..FILE_BYTES >> 20 {
                file.write_all(&block)?;
            }
            loop {
                file.rewind()?;
                while file.read(&mut block)? > 0 {}
            }
        }
    }
}

/// Maps, touches and unmaps so many bytes.
pub fn fault(length: usize) -> io::Result<()> {
    MmapMut::map_anon(length).map(|mut mapped| touch(&mut mapped))
}
