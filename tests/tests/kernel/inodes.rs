//! The inode trigger against statfs, on real filesystems and on every hook this kernel has.

use std::os::unix::fs::MetadataExt as _;

use evictd_engine::Layout;
use evictd_node::{
    bpf::btf::Btf,
    fs::{
        mounts::superblock_of,
        statfs::{Filesystem, NodeFilesystems},
    },
    trigger::{
        counter::{
            CgroupCount,
            CountDirection::{Below, Recovered},
            Sample,
        },
        hook::CountHook,
        inodes::InodeTrigger,
    },
};
use evictd_tests::prelude::*;
use nix::fcntl::{FallocateFlags, fallocate};

use super::limit;

/// Small enough for a loop device in a file, large enough for xfs.
const DISK_MIB: u64 = 384;
const INODES: u64 = 20_000;

/// Statfs and the count agree, within `slack` inodes. A filesystem may free inodes in a worker, a while later; a count that lost
/// something is off for good.
fn lies_between(trigger: &InodeTrigger, disk: &Filesystem, slack: i64) -> Result<(), String> {
    let statfs = || disk.read().unwrap().inodes_free as i64;
    super::lies_between(slack, statfs, || trigger.counted(0).unwrap())
}

/// What counts the inodes of a disk with this hook; an error where the kernel refuses it.
fn counts(disk: &Disk, hook: CountHook) -> Result<(BpfObject, InodeTrigger), String> {
    let mut object = BpfObject::load_counts().unwrap();
    let trigger = build(disk, &mut object, hook)?;
    Ok((object, trigger))
}

fn build(disk: &Disk, object: &mut BpfObject, hook: CountHook) -> Result<InodeTrigger, String> {
    let built = InodeTrigger::build_with(&[&disk.path()], Ok(object), &[hook]);
    let trigger = built.map_err(|error| error.to_string())?;
    granted(trigger.selected_hook(0).unwrap().1)?;
    Ok(trigger)
}

/// A task of a pod, and the id of the pod's cgroup.
fn task(scope: &TestCgroup) -> (Forker, u64) {
    let pod = scope.child("pod").unwrap();
    let id = MemoryCgroup::open(&pod).unwrap().id();
    (Forker::start(Some(&pod)).unwrap(), id)
}

/// What the manager reads of the inodes of a cgroup on the first filesystem.
fn cgroup_count(trigger: &InodeTrigger, id: u64) -> Option<CgroupCount> {
    trigger.cgroup_count_reader()?.cgroup_count(id, 0)
}

/// Files made and removed by a task of a pod, under a limit; `slack` for what the filesystem takes for itself.
fn counts_and_crosses(kind: &str, hook: CountHook, slack: i64) {
    let cgroup = TestCgroup::new("inodes", 256 * MIB).unwrap();
    let disk = or_skip!(Disk::new(kind, DISK_MIB, INODES));
    let (_object, trigger) = or_skip!(counts(&disk, hook));
    counts_on(&cgroup, &disk.path(), &disk.path(), trigger, slack);
}

/// A hook that counts passes its self-test and leaves no file; the sampler takes the place of one that does not.
#[test]
fn a_silent_hook_is_replaced() {
    skip_if!(no_bpf());
    let disk = or_skip!(Disk::new("ext4", DISK_MIB, INODES));
    for (is_stale, expected) in [(false, CountHook::Typed), (true, CountHook::Sampler)] {
        let (mut object, mut trigger) = or_skip!(counts(&disk, CountHook::Typed));
        if is_stale {
            object.detach("inodes_ext4_made");
            object.detach("inodes_ext4_freed");
        }
        trigger.self_test(&disk.path()).unwrap();
        let (_, selected) = trigger.selected_hook(0).unwrap();
        assert_eq!(selected.hook, expected);
        let failed = |(_, reason): &(CountHook, String)| reason.contains("self-test failed");
        assert_eq!(selected.refused.iter().any(failed), is_stale);
        assert!(!disk.path().join("self-test").exists());
        // It counts on, by statfs alone where the hook is gone.
        let sample = sampled(&mut trigger);
        assert!(sample.available > 0);
        assert_eq!(trigger.counted(0).unwrap().is_none(), is_stale);
    }
}

