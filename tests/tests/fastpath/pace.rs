//! Not one pod too many: scenes in which the running daemon evicts no pod, or one pod and then waits.

use std::{
    ffi::CString,
    fs::Permissions,
    io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, process::ExitStatusExt as _},
    sync::Mutex,
};

use evictd_node::{cgroup::memory::Version, proc::machine::has_mglru};
use evictd_store::record::oom_kill::OomCause;
use evictd_sys::mutex::locked;
use evictd_tests::{
    cgroup::begin_in,
    held_in_exit::HeldInExit,
    node::{machine, mem_available},
    prelude::*,
};

use crate::machine::{follow_the_machine, left_of_machine};
use crate::scene::{
    EACH, LONG, Limited, MOMENT, NEIGHBOURS, Scene, alive, no_room, one_goes, pace_inputs, pod_dir,
};

/// A pod that uses page cache for some seconds takes nothing from its neighbours that the kernel could not give back: no pod goes at
/// once. A hog beside it is evicted all the same.
fn only_the_hog_dies(way: &str) {
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new(&format!("pace-{way}"), 512, limited);
        let _agent = scene.files.start(&[]);
        // More than the pods may have together, where that is not all at once.
        let (mib, size) = match way {
            "write" => ("1500", "1500"),
            "files" => ("150", "0"),
            _ => ("4000", "450"),
        };
        let mut worker = scene.start("worker", &["--way", way, "--mib", mib, "--size", size]);
        let is_done = worker.says("done").unwrap();
        assert!(is_done, "{limited:?}: {}", pace_inputs(&scene.files));

        // What a slow disk still has to write would make the hog urgent before it is the largest consumer.
        scene.disk.sync().unwrap();
        // Anonymous memory beside the page cache, which has taken no pod so far.
        scene.grows_and_goes("hog", "4000", "200");
        scene.evicts_only(&["hog"]);
        assert!(worker.is_alive());
    }
}

scenes! {
    // R2, R40
    fn writers_kill_no_pod_at_once() unless no_room() => only_the_hog_dies("write");
    fn readers_kill_no_pod_at_once() unless no_room() => only_the_hog_dies("read");
    fn mappers_kill_no_pod_at_once() unless no_room() => only_the_hog_dies("map");
    fn makers_of_many_files_kill_no_pod_at_once() unless no_room() => only_the_hog_dies("files");
}

/// The growth of a pod that has just started has ended when another one fills the scope with page cache that has to be written first.
// R40, R43
#[test]
fn a_writer_beside_a_pod_that_has_just_started_kills_no_pod() {
    skip_if!(no_room());
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new("pace-started", 512, limited);
        let _agent = scene.files.start(&[]);
        let started = scene.start("hog", &["--mib", "80"]);
        scene.pods_hold(80 + EACH * NEIGHBOURS.len() as u64);
        scene.neighbours.push(started);
        std::thread::sleep(Duration::from_secs(1));
        let write = ["--way", "write", "--mib", "2500", "--size", "1500"];
        let mut worker = scene.start("worker", &write);
        assert!(
            worker.says("done").unwrap(),
            "{}",
            pace_inputs(&scene.files)
        );
        assert_eq!(scene.evicted(), [""; 0], "{}", pace_inputs(&scene.files));
        assert_eq!(alive(&mut scene.neighbours), NEIGHBOURS.len() + 1);
    }
}

/// A pod that starts at full speed ends its growth above the threshold. What another one writes to its logs meanwhile is
/// page cache that has to be written first, and next to nothing.
// R40, R43
#[test]
fn a_start_at_full_speed_beside_a_few_logs_kills_no_pod() {
    skip_if!(no_room());
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new("pace-logs", 512, limited);
        let _agent = scene.files.start(&[]);
        let logs = ["--way", "write", "--mib", "1000", "--rate", "4"];
        let mut worker = scene.start("worker", &logs);
        scene.pods_hold(2 + EACH * NEIGHBOURS.len() as u64);
        let mut started = scene.start("hog", &["--mib", "240"]);
        scene.pods_hold(240 + EACH * NEIGHBOURS.len() as u64);
        std::thread::sleep(MOMENT);
        scene.evicts_only(&[]);
        assert!(started.is_alive() && worker.is_alive());
    }
}

