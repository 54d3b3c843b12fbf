//! The inode trigger: `*.inodesFree` crossing a limit, seen at the file that makes it cross.
//!
//! Each filesystem has the hook that its type gives it: hooks on the VFS would serve all types, but open(2) with
//! O_CREAT calls the filesystem directly and passes `vfs_create` by.

mod cgroup_counts;
mod hooks;

use std::{
    fs::{self, File},
    io, mem,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use aya::maps::{Array, MapData};
use evictd_engine::units::signed;
use evictd_sys::fs::PathError;

use super::counter::CgroupCount;
use crate::{
    bpf::object::{BpfObject, ObjectError, os_error},
    fs::{
        mounts::{Superblock, mount_of, superblock_of},
        reader::{Disk, FilesystemReader},
        statfs::{Filesystem, FilesystemReading},
    },
    proc::machine::online_cpus,
    trigger::{
        counter::{
            self, ATTEMPTS, CountTrigger, CounterEvent, Drift, EventCounter, MapNames, Sample,
        },
        hook::{CountHook, SelectedHook},
        inodes::hooks::{probe, without_hooks},
    },
};

pub use evictd_common::inodes::{CgroupCountKey, MAX_FILESYSTEMS};

pub use cgroup_counts::CgroupCountReader;

const MAPS: MapNames = MapNames {
    counts: "INODE_COUNTS",
    triggers: "INODE_TRIGGERS",
    wakeups: "INODE_WAKEUPS",
};

/// Why inodes cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum InodeError {
    /// A directory is not there, or not on a filesystem that can be told.
    #[error(transparent)]
    Path(#[from] PathError),
    /// More filesystems than there are counts.
    #[error("{0}: more than {MAX_FILESYSTEMS} filesystems")]
    TooMany(PathBuf),
    /// A map is missing, or of another type.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A map cannot be written.
    #[error("inode counts: {0}")]
    Map(io::Error),
    /// The filesystem's reader cannot be created.
    #[error("statfs: {0}")]
    Reader(io::Error),
}

/// A filesystem that is watched.
struct Watched {
    reader: FilesystemReader,
    superblock: Superblock,
    selected: SelectedHook<CountHook>,
    /// Whether the kernel counts it at present: not while it is unmounted.
    counted: bool,
}

impl Watched {
    fn read(&mut self) -> io::Result<FilesystemReading> {
        let read = self.reader.read();
        if let Some(superblock) = self.reader.remounted() {
            self.superblock = superblock;
            self.counted = false;
        }
        read
    }
}

struct Counting {
    counter: EventCounter,
    devices: Array<MapData, u32>,
    cgroup_counts: CgroupCountReader,
}

impl Counting {
    fn new(object: &mut BpfObject) -> Result<Self, ObjectError> {
        Ok(Self {
            counter: EventCounter::new(object, &MAPS, MAX_FILESYSTEMS as usize)?,
            devices: object.array("INODE_DEVICES")?,
            cgroup_counts: CgroupCountReader(Arc::new(object.hash("INODE_BY_CGROUP")?)),
        })
    }

    fn set_device(&mut self, index: usize, device: u32) -> io::Result<()> {
        let index = u32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.devices.set(index, device, 0).map_err(os_error)
    }
}

/// Triggers on the free inodes of up to [`MAX_FILESYSTEMS`] filesystems. The sampler has to be polled by the caller,
/// which has to look, see [`fastest_growth`].
pub struct InodeTrigger {
    watched: Vec<Watched>,
    counting: Option<Counting>,
}

impl InodeTrigger {
    /// Watches the filesystems of the given directories; those on one filesystem share its index, see
    /// [`Self::index_of`]. `object` is what [`BpfObject::load_counts`] gave, or the reason why there is none.
    ///
    /// # Errors
    /// See [`InodeError`].
    pub fn build(
        directories: &[&Path],
        object: Result<&mut BpfObject, &str>,
    ) -> Result<Self, InodeError> {
        Self::build_with(directories, object, &CountHook::WITH_PROGRAMS)
    }

    /// As [`Self::build`], of these hooks alone.
    ///
    /// # Errors
    /// See [`InodeError`].
    pub fn build_with(
        directories: &[&Path],
        object: Result<&mut BpfObject, &str>,
        hooks: &[CountHook],
    ) -> Result<Self, InodeError> {
        let mut object = object;
        let mut attached = Vec::new();
        let mut watched: Vec<Watched> = Vec::new();
        for &directory in directories {
            let filesystem = Filesystem::open(directory)?;
            let place = mount_of(directory);
            let (superblock, mount_point) = match &place {
                Ok((superblock, mount_point)) => (superblock.clone(), Some(mount_point.clone())),
                Err(_) => (filesystem.fallback_superblock(), None),
            };
            if watched.iter().any(|w| w.superblock == superblock) {
                continue;
            }
            if watched.len() == MAX_FILESYSTEMS as usize {
                return Err(InodeError::TooMany(directory.to_owned()));
            }
            let selected = match &place {
                Ok(_) => probe(&superblock.kind, &mut object, &mut attached, hooks),
                Err(error) => without_hooks(error, hooks),
            };
            let disk = Disk {
                filesystem,
                superblock: superblock.clone(),
                mount_point,
            };
            watched.push(Watched {
                reader: FilesystemReader::new(disk).map_err(InodeError::Reader)?,
                superblock,
                counted: selected.hook != CountHook::Sampler,
                selected,
            });
        }
        let mut counting = match object {
            Ok(object) if watched.iter().any(|w| w.counted) => Some(Counting::new(object)?),
            _ => None,
        };
        for (index, w) in watched.iter().enumerate().filter(|(_, w)| w.counted) {
            if let Some(counting) = &mut counting {
                let set = counting.set_device(index, w.superblock.device);
                set.map_err(InodeError::Map)?;
            }
        }
        Ok(Self { watched, counting })
    }

    /// The index of the filesystem that a directory is on; `None` when it is not watched.
    pub fn index_of(&self, directory: &Path) -> Option<usize> {
        let fallback = || Some(Filesystem::open(directory).ok()?.fallback_superblock());
        let superblock = superblock_of(directory).ok().or_else(fallback)?;
        self.watched.iter().position(|w| w.superblock == superblock)
    }

    /// Tests the hook of the filesystem that a directory is on: a file that is made there has to be counted. The
    /// sampler takes the place of a hook that is silent. Where no file can be made nothing is known against the hook.
    ///
    /// # Errors
    /// A map cannot be read or written.
    pub fn self_test(&mut self, directory: &Path) -> io::Result<()> {
        let index = self.index_of(directory).unwrap_or(usize::MAX);
        let (Some(watched), Some(counting)) = (self.watched.get_mut(index), &mut self.counting)
        else {
            return Ok(());
        };
        if watched.selected.hook == CountHook::Sampler {
            return Ok(());
        }
        let path = directory.join("self-test");
        // One that a killed agent has left.
        let _ = fs::remove_file(&path);
        let make = || File::create_new(&path).map(|_| SelfTestFile(&path));
        if counter::self_test(|| counting.counter.events(index), make)? {
            return Ok(());
        }
        let silent = mem::replace(&mut watched.selected.hook, CountHook::Sampler);
        let reason = format!(
            "its self-test failed: {ATTEMPTS} files were made in {}, and it counted none",
            directory.display()
        );
        watched.selected.refused.push((silent, reason));
        watched.counted = false;
        counting.set_device(index, 0)
    }

    /// Number of filesystems that are watched.
    pub fn filesystems(&self) -> usize {
        self.watched.len()
    }

    /// Type of a filesystem, which hook it has, and why not a better one.
    pub fn selected_hook(&self, filesystem: usize) -> Option<(&str, &SelectedHook<CountHook>)> {
        let watched = self.watched.get(filesystem)?;
        Some((&watched.superblock.kind, &watched.selected))
    }

    /// Reads statfs and corrects the count by it; `None` where the filesystem limits no inodes (btrfs). Triggers mean
    /// nothing before the first sample.
    ///
    /// # Errors
    /// ENODEV while the filesystem is unmounted: its triggers sleep and wake with the first sample after it is back.
    /// `TimedOut` while it does not answer: what counts goes on.
    pub fn sample(&mut self, filesystem: usize) -> io::Result<Option<Sample>> {
        let Some(watched) = self.watched.get_mut(filesystem) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let hooked = self
            .counting
            .as_mut()
            .filter(|_| watched.selected.hook != CountHook::Sampler);
        let first = match (watched.read(), hooked) {
            (Err(error), _) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
            (Err(error), Some(counting)) => {
                if mem::take(&mut watched.counted) {
                    counting.set_device(filesystem, 0)?;
                    counting.counter.suspend(filesystem)?;
                }
                return Err(error);
            }
            (read, None) => {
                let read = read?;
                return Ok(read.limits_inodes().then(|| Sample {
                    available: signed(read.inodes_free),
                    counted: None,
                }));
            }
            (Ok(read), Some(counting)) => {
                if !mem::replace(&mut watched.counted, true) {
                    // Another filesystem may be there now, without a look at the time between.
                    counting.counter.suspend(filesystem)?;
                    counting.set_device(filesystem, watched.superblock.device)?;
                }
                read
            }
        };
        let (Some(counting), true) = (&mut self.counting, first.limits_inodes()) else {
            return Ok(None);
        };
        let reader = &mut watched.reader;
        let read = || {
            let read = reader.read()?;
            let used = read.inodes.saturating_sub(read.inodes_free);
            Ok((signed(read.inodes_free), used))
        };
        counting.counter.sample(filesystem, read).map(Some)
    }

    /// Sets or clears a trigger, as [`super::pids::PidTrigger::arm`] does.
    ///
    /// # Errors
    /// No such filesystem or slot, or the map cannot be written.
    pub fn arm(
        &mut self,
        filesystem: usize,
        slot: usize,
        trigger: Option<CountTrigger>,
    ) -> io::Result<()> {
        let counting = self.counting.as_mut();
        counting.map_or(Ok(()), |c| c.counter.arm(filesystem, slot, trigger))
    }

    fn counter(&self) -> Option<&EventCounter> {
        Some(&self.counting.as_ref()?.counter)
    }

    /// Becomes readable at a crossing; `None` when no filesystem has a hook.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.counter().map(EventCounter::fd)
    }

    /// The next crossing, oldest first; its `counter` is the filesystem's index.
    pub fn next_crossing(&mut self) -> Option<CounterEvent> {
        self.counting.as_mut()?.counter.next_crossing()
    }

    /// Reads free inodes by the count alone, for tests; `None` without hook or before the first sample.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counted(&self, filesystem: usize) -> io::Result<Option<i64>> {
        self.counter().map_or(Ok(None), |c| c.counted(filesystem))
    }

    /// Drift of a count so far.
    pub fn drift(&self, filesystem: usize) -> Drift {
        let drift = self.counter().map(|c| c.drift(filesystem));
        drift.unwrap_or_default()
    }

    /// Whether the hook of a filesystem counts nothing any more, although its free inodes change.
    pub fn is_stale(&self, filesystem: usize) -> bool {
        self.counter().is_some_and(|c| c.is_stale(filesystem))
    }

    /// Reader of the counts of cgroups for another thread; `None` when no filesystem has a hook.
    pub fn cgroup_count_reader(&self) -> Option<CgroupCountReader> {
        Some(self.counting.as_ref()?.cgroup_counts.clone())
    }

    /// Bytes and inodes as statfs gives them, without a look at the counts.
    ///
    /// # Errors
    /// ENODEV while the filesystem is unmounted, `TimedOut` while it does not answer.
    pub fn read(&mut self, filesystem: usize) -> io::Result<FilesystemReading> {
        let watched = self.watched.get_mut(filesystem);
        watched.ok_or(io::ErrorKind::InvalidInput)?.read()
    }

    /// Whether a filesystem has not answered for long.
    pub fn is_hung(&self, filesystem: usize) -> bool {
        let watched = self.watched.get(filesystem);
        watched.is_some_and(|watched| watched.reader.is_hung())
    }

    /// Lists the counts of all cgroups, for tests.
    pub fn cgroup_counts(&self) -> Vec<(CgroupCountKey, CgroupCount)> {
        match &self.counting {
            Some(counting) => counting.cgroup_counts.0.iter().flatten().collect(),
            None => Vec::new(),
        }
    }
}

/// A file that is removed when dropped.
struct SelfTestFile<'a>(&'a Path);

impl Drop for SelfTestFile<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

/// Inodes that the machine can make in a second at most: an empty file takes some 5 us of a CPU.
pub fn fastest_growth() -> u64 {
    const PER_CPU: u64 = 400_000;
    online_cpus() * PER_CPU
}
