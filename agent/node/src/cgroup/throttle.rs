//! Pods that are kept from growing by `memory.high`. A pod that is throttled is in the state directory before it is done, so
//! that an agent that is killed leaves no pod throttled for longer than until the next start.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use evictd_sys::fs::{PathError, is_gone};
use serde::{Deserialize, Serialize};

use crate::cgroup::memory::MemoryCgroup;

/// In the state directory.
const FILE: &str = "brakes.json";
const HIGH: &str = "memory.high";
/// Limits are rounded up to this, in bytes: a multiple of any page, so that the kernel shows what was written.
const ROUND: u64 = 64 << 10;

/// One pod that is kept from growing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Throttle {
    /// The pod's UID.
    pub uid: String,
    /// The pod's cgroup.
    pub cgroup: PathBuf,
    /// Its id: another cgroup may have the name later.
    pub id: u64,
    /// What `memory.high` was before, as the kernel shows it: `max`, or bytes.
    pub before: String,
    /// What it is now, in bytes.
    pub high: u64,
}

/// All that are kept from growing.
#[derive(Debug)]
pub struct ThrottleList {
    dir: PathBuf,
    held: Vec<Throttle>,
    is_closed: bool,
}

impl ThrottleList {
    /// Releases the pods that an earlier agent has left throttled, and returns how many those were. A file that cannot be read is named
    /// in the error; then no pod is known to be throttled.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(state_dir: &Path) -> Result<(Self, usize), PathError> {
        let path = state_dir.join(FILE);
        let held = match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|e| PathError::at(&path)(e.into()))?
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(PathError::at(&path)(e)),
        };
        let mut throttles = Self {
            dir: state_dir.to_owned(),
            held,
            is_closed: false,
        };
        let left = throttles.release(|_| true)?.len();
        Ok((throttles, left))
    }

    /// No pod is known to be throttled.
    pub fn empty(state_dir: &Path) -> Self {
        Self {
            dir: state_dir.to_owned(),
            held: Vec::new(),
            is_closed: false,
        }
    }

    /// Who is kept from growing.
    pub fn held(&self) -> &[Throttle] {
        &self.held
    }

    /// Keeps a pod from growing beyond what it uses now; `None` when a limit of its own does that already, or when it is
    /// throttled.
    ///
    /// # Errors
    /// The file cannot be written, the kernel refuses: then nothing has changed.
    pub fn set(&mut self, uid: &str, cgroup: &MemoryCgroup) -> Result<Option<Throttle>, PathError> {
        if self.is_closed || self.held.iter().any(|throttle| throttle.uid == uid) {
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
        self.held.push(throttle.clone());
        let set = self
            .save()
            .and_then(|()| fs::write(&file, high.to_string()).map_err(PathError::at(&file)));
        if let Err(error) = set {
            self.held.pop();
            // An entry of a pod that is not throttled does no harm.
            let _ = self.save();
            return Err(error);
        }
        Ok(Some(throttle))
    }

    /// Lets these grow again, and answers with them. A pod whose limit was changed from outside meanwhile keeps that one; one whose
    /// cgroup is gone needs nothing.
    ///
    /// # Errors
    /// The file cannot be written; all pods were released nevertheless.
    pub fn release(
        &mut self,
        which: impl Fn(&Throttle) -> bool,
    ) -> Result<Vec<Throttle>, PathError> {
        let held = std::mem::take(&mut self.held);
        let (mut released, mut kept) = (Vec::new(), Vec::new());
        for throttle in held {
            if !which(&throttle) {
                kept.push(throttle);
                continue;
            }
            if let Err(error) = lift(&throttle) {
                tracing::warn!(%error, uid = throttle.uid, "a pod stays throttled: its release is tried again");
                kept.push(throttle);
                continue;
            }
            released.push(throttle);
        }
        self.held = kept;
        if !released.is_empty() {
            self.save()?;
        }
        Ok(released)
    }

    /// Releases all pods and throttles none any more.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn close(&mut self) -> Result<Vec<Throttle>, PathError> {
        self.is_closed = true;
        self.release(|_| true)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no thread of real-time priority limits memory"
    )]
    fn save(&self) -> Result<(), PathError> {
        let path = self.dir.join(FILE);
        let written = serde_json::to_vec(&self.held)
            .map_err(io::Error::from)
            .and_then(|text| evictd_sys::fs::replace(&path, &text, true));
        written.map_err(PathError::at(&path))
    }
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
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
        written => written.map_err(PathError::at(&file)),
    }
}

#[cfg(test)]
mod tests;
