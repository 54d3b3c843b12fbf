//! What the kernel keeps back of the machine's memory by raised watermarks.
//!
//! `MemAvailable` is without all that lies below the high watermark of each zone (`totalreserve_pages`), and without as
//! much page cache and slab as lies below the low ones, half of each at most (`si_mem_available`). The OOM killer comes
//! below the min watermark (`should_reclaim_retry`); above it only kswapd works. By default the two are 0.2 % of a zone
//! apart, or half of its min watermark where that is more; `vm.watermark_scale_factor` raises the first to 60 %, and
//! `vm.min_free_kbytes` the other (`__setup_per_zone_wmarks`).

use std::{fs, path::Path};

use evictd_engine::units::scaled;
use evictd_sys::page::page_size;

use crate::kernfile::number;

/// What the kernel would keep back where it keeps more than by default, in bytes: with the min watermarks as they are,
/// and the distances that the others have by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultWatermarks {
    /// Free memory up to the high watermarks, and what lower zones keep for allocations that need them.
    pub reserve: u64,
    /// The low watermarks.
    pub low: u64,
}

impl DefaultWatermarks {
    /// Computes what is available of free memory, page cache on both lists and reclaimable slab, all in bytes, as the kernel
    /// would with these (`si_mem_available`).
    pub(super) fn available(&self, [free, cache, slab]: [u64; 3]) -> u64 {
        let usable = |bytes: u64| bytes - self.low.min(bytes / 2);
        let all = free
            .saturating_add(usable(cache))
            .saturating_add(usable(slab));
        all.saturating_sub(self.reserve)
    }
}

/// `vm.watermark_scale_factor` by default: so many of 10,000 parts.
const SCALE: u64 = 10;
/// `vm.min_free_kbytes` is no more by default, in KiB, but for what transparent huge pages add (`calculate_min_free_kbytes`).
const MIN_FREE_KIB: u64 = 256 << 10;
/// Blocks of pages in each zone that transparent huge pages want free, up to a twentieth of all memory
/// (`set_recommended_min_free_kbytes`).
const HUGE_PAGE_BLOCKS: u64 = 11;

/// Looks at the machine's watermarks, below a procfs mount, and how many bytes of free memory are kept back beyond the
/// default; `None` where they are no higher, or cannot be read. For threads of normal priority: it may read all zones.
pub fn raised_watermarks(proc: &Path) -> Option<(DefaultWatermarks, u64)> {
    let is_at_most = |name: &str, most| {
        let text = fs::read(proc.join("sys/vm").join(name)).unwrap_or_default();
        number(&text).is_some_and(|value| value <= most)
    };
    // Two short files: zoneinfo takes 15 us for each CPU.
    if is_at_most("watermark_scale_factor", SCALE) && is_at_most("min_free_kbytes", MIN_FREE_KIB) {
        return None;
    }
    let zones = Zone::all(&fs::read_to_string(proc.join("zoneinfo")).ok()?);
    let fixed = zones.iter().filter(|zone| !zone.is_movable);
    let all: u64 = fixed.map(|zone| zone.managed).sum();
    let page = page_size();
    let blocks = HUGE_PAGE_BLOCKS * (page / 8) * zones.len() as u64;
    let default_min = (MIN_FREE_KIB * 1024 / page).max(blocks.min(all / 20));
    let mut sums = [0_u64; 3];
    for zone in &zones {
        // A movable zone has another min watermark, and the same distances (`__setup_per_zone_wmarks`).
        let own = if zone.is_movable { u64::MAX } else { zone.min };
        let min = own.min(scaled(default_min, zone.managed, all));
        let distance = (min / 4).max(scaled(zone.managed, SCALE, 10_000));
        let high = zone.high.min(zone.min.saturating_add(2 * distance));
        let low = zone.low.min(zone.min.saturating_add(distance));
        let reserve = |high: u64| high.saturating_add(zone.protection).min(zone.managed);
        let bytes = [reserve(high), low, reserve(zone.high) - reserve(high)];
        for (sum, pages) in sums.iter_mut().zip(bytes) {
            *sum = sum.saturating_add(pages.saturating_mul(page));
        }
    }
    let [reserve, low, excess] = sums;
    (excess > 0).then_some((DefaultWatermarks { reserve, low }, excess))
}

