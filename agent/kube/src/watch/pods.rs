//! One watch, limited to this node, from the API server's cache.
//!
//! The list names `resourceVersion=0`, which the server answers from memory without asking etcd; changes then come
//! through one watch with bookmarks, so that it can go on where it stopped. A list that is older than what is known
//! already does no harm: it is joined with cgroups that exist, by UID.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use evictd_config::kube::{
    decode::JsonError,
    pod::{self, PodDocument},
};
use evictd_engine::{
    Pod,
    message::{DISRUPTION_TARGET, EVICTED, PHASE},
};
use evictd_store::record::shadow::KubeletEviction;
use evictd_sys::mutex::locked;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokio::sync::Notify;

use crate::{
    client::ApiClient,
    pod_store::PodStore,
    watch::{Events, WatchFailure, WatchHandler, follow, run_watcher},
};

/// The pod store, and the notification that it has changed.
#[derive(Debug, Default)]
pub struct WatchedPods {
    store: Mutex<PodStore>,
    /// Rings when the pod store has changed.
    pub changed: Notify,
    /// Rings for the reporter when the pod store has changed: it waits for the names of pods that are known by their
    /// cgroup only.
    pub changed_for_reports: Notify,
    kubelet_evictions: Mutex<KubeletEvictions>,
}

/// Pods that the kubelet has evicted.
#[derive(Debug, Default)]
struct KubeletEvictions {
    /// Not taken yet.
    untaken: Vec<KubeletEviction>,
    /// UIDs of those that were seen, the oldest first.
    seen: VecDeque<String>,
}

/// Largest number of UIDs that are kept: as many as a node can have pods, evicted ones that are still there included.
const MAX_SEEN: usize = 1024;
/// Largest number of evictions that wait to be taken, which happens every second.
const MAX_UNTAKEN: usize = 256;
/// Longest value of an annotation that is kept, in bytes.
const LONGEST_ANNOTATION: usize = 1024;
/// Largest size of a pod's annotations, and of its labels, that are kept, in bytes: the shortest ones stay.
const MAX_ANNOTATIONS: usize = 16 << 10;
/// Begins the reason why the kubelet does not admit a pod while a condition holds (`managerImpl.Admit`): phase and
/// reason are those of an evicted pod, and it never ran.
const REFUSED: &str = "The node had condition: ";
/// Longest time after which the watch shows what the kubelet has done, as long as the watch works.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(10);

impl WatchedPods {
    /// Looks at the pod store or changes it.
    pub fn with<T>(&self, f: impl FnOnce(&mut PodStore) -> T) -> T {
        f(&mut locked(&self.store))
    }

    /// Pods that the kubelet has evicted since this was asked last, the oldest first.
    pub fn kubelet_evictions(&self) -> Vec<KubeletEviction> {
        std::mem::take(&mut locked(&self.kubelet_evictions).untaken)
    }

    /// Takes note that this agent gives the pod the status of an evicted one: it is none of the kubelet's.
    pub fn note_own_eviction(&self, uid: &str) {
        locked(&self.kubelet_evictions).note(uid);
    }

    /// Takes note of a pod that the kubelet has evicted; one that was evicted before the agent looked is not told of.
    fn note_evicted(&self, watched: &WatchedPod, is_new: bool) {
        let (Ok(pod), Some(by_kubelet)) = (&watched.pod, &watched.evicted) else {
            return;
        };
        let mut evicted = locked(&self.kubelet_evictions);
        if evicted.note(&pod.uid) && is_new && evicted.untaken.len() < MAX_UNTAKEN {
            evicted.untaken.push(KubeletEviction {
                time: by_kubelet.time(Timestamp::now()).to_string(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                message: by_kubelet.message.clone(),
            });
        }
    }
}

impl KubeletEvictions {
    /// Whether this UID was not seen before; from now on it was.
    fn note(&mut self, uid: &str) -> bool {
        if self.seen.iter().any(|seen| seen == uid) {
            return false;
        }
        if self.seen.len() == MAX_SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back(uid.to_owned());
        true
    }
}

/// Eviction by the kubelet, as the pod's status shows it.
#[derive(Clone, Debug)]
struct EvictedByKubelet {
    message: String,
    /// Time at which the pod's condition DisruptionTarget came, in whole seconds.
    since: Option<Timestamp>,
}

impl EvictedByKubelet {
    fn of(status: &Value) -> Option<Self> {
        let message = status["message"].as_str().unwrap_or_default();
        let is_evicted = status["phase"] == PHASE && status["reason"] == EVICTED;
        (is_evicted && !message.contains(REFUSED)).then(|| {
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let target = conditions.find(|condition| condition["type"] == DISRUPTION_TARGET);
            let since = target.and_then(|target| target["lastTransitionTime"].as_str());
            Self {
                message: message.to_owned(),
                since: since.and_then(|since| since.parse().ok()),
            }
        })
    }

