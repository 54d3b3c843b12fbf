//! Where the kubelet's settings come from, and what stands in for a file that cannot be read.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    ConfigError,
    document::read_kubelet_document,
    drop_ins::{self, HARD, MERGE_DEFAULTS},
};

/// The files with the kubelet's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletFiles {
    /// The kubelet's `--config`.
    pub config: Option<PathBuf>,
    /// The kubelet's `--config-dir`.
    pub directory: Option<PathBuf>,
}

impl KubeletFiles {
    /// The files that a configuration names. `config` takes precedence over the document's `cluster.kubeletConfig`.
    pub(super) fn of(document: &Value, config: Option<&Path>) -> Self {
        let named = |field: &str| document["cluster"][field].as_str().map(PathBuf::from);
        Self {
            config: config
                .map(Path::to_owned)
                .or_else(|| named("kubeletConfig")),
            directory: named("kubeletConfigDir"),
        }
    }

    /// All files that exist now and the directory of the drop-ins: the paths to watch for changes.
    pub fn all(&self) -> Vec<PathBuf> {
        let drop_ins = self.directory.as_deref().map(drop_ins::files);
        let drop_ins = drop_ins.and_then(Result::ok).unwrap_or_default();
        let named = [self.config.clone(), self.directory.clone()];
        named.into_iter().flatten().chain(drop_ins).collect()
    }

    /// The merged document of all files; `None` if neither `config` nor `directory` is set. Beside it the mistakes that
    /// the kubelet forgives.
    ///
    /// # Errors
    /// A file cannot be read, is empty, or is no KubeletConfiguration.
    pub(super) fn read(&self) -> Result<(Option<Value>, Vec<String>), ConfigError> {
        let base = self.config.as_deref().map(read_kubelet_document);
        let (base, of_base) = base.transpose()?.unzip();
        let drop_ins = self.directory.as_deref().map(drop_ins::read).transpose()?;
        let (drop_ins, of_drop_ins): (_, Vec<_>) = drop_ins.into_iter().flatten().unzip();
        let lenient_warnings = of_base.into_iter().chain(of_drop_ins).flatten();
        Ok((drop_ins::merge(base, drop_ins), lenient_warnings.collect()))
    }
}

/// Origin of the kubelet's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletSource {
    /// There is no file, and `/configz` is not asked: the kubelet's defaults.
    #[default]
    Unnamed,
    /// The file.
    File,
    /// The running kubelet's `/configz`.
    Configz,
    /// The last version of the file that could be read.
    LastRead,
    /// The kubelet's defaults, because the named file or `/configz` cannot be read.
    Defaults,
    /// `evictionHardFallback`, because the named file or `/configz` cannot be read.
    Fallback,
}

impl KubeletSource {
    /// All sources.
    pub const ALL: [Self; 6] = [
        Self::Unnamed,
        Self::File,
        Self::Configz,
        Self::LastRead,
        Self::Defaults,
        Self::Fallback,
    ];

    /// The source's name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unnamed => "unnamed",
            Self::File => "file",
            Self::Configz => "configz",
            Self::LastRead => "lastRead",
            Self::Defaults => "defaults",
            Self::Fallback => "fallback",
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
            Self::Fallback => "evictionHardFallback holds",
        })
    }
}

/// Why the kubelet's configuration cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The named file or directory: the reason, with its path.
    File(String),
    /// `/configz`, where no file is named: the reason.
    Configz(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(reason) => f.write_str(reason),
            Self::Configz(reason) => write!(f, "the kubelet's /configz cannot be read: {reason}"),
        }
    }
}

/// A KubeletConfiguration, or its stand-in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeletDocument {
    /// Origin of the document.
    pub source: KubeletSource,
    /// The document; `None` means the kubelet's defaults.
    pub document: Option<Value>,
    /// Why the kubelet's own settings are not known.
    pub unreadable: Option<Unreadable>,
    /// Mistakes that the kubelet forgives, each with its path and what holds: a key that is there twice, a second YAML
    /// document.
    pub lenient_warnings: Vec<String>,
}

