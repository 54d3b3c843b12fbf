//! Node-level reclaim against a scripted container runtime: what goes, in which order, and what happens when the runtime
//! does not do as it should (R8).

use evictd_config::CriConfig;
use evictd_cri::{
    CriError, CriEvent, CriWorker, Reclaimer, Request,
    messages::{
        Container, ContainerAttributes, ContainerMetadata, ContainerState, ContainerStats,
        FilesystemIdentifier, FilesystemUsage, Image, ImageFsInfoResponse, ImageSpec, Mount,
        PodSandbox, PodSandboxMetadata, SandboxState, UInt64Value,
    },
};
use evictd_engine::{
    FsUsage,
    NodeReclaim::{self, Containers, Images},
    node_reclaim::{KnownPods, Removed},
};
use evictd_tests::{
    prelude::*,
    runtime::{FAILED_PRECONDITION, Fault, Runtime, State, UNIMPLEMENTED, UNKNOWN},
};

const BOTH: [NodeReclaim; 2] = [Containers, Images];

/// A runtime in this state, and the configuration that leads to it.
struct Cri {
    config: CriConfig,
    runtime: Runtime,
    _dir: tempfile::TempDir,
}

fn config(dir: &Path) -> CriConfig {
    CriConfig {
        socket: dir.join("cri.sock"),
        request_timeout: Duration::from_secs(20),
        reclaim_timeout: Duration::from_secs(60),
        image_minimum_gc_age: Duration::ZERO,
    }
}

impl Cri {
    fn new(state: State) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        Self {
            runtime: Runtime::start(&config.socket, state).unwrap(),
            config,
            _dir: dir,
        }
    }

    fn calls(&self) -> Vec<String> {
        self.runtime.state().calls.clone()
    }
}

fn sandbox(id: &str, uid: &str, state: SandboxState) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        metadata: Some(PodSandboxMetadata {
            uid: uid.into(),
            ..PodSandboxMetadata::default()
        }),
        state: state.into(),
        created_at: 1,
    }
}

fn container(id: &str, sandbox: &str, image: &str, state: ContainerState, at: i64) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: sandbox.into(),
        metadata: Some(ContainerMetadata {
            name: "main".into(),
            attempt: u32::try_from(at).unwrap(),
        }),
        image_ref: image.into(),
        state: state.into(),
        created_at: at,
        ..Container::default()
    }
}

fn image(id: &str) -> Image {
    Image {
        id: id.into(),
        size: 100,
        ..Image::default()
    }
}

/// A pod that runs and has restarted twice, and one that is gone.
fn node() -> State {
    use ContainerState::{Exited, Running};
    State {
        sandboxes: vec![
            sandbox("s-live", "live", SandboxState::Ready),
            sandbox("s-gone", "gone", SandboxState::NotReady),
        ],
        containers: vec![
            container("live-2", "s-live", "i-live", Running, 30),
            container("live-1", "s-live", "i-old", Exited, 20),
            container("live-0", "s-live", "i-older", Exited, 10),
            container("gone-0", "s-gone", "i-gone", Exited, 5),
        ],
        images: ["i-live", "i-old", "i-older", "i-gone", "i-spare"]
            .map(image)
            .into(),
        ..State::default()
    }
}

fn known() -> KnownPods {
    KnownPods {
        uids: Some(["live".to_owned()].into()),
        has_kubelet: false,
    }
}

type Outcome = Result<Removed, (CriError, Removed)>;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = current_thread();
    runtime.unwrap().block_on(future)
}

fn reclaim(
    state: State,
    what: &[NodeReclaim],
    change: impl FnOnce(&mut CriConfig),
) -> (Outcome, Vec<String>) {
    let mut cri = Cri::new(state);
    change(&mut cri.config);
    let mut reclaimer = Reclaimer::new(cri.config.clone());
    let outcome = block_on(reclaimer.reclaim(what, &known()));
    (outcome, cri.calls())
}

// R8: containers before sandboxes before images; what a dead container that stays uses stays as well.
#[test]
fn the_dead_go_first_and_then_what_only_they_used() {
    let (outcome, calls) = reclaim(node(), &BOTH, |_| {});
    assert_eq!(
        calls,
        [
            "RemoveContainer gone-0",
            "RemoveContainer live-0",
            "StopPodSandbox s-gone",
            "RemovePodSandbox s-gone",
            "RemoveImage i-gone",
            "RemoveImage i-older",
            "RemoveImage i-spare",
        ]
    );
    let removed = outcome.unwrap();
    assert_eq!((removed.containers, removed.sandboxes), (2, 1));
    assert_eq!((removed.images, removed.image_bytes), (3, 300));
}

