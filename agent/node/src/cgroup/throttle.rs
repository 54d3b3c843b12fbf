//! Pods that are kept from growing by `memory.high`. A pod that is throttled is in the state directory before it is
//! done, so that an agent that is killed leaves no pod throttled for longer than until the next start.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use evictd_sys::{
    fs::{PathError, is_gone},
    pi_mutex::PiMutex,
};
use serde::{Deserialize, Serialize};

use crate::cgroup::memory::{MemoryCgroup, Version};

/// Name of the list's file in the state directory.
const FILE: &str = "brakes.json";
const HIGH: &str = "memory.high";
/// Largest number of lists that are kept aside because they are not understood.
const ASIDE: usize = 8;
/// Limits are rounded up to this, in bytes: a multiple of any page, so that the kernel shows what was written.
const ROUND: u64 = 64 << 10;

/// Whether there is a way to keep a pod's cgroup from growing.
///
/// # Errors
/// There is none, and why.
pub fn can_throttle(cgroup: &MemoryCgroup) -> Result<(), &'static str> {
    match cgroup.version() {
        // Its soft limit does not keep a pod from growing.
        Version::V1 => Err("cgroup v1 has no memory.high: needs cgroup v2"),
        Version::V2 if cgroup.path().join(HIGH).exists() => Ok(()),
        // The memory controller is not handed down.
        Version::V2 => Err("the cgroup has no memory.high"),
    }
}

/// One pod that is kept from growing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Throttle {
    /// The pod's UID.
    pub uid: String,
    /// The pod's cgroup.
    pub cgroup: PathBuf,
    /// Id of the cgroup: another cgroup may have the name later.
    pub id: u64,
    /// Value of `memory.high` before the throttle, as the kernel shows it: `max`, or bytes.
    pub before: String,
    /// Value of `memory.high` that was set, in bytes.
    pub high: u64,
}

/// All that are kept from growing.
///
/// A pod is written down before it is throttled, and a release needs no disk: the list of pods is free while it is
/// written.
#[derive(Debug)]
pub struct ThrottleList {
    dir: PathBuf,
    /// Why none may be written down.
    refusal: Option<String>,
    state: PiMutex<State>,
    /// Held by the one that writes: an older list must not replace a newer one.
    writer: PiMutex<()>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    is_closed: bool,
    /// The file says something else.
    is_changed: bool,
}

#[derive(Debug)]
struct Held {
    throttle: Throttle,
    /// The limit is set; before that the pod is written down.
    is_set: bool,
}

/// Outcome for the throttles that an earlier agent has left.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Pods that were throttled, and are not any more.
    pub released: usize,
    /// Lists that were not understood, this one or earlier ones: the pods in them may be throttled still.
    pub unreadable: Vec<PathBuf>,
}

