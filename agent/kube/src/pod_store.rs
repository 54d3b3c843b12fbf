//! The node's pods as the API server has them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use evictd_engine::Pod;

/// Annotation of a mirror pod with the UID that the kubelet uses for the static pod behind it: the hash of its file, or
/// the UID in it.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The pods, by their own UID; they are found by the UID that their cgroups have in their names.
#[derive(Debug, Default)]
pub struct PodStore {
    pods: BTreeMap<String, Pod>,
    /// Pods that the API server has still although they are over, by their own UID.
    over: BTreeMap<String, EndedPod>,
    /// Pods that an unfinished list has brought so far.
    incoming: Option<Listed>,
    synced: bool,
    revision: u64,
}

#[derive(Debug, Default)]
struct Listed {
    pods: BTreeMap<String, Pod>,
    over: BTreeMap<String, EndedPod>,
}

/// A pod that is over.
#[derive(Debug)]
struct EndedPod {
    /// The UID that its cgroup had in its name.
    cgroup_uid: String,
    phase: String,
}

impl PodStore {
    /// A list begins: what is known stays in force until its end.
    pub fn begin_relist(&mut self) {
        self.incoming = Some(Listed::default());
    }

    /// The list is at its end and replaces what was known.
    pub fn end_relist(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            (self.pods, self.over) = (incoming.pods, incoming.over);
            self.synced = true;
            self.revision += 1;
        }
    }

    /// A pod of a list, a new or a changed one. Without a UID nothing can be known of it, and it is left out.
    pub fn put(&mut self, pod: Pod) {
        if !pod.uid.is_empty() {
            let pods = match &mut self.incoming {
                Some(incoming) => &mut incoming.pods,
                None => &mut self.pods,
            };
            pods.insert(pod.uid.clone(), pod);
            self.revision += 1;
        }
    }

    /// A pod is gone.
    pub fn remove(&mut self, pod: &Pod) {
        self.pods.remove(&pod.uid);
        self.over.remove(&pod.uid);
        self.revision += 1;
    }

    /// A pod is over: its containers have ended, and its object is there still.
    pub fn put_ended(&mut self, pod: &Pod) {
        self.remove(pod);
        let over = match &mut self.incoming {
            Some(incoming) => &mut incoming.over,
            None => &mut self.over,
        };
        let ended = EndedPod {
            cgroup_uid: cgroup_uid(pod).to_owned(),
            phase: pod.phase.clone(),
        };
        over.insert(pod.uid.clone(), ended);
    }

    /// Takes in the pods that an earlier agent knew; they count until the first list is at its end.
    pub fn restore(&mut self, pods: Vec<Pod>) {
        if !self.synced {
            let keyed = pods.into_iter().map(|pod| (pod.uid.clone(), pod));
            self.pods.extend(keyed);
        }
    }

    /// All of them.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// Revision of the store: another number after each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The pod whose cgroup has this UID in its name. A tenant can make a mirror with any hash, and the kubelet runs
    /// none of them: a pod's own UID comes before every hash, and of mirrors with one hash the one of the highest
    /// priority counts.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid).or_else(|| {
            let mirrors = self.pods.values().filter(|pod| pod.is_mirror);
            mirrors
                .filter(|pod| cgroup_uid(pod) == uid)
                .max_by_key(|pod| (pod.priority, Reverse(pod.created)))
        })
    }

    /// The phase of the pod whose cgroup has this UID in its name, if it is over.
    pub fn phase_if_over(&self, uid: &str) -> Option<&str> {
        let is_back = self.get(uid).is_some();
        let mut over = self.over.values().filter(|_| !is_back);
        let pod = over.find(|over| over.cgroup_uid == uid)?;
        Some(&pod.phase)
    }

    /// Whether the API server has answered in full at least once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The UIDs that cgroups have in their names.
    pub fn uids(&self) -> BTreeSet<&str> {
        self.pods.values().map(cgroup_uid).collect()
    }

    /// The pods that run, each with the UID that its cgroup has in its name.
    pub fn running(&self) -> impl Iterator<Item = (&str, &Pod)> {
        let running = |pod: &&Pod| pod.phase == "Running" && !pod.is_deleting;
        let pods = self.pods.values().filter(running);
        pods.map(|pod| (cgroup_uid(pod), pod))
    }

    /// UIDs that cgroups have in their names, those of pods that are over included.
    pub fn known_uids(&self) -> BTreeSet<String> {
        let over = self.over.values().map(|over| over.cgroup_uid.as_str());
        self.uids()
            .into_iter()
            .chain(over)
            .map(str::to_owned)
            .collect()
    }
}

