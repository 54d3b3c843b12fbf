//! Allocates memory in the ways that real workloads do, at a given rate or as fast as the machine can.
//!
//! It enters its cgroup by itself before it allocates, so that every byte is charged there, and says `ready` on
//! standard output when it has; with `--wait` it starts only when a line arrives on standard input.

use std::{
    fs, io,
    path::PathBuf,
    ptr,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};

/// How the memory is taken.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// mmap, then one write per page.
    Touch,
    /// mmap with MAP_POPULATE: the kernel faults everything in within one system call.
    Populate,
    /// mmap with MADV_HUGEPAGE, then one write per page.
    Thp,
    /// Writes to a file on tmpfs (see `--dir`).
    Tmpfs,
    /// Many threads that touch at once.
    Threads,
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
    /// How
    #[arg(long, value_enum, default_value_t = Way::Touch)]
    way: Way,
    /// Directory of the file that `--way tmpfs` writes
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Wait for a line on standard input before allocating
    #[arg(long)]
    wait: bool,
    /// `oom_score_adj` to set; a refusal is said on standard error and nothing else
    #[arg(long, allow_hyphen_values = true)]
    oom_score_adj: Option<i32>,
}

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    for procs in &arguments.cgroup {
        fs::write(procs, "0").map_err(|e| io::Error::other(format!("{}: {e}", procs.display())))?;
    }
    if let Some(score) = arguments.oom_score_adj
        && let Err(e) = fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        eprintln!("hog: oom_score_adj {score} is refused: {e}");
    }
    println!("ready");
    if arguments.wait {
        io::stdin().read_line(&mut String::new())?;
    }
    let bytes = usize::try_from(arguments.mib).map_err(io::Error::other)? * MIB;
    match arguments.way {
        Way::Tmpfs => write_file(&arguments, bytes)?,
        Way::Threads => {
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(move || allocate(Way::Touch, bytes / 8, 0)))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| io::Error::other("a thread died"))??;
            }
        }
        way => allocate(way, bytes, arguments.rate)?,
    }
    loop {
        std::thread::park();
    }
}

/// Sleeps so that after `done` bytes the rate is kept.
fn pace(start: Instant, done: usize, mib_per_second: u64) {
    if mib_per_second > 0 {
        let due = Duration::from_secs_f64(done as f64 / (mib_per_second as f64 * MIB as f64));
        if let Some(ahead) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(ahead);
        }
    }
}

fn allocate(way: Way, bytes: usize, rate: u64) -> io::Result<()> {
    let start = Instant::now();
    // At a rate memory comes in small steps; at full speed in one piece.
    let step = if rate == 0 { bytes } else { 256 << 10 };
    let mut done = 0;
    while done < bytes {
        let length = step.min(bytes - done);
        let populate = if way == Way::Populate {
            libc::MAP_POPULATE
        } else {
            0
        };
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | populate,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if way == Way::Thp {
            // SAFETY: advises on the mapping that was just made; a refusal only means small pages.
            unsafe { libc::madvise(at, length, libc::MADV_HUGEPAGE) };
        }
        for offset in (0..length).step_by(PAGE) {
            // SAFETY: inside the mapping that was just made.
            unsafe { at.cast::<u8>().add(offset).write_volatile(1) };
        }
        done += length;
        pace(start, done, rate);
    }
    Ok(())
}

fn write_file(arguments: &Arguments, bytes: usize) -> io::Result<()> {
    use std::io::Write as _;
    let path = arguments.dir.join(format!("hog-{}", std::process::id()));
    let mut file = fs::File::create(&path)?;
    // Without a name it goes away with the process, however that ends.
    fs::remove_file(&path)?;
    let (start, block) = (Instant::now(), vec![1_u8; 256 << 10]);
    let mut done = 0;
    while done < bytes {
        file.write_all(&block)?;
        done += block.len();
        pace(start, done, arguments.rate);
    }
    std::mem::forget(file);
    Ok(())
}
