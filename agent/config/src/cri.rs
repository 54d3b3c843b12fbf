//! `cri`: the container runtime, which removes unused containers and images when a disk is short.

use std::{path::PathBuf, time::Duration};

use serde_json::Value;

use super::{ConfigError, duration};
use crate::decode::ObjectDecoder;

/// Default of `socket`: the kubelet's default of `containerRuntimeEndpoint`.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// Default of `requestTimeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Default of `reclaimTimeout`.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(30);
/// The kubelet's default of `imageMinimumGCAge`.
const IMAGE_MINIMUM_GC_AGE: Duration = Duration::from_secs(120);
/// The kubelet's fields.
const ENDPOINT: &str = "containerRuntimeEndpoint";
const AGE: &str = "imageMinimumGCAge";

/// Settings for the container runtime: its address, and how long to wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriConfig {
    /// `cri.socket`, or the kubelet's `containerRuntimeEndpoint`.
    pub socket: PathBuf,
    /// `cri.requestTimeout`: how long one call may take.
    pub request_timeout: Duration,
    /// `cri.reclaimTimeout`: how long a whole reclaim may take; after it pods are evicted.
    pub reclaim_timeout: Duration,
    /// `cri.imageMinimumGCAge`, or the kubelet's field of this name: younger images are not removed.
    pub image_minimum_gc_age: Duration,
}

impl CriConfig {
    /// Takes the field `cri`. In a cluster the runtime is used unless `cri.enabled` is false; without a cluster only if
    /// `cri` is there.
    pub(super) fn take(
        fields: &mut ObjectDecoder,
        kubelet: Option<&Value>,
        in_cluster: bool,
    ) -> Result<Option<Self>, ConfigError> {
        let (mut own_socket, mut own_age) = (None, None);
        let (mut request_timeout, mut reclaim_timeout) = (REQUEST_TIMEOUT, RECLAIM_TIMEOUT);
        let mut enabled = in_cluster;
        if let Some(mut cri) = fields.object("cri")? {
            enabled = cri.boolean("enabled")?.unwrap_or(true);
            let path = cri.path_of("socket");
            let text = cri.text("socket")?;
            own_socket = text.map(|text| socket(&path, &text)).transpose()?;
            request_timeout = timeout(&mut cri, "requestTimeout")?.unwrap_or(request_timeout);
            reclaim_timeout = timeout(&mut cri, "reclaimTimeout")?.unwrap_or(reclaim_timeout);
            own_age = cri.duration(AGE)?;
            cri.deny_unknown_fields()?;
        }
        // What is not used of the kubelet's file need not be right.
        if !enabled {
            return Ok(None);
        }
        let of_kubelet = |field: &str| {
            let text = kubelet.and_then(|k| k[field].as_str());
            text.filter(|text| !text.is_empty())
        };
        let socket = match (own_socket, of_kubelet(ENDPOINT)) {
            (Some(own), _) => own,
            (None, Some(text)) => socket(ENDPOINT, text)?,
            (None, None) => SOCKET.into(),
        };
        let age = match (own_age, of_kubelet(AGE)) {
            (None, Some(text)) => {
                let age = duration::parse(text).map_err(|e| ConfigError::text(AGE, text, e))?;
                // In a KubeletConfiguration zero means the default.
                Some(age).filter(|age| !age.is_zero())
            }
            (own, _) => own,
        };
        Ok(Some(Self {
            socket,
            request_timeout,
            reclaim_timeout,
            image_minimum_gc_age: age.unwrap_or(IMAGE_MINIMUM_GC_AGE),
        }))
    }
}

/// The path of a socket, written as a path or in one of the kubelet's forms, `unix:///run/x.sock` and `unix:/run/x.sock`.
fn socket(field: &str, text: &str) -> Result<PathBuf, ConfigError> {
    let forms = ["unix://", "unix:"];
    let path = forms.into_iter().find_map(|form| text.strip_prefix(form));
    let path = path.unwrap_or(text);
    let wrong = |reason: &str| ConfigError::text(field, text, reason);
    if !path.starts_with('/') {
        return Err(wrong("must be the absolute path of a unix socket"));
    }
    // The path becomes part of a URI.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-@+:".contains(&b);
    if !path.bytes().all(plain) {
        return Err(wrong("must consist of letters, digits and /._-@+:"));
    }
    Ok(path.into())
}