/// A pod has left page cache that is not written yet, or goes on writing. One that starts at full speed beside it, and ends
/// its growth with more than the threshold left by the kubelet's count, takes none with it.
fn a_start_beside_dirty_cache_kills_no_pod(goes_on: bool) {
    skip_if!(has_mglru(Path::new("/sys")).then_some("what grows does not wait for the writeback"));
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new("pace-dirty", 512, limited);
        let _agent = scene.files.start(&[]);
        let mib = if goes_on { "1000" } else { "300" };
        let mut worker = scene.start("worker", &["--way", "write", "--mib", mib, "--size", mib]);
        let mut is_done = || assert!(worker.says("done").unwrap());
        match goes_on {
            true => scene.pods_hold(480),
            false => is_done(),
        }
        // It is as good as its neighbours in the order of eviction.
        let mut started = scene.start("three", &["--mib", "60"]);
        match goes_on {
            true => is_done(),
            false => scene.pods_hold(300 + 55 + EACH * NEIGHBOURS.len() as u64),
        }
        std::thread::sleep(MOMENT);
        scene.evicts_only(&[]);
        assert!(started.is_alive() && worker.is_alive(), "{limited:?}");
        // One that does not end its growth.
        scene.grows_and_goes("hog", "4000", "200");
        scene.evicts_only(&["hog"]);
    }
}

scenes! {
    // R40, R43
    fn a_start_beside_what_a_pod_has_written_kills_no_pod() unless no_room() => a_start_beside_dirty_cache_kills_no_pod(false);
    // R40, R43
    fn a_start_beside_a_pod_that_writes_kills_no_pod() unless no_room() => a_start_beside_dirty_cache_kills_no_pod(true);
}

/// On the machine: page cache brings the kubelet's count below the threshold for some seconds, or files are in the kernel's slab, which
/// that leaves out, and memory is not short. A hog beside it goes all the same.
fn only_the_hog_of_the_machine_dies(way: &str, mib: &str) {
    // One at a time: what the hog of another one gives back would be as much as this one's takes.
    static MACHINE: Mutex<()> = Mutex::new(());
    let _alone = locked(&MACHINE);
    let mut scene = Scene::new(&format!("pace-machine-{way}"), 13_000, Limited::Node);
    // Other programs of the machine take and give back memory meanwhile.
    let threshold = left_of_machine().min(mem_available()) - 1500 * MIB;
    follow_the_machine(&mut scene.files, scene.scope.path(), threshold);
    let _agent = scene.files.start(&[]);
    let mut worker = scene.start("worker", &["--way", way, "--mib", mib, "--size", "2300"]);
    assert!(worker.says("done").unwrap());
    std::thread::sleep(MOMENT);
    assert_eq!(scene.evicted(), [""; 0]);
    scene.disk.sync().unwrap();
    // More than what guests give back that end meanwhile.
    scene.grows_and_goes("hog", "12000", "600");
    scene.evicts_only(&["hog"]);
}

scenes! {
    // R2, R40
    fn readers_on_the_machine_kill_no_pod_at_once() unless no_room() => only_the_hog_of_the_machine_dies("read", "9000");
    fn writers_on_the_machine_kill_no_pod_at_once() unless no_room() => only_the_hog_of_the_machine_dies("write", "2300");
    fn mappers_on_the_machine_kill_no_pod_at_once() unless no_room() => only_the_hog_of_the_machine_dies("map", "4600");
    fn makers_of_many_files_on_the_machine_kill_no_pod_at_once() unless no_room() => only_the_hog_of_the_machine_dies("files", "190");
}

/// What `evictd check` says of thresholds that are met before the configuration is in force, which no agent follows yet.
fn met_already(files: &Files) -> Option<String> {
    let config = files.dir().join("candidate.json");
    fs::write(&config, files.config.to_string()).unwrap();
    let found = agent::finding(&[("--config", &config)], "thresholds now");
    let detail = found["detail"].as_str().unwrap();
    detail.contains("met already").then(|| detail.to_owned())
}

/// Nothing grows, and the threshold is a mistake: one pod at the kubelet's pace, and time to see. The machine is busy, so that the
/// pod dies slowly.
// R42
#[test]
fn a_threshold_that_is_raised_by_mistake_takes_one_pod() {
    skip_if!(no_room());
    let mut scene = Scene::new("pace-raised", 512, Limited::Node);
    let others = TestCgroup::new("pace-busy", 512 * MIB).unwrap();
    let busy = others.child("busy").unwrap();
    let churn = ["--mib", "30", "--way", "churn"];
    let _agent = scene.files.start(&[]);
    assert_eq!(met_already(&scene.files), None);
    scene.files.config["evictionHard"] = json!({ "memory.available": "450Mi" });
    let told = met_already(&scene.files).expect("it is told beforehand");
    assert!(told.contains("memory.available<450Mi"), "{told}");
    let written = monotonic_ns();
    scene.files.write().unwrap();
    let busy = [(); 8].map(|()| Hog::start(&busy, &churn).unwrap());
    one_goes(&scene.files);
    std::thread::sleep(MOMENT);
    drop(busy);
    let records = scene.files.records();
    let met = records_of!(records, Record::MetInForce(met) if met.threshold == 450 * MIB => met);
    assert_eq!(met.len(), 1, "{met:?}");
    let first = scene.files.evictions().remove(0);
    assert!(!first.pace.unwrap().urgent, "{}", pace_inputs(&scene.files));
    // The record that it is met is made a moment after the look that has found it.
    let [went, met] = [&first.time, &met[0].time].map(|t| t.parse::<jiff::Timestamp>().unwrap());
    assert!((went - met).total(jiff::Unit::Second).unwrap() > 9.0);
    // The next one is due ten seconds after the first.
    assert!(until(LONG, || scene.evicted().len() > 1));
    let evictions = scene.files.evictions();
    let at = [0, 1].map(|number: usize| evictions[number].stages.signalled);
    let ten_seconds = 10_000_000_000;
    assert!(
        at[0] - written >= ten_seconds && at[1] - at[0] >= ten_seconds,
        "{written} {at:?} {}",
        pace_inputs(&scene.files)
    );
}

