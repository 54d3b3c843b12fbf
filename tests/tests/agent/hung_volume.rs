//! A pod mounts a filesystem on or below its volume whose server does not answer any more: FUSE by a sidecar, NFS.

use std::os::fd::AsRawFd as _;

use evictd_tests::{
    mounts::{self, Mounted},
    prelude::*,
    scrape::get,
};

/// A FUSE filesystem whose server says that it is there, and nothing else.
struct Hung {
    // Closed first: a thread that waits for an answer has an error then.
    _device: File,
    _mounted: Mounted,
}

impl Hung {
    fn mount(at: &Path) -> Result<Self> {
        let mut device = File::options().read(true).write(true).open("/dev/fuse")?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let mounted = Mounted::new("fuse", at, Some(&options))?;
        // `struct fuse_in_header`: length, FUSE_INIT, the number of the request.
        let mut request = [0; 64 << 10];
        let read = device.read(&mut request)?;
        assert!(read >= 16 && request[4] == 26, "{:?}", &request[..16]);
        // `struct fuse_out_header`, `struct fuse_init_out` of protocol 7.31.
        let mut answer = Vec::new();
        for word in [80_u32, 0] {
            answer.extend(word.to_ne_bytes());
        }
        answer.extend(&request[8..16]);
        for word in [7_u32, 31, 0, 0, 0, 4096] {
            answer.extend(word.to_ne_bytes());
        }
        answer.resize(80, 0);
        device.write_all(&answer)?;
        Ok(Self {
            _device: device,
            _mounted: mounted,
        })
    }
}

/// Why no filesystem can hang here, if none can.
fn no_fuse() -> Option<&'static str> {
    let is_missing = !Path::new("/dev/fuse").exists();
    not_root().or(is_missing.then_some("no /dev/fuse here"))
}

// R10: what is mounted is not touched, and the walks go on. What lies below the mount point is out of reach.
#[test]
fn a_filesystem_that_does_not_answer_holds_up_no_walk() {
    skip_if!(no_fuse());
    let dir = tempfile::tempdir().unwrap();
    let names = ["below", "itself", "greedy"];
    let pod = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.join("sub/mounted")).unwrap();
        let size = if name == "below" { 4 << 20 } else { 12 << 20 };
        fs::write(path.join("sub/data"), vec![1; size]).unwrap();
        json!({
            "name": name,
            "cgroup": name,
            "emptyDirs": [{ "name": "scratch", "path": path, "sizeLimit": "8Mi" }],
        })
    };
    let mut files = Files::of("hungfuse", 256, &json!(names.map(pod)));
    files.config["filesystems"] = json!({ "nodefs": dir.path() });
    let _pods = names.map(|name| files.forker(name));
    mounts::on_a_thread(|| {
        let _below = or_skip!(Hung::mount(&dir.path().join("below/sub/mounted")));
        let _itself = or_skip!(Hung::mount(&dir.path().join("itself")));
        let _agent = files.start(&[]);
        // The last one of them: the thread has passed by the others.
        assert!(until(SOON, || files.evicted() == ["greedy"]));
    });
}

/// No end waits for a disk.
const END: Duration = Duration::from_secs(20);

// R2, R42: at the start, and while it runs. The disks' signals are lost, and nothing else is.
#[test]
fn a_hung_nodefs_keeps_no_agent_from_watching_memory() {
    skip_if!(no_fuse());
    for hangs_at_the_start in [true, false] {
        let mut files = Files::of_hog_and_calm("hungnodefs", 256);
        let nodefs = files.dir().join("nodefs");
        fs::create_dir(&nodefs).unwrap();
        files.config["filesystems"] = json!({ "nodefs": nodefs });
        let health = listen(&mut files.config, "healthAddress");
        let shown = listen(&mut files.config, "metricsAddress");
        mounts::on_a_thread(|| {
            let mut hung = None;
            if hangs_at_the_start {
                hung = Some(or_skip!(Hung::mount(&nodefs)));
            }
            let mut agent = files.start(&[]);
            if !hangs_at_the_start {
                hung = Some(or_skip!(Hung::mount(&nodefs)));
                let series = "evictd_filesystem_stuck{filesystem=\"nodefs\"} 1";
                assert!(until(SOON, || shows(&shown, series)));
                assert!(agent.says("the filesystem does not answer"));
            }
            // The manager goes on with all else: its limit is 30 seconds.
            let cycles = || value(&shown, "evictd_manager_cycles_total").unwrap();
            let before = cycles();
            assert!(until(SOON, || cycles() > before + 2));
            for path in ["/healthz", "/readyz"] {
                let is_good = || get(&health, path).unwrap().starts_with("HTTP/1.1 200");
                assert!(until(SOON, is_good), "{path}");
            }
            files.until_killed("hog", &["--mib", "1000", "--rate", "400"]);
            assert!(until(SOON, || files.evicted() == ["hog"]));
            let begun = Instant::now();
            assert_eq!(agent.terminate().unwrap(), Some(0));
            assert!(begun.elapsed() < END, "{:?}", begun.elapsed());
            drop(hung);
        });
    }
}

/// A disk that answers after the start is watched from then on.
#[test]
fn a_nodefs_that_answers_again_is_watched() {
    skip_if!(no_fuse());
    let mut files = Files::of_hog_and_calm("hungagain", 256);
    let nodefs = files.dir().join("nodefs");
    fs::create_dir(&nodefs).unwrap();
    files.config["filesystems"] = json!({ "nodefs": nodefs });
    mounts::on_a_thread(|| {
        let hung = or_skip!(Hung::mount(&nodefs));
        let agent = files.start(&[]);
        assert!(agent.log().contains("they do not answer"));
        drop(hung);
        assert!(agent.says("disks are watched now"));
    });
}

// R42
#[test]
fn a_state_directory_that_does_not_answer_stops_no_thread_but_its_own() {
    skip_if!(no_fuse());
    let mut files = Files::of_hog_and_calm("hungstate", 256);
    let health = listen(&mut files.config, "healthAddress");
    mounts::on_a_thread(|| {
        let mut agent = files.start(&[]);
        // The start reads the journal.
        let is_ready = || get(&health, "/readyz").is_ok_and(|text| text.contains(" 200 "));
        assert!(until(SOON, is_ready));
        let _hung = or_skip!(Hung::mount(&files.dir().join("state")));
        assert!(agent.says("the disk does not answer"));
        files.until_killed("hog", &["--mib", "210"]);
        // By the thread that looks for the pause as well.
        assert!(agent.says("evicted: "));
        let asked = Instant::now();
        assert_eq!(agent.terminate().unwrap(), Some(0));
        assert!(asked.elapsed() < Duration::from_secs(15));
    });
}
