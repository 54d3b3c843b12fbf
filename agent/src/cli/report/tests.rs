//! Reports over what an agent has left in its state directory, damaged or not.

use std::{ffi::OsString, fs, path::Path};

use serde_json::{Value, json};

/// Exit code, standard output and standard error of a command line.
fn evictd(words: &[&str], state_dir: &Path) -> (u8, String, String) {
    let words = ["evictd"].iter().chain(words).map(OsString::from);
    let at = [OsString::from("--state-dir"), state_dir.into()];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = crate::cli::run(words.chain(at), &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (code, text(out), text(err))
}

fn eviction(id: &str) -> Value {
    json!({
        "event": "evicted", "id": id, "time": "2026-11-22T02:00:00Z", "namespace": "shop", "name": "web", "uid": "u",
        "reason": "Evicted", "message": "low\n", "signal": "memory.available", "shadow": false, "hook": "sampler",
        "stages": {"crossed": 1, "woken": 2, "decided": 3, "signalled": 4}, "available": 1, "threshold": 2,
        "usageAtCrossing": 0, "usageAtDecision": 0, "workingSet": 0, "request": 0,
    })
}

// R42
#[test]
fn a_damaged_journal_is_told_and_what_can_be_read_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.jsonl");
    let whole = eviction("one").to_string();
    let mut damaged = eviction("two");
    damaged["stages"]["woken"] = json!("soon");
    // A crash has cut the last line: that is no damage.
    let cut = &whole[..whole.len() / 2];
    let write = |text: String| fs::write(&path, text).unwrap();
    write(format!("{whole}\n{cut}"));
    let (code, out, err) = evictd(&["report"], dir.path());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("shop/web"), "{out}");

    write(format!("{whole}\n{damaged}\n{cut}\n{whole}"));
    let expected = format!(
        "evictd: 2 lines of {} cannot be read: line 2: stages.woken: invalid type: string \"soon\", expected u64\n",
        path.display()
    );
    for words in [
        &["report"][..],
        &["report", "one"],
        &["report", "--shadow"],
        &["report", "-o", "json"],
        &["report", "--shadow", "-o", "json"],
    ] {
        let (code, out, err) = evictd(words, dir.path());
        assert_eq!((code, &err), (2, &expected), "{words:?}");
        assert!(!out.is_empty(), "{words:?}: what can be read is shown");
    }
    // A later version has written events that this one does not know.
    write(format!(
        "{whole}\n{}\n",
        json!({ "event": "tomorrow", "id": "x" })
    ));
    let (code, out, err) = evictd(&["report"], dir.path());
    let passed_over = format!(
        "evictd: 1 line of {} passed over: line 2: event: tomorrow: is not known here\n",
        path.display()
    );
    assert_eq!((code, err), (0, passed_over));
    assert!(out.contains("shop/web"), "{out}");
    write(format!("{whole}\n{damaged}\n{cut}\n{whole}"));
    // Of the file before as well.
    fs::rename(&path, dir.path().join("journal.1.jsonl")).unwrap();
    write(format!("{damaged}\n"));
    let (code, _, err) = evictd(&["report"], dir.path());
    assert_eq!(code, 2);
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.contains("2 lines of") && err.contains("1 line of"),
        "{err}"
    );
}

/// The file of an incident that was written when the eviction was over.
fn incident(id: &str, time: &str) -> Value {
    let mut eviction = eviction(id);
    eviction["time"] = time.into();
    let pod = |name: &str, more: Value| {
        let mut pod = json!({
            "pod": name, "usage": 30, "request": 10, "priority": 7, "qosClass": "Burstable", "evicted": false,
        });
        let fields = more.as_object().unwrap().clone();
        pod.as_object_mut().unwrap().extend(fields);
        pod
    };
    json!({
        "version": 1, "eviction": eviction, "samples": {"memory.available": [[0, 9], [5, 1]]},
        "pods": [
            pod("shop/zero", json!({"order": -5, "spared": ""})),
            pod("shop/going", json!({"terminating": true, "empty": true, "protected": true})),
            pod("shop/web", json!({"evicted": true, "place": 19})),
            pod("shop/new", json!({"priorityUnknown": true, "place": 20})),
        ],
    })
}

fn write_incident(dir: &Path, incident: &Value) {
    let id = incident["eviction"]["id"].as_str().unwrap();
    let files = dir.join("incidents");
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join(format!("{id}.json")), incident.to_string()).unwrap();
}

/// The ids of a list, oldest first.
fn ids(list: &str) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(list).unwrap();
    let ids = list.iter().map(|e| e["id"].as_str().unwrap().to_owned());
    ids.collect()
}

// R49
#[test]
fn an_incident_outlives_what_the_journal_has_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.jsonl");
    fs::write(&path, "").unwrap();
    write_incident(dir.path(), &incident("i-x", "2026-11-22T03:00:00Z"));
    let said = |words: &[&str]| {
        let (code, out, err) = evictd(words, dir.path());
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
        out
    };
    assert_eq!(ids(&said(&["report", "-o", "json"])), ["i-x"]);
    for name in ["i-x", "x", "latest"] {
        let told = said(&["report", name]);
        assert!(told.contains("2 looks were recorded"), "{told}");
        assert!(said(&["report", name, "-o", "html"]).contains("<svg"));
    }
    // By its time among those that the journal has.
    let line = |id: &str, time: &str| {
        let mut eviction = eviction(id);
        eviction["time"] = time.into();
        format!("{eviction}\n")
    };
    let [before, after] = [
        line("before", "2026-11-22T02:00:00Z"),
        line("after", "2026-11-22T04:00:00Z"),
    ];
    fs::write(&path, before + &after).unwrap();
    let all = said(&["report", "-o", "json"]);
    assert_eq!(ids(&all), ["before", "i-x", "after"]);
    let newest = said(&["report", "--newest", "2", "-o", "json"]);
    assert_eq!(ids(&newest), ["i-x", "after"]);
    let newest: Value = serde_json::from_str(&newest).unwrap();
    assert_eq!(newest[0]["olderLeftOut"], 1);
    let table = said(&["report", "--newest", "1"]);
    assert!(table.ends_with("\n2 older ones are left out\n"), "{table}");
    let none = said(&["report", "--newest", "0", "-o", "json"]);
    assert_eq!(none, "[]\n");
}

