//! `filesystems`: where the kubelet and the container runtime keep their files.

use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// The default of the kubelet's root directory (`--root-dir`).
pub const KUBELET: &str = "/var/lib/kubelet";
/// Directories in which containerd, CRI-O and Docker keep images and writable layers.
const RUNTIMES: [&str; 3] = [
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/var/lib/docker",
];

/// One directory on each filesystem. Directories that are not configured are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemPaths {
    /// `filesystems.nodefs`: the kubelet's root directory.
    pub nodefs: Option<PathBuf>,
    /// `filesystems.imagefs`: where the runtime keeps images.
    pub imagefs: Option<PathBuf>,
    /// `filesystems.containerfs`: where the runtime keeps writable layers.
    pub containerfs: Option<PathBuf>,
}

impl FilesystemPaths {
    pub(super) fn take(fields: &mut ObjectDecoder) -> Result<Self, ConfigError> {
        let taken = fields.section("filesystems", |paths| {
            Ok(Self {
                nodefs: paths.absolute_path("nodefs")?,
                imagefs: paths.absolute_path("imagefs")?,
                containerfs: paths.absolute_path("containerfs")?,
            })
        })?;
        Ok(taken.unwrap_or_default())
    }

    /// The directories of nodefs, imagefs and containerfs: those that are configured, else those that exist. Without an
    /// image directory all three are the kubelet's root directory. `None`: no kubelet is here and nothing is
    /// configured.
    pub fn resolve(&self) -> Option<[PathBuf; 3]> {
        let present = |path: &str| Some(PathBuf::from(path)).filter(|p| p.is_dir());
        let nodefs = self.nodefs.clone().or_else(|| present(KUBELET))?;
        let found = || RUNTIMES.iter().find_map(|path| present(path));
        let imagefs = match (&self.imagefs, &self.nodefs) {
            (Some(configured), _) => configured.clone(),
            // A configuration with nodefs alone means that images lie there too.
            (None, Some(nodefs)) => nodefs.clone(),
            (None, None) => found().unwrap_or_else(|| nodefs.clone()),
        };
        let containerfs = self.containerfs.clone().unwrap_or_else(|| imagefs.clone());
        Some([nodefs, imagefs, containerfs])
    }

    /// The kubelet's root directory.
    pub fn kubelet(&self) -> &Path {
        self.nodefs.as_deref().unwrap_or(Path::new(KUBELET))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Config;
    use super::*;

    // R3
    #[test]
    fn what_is_not_configured_follows() {
        let read = |value| {
            let config = Config::from_values(json!({ "filesystems": value }), None);
            config.map(|c| c.filesystems).map_err(|e| e.to_string())
        };
        let one = read(json!({"nodefs": "/n"})).unwrap();
        assert_eq!(one.resolve(), Some(["/n", "/n", "/n"].map(PathBuf::from)));
        let split = read(json!({"nodefs": "/n", "imagefs": "/i", "containerfs": "/n"})).unwrap();
        assert_eq!(split.resolve(), Some(["/n", "/i", "/n"].map(PathBuf::from)));
        let error = read(json!({"nodefs": "n"})).unwrap_err();
        assert!(error.starts_with("filesystems.nodefs: \"n\""), "{error}");
        let error = read(json!({"rootfs": "/n"})).unwrap_err();
        assert!(error.starts_with("filesystems.rootfs: unknown"), "{error}");
    }
}
