//! Facts about the machine, from files below given roots.

use std::{fs, path::Path};

use evictd_engine::accounting::GUARD;
use evictd_node::{
    bpf::btf::VMLINUX,
    cgroup::realtime::probe_realtime,
    proc::{
        machine::{self, Balloon},
        numa,
        process::effective_capabilities,
        psi::Psi,
        watermarks::raised_watermarks,
    },
};
use evictd_sys::perf;

use super::{Finding, State};

/// Capabilities that evictd makes use of: bit (`include/uapi/linux/capability.h`), name, what for, and how bad it is
/// without.
const CAPABILITIES: [(u32, &str, &str, State); 7] = [
    (
        5,
        "CAP_KILL",
        "signalling other users' processes",
        State::Missing,
    ),
    (
        14,
        "CAP_IPC_LOCK",
        "locking the agent's memory",
        State::Degraded,
    ),
    (
        23,
        "CAP_SYS_NICE",
        "real-time priority of the fast path",
        State::Degraded,
    ),
    (
        CAP_PERFMON,
        "CAP_PERFMON",
        "attaching to tracepoints and functions",
        State::Degraded,
    ),
    (39, "CAP_BPF", "loading kernel programs", State::Degraded),
    (
        24,
        "CAP_SYS_RESOURCE",
        "raising the limit on locked memory, which kernel maps count against before 5.11",
        State::Ok,
    ),
    (2, "CAP_DAC_READ_SEARCH", "reading files of pods", State::Ok),
];
const CAP_SYS_ADMIN: u32 = 21;
/// The first of those that CAP_SYS_ADMIN stood for before 5.8.
const CAP_PERFMON: u32 = 38;

/// `uname -r`.
pub fn release(proc: &Path) -> String {
    let text = fs::read_to_string(proc.join("sys/kernel/osrelease")).unwrap_or_default();
    text.trim().to_owned()
}

/// Everything that files tell.
pub fn findings(proc: &Path, sys: &Path) -> Vec<Finding> {
    let findings = vec![
        capabilities(proc),
        btf(),
        lockdown(proc, sys),
        lsm(sys),
        swap(proc),
        numa(sys),
        psi(proc),
        realtime(),
        perf_events(),
    ];
    let findings = findings.into_iter().chain(balloon(proc, sys));
    let raised = raised_watermarks(proc).map(|(_, excess)| excess);
    findings.chain(raised.and_then(watermarks)).collect()
}

fn capabilities(proc: &Path) -> Finding {
    const TOPIC: &str = "capabilities";
    let status = fs::read_to_string(proc.join("self/status")).unwrap_or_default();
    let Some(effective) = effective_capabilities(&status) else {
        return Finding::new(TOPIC, State::Degraded, "/proc/self/status does not tell");
    };
    let has = |bit: u32| effective >> bit & 1 == 1;
    // CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON, as it did before there were these.
    let granted = |bit: u32| has(bit) || (bit >= CAP_PERFMON && has(CAP_SYS_ADMIN));
    let missing: Vec<_> = CAPABILITIES.iter().filter(|c| !granted(c.0)).collect();
    let worst = missing.iter().map(|c| c.3).max_by_key(|state| *state as u8);
    let detail = if missing.is_empty() {
        "all that evictd makes use of".to_owned()
    } else {
        let names: Vec<_> = missing
            .iter()
            .map(|(_, n, what, _)| format!("{n} ({what})"))
            .collect();
        format!("without {}", names.join(", "))
    };
    Finding::new(TOPIC, worst.unwrap_or(State::Ok), detail)
}

fn btf() -> Finding {
    match fs::metadata(VMLINUX) {
        Ok(meta) => Finding::new(
            "BTF",
            State::Ok,
            format!("{VMLINUX}, {} KiB", meta.len() >> 10),
        ),
        Err(e) => Finding::new(
            "BTF",
            State::Degraded,
            format!("{VMLINUX}: {e}: no kernel programs"),
        ),
    }
}