#[test]
fn a_damaged_file_hides_no_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.jsonl");
    fs::write(&path, format!("{}\n", eviction("one"))).unwrap();
    let whole = incident("one", "2026-11-22T02:00:00Z");
    let mut damaged = whole.clone();
    type Damage = fn(&mut Value);
    let damages: [(Damage, &str); 3] = [
        (
            |v| v["eviction"]["stages"]["woken"] = "soon".into(),
            "eviction.stages.woken: invalid type",
        ),
        (
            |v| v["pods"][2]["request"] = (-1).into(),
            "pods[2].request: invalid value",
        ),
        (|v| v["version"] = 9.into(), "version: 9 is not known here"),
    ];
    for (damage, words) in damages {
        damaged = whole.clone();
        damage(&mut damaged);
        write_incident(dir.path(), &damaged);
        for form in ["table", "json", "html", "svg"] {
            let (code, out, err) = evictd(&["report", "one", "-o", form], dir.path());
            assert_eq!(code, 2);
            assert!(err.contains(&format!("one.json: {words}")), "{form}: {err}");
            // There is nothing to draw.
            let is_told = out.contains("shop") && out.contains("web");
            assert_eq!(
                (is_told, out.is_empty()),
                (form != "svg", form == "svg"),
                "{out}"
            );
        }
    }
    let (code, out, err) = evictd(&["report", "-o", "html"], dir.path());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(
        err.contains("-o html: shows one incident, and none is named"),
        "{err}"
    );
    // Of one that the journal no longer names nothing else is known.
    damaged["eviction"]["id"] = "lost".into();
    write_incident(dir.path(), &damaged);
    let (code, out, err) = evictd(&["report", "-o", "json"], dir.path());
    assert_eq!((code, ids(&out)), (2, vec!["one".to_owned()]));
    assert!(err.contains("lost.json: version: 9"), "{err}");
    let (code, out, err) = evictd(&["report", "lost"], dir.path());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("lost.json: version: 9"), "{err}");
}

#[test]
fn the_table_says_why_a_pod_stands_where_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    write_incident(dir.path(), &incident("i-x", "2026-11-22T03:00:00Z"));
    let (_, text, _) = evictd(&["report", "i-x"], dir.path());
    for line in [
        " 1  shop/zero    30 B     10 B         7  Burstable  a policy's order -5, denied by a policy",
        " 2  shop/going   30 B     10 B         7  Burstable  evicted before, still ending, without processes, protected",
        "19  shop/web     30 B     10 B         7  Burstable  evicted",
        "20  shop/new     30 B     10 B         -  Burstable  its priority is not known: ranked last",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let (_, page, _) = evictd(&["report", "i-x", "-o", "html"], dir.path());
    for words in [
        "20 B above its request, a policy's order -5, denied by a policy",
        "20 B above its request, evicted before, still ending, without processes, protected",
        "evicted, 20 B above its request",
        "its priority is not known: ranked last",
        "data-label=\"#\">19<",
        "data-label=\"priority\">-<",
    ] {
        assert!(page.contains(words), "{words}\n{page}");
    }
}

#[test]
fn a_refused_signal_is_no_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let mut refused = eviction("one");
    refused["error"] = json!("Operation not permitted (os error 1)");
    fs::write(dir.path().join("journal.jsonl"), format!("{refused}\n")).unwrap();
    for output in ["table", "html"] {
        let (code, out, err) = evictd(&["report", "one", "-o", output], dir.path());
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(
            out.contains("shop/web was chosen; the kernel refused SIGKILL"),
            "{out}"
        );
        assert!(!out.contains("was evicted"), "{out}");
        assert!(out.contains("Operation not permitted"), "{out}");
    }
}

/// What an incident's file lacks or has too much of is named; what a scenario alone knows is refused.
#[test]
fn a_damaged_incident_is_not_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("incident.json");
    let replay = |document: &Value| {
        fs::write(&path, document.to_string()).unwrap();
        let words = ["evictd", "replay", path.to_str().unwrap()].map(OsString::from);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = crate::cli::run(words, &mut out, &mut err);
        assert_eq!((code, out.as_slice()), (2, &b""[..]));
        String::from_utf8(err).unwrap()
    };
    let mut incident =
        json!({"version": 1, "eviction": eviction("one"), "samples": {}, "pods": []});
    let without = replay(&incident);
    assert!(without.contains("judged: is not there"), "{without}");
    incident["eviction"]["stages"]["woken"] = json!("soon");
    let damaged = replay(&incident);
    assert!(
        damaged.contains("json: eviction.stages.woken: invalid type"),
        "{damaged}"
    );
    incident["eviction"] = eviction("one");
    incident["version"] = json!(7);
    let newer = replay(&incident);
    assert!(newer.contains("version: 7 is not known here"), "{newer}");
    for field in ["version", "judged"] {
        let alone = replay(&json!({field: 1}));
        assert!(!alone.contains("steps"), "{alone}");
    }
}
