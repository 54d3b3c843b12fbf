//! What this machine has not got, where it is the node: the manifests ask for what usual nodes have.

use std::{fs, path::Path};

/// The tables of mounts that a runtime started by the node's first process sees.
const MOUNTINFO: &str = "/proc/1/mountinfo";

/// Which of these directories are not there.
pub fn missing(directories: Vec<String>) -> Vec<String> {
    let gone = |path: &String| !Path::new(path).is_dir();
    directories.into_iter().filter(gone).collect()
}

/// Whether later mounts below this directory can be handed on to a container. Runtimes refuse `HostToContainer` where the
/// mount is private, as `/` is on a machine that was not started by systemd.
pub fn propagates(directory: &str) -> bool {
    match fs::read_to_string(MOUNTINFO) {
        Ok(mounts) => is_handed_on(&mounts, directory),
        // Not stated: as usual.
        Err(_) => true,
    }
}

/// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 ...` (proc_pid_mountinfo(5)): the optional fields stand
/// between the sixth and the dash.
fn is_handed_on(mounts: &str, directory: &str) -> bool {
    let over = |line: &&str| {
        let point = line.split(' ').nth(4);
        point.is_some_and(|point| Path::new(directory).starts_with(point))
    };
    let length = |line: &&str| line.split(' ').nth(4).map_or(0, str::len);
    // The longest one holds the directory; of several at one place the last.
    let Some(mount) = mounts.lines().filter(over).max_by_key(length) else {
        return true;
    };
    let mut optional = mount.split(' ').skip(6).take_while(|field| *field != "-");
    optional.any(|field| field.starts_with("shared:") || field.starts_with("master:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mounts_are_not_handed_on() {
        let private = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw";
        assert!(!is_handed_on(private, "/var/lib/kubelet"));
        let systemd = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw";
        assert!(is_handed_on(systemd, "/var/lib/kubelet"));
        // kind gives the directory a mount of its own.
        let own =
            format!("{private}\n40 27 254:1 / /var/lib/kubelet rw master:7 - ext4 /dev/vdb rw");
        assert!(is_handed_on(&own, "/var/lib/kubelet"));
        assert!(!is_handed_on(&own, "/var/lib/containerd"));
        assert!(!is_handed_on(&own, "/var/lib/kubelet2"));
        assert!(is_handed_on("", "/var"));
    }
}