/// A threshold of the machine that is raised by mistake. The CPUs keep what a victim frees in lists of their own for a while, where `MemAvailable` does not count it:
/// others have not grown by that.
// R42
#[test]
fn a_threshold_of_the_machine_that_is_raised_by_mistake_takes_one_pod() {
    // Other programs use the machine's memory.
    skip_if!(not_in_guest());
    let scope = TestCgroup::new("pace-lists", machine().unwrap().1).unwrap();
    let names: Vec<String> = (0..6).map(|number| format!("small-{number}")).collect();
    let pods: Vec<Value> = names
        .iter()
        .map(|name| json!({ "name": name, "cgroup": name }))
        .collect();
    let mut files = Files::new(scope.path(), &json!(pods));
    let start = |name: &str, mib: u64| {
        let hog = Hog::start(&scope.child(name).unwrap(), &["--mib", &mib.to_string()]).unwrap();
        let cgroup = MemoryCgroup::open(&scope.path().join(name)).unwrap();
        assert!(until(LONG, || cgroup.usage().unwrap() > mib * MIB));
        hog
    };
    let _pods: Vec<Hog> = names.iter().map(|name| start(name, 40)).collect();
    let _daemon = start("system", mem_available() / MIB - 250);
    follow_the_machine(&mut files, scope.path(), left_of_machine() + 100 * MIB);
    let _agent = files.start(&[]);
    one_goes(&files);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(files.evicted().len(), 1, "{}", pace_inputs(&files));
}

/// A setting of the kernel, until the end of the test.
struct Setting(&'static str, String);

impl Setting {
    fn set(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self(path, before)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.0, &self.1);
    }
}

/// A fifth of the machine lies between the min watermark and the high one: `MemAvailable` is 0, and the OOM killer far.
// R40
#[test]
fn a_growth_into_raised_watermarks_takes_no_pod() {
    // The setting is the machine's.
    skip_if!(not_in_guest().or_else(no_room));
    let total = machine().unwrap().1;
    let scope = TestCgroup::new("pace-watermarks", total).unwrap();
    let pods =
        json!([{ "name": "calm", "cgroup": "calm" }, { "name": "grows", "cgroup": "grows" }]);
    let mut files = Files::new(scope.path(), &pods);
    let start = |name: &str, arguments: &[&str]| {
        Hog::start(&scope.child(name).unwrap(), arguments).unwrap()
    };
    let mut calm = start("calm", &["--mib", "40"]);
    scope.child("grows").unwrap();
    follow_the_machine(&mut files, scope.path(), 100 * MIB);
    let left = mem_available();
    let _raised = Setting::set("/proc/sys/vm/watermark_scale_factor", "1000");
    let _agent = files.start(&[]);
    let mib = ((left - total / 8) / MIB).to_string();
    let mut grows = start("grows", &["--mib", &mib, "--rate", "800"]);
    assert!(until(LONG, || mem_available() < 10 * MIB));
    std::thread::sleep(MOMENT);
    assert!(calm.is_alive() && grows.is_alive());
    assert_eq!(files.evicted(), [""; 0], "{}", pace_inputs(&files));
}

/// What a memory-backed volume holds comes back when the kubelet unmounts it, some time after the pod's end.
// R11, R43
#[test]
fn a_memory_backed_volume_takes_its_own_pod_alone() {
    skip_if!(no_room());
    let mut scene = Scene::new("pace-tmpfs", 512, Limited::Node);
    scene.files.config["evictionMinimumReclaim"] = json!({ "memory.available": "200Mi" });
    let _agent = scene.files.start(&[]);
    let volume = tempfile::tempdir_in("/dev/shm").unwrap();
    // A file with a name: it outlives the process that fills it.
    let file = volume.path().join("data");
    let mut worker = Command::new("dd");
    worker
        .args(["if=/dev/zero", "bs=256k"])
        .arg(format!("of={}", file.display()));
    begin_in(&scene.container("worker"), &mut worker).unwrap();
    assert_eq!(worker.status().unwrap().signal(), Some(libc::SIGKILL));
    // The kubelet unmounts it after three seconds.
    std::thread::sleep(Duration::from_secs(3));
    fs::remove_file(&file).unwrap();
    std::thread::sleep(MOMENT);
    scene.evicts_only(&["worker"]);
}

