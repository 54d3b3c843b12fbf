//! The machine as a whole.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use evictd_engine::model::usage::MachineMemory;
use evictd_sys::{fs::PathError, page::page_size};

use crate::{
    kernfile::{bad_message, for_each_line, malformed, number, open_primed, pread},
    proc::watermarks::DefaultWatermarks,
};

/// The kernel's own estimate of what can still be allocated without swapping, held open: `MemAvailable` of meminfo
/// (`si_mem_available`). Slab, page tables, huge pages and the watermarks' reserves are not in it, all of which the
/// kubelet's count of a v2 node takes for available.
#[derive(Debug)]
pub struct MemAvailable {
    meminfo: File,
    balloon: Balloon,
    raised: Option<DefaultWatermarks>,
}

/// Whether pages are reclaimed by generations (MGLRU, `lru_gen_enabled`), below a sysfs mount.
pub fn has_mglru(sys: &Path) -> bool {
    /// `LRU_GEN_CORE` (include/linux/mmzone.h).
    const CORE: u32 = 1;
    let enabled = fs::read_to_string(sys.join("kernel/mm/lru_gen/enabled")).unwrap_or_default();
    let bits = enabled.trim().trim_start_matches("0x");
    u32::from_str_radix(bits, 16).is_ok_and(|bits| bits & CORE != 0)
}

/// Way in which a balloon's pages are counted, beside their own line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balloon {
    /// There is none, or `MemTotal` falls by what it takes.
    None,
    /// The pages are in `MemTotal`, and the balloon deflates before the OOM killer comes: one of virtio with
    /// `DEFLATE_ON_OOM`.
    GivenBack,
    /// The pages are in `MemTotal`, and the host has them: one of VMware, which does not adjust the count of managed
    /// pages.
    Taken,
}

impl Balloon {
    /// The machine's, below a sysfs mount.
    pub fn detect(sys: &Path) -> Self {
        if gives_balloon_back(sys) {
            return Self::GivenBack;
        }
        match sys.join("module/vmw_balloon").exists() {
            true => Self::Taken,
            false => Self::None,
        }
    }
}

impl MemAvailable {
    /// Opens `meminfo` below a procfs mount.
    ///
    /// # Errors
    /// Not there, or without the line (kernels before 3.14).
    pub fn open(proc: &Path) -> Result<Self, PathError> {
        Ok(Self {
            meminfo: open_meminfo(proc, &["MemTotal:", "MemAvailable:"])?,
            balloon: Balloon::None,
            raised: None,
        })
    }

    /// The machine has a balloon.
    #[must_use]
    pub fn with_balloon(mut self, balloon: Balloon) -> Self {
        self.balloon = balloon;
        self
    }

    /// From now on what these keep back beyond the default is available.
    pub fn set_default_watermarks(&mut self, raised: Option<DefaultWatermarks>) {
        self.raised = raised;
    }

    /// Reads the machine's memory at this moment. Does not allocate.
    ///
    /// # Errors
    /// Not in the kernel's form.
    pub fn read(&self) -> io::Result<MachineMemory> {
        let mut buffer = [0; MEMINFO];
        let text = pread(&self.meminfo, &mut buffer)?;
        let line = |name| meminfo(text, name);
        let total = line("MemTotal:").ok_or_else(bad_message)?;
        let available = line("MemAvailable:").ok_or_else(bad_message)?;
        let pages = || line(BALLOON).unwrap_or(0);
        let (taken, given_back) = match self.balloon {
            Balloon::None => (0, 0),
            Balloon::GivenBack => (0, pages()),
            Balloon::Taken => (pages(), 0),
        };
        // Since 4.19. An administrator sets huge pages aside, also while the machine runs; the kernel calls no OOM
        // killer for them.
        let huge_pages = line("Hugetlb:").unwrap_or(0);
        let total = total.saturating_sub(taken).saturating_sub(huge_pages);
        // `KReclaimable` since 4.20.
        let slab = line("KReclaimable:").or_else(|| line("SReclaimable:"));
        let lines = || {
            let cache = line("Active(file):")? + line("Inactive(file):")?;
            Some([line("MemFree:")?, cache, slab?])
        };
        let lines = lines();
        let raised = self.raised.zip(lines);
        let above_default = raised.map_or(0, |(raised, lines)| raised.available(lines));
        let available = available.max(above_default);
        let available = available.saturating_add(given_back).min(total);
        let reclaimable = lines.map(|lines| lines.iter().sum::<u64>() + given_back);
        Ok(MachineMemory {
            total,
            available,
            unreclaimable: total.saturating_sub(reclaimable.unwrap_or(available)),
            pcp_free: 0,
        })
    }
}

/// Since 6.15.
const BALLOON: &str = "Balloon:";
/// `VIRTIO_BALLOON_F_DEFLATE_ON_OOM`.
const DEFLATE_ON_OOM: usize = 2;

