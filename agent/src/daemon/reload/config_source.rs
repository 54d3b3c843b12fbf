//! Where the configuration comes from: its files and those of the kubelet, read again where they have changed.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use evictd_config::{Config, ConfigError, KubeletDocument, KubeletFiles, KubeletSource};
use evictd_sys::mutex::locked;

/// What follows from `cgroupsPerQOS: false`.
pub const NO_PODS: &str = "pods have no cgroups of their own, and none is evicted";

/// Source of the configuration.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// The configuration file.
    pub config: PathBuf,
    /// A KubeletConfiguration given beside it.
    pub kubelet_config: Option<PathBuf>,
    /// Configuration of the kubelet: its file, what it has answered to `/configz`, or neither.
    pub kubelet: KubeletDocument,
    /// The kubelet's last answer to `/configz` after the start.
    pub(super) answer: Arc<Mutex<Option<KubeletDocument>>>,
    /// `--shadow` on the command line.
    pub shadow: bool,
    /// The files' stamps before they were read last: what changes after that is a change, however long a start takes.
    stamps: Vec<Stamp>,
    /// The files' stamps at the last read, where they had changed: a file that is still being written changes again.
    changing: Option<Vec<Stamp>>,
    /// The answer that was read last, with the present files, and whether it was refused.
    tried: Option<KubeletDocument>,
    is_answer_refused: bool,
    /// Why the last reading was refused; whether because a file could not be read.
    refused: Option<(String, bool)>,
    /// The kubelet gives pods no cgroups, which was logged.
    lacks_pod_cgroups: bool,
}

impl ConfigSource {
    /// Creates the source of these files, and what goes with them; not read yet. `kubelet` stands in for the kubelet's.
    pub fn new(
        config: &Path,
        kubelet_config: Option<&Path>,
        kubelet: KubeletDocument,
        shadow: bool,
    ) -> Self {
        Self {
            config: config.to_owned(),
            kubelet_config: kubelet_config.map(Path::to_owned),
            kubelet,
            answer: Arc::default(),
            shadow,
            stamps: Vec::new(),
            changing: None,
            tried: None,
            is_answer_refused: false,
            refused: None,
            lacks_pod_cgroups: false,
        }
    }

    /// Reads all files. `known` names the kubelet's files: others take effect at the next start. A KubeletConfiguration
    /// that cannot be read is logged.
    ///
    /// # Errors
    /// As [`Config::reload`].
    pub fn load(&mut self, known: &Config) -> Result<Config, ConfigError> {
        let files = self.kubelet_files(known);
        self.stamps = stamps(&self.config, &files);
        let read = Config::reload(&self.config, true, &files, &self.kubelet)?;
        Ok(self.adopt(read))
    }

    fn adopt(&mut self, (mut config, kubelet): (Config, KubeletDocument)) -> Config {
        match (&kubelet.unreadable, &self.kubelet.unreadable) {
            (Some(reason), before) if before.as_ref() != Some(reason) => {
                tracing::warn!(
                    reason = reason.to_string(),
                    "the kubelet's configuration cannot be read: {}",
                    kubelet.source
                );
            }
            (None, Some(_)) => tracing::info!("the kubelet's configuration can be read"),
            _ => {}
        }
        if kubelet.lenient_warnings != self.kubelet.lenient_warnings {
            for mistake in &kubelet.lenient_warnings {
                tracing::warn!(
                    mistake,
                    "the kubelet's configuration has a mistake that the kubelet forgives"
                );
            }
        }
        let lacks_pod_cgroups = kubelet.lacks_pod_cgroups();
        if lacks_pod_cgroups && !self.lacks_pod_cgroups {
            tracing::warn!("cgroupsPerQOS is false in the kubelet's configuration: {NO_PODS}");
        }
        if let Some(deprecated) = config.deprecated {
            tracing::warn!("{deprecated}");
        }
        self.lacks_pod_cgroups = lacks_pod_cgroups;
        self.kubelet = kubelet;
        config.shadow |= self.shadow;
        config
    }

    fn kubelet_files(&self, known: &Config) -> KubeletFiles {
        let named = known.cluster.as_ref();
        let given = self.kubelet_config.clone();
        KubeletFiles {
            config: given.or_else(|| named?.kubelet_config.clone()),
            directory: named.and_then(|c| c.kubelet_config_dir.clone()),
        }
    }