impl KubeletDocument {
    /// The answer of the running kubelet. The defaults and what was merged stand in it already, and a map without entries is
    /// left out (`omitempty`).
    pub fn from_configz(mut document: Value) -> Self {
        if let Some(fields) = document.as_object_mut() {
            fields.remove(MERGE_DEFAULTS);
            fields.entry(HARD).or_insert_with(|| Map::new().into());
        }
        Self {
            source: KubeletSource::Configz,
            document: Some(document),
            unreadable: None,
            lenient_warnings: Vec::new(),
        }
    }

    /// The kubelet's defaults, because the running kubelet has not answered, for this reason.
    pub fn without_configz(reason: &str) -> Self {
        Self {
            source: KubeletSource::Defaults,
            unreadable: Some(Unreadable::Configz(reason.to_owned())),
            ..Self::default()
        }
    }

    /// Whether the kubelet's file holds, or what it said last.
    pub fn holds_file(&self) -> bool {
        matches!(self.source, KubeletSource::File | KubeletSource::LastRead)
    }

    /// Whether this kubelet gives no pod a cgroup of its own (`cgroupsPerQOS: false`).
    pub fn lacks_pod_cgroups(&self) -> bool {
        let document = self.document.as_ref();
        document.is_some_and(|document| document["cgroupsPerQOS"] == false)
    }

    /// Reads the files, if any are named. A file that is missing or cannot be read is no error: the document known
    /// before, or the kubelet's defaults, stand in for it. A missing directory of drop-ins counts as empty.
    ///
    /// # Errors
    /// A file can be read, but is no KubeletConfiguration.
    pub(super) fn read(files: &KubeletFiles, before: &Self) -> Result<Self, ConfigError> {
        use KubeletSource::{Configz, Defaults, Fallback, File, LastRead, Unnamed};
        let mut files = files.clone();
        let missing = files.directory.take_if(|path| !path.exists());
        let missing = missing.map(|path| {
            let source = io::ErrorKind::NotFound.into();
            Unreadable::File(ConfigError::Read { path, source }.to_string())
        });
        match files.read() {
            // No file is named, or the directory is empty: a kubelet has settings all the same.
            Ok((None, _)) => Ok(match before.source {
                Configz => Self {
                    unreadable: missing,
                    ..before.clone()
                },
                _ if missing.is_some() => Self {
                    source: Defaults,
                    unreadable: missing,
                    ..Self::default()
                },
                // `/configz` has not answered.
                Defaults | Fallback
                    if matches!(before.unreadable, Some(Unreadable::Configz(_))) =>
                {
                    Self {
                        source: Defaults,
                        ..before.clone()
                    }
                }
                _ => Self::default(),
            }),
            Ok((document, lenient_warnings)) => Ok(Self {
                source: File,
                document,
                unreadable: missing,
                lenient_warnings,
            }),
            Err(error) if cannot_be_read(&error) => Ok(Self {
                source: match before.source {
                    File | LastRead => LastRead,
                    Configz => Configz,
                    Unnamed | Defaults | Fallback => Defaults,
                },
                document: before.document.clone(),
                unreadable: Some(Unreadable::File(error.to_string())),
                lenient_warnings: Vec::new(),
            }),
            Err(error) => Err(error),
        }
    }
}

