//! The cast: pods that must live, and one that takes all memory.

use evictd_tests::prelude::*;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    core::v1::{ContainerStatus, Namespace, Pod},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams, WatchEvent, WatchParams},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    agent::warnings,
    node::Target,
    patience::{is_gone, look_until},
    seen::Seen,
};

/// Where the cast plays, and what its priority class is called.
pub const NAMESPACE: &str = "evictd-e2e";
/// The hog's priority: below all others, so that no other pod can come before it.
const LOWEST: i32 = -1_000_000;
/// The pods that must live: name, memory request, whether it is the limit too.
const SURVIVORS: [(&str, Option<&str>, bool); 3] = [
    ("guaranteed", Some("64Mi"), true),
    ("burstable", Some("64Mi"), false),
    ("besteffort", None, false),
];
const HOG: &str = "hog";
const TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub struct Cast {
    client: Client,
    pods: Api<Pod>,
    node: String,
    host_network: bool,
    image: String,
    /// The survivors as they were at the start.
    pub survivors: Vec<Pod>,
}

impl Cast {
    /// Starts those that must live and waits until they run.
    pub async fn start(client: &Client, target: &Target, image: &str) -> Result<Self> {
        remove(client).await?;
        // Wherever the cluster's own default is stricter than what the pods below are.
        let level = if target.host_network {
            "privileged"
        } else {
            "baseline"
        };
        let namespace = json!({"metadata": {
            "name": NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": level},
        }});
        create(&Api::<Namespace>::all(client.clone()), &namespace).await?;
        let class = json!({
            "metadata": {"name": NAMESPACE},
            "value": LOWEST,
            "preemptionPolicy": "Never",
            "description": "the hog of evictd's end-to-end test",
        });
        create(&Api::<PriorityClass>::all(client.clone()), &class).await?;
        let mut workload = Self {
            client: client.clone(),
            pods: Api::namespaced(client.clone(), NAMESPACE),
            node: target.name.clone(),
            host_network: target.host_network,
            image: image.to_owned(),
            survivors: Vec::new(),
        };
        workload.wait_for_account().await?;
        for (name, request, is_limit) in SURVIVORS {
            let resources = match (request, is_limit) {
                (None, _) => json!({}),
                (Some(r), false) => json!({"requests": {"memory": r}}),
                (Some(r), true) => {
                    let both = json!({"cpu": "10m", "memory": r});
                    json!({"requests": both, "limits": both})
                }
            };
            let survivor = workload.pod(name, &resources, json!(["--mib", "8"]));
            create(&workload.pods, &survivor).await?;
        }
        for (name, _, _) in SURVIVORS {
            let pod = workload.wait_until_ready(name).await?;
            workload.survivors.push(pod);
        }
        say!("e2e: {} pods run that must live", workload.survivors.len());
        Ok(workload)
    }

    /// Lets the hog loose, Burstable, restarted by the kubelet if it may be, without a limit of its own; and looks at
    /// every version of its object until that is gone.
    pub async fn hog(&self, mib: u64, rate: u64, timeout: Duration) -> Result<Seen> {
        let arguments = json!(["--mib", mib.to_string(), "--rate", rate.to_string()]);
        let resources = json!({"requests": {"memory": "32Mi"}});
        let mut hog = self.pod(HOG, &resources, arguments);
        hog["spec"]["priorityClassName"] = NAMESPACE.into();
        let hog = create(&self.pods, &hog).await?;
        let mut seen = Seen::new(hog.uid().unwrap_or_default());
        let start = Instant::now();
        match tokio::time::timeout(timeout, self.follow(&hog, &mut seen)).await {
            Ok(followed) => followed?,
            Err(_) => bail!("the hog was not evicted within {timeout:?}: {seen}"),
        }
        seen.lived = start.elapsed();
        Ok(seen)
    }

    /// Every change, by a watch: a restart that lasts for a moment is seen too. The API server may fail for a while: it may
    /// run on the very node that is short of memory.
    async fn follow(&self, hog: &Pod, seen: &mut Seen) -> Result<()> {
        let mut version = hog.resource_version().unwrap_or_default();
        loop {
            match self.watch(&mut version, seen).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => say!("e2e: the watch of the hog: {error:#}; looking again"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            // What has happened in between, and from where the next watch goes on.
            match self.pods.get_opt(HOG).await {
                Ok(Some(pod)) if pod.uid().as_deref() == Some(&*seen.uid) => {
                    version = pod.resource_version().unwrap_or_default();
                    seen.take(&pod);
                    if seen.by_kubelet.is_some() {
                        return Ok(());
                    }
                }
                Ok(_) => return Ok(()),
                Err(error) => say!("e2e: the hog cannot be looked at: {error}"),
            }
        }
    }

    /// One watch; whether the hog is gone, or was evicted by the kubelet.
    async fn watch(&self, version: &mut String, seen: &mut Seen) -> Result<bool> {
        // The server ends it before this client's patience does.
        let params = WatchParams::default().timeout(45);
        let params = params.fields(&format!("metadata.name={HOG}"));
        let mut changes = self.pods.watch(&params, version).await?.boxed();
        while let Some(change) = changes.try_next().await? {
            match change {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    *version = pod.resource_version().unwrap_or_default();
                    seen.take(&pod);
                    if seen.by_kubelet.is_some() {
                        return Ok(true);
                    }
                }
                WatchEvent::Deleted(pod) => {
                    seen.take(&pod);
                    return Ok(true);
                }
                WatchEvent::Bookmark(mark) => *version = mark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("{status:?}"),
            }
        }
        Ok(false)
    }