fn gives_balloon_back(sys: &Path) -> bool {
    let devices = fs::read_dir(sys.join("bus/virtio/drivers/virtio_balloon"));
    let mut devices = devices.into_iter().flatten().flatten();
    devices.any(|device| {
        let features = fs::read(device.path().join("features"));
        features.is_ok_and(|bits| bits.get(DEFLATE_ON_OOM) == Some(&b'1'))
    })
}

/// Reads how many bytes balloons hold; `None` where the kernel does not tell.
pub fn balloon(proc: &Path) -> Option<u64> {
    meminfo(&fs::read(proc.join("meminfo")).ok()?, BALLOON)
}

/// The CPUs' lists of free pages (`per_cpu_pages`), held open. What processes free lies there first, up to an eighth of
/// a zone since 6.7, and is not in `MemAvailable`; the kernel takes it from there before the OOM killer comes.
#[derive(Debug)]
pub(crate) struct PcpLists(File);

/// With more CPUs it takes too long to read all their lists: some 15 us for each.
const MAX_CPUS: u64 = 32;
/// Before each number of pages.
const COUNT: &[u8] = b"count:";

impl PcpLists {
    /// Opens `zoneinfo` below a procfs mount; `None` where it cannot be read, or there are too many CPUs.
    pub fn open(proc: &Path) -> Option<Self> {
        if online_cpus() > MAX_CPUS {
            return None;
        }
        let lists = Self(File::open(proc.join("zoneinfo")).ok()?);
        // The kernel keeps a buffer for the longest zone from here on.
        lists.read().ok().map(|_| lists)
    }

    /// Bytes at this moment. Does not allocate.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<u64> {
        let mut pages = 0_u64;
        for_each_line(&self.0, &mut |line| {
            let count = line.trim_ascii().strip_prefix(COUNT);
            let count = count.and_then(|count| number(count.trim_ascii()));
            pages = pages.saturating_add(count.unwrap_or(0));
        })?;
        Ok(pages.saturating_mul(page_size()))
    }
}

/// What the machine's memory is used for, held open: its counters are exact to a few pages of each CPU, where those of
/// cgroups may be seconds behind.
#[derive(Debug)]
pub struct MemoryUse(File);

/// One reading, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUses {
    /// `AnonPages` and `Shmem`: what page cache is not.
    pub anonymous: u64,
    /// `SReclaimable`: slab that the kernel can reclaim.
    pub reclaimable_slab: u64,
}

/// All lines of meminfo.
const MEMINFO: usize = 4096;

impl MemoryUse {
    /// Opens `meminfo` below a procfs mount.
    ///
    /// # Errors
    /// Not there, or without the lines.
    pub fn open(proc: &Path) -> Result<Self, PathError> {
        open_meminfo(proc, &["AnonPages:", "Shmem:", "SReclaimable:"]).map(Self)
    }

    /// Bytes at this moment. Does not allocate.
    ///
    /// # Errors
    /// Not in the kernel's form.
    pub fn read(&self) -> io::Result<MemoryUses> {
        let mut buffer = [0; MEMINFO];
        let text = pread(&self.0, &mut buffer)?;
        let line = |name| meminfo(text, name).ok_or_else(bad_message);
        Ok(MemoryUses {
            anonymous: line("AnonPages:")?.saturating_add(line("Shmem:")?),
            reclaimable_slab: line("SReclaimable:")?,
        })
    }
}

/// Swap of the machine, held open: `SwapTotal`, `SwapFree` and what is in memory as well of meminfo.
#[derive(Debug)]
pub(crate) struct MachineSwap(File);

/// Whether the machine has swap now.
pub fn has_swap() -> bool {
    MachineSwap::open(Path::new("/proc")).is_ok()
}

impl MachineSwap {
    /// Opens `meminfo` below a procfs mount.
    ///
    /// # Errors
    /// Not there, or the machine has no swap.
    pub fn open(proc: &Path) -> Result<Self, PathError> {
        let path = proc.join("meminfo");
        let text = fs::read(&path).map_err(PathError::at(&path))?;
        if meminfo(&text, "SwapTotal:").unwrap_or(0) == 0 {
            return Err(PathError::at(&path)(malformed("no swap")));
        }
        File::open(&path).map(Self).map_err(PathError::at(&path))
    }

    /// Bytes that are free at this moment, and that are swapped out and not in memory as well (the swap cache, zswap):
    /// `swapoff` moves what is free alone. Does not allocate.
    ///
    /// # Errors
    /// Not in the kernel's form.
    pub fn read(&self) -> io::Result<(u64, u64)> {
        let mut buffer = [0; MEMINFO];
        let text = pread(&self.0, &mut buffer)?;
        let line = |name| meminfo(text, name).ok_or_else(bad_message);
        let (free, total) = (line("SwapFree:")?, line("SwapTotal:")?);
        // Not there on a kernel that is built without it.
        let optional = |name| meminfo(text, name).unwrap_or(0);
        let in_memory = optional("SwapCached:").saturating_add(optional("Zswap:"));
        Ok((free, total.saturating_sub(free).saturating_sub(in_memory)))
    }
}

