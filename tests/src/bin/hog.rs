//! Allocates memory in the ways that real workloads do, at a given rate or as fast as the machine can.
//!
//! It enters its cgroup by itself before it allocates, so that every byte is charged there, and says `ready` on
//! standard output when it has; with `--wait` it starts only when a line arrives on standard input.

use std::os::unix::fs::FileExt as _;

use clap::{Parser, ValueEnum};
use evictd_tests::{
    mapped::{read, touch},
    prelude::*,
};
use memmap2::{Advice, MmapMut, MmapOptions};
use nix::unistd::setuid;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// mmap, then one write per page.
    Touch,
    /// mmap with MAP_POPULATE: the kernel faults everything in within one system call.
    Populate,
    /// mmap with MADV_HUGEPAGE, then one write per page.
    Thp,
    /// mmap with MAP_HUGETLB: pages that the administrator has set aside.
    Hugetlb,
    /// Writes to a file on tmpfs (see `--dir`).
    Tmpfs,
    /// Many threads that touch at once.
    Threads,
    /// Many small processes, a new one for every 4 MiB.
    Processes,
    /// One step is touched, the next written to a file in `--dir`: half of what is charged is page cache.
    Cache,
    /// Writes a file in `--dir` again and again, at most as large as `--size`.
    Write,
    /// The same, and then reads it again and again: its page cache becomes active.
    Read,
    /// The same through a mapping of the file.
    Map,
    /// Touches that much and gives it back, again and again.
    Churn,
    /// The same beside `--size` MiB of a file on tmpfs that it maps `--maps` times over, as some garbage collectors map their heap.
    Multimap,
    /// Makes files of one byte in `--dir`, each of which counts as a KiB: the kernel keeps dentries and inodes for them.
    Files,
}

/// Allocates memory until it is killed or has what it wants.
#[derive(Parser)]
struct Arguments {
    /// `cgroup.procs` files to enter first
    #[arg(long)]
    cgroup: Vec<PathBuf>,
    /// MiB to allocate and then hold
    #[arg(long)]
    mib: u64,
    /// MiB per second; 0: as fast as possible
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// MiB of it to touch beforehand, as fast as possible; with `--wait` another line is waited for after that
    #[arg(long, default_value_t = 0)]
    head: u64,
    /// How
    #[arg(long, value_enum, default_value_t = Way::Touch)]
    way: Way,
    /// Directory of the file that `--way tmpfs` and `--way cache` write
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// MiB of the file that `--way write`, `read` and `map` use
    #[arg(long, default_value_t = 4096)]
    size: u64,
    /// Mappings of the file that `--way multimap` makes
    #[arg(long, default_value_t = 1)]
    maps: usize,
    /// Wait for a line on standard input before allocating
    #[arg(long)]
    wait: bool,
    /// `oom_score_adj` to set; a refusal is said on standard error and nothing else
    #[arg(long, allow_hyphen_values = true)]
    oom_score_adj: Option<i32>,
    /// User to become, once it is in its cgroup
    #[arg(long)]
    uid: Option<libc::uid_t>,
    /// Say nothing of a refused `oom_score_adj`
    #[arg(long)]
    quiet: bool,
}

/// What comes at once where a rate counts.
const STEP: usize = 256 << 10;
/// What each of many processes takes.
const CHILD: usize = 4 << 20;
const MIB: usize = 1 << 20;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    for procs in &arguments.cgroup {
        fs::write(procs, "0").with_context(|| procs.display().to_string())?;
    }
    if let Some(score) = arguments.oom_score_adj
        && let Err(e) = fs::write("/proc/self/oom_score_adj", score.to_string())
        && !arguments.quiet
    {
        eprintln!("hog: oom_score_adj {score} is refused: {e}");
    }
    if let Some(uid) = arguments.uid {
        setuid(uid.into())?;
    }
    println!("ready");
    if arguments.wait {
        io::stdin().read_line(&mut String::new())?;
    }
    let bytes = |mib: u64| usize::try_from(mib).map(|mib| mib * MIB);
    let head = bytes(arguments.head.min(arguments.mib))?;
    let bytes = bytes(arguments.mib)? - head;
    if head > 0 {
        hold(Way::Touch, head)?;
        println!("ahead");
        if arguments.wait {
            io::stdin().read_line(&mut String::new())?;
        }
    }
    let pace = Pace(arguments.rate);
    match arguments.way {
        Way::Tmpfs => std::mem::forget(write_file(&arguments, bytes, pace)?),
        Way::Cache => {
            let file = write_file(&arguments, 0, pace)?;
            alternate(&file, bytes, pace)?;
            std::mem::forget(file);
        }
        Way::Processes => fork_many(bytes, pace)?,
        Way::Write | Way::Read | Way::Map => use_file(&arguments, bytes, pace)?,
        Way::Files => make_files(&arguments.dir, bytes, pace)?,
        Way::Multimap => {
            let size = usize::try_from(arguments.size)? * MIB;
            let file = write_file(&arguments, size, pace)?;
            for _ in 0..arguments.maps {
                std::mem::forget(read(&file, size)?);
            }
            println!("mapped");
            churn(bytes)?;
        }
        Way::Churn => churn(bytes)?,
        Way::Threads => {
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(move || allocate(Way::Touch, bytes / 8, Pace(0))))
                .collect();
            for thread in threads {
                thread.join().ok().context("a thread died")??;
            }
        }
        way => allocate(way, bytes, pace)?,
    }
    loop {
        std::thread::park();
    }
}