fn counts_on(cgroup: &TestCgroup, disk: &Path, work: &Path, mut trigger: InodeTrigger, slack: i64) {
    let statfs = Filesystem::open(disk).unwrap();
    let [dir, more, third] = ["files", "more", "third"].map(|name| work.join(name));
    for dir in [&dir, &more, &third] {
        fs::create_dir(dir).unwrap();
    }
    let (mut forker, id) = task(cgroup);
    let start = sampled(&mut trigger).available;

    forker.files("make", &dir, 500);
    lies_between(&trigger, &statfs, slack).unwrap();
    let count = cgroup_count(&trigger, id).expect("made by this cgroup");
    assert_eq!((count.made, count.gone), (500, 0));

    // 1000 more are in the limit, 1500 are not.
    let left = start - 1500;
    trigger.arm(0, 0, limit(left, Below)).unwrap();
    forker.files("make", &more, 900);
    assert!(trigger.next_crossing().is_none(), "a hundred are left");
    forker.files("make", &third, 600);
    let crossed =
        wait_for(Duration::from_secs(5), || trigger.next_crossing()).expect("the limit is used up");
    assert_eq!((crossed.counter, crossed.slot), (0, 0));
    assert_eq!(crossed.available, left - 1, "at the very file");
    assert_eq!(crossed.event.cgroup_id, id, "made by the pod");
    assert_eq!(crossed.event.tgid, forker.pid());
    assert!(trigger.next_crossing().is_none(), "once per arming");

    trigger.arm(0, 1, limit(left, Recovered)).unwrap();
    forker.files("remove", &dir, 500);
    forker.files("remove", &more, 900);
    let crossed =
        wait_for(Duration::from_secs(10), || trigger.next_crossing()).expect("recovery is told");
    assert_eq!(crossed.slot, 1);
    assert!(crossed.available >= left);
    lies_between(&trigger, &statfs, slack).unwrap();
    let count = cgroup_count(&trigger, id).unwrap();
    assert_eq!((count.made, count.gone), (2000, 1400));
    let (kind, selected) = trigger.selected_hook(0).unwrap();
    let detail = format!("{kind}: crossed both ways at the very file");
    matrix("nodefs.inodesFree", &selected.hook.to_string(), &detail);
}

scenes! {
    // R1, R39
    fn ext4_typed() unless no_bpf() => counts_and_crosses("ext4", CountHook::Typed, 0);
    // R1, R39
    fn ext4_tracepoint() unless no_bpf() => counts_and_crosses("ext4", CountHook::Tracepoint, 0);
    /// xfs makes inodes out of free blocks: the blocks of a directory cost some, which the next statfs corrects.
    // R1, R39
    fn xfs_tracepoint() unless no_bpf() => counts_and_crosses("xfs", CountHook::Tracepoint, 16);
}

/// Free inodes of xfs are free blocks: a file that grows takes some, and no hook has anything to count.
// R39
#[test]
fn a_file_that_grows_on_xfs_makes_no_hook_silent() {
    skip_if!(no_bpf());
    let disk = or_skip!(Disk::new("xfs", DISK_MIB, INODES));
    let (_object, mut trigger) = or_skip!(counts(&disk, CountHook::Tracepoint));
    let file = fs::File::create(disk.path().join("file")).unwrap();
    let mut available = || sampled(&mut trigger).available;
    // A quarter of the disk may hold inodes: once less is free, each block that a file takes takes some.
    let begin = available();
    fallocate(&file, FallocateFlags::empty(), 0, 280 << 20).unwrap();
    std::thread::sleep(Duration::from_millis(3500));
    let end = available();
    assert!(begin - end > 32, "{begin} {end}");
    assert!(!trigger.is_stale(0));
}

/// What a container writes to its overlay is made on the upper layer's filesystem, by the container's own task.
// R1, R39
#[test]
fn overlay_counts_on_its_upper_layer() {
    let cgroup = with_bpf!(TestCgroup::new("overlay", 256 * MIB).unwrap());
    let mut disk = or_skip!(Disk::new("ext4", DISK_MIB, INODES));
    let merged = or_skip!(disk.overlay());
    assert_eq!(
        superblock_of(&merged).unwrap(),
        superblock_of(&disk.path()).unwrap()
    );
    let mut object = BpfObject::load_counts().unwrap();
    // Given both ways it is one filesystem.
    let directories = [disk.path(), merged.clone()];
    let directories: Vec<&Path> = directories.iter().map(AsRef::as_ref).collect();
    let trigger = or_skip!(InodeTrigger::build(&directories, Ok(&mut object)));
    assert_eq!(
        (trigger.filesystems(), trigger.index_of(&merged)),
        (1, Some(0))
    );
    let (kind, selected) = trigger.selected_hook(0).unwrap();
    assert_eq!(kind, "ext4");
    skip_if!((selected.hook == CountHook::Sampler).then_some("no hook on ext4"));
    counts_on(&cgroup, &disk.path(), &merged, trigger, 0);
}

