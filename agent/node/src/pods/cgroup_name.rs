//! Pods by the names of their cgroups, as the kubelet's two cgroup drivers write them
//! (`pkg/kubelet/cm/cgroup_manager_linux.go`, `pod_container_manager_linux.go`).
//!
//! - cgroupfs: `kubepods/burstable/pod<uid>/<container>`
//! - systemd:
//!   `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<container>.scope`, with
//!   the dashes of the UID written as underscores
//!
//! Guaranteed pods lie directly below the root group.

use std::path::Path;

use evictd_engine::QosClass;

/// Pod as a path below the cgroup root describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPath {
    /// The pod's UID, with dashes; a static pod's is 32 hexadecimal digits without.
    pub uid: String,
    /// The class whose group the pod lies in.
    pub qos: QosClass,
    /// The container's id, when the path goes on below the pod.
    pub container: Option<String>,
}

/// Reads a cgroup path, absolute or relative, whatever precedes `kubepods` (`--cgroup-root`, which may be `kubepods`
/// itself). Of a pod in a pod it is the outer one. `None`: not a pod's.
pub fn parse(path: &Path) -> Option<PodPath> {
    let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
    (0..parts.len()).find_map(|root| below_root(parts[root], &parts[root + 1..]))
}

/// Reads what follows the directory `root` in a path.
fn below_root(root: &str, rest: &[&str]) -> Option<PodPath> {
    if !is_root(root) {
        return None;
    }
    let systemd = root.ends_with(".slice");
    let mut rest = rest.iter().copied();
    let first = rest.next()?;
    let (qos, pod) = match last_word(first, systemd)? {
        "burstable" => (QosClass::Burstable, rest.next()?),
        "besteffort" => (QosClass::BestEffort, rest.next()?),
        _ => (QosClass::Guaranteed, first),
    };
    let uid = last_word(pod, systemd)?
        .strip_prefix("pod")
        .filter(|uid| !uid.is_empty())?;
    Some(PodPath {
        uid: if systemd {
            uid.replace('_', "-")
        } else {
            uid.to_owned()
        },
        qos,
        container: rest.next().map(container_id),
    })
}

/// Whether a directory of this name holds all pods of the node.
pub fn is_root(name: &str) -> bool {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    // `--cgroup-root=/foo` with the systemd driver gives `foo-kubepods.slice`.
    name == "kubepods" || name.ends_with("-kubepods")
}

/// systemd repeats the parents' names in front: `kubepods-burstable-podX.slice` is `podX`.
fn last_word(name: &str, systemd: bool) -> Option<&str> {
    if !systemd {
        return Some(name);
    }
    name.strip_suffix(".slice")?.rsplit('-').next()
}

fn container_id(name: &str) -> String {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    name.rsplit('-').next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "027b1a11-f972-4ec6-943f-db9a81fa1086";

    fn uid_and_class(path: &str) -> Option<(String, QosClass)> {
        parse(Path::new(path)).map(|p| (p.uid, p.qos))
    }

    #[test]
    fn cgroupfs_names() {
        let pod = parse(Path::new(&format!("/kubepods/burstable/pod{UID}/de50f9ea"))).unwrap();
        assert_eq!((pod.uid.as_str(), pod.qos), (UID, QosClass::Burstable));
        assert_eq!(pod.container.as_deref(), Some("de50f9ea"));
        assert_eq!(
            uid_and_class("kubepods/podd4ae8de11a3b28dc31b9c89edbd7f90a"),
            Some((
                "d4ae8de11a3b28dc31b9c89edbd7f90a".into(),
                QosClass::Guaranteed
            ))
        );
    }

    /// Docker Desktop starts its kubelet with `--cgroup-root=kubepods`.
    #[test]
    fn the_root_may_lie_in_another_of_its_name() {
        let expected = |qos| Some((UID.to_owned(), qos));
        for (path, qos) in [
            (
                format!("/kubepods/kubepods/besteffort/pod{UID}"),
                QosClass::BestEffort,
            ),
            (
                format!("/kubepods/kubepods/pod{UID}/c1"),
                QosClass::Guaranteed,
            ),
        ] {
            assert_eq!(uid_and_class(&path), expected(qos), "{path}");
        }
        let slice = "/kubepods.slice/kubepods-kubepods.slice/kubepods-kubepods-burstable.slice";
        let uid = UID.replace('-', "_");
        let pod = format!("{slice}/kubepods-kubepods-burstable-pod{uid}.slice");
        assert_eq!(uid_and_class(&pod), expected(QosClass::Burstable));
        // A kubelet in a pod.
        let inner = format!("/kubepods/pod{UID}/c1/kubepods/besteffort/podother");
        assert_eq!(uid_and_class(&inner), expected(QosClass::Guaranteed));
    }

    #[test]
    fn systemd_names() {
        let pod = parse(Path::new(
            "/kubepods.slice/kubepods-besteffort.slice/\
             kubepods-besteffort-pod027b1a11_f972_4ec6_943f_db9a81fa1086.slice/cri-containerd-ab12.scope",
        ))
        .unwrap();
        assert_eq!((pod.uid.as_str(), pod.qos), (UID, QosClass::BestEffort));
        assert_eq!(pod.container.as_deref(), Some("ab12"));
        assert_eq!(
            uid_and_class("/kubepods.slice/kubepods-pod027b1a11_f972_4ec6_943f_db9a81fa1086.slice"),
            Some((UID.into(), QosClass::Guaranteed))
        );
    }

    #[test]
    fn a_root_in_front_changes_nothing() {
        assert_eq!(
            uid_and_class(&format!(
                "/sys/fs/cgroup/memory/kubelet/kubepods/besteffort/pod{UID}"
            )),
            Some((UID.into(), QosClass::BestEffort))
        );
        assert_eq!(
            uid_and_class(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-poda_b.slice"
            ),
            Some(("a-b".into(), QosClass::Burstable))
        );
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for path in [
            "/",
            "/kubepods",
            "/kubepods/burstable",
            "/kubepods/pod",
            "/system.slice/x.service",
            "/kubepods.slice/x",
        ] {
            assert_eq!(parse(Path::new(path)), None, "{path}");
        }
    }
}