impl ThrottleList {
    /// Releases the pods that an earlier agent has left throttled. A list that is not understood is kept aside; one that
    /// cannot be written is logged.
    ///
    /// # Errors
    /// The file cannot be read, or not be kept aside.
    pub fn open(state_dir: &Path) -> Result<(Self, Left), PathError> {
        let path = state_dir.join(FILE);
        let held: Vec<Throttle> = match fs::read(&path) {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(held) => held,
                Err(_) => {
                    keep_aside(&path).map_err(PathError::at(&path))?;
                    Vec::new()
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(PathError::at(&path)(e)),
        };
        let throttles = Self::of(state_dir, None);
        let held = held.into_iter().map(|throttle| Held {
            throttle,
            is_set: true,
        });
        throttles.state.lock().held = held.collect();
        let released = throttles.release(|_| true).len();
        // An entry of a pod that is not throttled does no harm, and the next throttle writes the list anew.
        if released > 0
            && let Err(error) = throttles.save()
        {
            tracing::warn!(%error, "the list of throttled pods is an old one");
        }
        let unreadable = (0..ASIDE).map(|n| aside(&path, n)).filter(|p| p.exists());
        let unreadable = unreadable.collect();
        let left = Left {
            released,
            unreadable,
        };
        Ok((throttles, left))
    }

    /// Creates a list that knows of no throttled pod and throttles none, for `reason`: the list that is there stays as
    /// it is.
    pub fn refusing(state_dir: &Path, reason: String) -> Self {
        Self::of(state_dir, Some(reason))
    }

    fn of(state_dir: &Path, refusal: Option<String>) -> Self {
        Self {
            dir: state_dir.to_owned(),
            refusal,
            state: PiMutex::default(),
            writer: PiMutex::default(),
        }
    }

    /// The pods that are kept from growing.
    pub fn held(&self) -> Vec<Throttle> {
        let state = self.state.lock();
        state.held.iter().map(|h| h.throttle.clone()).collect()
    }

    /// Keeps a pod from growing beyond what it uses now; `None` when a limit of its own does that already, when it is
    /// throttled, when it is not wanted any more, or when it was released before it was written down. Waits for the
    /// disk.
    ///
    /// # Errors
    /// The file cannot be written, the kernel refuses: then nothing has changed.
    pub fn set(
        &self,
        uid: &str,
        cgroup: &MemoryCgroup,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<Option<Throttle>, PathError> {
        if let Some(reason) = &self.refusal {
            let path = self.dir.join(FILE);
            return Err(PathError::at(&path)(io::Error::other(reason.clone())));
        }
        let Some(throttle) = self.begin(uid, cgroup, is_wanted)? else {
            return Ok(None);
        };
        let set = self.save().and_then(|()| self.finish(&throttle));
        if set.is_err() {
            let mut state = self.state.lock();
            state.held.retain(|held| held.throttle != throttle);
            state.is_changed = true;
            drop(state);
            // An entry of a pod that is not throttled does no harm.
            let _ = self.save();
        }
        Ok(set?.then_some(throttle))
    }

    /// The throttle of a pod that is to be written down.
    fn begin(
        &self,
        uid: &str,
        cgroup: &MemoryCgroup,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<Option<Throttle>, PathError> {
        let mut state = self.state.lock();
        let is_held = state.held.iter().any(|held| held.throttle.uid == uid);
        // Asked under the lock: a release that comes after the answer finds the pod in the list.
        if state.is_closed || is_held || !is_wanted() {
            return Ok(None);
        }
        let file = cgroup.path().join(HIGH);
        let before = fs::read_to_string(&file).map_err(PathError::at(&file))?;
        let before = before.trim().to_owned();
        let usage = cgroup.usage().map_err(PathError::at(cgroup.path()))?;
        let high = usage.next_multiple_of(ROUND);
        if before.parse::<u64>().is_ok_and(|own| own <= high) {
            return Ok(None);
        }
        let throttle = Throttle {
            uid: uid.to_owned(),
            cgroup: cgroup.path().to_owned(),
            id: cgroup.id(),
            before,
            high,
        };
        state.held.push(Held {
            throttle: throttle.clone(),
            is_set: false,
        });
        state.is_changed = true;
        Ok(Some(throttle))
    }

    /// Sets the limit of a pod that is written down; false when it was released meanwhile.
    fn finish(&self, throttle: &Throttle) -> Result<bool, PathError> {
        let mut state = self.state.lock();
        let held = state.held.iter_mut();
        let Some(held) = held
            .filter(|held| !held.is_set)
            .find(|held| held.throttle == *throttle)
        else {
            return Ok(false);
        };
        let file = throttle.cgroup.join(HIGH);
        // Since 6.16 the kernel then reclaims what is above the limit later, and not in this call: a release waits for the
        // lock.
        let mut open = File::options();
        let open = open
            .write(true)
            .truncate(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&file);
        let written =
            open.and_then(|mut file| file.write_all(throttle.high.to_string().as_bytes()));
        written.map_err(PathError::at(&file))?;
        held.is_set = true;
        Ok(true)
    }

    /// Lets these grow again, and answers with them. A pod whose limit was changed from outside meanwhile keeps that
    /// one; one whose cgroup is gone needs nothing. The file still has them: an entry of a pod that is not throttled
    /// does no harm until [`Self::save`].
    pub fn release(&self, which: impl Fn(&Throttle) -> bool) -> Vec<Throttle> {
        let mut state = self.state.lock();
        let (mut released, mut kept) = (Vec::new(), Vec::new());
        let before = state.held.len();
        for held in std::mem::take(&mut state.held) {
            if !which(&held.throttle) {
                kept.push(held);
            } else if !held.is_set {
                // Its turn has not come.
            } else if let Err(error) = lift(&held.throttle) {
                let uid = &held.throttle.uid;
                tracing::warn!(%error, uid, "a pod stays throttled: its release is tried again");
                kept.push(held);
            } else {
                released.push(held.throttle);
            }
        }
        state.is_changed |= kept.len() != before;
        state.held = kept;
        released
    }

    /// Releases all pods and throttles none any more.
    pub fn close(&self) -> Vec<Throttle> {
        self.state.lock().is_closed = true;
        self.release(|_| true)
    }

    /// Writes down which pods are throttled, or will be, unless the file says so. Waits for the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "no thread of real-time priority limits memory"
    )]
    pub fn save(&self) -> Result<(), PathError> {
        if self.refusal.is_some() {
            return Ok(());
        }
        let _writer = self.writer.lock();
        let held: Vec<Throttle> = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_changed) {
                return Ok(());
            }
            state.held.iter().map(|h| h.throttle.clone()).collect()
        };
        let path = self.dir.join(FILE);
        let written = serde_json::to_vec(&held)
            .map_err(io::Error::from)
            .and_then(|text| evictd_sys::fs::replace(&path, &text, true));
        if written.is_err() {
            self.state.lock().is_changed = true;
        }
        written.map_err(PathError::at(&path))
    }
}

/// Path at which a list that is not understood is kept.
fn aside(path: &Path, n: usize) -> PathBuf {
    path.with_extension(format!("unreadable-{n}"))
}

fn keep_aside(path: &Path) -> io::Result<()> {
    let free = (0..ASIDE).map(|n| aside(path, n)).find(|p| !p.exists());
    // One of them says as much as all: that pods may be throttled.
    fs::rename(path, free.unwrap_or_else(|| aside(path, ASIDE - 1)))
}

fn lift(throttle: &Throttle) -> Result<(), PathError> {
    let file = throttle.cgroup.join(HIGH);
    let is_same = fs::metadata(&throttle.cgroup).is_ok_and(|meta| meta.ino() == throttle.id);
    if !is_same {
        return Ok(());
    }
    let now = match fs::read_to_string(&file) {
        Ok(now) => now,
        // It has gone in between.
        Err(e) if is_gone(&e) => return Ok(()),
        Err(e) => return Err(PathError::at(&file)(e)),
    };
    if now.trim() != throttle.high.to_string() {
        return Ok(());
    }
    match fs::write(&file, &throttle.before) {
        Err(e) if is_gone(&e) => Ok(()),
        written => written.map_err(PathError::at(&file)),
    }
}

#[cfg(test)]
mod tests;
