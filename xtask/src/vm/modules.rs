//! Chooses the few kernel modules that tests need, with all that these depend on.

use walkdir::WalkDir;

use crate::prelude::*;

/// Filesystems and block devices for inode and disk signals, swap, and the checksums that those ask for
/// by name at run time. What a kernel has built in, or does not have, is left out.
const WANTED: &str = "\
    overlay ext4 xfs btrfs loop brd zram virtio_pci virtio_blk crc32c_generic crc32c-intel
    xxhash_generic blake2b_generic sha256_generic lzo-rle";

/// Moves the wanted modules from `tree` (a `lib/modules/RELEASE` directory) to `dest`, uncompressed and indexed.
pub fn select(tree: &Path, dest: &Path) -> Result<()> {
    decompress(tree)?;
    index(tree)?;
    let dep = fs::read_to_string(tree.join("modules.dep")).context("modules.dep")?;
    for path in closure(&parse_dep(&dep)?, WANTED) {
        let to = dest.join(&path);
        fs::create_dir_all(to.parent().context("a module lies in a directory")?)?;
        fs::rename(tree.join(&path), to)?;
    }
    // The guest's modprobe reads this index; the kernel calls modprobe when a filesystem is mounted.
    for list in ["modules.builtin", "modules.order"] {
        if tree.join(list).exists() {
            fs::copy(tree.join(list), dest.join(list))?;
        }
    }
    index(dest)
}

fn decompress(tree: &Path) -> Result<()> {
    let mut compressed = Vec::new();
    for entry in WalkDir::new(tree) {
        let path = entry?.into_path();
        compressed.extend(Some(path).filter(|p| p.extension().is_some_and(|e| e == "xz")));
    }
    if compressed.is_empty() {
        return Ok(());
    }
    output(
        Command::new("xz")
            .args(["-d", "-T0", "--"])
            .args(compressed),
    )
    .map(drop)
}

/// Writes modules.dep and modules.alias for a `lib/modules/RELEASE` directory.
fn index(tree: &Path) -> Result<()> {
    let (Some(release), Some(modules)) = (tree.file_name(), tree.parent()) else {
        bail!("{}: not a lib/modules/RELEASE directory", tree.display());
    };
    // depmod takes the directory that holds lib/modules; for /usr/lib/modules that is /usr.
    let base = modules
        .parent()
        .and_then(Path::parent)
        .context("lib/modules lies in a directory")?;
    output(
        Command::new("busybox")
            .args(["depmod", "-b"])
            .arg(base)
            .arg(release),
    )
    .map(drop)
}

/// Lines `kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko ...`: paths, and the paths that each needs.
fn parse_dep(text: &str) -> Result<BTreeMap<&str, Vec<&str>>> {
    text.lines()
        .map(|line| {
            let (path, needs) = line
                .split_once(':')
                .with_context(|| format!("modules.dep: {line:?}"))?;
            Ok((path, needs.split_whitespace().collect()))
        })
        .collect()
}

/// The wanted modules and what they need, directly or not.
fn closure(dep: &BTreeMap<&str, Vec<&str>>, wanted: &str) -> BTreeSet<String> {
    let is_wanted = |path: &str| {
        let name = path
            .rsplit('/')
            .next()
            .and_then(|file| file.strip_suffix(".ko"));
        name.is_some_and(|name| wanted.split_whitespace().any(|w| w == name))
    };
    let mut queue: Vec<&str> = dep.keys().copied().filter(|path| is_wanted(path)).collect();
    let mut found = BTreeSet::new();
    while let Some(path) = queue.pop() {
        if found.insert(path.to_owned()) {
            queue.extend(dep.get(path).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closure_follows_dependencies_and_leaves_the_rest() -> Result<()> {
        let dep = parse_dep(
            "kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko\nkernel/lib/libcrc32c.ko: kernel/lib/deep.ko\n\
             kernel/lib/deep.ko:\nkernel/fs/nfs/nfs.ko: kernel/lib/deep.ko\n",
        )?;
        let found = closure(&dep, "xfs absent");
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [
                "kernel/fs/xfs/xfs.ko",
                "kernel/lib/deep.ko",
                "kernel/lib/libcrc32c.ko"
            ]
        );
        Ok(())
    }

    #[test]
    fn a_line_that_is_no_dependency_is_named() {
        let reason = parse_dep("kernel/a.ko kernel/b.ko\n")
            .err()
            .map(|e| e.to_string());
        assert_eq!(
            reason.as_deref(),
            Some("modules.dep: \"kernel/a.ko kernel/b.ko\"")
        );
    }
}
