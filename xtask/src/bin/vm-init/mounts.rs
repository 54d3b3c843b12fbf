//! The filesystems of a node.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags},
};

const CGROUP: &str = "/sys/fs/cgroup";

/// Kernel filesystems, and memory for what tests write. `/dev` may be there already.
pub fn base() -> Result<()> {
    for (fstype, target) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("devpts", "/dev/pts"),
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("securityfs", "/sys/kernel/security"),
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
    ] {
        mount(fstype, target, "")?;
    }
    Ok(())
}

/// An empty `/tmp`: a job that was killed leaves files there, and disks whose images lie there, all of it in the guest's memory.
pub fn empty_tmp() -> Result<()> {
    nix::mount::umount2("/tmp", MntFlags::MNT_DETACH).context("cannot unmount /tmp")?;
    mount("tmpfs", "/tmp", "")
}

/// Kernel settings as the kubelet leaves them on a node (its `setupKernelTunables`): memory is promised without
/// counting, and an OOM kills a process and not the machine. `panic=-1` on the command line stays.
pub fn kubelet_tunables() -> Result<()> {
    for (path, value) in [
        ("/proc/sys/vm/overcommit_memory", "1"),
        ("/proc/sys/vm/panic_on_oom", "0"),
    ] {
        fs::write(path, value).context(path)?;
    }
    Ok(())
}

/// The cgroup hierarchies that the kernel's command line asks for.
pub fn cgroups(cmdline: &str) -> Result<()> {
    let asked = cmdline
        .split_whitespace()
        .find_map(|word| word.strip_prefix("evictd.cgroup="));
    match asked {
        Some("v1") => version_1(),
        Some("v2") => version_2(),
        other => bail!(
            "evictd.cgroup={} on the kernel's command line: neither v1 nor v2",
            other.unwrap_or("")
        ),
    }
}

fn version_2() -> Result<()> {
    mount("cgroup2", CGROUP, "")?;
    let available = fs::read_to_string(Path::new(CGROUP).join("cgroup.controllers"))?;
    if !available.split_whitespace().any(|name| name == "memory") {
        bail!(
            "no memory controller in cgroup v2, only: {}",
            available.trim()
        );
    }
    for controller in available.split_whitespace() {
        // As systemd does: a new cgroup has the controllers in it.
        fs::write(
            Path::new(CGROUP).join("cgroup.subtree_control"),
            format!("+{controller}"),
        )
        .with_context(|| format!("cannot enable {controller}"))?;
    }
    Ok(())
}

fn version_1() -> Result<()> {
    let text = fs::read_to_string("/proc/cgroups")?;
    let controllers = enabled(&text);
    ensure!(
        controllers.contains(&"memory"),
        "no memory controller for cgroup v1, only: {}",
        controllers.join(" ")
    );
    mount("tmpfs", CGROUP, "mode=755")?;
    for controller in controllers {
        mount("cgroup", &format!("{CGROUP}/{controller}"), controller)?;
    }
    mount("cgroup", &format!("{CGROUP}/systemd"), "none,name=systemd")?;
    // Hierarchical counting became the only way in 5.11; before that systemd switches it on.
    fs::write(Path::new(CGROUP).join("memory/memory.use_hierarchy"), "1")
        .context("memory.use_hierarchy")
}

/// The enabled controllers of /proc/cgroups: name, hierarchy, number of cgroups, enabled.
fn enabled(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let name = fields.next()?;
            (fields.nth(2) == Some("1")).then_some(name)
        })
        .collect()
}

fn mount(fstype: &str, target: &str, options: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| target.to_owned())?;
    match nix::mount::mount(
        Some(fstype),
        target,
        Some(fstype),
        MsFlags::empty(),
        Some(options),
    ) {
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(reason) => {
            Err(reason).with_context(|| format!("cannot mount {fstype} at {target} ({options})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_controllers_are_left_out() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t1\t1\nmemory\t0\t1\t0\npids\t0\t1\t1\n";
        assert_eq!(enabled(text), ["cpu", "pids"]);
    }
}