/// MiB per second, 0 for as fast as possible.
#[derive(Clone, Copy)]
struct Pace(u64);

impl Pace {
    /// Memory comes in small steps where a rate counts, in one piece where none does.
    fn step(self, left: usize) -> usize {
        if self.0 == 0 { left } else { STEP.min(left) }
    }

    /// Sleeps so that after `done` bytes the rate is kept.
    fn keep(self, start: Instant, done: usize) {
        if self.0 == 0 {
            return;
        }
        let due = Duration::from_secs_f64(done as f64 / (self.0 as f64 * MIB as f64));
        if let Some(ahead) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(ahead);
        }
    }
}

/// Goes on at this pace until so many bytes are done; each step says how many are its own.
fn paced(
    bytes: usize,
    pace: Pace,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let (start, mut done) = (Instant::now(), 0);
    while done < bytes {
        done += step(done)?;
        pace.keep(start, done);
    }
    Ok(())
}

fn allocate(way: Way, bytes: usize, pace: Pace) -> io::Result<()> {
    paced(bytes, pace, |done| {
        let length = pace.step(bytes - done);
        hold(way, length).map(|()| length)
    })
}

/// Touches that much and gives it back, again and again.
fn churn(bytes: usize) -> io::Result<()> {
    loop {
        drop(take(Way::Touch, bytes)?);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A fresh mapping whose pages are all there.
fn take(way: Way, length: usize) -> io::Result<MmapMut> {
    let mut options = MmapOptions::new();
    let options = match way {
        Way::Populate => options.populate(),
        Way::Hugetlb => options.huge(None),
        _ => &mut options,
    };
    let mut mapped = options.len(length).map_anon()?;
    if way == Way::Thp {
        // A refusal changes nothing: the kernel has no such pages.
        let _ = mapped.advise(Advice::HugePage);
    }
    touch(&mut mapped);
    Ok(mapped)
}

/// The same for as long as the process lives.
fn hold(way: Way, length: usize) -> io::Result<()> {
    take(way, length).map(std::mem::forget)
}

/// Writes to a file without a name: it goes away with the process, however that ends.
fn write_file(arguments: &Arguments, bytes: usize, pace: Pace) -> io::Result<fs::File> {
    let path = arguments.dir.join(format!("hog-{}", std::process::id()));
    let mut file = fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    let block = vec![1_u8; STEP];
    paced(bytes, pace, |_| file.write_all(&block).map(|()| STEP))?;
    Ok(file)
}

/// Goes through a file until that many bytes have been written, or read beside.
fn use_file(arguments: &Arguments, bytes: usize, pace: Pace) -> Result<()> {
    let size = usize::try_from(arguments.size)? * MIB;
    let size = size.min(bytes).max(STEP);
    let file = write_file(arguments, size, pace)?;
    let mut block = vec![1_u8; STEP];
    paced(bytes.saturating_sub(size), pace, |done| {
        let at = (done % size) as u64;
        match arguments.way {
            Way::Write => file.write_all_at(&block, at).map(|()| STEP),
            Way::Read => file.read_exact_at(&mut block, at).map(|()| STEP),
            _ => read(&file, size).map(|_| size),
        }
    })?;
    println!("done");
    // It stays open: a file without a name would go away.
    std::mem::forget(file);
    Ok(())
}

fn make_files(dir: &Path, bytes: usize, pace: Pace) -> io::Result<()> {
    const COUNTS: usize = 1024;
    paced(bytes, pace, |done| {
        let number = done / COUNTS;
        let dir = dir.join((number / 4096).to_string());
        if number.is_multiple_of(4096) {
            fs::create_dir_all(&dir)?;
        }
        fs::write(dir.join(number.to_string()), "1").map(|()| COUNTS)
    })?;
    println!("done");
    Ok(())
}

fn alternate(mut file: &fs::File, bytes: usize, pace: Pace) -> io::Result<()> {
    let block = vec![1_u8; STEP];
    paced(bytes, pace, |_| {
        hold(Way::Touch, STEP)?;
        file.write_all(&block).map(|()| 2 * STEP)
    })
}

fn fork_many(bytes: usize, pace: Pace) -> io::Result<()> {
    let (start, mut done) = (Instant::now(), 0);
    while done < bytes {
        // SAFETY: this process has one thread, so that the child may do everything.
        match unsafe { libc::fork() } {
            0 => {
                hold(Way::Touch, CHILD)?;
                loop {
                    std::thread::park();
                }
            }
            pid if pid > 0 => done += CHILD,
            _ => return Err(io::Error::last_os_error()),
        }
        pace.keep(start, done);
    }
    Ok(())
}
