//! The chart as `helm package` writes it, and as the artifact that `helm pull oci://...` reads from a registry.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};

use super::{VERSION, read_tree};
use crate::{
    image::{Provenance, archive, oci},
    prelude::*,
};

/// Helm's media types.
pub const CONFIGURATION: &str = "application/vnd.cncf.helm.config.v1+json";
/// Media type of the chart's package.
pub const LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

pub struct Package {
    /// `Chart.yaml`.
    metadata: Value,
    pub archive: Vec<u8>,
}

/// Packages a chart's directory; nothing in it depends on when and where that is done.
pub fn package(directory: &Path) -> Result<Package> {
    let files = read_tree(directory, "evictd")?;
    let metadata = files
        .get("evictd/Chart.yaml")
        .context("Chart.yaml is missing")?;
    let metadata: Value = serde_saphyr::from_str(std::str::from_utf8(metadata)?)?;
    for field in ["version", "appVersion"] {
        ensure!(
            metadata[field] == VERSION,
            "Chart.yaml: {field} is not {VERSION}"
        );
    }
    let mut gzip = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    gzip.write_all(&archive::tar(&files, 0o644)?)?;
    Ok(Package {
        metadata,
        archive: gzip.finish()?,
    })
}

pub fn artifact(package: &Package, provenance: &Provenance) -> Result<oci::Files> {
    let mut files = oci::Files::new();
    let configuration = serde_json::to_vec(&package.metadata)?;
    let configuration = oci::blob(&mut files, CONFIGURATION, configuration);
    let layer = oci::blob(&mut files, LAYER, package.archive.clone());
    let [title, description] = ["name", "description"].map(|field| &package.metadata[field]);
    let annotations = oci::described(title, description, provenance);
    let mut manifest = oci::manifest(&mut files, [configuration, layer], annotations)?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    oci::layout(&mut files, &manifest)?;
    Ok(files)
}