    /// Whether the kubelet's own settings are not known at all.
    pub(super) fn lacks_kubelet(&self) -> bool {
        use KubeletSource::{Defaults, Fallback};
        matches!(self.kubelet.source, Defaults | Fallback)
    }

    /// Whether the answer to `/configz` holds, or would hold if there were one: there is no file.
    pub(super) fn goes_by_configz(&self) -> bool {
        !self.kubelet.holds_file()
    }

    /// What the kubelet has answered to `/configz` and was not read yet. One that is in force is read again where another one
    /// was refused since.
    fn new_answer(&self) -> Option<KubeletDocument> {
        let answer = locked(&self.answer);
        let answer = answer.clone().filter(|_| self.goes_by_configz())?;
        let is_in_force = !self.lacks_kubelet() && answer.document == self.kubelet.document;
        let is_known =
            is_in_force && !self.is_answer_refused || self.tried.as_ref() == Some(&answer);
        (!is_known).then_some(answer)
    }

    /// Whether a file could not be read. What made it so may be mended without a change of the file.
    fn is_unread(&self) -> bool {
        self.kubelet.unreadable.is_some()
            || self.refused.as_ref().is_some_and(|(_, unread)| *unread)
    }

    /// Reads the files' stamps when it is called, and the files when these have changed and are the same as at the call
    /// before: they may be half written. Where one could not be read, it tries again at each call. `requested`: reads
    /// them in any case. Their disk may not answer.
    pub(super) fn reader(
        &self,
        known: &Config,
        requested: bool,
    ) -> impl FnOnce() -> Found + Send + use<> {
        let files = self.kubelet_files(known);
        let (config, last, changing) = (
            self.config.clone(),
            self.stamps.clone(),
            self.changing.clone(),
        );
        // Not at each look: it is a whole document.
        let answer = self.new_answer();
        let is_answered = answer.is_some();
        let is_unread = self.is_unread() || is_answered;
        let kubelet = requested || is_unread || changing.is_some();
        let kubelet = kubelet.then(|| answer.clone().unwrap_or_else(|| self.kubelet.clone()));
        move || {
            let new = stamps(&config, &files);
            let has_settled = new != last && changing.as_ref() == Some(&new);
            // A file that comes changes its stamp.
            let may_differ = is_answered || new.iter().all(Option::is_some);
            let is_retry = is_unread && may_differ && new == last && !requested;
            let kubelet = kubelet.filter(|_| requested || has_settled || is_retry);
            let read =
                kubelet.map(|known| Config::reload(&config, false, &files, &known).map(Box::new));
            Found {
                stamps: new,
                is_retry,
                tried: answer.filter(|_| read.is_some()),
                read,
            }
        }
    }

    /// The new configuration, where the reader has read it; nothing where another attempt has found the same.
    pub(super) fn take(&mut self, found: Found) -> Option<Result<Config, ConfigError>> {
        let Some(read) = found.read else {
            self.changing = (found.stamps != self.stamps).then_some(found.stamps);
            return None;
        };
        self.changing = None;
        self.stamps = found.stamps;
        if let Some(answer) = found.tried {
            self.tried = Some(answer);
            self.is_answer_refused = read.is_err();
            return Some(read.map(|read| self.adopt(*read)));
        }
        let was_unread = self.refused.as_ref().is_some_and(|(_, unread)| *unread);
        if read.is_ok() && (!found.is_retry || was_unread) {
            // With these files an answer that was refused may be of use.
            self.tried = None;
        }
        let refused = read.as_ref().err().map(|error| {
            // An empty file can be read: what is written to it is a change.
            let is_unread = matches!(error, ConfigError::Read { source, .. } if source.kind() != ErrorKind::UnexpectedEof);
            (error.to_string(), is_unread)
        });
        let is_same = read.as_ref().is_ok_and(|read| {
            let (new, old) = (&read.1, &self.kubelet);
            let parts = |of: &KubeletDocument| (of.source, of.unreadable.clone());
            parts(new) == parts(old) && new.document == old.document
        });
        let is_logged = found.is_retry && refused == self.refused && (refused.is_some() || is_same);
        self.refused = refused;
        (!is_logged).then(|| read.map(|read| self.adopt(*read)))
    }
}

/// Result of a read of the files.
pub struct Found {
    /// Before they were read: what changes meanwhile is a change.
    stamps: Vec<Stamp>,
    /// They have not changed, and are read because one of them could not be.
    is_retry: bool,
    /// The kubelet's answer that it was read with.
    tried: Option<KubeletDocument>,
    read: Option<Result<Box<(Config, KubeletDocument)>, ConfigError>>,
}

