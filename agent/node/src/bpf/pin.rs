//! Links and maps that outlive the agent: names in a BPF filesystem (bpffs).
//!
//! A pinned link keeps its program attached, and the program keeps its maps. An agent that starts pins its own under
//! names of their own and removes those of earlier agents once its own are armed: there is no moment without.

use std::{
    ffi::CString,
    fs, io,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use evictd_sys::{clock::monotonic_ns, fs::PathError};

use super::syscall;

/// The name of the map that each agent pins: what its programs have killed.
pub const KILLED: &str = "killed";
/// `BPF_FS_MAGIC`.
const BPF_FS: u64 = 0xcafe_4a11;

/// Why nothing can be pinned in a directory.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The directory cannot be made, read or written to.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory lies on another filesystem than a BPF filesystem.
    #[error("{0} is not on a BPF filesystem: mount one at /sys/fs/bpf")]
    NoBpffs(PathBuf),
}

/// A directory of pinned links and maps.
#[derive(Debug)]
pub struct PinDirectory {
    path: PathBuf,
    /// Paths of what earlier agents have pinned.
    earlier: Vec<PathBuf>,
    /// Tells the names of this agent from theirs.
    run: u64,
}

impl PinDirectory {
    /// The directory below `root` of the agent with this state directory: several agents on one machine share the root.
    pub fn path_of(root: &Path, state_dir: &Path) -> PathBuf {
        let name = state_dir.to_string_lossy();
        // bpffs takes no dots.
        let part = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        root.join(name.trim_matches('/').chars().map(part).collect::<String>())
    }

    /// Makes the directory, or opens the one that is there.
    ///
    /// # Errors
    /// There is no bpffs, or it cannot be written to.
    pub fn open(path: &Path) -> Result<Self, PinError> {
        require_bpffs(path)?;
        fs::create_dir_all(path).map_err(PathError::at(path))?;
        Ok(Self {
            earlier: names(path)?,
            path: path.to_owned(),
            run: monotonic_ns(),
        })
    }

    /// Pins a link or a map.
    ///
    /// # Errors
    /// What `bpf(2)` answers; EPERM and EINVAL for what this kernel cannot pin.
    pub fn pin(&self, object: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let path = CString::new(self.path_for(name).as_os_str().as_bytes())?;
        syscall::pin(object, &path)
    }

    /// Path at which an object of this agent is pinned.
    pub fn path_for(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}-{}", self.run))
    }

    /// Iterates over the paths at which earlier agents have pinned an object of this name.
    pub fn earlier<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Path> {
        let earlier = self.earlier.iter().map(PathBuf::as_path);
        earlier.filter(move |path| is_named(path, name))
    }

    /// Removes what this agent has pinned.
    ///
    /// # Errors
    /// As [`Self::remove_earlier`].
    pub fn remove_own(&self) -> Result<(), PathError> {
        let own = format!("-{}", self.run);
        let mut names = names(&self.path)?;
        names.retain(|path| path.to_string_lossy().ends_with(&own));
        remove(names).map(drop)
    }

    /// Removes what agents have pinned that ended before they took over, or starts that fail would pile it up. An agent
    /// that takes over removes all that is older: in force is what the oldest map of kills belongs to.
    ///
    /// # Errors
    /// As [`Self::remove_earlier`].
    pub fn remove_unfinished(&mut self) -> Result<usize, PathError> {
        let Some(in_force) = self.earlier(KILLED).filter_map(run_of).min() else {
            return Ok(0);
        };
        let is_kept = |path: &PathBuf| run_of(path).is_none_or(|run| run == in_force);
        let (kept, unfinished) = std::mem::take(&mut self.earlier)
            .into_iter()
            .partition(is_kept);
        self.earlier = kept;
        remove(unfinished)
    }

    /// Removes what earlier agents have pinned; how many names that were.
    ///
    /// # Errors
    /// The first one that cannot be removed, after all others were.
    pub fn remove_earlier(&mut self) -> Result<usize, PathError> {
        let mut names = std::mem::take(&mut self.earlier);
        // First: where this ends in between, what has lost its map of kills is in force no more.
        names.sort_by_key(|path| !is_named(path, KILLED));
        remove(names)
    }
}

/// Removes all that agents with this directory have pinned, and the directory; what was removed.
///
/// # Errors
/// The directory is, or would be, on no BPF filesystem: its files are no pins and stay. The first name that cannot be
/// removed, after all others were.
pub fn detach(path: &Path) -> Result<Vec<PathBuf>, PinError> {
    let Some(names) = names_on_bpffs(path)? else {
        return Ok(Vec::new());
    };
    remove(names.clone())?;
    fs::remove_dir(path).map_err(PathError::at(path))?;
    Ok(names)
}