/// `none [integrity] confidentiality`: the word in brackets is in force. In a container, which has no securityfs, the kernel's
/// command line tells.
fn lockdown(proc: &Path, sys: &Path) -> Finding {
    const TOPIC: &str = "lockdown";
    let mode = match fs::read_to_string(sys.join("kernel/security/lockdown")) {
        Ok(text) => text.split(['[', ']']).nth(1).unwrap_or("none").to_owned(),
        Err(_) => {
            let line = fs::read_to_string(proc.join("cmdline")).unwrap_or_default();
            let mut options = line.split_whitespace().rev();
            let last = options.find_map(|option| option.strip_prefix("lockdown="));
            let unknown = "unknown (securityfs is not mounted, or no lockdown)";
            last.unwrap_or(unknown).to_owned()
        }
    };
    if mode == "confidentiality" {
        let detail = "confidentiality: kernel programs may not read kernel memory";
        return Finding::new(TOPIC, State::Degraded, detail);
    }
    Finding::new(TOPIC, State::Ok, mode)
}

/// What kprobes, classic tracepoints and the standby thread's wake-ups go through.
fn perf_events() -> Finding {
    const TOPIC: &str = "perf events";
    match perf::probe() {
        Ok(()) => Finding::new(TOPIC, State::Ok, "can be opened"),
        Err(error) => Finding::new(
            TOPIC,
            State::Degraded,
            format!("{error}: no standby thread, no kprobes, no tracepoints of files"),
        ),
    }
}

fn lsm(sys: &Path) -> Finding {
    let text = fs::read_to_string(sys.join("kernel/security/lsm"));
    let detail = text.unwrap_or_else(|_| "unknown (securityfs is not mounted)".to_owned());
    Finding::new("security modules", State::Ok, detail.trim())
}

/// With swap, availability alone does not tell how short memory is.
fn swap(proc: &Path) -> Finding {
    const TOPIC: &str = "swap";
    let swaps = fs::read_to_string(proc.join("swaps")).unwrap_or_default();
    match swaps.lines().skip(1).count() {
        0 => Finding::new(TOPIC, State::Ok, "none"),
        n => {
            let detail = format!(
                "{n} in use: memory.available does not see what is swapped out; watch pressure (PSI) too"
            );
            Finding::new(TOPIC, State::Degraded, detail)
        }
    }
}

/// A balloon that stays in `MemTotal`; any other is followed as the capacity.
fn balloon(proc: &Path, sys: &Path) -> Option<Finding> {
    const TOPIC: &str = "balloon";
    const LOOKS_LIKE_GROWTH: &str = "what it takes looks like growth, and can cost pods";
    let held = machine::balloon(proc).map(|bytes| bytes >> 20);
    let (state, detail) = match (Balloon::detect(sys), held) {
        (Balloon::None, _) => return None,
        (Balloon::GivenBack, Some(mib)) => (
            State::Ok,
            format!(
                "deflates before the OOM killer comes: the {mib} MiB that it holds are room, and no growth"
            ),
        ),
        (Balloon::GivenBack, None) => (
            State::Degraded,
            format!(
                "deflates before the OOM killer comes, and the kernel does not tell what it holds (6.15 and later do): \
                {LOOKS_LIKE_GROWTH}"
            ),
        ),
        (Balloon::Taken, _) => (
            State::Degraded,
            format!(
                "is one of VMware, of which the kernel does not tell what is taken in pages of 2 MiB: {LOOKS_LIKE_GROWTH}"
            ),
        ),
    };
    Some(Finding::new(TOPIC, state, detail))
}

/// So many bytes of free memory are kept back beyond the default.
fn watermarks(excess: u64) -> Option<Finding> {
    (excess > GUARD).then(|| {
        let detail = format!(
            "vm.watermark_scale_factor or vm.min_free_kbytes keeps back {} MiB more than by default: MemAvailable is \
            without them, memoryGuard counts them as available",
            excess >> 20
        );
        Finding::new("watermarks", State::Ok, detail)
    })
}

fn numa(sys: &Path) -> Finding {
    const TOPIC: &str = "NUMA nodes";
    match numa::nodes(sys) {
        Ok(nodes) if nodes.len() > 1 => {
            let each = nodes
                .iter()
                .map(|n| format!("{}: {} MiB", n.id, n.available >> 20));
            let each: Vec<_> = each.collect();
            let detail = format!(
                "available are {}; memory.available is of all together, and tasks bound to one node can meet the OOM \
                killer before it is short",
                each.join(", ")
            );
            Finding::new(TOPIC, State::Ok, detail)
        }
        Ok(_) => Finding::new(TOPIC, State::Ok, "memory is in one node"),
        Err(error) => Finding::new(TOPIC, State::Degraded, error.to_string()),
    }
}

