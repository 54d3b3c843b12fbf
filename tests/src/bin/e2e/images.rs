//! Brings the images to the node.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Arguments, node::Target};

/// Where containerds listen: the usual one, k3s', MicroK8s'.
const SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];

/// What the pods are started from.
pub struct Images {
    /// evictd.
    pub evictd: String,
    /// The pods of the story.
    pub hog: String,
}

/// The images that were named; or those that were just built, imported into this machine's containerd.
pub fn provide(arguments: &Arguments, target: &Target) -> Result<Images> {
    let built = |name| format!("localhost/{name}:{}", env!("CARGO_PKG_VERSION"));
    if let Some(evictd) = &arguments.image {
        let hog = arguments.hog_image.clone();
        return Ok(Images {
            evictd: evictd.clone(),
            hog: hog.unwrap_or_else(|| built("hog")),
        });
    }
    if !target.local {
        bail!(
            "the node {} is not this machine, so that no image can be imported from here. On the node:\n  \
             ctr --namespace k8s.io images import evictd-*.oci.tar; ctr --namespace k8s.io images import hog-*.oci.tar\n\
             (from {}), and here: --image {} --hog-image {}",
            target.name,
            arguments.archives.display(),
            built("evictd"),
            built("hog"),
        );
    }
    ensure!(
        target.runtime.starts_with("containerd://"),
        "the node runs {}: only containerd's images can be imported; put them where the node can pull them and \
         give --image and --hog-image",
        target.runtime
    );
    let socket = socket()?;
    // With --installed evictd runs already.
    let names = if arguments.installed {
        &["hog"][..]
    } else {
        &["evictd", "hog"]
    };
    for name in names {
        import(&socket, &archive(&arguments.archives, name)?, &built(name))?;
    }
    Ok(Images {
        evictd: built("evictd"),
        hog: built("hog"),
    })
}

/// `CONTAINERD_ADDRESS`, as `ctr` itself takes it, or the first that is there.
fn socket() -> Result<PathBuf> {
    if let Some(address) = std::env::var_os("CONTAINERD_ADDRESS") {
        return Ok(address.into());
    }
    let found = SOCKETS.iter().map(PathBuf::from).find(|path| path.exists());
    found.with_context(|| {
        format!(
            "no containerd at {}; set CONTAINERD_ADDRESS",
            SOCKETS.join(" or ")
        )
    })
}

/// The archive of this version for this machine.
fn archive(dir: &Path, name: &str) -> Result<PathBuf> {
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let path = dir.join(format!(
        "{name}-{}-{arch}.oci.tar",
        env!("CARGO_PKG_VERSION")
    ));
    ensure!(
        path.exists(),
        "{} is not there: cargo xtask image --with-hog writes it",
        path.display()
    );
    Ok(path)
}

/// Into the namespace that the kubelet's images are in.
fn import(socket: &Path, archive: &Path, reference: &str) -> Result<()> {
    let ctr = |arguments: &[&str]| {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address")
            .arg(socket)
            .args(["--namespace", "k8s.io"])
            .args(arguments);
        let out = ctr
            .output()
            .context("cannot start ctr, which comes with containerd")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(
            out.status.success(),
            "{ctr:?} ended with {}: {}",
            out.status,
            said.trim()
        );
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let path = fs::canonicalize(archive)?;
    let path = path.to_str().context("the path is not UTF-8")?;
    ctr(&["images", "import", path])?;
    let listed = ctr(&["images", "list", "--quiet"])?;
    ensure!(
        listed.lines().any(|line| line == reference),
        "{path} was imported, but containerd at {} does not list {reference}",
        socket.display()
    );
    println!("e2e: imported {reference}");
    Ok(())
}
