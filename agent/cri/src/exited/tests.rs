use ContainerState::{Created, Exited, Running, Unknown};
use SandboxState::{NotReady, Ready};

use super::{
    super::messages::{ContainerMetadata, PodSandboxMetadata},
    *,
};

fn sandbox(id: &str, uid: &str, attempt: u32, state: SandboxState) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        metadata: Some(PodSandboxMetadata {
            uid: uid.into(),
            attempt,
            ..PodSandboxMetadata::default()
        }),
        state: state.into(),
        created_at: i64::from(attempt),
    }
}

fn container(id: &str, sandbox: &str, attempt: u32, state: ContainerState) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        metadata: Some(ContainerMetadata {
            name: "c".into(),
            attempt,
        }),
        state: state.into(),
        created_at: 10 + i64::from(attempt),
        ..Container::default()
    }
}

fn known(uids: &[&str]) -> KnownPods {
    KnownPods {
        uids: Some(uids.iter().map(|&uid| uid.to_owned()).collect()),
        has_kubelet: false,
    }
}

/// The pods of the node are not known yet.
const NONE: KnownPods = KnownPods {
    uids: None,
    has_kubelet: false,
};

// R8
#[test]
fn of_a_pod_that_lives_the_youngest_dead_container_stays() {
    let sandboxes = [sandbox("s", "u", 0, Ready)];
    let all = [
        container("c2", "s", 2, Exited),
        container("c0", "s", 0, Exited),
        container("c1", "s", 1, Exited),
        container("c3", "s", 3, Running),
    ];
    // A ready sandbox is enough, whether the agent knows the pod or not.
    for known in [known(&[]), known(&["u"]), NONE] {
        assert_eq!(containers(&all, &sandboxes, &known), ["c0", "c1"]);
    }
}

// R8
#[test]
fn of_a_pod_that_is_gone_nothing_stays() {
    let sandboxes = [
        sandbox("old", "gone", 0, NotReady),
        sandbox("new", "gone", 1, NotReady),
        sandbox("here", "known", 0, NotReady),
    ];
    let all = [
        container("a", "old", 0, Exited),
        container("b", "new", 1, Exited),
        container("c", "here", 2, Exited),
        container("lost", "no such sandbox", 3, Exited),
    ];
    let known = known(&["known"]);
    assert_eq!(containers(&all, &sandboxes, &known), ["a", "b", "lost"]);
    assert!(super::sandboxes(&all, &sandboxes, &known).is_empty());
    assert_eq!(
        super::sandboxes(&all[2..], &sandboxes, &known),
        ["old", "new"]
    );
    assert_eq!(super::sandboxes(&[], &sandboxes, &known), ["old", "new"]);
}

// R8: the kubelet frees logs with containers, and of pods that are gone by their names alone.
#[test]
fn a_kubelet_is_left_all_but_what_is_gone() {
    let sandboxes = [
        sandbox("live", "live", 1, Ready),
        sandbox("old", "live", 0, NotReady),
        sandbox("over", "over", 1, NotReady),
        sandbox("before", "over", 0, NotReady),
        sandbox("gone", "gone", 0, NotReady),
    ];
    let all = [
        container("a", "live", 0, Exited),
        container("b", "live", 1, Exited),
        container("c", "over", 0, Exited),
        container("d", "over", 1, Exited),
        container("e", "gone", 0, Exited),
        container("f", "gone", 1, Exited),
    ];
    let known = KnownPods {
        has_kubelet: true,
        ..known(&["live", "over"])
    };
    assert_eq!(containers(&all, &sandboxes, &known), ["e", "f"]);
    assert_eq!(left_to_kubelet(&all, &sandboxes, &known), 2, "c and d");
    assert_eq!(super::sandboxes(&all[..2], &sandboxes, &known), ["gone"]);
    // As long as the API server has not answered all of them may be there.
    let unknown = KnownPods {
        uids: None,
        ..known
    };
    assert_eq!(containers(&all, &sandboxes, &unknown), [""; 0]);
    assert_eq!(left_to_kubelet(&all, &sandboxes, &unknown), 4);
    let has_kubelet = false;
    let alone = KnownPods {
        has_kubelet,
        ..known
    };
    assert_eq!(left_to_kubelet(&all, &sandboxes, &alone), 0);
}

// R8
#[test]
fn a_pod_that_cannot_be_told_from_one_that_lives_counts_as_one() {
    let all = [
        container("a", "s", 0, Exited),
        container("b", "s", 1, Exited),
    ];
    let of_one = [
        sandbox("s", "u", 0, NotReady),
        sandbox("t", "u", 1, NotReady),
    ];
    assert_eq!(containers(&all, &of_one, &NONE), ["a"]);
    assert_eq!(sandboxes(&[], &of_one, &NONE), ["s"]);
}

#[test]
fn what_has_not_ended_is_left_alone() {
    let sandboxes = [sandbox("s", "u", 0, NotReady)];
    for state in [Created, Running, Unknown] {
        let all = [
            container("c", "s", 0, state),
            container("d", "s", 1, Exited),
        ];
        assert_eq!(
            containers(&all, &sandboxes, &known(&[])),
            [""; 0],
            "{state:?}"
        );
    }
    // An older sandbox that is ready is odd, and not ours to end.
    let odd = [sandbox("s", "u", 0, Ready), sandbox("t", "u", 1, NotReady)];
    assert_eq!(super::sandboxes(&[], &odd, &known(&[])), [""; 0]);
}