/// Memory of the machine in bytes: `MemTotal` of meminfo, which is the kubelet's capacity of `memory.available`.
///
/// # Errors
/// Not there, or not in the kernel's form.
pub fn memory_total(proc: &Path) -> Result<u64, PathError> {
    let path = proc.join("meminfo");
    let text = fs::read(&path).map_err(PathError::at(&path))?;
    meminfo(&text, "MemTotal:").ok_or_else(|| PathError::at(&path)(malformed("no MemTotal")))
}

/// Opens `meminfo` below a procfs mount for a reader that has to find these lines there.
fn open_meminfo(proc: &Path, lines: &[&str]) -> Result<File, PathError> {
    let path = proc.join("meminfo");
    let file = open_primed(&path)?;
    let mut buffer = [0; MEMINFO];
    let text = pread(&file, &mut buffer).map_err(PathError::at(&path))?;
    match lines.iter().find(|line| meminfo(text, line).is_none()) {
        Some(line) => {
            let what = format!("no {}", line.trim_end_matches(':'));
            Err(PathError::at(&path)(malformed(&what)))
        }
        None => Ok(file),
    }
}

/// The bytes that a line of meminfo tells in kB. Does not allocate.
pub(super) fn meminfo(text: &[u8], name: &str) -> Option<u64> {
    let line = |line: &[u8]| {
        let rest = line.strip_prefix(name.as_bytes())?.trim_ascii();
        number(rest.strip_suffix(b" kB")?)?.checked_mul(1024)
    };
    text.split(|b| *b == b'\n').find_map(line)
}

/// Counts the CPUs that are online; 1 where the kernel does not say.
pub fn online_cpus() -> u64 {
    aya::util::online_cpus().map_or(1, |cpus| cpus.len() as u64)
}

