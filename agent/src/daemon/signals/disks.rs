//! The node's disks as sources of signals. They may not answer: a thread of its own looks for them, again and again
//! until all are there.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel},
    time::Duration,
};

use evictd_config::Config;
use evictd_engine::{Layout, Signal};
use evictd_manager::{DiskSource, DiskSources};
use evictd_node::{
    bpf::object::BpfObject, fs::statfs::NodeFilesystems, trigger::inodes::InodeTrigger,
};

use super::log_hook;

/// Number of ticks of the agent between two attempts.
const RETRY_TICKS: u32 = 10;
/// The start waits for disks for so long: memory is to be watched.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The disks as they can be watched at the start, and what tries again where they cannot. Memory is watched whatever is
/// wrong with a disk: the start waits for a moment only.
pub(super) fn first(
    config: &Config,
    object: Result<&mut BpfObject, &str>,
) -> (Option<DiskSources>, DiskRetry) {
    let look = on_a_thread(config, find);
    let found = match look.recv_timeout(FIRST_LOOK) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err("they do not answer".to_owned()),
        Err(RecvTimeoutError::Disconnected) => Err("no thread can look at them".to_owned()),
    };
    let disks = found.and_then(|found| watch(config, found, object));
    let disks = disks.inspect_err(|error| tracing::error!(error, "disks are not watched"));
    let retry = DiskRetry {
        last_error: disks.as_ref().err().cloned(),
        is_needed: disks.is_err(),
        ticks: 0,
        first_look: Some(look),
        attempt: None,
    };
    (disks.ok(), retry)
}

/// Has a thread do what a disk may hang. No answer comes where the system has no thread to give.
fn on_a_thread<T: Send + 'static>(
    config: &Config,
    look: impl FnOnce(&Config) -> T + Send + 'static,
) -> Receiver<T> {
    let (found, answer) = channel();
    let config = config.clone();
    let thread = std::thread::Builder::new().name("disk-look".into());
    let started = thread.spawn(move || {
        // Where the time was over, the answer of a later look counts.
        let _ = found.send(look(&config));
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread can look at the disks");
    }
    answer
}

/// nodefs, imagefs and containerfs, and how they lie. Each has answered.
struct Disks {
    paths: [PathBuf; 3],
    layout: Layout,
}

/// Finds the node's filesystems, or says why they cannot be watched.
fn find(config: &Config) -> Result<Disks, String> {
    let paths = config.filesystems.resolve();
    let paths = paths.ok_or("no kubelet directory here, and filesystems.nodefs is not set")?;
    let [nodefs, imagefs, containerfs] = &paths;
    let found = NodeFilesystems::find(nodefs, imagefs, containerfs).map_err(|e| e.to_string())?;
    for filesystem in [&found.nodefs, &found.imagefs, &found.containerfs] {
        let path = filesystem.path().display();
        filesystem.read().map_err(|e| format!("{path}: {e}"))?;
    }
    let layout = found.layout;
    Ok(Disks { paths, layout })
}

/// Builds the sources that watch the disks, or says why they cannot be watched.
fn watch(
    config: &Config,
    Disks { paths, layout }: Disks,
    object: Result<&mut BpfObject, &str>,
) -> Result<DiskSources, String> {
    let [nodefs, imagefs, containerfs] = &paths;
    let built = InodeTrigger::build(&[nodefs, imagefs, containerfs], object);
    let mut trigger = built.map_err(|e| e.to_string())?;
    let tested = trigger.self_test(&config.state_dir);
    tested.map_err(|e| e.to_string())?;
    let name = |path: &PathBuf, (available, inodes_free)| {
        let filesystem = trigger.index_of(path)?;
        if let Some((_, selected)) = trigger.selected_hook(filesystem) {
            log_hook(inodes_free, selected);
        }
        Some(DiskSource {
            filesystem,
            available,
            inodes_free,
        })
    };
    let named = paths.iter().zip(Signal::FILESYSTEMS);
    let names: Option<Vec<_>> = named.map(|(path, signals)| name(path, signals)).collect();
    let names = names.and_then(|names| names.try_into().ok());
    let names = names.ok_or("a filesystem has vanished while it was looked at")?;
    Ok(DiskSources {
        trigger,
        names,
        layout,
    })
}

/// Disks that could not be watched at the start are tried again, on a thread that a disk may hang.
pub struct DiskRetry {
    /// Why disks could not be watched, as it was logged.
    last_error: Option<String>,
    is_needed: bool,
    ticks: u32,
    /// The look of the start: while it hangs, another one would hang as well.
    first_look: Option<Receiver<Result<Disks, String>>>,
    attempt: Option<Receiver<Result<DiskSources, String>>>,
}

impl DiskRetry {
    /// Takes what an attempt has found, once, and starts the next one when it is due. To be called at each tick.
    pub fn tick(&mut self, config: &Config) -> Option<DiskSources> {
        if !self.is_needed {
            self.first_look = None;
            return None;
        }
        if let Some(look) = &self.first_look {
            match look.try_recv() {
                Err(TryRecvError::Empty) => return None,
                // It hung, and does not any more.
                Ok(_) => self.ticks = RETRY_TICKS,
                Err(TryRecvError::Disconnected) => {}
            }
            self.first_look = None;
        }
        if let Some(attempt) = &self.attempt {
            let answer = attempt.try_recv();
            if matches!(answer, Err(TryRecvError::Empty)) {
                return None;
            }
            self.attempt = None;
            let found = answer.unwrap_or_else(|_| Err("no thread can look at them".to_owned()));
            if let Err(error) = &found
                && self.last_error.replace(error.clone()).as_ref() != Some(error)
            {
                tracing::error!(error, "disks are not watched");
            }
            self.is_needed = found.is_err();
            return found.ok();
        }
        self.ticks += 1;
        if self.ticks >= RETRY_TICKS {
            self.ticks = 0;
            self.attempt = Some(on_a_thread(config, |config| {
                watch(config, find(config)?, Err("the disks came after the start"))
            }));
        }
        None
    }
}
