//! Debian packages that go along into a guest: fetched once, unpacked side by side, never installed.

use crate::{apt::Apt, prelude::*};

/// Directories that are not needed inside, where every file takes memory.
const LEFT_OUT: [&str; 8] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/python3.11/test",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
];

/// A directory that is to become part of a guest's root.
pub struct Unpacked {
    pub tree: PathBuf,
    /// Name and version of each package, in order.
    pub packages: Vec<String>,
}

/// Takes the packages of a suite out of the cache, or downloads them.
pub fn fetch(cache: &Path, name: &str, suite: &str, packages: &[&str]) -> Result<Unpacked> {
    fs::create_dir_all(cache)?;
    let lock = fs::File::create(cache.join("lock"))?;
    lock.lock().context("target/vm/lock")?;
    let dir = cache.join(name);
    let (tree, wanted, list) = (dir.join("root"), dir.join("wanted"), dir.join("packages"));
    // Written last, so that its presence says that the rest is whole; another selection is another tree.
    if fs::read_to_string(&wanted).is_ok_and(|text| text == packages.join("\n")) {
        let packages = fs::read_to_string(&list)?;
        let packages = packages.lines().map(str::to_owned).collect();
        return Ok(Unpacked { tree, packages });
    }
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    println!("vm: fetching {} packages of {suite}", packages.len());
    let apt = Apt::of_suite(dir.join("apt"), suite)?;
    let names: BTreeSet<String> = packages.iter().map(|name| (*name).to_owned()).collect();
    fs::create_dir_all(&tree)?;
    let mut versions = Vec::new();
    for archive in apt.download(&names)? {
        output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&tree))?;
        let file = archive.file_name().unwrap_or_default().to_string_lossy();
        // NAME_VERSION_ARCHITECTURE.deb; apt writes the colon of an epoch as %3a.
        let mut parts = file.splitn(3, '_');
        let (name, version) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        versions.push(format!("{name} {}", version.replace("%3a", ":")));
    }
    for unused in LEFT_OUT {
        let path = tree.join(unused);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
    }
    versions.sort();
    fs::write(&list, versions.join("\n"))?;
    fs::write(&wanted, packages.join("\n"))?;
    Ok(Unpacked {
        tree,
        packages: versions,
    })
}