fn psi(proc: &Path) -> Finding {
    const TOPIC: &str = "pressure stall information";
    match Psi::read(&proc.join("pressure/memory")) {
        Ok(p) => Finding::new(
            TOPIC,
            State::Ok,
            format!("memory some avg10={:.2} %", p.some),
        ),
        Err(e) => Finding::new(TOPIC, State::Degraded, format!("{e}; boot with psi=1")),
    }
}

fn realtime() -> Finding {
    match probe_realtime() {
        Ok(()) => Finding::new("real-time priority", State::Ok, "SCHED_FIFO is granted"),
        Err(e) => Finding::new(
            "real-time priority",
            State::Degraded,
            format!("SCHED_FIFO: {e}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn capabilities_are_named_with_what_they_are_for() {
        let all = root(&[("self/status", "CapEff:\t000001ffffffffff\n")]);
        assert_eq!(capabilities(all.path()).state, State::Ok);
        // Everything but CAP_SYS_NICE.
        let no_nice = root(&[("self/status", "CapEff:\t000001ffff7fffff\n")]);
        let finding = capabilities(no_nice.path());
        assert_eq!(finding.state, State::Degraded);
        assert_eq!(
            finding.detail,
            "without CAP_SYS_NICE (real-time priority of the fast path)"
        );
        let nothing = root(&[("self/status", "CapEff:\t0000000000000000\n")]);
        assert_eq!(capabilities(nothing.path()).state, State::Missing);
        // CAP_SYS_ADMIN, CAP_KILL, CAP_IPC_LOCK, CAP_SYS_NICE: an old kernel's way.
        let bits = 1_u64 << 21 | 1 << 5 | 1 << 14 | 1 << 23;
        let admin = root(&[("self/status", &format!("CapEff:\t{bits:016x}\n"))]);
        assert!(!capabilities(admin.path()).detail.contains("CAP_BPF"));
    }

    // R23
    #[test]
    fn swap_degrades() {
        let without = root(&[("swaps", "Filename Type Size Used Priority\n")]);
        assert_eq!(swap(without.path()).state, State::Ok);
        let with = root(&[(
            "swaps",
            "Filename Type Size Used Priority\n/dev/vdb partition 1 0 -2\n",
        )]);
        assert_eq!(swap(with.path()).state, State::Degraded);
    }

    #[test]
    fn a_balloon_whose_size_is_not_told_degrades() {
        let features = "bus/virtio/drivers/virtio_balloon/virtio3/features";
        let told = |features: (&str, &str), meminfo: &str| {
            let root = root(&[features, ("meminfo", meminfo)]);
            balloon(root.path(), root.path()).map(|finding| finding.state)
        };
        let deflates = (features, "0010\n");
        assert_eq!(told(deflates, "Balloon: 2048 kB\n"), Some(State::Ok));
        assert_eq!(told(deflates, "MemTotal: 1 kB\n"), Some(State::Degraded));
        assert_eq!(told((features, "0100\n"), "MemTotal: 1 kB\n"), None);
        assert_eq!(told(("none", ""), "MemTotal: 1 kB\n"), None);
        let vmware = ("module/vmw_balloon/initstate", "live\n");
        assert_eq!(told(vmware, "Balloon: 0 kB\n"), Some(State::Degraded));
    }

    #[test]
    fn watermarks_that_keep_back_more_than_the_guard_are_told_of() {
        assert_eq!(watermarks(GUARD), None);
        let told = watermarks(3 << 30).unwrap();
        assert!(told.detail.contains(" 3072 MiB "), "{}", told.detail);
    }

    #[test]
    fn lockdown_is_read_from_the_brackets() {
        let strict = root(&[(
            "kernel/security/lockdown",
            "none integrity [confidentiality]\n",
        )]);
        let none = root(&[]);
        let on_host = |sys| lockdown(none.path(), sys);
        assert_eq!(on_host(strict.path()).state, State::Degraded);
        let booted = root(&[("cmdline", "quiet lockdown=confidentiality slub_debug=P\n")]);
        let of_container = lockdown(booted.path(), none.path());
        assert_eq!(of_container.state, State::Degraded);
        let open = root(&[(
            "kernel/security/lockdown",
            "[none] integrity confidentiality\n",
        )]);
        assert_eq!(
            (on_host(open.path()).state, on_host(open.path()).detail),
            (State::Ok, "none".into())
        );
    }
}