/// Orders of 50 files each to a task of a pod on xfs, and what each has to add to the pod's count and to the whole one,
/// which a worker of the filesystem may lower a while later.
fn adds_on_xfs(disk: &Disk, dir: &Path, orders: &[(&str, i64)]) -> Result<(), String> {
    let cgroup = TestCgroup::new("orders", 256 * MIB).unwrap();
    let (_object, mut trigger) = counts(disk, CountHook::Tracepoint)?;
    let (mut forker, id) = task(&cgroup);
    let start = sampled(&mut trigger).available;
    let mut expected = 0;
    for (order, adds) in orders {
        forker.files(order, dir, 50);
        expected += adds;
        let now = || {
            let count = cgroup_count(&trigger, id).unwrap_or_default();
            let counted = trigger.counted(0).unwrap().unwrap();
            (count.made - count.gone, start - counted)
        };
        let met = || (now() == (expected, expected)).then_some(());
        let met = wait_for(Duration::from_secs(8), met);
        assert!(met.is_some(), "{order}: {:?}, not {expected}", now());
    }
    lies_between(&trigger, &Filesystem::open(&disk.path()).unwrap(), 16).unwrap();
    Ok(())
}

/// A file without a name is in the count, and in no cgroup's until it has one: those that a pod names are its own,
/// those that it closes as they are cost nothing. What the task did before makes no difference.
// R1, R39
#[test]
fn xfs_files_without_a_name() {
    skip_if!(no_bpf());
    let disk = or_skip!(Disk::new("xfs", DISK_MIB, INODES));
    let dir = disk.path().join("files");
    fs::create_dir(&dir).unwrap();
    let orders = [
        ("make", 50),
        ("link", 0),
        ("nameless", 0),
        ("unlink", 0),
        ("nameless", 0),
        ("replace", 0),
        ("nameless", 0),
        ("remove", -50),
        ("name", 50),
        ("nameless", 0),
        ("move", 0),
        ("name", 50),
        ("remove", -50),
    ];
    or_skip!(adds_on_xfs(&disk, &dir, &orders));
}

/// A container that changes a file of its image makes a copy, which has no name at first; one that moves such a file
/// also makes a whiteout, which a new file replaces.
// R1, R39
#[test]
fn xfs_copies_in_an_overlay() {
    skip_if!(no_bpf());
    let mut disk = or_skip!(Disk::new("xfs", DISK_MIB, INODES));
    let merged = or_skip!(disk.overlay());
    let lower = disk.path().join("lower");
    let mut image = Forker::start(None).unwrap();
    image.files("make", &lower, 50);
    let orders = [("chown", 50), ("move", 50), ("unlink", -50), ("make", 0)];
    or_skip!(adds_on_xfs(&disk, &merged, &orders));
}

/// Without BTF a program knows the id of the current task's cgroup in the default hierarchy alone. Where memory is in
/// another one that number is another cgroup's: all is counted, and no pod has a count.
#[test]
fn without_types_no_count_is_of_another_hierarchy() {
    let (_cgroup, pod) = with_bpf!(TestCgroup::with_pod("hybrid", 256 * MIB));
    let disk = or_skip!(Disk::new("ext4", 64, INODES));
    for hierarchy in [0, 3] {
        let mut object = BpfObject::load_counts_untyped(hierarchy).unwrap();
        let mut trigger = or_skip!(build(&disk, &mut object, CountHook::Tracepoint));
        let free = sampled(&mut trigger).available;
        let mut forker = Forker::start(Some(&pod)).unwrap();
        let dir = disk.path().join(format!("files{hierarchy}"));
        fs::create_dir(&dir).unwrap();
        forker.files("make", &dir, 50);
        assert_eq!(trigger.counted(0).unwrap(), Some(free - 51));
        assert_eq!(trigger.cgroup_counts().is_empty(), hierarchy != 0);
    }
}

/// Each has a device number of its own in stat(2), and the kubelet sees one filesystem.
// R3
#[test]
fn subvolumes_of_btrfs_are_one_filesystem() {
    let disk = or_skip!(Disk::new("btrfs", DISK_MIB, INODES));
    let [images, containers] = ["images", "containers"].map(|name| disk.subvolume(name).unwrap());
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(&images), device(&containers));
    let layout = |kubelet: &Path| {
        let found = NodeFilesystems::find(kubelet, &images, &containers);
        found.unwrap().layout
    };
    assert_eq!(layout(&disk.path()), Layout::default());
    let separate_images = Layout {
        dedicated_image_fs: true,
        split_image_fs: false,
    };
    assert_eq!(layout(Path::new("/proc")), separate_images);
}

