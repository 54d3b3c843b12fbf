use std::process::Child;

use nix::unistd::geteuid;

use super::{
    Arch, EVICTD, HOG, Program, Provenance, archive, build,
    oci::{CONTAINERD_NAME, Files, Source, assemble, assemble_all},
    verify,
};
use crate::prelude::*;

/// An image with the content `program`.
fn image() -> Files {
    assemble(&source(&EVICTD, Arch::Amd64, &provenance())).unwrap()
}

fn provenance() -> Provenance {
    Provenance {
        created: "2026-11-21T06:00:00Z".to_owned(),
        revision: Some("0123abcd".to_owned()),
    }
}

fn source<'a>(program: &'a Program, arch: Arch, provenance: &'a Provenance) -> Source<'a> {
    Source {
        program,
        binary: b"program",
        arch,
        provenance,
    }
}

fn written(dir: &Path, files: &Files) -> PathBuf {
    let path = dir.join("image.oci.tar");
    archive::write(&path, files).unwrap();
    path
}

#[test]
fn an_archive_holds_one_executable_and_says_how_to_run_it() {
    let dir = tempfile::tempdir().unwrap();
    let verified = verify::archive(&written(dir.path(), &image())).unwrap();
    let [file] = &verified.layer[..] else {
        panic!("{:?}", verified.layer);
    };
    assert_eq!((file.path.as_str(), file.mode), ("evictd", 0o755));
    assert_eq!(file.content, b"program");
    let configuration = &verified.configuration;
    assert_eq!(configuration["architecture"], "amd64");
    assert_eq!(configuration["os"], "linux");
    assert_eq!(configuration["config"]["Entrypoint"][0], "/evictd");
    assert_eq!(configuration["config"]["User"], "0:0");
    let name = &verified.descriptor["annotations"][CONTAINERD_NAME];
    assert_eq!(*name, EVICTD.reference());
}

#[test]
fn damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let good = image();
    let layer = good.iter().max_by_key(|(_, content)| content.len());
    let layer = layer.unwrap().0.clone();
    let refused = |files: &Files, expected: &str| {
        let error = verify::archive(&written(dir.path(), files)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    let mut files = good.clone();
    files.get_mut(&layer).unwrap()[600] ^= 1;
    refused(&files, "has the digest sha256:");
    let mut files = good.clone();
    files.get_mut(&layer).unwrap().push(0);
    refused(&files, "its descriptor says");
    let mut files = good.clone();
    files.remove(&layer);
    refused(&files, "is missing");
    let mut files = good.clone();
    files.insert("blobs/sha256/0".to_owned(), Vec::new());
    refused(&files, "nothing refers to");
}

/// An ELF64 header with one program header of this type.
fn elf(machine: u8, header: u8) -> Vec<u8> {
    let mut file = vec![0; 64 + 56];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (file[18], file[32], file[54], file[56]) = (machine, 64, 56, 1);
    file[64] = header;
    file
}

#[test]
fn only_a_static_binary_for_the_right_machine_is_taken() {
    let (load, interpreter) = (1, 3);
    for (program, arch, expected) in [
        (elf(62, load), Arch::Amd64, None),
        (elf(183, load), Arch::Arm64, None),
        (
            elf(62, interpreter),
            Arch::Amd64,
            Some("dynamically linked"),
        ),
        (
            elf(62, load),
            Arch::Arm64,
            Some("not for aarch64-unknown-linux-gnu"),
        ),
        (b"#!/bin/sh\n".to_vec(), Arch::Amd64, Some("not a little")),
        (elf(62, load)[..80].to_vec(), Arch::Amd64, None),
        (elf(62, load)[..60].to_vec(), Arch::Amd64, Some("cut short")),
    ] {
        let result = build::require_static(&program, arch);
        match expected {
            None => result.unwrap(),
            Some(expected) => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            }
        }
    }
}

struct Containerd {
    child: Child,
    dir: tempfile::TempDir,
}

impl Containerd {
    /// A containerd of the test's own, without the plugins that would touch the machine.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let config = format!(
            "version = 2\nroot = \"{path}/root\"\nstate = \"{path}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = \"{path}/socket\"\n"
        );
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(dir.path().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut containerd = Self { child, dir };
        let start = Instant::now();
        while output(&mut containerd.ctr(&["version"])).is_err() {
            let log = fs::read_to_string(containerd.dir.path().join("log")).unwrap();
            assert!(start.elapsed() < Duration::from_secs(60), "{log}");
            assert!(containerd.child.try_wait().unwrap().is_none(), "{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
        containerd
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.dir.path().join("socket"));
        ctr.args(["--namespace", "k8s.io"]).args(arguments);
        ctr
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn containerd_imports_it_under_its_name() {
    let missing = ["containerd", "ctr"]
        .into_iter()
        .find(|program| output(Command::new(program).arg("--version")).is_err());
    let why = match missing {
        Some(program) => Some(format!("{program} is not installed")),
        None => (!geteuid().is_root()).then(|| "needs root".to_owned()),
    };
    if let Some(why) = why {
        eprintln!("SKIPPED image::containerd_imports_it_under_its_name: {why}");
        return;
    }
    let containerd = Containerd::start();
    let path = written(containerd.dir.path(), &image());
    let verified = verify::archive(&path).unwrap();
    let path = path.to_str().unwrap();
    // Not unpacked: that needs a snapshotter, and says nothing about the archive.
    output(&mut containerd.ctr(&["images", "import", "--no-unpack", path])).unwrap();
    let images = output(&mut containerd.ctr(&["images", "list"])).unwrap();
    let reference = EVICTD.reference();
    let line = images.lines().find(|line| line.starts_with(&reference));
    let line = line.unwrap_or_else(|| panic!("{images}"));
    assert!(line.contains(&verified.manifest_digest), "{images}");
    assert!(line.contains("linux/amd64"), "{images}");
    let check = output(&mut containerd.ctr(&["images", "check"])).unwrap();
    assert!(check.contains("complete (2/2)"), "{check}");

    // One image for two architectures, under one name.
    let provenance = provenance();
    let both = [Arch::Amd64, Arch::Arm64].map(|arch| source(&HOG, arch, &provenance));
    let path = written(containerd.dir.path(), &assemble_all(&both).unwrap());
    let path = path.to_str().unwrap();
    let import = ["images", "import", "--no-unpack", "--all-platforms", path];
    output(&mut containerd.ctr(&import)).unwrap();
    let images = output(&mut containerd.ctr(&["images", "list"])).unwrap();
    let reference = HOG.reference();
    let line = images.lines().find(|line| line.starts_with(&reference));
    let line = line.unwrap_or_else(|| panic!("{images}"));
    assert!(line.contains("linux/amd64,linux/arm64"), "{images}");
}
