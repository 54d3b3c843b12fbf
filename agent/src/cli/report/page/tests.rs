//! What the page says about incidents of different kinds.

use evictd_engine::{pace::Pace, shortage::Shortage};
use serde_json::{Value, from_value, json};

use super::*;

const MIB: u64 = 1 << 20;

/// A hog that was evicted in time, beside a pod that the OOM killer would have taken.
fn recorded() -> Value {
    let pod = |name: &str, usage: u64, request: u64, evicted: bool| {
        json!({
            "pod": format!("default/{name}"), "usage": usage * MIB, "request": request * MIB, "priority": 0,
            "qosClass": "Burstable", "evicted": evicted, "oomScoreAdj": 900, "usageAfter": 0,
        })
    };
    json!({
        "version": 1,
        "eviction": {
            "id": "i-1", "time": "2026-11-22T12:00:00Z", "namespace": "default", "name": "hog", "uid": "u1",
            "reason": "Evicted", "message": "The node was low on resource: memory. ", "signal": "memory.available",
            "shadow": false, "hook": "tracepoint",
            "stages": {"crossed": 1_000_000_000, "woken": 1_000_100_000, "decided": 1_000_200_000,
                "signalled": 1_000_250_000},
            "available": 63 * MIB, "threshold": 64 * MIB, "usageAtCrossing": 0, "usageAtDecision": 0,
            "workingSet": 151 * MIB, "request": 0,
            "pace": {
                "urgent": true, "exhaustedIn": 200_000_000, "growth": 402 * MIB, "onlyCache": false, "room": 63 * MIB,
                "pending": 0, "expected": 151 * MIB, "shared": 0,
            },
        },
        "finish": {
            "id": "i-1", "exited": 1_027_000_000, "freed": 1_028_000_000, "peakUsage": 192 * MIB,
            "available": 214 * MIB,
        },
        "samples": {
            "memory.available": [[900_000_000, 70 * MIB], [1_000_000_000, 63 * MIB], [1_100_000_000, 214 * MIB]],
        },
        "pods": [pod("hog", 151, 0, true), pod("calm", 40, 64, false)],
        "capacity": 256 * MIB,
        "kubeletVictim": "default/hog",
        "oomVictim": "default/calm",
    })
}

fn incident(change: impl FnOnce(&mut Value)) -> Incident {
    let mut value = recorded();
    change(&mut value);
    from_value(value).unwrap()
}

fn shown(change: impl FnOnce(&mut Value)) -> String {
    page(&incident(change), None).unwrap()
}

/// The kubelet evicts a pod above a limit of its own as well; the node is short of nothing.
#[test]
fn a_limit_of_the_pods_own_is_the_kubelets_reason_too() {
    let incident = incident(|incident| {
        let eviction = &mut incident["eviction"];
        eviction["signal"] = "emptydirfs.limit".into();
        (eviction["available"], eviction["threshold"]) = (0.into(), 0.into());
        eviction["pace"] = Value::Null;
    });
    let said = kubelet(&incident);
    assert!(said.contains("it exceeded a limit of its own"), "{said}");
}

