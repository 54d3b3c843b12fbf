//! A disk that does not answer: the state directory lies on a filesystem whose writes wait.

use std::os::unix::fs::symlink;

use evictd_tests::{prelude::*, scrape::get, skip::skipped};

// R42
#[test]
fn a_disk_that_hangs_delays_reports_and_no_eviction() {
    skip_if!(not_root());
    let disk = match Disk::new("ext4", 64, 4096) {
        Ok(disk) => disk,
        Err(error) => return skipped("a_disk_that_hangs", &error.to_string()),
    };
    let mut member = ClusterNode::new("hangs", 256).unwrap();
    let state = disk.path().join("state");
    fs::create_dir(&state).unwrap();
    symlink(&state, member.dir().join("state")).unwrap();
    let (health, shown) = (free_address().unwrap(), free_address().unwrap());
    member.config["healthAddress"] = json!(health);
    member.config["metricsAddress"] = json!(shown);
    let first = member.pod("first", 1, "BestEffort", 0, None).unwrap();
    let mut agent = member.start().unwrap();

    let frozen = disk.freeze().unwrap();
    let mut hog = Hog::start(&first, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(member.wait(SOON, |_| agent.log().contains("the disk does not answer")));
    // A pod that comes now is known, and evicted like any other.
    let second = member.pod("second", 2, "BestEffort", 0, None).unwrap();
    let mut hog = Hog::start(&second, &["--mib", "1024"]).unwrap();
    assert_eq!(hog.wait().unwrap(), Some(libc::SIGKILL));
    assert!(agent.log().contains("default/second"), "{}", agent.log());
    for path in ["/healthz", "/readyz"] {
        let answer = get(&health, path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let waiting = |text: &str| -> u64 {
        let name = "evictd_disk_queue{kind=\"record\"} ";
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let text = metrics(&shown).unwrap();
    assert!(waiting(&text) >= 2, "{text}");
    // Nothing is reported that is not on disk.
    assert_eq!(member.server.state().count("DELETE", ""), 0);
    assert!(member.records().is_empty());

    drop(frozen);
    assert!(member.wait(SOON, |m| m.reported().len() == 2));
    assert!(member.wait(SOON, |_| waiting(&metrics(&shown).unwrap()) == 0));
    let names: Vec<String> = member.evictions().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["first", "second"], "each once, in their order");
    for name in names {
        let deletes = member
            .server
            .state()
            .count("DELETE", &format!("/pods/{name}"));
        assert_eq!(deletes, 1, "{name}");
    }
    assert!(member.wait(SOON, |_| agent.log().contains("the disk answers again")));
    let text = metrics(&shown).unwrap();
    assert!(
        text.contains("evictd_journal_records_lost_total 0"),
        "{text}"
    );
    assert_eq!(agent.terminate().unwrap(), Some(0));
    let finished = |r: &&Record| matches!(r, Record::Finished(_));
    assert_eq!(member.records().iter().filter(finished).count(), 2);
}
