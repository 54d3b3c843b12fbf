//! Pods as the cgroup tree shows them: which there are, where they lie, and what the tree tells of a pod that no other
//! source names.
//!
//! The kubelet writes much of a pod's specification into its cgroups and processes: UID and QoS class into the name,
//! the memory limit into the cgroup, and a number made of the memory request into `oom_score_adj` of every process
//! (`GetContainerOOMScoreAdjust`). That is enough to go on with when the API server does not answer.

use std::{
    fs,
    path::{Path, PathBuf},
};

use evictd_engine::{Pod, QosClass, SYSTEM_NODE_CRITICAL_PRIORITY};
use evictd_sys::fs::{PathError, is_gone};

use crate::{
    cgroup::{
        memory::MemoryCgroup,
        tree::{FollowedCgroups, first_process, subdirectories},
    },
    pods::cgroup_name::{self, PodPath},
};

/// `oom_score_adj` of the containers of Guaranteed and node-critical pods (-998 in old kubelets). The pause
/// container of every pod has -998.
const GUARANTEED_SCORE: i64 = -997;
const PAUSE_SCORE: i64 = -998;
/// Value of `oom_score_adj` that kube-proxy gives itself, as the kubelet does (`qos.KubeProxyOOMScoreAdj`).
const KUBE_PROXY_SCORE: i64 = -999;
/// Value of `oom_score_adj` that conmon gives itself.
const MONITOR_SCORE: i64 = -1000;
/// `kubepods`, a class, a pod: how deep pods lie at most below the directory that holds `kubepods`, with some levels
/// to spare for `--cgroup-root`.
const DEPTH: usize = 6;

/// Largest depth at which `kubepods` itself lies: `--cgroup-root` is one level, or two.
const ROOT_DEPTH: usize = 3;

/// A pod's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroup {
    /// Pod that the cgroup's name tells of.
    pub name: PodPath,
    /// Directory of the cgroup.
    pub path: PathBuf,
}

/// The pods' cgroups below a directory.
#[derive(Debug, Default)]
pub struct PodCgroups {
    /// Cgroups of pods that were found.
    pub found: Vec<PodCgroup>,
    /// A directory that is there and could not be listed: there may be more.
    pub unlisted: Option<PathError>,
}

/// All pods' cgroups below a directory, whichever driver made them. What vanishes meanwhile is left out.
pub fn pods_below(root: &Path) -> PodCgroups {
    let mut cgroups = PodCgroups::default();
    collect(root, DEPTH, &mut cgroups);
    cgroups
}

/// The cgroup of all pods below a directory, whichever driver made it; the one that lies highest. A kubelet that was
/// given another driver leaves the former one's cgroups: of several, the one in which most pods run.
pub fn pods_root(root: &Path) -> Option<PathBuf> {
    let mut level = vec![root.to_owned()];
    for _ in 0..ROOT_DEPTH {
        let (mut found, mut next) = (Vec::new(), Vec::new());
        let below = level.iter().flat_map(|dir| subdirectories(dir));
        for path in below.filter(|path| may_hold_pods(path)) {
            match holds_all_pods(&path) {
                true => found.push(path),
                false => next.push(path),
            }
        }
        if let [_, _, ..] = found[..] {
            found.sort_by_cached_key(|root| (running_in(root), root.clone()));
        }
        if let Some(mut path) = found.pop() {
            // `--cgroup-root=/kubepods`: the kubelet's own lies in the one of that name. One in which fewer pods run than
            // in that is of a former kubelet.
            while let Some(inner) = root_in(&path).filter(|i| running_in(i) == running_in(&path)) {
                path = inner;
            }
            return Some(path);
        }
        level = next;
    }
    None
}

/// Counts the pods below a directory that run.
fn running_in(root: &Path) -> usize {
    let pods = pods_below(root).found.into_iter();
    pods.filter(|pod| !scores(&pod.path).is_empty()).count()
}

/// The directory directly below `dir` that holds all pods.
fn root_in(dir: &Path) -> Option<PathBuf> {
    subdirectories(dir).find(|path| holds_all_pods(path))
}

fn holds_all_pods(dir: &Path) -> bool {
    let name = dir.file_name().and_then(|name| name.to_str());
    name.is_some_and(cgroup_name::is_root)
}

fn collect(dir: &Path, depth: usize, cgroups: &mut PodCgroups) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            if !is_gone(&error) {
                cgroups.unlisted = Some(PathError::at(dir)(error));
            }
            return;
        }
    };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let path = entry.path();
        match cgroup_name::parse(&path) {
            Some(name) if name.container.is_none() => {
                cgroups.found.push(PodCgroup { name, path });
            }
            _ if depth > 0 && may_hold_pods(&path) => collect(&path, depth - 1, cgroups),
            _ => {}
        }
    }
}

/// Containers have no pods in them, and neither have the services of systemd.
fn may_hold_pods(dir: &Path) -> bool {
    let name = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    !(name.ends_with(".service") || name.ends_with(".scope") || name.ends_with(".mount"))
}