/// What a pod has left in a tmpfs of the host outlives its cgroup, charged to the one above. That is no growth of others.
// R40, R43
#[test]
fn shared_memory_that_outlives_the_cgroup_takes_no_neighbour() {
    skip_if!(no_room());
    let mut scene = Scene::new("pace-outlives", 512, Limited::Node);
    let host = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = host.path().join("data");
    let fills = format!(
        "dd if=/dev/zero of={} bs=1M count=330; sleep 1000",
        file.display()
    );
    let mut worker = Command::new("sh");
    worker.args(["-c", &fills]);
    let container = scene.container("worker");
    begin_in(&container, &mut worker).unwrap();
    let mut worker = worker.spawn().unwrap();
    scene.pods_hold(330 + EACH * NEIGHBOURS.len() as u64);
    let _agent = scene.files.start(&[]);
    assert_eq!(worker.wait().unwrap().signal(), Some(libc::SIGKILL));
    // The threshold stays met. The kubelet removes the cgroup.
    std::thread::sleep(MOMENT / 4);
    for cgroup in [&*container, container.parent().unwrap()] {
        assert!(until(MOMENT, || fs::remove_dir(cgroup).is_ok()));
    }
    // What looked like a growth would take them within milliseconds.
    std::thread::sleep(MOMENT);
    scene.evicts_only(&["worker"]);
}

/// Where memory is swapped out to; what stays in memory is compressed.
#[derive(PartialEq, Eq)]
enum Place {
    Disk,
    Zram,
    Zswap,
}

/// A swap file or device, in use until it is dropped.
struct Swap(CString);

impl Swap {
    fn in_file(path: &Path, mib: usize) -> io::Result<Self> {
        fs::write(path, vec![0; mib << 20])?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Self::on(path)
    }

    fn in_zram(mib: usize) -> io::Result<Self> {
        Command::new("modprobe").arg("zram").status()?;
        fs::write("/sys/block/zram0/disksize", (mib << 20).to_string())?;
        Self::on(Path::new("/dev/zram0"))
    }

    fn on(path: &Path) -> io::Result<Self> {
        let made = Command::new("busybox").arg("mkswap").arg(path).output()?;
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the path is a string that lives here.
        match made.status.success() && unsafe { libc::swapon(path.as_ptr(), 0) } == 0 {
            true => Ok(Self(path)),
            false => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: as above. A swap file that stays goes with the guest.
        unsafe { libc::swapoff(self.0.as_ptr()) };
    }
}

/// A pod grows on a machine with swap, of which the pods may use as much.
fn grows_beside_swap(place: Place, for_pods: &str, rate: &str, urgent: bool) {
    // Swap is the machine's.
    skip_if!(not_in_guest());
    let mut scene = Scene::new("pace-swap", 512, Limited::Node);
    skip_if!(
        (scene.scope.version() == Version::V1).then_some("cgroup v1 has no swap accounting here")
    );
    // A cgroup of tests has none.
    fs::write(scene.scope.path().join("memory.swap.max"), "max").unwrap();
    for pod in NEIGHBOURS.iter().chain(&["worker", "hog"]) {
        fs::write(scene.container(pod).join("memory.swap.max"), for_pods).unwrap();
    }
    let zswap = "/sys/module/zswap/parameters/enabled";
    let is_missing = place == Place::Zswap && !Path::new(zswap).exists();
    skip_if!(is_missing.then_some("this kernel has no zswap"));
    let _on = (place == Place::Zswap).then(|| Setting::set(zswap, "Y"));
    let swap = match place {
        Place::Zram => Swap::in_zram(1024),
        _ => Swap::in_file(&scene.disk.path().join("swap"), 1024),
    };
    let swap = swap.unwrap();
    let agent = scene.files.start(&[]);
    scene.grows_and_goes("worker", "1000", rate);
    scene.evicts_only(&["worker"]);
    let pace = scene.files.evictions().remove(0).pace.unwrap();
    assert_eq!(pace.urgent, urgent);
    drop((agent, scene.neighbours, swap));
}

scenes! {
    /// What grows is swapped out, and the node lives: no pod goes at machine speed, and one at the kubelet's pace.
    // R23
    fn a_growth_that_swap_takes_in_is_not_urgent() unless no_room() => grows_beside_swap(Place::Disk, "max", "10", false);
    /// The machine has swap, and no pod may use it, as with the kubelet's default `NoSwap`.
    // R23
    fn swap_that_no_pod_may_use_is_no_room() unless no_room() => grows_beside_swap(Place::Disk, "0", "40", true);
    /// Half of it is headroom, which is used up before the kubelet looks. Swap of that size on a disk is not.
    // R23
    fn swap_that_stays_in_memory_is_half_the_room() unless no_room() => grows_beside_swap(Place::Zram, "max", "48", true);
    // R23
    fn swap_that_stays_in_memory_before_a_disk_is_half_the_room() unless no_room() => grows_beside_swap(Place::Zswap, "max", "48", true);
}

/// The page cache that another pod uses all the while, or the files that it makes, neither hide a hog nor take that pod.
fn a_hog_beside_goes_alone(way: &str, mib: &str, size: &str, rate: &str) {
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new(&format!("pace-beside-{way}"), 512, limited);
        let _agent = scene.files.start(&[]);
        // Its work lasts longer than the hog.
        let works = ["--way", way, "--mib", mib, "--size", size, "--rate", rate];
        let mut worker = scene.start("worker", &works);
        scene.pods_hold(480);
        scene.grows_and_goes("hog", "4000", "200");
        std::thread::sleep(MOMENT);
        scene.evicts_only(&["hog"]);
        assert!(worker.is_alive());
    }
}