/// btrfs has no inodes to run out of; how many each cgroup makes is counted all the same.
#[test]
fn btrfs_has_cgroup_counts_but_no_signal() {
    let cgroup = with_bpf!(TestCgroup::new("btrfs", 256 * MIB).unwrap());
    // The typed hook knows the kernel's own types, and none of a module.
    let kernel = or_skip!(Btf::from_sys_fs());
    let has_type = kernel.tracepoint_argument_is_pointer("btrfs_inode_new", 0);
    skip_if!(has_type.is_none().then_some("btrfs is a module here"));
    let disk = or_skip!(Disk::new("btrfs", DISK_MIB, INODES));
    let (_object, mut trigger) = or_skip!(counts(&disk, CountHook::Typed));
    assert_eq!(trigger.sample(0).unwrap(), None);
    trigger.arm(0, 0, limit(i64::MAX, Below)).unwrap();
    let (mut forker, id) = task(&cgroup);
    let dir = disk.path();
    forker.files("make", &dir, 300);
    forker.files("remove", &dir, 200);
    let count = || cgroup_count(&trigger, id).unwrap();
    until(Duration::from_secs(8), || count().gone == 200);
    let count = count();
    assert_eq!((count.made, count.gone), (300, 200));
    assert!(trigger.next_crossing().is_none(), "nothing to cross");
}

/// Unmounted under a limit: an error that says so, silence, and life again when it is back.
#[test]
fn unmounted_under_a_limit() {
    skip_if!(no_bpf());
    let disk = or_skip!(Disk::new("ext4", 64, INODES));
    let mut object = BpfObject::load_counts().unwrap();
    let built = InodeTrigger::build(&[&disk.path()], Ok(&mut object));
    let mut trigger = or_skip!(built);
    skip_if!(
        (trigger.selected_hook(0).unwrap().1.hook == CountHook::Sampler)
            .then_some("no hook on ext4")
    );
    let free = sampled(&mut trigger).available;
    trigger.arm(0, 0, limit(free - 100, Below)).unwrap();
    disk.unmount()
        .expect("the trigger keeps nothing open on it");
    let error = trigger.sample(0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    assert_eq!(trigger.counted(0).unwrap(), None);
    // These go to what lies below the mount point, which is not watched.
    let mut forker = Forker::start(None).unwrap();
    forker.files("make", &disk.path(), 200);
    assert!(trigger.next_crossing().is_none());
    forker.files("remove", &disk.path(), 200);

    // The loop device that it had is taken meanwhile: it comes back with another device number.
    let _other = or_skip!(Disk::new("ext4", 64, INODES));
    disk.mount().unwrap();
    let back = sampled(&mut trigger);
    assert_eq!((back.available, back.counted), (free, None));
    forker.files("make", &disk.path(), 200);
    let crossed =
        wait_for(Duration::from_secs(5), || trigger.next_crossing()).expect("armed again");
    assert_eq!(crossed.available, free - 101);
}

/// A sample of the first filesystem; statfs may come late in a guest that gets little of a processor.
fn sampled(trigger: &mut InodeTrigger) -> Sample {
    let sample = wait_for(SOON, || match trigger.sample(0) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => None,
        sample => Some(sample.unwrap().unwrap()),
    });
    sample.expect("an answer")
}

/// A hook that misses: found by the next statfs, corrected, counted.
#[test]
fn drift_is_found_corrected_and_counted() {
    skip_if!(no_bpf());
    let disk = or_skip!(Disk::new("ext4", 64, INODES));
    let (mut object, mut trigger) = or_skip!(counts(&disk, CountHook::Typed));
    let free = sampled(&mut trigger).available;
    object.detach("inodes_ext4_made");
    let mut forker = Forker::start(None).unwrap();
    forker.files("make", &disk.path(), 70);
    let sample = sampled(&mut trigger);
    assert_eq!((sample.available, sample.counted), (free - 70, Some(free)));
    let drift = trigger.drift(0);
    assert_eq!((drift.corrections, drift.total), (1, 70));
    assert_eq!(trigger.counted(0).unwrap(), Some(free - 70));
}

/// A filesystem without tracepoints has the sampler, and says why.
#[test]
fn tmpfs_is_sampled() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return skip_if!(Some("no /dev/shm"));
    };
    let mut object = BpfObject::load_counts();
    let reason = object
        .as_ref()
        .err()
        .map(ToString::to_string)
        .unwrap_or_default();
    let object = object.as_mut().map_err(|_| &*reason);
    let mut trigger = InodeTrigger::build(&[dir.path()], object).unwrap();
    let (kind, selected) = trigger.selected_hook(0).unwrap();
    skip_if!((kind != "tmpfs").then_some(format!("/dev/shm is {kind}")));
    assert_eq!(selected.hook, CountHook::Sampler);
    assert_eq!(selected.refused.len(), 2);
    assert!(trigger.fd().is_none() && trigger.sample(0).unwrap().is_some());
    matrix("nodefs.inodesFree", "sampler", "tmpfs: read by statfs");
}
