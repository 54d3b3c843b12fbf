//! Brings the images to the node.

use evictd_tests::prelude::*;

use super::{Arguments, importer::Importer, node::Target};

pub struct Images {
    pub evictd: String,
    pub hog: String,
}

/// The images that were named, and for the others those that were just built, imported into the node's runtime.
pub fn provide(arguments: &Arguments, target: &Target) -> Result<Images> {
    let built = |name| format!("localhost/{name}:{}", env!("CARGO_PKG_VERSION"));
    let mut missing = Vec::new();
    // With --installed evictd runs already.
    if arguments.image.is_none() && !arguments.installed {
        missing.push("evictd");
    }
    if arguments.hog_image.is_none() {
        missing.push("hog");
    }
    if !missing.is_empty() {
        let Some(importer) = Importer::find(target)? else {
            bail!(
                "the node {} is not this machine, nor a container of it, so that no image can be imported from here. \
                 On the node:\n  ctr --namespace k8s.io images import evictd-*.oci.tar\n  \
                 ctr --namespace k8s.io images import hog-*.oci.tar\n\
                 (from {}), and here: --image {} --hog-image {}",
                target.name,
                arguments.archives.display(),
                built("evictd"),
                built("hog"),
            );
        };
        for name in missing {
            importer.import(&archive(&arguments.archives, name)?, &built(name))?;
        }
    }
    Ok(Images {
        evictd: arguments.image.clone().unwrap_or_else(|| built("evictd")),
        hog: arguments.hog_image.clone().unwrap_or_else(|| built("hog")),
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
