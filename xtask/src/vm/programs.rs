//! Programs of the host: those that the harness needs here, and those that go along into the guest.

use crate::{
    prelude::*,
    shell::{apt_install, find, missing},
};

pub const QEMU: &str = "qemu-system-x86_64";

/// Needed on the host: program, Debian package.
const REQUIRED: [(&str, &str); 4] = [
    (QEMU, "qemu-system-x86"),
    // The guest's shell, and `depmod` on the host.
    ("busybox", "busybox-static"),
    ("dpkg-deb", "dpkg"),
    ("xz", "xz-utils"),
];

/// Tests make filesystems and subvolumes with these; without them they are skipped and say so.
const MKFS: [(&str, &str); 4] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("btrfs", "btrfs-progs"),
    ("mkfs.btrfs", "btrfs-progs"),
];

/// Programs for a shell inside; taken along when the host has them.
const HANDY: [&str; 2] = ["bpftool", "strace"];

/// Installs what is missing.
/// Fails where the matrix cannot run: a required program is missing and cannot be installed.
pub fn ensure() -> Result<()> {
    let packages = missing(&REQUIRED);
    if !packages.is_empty() {
        if find("apt-get").is_err() {
            bail!(
                "these are missing here, and there is no apt-get to install them: {}",
                packages.join(" ")
            );
        }
        apt_install(&packages)?;
    }
    let packages = missing(&MKFS);
    if !packages.is_empty()
        && let Err(reason) = apt_install(&packages)
    {
        println!("vm: no {} inside: {reason:#}", packages.join(" "));
    }
    Ok(())
}

/// Files for the guest: path inside, path on the host; programs with the libraries that they load.
pub fn for_guest() -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    let busybox = find("busybox")?;
    let others = MKFS
        .iter()
        .map(|(program, _)| *program)
        .chain(HANDY)
        .filter_map(|name| {
            let path = find(name).ok()?;
            Some((format!("/usr/sbin/{name}"), path))
        });
    for (inside, path) in [("/bin/busybox".to_owned(), busybox)]
        .into_iter()
        .chain(others)
    {
        for library in libraries(&path)? {
            files.push((library.to_string_lossy().into_owned(), library));
        }
        files.push((inside, path));
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// The shared libraries and the loader of a program; none when it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let real = fs::canonicalize(program).with_context(|| format!("{}", program.display()))?;
    let ldd = Command::new("ldd")
        .arg(real)
        .output()
        .context("cannot start ldd")?;
    // ldd fails on a static program, which has nothing to list.
    Ok(parse_ldd(&String::from_utf8_lossy(&ldd.stdout)))
}

fn parse_ldd(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            parse_ldd(text),
            [
                PathBuf::from("/lib/x/libc.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(parse_ldd("\tnot a dynamic executable\n").is_empty());
    }
}
