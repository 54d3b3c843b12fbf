//! Reads an image archive back and follows every digest in it, as an importer does.

use std::io::Read as _;

use super::oci::{CONFIGURATION, Files, INDEX, LAYER, MANIFEST, blob_path, sha256};
use crate::prelude::*;

/// Contents of an archive that was verified.
#[derive(Debug)]
pub struct Verified {
    pub archive_bytes: u64,
    /// `sha256:...` of the manifest: what a container runtime calls the image.
    pub manifest_digest: String,
    /// The manifest's descriptor in the index.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at it"))]
    pub descriptor: Value,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at it"))]
    pub configuration: Value,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at it"))]
    pub layer: Vec<Entry>,
}

#[derive(Debug)]
pub struct Entry {
    /// Relative to the root.
    pub path: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look at it"))]
    pub mode: u32,
    pub content: Vec<u8>,
}

/// Checks the archive's structure, the size and digest of every blob, the layer's diff id, and that nothing
/// unreferenced is in it.
pub fn archive(path: &Path) -> Result<Verified> {
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let files = files(&content)?;
    let mut seen = BTreeSet::from(["index.json".to_owned(), "oci-layout".to_owned()]);
    let mut blob = |descriptor: &Value, media_type: &str| -> Result<&[u8]> {
        let name = blob_path(text(descriptor, "/digest")?);
        let content = blob(&files, descriptor)?;
        let found = text(descriptor, "/mediaType")?;
        ensure!(found == media_type, "{name} is {found}, not {media_type}");
        seen.insert(name);
        Ok(content)
    };

    let layout = parse(files.get("oci-layout").context("oci-layout is missing")?)?;
    let version = text(&layout, "/imageLayoutVersion")?;
    ensure!(version == "1.0.0", "oci-layout is {version}");
    let index = parse(files.get("index.json").context("index.json is missing")?)?;
    let found = text(&index, "/mediaType")?;
    ensure!(found == INDEX, "index.json is {found}");
    let descriptor = single(&index, "manifests")?;
    let manifest = parse(blob(descriptor, MANIFEST)?)?;
    let configuration = parse(blob(&manifest["config"], CONFIGURATION)?)?;
    let layer = blob(single(&manifest, "layers")?, LAYER)?;
    let diff_id = sha256(layer);
    let said = &configuration["rootfs"]["diff_ids"];
    ensure!(
        said == &Value::from(vec![diff_id.as_str()]),
        "the layer's diff id is {diff_id}, the configuration says {said}"
    );
    let layer = entries(layer)?;
    let unreferenced: Vec<_> = files.keys().filter(|name| !seen.contains(*name)).collect();
    ensure!(
        unreferenced.is_empty(),
        "nothing refers to {unreferenced:?}"
    );
    Ok(Verified {
        archive_bytes: content.len() as u64,
        manifest_digest: text(descriptor, "/digest")?.to_owned(),
        descriptor: descriptor.clone(),
        configuration,
        layer,
    })
}

/// Finds the content that a descriptor names, and checks its size and digest.
pub fn blob<'a>(files: &'a Files, descriptor: &Value) -> Result<&'a [u8]> {
    let digest = text(descriptor, "/digest")?;
    let name = blob_path(digest);
    let content = files
        .get(&name)
        .with_context(|| format!("{name} is missing"))?;
    let size = descriptor["size"].as_u64();
    let length = content.len();
    ensure!(
        size == Some(length as u64),
        "{name} has {length} bytes, its descriptor says {size:?}"
    );
    let computed = sha256(content);
    ensure!(computed == digest, "{name} has the digest {computed}");
    Ok(content)
}

fn parse(document: &[u8]) -> Result<Value> {
    serde_json::from_slice(document).context("a document is not JSON")
}

fn text<'a>(document: &'a Value, pointer: &str) -> Result<&'a str> {
    let found = document.pointer(pointer).and_then(Value::as_str);
    found.with_context(|| format!("{pointer} is missing in {document}"))
}

fn single<'a>(document: &'a Value, field: &str) -> Result<&'a Value> {
    match document[field].as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one),
        _ => bail!("{field} has not exactly one member: {}", document[field]),
    }
}

/// The files of a tar archive.
pub fn files(archive: &[u8]) -> Result<Files> {
    let entries = entries(archive)?.into_iter();
    Ok(entries.map(|entry| (entry.path, entry.content)).collect())
}

fn entries(content: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in tar::Archive::new(content).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            let path = entry.path()?;
            let path = path.to_str().context("a path is not UTF-8")?.to_owned();
            let mode = entry.header().mode()?;
            entries.push(Entry {
                path,
                mode,
                content,
            });
        }
    }
    Ok(entries)
}
