//! The benchmark runs through on a small programme and reports what it should. No timing is asserted.

use evictd_tests::prelude::*;

#[test]
fn a_small_race_is_run_and_reported() {
    skip_if!(no_memory_cgroups());
    // Not every build has made the daemon.
    skip_if!(agent::binary().err());
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args([
            "--race", "scope", "--runs", "1", "--ways", "touch", "--rates", "0",
        ])
        .args(["--only", "nothing,poll-100ms,evictd-sampler"])
        .arg("--out")
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("tracefs") {
        skip_if!(Some(said.trim()));
    }
    assert!(output.status.success(), "{said}");
    let results: Value =
        serde_json::from_slice(&fs::read(dir.path().join("results.json")).unwrap()).unwrap();
    let heats = results["scope"]["heats"].as_array().unwrap();
    assert_eq!(heats.len(), 3, "{said}");
    for heat in heats {
        // Whatever has killed, it was the hog that died: the others do nothing wrong, and the OOM killer takes the
        // largest.
        assert_eq!(heat["dead"], json!(["hog"]), "{heat}");
        assert_eq!(heat["rightPod"], true, "{heat}");
        assert_eq!(heat["contenderDied"], false, "{heat}");
    }
    // Without a daemon it can only have been the OOM killer.
    assert_eq!(heats[0]["killer"], "oom");
    assert!(results["machine"]["kernel"].as_str().unwrap().len() > 2);
    assert!(
        fs::read_to_string(dir.path().join("memory.svg"))
            .unwrap()
            .ends_with("</svg>\n")
    );
    let table = fs::read_to_string(dir.path().join("table.txt")).unwrap();
    assert!(table.contains("evictd-sampler"), "{table}");
}
