//! Where the kubelet's settings come from, and what holds where its file cannot be read.

use std::{fmt, io, path::Path};

use serde_json::Value;

use super::{ConfigError, read_document};

/// Where the kubelet's settings come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletSource {
    /// No file is named, and `/configz` was not asked: the kubelet's defaults.
    #[default]
    Unnamed,
    /// The file.
    File,
    /// The running kubelet's `/configz`.
    Configz,
    /// The file as it was when it could be read last.
    LastRead,
    /// The kubelet's defaults, because the file that is named cannot be read.
    Defaults,
}

impl KubeletSource {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Unnamed,
        Self::File,
        Self::Configz,
        Self::LastRead,
        Self::Defaults,
    ];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unnamed => "unnamed",
            Self::File => "file",
            Self::Configz => "configz",
            Self::LastRead => "lastRead",
            Self::Defaults => "defaults",
        }
    }
}

impl fmt::Display for KubeletSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unnamed | Self::Defaults => "the kubelet's defaults hold",
            Self::File => "the file holds",
            Self::Configz => "what the kubelet's /configz has said holds",
            Self::LastRead => "what it said last holds",
        })
    }
}

/// A KubeletConfiguration, or what stands in for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeletDocument {
    /// Where it comes from.
    pub source: KubeletSource,
    /// What it says; `None` is the kubelet's defaults.
    pub document: Option<Value>,
    /// Why the file that is named cannot be read, with its path.
    pub unreadable: Option<String>,
}

impl KubeletDocument {
    /// What the running kubelet has answered.
    pub fn of_configz(document: Value) -> Self {
        Self {
            source: KubeletSource::Configz,
            document: Some(document),
            unreadable: None,
        }
    }

    /// Reads the file, if one is named. One that is missing or cannot be read is no error: what was known before stands in for
    /// it, or the kubelet's defaults.
    ///
    /// # Errors
    /// A file that can be read and is neither YAML nor JSON.
    pub(super) fn read(file: Option<&Path>, before: &Self) -> Result<Self, ConfigError> {
        use KubeletSource::{Configz, Defaults, File, LastRead, Unnamed};
        let Some(path) = file else {
            return Ok(match before.source {
                Configz => before.clone(),
                _ => Self::default(),
            });
        };
        match read_document(path) {
            Ok(document) => Ok(Self {
                source: File,
                document: Some(document),
                unreadable: None,
            }),
            Err(error) if cannot_be_read(&error) => Ok(Self {
                source: match before.source {
                    File | LastRead => LastRead,
                    Configz => Configz,
                    Unnamed | Defaults => Defaults,
                },
                document: before.document.clone(),
                unreadable: Some(error.to_string()),
            }),
            Err(error) => Err(error),
        }
    }
}

/// Text that is no text was read all the same.
fn cannot_be_read(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Read { source, .. } if source.kind() != io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_has_a_stand_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.yaml");
        let read = |before: &KubeletDocument| KubeletDocument::read(Some(&path), before);
        let none = KubeletDocument::default();
        let missing = read(&none).unwrap();
        assert_eq!(missing.source, KubeletSource::Defaults);
        assert_eq!(missing.document, None);
        let said = missing.unreadable.clone().unwrap();
        assert!(said.contains("kubelet.yaml: No such file"), "{said}");
        let asked = KubeletDocument::of_configz(json!({"a": 1}));
        let stands_in = read(&asked).unwrap();
        assert_eq!(stands_in.source, KubeletSource::Configz);
        assert_eq!(stands_in.document, asked.document);

        fs::write(&path, "b: 2").unwrap();
        let file = read(&stands_in).unwrap();
        assert_eq!(file.source, KubeletSource::File);
        assert_eq!(file.document, Some(json!({"b": 2})));
        fs::remove_file(&path).unwrap();
        let last = read(&read(&file).unwrap()).unwrap();
        assert_eq!(last.source, KubeletSource::LastRead);
        assert_eq!(last.document, file.document);

        // A directory is not read either; what is no text is an error, like what is no YAML.
        fs::create_dir(&path).unwrap();
        assert_eq!(read(&none).unwrap().source, KubeletSource::Defaults);
        fs::remove_dir(&path).unwrap();
        for broken in [&b"\xff\xfe"[..], b"a: ["] {
            fs::write(&path, broken).unwrap();
            assert!(read(&file).is_err());
        }
        assert_eq!(
            KubeletDocument::read(None, &asked).unwrap(),
            asked,
            "no file is named"
        );
    }
}
