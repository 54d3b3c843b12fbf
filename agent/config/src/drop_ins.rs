//! The kubelet's `--config-dir`: files that are merged into its configuration, as by `mergeKubeletConfigurations` in
//! `cmd/kubelet/app/server.go`.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    ConfigError,
    document::{read_kubelet_document, syntax},
    thresholds::DEFAULT_EVICTION_HARD,
};

/// The extension of the files; others are ignored.
const EXTENSION: &str = "conf";
/// Most files that are read. The kubelet has no limit.
const MAX_FILES: usize = 1024;
/// The fields that name a document's type.
const TYPE: [&str; 2] = ["apiVersion", "kind"];
pub(super) const HARD: &str = "evictionHard";
pub(super) const MERGE_DEFAULTS: &str = "mergeDefaultEvictionSettings";

/// The files of a directory and its subdirectories, in the order in which the kubelet merges them: by name, each
/// subdirectory at the place of its name.
///
/// # Errors
/// A directory cannot be read, has too many files, or was removed while a mount holds it: that one lists as empty.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    if fs::metadata(directory).is_ok_and(|meta| meta.nlink() == 0) {
        return Err(ConfigError::Read {
            path: directory.into(),
            source: io::Error::other("the directory that is mounted here was removed"),
        });
    }
    let mut found = Vec::new();
    collect(directory, &mut found)?;
    Ok(found)
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), ConfigError> {
    let failed = |source| ConfigError::Read {
        path: directory.into(),
        source,
    };
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A symbolic link to a directory is not followed; reading it as a file fails.
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|e| e == EXTENSION) {
            if found.len() == MAX_FILES {
                let reason = format!("more than {MAX_FILES} files");
                return Err(failed(io::Error::other(reason)));
            }
            found.push(path);
        }
    }
    Ok(())
}

/// Reads the files of a directory, each with the mistakes that the kubelet forgives.
///
/// # Errors
/// A file cannot be read, is neither YAML nor JSON, or is no KubeletConfiguration.
pub fn read(directory: &Path) -> Result<Vec<(Value, Vec<String>)>, ConfigError> {
    files(directory)?
        .iter()
        .map(|path| read_one(path))
        .collect()
}

fn read_one(path: &Path) -> Result<(Value, Vec<String>), ConfigError> {
    let (document, lenient_warnings) = read_kubelet_document(path)?;
    let wrong = |reason| syntax(path, reason);
    match &document {
        Value::Null => return Ok((Value::Object(Map::new()), lenient_warnings)),
        Value::Object(_) => {}
        _ => return Err(wrong("must be a map of fields".to_owned())),
    }
    match document["kind"].as_str() {
        None | Some("KubeletConfiguration") => Ok((document, lenient_warnings)),
        Some(kind) => Err(wrong(format!(
            "kind: {kind:?}: must be KubeletConfiguration"
        ))),
    }
}