// R8, R3: with a split layout each disk is helped by one of both.
#[test]
fn each_disk_is_helped_by_what_lies_on_it() {
    let (_, calls) = reclaim(node(), &[Images], |_| {});
    assert_eq!(calls, ["RemoveImage i-spare"]);
    let (_, calls) = reclaim(node(), &[Containers], |_| {});
    assert_eq!(calls.len(), 4, "{calls:?}");
    let is_of_image = |call: &String| call.contains("Image");
    assert!(!calls.iter().any(is_of_image), "{calls:?}");
}

// R8
#[test]
fn images_that_are_used_in_other_ways_stay() {
    let mut state = node();
    let spec = |image: &str| {
        let image = image.into();
        Some(ImageSpec { image })
    };
    state.images = [
        "pinned",
        "volume",
        "pause",
        "asked-for",
        "id",
        "spare",
        "weights",
    ]
    .map(image)
    .into();
    state.images[0].pinned = true;
    state.images[1].repo_tags = vec!["registry/volume:1".into()];
    state.images[2].repo_tags = vec!["registry/pause:3.6".into()];
    let mounts = |name: &str| vec![Mount { image: spec(name) }];
    state
        .mounts
        .insert("live-2".into(), mounts("registry/volume:1"));
    // Between two runs of its pod.
    state.mounts.insert("live-1".into(), mounts("weights"));
    let config = r#"{"sandboxImage": "registry/pause:3.6"}"#;
    state.info.insert("config".into(), config.into());
    state.containers[0].image = spec("asked-for");
    state.containers[0].image_id = "id".into();
    let (_, calls) = reclaim(state, &[Images], |_| {});
    assert_eq!(calls, ["RemoveImage spare"]);
}

// R8: used by a container that has come between the list and the removal. The scripted runtime is slow enough for that:
// the first removal takes longer than a list counts as fresh.
#[test]
fn an_image_that_is_used_meanwhile_stays() {
    let mut state = node();
    state.images = ["a", "b", "c"].map(image).into();
    state.after("RemoveImage", |state| {
        let started = container("new", "s-live", "b", ContainerState::Running, 40);
        state.containers.push(started);
        std::thread::sleep(Duration::from_millis(1200));
    });
    let (_, calls) = reclaim(state, &[Images], |_| {});
    assert_eq!(calls, ["RemoveImage a", "RemoveImage c"]);
}

// R8: with a kubelet beside it only what is gone goes: the logs of the rest are freed by the kubelet alone.
#[test]
fn a_kubelet_is_left_the_containers_of_pods_that_it_knows() {
    let mut state = node();
    let over = sandbox("s-over", "over", SandboxState::NotReady);
    state.sandboxes.push(over);
    let ended = container("over-0", "s-over", "i-over", ContainerState::Exited, 7);
    state.containers.push(ended);
    state.images.push(image("i-over"));
    let known = KnownPods {
        uids: Some(["live", "over"].map(str::to_owned).into()),
        has_kubelet: true,
    };
    let cri = Cri::new(state);
    let mut reclaimer = Reclaimer::new(cri.config.clone());
    block_on(reclaimer.reclaim(&BOTH, &known)).unwrap();
    assert_eq!(
        cri.calls(),
        [
            "RemoveContainer gone-0",
            "StopPodSandbox s-gone",
            "RemovePodSandbox s-gone",
            "RemoveImage i-gone",
            "RemoveImage i-spare",
        ]
    );
}

#[test]
fn what_the_runtime_refuses_is_counted_and_the_rest_goes_on() {
    let mut state = node();
    let refused = Fault::Refused(FAILED_PRECONDITION);
    state.images.push(image("i-unused"));
    state.fails("RemoveImage i-spare", refused);
    state.fails("RemoveContainer live-0", refused);
    // NOT_FOUND: the kubelet was faster, and there is nothing to complain of.
    state.fails("RemoveContainer gone-0", Fault::Refused(5));
    let (outcome, calls) = reclaim(state, &BOTH, |_| {});
    let removed = outcome.unwrap();
    let counted = [removed.containers, removed.refused, removed.images];
    assert_eq!(counted, [0, 2, 1]);
    let refusal = removed.refusal.expect("a refusal");
    assert!(refusal.contains("RemoveImage"), "{refusal}");
    assert_eq!(calls[2..], ["RemoveImage i-spare", "RemoveImage i-unused"]);
}