scenes! {
    // R40
    fn a_hog_beside_a_pod_that_writes_goes_alone() unless no_room() => a_hog_beside_goes_alone("write", "100000", "1500", "0");
    fn a_hog_beside_a_pod_that_reads_goes_alone() unless no_room() => a_hog_beside_goes_alone("read", "1000000", "450", "0");
    fn a_hog_beside_a_pod_that_maps_goes_alone() unless no_room() => a_hog_beside_goes_alone("map", "1000000", "450", "0");
    fn a_hog_beside_a_maker_of_many_files_goes_alone() unless no_room() => a_hog_beside_goes_alone("files", "190", "0", "20");
}

/// A victim that cannot die is said once, is not evicted again, and is not in the way of the next one.
// R43
#[test]
fn a_victim_that_does_not_die_is_stuck_and_the_next_one_goes() {
    skip_if!(no_room());
    let scene = Scene::new("pace-stuck", 512, Limited::Node);
    let _agent = scene.files.start(&[]);
    // First in the order. What is mapped process_mrelease would give back.
    let in_memory = ["--way", "tmpfs", "--mib", "240"];
    let mut held = Hog::start(&scene.container("hog"), &in_memory).unwrap();
    let memory = MemoryCgroup::open(&scene.scope.path().join(pod_dir("hog"))).unwrap();
    assert!(until(LONG, || memory.usage().unwrap() > 235 * MIB));
    let in_exit = HeldInExit::hold(held.pid()).unwrap();
    // The next one grows beside it.
    scene
        .start("worker", &["--mib", "400", "--rate", "40"])
        .killed();
    let is_stuck = |record: &Record| matches!(record, Record::Stuck(s) if s.name == "hog");
    let stuck = || scene.files.records().iter().filter(|r| is_stuck(r)).count();
    assert!(until(LONG, || stuck() > 0 && scene.evicted().len() > 1));
    std::thread::sleep(MOMENT);
    let (evicted, stuck) = (scene.evicted(), stuck());
    let kills = memory.oom_kills().unwrap();
    drop(in_exit);
    held.killed();
    assert_eq!(evicted, ["hog", "worker"]);
    assert_eq!((stuck, kills), (1, 0));
}

/// Pods of a lower priority come first, of so many MiB `each`. The first of them goes; those that may follow have not enough between
/// them to last until the kubelet looks again, and the hogs would have to go all the same.
fn hogs_take_one_pod_with_them(hogs: usize, rate: &str, each: u64, node_rate: Option<Value>) {
    let names = |of, count| Vec::from_iter((0..count).map(|number| format!("{of}-{number:02}")));
    let (small, hogs) = (names("small", 12), names("hog", hogs));
    let pod = |name: &String| json!({ "name": name, "cgroup": name });
    let mut pods: Vec<Value> = small.iter().chain(&hogs).map(pod).collect();
    for hog in &mut pods[small.len()..] {
        hog["priority"] = json!(100);
    }
    let mut files = Files::of("pace-priority", 512, &json!(pods));
    files.config["evictionHard"] = json!({ "memory.available": "100Mi" });
    if let Some(rate) = node_rate {
        files.config["evictionRates"] = json!({ "node": rate });
    }
    let uses = ["--mib", &each.to_string()];
    let mut small = Vec::from_iter(small.iter().map(|name| files.hog(name, &uses)));
    let scope = files.scope();
    assert!(until(LONG, || scope.usage().unwrap() > 12 * each * MIB));
    let _agent = files.start(&[]);
    let grows = ["--mib", "4000", "--rate", rate];
    let running = Vec::from_iter(hogs.iter().map(|name| files.hog(name, &grows)));
    // The last of many would take long.
    let is_reported = || {
        let evicted = files.evicted();
        let gone = evicted.iter().filter(|pod| hogs.contains(pod));
        gone.count() >= hogs.len().min(10)
    };
    assert!(until(LONG, is_reported));
    drop(running);
    std::thread::sleep(MOMENT);
    let evicted = files.evicted();
    assert!(evicted.len() <= hogs.len() + 1, "{evicted:?}");
    assert!(alive(&mut small) >= 11, "{evicted:?}");
    assert_eq!(scope.oom_kills().unwrap(), 0);
}