/// Merges drop-ins into the kubelet's configuration file, if there is one: maps field by field, everything else as a
/// whole; null removes a field (RFC 7396).
///
/// What the kubelet does about its default thresholds it does to its file, before it merges (`loadConfigFile`): where the
/// file has none a drop-in with one threshold leaves the other defaults in force, and `mergeDefaultEvictionSettings` of a
/// drop-in changes nothing. Without a file only the drop-ins' thresholds hold.
pub fn merge(base: Option<Value>, drop_ins: Vec<Value>) -> Option<Value> {
    if drop_ins.is_empty() {
        return base;
    }
    let of_file = base.is_some();
    let mut merged = match base {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(base) if base.is_object() => base,
        // The decoder refuses it.
        other => return other,
    };
    let merges = merged[HARD].is_object() && merged[MERGE_DEFAULTS] == true;
    if of_file && (merged[HARD].is_null() || merges) {
        let defaults = DEFAULT_EVICTION_HARD.iter();
        let defaults = defaults.map(|(signal, value)| (signal.to_string(), (*value).into()));
        let mut hard: Map<_, _> = defaults.collect();
        hard.extend(
            merged[HARD]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(s, v)| (s.clone(), v.clone())),
        );
        merged[HARD] = hard.into();
    }
    for mut drop_in in drop_ins {
        if let Value::Object(fields) = &mut drop_in {
            fields.retain(|name, _| !TYPE.contains(&name.as_str()));
        }
        json_patch::merge(&mut merged, &drop_in);
    }
    if let Value::Object(fields) = &mut merged {
        fields.remove(MERGE_DEFAULTS);
        // Without a map the defaults would be taken.
        fields.entry(HARD).or_insert_with(|| Map::new().into());
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_are_merged_in_the_kubelets_order() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // `filepath.WalkDir`: 10 before 2, a directory where its name stands, and only *.conf.
        write("20-b.conf", "evictionMaxPodGracePeriod: 20");
        write("100-a.conf", "evictionMaxPodGracePeriod: 100");
        write("15-more/z.conf", "evictionMaxPodGracePeriod: 15");
        write("30-c.conf.bak", "evictionMaxPodGracePeriod: 30");
        write("40-d.yaml", "evictionMaxPodGracePeriod: 40");
        write("05-empty.conf", "# nothing\n");
        let names: Vec<_> = files(dir.path()).unwrap();
        let names: Vec<_> = names
            .iter()
            .map(|p| p.strip_prefix(dir.path()).unwrap().to_str().unwrap())
            .collect();
        let expected = ["05-empty.conf", "100-a.conf", "15-more/z.conf", "20-b.conf"];
        assert_eq!(names, expected);
        let read_all = read(dir.path()).unwrap().into_iter();
        let merged = merge(None, read_all.map(|(document, _)| document).collect()).unwrap();
        assert_eq!(merged["evictionMaxPodGracePeriod"], 20);

        for (text, expected) in [
            ("- a\n", "z.conf: must be a map of fields"),
            ("kind: Pod\n", "kind: \"Pod\": must be KubeletConfiguration"),
            ("a: [", "z.conf: "),
        ] {
            write("15-more/z.conf", text);
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// The examples of "Kubelet Configuration Directory Merging" in Kubernetes' documentation, and what `server.go`
    /// does to thresholds.
    #[test]
    fn maps_are_merged_and_lists_replaced() {
        let base = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
            "enforceNodeAllocatable": ["pods", "kube-reserved"],
            "systemReserved": {"memory": "1Gi", "cpu": "1"},
        });
        let drop_ins = vec![
            json!({"kind": "KubeletConfiguration", "evictionHard": {"memory.available": "200Mi"}}),
            json!({"enforceNodeAllocatable": ["pods"], "systemReserved": {"cpu": null}}),
        ];
        let merged = merge(Some(base.clone()), drop_ins).unwrap();
        assert_eq!(
            merged["evictionHard"],
            json!({"memory.available": "200Mi", "nodefs.available": "10%"})
        );
        assert_eq!(merged["enforceNodeAllocatable"], json!(["pods"]));
        assert_eq!(merged["systemReserved"], json!({"memory": "1Gi"}));
        assert_eq!(merged["kind"], "KubeletConfiguration");

        // No thresholds in the file: the defaults, and the drop-in's on top.
        let one = vec![json!({"evictionHard": {"memory.available": "1Gi"}})];
        for base in [Value::Null, json!({"a": 1})] {
            let merged = merge(Some(base), one.clone()).unwrap();
            let hard = merged["evictionHard"].as_object().unwrap();
            assert_eq!(hard.len(), DEFAULT_EVICTION_HARD.len());
            assert_eq!(hard["memory.available"], "1Gi");
            assert_eq!(hard["nodefs.available"], "10%");
        }
        assert_eq!(merge(None, one.clone()), Some(one[0].clone()));
        // None in force, neither without a file nor where a drop-in takes them away.
        let none = |base: Option<Value>, drop_in| {
            let merged = merge(base, vec![drop_in]).unwrap();
            assert_eq!(merged["evictionHard"], json!({}));
        };
        none(None, json!({"maxPods": 50}));
        none(Some(base.clone()), json!({"evictionHard": null}));
        // The flag is about the map of its own file, and of a drop-in's the kubelet takes no notice.
        let flag = json!({"mergeDefaultEvictionSettings": true});
        let merged = merge(Some(base.clone()), vec![flag.clone()]).unwrap();
        assert_eq!(merged, base);
        let mut of_file = base.clone();
        json_patch::merge(&mut of_file, &flag);
        let merged = merge(Some(of_file), one.clone()).unwrap();
        let hard = merged["evictionHard"].as_object().unwrap();
        assert_eq!(hard.len(), DEFAULT_EVICTION_HARD.len());
        assert_eq!(hard["memory.available"], "1Gi");
        assert_eq!(merge(Some(base.clone()), Vec::new()), Some(base));
        assert_eq!(merge(None, Vec::new()), None);
        let list = json!(["evictionHard"]);
        assert_eq!(merge(Some(list.clone()), one), Some(list));
    }
}