/// One that is in trouble keeps no image of others: whether it is refused or not answered.
// R8
#[test]
fn a_container_of_which_nothing_is_told_is_counted_and_the_rest_goes_on() {
    for fault in [Fault::Refused(UNKNOWN), Fault::Hangs] {
        let mut state = node();
        state.fails("ContainerStatus live-2", fault);
        let (outcome, calls) = reclaim(state, &[Images], |config| {
            config.request_timeout = Duration::from_secs(2);
        });
        let removed = outcome.unwrap();
        assert_eq!(calls, ["RemoveImage i-spare"]);
        assert_eq!((removed.images, removed.refused), (1, 1));
        begins(&removed.refusal.expect("a refusal"), "ContainerStatus");
    }
}

// R8: once for each container, several at a time.
#[test]
fn many_containers_are_asked_about_at_once() {
    let mut state = node();
    for n in 0..40 {
        let id = format!("c{n}");
        let more = container(&id, "s-live", "i-live", ContainerState::Running, n);
        state.containers.push(more);
    }
    let delay = Duration::from_millis(100);
    state.delays.insert("ContainerStatus".into(), delay);
    let cri = Cri::new(state);
    let mut reclaimer = Reclaimer::new(cri.config.clone());
    let began = Instant::now();
    block_on(reclaimer.look()).unwrap();
    let first = began.elapsed();
    assert!(first >= delay && first < 20 * delay, "{first:?}");
    let asked = || cri.runtime.state().statuses;
    let before = asked();
    assert!(before >= 40, "{before}");
    block_on(reclaimer.look()).unwrap();
    assert_eq!(asked(), before, "they are known");
}

// R8: the look that takes place from time to time.
#[test]
fn a_look_holds_up_no_reclaim() {
    let mut state = node();
    state.fails("ListImages", Fault::Hangs);
    let cri = Cri::new(state);
    let told = block_on(told_by_a_worker(cri.config.clone()));
    let [CriEvent::Layers { .. }, CriEvent::Reclaimed(Some(removed))] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(removed.containers, 2);
    assert!(!cri.calls().is_empty());
}

/// What a worker tells until the end of a reclaim of containers that is asked for at its first look.
async fn told_by_a_worker(config: CriConfig) -> Vec<CriEvent> {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = CriWorker::start(config, move |what| tell.send(what).unwrap());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let what = vec![Containers];
    let known = known();
    assert!(worker.ask(Request { what, known }));
    let mut all = Vec::new();
    while !matches!(all.last(), Some(CriEvent::Reclaimed(_))) {
        let next = tokio::time::timeout(Duration::from_secs(5), told.recv());
        all.push(next.await.expect("it waits for the look").unwrap());
    }
    all
}