/// The fastest growth this machine can make, in bytes per second: every CPU clearing huge pages at memory speed.
///
/// 4 GiB/s per CPU is more than any one of them was seen to reach (page-fault loops with THP: 2 to 3 GiB/s); memory
/// controllers end the scaling at about 64 GiB/s.
pub fn fastest_growth() -> u64 {
    const PER_CPU: u64 = 4 << 30;
    const MACHINE: u64 = 64 << 30;
    // Not only those that this process may run on.
    (online_cpus() * PER_CPU).min(MACHINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mglru_is_one_bit_of_those_that_are_enabled() {
        let sys = tempfile::tempdir().unwrap();
        assert!(!has_mglru(sys.path()), "a kernel without it");
        let dir = sys.path().join("kernel/mm/lru_gen");
        fs::create_dir_all(&dir).unwrap();
        for (text, has) in [("0x0007", true), ("0x0001", true), ("0x0000", false)] {
            fs::write(dir.join("enabled"), format!("{text}\n")).unwrap();
            assert_eq!(has_mglru(sys.path()), has, "{text}");
        }
    }

    #[test]
    fn free_pages_of_all_cpus_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let cpu = |count: u64| {
            format!("    cpu: 0\n              count:    {count}\n              high:     8\n")
        };
        // More than one part, whose borders lie within lines.
        let zone = |counts: &[u64]| {
            let cpus: String = counts.iter().map(|count| cpu(*count)).collect();
            format!("Node 0, zone  Normal\n  pages free     9\n  pagesets\n{cpus}  start_pfn:  1\n")
        };
        let counts: Vec<u64> = (0..300).collect();
        let text = zone(&counts) + &zone(&[7]);
        fs::write(dir.path().join("zoneinfo"), text).unwrap();
        let lists = PcpLists(File::open(dir.path().join("zoneinfo")).unwrap());
        assert_eq!(lists.read().unwrap(), (300 * 299 / 2 + 7) * page_size());
        let of_machine = PcpLists::open(Path::new("/proc"));
        assert!(of_machine.is_none_or(|lists| lists.read().unwrap() > 0));
    }

    #[test]
    fn what_the_kernel_holds_available_is_read_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(dir.path().join("meminfo"), text).unwrap();
        write(
            "MemTotal:        2014688 kB\nMemFree:          131612 kB\nMemAvailable:     102400 kB\nBuffers: 7 kB\n",
        );
        let available = MemAvailable::open(dir.path()).unwrap();
        let expected = MachineMemory {
            total: 2_014_688 << 10,
            available: 100 << 20,
            unreclaimable: (2_014_688 << 10) - (100 << 20),
            pcp_free: 0,
        };
        assert_eq!(available.read().unwrap(), expected);
        let lines = [
            ("MemTotal:        2014688 kB\n", "MemAvailable"),
            ("MemAvailable:     102400 kB\n", "MemTotal"),
        ];
        for (line, missing) in lines {
            write(line);
            let error = MemAvailable::open(dir.path()).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("meminfo: no {missing}")),
                "{error}"
            );
        }
    }

    /// 50 MiB of page cache more: `MemAvailable` falls by half of it, as long as there is little.
    // R40
    #[test]
    fn what_is_neither_free_nor_cache_nor_slab_is_unreclaimable() {
        let dir = tempfile::tempdir().unwrap();
        let mib = |free: u64, cache: u64, available: u64| {
            let text = format!(
                "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nActive(file): {} kB\n\
                 Inactive(file): 2048 kB\nKReclaimable: 92160 kB\nSReclaimable: 81920 kB\n",
                1000 << 10,
                free << 10,
                available << 10,
                cache << 10,
            );
            fs::write(dir.path().join("meminfo"), text).unwrap();
            let memory = MemAvailable::open(dir.path()).unwrap().read().unwrap();
            (memory.available >> 20, memory.unreclaimable >> 20)
        };
        assert_eq!(mib(180, 58, 119), (119, 670));
        assert_eq!(mib(130, 108, 94), (94, 670));
        assert_eq!(mib(80, 108, 44), (44, 720));
    }

    /// Free memory is below the high watermarks, and the kernel calls all of it kept back.
    // R40
    #[test]
    fn what_raised_watermarks_keep_back_is_available() {
        let dir = tempfile::tempdir().unwrap();
        let left = |free: u64, available: u64, raised: Option<[u64; 2]>| {
            let text = format!(
                "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nActive(file): 1024 kB\nInactive(file): 1024 kB\n\
                 KReclaimable: 102400 kB\n",
                1000 << 10,
                free << 10,
                available << 10,
            );
            fs::write(dir.path().join("meminfo"), text).unwrap();
            let mut memory = MemAvailable::open(dir.path()).unwrap();
            let raised = raised.map(|mib| mib.map(|mib| mib << 20));
            memory.set_default_watermarks(
                raised.map(|[reserve, low]| DefaultWatermarks { reserve, low }),
            );
            memory.read().unwrap().available >> 20
        };
        assert_eq!(left(180, 0, None), 0);
        // Half of page cache is kept back, and of slab what lies below the low watermarks.
        assert_eq!(left(180, 0, Some([30, 20])), 180 - 30 + 1 + 80);
        assert_eq!(left(10, 0, Some([300, 20])), 0);
        assert_eq!(left(180, 700, Some([30, 20])), 700);
    }

    #[test]
    fn a_balloon_that_gives_back_is_available() {
        let dir = tempfile::tempdir().unwrap();
        let driver = dir.path().join("bus/virtio/drivers/virtio_balloon");
        fs::create_dir_all(driver.join("virtio0")).unwrap();
        fs::write(driver.join("bind"), "").unwrap();
        let available = |features: &str, balloon: u64| {
            fs::write(driver.join("virtio0/features"), features).unwrap();
            let lines = (0..50).map(|line| format!("Line{line}: 1 kB\n"));
            let text = format!(
                "MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: {} kB\n{}Balloon: {balloon} kB\n",
                7000 - balloon,
                lines.collect::<String>(),
            );
            fs::write(dir.path().join("meminfo"), text).unwrap();
            let memory = MemAvailable::open(dir.path()).unwrap();
            let memory = memory.with_balloon(Balloon::detect(dir.path()));
            memory.read().unwrap().available >> 10
        };
        assert_eq!(available("0110010100\n", 0), 7000);
        assert_eq!(available("0110010100\n", 6000), 7000);
        // The kernel takes what such a balloon holds from `MemTotal`, too.
        assert_eq!(available("0100010100\n", 6000), 1000);
    }

    /// What the host has taken and huge pages are set aside: nothing has grown in what is left.
    #[test]
    fn what_is_set_aside_is_not_in_use() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("module/vmw_balloon")).unwrap();
        let balloon = Balloon::detect(dir.path());
        assert_eq!(balloon, Balloon::Taken);
        let memory = |taken: u64| {
            let text = format!(
                "MemTotal: 8000 kB\nMemAvailable: {} kB\nHugetlb: {taken} kB\nBalloon: {taken} kB\n",
                5000 - 2 * taken
            );
            fs::write(dir.path().join("meminfo"), text).unwrap();
            let memory = MemAvailable::open(dir.path()).unwrap();
            memory.with_balloon(balloon).read().unwrap()
        };
        let used = |taken| memory(taken).total - memory(taken).available;
        assert_eq!(used(0) >> 10, 3000);
        assert_eq!(used(2000) >> 10, 3000);
    }
}
