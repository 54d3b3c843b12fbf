//! Image archives as `docker save` writes them, of one program and some ballast.

use sha2::{Digest as _, Sha256};

use crate::prelude::*;

pub const PAUSE: &str = "localhost/evictd-pause:1";

/// An archive of an image of this name that runs `program` with these arguments and holds `ballast` bytes that nothing
/// compresses and no other image has.
pub fn program(
    reference: &str,
    program: &Path,
    arguments: &[&str],
    ballast: usize,
) -> Result<Vec<u8>> {
    let mut content = BTreeMap::from([("busybox", fs::read(program)?)]);
    if ballast > 0 {
        content.insert("ballast", noise(reference, ballast));
    }
    let layer = tar(&content)?;
    let entrypoint: Vec<&str> = ["/busybox"].iter().chain(arguments).copied().collect();
    let configuration = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Entrypoint": entrypoint },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
    });
    let configuration = configuration.to_string().into_bytes();
    let name = format!("{}.json", hex(&configuration));
    let manifest = json!([{
        "Config": name,
        "RepoTags": [reference],
        "Layers": ["layer.tar"],
    }]);
    tar(&BTreeMap::from([
        (&*name, configuration),
        ("layer.tar", layer),
        ("manifest.json", manifest.to_string().into_bytes()),
    ]))
}

fn tar(files: &BTreeMap<&str, Vec<u8>>) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        builder.append_data(&mut header, path, &content[..])?;
    }
    Ok(builder.into_inner()?)
}

fn hex(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that depend on the name alone: one digest after the other.
fn noise(name: &str, bytes: usize) -> Vec<u8> {
    let mut noise = Vec::with_capacity(bytes + 32);
    let mut digest = Sha256::digest(name);
    while noise.len() < bytes {
        noise.extend_from_slice(&digest);
        digest = Sha256::digest(digest);
    }
    noise.truncate(bytes);
    noise
}