fn stats(id: &str, uid: &str, name: &str, used: Option<u64>) -> ContainerStats {
    let value = |value| Some(UInt64Value { value });
    ContainerStats {
        attributes: Some(ContainerAttributes {
            id: id.into(),
            metadata: Some(ContainerMetadata {
                name: name.into(),
                attempt: 0,
            }),
            labels: [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into(),
        }),
        writable_layer: Some(FilesystemUsage {
            used_bytes: used.and_then(value),
            inodes_used: value(3),
            ..FilesystemUsage::default()
        }),
    }
}

// R10: what cannot be walked the runtime tells: at a look, and before it is decided which pod goes after a reclaim.
#[test]
fn the_runtime_tells_of_writable_layers_and_of_its_disks() {
    let mut state = node();
    state.stats = vec![
        // Its own root, and it has ended; so has the run before.
        stats("init", "live", "init", Some(3 << 30)),
        stats("live-1", "live", "main", Some(5 << 20)),
        stats("live-2", "live", "main", Some(7 << 20)),
        stats("live-2", "live", "unknown", None),
        stats("gone-0", "other", "main", Some(1)),
    ];
    let at = |mountpoint: &str| FilesystemUsage {
        fs_id: Some(FilesystemIdentifier {
            mountpoint: mountpoint.into(),
        }),
        ..FilesystemUsage::default()
    };
    state.disks = Some(ImageFsInfoResponse {
        image_filesystems: vec![at("/images"), at("/more")],
        container_filesystems: vec![at("/layers")],
    });
    let cri = Cri::new(state);
    let told = block_on(told_by_a_worker(cri.config.clone()));
    let [
        CriEvent::Layers { layers: first, .. },
        CriEvent::Disks(disks),
        CriEvent::Layers { layers: second, .. },
        CriEvent::Reclaimed(_),
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!(first, second);
    let used = FsUsage {
        bytes: Some(7 << 20),
        inodes: Some(3),
    };
    assert_eq!(first["live"].layers, [("main".to_owned(), used)]);
    assert!(!first["live"].have_ended && first["other"].have_ended);
    assert_eq!(first["other"].layers.len(), 1);
    let paths = ["/images", "/layers"].map(|path| Some(path.into()));
    assert_eq!([disks.images.clone(), disks.containers.clone()], paths);
}

#[test]
fn a_socket_without_a_server_is_named_with_its_path() {
    let (outcome, _) = reclaim(node(), &BOTH, |config| {
        config.socket = "/nowhere/cri.sock".into()
    });
    let (error, removed) = outcome.unwrap_err();
    assert_eq!(removed, Removed::default());
    let text = error.to_string();
    begins(&text, "/nowhere/cri.sock: ");
    assert!(text.contains("No such file"), "{text}");
}

#[test]
fn a_socket_of_something_else_is_no_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let listener = std::os::unix::net::UnixListener::bind(&config.socket).unwrap();
    let other = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for _ in 0..2 {
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            let _ = stream.read(&mut [0; 16]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (error, _) = block_on(Reclaimer::new(config).reclaim(&BOTH, &known())).unwrap_err();
    use CriError::{Refused, Unreachable};
    let is_named = matches!(error, Unreachable { .. } | Refused { .. });
    assert!(is_named, "{error}");
    drop(other);
}

#[test]
fn a_runtime_that_lacks_a_call_ends_the_reclaim() {
    let mut state = node();
    state.fails("ListPodSandbox", Fault::Refused(UNIMPLEMENTED));
    let (outcome, calls) = reclaim(state, &BOTH, |_| {});
    let (error, _) = outcome.unwrap_err();
    let error = error.to_string();
    begins(&error, "ListPodSandbox: Unimplemented");
    assert!(calls.is_empty());
}

#[test]
fn a_runtime_that_hangs_does_not_hold_evictions_for_ever() {
    let mut state = node();
    state.fails("RemoveImage i-gone", Fault::Hangs);
    let (outcome, calls) = reclaim(state, &BOTH, |config| {
        config.request_timeout = Duration::from_millis(500);
    });
    // It has told what there is: it may be at work on a large image.
    let removed = outcome.unwrap();
    assert!(removed.is_cut_short);
    assert_eq!((removed.containers, removed.images), (2, 0));
    assert_eq!(calls.last().unwrap(), "RemoveImage i-gone");
}

#[test]
fn what_does_not_fit_into_the_time_is_left() {
    let mut state = node();
    let long = Duration::from_millis(2500);
    state.after("RemoveContainer", move |_| std::thread::sleep(long));
    let (outcome, calls) = reclaim(state, &BOTH, |config| {
        config.reclaim_timeout = Duration::from_secs(2);
    });
    let removed = match outcome {
        Ok(removed) | Err((CriError::Late { .. }, removed)) => removed,
        Err((error, _)) => panic!("{error}"),
    };
    assert!(
        calls.len() <= 1 && removed.images == 0,
        "{calls:?} {removed:?}"
    );
}

// R8: younger than the kubelet's imageMinimumGCAge. What was there at the first look has no known age.
#[test]
fn an_image_that_has_just_come_stays() {
    let cri = Cri::new(node());
    let mut config = cri.config.clone();
    config.image_minimum_gc_age = Duration::from_secs(3600);
    let mut reclaimer = Reclaimer::new(config);
    block_on(reclaimer.look()).unwrap();
    cri.runtime.state().images.push(image("i-just-pulled"));
    let removed = block_on(reclaimer.reclaim(&[Images], &known())).unwrap();
    assert_eq!(removed.images, 1);
    assert_eq!(cri.calls(), ["RemoveImage i-spare"]);
}
