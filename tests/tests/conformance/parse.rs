//! `evictd thresholds` against what the kubelet made of 300 configurations.

use evictd_tests::{
    prelude::*,
    vectors::{Files, evictd, read},
};

const FIELDS: [&str; 5] = [
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "enforceNodeAllocatable",
];

/// The configuration file of a case: its five fields.
fn configuration(case: &Value) -> Value {
    FIELDS
        .iter()
        .map(|field| ((*field).to_owned(), case[*field].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn every_configuration_means_what_it_means_to_the_kubelet() {
    // R1, R3, R4, R5, R11
    let cases = read("parse.jsonl");
    assert_eq!(cases.len(), 300);
    let files = Files::default();
    for (number, case) in cases.iter().enumerate() {
        let path = files.write("config.json", configuration(case));
        let outcome = evictd(["thresholds", "--config", &path, "-o", "json"]);
        let line = number + 1;
        match case.get("thresholds") {
            Some(expected) => {
                assert_eq!(&outcome.json(), expected, "line {line}");
            }
            None => {
                println!("line {line}: {}", case["error"]);
                let refused = outcome.refused();
                let named = FIELDS.iter().any(|field| refused.contains(field));
                assert!(named, "{refused}");
            }
        }
    }
}

#[test]
fn the_same_configuration_as_yaml_and_from_a_kubelets_file_means_the_same() {
    let files = Files::default();
    let json = json!({"evictionHard": {"memory.available": "1.5Gi", "nodefs.available": "5.5%"}});
    let yaml = "evictionHard:\n  memory.available: 1.5Gi\n  nodefs.available: 5.5%\n";
    let kubelet = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 110\n{yaml}"
    );
    let json = files.write("a.json", json);
    let yaml = files.write("a.yaml", yaml);
    let kubelet = files.write("k.yaml", kubelet);
    let empty = files.write("empty.yaml", "");
    let show = |arguments: &[&str]| {
        evictd([&["thresholds", "-o", "json", "--config"], arguments].concat()).json()
    };
    let expected = show(&[&json]);
    assert_eq!(show(&[&yaml]), expected);
    assert_eq!(show(&[&empty, "--kubelet-config", &kubelet]), expected);
}

/// As in the agent: a directory of drop-ins that is missing counts as empty, and a file that is named has to be there.
#[test]
fn a_missing_directory_of_drop_ins_counts_as_empty() {
    let files = Files::default();
    let own = files.write(
        "own.json",
        json!({"cluster": {"kubeletConfigDir": "/nonexistent/kubelet.conf.d"}}),
    );
    let kubelet = files.write("k.yaml", "evictionHard: {memory.available: 321Mi}");
    let show = |kubelet: &str| {
        let arguments = ["thresholds", "--config", &own, "--kubelet-config", kubelet];
        evictd(arguments)
    };
    let shown = show(&kubelet);
    has(&shown.stdout, &[" 321Mi "]);
    let refused = show("/nonexistent/k.yaml").refused();
    has(&refused, &["--kubelet-config: ", "/nonexistent/k.yaml"]);
}

#[test]
fn people_get_a_table() {
    // R4: the defaults
    let files = Files::default();
    let empty = files.write("empty.yaml", "");
    let outcome = evictd(["thresholds", "--config", &empty]);
    // What follows is when pods go, in words.
    let (table, pace) = outcome.stdout.split_once("\n\n").unwrap();
    assert_eq!(pace.lines().count(), 5, "{pace}");
    assert_eq!(
        format!("{table}\n"),
        "SIGNAL                       BELOW  GRACE PERIOD  MIN RECLAIM  FROM\n\
         allocatableMemory.available  100Mi             -            -  the kubelet's defaults\n\
         imagefs.available              15%             -            -  the kubelet's defaults\n\
         imagefs.inodesFree              5%             -            -  the kubelet's defaults\n\
         memory.available             100Mi             -            -  the kubelet's defaults\n\
         nodefs.available               10%             -            -  the kubelet's defaults\n\
         nodefs.inodesFree               5%             -            -  the kubelet's defaults\n"
    );
}

/// In place of when pods go.
#[test]
fn memory_without_a_hard_threshold_is_told() {
    let files = Files::default();
    let shown = |hard: &str| {
        let path = files.write("config.yaml", format!("evictionHard: {hard}"));
        evictd(["thresholds", "--config", &path]).good()
    };
    let without = "evictionHard[memory.available] is not set: no hard threshold guards";
    let empty = "\nevictionHard and evictionSoft are empty: ";
    for (hard, expected, has_pace) in [
        ("{}", empty, false),
        ("{memory.available: 0%}", empty, false),
        ("{nodefs.available: 10%}", without, true),
    ] {
        let shown = shown(hard);
        has(&shown, &[expected]);
        assert_eq!(shown.contains("one pod"), has_pace, "{shown}");
    }
}

/// Five lines say when pods go, and one more where the kubelet acts on the same threshold.
#[test]
fn the_kubelets_turn_is_told_where_the_kubelet_has_one() {
    let files = Files::default();
    let kubelet = files.write("k.yaml", "evictionHard: {memory.available: 300Mi}");
    let shown = |own: &str| {
        let path = files.write("own.yaml", own);
        let arguments = ["thresholds", "--config", &path, "--kubelet-config"];
        evictd([&arguments[..], &[&kubelet]].concat()).good()
    };
    let cluster = "cluster: {nodeName: n1}\n";
    for (own, has_turn) in [
        ("", true),
        ("evictionHard: {memory.available: 400Mi}", false),
        // The threshold of the pods' cgroup is the kubelet's.
        ("evictionHardAboveKubelet: {memory.available: 100Mi}", true),
        (
            "evictionHardAboveKubelet: {memory.available: 100Mi}\nenforceNodeAllocatable: []",
            false,
        ),
        ("mode: kubelet", false),
    ] {
        let shown = shown(&format!("{cluster}{own}"));
        let pace = shown.rsplit("\n\n").next().unwrap();
        assert_eq!(pace.contains("has its turn"), has_turn, "{own}: {shown}");
        assert_eq!(pace.lines().count(), 5 + usize::from(has_turn), "{shown}");
    }
    assert!(!shown("{}").contains("has its turn"), "there is no kubelet");
}

#[test]
fn a_threshold_of_containerfs_is_marked() {
    let files = Files::default();
    let hard = "evictionHard: {containerfs.available: 7%, nodefs.available: 7%}";
    let path = files.write("config.yaml", hard);
    let table = evictd(["thresholds", "--config", &path]).good();
    let row = |signal: &str| table.lines().find(|l| l.starts_with(signal)).unwrap();
    let ignored = "ignored in the kubelet's layouts: containerfs follows nodefs or imagefs";
    assert!(row("containerfs.available").ends_with(ignored), "{table}");
    assert!(!row("nodefs.available").contains("ignored"), "{table}");
}

#[test]
fn a_threshold_says_where_it_comes_from() {
    let files = Files::default();
    let own = "evictionHardAboveKubelet: {memory.available: 100Mi}\nenforceNodeAllocatable: []\n\
               evictionHardFallback: {pid.available: '1000'}\n";
    let own = files.write("own.yaml", own);
    let kubelet = files.write("k.yaml", "evictionHard: {memory.available: 300Mi}");
    let show = |output| {
        let kubelet = ["--kubelet-config", &kubelet];
        let arguments = ["thresholds", "-o", output, "--config", &own];
        evictd([&arguments[..], &kubelet].concat()).stdout
    };
    let table = show("table");
    let rows: Vec<&str> = table.lines().skip(1).take(2).collect();
    has(rows[0], &[" 300Mi+100Mi "]);
    let raised = "the kubelet's configuration, raised by evictionHardAboveKubelet to 10% of the capacity at most";
    assert!(rows[0].ends_with(raised), "{table}");
    assert!(rows[1].ends_with("evictionHardFallback"), "{table}");
    let found: Value = serde_json::from_str(&show("json")).unwrap();
    let memory = &found[0];
    assert_eq!(memory["from"], "kubeletConfiguration");
    let value = &memory["value"]["raised"];
    assert_eq!(value["value"]["quantity"], 300 << 20);
    assert_eq!(value["by"]["quantity"], 100 << 20);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let outcome = evictd(["thresholds", "--config", "/nonexistent/evictd.yaml"]);
    has(&outcome.refused(), &["/nonexistent/evictd.yaml"]);
    assert_eq!(evictd(["thresholds"]).code, 2);
    assert_eq!(evictd(["--help"]).code, 0);
}