/// The kubelet names the cgroup of a static pod after the hash of its file, not after the mirror pod's UID.
fn cgroup_uid(pod: &Pod) -> &str {
    match pod.annotations.get(CONFIG_HASH) {
        Some(hash) if pod.is_mirror => hash,
        _ => &pod.uid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "d4ae8de11a3b28dc31b9c89edbd7f90a";

    fn pod(uid: &str) -> Pod {
        Pod {
            uid: uid.into(),
            ..Pod::default()
        }
    }

    fn mirror(uid: &str, hash: &str) -> Pod {
        Pod {
            is_mirror: true,
            annotations: BTreeMap::from([(CONFIG_HASH.to_owned(), hash.to_owned())]),
            ..pod(uid)
        }
    }

    #[test]
    fn what_is_known_holds_until_a_new_list_is_complete() {
        let mut store = PodStore::default();
        assert!(!store.is_synced());
        store.begin_relist();
        store.put(pod("a"));
        store.put(pod("b"));
        assert!(store.pods.is_empty(), "half a list is none");
        store.end_relist();
        assert!(store.is_synced());
        store.begin_relist();
        store.put(pod("b"));
        assert!(store.get("a").is_some());
        store.end_relist();
        assert_eq!(store.known_uids(), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn a_static_pod_is_found_by_the_hash_of_its_file() {
        let mirror = mirror("of-the-mirror", HASH);
        let mut store = PodStore::default();
        store.put(mirror.clone());
        assert!(store.get(HASH).is_some());
        store.remove(&mirror);
        assert!(store.pods.is_empty());
    }

    #[test]
    fn a_mirror_stands_for_no_pod_of_the_api_server() {
        let real = Pod {
            priority: 2_000_001_000,
            ..pod("027b1a11-f972-4ec6-943f-db9a81fa1086")
        };
        let forged = Pod {
            priority: i32::MAX,
            ..mirror("forged", &real.uid)
        };
        for order in [[&real, &forged], [&forged, &real]] {
            let mut store = PodStore::default();
            for pod in order {
                store.put(pod.clone());
            }
            assert_eq!(store.get(&real.uid), Some(&real));
            store.remove(&forged);
            assert_eq!(store.get(&real.uid), Some(&real));
            store.put(forged.clone());
            store.put_ended(&forged);
            store.remove(&forged);
            assert_eq!(store.get(&real.uid), Some(&real));
            store.remove(&real);
            assert!(store.pods.is_empty());
        }
    }

    #[test]
    fn of_two_mirrors_the_one_of_the_higher_priority_counts() {
        let real = Pod {
            priority: 2_000_001_000,
            ..mirror("real", HASH)
        };
        let forged = mirror("forged", HASH);
        let mut store = PodStore::default();
        store.put(real.clone());
        store.put(forged.clone());
        assert_eq!(store.get(HASH), Some(&real));
        store.remove(&real);
        assert_eq!(store.get(HASH), Some(&forged));
        store.put_ended(&real);
        store.remove(&forged);
        assert_eq!(store.known_uids(), BTreeSet::from([HASH.to_owned()]));
    }

    #[test]
    fn what_an_earlier_agent_knew_holds_until_the_first_list() {
        let mut store = PodStore::default();
        store.restore(vec![pod("a"), pod("b")]);
        assert!(!store.is_synced() && store.get("a").is_some());
        store.begin_relist();
        store.put(pod("b"));
        store.end_relist();
        assert_eq!(store.known_uids(), BTreeSet::from(["b".to_owned()]));
        store.restore(vec![pod("a")]);
        assert_eq!(
            store.known_uids(),
            BTreeSet::from(["b".to_owned()]),
            "too late"
        );
    }

    #[test]
    fn a_pod_that_is_over_is_known_until_it_is_gone() {
        let mut store = PodStore::default();
        store.put(pod("a"));
        store.put(pod("b"));
        store.put_ended(&pod("a"));
        assert!(store.get("a").is_none() && store.pods.len() == 1);
        // Pods that run have cgroups; one that waits for its node or goes may have none.
        let (running, mirror) = ("Running".to_owned(), mirror("of-the-mirror", HASH));
        for (pod, is_deleting) in [(pod("c"), false), (pod("d"), true), (mirror, false)] {
            store.put(Pod {
                phase: running.clone(),
                is_deleting,
                ..pod
            });
        }
        let uids: Vec<&str> = store.running().map(|(uid, _)| uid).collect();
        assert_eq!(uids, ["c", HASH]);
        for uid in ["c", "d", "of-the-mirror"] {
            store.remove(&pod(uid));
        }
        let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        assert_eq!(store.known_uids(), both);
        store.begin_relist();
        let phase = "Failed".to_owned();
        store.put_ended(&Pod { phase, ..pod("b") });
        store.end_relist();
        assert_eq!(store.known_uids(), BTreeSet::from(["b".to_owned()]));
        assert_eq!(store.phase_if_over("b"), Some("Failed"));
        // Its kubelet has taken it back.
        store.put(pod("b"));
        assert_eq!(store.phase_if_over("b"), None);
        store.remove(&pod("b"));
        assert!(store.known_uids().is_empty());
    }

    #[test]
    fn a_pod_without_uid_is_left_out() {
        let mut store = PodStore::default();
        store.put(pod(""));
        assert!(store.pods.is_empty());
    }
}
