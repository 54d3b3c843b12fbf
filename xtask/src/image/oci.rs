//! The image itself: one layer with one file, and the documents that describe it (OCI image specification 1.1:
//! image layout, index, manifest, configuration).

use sha2::{Digest as _, Sha256};

use super::{Arch, Program, Provenance, VERSION, archive};
use crate::prelude::*;

/// Media types of the specification.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of the layer, which is not compressed: the file is read once and from the same disk.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The annotation by which `ctr images import` names what it imports.
pub const CONTAINERD_NAME: &str = "io.containerd.image.name";

pub struct Source<'a> {
    pub program: &'a Program,
    pub binary: &'a [u8],
    pub arch: Arch,
    pub provenance: &'a Provenance,
}

/// An image archive's files by their path in it.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Lays out the OCI image of one binary, run as root from an otherwise empty root directory.
pub fn assemble(source: &Source<'_>) -> Result<Files> {
    let mut files = Files::new();
    let mut manifest = add_image(&mut files, source)?;
    manifest["annotations"] = names(source.program);
    layout(&mut files, &manifest)?;
    Ok(files)
}

/// Lays out one image for several architectures: an index of which a node takes its own. All sources have the same reference.
pub fn assemble_all(sources: &[Source<'_>]) -> Result<Files> {
    let mut files = Files::new();
    let manifests: Result<Vec<Value>> = sources
        .iter()
        .map(|source| add_image(&mut files, source))
        .collect();
    let first = sources.first().context("an image has an architecture")?;
    let index = json!({"manifests": manifests?, "annotations": annotations(first)});
    let mut index = document(&mut files, INDEX, index)?;
    index["annotations"] = names(first.program);
    layout(&mut files, &index)?;
    Ok(files)
}

/// Adds the image of one binary and returns its manifest's descriptor.
fn add_image(files: &mut Files, source: &Source<'_>) -> Result<Value> {
    let content = BTreeMap::from([(source.program.name.to_owned(), source.binary.to_vec())]);
    let layer = archive::tar(&content, 0o755)?;
    // The layer is not compressed: its digest is its diff id too.
    let diff_id = sha256(&layer);
    let layer = blob(files, LAYER, layer);

    let annotations = annotations(source);
    let created = &source.provenance.created;
    let configuration = json!({
        "created": created,
        "architecture": source.arch.name(),
        "os": "linux",
        "config": {
            // Numeric: there is no /etc/passwd to look a name up in.
            "User": "0:0",
            "Entrypoint": [format!("/{}", source.program.name)],
            "WorkingDir": "/",
            "Labels": annotations,
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "cargo xtask image"}],
    });
    let configuration = blob(files, CONFIGURATION, serde_json::to_vec(&configuration)?);

    let mut manifest = manifest(files, [configuration, layer], annotations)?;
    manifest["platform"] = json!({"architecture": source.arch.name(), "os": "linux"});
    Ok(manifest)
}

/// Builds the annotations by which importers name the image.
fn names(program: &Program) -> Value {
    json!({CONTAINERD_NAME: program.reference(), "org.opencontainers.image.ref.name": VERSION})
}

/// Makes an OCI layout of the blobs, with one entry.
pub fn layout(files: &mut Files, entry: &Value) -> Result<()> {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    files.insert("oci-layout".to_owned(), serde_json::to_vec(&layout)?);
    Ok(())
}

fn annotations(source: &Source<'_>) -> Value {
    let Program {
        name, description, ..
    } = source.program;
    let mut annotations = described(&json!(name), &json!(description), source.provenance);
    // The binary embeds the eBPF object, which is under the GPL: the kernel's helpers ask for it.
    let licenses = "(MIT OR Apache-2.0) AND GPL-2.0-only";
    annotations["org.opencontainers.image.licenses"] = licenses.into();
    annotations
}

/// The annotations of whatever is made of a commit.
pub fn described(title: &Value, description: &Value, provenance: &Provenance) -> Value {
    let mut annotations = json!({
        "org.opencontainers.image.title": title,
        "org.opencontainers.image.description": description,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.created": provenance.created,
    });
    if let Some(revision) = &provenance.revision {
        annotations["org.opencontainers.image.revision"] = revision.as_str().into();
    }
    annotations
}

/// Adds a manifest of a configuration and its only layer, and returns its descriptor.
pub fn manifest(
    files: &mut Files,
    [configuration, layer]: [Value; 2],
    annotations: Value,
) -> Result<Value> {
    let manifest = json!({"config": configuration, "layers": [layer], "annotations": annotations});
    document(files, MANIFEST, manifest)
}

fn document(files: &mut Files, media_type: &str, mut fields: Value) -> Result<Value> {
    fields["schemaVersion"] = 2.into();
    fields["mediaType"] = media_type.into();
    Ok(blob(files, media_type, serde_json::to_vec(&fields)?))
}

/// Puts a blob in and returns its descriptor.
pub fn blob(files: &mut Files, media_type: &str, content: Vec<u8>) -> Value {
    let digest = sha256(&content);
    let descriptor = json!({"mediaType": media_type, "digest": digest, "size": content.len()});
    files.insert(blob_path(&digest), content);
    descriptor
}

/// Path of a digest's blob in an archive.
pub fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// `sha256:<64 hexadecimal digits>`.
pub fn sha256(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}