/// A zone of `/proc/zoneinfo`, in pages. The watermarks are with what fragmentation adds to all of them for a moment
/// (`watermark_boost`).
#[derive(Debug, Default)]
struct Zone {
    is_movable: bool,
    min: u64,
    low: u64,
    high: u64,
    managed: u64,
    /// The most that it keeps for allocations that need it (`lowmem_reserve`).
    protection: u64,
}

impl Zone {
    fn all(zoneinfo: &str) -> Vec<Self> {
        let mut zones: Vec<Self> = Vec::new();
        for line in zoneinfo.lines() {
            if line.starts_with("Node ") {
                zones.push(Self {
                    is_movable: line.ends_with(" Movable"),
                    ..Self::default()
                });
            }
            let (Some(zone), Some((key, rest))) =
                (zones.last_mut(), line.trim_start().split_once(' '))
            else {
                continue;
            };
            let value = || number(rest.trim_start().as_bytes()).unwrap_or(0);
            match key {
                "min" => zone.min = value(),
                "low" => zone.low = value(),
                "high" => zone.high = value(),
                "managed" => zone.managed = value(),
                "protection:" => {
                    let pages = rest.split(['(', ',', ')']).map(str::trim);
                    let pages = pages.filter_map(|pages| number(pages.as_bytes()));
                    zone.protection = pages.max().unwrap_or(0);
                }
                _ => {}
            }
        }
        zones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Two NUMA nodes of 128 GiB, or of this part of it, the second with as much movable memory again, with these settings.
    fn raised(part: u64, scale: u64, min_free_kib: u64) -> Option<(DefaultWatermarks, u64)> {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path().join("sys/vm");
        fs::create_dir_all(&vm).unwrap();
        let pages = |gib: u64| (gib << 30) / part / page_size();
        let zones = [
            (0, "DMA", pages(1) / 64, pages(255) / 256),
            (0, "DMA32", pages(2), pages(253) / 256),
            (0, "Normal", pages(126), 0),
            (0, "Movable", 0, 0),
            (1, "Normal", pages(128), 0),
            (1, "Movable", pages(128), 0),
        ];
        let fixed = pages(256) + pages(1) / 64;
        let lines = zones.map(|(node, zone, managed, protection)| {
            let share = scaled(min_free_kib * 1024 / page_size(), managed, fixed);
            let distance = (share / 4).max(managed * scale / 10_000);
            let min = if zone == "Movable" { 32 } else { share };
            let (low, high) = (min + distance, min + 2 * distance);
            format!(
                "Node {node}, zone {zone:>8}\n  per-node stats\n      nr_active_file 7\n  pages free     9\n        \
                boost    0\n        min      {min}\n        low      {low}\n        high     {high}\n        \
                promo    9\n        managed  {managed}\n        protection: (0, 9, {protection}, {protection})\n  \
                pagesets\n    cpu: 0\n              count:    306\n              high:     1444\n  start_pfn:  1\n"
            )
        });
        fs::write(dir.path().join("zoneinfo"), lines.concat()).unwrap();
        fs::write(vm.join("watermark_scale_factor"), format!("{scale}\n")).unwrap();
        fs::write(vm.join("min_free_kbytes"), format!("{min_free_kib}\n")).unwrap();
        let raised = raised_watermarks(dir.path());
        // The zones tell the same without the settings.
        fs::remove_dir_all(vm).unwrap();
        assert_eq!(raised, raised_watermarks(dir.path()));
        raised
    }

    // R40
    #[test]
    fn what_exceeds_the_default_distance_is_kept_back() {
        // Of a small machine transparent huge pages want a twentieth.
        for (part, min_free) in [(1, 66 << 10), (1, 256 << 10), (256, 51 << 10)] {
            assert_eq!(raised(part, 10, min_free), None, "the defaults");
            assert_eq!(raised(part, 1, min_free), None);
        }
        let mib = |raised: Option<(DefaultWatermarks, u64)>| {
            let (DefaultWatermarks { reserve, low }, excess) = raised.unwrap();
            [reserve, low, excess].map(|bytes| (bytes + MIB / 2) / MIB)
        };
        assert_eq!(mib(raised(1, 1000, 256 << 10)), [2071, 649, 77_857]);
        assert_eq!(mib(raised(1, 10, 8 << 20)), [10_006, 8585, 5357]);
    }
}