scenes! {
    fn a_hog_of_a_high_priority_takes_one_pod_with_it() unless not_root() => hogs_take_one_pod_with_them(1, "300", 6, None);
    /// None of them has half of the growth.
    fn three_hogs_of_a_high_priority_take_one_pod_with_them() unless not_root() => hogs_take_one_pod_with_them(3, "100", 6, None);
    /// Replicas of one Deployment: many of them have to be known before they make half of the growth.
    fn many_hogs_of_a_high_priority_take_one_pod_with_them() unless not_root() => hogs_take_one_pod_with_them(18, "30", 6, None);
    // R11, R38
    fn an_eviction_rate_does_not_hold_back_many_hogs() unless not_root() => hogs_take_one_pod_with_them(
        24, "20", 6, Some(json!({ "evictions": 2, "period": "5m", "exemptGrowers": true })));
    /// All of them could carry the growth, and the eviction rate allows two more: one is kept for the hog.
    fn an_eviction_rate_is_not_used_up_before_the_hog() unless not_root() => hogs_take_one_pod_with_them(
        1, "20", 20, Some(json!({ "evictions": 3, "period": "5m" })));
    /// The first hog uses up the rate, which holds back all pods but the other two.
    // R11, R38
    fn an_eviction_rate_does_not_hold_back_the_hogs() unless not_root() => hogs_take_one_pod_with_them(
        3, "100", 6, Some(json!({ "evictions": 1, "period": "5m", "exemptGrowers": true })));
}

/// A critical pod has loaded its data within a moment and serves now: the growth is of others.
// R38, R43
#[test]
fn a_pod_that_has_just_loaded_its_data_does_not_go_in_the_place_of_hogs() {
    skip_if!(not_root());
    let hogs = ["hog-0", "hog-1", "hog-2", "hog-3"];
    let pods = [("small", 0), ("other", 0), ("loaded", 1000)];
    let pods = pods.into_iter().chain(hogs.map(|name| (name, 100)));
    let pod = |(name, priority)| json!({ "name": name, "cgroup": name, "priority": priority });
    let pods = Vec::from_iter(pods.map(pod));
    let mut files = Files::of("pace-loaded", 512, &json!(pods));
    files.config["evictionHard"] = json!({ "memory.available": "100Mi" });
    let _small = ["small", "other"].map(|name| files.hog(name, &["--mib", "6"]));
    let _serves = files.hog("loaded", &["--way", "churn", "--mib", "3"]);
    let _agent = files.start(&[]);
    let mut loaded = files.hog("loaded", &["--mib", "240", "--rate", "400"]);
    let scope = files.scope();
    assert!(until(LONG, || scope.usage().unwrap() > 250 * MIB));
    std::thread::sleep(Duration::from_millis(500));
    let grows = ["--mib", "4000", "--rate", "25"];
    let _running = hogs.map(|name| files.hog(name, &grows));
    let are_gone = || {
        hogs.iter()
            .all(|hog| files.evicted().iter().any(|pod| pod == hog))
    };
    assert!(until(LONG, are_gone), "{:?}", files.evicted());
    assert!(loaded.is_alive(), "{:?}", files.evicted());
    assert_eq!(scope.oom_kills().unwrap(), 0);
}