    /// When it was, if that is learnt `now`: what a watch brings at once is known to less than a second, and what it
    /// brings after an outage is long past, or was by a clock that has been set back since. Both clocks are this node's.
    fn time(&self, now: Timestamp) -> Timestamp {
        let is_another = |since: &Timestamp| now.duration_since(*since).abs() > AT_ONCE;
        self.since.filter(is_another).unwrap_or(now)
    }
}

/// A pod as it comes: what the engine needs of it, or why that cannot be read.
#[derive(Clone, Debug)]
pub struct WatchedPod {
    metadata: ObjectMeta,
    pod: Result<Pod, JsonError>,
    evicted: Option<EvictedByKubelet>,
}

impl<'de> Deserialize<'de> for WatchedPod {
    /// Never fails on a pod: one that cannot be read must not hide the others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let PodDocument(mut value) = PodDocument::deserialize(deserializer)?;
        for texts in ["/metadata/annotations", "/metadata/labels"] {
            if let Some(Value::Object(texts)) = value.pointer_mut(texts) {
                leave_out_documents(texts);
            }
        }
        let text = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
        Ok(Self {
            metadata: ObjectMeta {
                name: text("name"),
                namespace: text("namespace"),
                resource_version: text("resourceVersion"),
                ..ObjectMeta::default()
            },
            evicted: EvictedByKubelet::of(&value["status"]),
            pod: pod::read_pod("pod", &value).map(|mut pod| {
                // To the kubelet, what the API server has is the API server's, whatever its annotation says, unless it
                // is a mirror.
                pod.is_static &= pod.is_mirror;
                match pod.is_over() {
                    true => identity(pod),
                    false => pod,
                }
            }),
        })
    }
}

/// What is needed of a pod that is over: thousands of them may wait for the garbage collector of terminated pods.
fn identity(pod: Pod) -> Pod {
    Pod {
        uid: pod.uid,
        namespace: pod.namespace,
        name: pod.name,
        phase: pod.phase,
        annotations: match pod.is_mirror {
            true => pod.annotations,
            false => BTreeMap::new(),
        },
        is_mirror: pod.is_mirror,
        ..Pod::default()
    }
}

/// Leaves out annotations that others use as a cupboard: a pod may have 256 KiB of them, and all pods of a full node
/// more than an agent's memory limit. Policies look at marks. Of labels a pod may have a MiB.
fn leave_out_documents(annotations: &mut Map<String, Value>) {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    annotations.retain(|_, value| length(value) <= LONGEST_ANNOTATION);
    let size = |(key, value): (&String, &Value)| key.len() + length(value);
    if annotations.iter().map(size).sum::<usize>() <= MAX_ANNOTATIONS {
        return;
    }
    let mut sizes: Vec<(usize, String)> = annotations
        .iter()
        .map(|annotation| (size(annotation), annotation.0.clone()))
        .collect();
    sizes.sort_unstable();
    let mut kept = 0;
    for (size, key) in sizes {
        kept += size;
        if kept > MAX_ANNOTATIONS {
            annotations.remove(&key);
        }
    }
}

/// Describes the resource as [`v1::Pod`] does.
impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = <v1::Pod as Resource>::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        v1::Pod::kind(dt)
    }
    fn group(dt: &()) -> Cow<'_, str> {
        v1::Pod::group(dt)
    }
    fn version(dt: &()) -> Cow<'_, str> {
        v1::Pod::version(dt)
    }
    fn plural(dt: &()) -> Cow<'_, str> {
        v1::Pod::plural(dt)
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Keeps the pod store up to date for ever; see [`run_watcher`].
pub async fn run(client: Arc<ApiClient>, node: String, shared: Arc<WatchedPods>) {
    let handler = Pods {
        client: Arc::clone(&client),
        node,
        shared,
    };
    run_watcher(&client, handler).await;
}

struct Pods {
    client: Arc<ApiClient>,
    node: String,
    shared: Arc<WatchedPods>,
}

impl WatchHandler for Pods {
    type Object = WatchedPod;

    /// Without its pods the agent is blind.
    const RARE_RETRY: bool = false;

    fn open(&self, client: Client) -> Events<WatchedPod> {
        let fields = format!("spec.nodeName={}", self.node);
        follow(Api::all(client), Some(&fields))
    }

    fn apply(&mut self, event: Event<WatchedPod>) {
        if matches!(event, Event::InitDone) {
            self.client.counters.lists.add();
        }
        take(&self.client, &self.shared, event);
    }

    fn failed(&mut self, _: WatchFailure, error: &watcher::Error) {
        tracing::warn!(%error, "the pod watch has stopped: the cgroups tell which pods run here");
    }