/// What a pod is, as far as its cgroup and its processes tell. Unknown remain its name, its labels and its priority:
///
/// - node-critical pods (their processes have the score of a Guaranteed pod without being one) are known as such and
///   protected; one that is Guaranteed itself cannot be told from any other Guaranteed pod;
/// - the priority of all others is not known: they go after every pod whose priority is, and usage above the request
///   decides among them. Static pods (their UID is a hash without dashes) are not evicted at all
///   ([`Pod::is_protected`]).
///
/// Among pods of which none is known one of a high priority may thus go too early: better than to let the OOM killer
/// choose, which knows even less.
pub fn guess(cgroup: &PodCgroup, memory_total: u64) -> Pod {
    guess_by(cgroup, &scores(&cgroup.path), memory_total)
}

/// What a pod is that was guessed before: its cgroup is there before its limit and its processes. A container between two
/// runs tells nothing, and what was known stays.
pub fn guess_again(before: &Pod, cgroup: &PodCgroup, memory_total: u64) -> Pod {
    let scores = scores(&cgroup.path);
    let guess = guess_by(cgroup, &scores, memory_total);
    let mut pod = before.clone();
    if !scores.is_empty() {
        (pod.priority, pod.priority_unknown) = (guess.priority, guess.priority_unknown);
    }
    if !scores.is_empty() || guess.memory_request > 0 {
        pod.memory_request = guess.memory_request;
    }
    pod
}

fn guess_by(cgroup: &PodCgroup, scores: &[i64], memory_total: u64) -> Pod {
    let limit = MemoryCgroup::open(&cgroup.path).and_then(|c| c.limit());
    let limit = limit.ok().flatten();
    let is_node_critical = is_node_critical(cgroup.name.qos, scores);
    let memory_request = match cgroup.name.qos {
        // Its request is its limit.
        QosClass::Guaranteed => limit.unwrap_or(0),
        QosClass::BestEffort => 0,
        QosClass::Burstable => scores.iter().map(|s| request_of(*s, memory_total)).sum(),
    };
    Pod {
        uid: cgroup.name.uid.clone(),
        // No namespace: the API server will tell when it is back.
        name: guessed_name(&cgroup.name.uid),
        qos: cgroup.name.qos,
        priority: if is_node_critical {
            SYSTEM_NODE_CRITICAL_PRIORITY
        } else {
            0
        },
        priority_unknown: !is_node_critical,
        memory_request,
        is_static: is_static(&cgroup.name.uid),
        // It may be a Job's.
        may_complete: true,
        ..Pod::default()
    }
}

/// Whether a pod is one that only its cgroup tells of.
pub fn is_guess(pod: &Pod) -> bool {
    pod.namespace.is_empty() && pod.name == guessed_name(&pod.uid)
}

fn guessed_name(uid: &str) -> String {
    format!("pod{uid}")
}

fn is_node_critical(qos: QosClass, scores: &[i64]) -> bool {
    let is_critical_score = |score: &i64| [GUARANTEED_SCORE, KUBE_PROXY_SCORE].contains(score);
    qos != QosClass::Guaranteed && scores.iter().any(is_critical_score)
}