/// Detaches the programs that agents with this directory have pinned; how many names are removed. What they have killed
/// stays pinned, for the agent that takes over.
///
/// # Errors
/// As [`detach`].
pub fn detach_programs(path: &Path) -> Result<usize, PinError> {
    let mut names = names_on_bpffs(path)?.unwrap_or_default();
    names.retain(|path| !is_named(path, KILLED));
    Ok(remove(names)?)
}

/// The names in a directory of pins; `None`: it is not there.
fn names_on_bpffs(path: &Path) -> Result<Option<Vec<PathBuf>>, PinError> {
    // First: where the BPF filesystem is not mounted, what is pinned there cannot be seen.
    require_bpffs(path)?;
    match names(path) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        names => Ok(Some(names?)),
    }
}

/// The directories below `root` in which any agent has pinned something.
pub fn pinned_below(root: &Path) -> Vec<PathBuf> {
    let mut directories = names(root).unwrap_or_default();
    directories.retain(|path| names(path).is_ok_and(|names| !names.is_empty()));
    directories.sort();
    directories
}

/// Makes sure that a directory lies, or would lie, on a BPF filesystem.
///
/// # Errors
/// It would not, or that cannot be found out.
pub fn require_bpffs(path: &Path) -> Result<(), PinError> {
    let mut ancestors = path.ancestors().skip_while(|a| !a.exists());
    let existing = ancestors.next().unwrap_or(Path::new("/"));
    let found = rustix::fs::statfs(existing).map_err(|e| PathError::at(existing)(e.into()))?;
    match u64::try_from(found.f_type) {
        Ok(BPF_FS) => Ok(()),
        _ => Err(PinError::NoBpffs(path.to_owned())),
    }
}

/// What was pinned, and the run of the agent that has pinned it.
fn parts(path: &Path) -> Option<(&str, &str)> {
    path.file_name()?.to_str()?.rsplit_once('-')
}

fn is_named(path: &Path, name: &str) -> bool {
    parts(path).is_some_and(|(what, _)| what == name)
}

fn run_of(path: &Path) -> Option<u64> {
    parts(path)?.1.parse().ok()
}

fn names(path: &Path) -> Result<Vec<PathBuf>, PathError> {
    let entries = fs::read_dir(path).map_err(PathError::at(path))?;
    let paths = entries.map(|entry| entry.map(|e| e.path()));
    paths
        .collect::<io::Result<_>>()
        .map_err(PathError::at(path))
}

fn remove(names: Vec<PathBuf>) -> Result<usize, PathError> {
    let count = names.len();
    let failed = names.iter().filter_map(|name| {
        let error = fs::remove_file(name).err()?;
        (error.kind() != io::ErrorKind::NotFound).then(|| PathError::at(name)(error))
    });
    match failed.collect::<Vec<_>>().into_iter().next() {
        Some(error) => Err(error),
        None => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_filesystem_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = PinDirectory::open(&dir.path().join("evictd")).unwrap_err();
        assert!(
            error.to_string().contains("not on a BPF filesystem"),
            "{error}"
        );
        assert!(!dir.path().join("evictd").exists());
    }

    /// 10 was about to be removed by 20, which is in force; 30 and 40 have not come so far.
    #[test]
    fn of_starts_that_failed_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let in_force = ["killed-20", "memory-20"];
        let others = ["reclaim-10", "killed-30", "memory-30", "direct-reclaim-40"];
        for name in in_force.iter().chain(&others) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let mut pins = PinDirectory {
            path: dir.path().to_owned(),
            earlier: names(dir.path()).unwrap(),
            run: 50,
        };
        assert_eq!(pins.remove_unfinished().unwrap(), others.len());
        let mut left = names(dir.path()).unwrap();
        left.sort();
        assert_eq!(left, in_force.map(|name| dir.path().join(name)));
        assert_eq!(pins.remove_earlier().unwrap(), in_force.len());
    }

    #[test]
    fn each_state_directory_has_a_name_that_bpffs_takes() {
        let path = PinDirectory::path_of(
            Path::new("/sys/fs/bpf/evictd"),
            Path::new("/tmp/.a.b/state"),
        );
        assert_eq!(path, Path::new("/sys/fs/bpf/evictd/tmp--a-b-state"));
    }

    #[test]
    fn outside_of_a_bpf_filesystem_nothing_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data.json");
        fs::write(&file, "{}").unwrap();
        for path in [dir.path(), &dir.path().join("none")] {
            assert!(matches!(detach(path), Err(PinError::NoBpffs(_))));
            assert!(matches!(detach_programs(path), Err(PinError::NoBpffs(_))));
        }
        assert!(file.exists());
    }

    #[test]
    fn directories_with_pins_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a", "empty"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["a/guard-1", "b/guard-1", "file"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = pinned_below(dir.path());
        assert_eq!(found, ["a", "b"].map(|name| dir.path().join(name)));
        assert!(pinned_below(&dir.path().join("none")).is_empty());
    }
}