    fn recovered(&mut self) {
        tracing::info!("the pod watch works again");
    }
}

fn take(client: &ApiClient, shared: &WatchedPods, event: Event<WatchedPod>) {
    match event {
        Event::Init => shared.with(PodStore::begin_relist),
        Event::InitDone => shared.with(PodStore::end_relist),
        Event::InitApply(pod) => {
            // Seen before, it was evicted while the watch was away.
            let is_new = pod.pod.as_ref().is_ok_and(|pod| {
                shared.with(|store| store.is_synced() && store.get(&pod.uid).is_some())
            });
            shared.note_evicted(&pod, is_new);
            return put(client, shared, pod);
        }
        Event::Apply(pod) => {
            shared.note_evicted(&pod, true);
            put(client, shared, pod);
        }
        Event::Delete(pod) => {
            if let Ok(pod) = pod.pod {
                shared.with(|store| store.remove(&pod));
            }
        }
    }
    shared.changed.notify_one();
    // Wakes only what waits at this moment: the reporter does not need to know what has changed while it worked.
    shared.changed_for_reports.notify_waiters();
}

fn put(client: &ApiClient, shared: &WatchedPods, watched: WatchedPod) {
    let counters = &client.counters;
    let name = || watched.metadata.name.clone().unwrap_or_default();
    match watched.pod {
        Err(ref error) => {
            if counters.pods_unreadable.add_first() {
                tracing::warn!(pod = name(), %error, "a pod cannot be read and is left out");
            }
        }
        // Its containers have ended: there is nothing left to evict.
        Ok(pod) if pod.is_over() => shared.with(|store| store.put_ended(&pod)),
        Ok(pod) => {
            let full_name = pod.to_string();
            let (lacks_uid, is_mirror) = (pod.uid.is_empty(), pod.is_mirror);
            let is_deleting = pod.is_deleting;
            shared.with(|store| store.put(pod));
            if lacks_uid && counters.pods_without_uid.add_first() {
                tracing::warn!(pod = full_name, "a pod without UID is left out");
            }
            if is_mirror && counters.mirror_pods.add_first() {
                tracing::info!(
                    pod = full_name,
                    "static pods are here; the API server has only their mirrors"
                );
            }
            if is_deleting && counters.terminating_pods.add_first() {
                tracing::info!(
                    pod = full_name,
                    "pods that are being deleted already are candidates as long as they hold memory"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_of_annotations_is_bounded() {
        let mut annotations: Map<String, Value> = (0..250)
            .map(|n| (format!("a/{n}"), "x".repeat(1000).into()))
            .collect();
        annotations.insert("document".to_owned(), "x".repeat(1025).into());
        annotations.insert("zz".to_owned(), "mark".into());
        let pod = json!({"metadata": {"name": "p", "uid": "u", "annotations": annotations}});
        let watched: WatchedPod = serde_json::from_value(pod).unwrap();
        let kept = watched.pod.unwrap().annotations;
        assert_eq!(kept["zz"], "mark");
        assert!(!kept.contains_key("document"));
        let bytes: usize = kept
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        assert!((15_000..=MAX_ANNOTATIONS).contains(&bytes), "{bytes}");
        // Of one that is over its name and phase alone.
        let over = json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"}, "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Failed"},
        });
        let watched: WatchedPod = serde_json::from_value(over).unwrap();
        let expected = Pod {
            uid: "u".to_owned(),
            name: "p".to_owned(),
            phase: "Failed".into(),
            ..Pod::default()
        };
        assert_eq!(watched.pod.unwrap(), expected);
    }

    #[test]
    fn only_a_mirror_is_static() {
        for (annotations, is_static) in [
            (json!({"kubernetes.io/config.source": "file"}), false),
            (
                json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "h"}),
                true,
            ),
        ] {
            let pod = json!({"metadata": {"name": "p", "uid": "u", "annotations": annotations}});
            let watched: WatchedPod = serde_json::from_value(pod).unwrap();
            let pod = watched.pod.unwrap();
            assert_eq!((pod.is_static, pod.ends_by_api()), (is_static, !is_static));
        }
    }

    #[test]
    fn a_pod_that_the_kubelet_does_not_admit_is_not_evicted() {
        let low = "The node was low on resource: memory. ";
        let refused = "Pod was rejected: The node had condition: [DiskPressure]. ";
        let before = "Pod The node had condition: [PIDPressure]. ";
        for (message, is_evicted) in [(low, true), (refused, false), (before, false)] {
            let status = json!({"phase": "Failed", "reason": "Evicted", "message": message});
            let evicted = EvictedByKubelet::of(&status);
            assert_eq!(evicted.is_some(), is_evicted, "{message}");
        }
    }
}