/// Attributes that differ between two versions of a file; a ConfigMap's files are links that are swapped.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamps(config: &Path, kubelet: &KubeletFiles) -> Vec<Stamp> {
    let kubelet = kubelet.all();
    let kubelet = kubelet.iter().map(PathBuf::as_path);
    std::iter::once(config).chain(kubelet).map(stamp).collect()
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    // A directory that was removed while a mount holds it is gone.
    (meta.nlink() > 0).then(|| {
        (
            meta.dev(),
            meta.ino(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.size(),
        )
    })
}

#[cfg(test)]
mod tests {
    use evictd_config::Unreadable;
    use serde_json::{Value, json};

    use super::*;

    fn load(path: &Path) -> Config {
        let loaded = Config::load_with_stand_in(path, None, &KubeletDocument::default());
        loaded.unwrap().0
    }

    fn look(source: &mut ConfigSource, known: &Config) -> Option<Result<Config, ConfigError>> {
        let found = source.reader(known, false)();
        source.take(found)
    }

    fn read(source: &mut ConfigSource, known: &Config) -> Result<Config, ConfigError> {
        let found = source.reader(known, true)();
        source.take(found).unwrap()
    }

    /// A start takes its time: it waits for an API server, or is kept from running.
    #[test]
    fn what_changes_after_it_was_read_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let write = |quantity: &str| {
            let config = json!({ "evictionHard": { "memory.available": quantity } });
            fs::write(&path, config.to_string()).unwrap();
        };
        write("100Mi");
        let mut source = ConfigSource::new(&path, None, KubeletDocument::default(), false);
        let known = load(&path);
        let config = source.load(&known).unwrap();
        assert!(look(&mut source, &config).is_none());
        write("1000Mi");
        assert!(look(&mut source, &config).is_none(), "it may go on");
        let changed = look(&mut source, &config).unwrap().unwrap();
        assert_ne!(changed, config);
        assert!(look(&mut source, &changed).is_none());
        assert_eq!(read(&mut source, &changed).unwrap(), changed);
        // A shell truncates a file before it writes it, and a disk may be full.
        fs::write(&path, "").unwrap();
        let error = read(&mut source, &changed).unwrap_err();
        assert!(error.to_string().ends_with("the file is empty"), "{error}");
    }

    /// Its defaults would end shadow mode.
    #[test]
    fn a_file_that_was_emptied_is_never_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let (own, kubelet) = (dir.path().join("own"), dir.path().join("kubelet"));
        fs::write(&own, r#"{"shadow": true}"#).unwrap();
        let mut source = ConfigSource::new(&own, Some(&kubelet), KubeletDocument::default(), false);
        let known = load(&own);
        let config = source.load(&known).unwrap();
        let refuses_once = |source: &mut ConfigSource| {
            fs::write(&own, "").unwrap();
            assert!(look(source, &config).is_none(), "it may be written");
            let error = look(source, &config).unwrap().unwrap_err();
            assert!(error.to_string().ends_with("the file is empty"), "{error}");
            assert!(look(source, &config).is_none());
            assert!(look(source, &config).is_none());
        };
        // Beside a kubelet's file that is missing, and beside one that is tried again at each look.
        refuses_once(&mut source);
        fs::create_dir(&kubelet).unwrap();
        fs::write(&own, r#"{"shadow": true}"#).unwrap();
        assert!(look(&mut source, &config).is_none());
        assert_eq!(look(&mut source, &config).unwrap().unwrap(), config);
        refuses_once(&mut source);
    }

    /// What keeps a file from being read may be mended by other rights, or by itself: no stamp tells of that.
    #[test]
    fn what_could_not_be_read_is_tried_again_at_each_look() {
        let dir = tempfile::tempdir().unwrap();
        let (own, kubelet) = (dir.path().join("own"), dir.path().join("kubelet"));
        fs::write(&own, "{}").unwrap();
        let text = r#"{"evictionHard": {"memory.available": "3Gi"}}"#;
        fs::write(&kubelet, text).unwrap();
        let mut source = ConfigSource::new(&own, Some(&kubelet), KubeletDocument::default(), false);
        let known = load(&own);
        let config = source.load(&known).unwrap();
        assert_ne!(config.eviction, known.eviction);
        assert!(look(&mut source, &config).is_none());
        // As after a start that was refused the file.
        source.kubelet = KubeletDocument {
            unreadable: Some(Unreadable::File("permission denied".to_owned())),
            ..KubeletDocument::default()
        };
        assert_eq!(look(&mut source, &known).unwrap().unwrap(), config);
        assert!(look(&mut source, &config).is_none());
        // Without the drop-ins, at each look: that is told once.
        let gone = Unreadable::File("gone".to_owned());
        source.kubelet.unreadable = Some(gone.clone());
        let found = source.reader(&config, false)();
        let mut again = source.reader(&config, false)();
        if let Some(Ok(read)) = &mut again.read {
            read.1.unreadable = Some(gone);
        }
        assert!(source.take(again).is_none());
        assert!(source.take(found).is_some(), "it can be read");
        // The agent's own file: refused once.
        fs::remove_file(&own).unwrap();
        assert!(look(&mut source, &config).is_none());
        assert!(look(&mut source, &config).unwrap().is_err());
        assert!(source.reader(&config, false)().read.is_none(), "it is gone");
        assert!(look(&mut source, &config).is_none());
        assert!(read(&mut source, &config).is_err(), "asked");
        fs::write(&own, "{}").unwrap();
        assert!(look(&mut source, &config).is_none(), "it may go on");
        assert_eq!(look(&mut source, &config).unwrap().unwrap(), config);
        assert!(look(&mut source, &config).is_none());
    }

    #[test]
    fn a_kubelet_that_is_started_again_with_other_settings_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        let late = KubeletDocument::without_configz("it has not answered");
        let mut source = ConfigSource::new(&path, None, late, false);
        let mut running = source.load(&load(&path)).unwrap();
        for amount in ["1Gi", "2Gi"] {
            assert!(look(&mut source, &running).is_none());
            let answer = json!({"evictionHard": {"memory.available": amount}});
            *source.answer.lock().unwrap() = Some(KubeletDocument::from_configz(answer));
            let changed = look(&mut source, &running).unwrap().unwrap();
            assert_ne!(changed.eviction, running.eviction, "{amount}");
            assert!(look(&mut source, &changed).is_none(), "{amount}");
            running = changed;
        }
        // One that is refused is read once, and holds up no change of the agent's own file.
        let good = source.answer.lock().unwrap().clone();
        let bad = json!({"evictionSoft": {"memory.available": "3Gi"}});
        *source.answer.lock().unwrap() = Some(KubeletDocument::from_configz(bad));
        assert!(look(&mut source, &running).unwrap().is_err());
        assert!(look(&mut source, &running).is_none());
        fs::write(&path, r#"{"shadow": true}"#).unwrap();
        assert!(look(&mut source, &running).is_none(), "it may go on");
        assert!(look(&mut source, &running).unwrap().unwrap().shadow);
        assert!(look(&mut source, &running).unwrap().is_err(), "once more");
        assert!(look(&mut source, &running).is_none());
        // The kubelet goes back to what is in force.
        *source.answer.lock().unwrap() = good;
        assert!(look(&mut source, &running).unwrap().is_ok());
        assert!(look(&mut source, &running).is_none());
    }

    /// Another file of the kubelet's takes effect at the next start, with all that it says.
    #[test]
    fn an_agent_stays_with_the_kubelets_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &Value| {
            let path = dir.path().join(name);
            fs::write(&path, text.to_string()).unwrap();
            path
        };
        let kubelet = |name: &str, amount: &str| {
            file(name, &json!({"evictionHard": {"memory.available": amount}}))
        };
        let (one, other) = (kubelet("one", "1Gi"), kubelet("other", "2Gi"));
        let own = |kubelet: &Path| {
            file(
                "own",
                &json!({"cluster": {"nodeName": "n", "kubeletConfig": kubelet}}),
            )
        };
        let path = own(&one);
        let mut source = ConfigSource::new(&path, None, KubeletDocument::default(), false);
        let known = load(&path);
        let running = source.load(&known).unwrap();
        own(&other);
        let changed = read(&mut source, &running).unwrap();
        assert_ne!(changed.cluster, running.cluster);
        assert_eq!(changed.eviction, running.eviction);
        // Its own file is followed.
        kubelet("one", "3Gi");
        let changed = read(&mut source, &running).unwrap();
        assert_ne!(changed.eviction, running.eviction);
    }
}