/// A static pod's UID is the MD5 of its file (`generatePodName`, `applyDefaults` of the kubelet's file source).
fn is_static(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The request behind a Burstable container's score: score = 1000 - 1000 * request / capacity, between 3 and 999. Of
/// any other score, which a process has given itself, nothing is known.
fn request_of(score: i64, memory_total: u64) -> u64 {
    match u64::try_from(1000 - score) {
        Ok(share @ 0..1000) => memory_total / 1000 * share,
        _ => 0,
    }
}

/// One score per container: that of its first process, wherever below the container's cgroup it is. A monitor of the
/// runtime's (conmon) is no container.
fn scores(pod: &Path) -> Vec<i64> {
    let score_of = |dir: &Path| {
        let pid = first_process(dir)?;
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
        score.trim().parse().ok()
    };
    let first_below = |container: PathBuf| {
        let cgroups = FollowedCgroups::find(&container).unwrap_or_default();
        cgroups.paths().find_map(score_of)
    };
    let own = score_of(pod);
    subdirectories(pod)
        .filter_map(first_below)
        .chain(own)
        .filter(|score| ![PAUSE_SCORE, MONITOR_SCORE].contains(score))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evictd_engine::model::settings::Mode;

    const UID: &str = "027b1a11-f972-4ec6-943f-db9a81fa1086";

    #[test]
    fn both_drivers_trees_are_found_without_their_containers() {
        let dir = tempfile::tempdir().unwrap();
        let systemd = UID.replace('-', "_");
        for path in [
            format!("kubepods/burstable/pod{UID}/c1"),
            "kubepods/podd4ae8de11a3b28dc31b9c89edbd7f90a/c2".to_owned(),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{systemd}.slice/x.scope"
            ),
            "system.slice/kubelet.service".to_owned(),
        ] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let cgroups = pods_below(dir.path());
        assert!(cgroups.unlisted.is_none());
        let mut found: Vec<_> = (cgroups.found)
            .into_iter()
            .map(|g| (g.name.uid, g.name.qos))
            .collect();
        found.sort_by_key(|(uid, qos)| (uid.clone(), qos.as_str()));
        assert_eq!(
            found,
            [
                (UID.to_owned(), QosClass::BestEffort),
                (UID.to_owned(), QosClass::Burstable),
                (
                    "d4ae8de11a3b28dc31b9c89edbd7f90a".to_owned(),
                    QosClass::Guaranteed
                ),
            ]
        );
    }

    // R1
    #[test]
    fn the_cgroup_of_all_pods_is_found() {
        for (path, found) in [
            ("kubepods/burstable", Some("kubepods")),
            ("kubepods.slice", Some("kubepods.slice")),
            (
                "kubelet.slice/kubelet-kubepods.slice",
                Some("kubelet.slice/kubelet-kubepods.slice"),
            ),
            ("kubepods/kubepods/burstable", Some("kubepods/kubepods")),
            ("system.slice/kubepods.service", None),
            ("a/b/c/kubepods", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join(path)).unwrap();
            assert_eq!(pods_root(dir.path()), found.map(|f| dir.path().join(f)));
        }
    }

    #[test]
    fn the_cgroups_of_a_former_driver_are_passed_over() {
        let systemd = UID.replace('-', "_");
        let pods = [
            format!("kubepods/besteffort/pod{UID}/c1"),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{systemd}.slice/x.scope"
            ),
        ];
        for (runs, expected) in [(0, "kubepods"), (1, "kubepods.slice")] {
            let dir = tempfile::tempdir().unwrap();
            for (at, pod) in pods.iter().enumerate() {
                let pod = dir.path().join(pod);
                fs::create_dir_all(&pod).unwrap();
                let processes = match at == runs {
                    true => std::process::id().to_string(),
                    false => String::new(),
                };
                fs::write(pod.join("cgroup.procs"), processes).unwrap();
            }
            assert_eq!(pods_root(dir.path()), Some(dir.path().join(expected)));
        }
    }

    // R12, R42
    #[test]
    fn a_static_pod_is_known_by_its_uid_and_protected() {
        let cgroup = |uid: &str| PodCgroup {
            name: PodPath {
                uid: uid.into(),
                qos: QosClass::BestEffort,
                container: None,
            },
            path: "/nowhere".into(),
        };
        let of_a_static_pod = guess(&cgroup("d4ae8de11a3b28dc31b9c89edbd7f90a"), 1 << 30);
        assert!(of_a_static_pod.is_protected(Mode::Evictd));
        let pod = guess(&cgroup(UID), 1 << 30);
        assert!(!pod.is_critical());
        assert!(pod.priority_unknown && !pod.is_protected(Mode::Evictd));
        assert_eq!((pod.priority, pod.memory_request), (0, 0));
        assert!(pod.may_complete);
    }

    // R12: every Guaranteed pod has the score of a node-critical one.
    #[test]
    fn a_node_critical_pod_is_known_by_its_score_unless_it_is_guaranteed() {
        for (qos, score, is_known) in [
            (QosClass::Burstable, GUARANTEED_SCORE, true),
            (QosClass::BestEffort, KUBE_PROXY_SCORE, true),
            (QosClass::Burstable, 867, false),
            (QosClass::Guaranteed, GUARANTEED_SCORE, false),
        ] {
            assert_eq!(
                is_node_critical(qos, &[1000, score]),
                is_known,
                "{qos:?} {score}"
            );
        }
    }

    // R13, R27: 30Gi, request 4Gi -> 867.
    #[test]
    fn the_request_can_be_read_off_the_score() {
        let request = request_of(867, 30 << 30);
        assert!(request.abs_diff(4 << 30) < (30 << 30) / 1000, "{request}");
        assert_eq!(request_of(1000, 30 << 30), 0);
        // Given by the process itself.
        assert_eq!(request_of(-500, 1000), 0);
        assert_eq!(request_of(0, 1000), 0);
    }

    /// systemd in a container makes cgroups of its own, and puts every process into them.
    #[test]
    fn a_container_has_one_score_whatever_is_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id().to_string();
        for (cgroup, processes) in [
            ("", ""),
            ("c1", ""),
            ("c1/init.scope", &pid),
            ("c1/system.slice", ""),
            ("c1/system.slice/a.service", &pid),
            ("c2", &pid),
            ("sandbox", ""),
        ] {
            let cgroup = dir.path().join(cgroup);
            fs::create_dir_all(&cgroup).unwrap();
            fs::write(cgroup.join("cgroup.procs"), processes).unwrap();
        }
        assert_eq!(scores(dir.path()).len(), 2);
    }
}