    /// A pod can be made in a new namespace only when that has got its default account.
    async fn wait_for_account(&self) -> Result<()> {
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client.clone(), NAMESPACE);
        let look = async || accounts.get_opt("default").await;
        let made = look_until(TIMEOUT, |found| !matches!(found, Ok(None)), look).await?;
        ensure!(
            made.is_some(),
            "the namespace {NAMESPACE} has no account `default` after {TIMEOUT:?}: does the controller manager run?"
        );
        Ok(())
    }

    async fn wait_until_ready(&self, name: &str) -> Result<Pod> {
        let start = Instant::now();
        // What the kubelet has turned away never starts.
        let has_failed = |pod: &Pod| {
            let status = pod.status.as_ref();
            status.and_then(|s| s.phase.as_deref()) == Some("Failed")
        };
        let is_over = |found: &kube::Result<Pod>| {
            let pod = found.as_ref();
            pod.map_or(true, |pod| is_ready(pod) || has_failed(pod))
        };
        let pod = look_until(TIMEOUT, is_over, async || self.pods.get(name).await).await?;
        if !is_ready(&pod) {
            let warnings = warnings(&self.client, NAMESPACE).await.join("\n  ");
            let waited = start.elapsed();
            bail!("{} after {waited:.0?}\n  {warnings}", describe(&pod));
        }
        Ok(pod)
    }

    fn pod(&self, name: &str, resources: &Value, arguments: Value) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": NAMESPACE}},
            "spec": {
                // Bound directly: the scheduler has no say, and no taint of an earlier run keeps it away.
                "nodeName": self.node,
                "hostNetwork": self.host_network,
                "tolerations": [{"operator": "Exists"}],
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": if name == HOG { 30 } else { 1 },
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": name,
                    "image": self.image,
                    "imagePullPolicy": "IfNotPresent",
                    "args": arguments,
                    "resources": resources,
                }],
            },
        })
    }

    /// The pod of this name now, if there is one.
    pub async fn get(&self, name: &str) -> Result<Option<Pod>> {
        Ok(self.pods.get_opt(name).await?)
    }
}

async fn create<K>(api: &Api<K>, description: &Value) -> Result<K>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(description.clone())?;
    let made = api.create(&PostParams::default(), &object).await;
    made.with_context(|| format!("cannot create {}", description["metadata"]["name"]))
}

/// Takes the cast away and waits until it is gone.
pub async fn remove(client: &Client) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let look = async || {
        if classes.get_opt(NAMESPACE).await?.is_some() {
            classes.delete(NAMESPACE, &DeleteParams::default()).await?;
        }
        let found = namespaces.get_opt(NAMESPACE).await?;
        let is_whole = |found: &Namespace| found.metadata.deletion_timestamp.is_none();
        if found.as_ref().is_some_and(is_whole) {
            namespaces
                .delete(NAMESPACE, &DeleteParams::default())
                .await?;
        }
        Ok::<_, kube::Error>(found)
    };
    let left = look_until(TIMEOUT, is_gone, look).await?;
    ensure!(
        left.is_none(),
        "the namespace {NAMESPACE} is not gone after {TIMEOUT:?}"
    );
    Ok(())
}

/// Whether a pod says that it is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

pub fn statuses(pod: &Pod) -> &[ContainerStatus] {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_deref());
    statuses.unwrap_or_default()
}

/// A pod with its phase, what its containers wait for and how they ended.
pub fn describe(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let mut text = format!("{} is {}", pod.name_any(), status.phase.unwrap_or_default());
    for part in [status.reason, status.message].into_iter().flatten() {
        text = format!("{text}; {part}");
    }
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    for container in statuses(pod) {
        let states = [&container.state, &container.last_state];
        for state in states.into_iter().flatten() {
            if let Some(waiting) = &state.waiting {
                let (reason, message) = (or_empty(&waiting.reason), or_empty(&waiting.message));
                text = format!("{text}; waits: {reason} {message}");
            }
            if let Some(ended) = &state.terminated {
                let (reason, message) = (or_empty(&ended.reason), or_empty(&ended.message));
                let (code, message) = (ended.exit_code, message.trim());
                text = format!("{text}; ended with {code}: {reason} {message}");
            }
        }
    }
    text
}