fn timeout(cri: &mut ObjectDecoder, name: &str) -> Result<Option<Duration>, ConfigError> {
    match cri.duration(name)? {
        Some(Duration::ZERO) => Err(ConfigError::text(
            cri.path_of(name),
            "0s",
            "must be longer than nothing",
        )),
        taken => Ok(taken),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Config;
    use super::*;

    fn read(config: Value, kubelet: Option<Value>) -> Result<Option<CriConfig>, String> {
        let config = Config::from_values(config, kubelet);
        config.map(|c| c.cri).map_err(|e| e.to_string())
    }

    // R8
    #[test]
    fn in_a_cluster_there_is_a_runtime_unless_it_is_switched_off() {
        let cluster = json!({"nodeName": "n"});
        assert_eq!(read(json!({}), None), Ok(None));
        let found = read(json!({"cluster": cluster}), None).unwrap().unwrap();
        assert_eq!(found.socket, PathBuf::from(SOCKET));
        assert_eq!(found.image_minimum_gc_age, Duration::from_secs(120));
        let off = json!({"cluster": cluster, "cri": {"enabled": false}});
        assert_eq!(read(off, None), Ok(None));
        let embedded = read(json!({"cri": {"socket": "/run/x.sock"}}), None);
        assert_eq!(
            embedded.unwrap().unwrap().socket,
            PathBuf::from("/run/x.sock")
        );
    }

    #[test]
    fn the_kubelets_words_hold_where_the_file_has_none() {
        let kubelet = json!({
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/crio/crio.sock",
            "imageMinimumGCAge": "5m",
        });
        let found = read(
            json!({"cri": {"requestTimeout": "3s"}}),
            Some(kubelet.clone()),
        );
        let found = found.unwrap().unwrap();
        assert_eq!(found.socket, PathBuf::from("/run/crio/crio.sock"));
        assert_eq!(found.request_timeout, Duration::from_secs(3));
        assert_eq!(found.image_minimum_gc_age, Duration::from_secs(300));
        let own = json!({"cri": {"socket": "/s", "imageMinimumGCAge": "0s"}});
        let found = read(own, Some(kubelet)).unwrap().unwrap();
        assert_eq!(found.socket, PathBuf::from("/s"));
        assert!(found.image_minimum_gc_age.is_zero());
        // What the file says in its stead, or says is not used, need not be right in the kubelet's.
        let kubelet = json!({"containerRuntimeEndpoint": "npipe://x", "imageMinimumGCAge": "2"});
        let cluster = json!({"nodeName": "n"});
        for cri in [
            json!({"enabled": false}),
            json!({"socket": "/s", "imageMinimumGCAge": "0s"}),
        ] {
            let document = json!({"cluster": cluster, "cri": cri});
            assert!(read(document, Some(kubelet.clone())).is_ok());
        }
        let kubelet = json!({"containerRuntimeEndpoint": "unix:/run/x.sock"});
        let found = read(json!({"cri": {}}), Some(kubelet)).unwrap().unwrap();
        assert_eq!(found.socket, PathBuf::from("/run/x.sock"));
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (cri, expected) in [
            (
                json!({"socket": "x"}),
                "cri.socket: \"x\": must be the absolute path",
            ),
            (
                json!({"socket": "tcp://1.2.3.4:1"}),
                "cri.socket: \"tcp://1.2.3.4:1\": must be",
            ),
            (
                json!({"socket": "/a b"}),
                "cri.socket: \"/a b\": must consist of",
            ),
            (
                json!({"requestTimeout": "0s"}),
                "cri.requestTimeout: \"0s\": must be longer",
            ),
            (
                json!({"reclaimTimeout": "5"}),
                "cri.reclaimTimeout: \"5\": a unit",
            ),
            (json!({"endpoint": "/x"}), "cri.endpoint: unknown field"),
        ] {
            let error = read(json!({"cri": cri}), None).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let kubelet = json!({"containerRuntimeEndpoint": "npipe://x"});
        let cluster = json!({"cluster": {"nodeName": "n"}});
        let error = read(cluster, Some(kubelet)).unwrap_err();
        assert!(
            error.starts_with("containerRuntimeEndpoint: \"npipe://x\""),
            "{error}"
        );
    }
}