// R49
#[test]
fn everything_that_is_known_is_on_it() {
    let page = shown(|_| {});
    for words in [
        "default/hog was evicted",
        "Urgent: 63.0 MiB were left, used up in 0.2 s at 402.0 MiB per second",
        "Expected to come: 151.0 MiB; 151.0 MiB more were available at the end.",
        "<b>crossed</b><span>0</span>",
        "<b>decided</b><span>200 \u{b5}s</span><span class=\"faint\">+100 \u{b5}s</span>",
        "<b>gone</b><span>27.0 ms</span>",
        "evicted, 151.0 MiB above its request",
        "24.0 MiB below its request",
        "would have evicted default/hog at its next look. Nothing would have been left after 200 ms: it would have \
        come in time in 2 of 100 cases.",
        "taken a process of default/calm instead, 200 ms after the decision",
        "everything else: 2.0 MiB",
        "OOM killer",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn nothing_is_loaded_and_no_text_is_markup() {
    let page = shown(|incident| {
        let name = "<img src=x onerror=alert(1)>\"'";
        incident["eviction"]["name"] = name.into();
        incident["eviction"]["message"] = name.into();
        incident["eviction"]["signal"] = "memory.available".into();
        incident["pods"][0]["pod"] = name.into();
        incident["pods"][1]["spared"] = "</style><script>alert(1)</script>".into();
    });
    assert!(
        !page.contains("<img") && !page.contains("<script"),
        "{page}"
    );
    assert_eq!(page.matches("</style>").count(), 1);
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
    for word in ["src=\"", "href=", "url(", "@import"] {
        assert!(!page.contains(word), "{word}: {page}");
    }
    // The names of the SVG format are the only addresses.
    let addresses = page.matches("http://").count() + page.matches("https://").count();
    assert_eq!(
        addresses,
        page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
    );
}

/// As files of older versions are.
fn old(incident: &mut Value) {
    incident.as_object_mut().unwrap().remove("kubeletVictim");
}

#[test]
fn the_kubelet_acts_at_its_own_time_and_by_its_own_order() {
    let said = |change: fn(&mut Value)| kubelet(&incident(change));
    let calm = said(|i| i["eviction"]["pace"]["urgent"] = false.into());
    assert_eq!(
        calm,
        "The kubelet would have evicted default/hog at its next look, at most 10 s later."
    );
    let guarded = said(|i| i["eviction"]["kubeletAvailable"] = (65 * MIB).into());
    assert!(guarded.contains("would have done nothing"), "{guarded}");
    // It evicts on until the minimum reclaim is available.
    let reclaims = said(|i| {
        i["eviction"]["kubeletAvailable"] = (65 * MIB).into();
        i["eviction"]["pace"]["urgent"] = false.into();
        let shortage = Shortage {
            threshold: 64 * MIB,
            resolved: 100 * MIB,
            ..Shortage::default()
        };
        let mut pace = Pace::default();
        pace.observe(0, &shortage);
        let inputs = PaceInputs {
            now: 20_000_000_000,
            pace,
            shortage,
            ..PaceInputs::default()
        };
        i["judged"] = json!(inputs);
    });
    assert_eq!(reclaims, calm);
    let instant = said(|i| i["eviction"]["pace"]["exhaustedIn"] = 1_000_000.into());
    assert!(instant.contains("in less than 1 of 100 cases"), "{instant}");
    let other = said(|i| i["kubeletVictim"] = "default/calm".into());
    assert!(other.contains("evicted default/calm"), "{other}");
    let computed = said(old);
    assert!(computed.contains("evicted default/hog"), "{computed}");
    let protected = said(|i| {
        old(i);
        i["pods"][0]["protected"] = true.into();
    });
    assert!(protected.contains("evicted default/calm"), "{protected}");
    let important = said(|i| {
        old(i);
        i["pods"][1]["usage"] = (65 * MIB).into();
        i["pods"][0]["priority"] = 7.into();
    });
    assert!(important.contains("evicted default/calm"), "{important}");
    let unknown = said(|i| {
        old(i);
        i["pods"] = json!([]);
    });
    assert!(unknown.contains("a pod by its own order"), "{unknown}");
}

#[test]
fn the_oom_killer_has_its_own_choice() {
    let said = |change: fn(&mut Value)| oom_killer(&incident(change));
    let same = said(|i| i["oomVictim"] = "default/hog".into());
    assert!(same.contains("of the same pod, 200 ms after"), "{same}");
    let old = said(|i| drop(i.as_object_mut().unwrap().remove("oomVictim")));
    assert!(old.contains("was not recorded"), "{old}");
    let disk = said(|i| i["eviction"]["signal"] = "nodefs.available".into());
    assert!(disk.contains("no part"), "{disk}");
}

#[test]
fn the_sample_and_the_report_are_stages() {
    let reported = Reported {
        id: "i-1".into(),
        time: "2026-11-22T12:00:00.500Z".into(),
        outcome: "deleted".into(),
    };
    let incident = incident(|i| {
        let pace_inputs = PaceInputs {
            now: 1_000_150_000,
            ..Default::default()
        };
        i["judged"] = serde_json::to_value(pace_inputs).unwrap();
    });
    let stages = stages(&incident, Some(&reported));
    let names: Vec<_> = stages.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "crossed",
            "woken",
            "sampled",
            "decided",
            "SIGKILL",
            "gone",
            "available again",
            "reported"
        ]
    );
    assert_eq!(stages[2].1, 150_000);
    assert_eq!(stages[7].1, 500_250_000);
}

#[test]
fn a_record_with_little_in_it_has_a_page_too() {
    let page = shown(|incident| {
        let fields = incident.as_object_mut().unwrap();
        for field in ["finish", "capacity", "kubeletVictim", "oomVictim"] {
            fields.remove(field);
        }
        fields["samples"] = json!({});
        fields["pods"] = json!([]);
        fields["eviction"].as_object_mut().unwrap().remove("pace");
    });
    for words in [
        "was not recorded",
        "The reason for the moment was not recorded",
        "a pod by its own order",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("<svg") && !page.contains("Memory by pod"));
}

#[test]
fn durations_are_short() {
    let shown = [0, 999, 143_000, 26_889_000, 200_000_000, 1_500_000_000].map(duration);
    assert_eq!(
        shown,
        [
            "0",
            "1 \u{b5}s",
            "143 \u{b5}s",
            "26.9 ms",
            "200 ms",
            "1.5 s"
        ]
    );
}