/// A pod that takes buffers and gives them back grows faster than a hog for some milliseconds.
// R38, R43
#[test]
fn a_pod_that_takes_buffers_does_not_go_in_the_place_of_a_hog() {
    skip_if!(not_root());
    let pod = |(name, priority)| json!({ "name": name, "cgroup": name, "priority": priority });
    let pods = [("small", 0), ("hog", 100), ("next", 100), ("busy", 1000)].map(pod);
    let mut files = Files::of("pace-buffers", 512, &json!(pods));
    files.config["evictionHard"] = json!({ "memory.available": "100Mi" });
    // The first hog uses up the rate.
    let rate = json!({ "evictions": 1, "period": "5m", "exemptGrowers": true });
    files.config["evictionRates"] = json!({ "node": rate });
    let _small = files.hog("small", &["--mib", "6"]);
    let _agent = files.start(&[]);
    let mut busy = files.hog("busy", &["--way", "churn", "--mib", "12"]);
    for hog in ["hog", "next"] {
        let grows = ["--mib", "4000", "--rate", "100"];
        files.hog(hog, &grows).killed();
    }
    // The first pod in the order may go before them.
    let evicted = || {
        let evicted = files.evicted().into_iter();
        evicted.filter(|pod| pod != "small").collect::<Vec<_>>()
    };
    assert!(until(LONG, || evicted().len() > 1));
    std::thread::sleep(MOMENT);
    assert_eq!(evicted(), ["hog", "next"]);
    assert!(busy.is_alive());
    assert_eq!(files.scope().oom_kills().unwrap(), 0);
}

/// A kubelet with other reservations, or `systemctl set-property`, lowers the limit while a pod grows: what is left then is used
/// up before the agent's main thread looks at limits again, or the fast path at a scope that has so much left as this one had.
// R1, R39
#[test]
fn a_limit_that_is_lowered_in_a_growth_counts_at_once() {
    skip_if!(no_room());
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new("pace-lowered", 20 << 10, limited);
        let _agent = scene.files.start(&[]);
        let grows = ["--mib", "4000", "--head", "240", "--rate", "500"];
        let mut hog = scene.start("hog", &grows);
        scene.pods_hold(390);
        scene.limit(limited, 512);
        hog.killed();
        one_goes(&scene.files);
        scene.evicts_only(&["hog"]);
    }
}

/// What a pod takes right after the limit was raised is there.
// R43
#[test]
fn a_limit_that_is_raised_before_a_start_costs_no_pod() {
    skip_if!(no_room());
    for limited in [Limited::Pods, Limited::Node] {
        let mut scene = Scene::new("pace-more", 512, limited);
        let _agent = scene.files.start(&[]);
        let mut started = scene.start("hog", &["--mib", "300", "--wait"]);
        std::thread::sleep(MOMENT);
        scene.limit(limited, 1024);
        started.go().unwrap();
        scene.pods_hold(300 + EACH * NEIGHBOURS.len() as u64);
        scene.evicts_only(&[]);
        assert!(started.is_alive());
    }
}

/// A pod `leaks` that requests so much, and neighbours that are to use more than they request.
fn leak_beside(name: &str, requests: &str, priority: i32) -> Files {
    let pod = |name: &str, requests: &str, priority: i32| json!({ "name": name, "cgroup": name, "priority": priority, "requests": { "memory": requests } });
    let mut pods: Vec<Value> = NEIGHBOURS.map(|name| pod(name, "10Mi", 0)).into();
    pods.push(pod("leaks", requests, priority));
    let mut files = Files::of(name, 512, &json!(pods));
    files.config["evictionHard"] = json!({ "memory.available": "100Mi" });
    files
}

/// The same, and the neighbours run.
fn leak_beside_neighbours(name: &str, requests: &str, priority: i32) -> (Files, [Hog; 3]) {
    let files = leak_beside(name, requests, priority);
    let neighbours = NEIGHBOURS.map(|name| files.hog(name, &["--mib", "40"]));
    assert!(until(LONG, || files.scope().usage().unwrap() > 120 * MIB));
    (files, neighbours)
}

/// A container that leaks is killed at its own limit, and what it has comes back; the node's threshold is met for a moment before.
/// `seen`: whether the agent has seen the growth from its beginning.
fn a_growth_up_to_a_limit_costs_no_neighbour(
    growth: &[&str],
    times: u64,
    seen: bool,
    priority: i32,
) {
    let (files, mut neighbours) = leak_beside_neighbours("pace-limit", "310Mi", priority);
    let scope = files.scope();
    let app = scope.child("leaks/app").unwrap();
    scope.limit_child("leaks/app", 310 * MIB).unwrap();
    // Its sum is no limit of the pod that matters.
    scope.child("leaks/sidecar").unwrap();
    scope.limit_child("leaks/sidecar", 1000 * MIB).unwrap();
    let mut agent = seen.then(|| files.start(&[]));
    for kills in 1..=times {
        let mut leak = Hog::start(&app, &[&["--mib", "400"], growth].concat()).unwrap();
        if agent.is_none() {
            assert!(until(LONG, || scope.usage().unwrap() > 300 * MIB));
            agent = Some(files.start(&[]));
        }
        ends_at_its_limit(&mut leak, &files, &mut neighbours);
        let oom_kills = MemoryCgroup::open(&app).unwrap().oom_kills().unwrap();
        assert_eq!(oom_kills, kills);
    }
}