/// Whether the file could not be read. A file that is not UTF-8 was read, and is a mistake.
fn cannot_be_read(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Read { source, .. } if source.kind() != io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsRawFd as _};

    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_has_a_stand_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.yaml");
        let files = KubeletFiles {
            config: Some(path.clone()),
            directory: None,
        };
        let read = |before: &KubeletDocument| KubeletDocument::read(&files, before);
        let none = KubeletDocument::default();
        let missing = read(&none).unwrap();
        assert_eq!(missing.source, KubeletSource::Defaults);
        assert_eq!(missing.document, None);
        let said = missing.unreadable.as_ref().unwrap().to_string();
        assert!(said.contains("kubelet.yaml: No such file"), "{said}");
        let asked = json!({"cgroupsPerQOS": false, "mergeDefaultEvictionSettings": true});
        let asked = KubeletDocument::from_configz(asked);
        // It has no thresholds: what is in force stands in the answer.
        let shown = json!({"cgroupsPerQOS": false, "evictionHard": {}});
        assert_eq!(asked.document, Some(shown));
        assert!(asked.lacks_pod_cgroups() && !missing.lacks_pod_cgroups());
        let stands_in = read(&asked).unwrap();
        assert_eq!(stands_in.source, KubeletSource::Configz);
        assert_eq!(stands_in.document, asked.document);

        fs::write(&path, "b: 2").unwrap();
        let file = read(&stands_in).unwrap();
        assert_eq!(file.source, KubeletSource::File);
        assert_eq!(file.document, Some(json!({"b": 2})));
        // A writer has truncated the file, or the disk is full.
        fs::write(&path, "").unwrap();
        let last = read(&file).unwrap();
        assert_eq!(last.source, KubeletSource::LastRead);
        assert!(
            last.unreadable
                .unwrap()
                .to_string()
                .ends_with("the file is empty")
        );
        fs::remove_file(&path).unwrap();
        let last = read(&read(&file).unwrap()).unwrap();
        assert_eq!(last.source, KubeletSource::LastRead);
        assert_eq!(last.document, file.document);

        // A key that is there twice, in the file and in a drop-in: the kubelet takes the last one, with a warning.
        let twice = "evictionHard:\n  memory.available: 1Gi\n  memory.available: 2Gi\n";
        fs::write(&path, twice).unwrap();
        let drop_ins = tempfile::tempdir().unwrap();
        fs::write(drop_ins.path().join("a.conf"), r#"{"d": 1, "d": 2}"#).unwrap();
        let both = KubeletFiles {
            config: Some(path.clone()),
            directory: Some(drop_ins.path().to_owned()),
        };
        let lenient = KubeletDocument::read(&both, &none).unwrap();
        let document = lenient.document.unwrap();
        assert_eq!(document["evictionHard"]["memory.available"], "2Gi");
        assert_eq!(document["d"], 2);
        let [of_file, of_drop_in] = &lenient.lenient_warnings[..] else {
            panic!("{:?}", lenient.lenient_warnings);
        };
        assert!(
            of_file.contains("kubelet.yaml: ") && of_file.contains("memory.available"),
            "{of_file}"
        );
        assert!(of_drop_in.contains("a.conf: "), "{of_drop_in}");
        assert!(of_file.ends_with(": the last value holds"), "{of_file}");
        // A second document, and one that is empty: the kubelet takes the first one.
        for (more, lenient_warnings) in [
            ("b: 1\n---\nb: [1]\n", 1),
            ("b: 1\n---\n", 1),
            ("b: 0\nb: 1\n---\n", 2),
        ] {
            fs::write(&path, more).unwrap();
            let first = read(&none).unwrap();
            assert_eq!(first.document, Some(json!({"b": 1})), "{more}");
            let said = first.lenient_warnings.last().unwrap();
            assert!(
                said.ends_with("more than one document: the first one holds"),
                "{said}"
            );
            assert_eq!(first.lenient_warnings.len(), lenient_warnings, "{more}");
        }
        for one in ["---\nb: 1\n", "b: 1\n...\n"] {
            fs::write(&path, one).unwrap();
            assert_eq!(read(&none).unwrap().lenient_warnings, [""; 0], "{one}");
        }
        fs::write(&path, "a: 1\na: [").unwrap();
        assert!(matches!(read(&none), Err(ConfigError::Syntax { .. })));
        fs::write(&path, "b: 2").unwrap();
        assert_eq!(read(&none).unwrap().lenient_warnings, [""; 0]);
        fs::remove_file(&path).unwrap();

        // A named pipe has the length 0, but is not empty.
        let (pipe, text) = (path.clone(), "c: 3");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let writer = std::thread::spawn(move || fs::write(pipe, text));
        assert_eq!(read(&none).unwrap().document, Some(json!({"c": 3})));
        writer.join().unwrap().unwrap();
        fs::remove_file(&path).unwrap();

        // A directory cannot be read either. A file that is not UTF-8 is an error, like one that is not YAML.
        fs::create_dir(&path).unwrap();
        assert_eq!(read(&none).unwrap().source, KubeletSource::Defaults);
        fs::remove_dir(&path).unwrap();
        for broken in [&b"\xff\xfe"[..], b"a: ["] {
            fs::write(&path, broken).unwrap();
            assert!(read(&file).is_err());
        }
        assert_eq!(
            KubeletDocument::read(&KubeletFiles::default(), &asked).unwrap(),
            asked,
            "no file is named"
        );
    }

    #[test]
    fn drop_ins_are_part_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = KubeletFiles {
            config: Some(dir.path().join("kubelet.yaml")),
            directory: Some(dir.path().join("kubelet.conf.d")),
        };
        let (config, drop_ins) = (
            files.config.clone().unwrap(),
            files.directory.clone().unwrap(),
        );
        let read = |before: &KubeletDocument| KubeletDocument::read(&files, before).unwrap();
        fs::write(&config, "evictionHard: {memory.available: 1Gi}").unwrap();
        // A missing directory is reported, and the file is read all the same.
        let without = read(&KubeletDocument::default());
        assert_eq!(without.source, KubeletSource::File);
        let said = without.unreadable.as_ref().unwrap().to_string();
        assert!(said.contains("kubelet.conf.d: "), "{said}");
        fs::create_dir(&drop_ins).unwrap();
        assert_eq!(read(&without).unreadable, None);
        let one = drop_ins.join("10-memory.conf");
        fs::write(&one, "evictionHard: {memory.available: 2Gi}").unwrap();
        assert_eq!(files.all(), [config.clone(), drop_ins.clone(), one.clone()]);
        let with = read(&without);
        let hard = |document: &KubeletDocument| {
            document.document.as_ref().unwrap()["evictionHard"]["memory.available"].clone()
        };
        assert_eq!((hard(&without), hard(&with)), (json!("1Gi"), json!("2Gi")));
        // A mount holds a directory that was removed, as an open file does: not known to be empty.
        let held = fs::File::open(&drop_ins).unwrap();
        let mounted = KubeletFiles {
            directory: Some(format!("/proc/self/fd/{}", held.as_raw_fd()).into()),
            ..files.clone()
        };
        assert_eq!(KubeletDocument::read(&mounted, &without).unwrap(), with);
        fs::remove_dir_all(&drop_ins).unwrap();
        let last = KubeletDocument::read(&mounted, &with).unwrap();
        assert_eq!(
            (last.source, hard(&last)),
            (KubeletSource::LastRead, json!("2Gi"))
        );
        let said = last.unreadable.unwrap().to_string();
        assert!(said.ends_with("mounted here was removed"), "{said}");
        fs::create_dir(&drop_ins).unwrap();
        fs::write(&one, "evictionHard: {memory.available: 2Gi}").unwrap();
        // The file is gone: the last merged document holds.
        fs::remove_file(&config).unwrap();
        let last = read(&with);
        assert_eq!(
            (last.source, hard(&last)),
            (KubeletSource::LastRead, json!("2Gi"))
        );
        // A node whose kubelet has flags and drop-ins, and no file.
        let only = KubeletFiles {
            config: None,
            ..files.clone()
        };
        let alone = KubeletDocument::read(&only, &KubeletDocument::default()).unwrap();
        assert_eq!(
            (alone.source, hard(&alone)),
            (KubeletSource::File, json!("2Gi"))
        );
        fs::write(&one, "a: [").unwrap();
        assert!(KubeletDocument::read(&only, &alone).is_err());
        fs::remove_dir_all(&drop_ins).unwrap();
        let none = KubeletDocument::read(&only, &KubeletDocument::default()).unwrap();
        assert_eq!(
            (none.source, &none.document),
            (KubeletSource::Defaults, &None)
        );
        // An empty directory says nothing, and is no reason not to ask the kubelet.
        fs::create_dir(&drop_ins).unwrap();
        let read = |before: &KubeletDocument| KubeletDocument::read(&only, before).unwrap();
        for before in [KubeletDocument::default(), none, alone] {
            assert_eq!(read(&before), KubeletDocument::default(), "{before:?}");
        }
        let asked = KubeletDocument::from_configz(json!({"a": 1}));
        assert_eq!(read(&asked), asked);
        let silent = KubeletDocument::without_configz("no answer");
        assert_eq!(read(&silent), silent);
    }
}
