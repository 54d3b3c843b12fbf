//! `cargo xtask lint`: the layers of docs/architecture.md, as far as the compiler does not keep them, and retired words.

mod layers;
mod modules;
mod topics;
mod words;

use crate::prelude::*;

/// Checks manifests, imports, file names and words; every violation is printed.
pub fn run() -> Result<()> {
    let root = workspace_root();
    let mut found = layers::violations(root)?;
    found.extend(modules::cycles(root)?);
    found.extend(topics::violations(root));
    found.extend(words::violations(root)?);
    for violation in &found {
        eprintln!("lint: {violation}");
    }
    ensure!(found.is_empty(), "{} violations", found.len());
    Ok(())
}

/// The crates of the agent with the directories of their sources.
fn agent_crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut crates = vec![("evictd".to_owned(), root.join("agent/src"))];
    for entry in fs::read_dir(root.join("agent"))? {
        let directory = entry?.path();
        if directory.join("Cargo.toml").exists() {
            let Some(name) = directory.file_name().and_then(|n| n.to_str()) else {
                bail!("{}: not a name of a crate", directory.display());
            };
            crates.push((format!("evictd-{name}"), directory.join("src")));
        }
    }
    crates.sort();
    Ok(crates)
}