/// The OOM killer ends it for its own limit, and no pod goes.
fn ends_at_its_limit(leak: &mut Hog, files: &Files, neighbours: &mut [Hog]) {
    leak.killed();
    assert!(until(LONG, || files.oom_kill().is_some()));
    std::thread::sleep(MOMENT / 4);
    assert!(files.evicted().is_empty(), "{}", pace_inputs(files));
    assert_eq!(alive(neighbours), NEIGHBOURS.len());
    let kill = files.oom_kill().map(|kill| kill.cause);
    assert_eq!(kill, Some(OomCause::PodLimit));
}

#[test]
fn a_container_that_grows_up_to_its_own_limit_costs_no_neighbour() {
    skip_if!(not_root());
    for (rate, times) in [("60", 2), ("12", 1), ("500", 2)] {
        a_growth_up_to_a_limit_costs_no_neighbour(&["--rate", rate], times, true, 0);
    }
}

/// The agent is started in the middle of it.
#[test]
fn a_growth_up_to_a_limit_costs_no_neighbour_at_the_start() {
    skip_if!(not_root());
    skip_if!(in_guest().then_some("an emulated agent starts later than the growth ends"));
    a_growth_up_to_a_limit_costs_no_neighbour(&["--rate", "60"], 1, false, 0);
}

/// A pod that may not be evicted grows as another one does.
#[test]
fn a_critical_pod_that_grows_up_to_its_own_limit_costs_no_neighbour() {
    skip_if!(not_root());
    a_growth_up_to_a_limit_costs_no_neighbour(&["--rate", "60"], 1, true, 2_000_000_000);
}

/// The container stands still close to its limit, and then grows at full speed: the first look at that is a few milliseconds
/// before the OOM killer acts.
#[test]
fn a_growth_up_to_a_limit_after_a_pause_costs_no_neighbour() {
    skip_if!(not_root());
    let (files, mut neighbours) = leak_beside_neighbours("pace-pause", "310Mi", 0);
    let scope = files.scope();
    let app = scope.child("leaks/app").unwrap();
    scope.limit_child("leaks/app", 300 * MIB).unwrap();
    let _agent = files.start(&[]);
    let mut leak = Hog::start(&app, &["--mib", "400", "--head", "272", "--wait"]).unwrap();
    leak.take_head().unwrap();
    std::thread::sleep(MOMENT);
    leak.go().unwrap();
    ends_at_its_limit(&mut leak, &files, &mut neighbours);
}

/// The pod has a limit and its containers have none of their own: each of them has the pod's.
#[test]
fn a_growth_of_two_containers_up_to_their_pods_limit_costs_no_neighbour() {
    skip_if!(not_root());
    let (files, mut neighbours) = leak_beside_neighbours("pace-podlimit", "352Mi", 0);
    let scope = files.scope();
    let cgroups = ["leaks/app", "leaks/other", "leaks"];
    let containers = cgroups.map(|name| {
        let cgroup = scope.child(name).unwrap();
        scope.limit_child(name, 352 * MIB).unwrap();
        cgroup
    });
    let _agent = files.start(&[]);
    let grows = ["--mib", "400", "--rate", "60"];
    let leaks = [0, 1].map(|at| Hog::start(&containers[at], &grows).unwrap());
    for mut leak in leaks {
        ends_at_its_limit(&mut leak, &files, &mut neighbours);
    }
}

/// Each pod has three containers with limits, and all grow a little beside the one that leaks: what each of them holds is remembered.
#[test]
fn a_growth_up_to_a_limit_is_known_among_many_containers() {
    skip_if!(not_root());
    let files = leak_beside("pace-sidecars", "280Mi", 0);
    let scope = files.scope();
    for name in NEIGHBOURS.iter().chain(&["leaks"]) {
        for (container, mib) in [("app", 280), ("proxy", 200), ("logs", 200)] {
            let container = format!("{name}/{container}");
            scope.child(&container).unwrap();
            scope.limit_child(&container, mib * MIB).unwrap();
        }
    }
    let start = |name: &str, container: &str, arguments: &[&str]| {
        Hog::start(&files.cgroup(name).join(container), arguments).unwrap()
    };
    let mut neighbours = NEIGHBOURS.map(|name| start(name, "app", &["--mib", "38"]));
    assert!(until(LONG, || scope.usage().unwrap() > 114 * MIB));
    let _agent = files.start(&[]);
    let proxies = NEIGHBOURS.iter().chain(&["leaks"]);
    let grows = ["--mib", "30", "--head", "2", "--rate", "1"];
    let _proxies: Vec<Hog> = proxies.map(|name| start(name, "proxy", &grows)).collect();
    let mut leak = start("leaks", "app", &["--mib", "400", "--rate", "60"]);
    ends_at_its_limit(&mut leak, &files, &mut neighbours);
}
