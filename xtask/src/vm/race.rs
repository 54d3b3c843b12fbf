//! Jobs in a guest whose content the caller chooses, with packages of Debian and a disk.

use serde::Serialize;

use super::{
    MachineOptions, cache,
    guest::{self, Event, Guest, How},
    kernel, logs, matrix_entry,
    outcome::failure,
    programs,
    qemu::Cgroup,
    unpacked,
};
use crate::{prelude::*, shell::find};

/// Capacity of the guest's disk, in bytes; the file has holes.
const DISK_BYTES: u64 = 4 << 30;

pub struct Race<'a> {
    pub kernel: &'a str,
    pub memory_mib: u32,
    pub accel: &'a str,
    /// Path inside, path on the host; `/init` and `/bin/busybox` are added.
    pub files: Vec<(String, PathBuf)>,
    /// The guest's first process: `vm-init`.
    pub init: PathBuf,
    /// Packages of the kernel's suite that lie unpacked in the guest's root.
    pub packages: &'a [&'a str],
    /// Name of the packages' directory in the cache, and of the consoles' files.
    pub name: &'a str,
    pub timeout: u64,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub argv: Vec<String>,
    pub output: String,
    /// Why it did not end by itself with exit code 0; with the kernel's last words if the machine went down.
    pub failure: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcomes {
    pub kernel: String,
    pub memory_mib: u32,
    pub emulator: String,
    /// Name and version of what was unpacked.
    pub packages: Vec<String>,
    pub jobs: Vec<Outcome>,
}

/// Runs every job on cgroup v2. `on_end` is told after each, with all that came so far.
pub fn run(
    race: &Race<'_>,
    jobs: Vec<Vec<String>>,
    mut on_end: impl FnMut(&Outcomes) -> Result<()>,
) -> Result<Outcomes> {
    let kernel = kernel(race.kernel, Cgroup::V2)?;
    let suite = matrix_entry(race.kernel)?.1;
    let unpacked = unpacked::fetch(&cache(), race.name, suite, race.packages)?;
    let dir = tempfile::tempdir_in(cache())?;
    fs::create_dir_all(logs())?;
    let mut files = race.files.clone();
    files.push(("/init".to_owned(), race.init.clone()));
    let busybox = find("busybox")?;
    files.push(("/bin/busybox".to_owned(), busybox));
    let version = output(Command::new(programs::QEMU).arg("--version"))?;
    let version = version.lines().next().unwrap_or("QEMU");
    let options = MachineOptions {
        cgroup: Some(Cgroup::V2),
        memory: race.memory_mib,
        accel: race.accel.to_owned(),
        gives_way: false,
    };
    let guest = Guest {
        kernel: &kernel,
        options: &options,
        disk: Some(&make_disk(dir.path())?),
        files: &files,
        trees: &[unpacked.tree],
        consoles: &logs().join(format!("{}-", race.name)),
        end: None,
    };
    let mut outcomes = Outcomes {
        kernel: kernel.release.clone(),
        memory_mib: race.memory_mib,
        emulator: format!("{version}, {}", race.accel),
        packages: unpacked.packages,
        jobs: Vec::new(),
    };
    let jobs = jobs.into_iter().map(|argv| guest::job(argv, race.timeout));
    let unmet = guest::run(&guest, jobs.collect(), |event| {
        let Event::Ended(ended) = event else {
            return Ok(());
        };
        let failure = match ended.how {
            How::ByItself(status) => failure(&status),
            How::Down(why) => Some(why),
            How::NotUp(why) => {
                let console = ended.console.display();
                bail!("the machine did not come up: {why}; {console}");
            }
        };
        outcomes.jobs.push(Outcome {
            argv: ended.job.argv,
            output: String::from_utf8_lossy(&ended.output).into_owned(),
            failure,
        });
        on_end(&outcomes)
    })?;
    match unmet {
        Some(reason) => bail!("{reason}"),
        None => Ok(outcomes),
    }
}

/// An ext4 image: files that are written inside need a disk, or they would not be page cache.
fn make_disk(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("disk");
    fs::File::create(&path)?.set_len(DISK_BYTES)?;
    let mkfs = find("mkfs.ext4")?;
    output(Command::new(mkfs).args(["-q", "-F"]).arg(&path))?;
    Ok(path)
}
