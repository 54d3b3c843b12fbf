//! The page of an incident in a browser: nothing overlaps and nothing leaves the page, on a telephone and on a screen, in the
//! light and the dark scheme.

use evictd_engine::{
    pace::{PaceInputs, Urgency},
    units::MS,
};
use evictd_store::{
    incident::{Incident, RankedPod, files::Incidents},
    journal::Journal,
    record::{OutcomeRecord, PaceRecord, Reported},
};
use evictd_tests::prelude::*;

const START: u64 = 1000 * MS;
/// Text that a browser would run if it were taken for markup.
const MARKUP: &str = "<img src=x onerror=document.body.remove()>";
/// Of the page, in pixels.
const WIDTHS: [u32; 2] = [400, 1200];

fn standing(number: u64) -> RankedPod {
    let name = match number {
        1 => MARKUP.to_owned(),
        number => format!("a-deployment-with-a-long-name-7d9c5b8f64-{number:05}"),
    };
    let spared = format!("the gate {MARKUP} says no, and has for a while");
    let text = json!({
        "pod": format!("a-namespace-with-a-long-name/{name}"),
        "usage": (number != 3).then_some((151 - 9 * number) * MIB),
        "request": number * 40 * MIB,
        "priority": number * 1_000_000,
        "qosClass": "Burstable",
        "evicted": number == 0,
        "usageAfter": if number == 0 { 0 } else { 30 * MIB },
        "oomScoreAdj": 990,
        "protected": number == 4,
        "spared": (number == 5).then_some(spared),
    });
    serde_json::from_value(text).unwrap()
}

/// With so many pods and a threshold, a guard and an end of memory that lie close together.
fn crowded() -> Incident {
    let mib = |n: u64| n * MIB;
    let urgency = Urgency::Urgent {
        exhausted_in: 200 * MS,
        growth: mib(402),
    };
    let id = "0b5dbb9a-5d0c-4a29-8e5e-3f2d5f5d6c11-1000-1".to_owned();
    let mut pace_inputs = PaceInputs {
        now: START + MS / 10,
        ..PaceInputs::default()
    };
    pace_inputs.shortage.available = mib(63);
    pace_inputs.shortage.headroom.immediate = mib(60);
    pace_inputs.shortage.guard_amount = mib(58);
    let text = json!({
        "id": id,
        "time": "2026-11-23T07:00:00.123456789Z",
        "namespace": "a-namespace-with-a-long-name",
        "name": "a-deployment-with-a-long-name-7d9c5b8f64-00000",
        "uid": "u0",
        "phase": "Failed",
        "reason": "Evicted",
        "message": format!("The node was low on resource: memory. {MARKUP} "),
        "signal": "memory.available",
        "shadow": false,
        "hook": "tracepoint",
        "stages": {
            "crossed": START,
            "woken": START + MS / 12,
            "decided": START + MS / 8,
            "signalled": START + MS / 5,
        },
        "available": mib(63),
        "threshold": mib(64),
        "usageAtCrossing": 0,
        "usageAtDecision": 0,
        "workingSet": mib(151),
        "request": 0,
    });
    let mut eviction: EvictionRecord = serde_json::from_value(text).unwrap();
    eviction.pace = Some(PaceRecord::new(urgency, mib(63), 0));
    let left = |ms: u64| match ms {
        ms if ms < 300 => 94 - ms / 10,
        ms => (ms - 236).min(214),
    };
    let sample = |ms: u64| (START + ms * MS - 300 * MS, mib(left(ms)));
    Incident {
        pace_inputs: Some(pace_inputs),
        finish: Some(OutcomeRecord {
            id,
            exited: START + 9 * MS,
            freed: START + 27 * MS,
            peak_usage: mib(192),
            available: mib(214),
        }),
        samples: [("memory.available".into(), (0..420).map(sample).collect())].into(),
        pods: (0..16).map(standing).collect(),
        capacity: Some(mib(2048)),
        kubelet_victim: Some(standing(1).pod),
        oom_victim: Some(standing(1).pod),
        ..Incident::new(eviction)
    }
}

/// Of process ids, which no pod is shown for, over a minute.
fn of_pids() -> Incident {
    let mut incident = crowded();
    incident.eviction.id = "pids".into();
    incident.eviction.signal = "pid.available".into();
    (incident.eviction.available, incident.eviction.threshold) = (1600, 1638);
    incident.eviction.stages.crossed = 0;
    (incident.pace_inputs, incident.capacity) = (None, None);
    (incident.kubelet_victim, incident.oom_victim) = (None, None);
    incident.pods.clear();
    if let Some(finish) = &mut incident.finish {
        (finish.exited, finish.freed) = (START + 8000 * MS, START + 30_000 * MS);
    }
    let sample = |s: u64| (START + s * 1000 * MS, 4_000_000 - s * 1000);
    incident.samples = [("pid.available".into(), (0..40).map(sample).collect())].into();
    incident
}

/// Of which only the journal is left.
fn of_journal() -> Incident {
    let mut eviction = crowded().eviction;
    eviction.id = "journal".into();
    Incident::new(eviction)
}

/// A state directory that holds these.
fn state(incidents: &[Incident]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    for incident in incidents {
        let eviction = incident.eviction.clone();
        let reported = Reported {
            id: eviction.id.clone(),
            time: "2026-11-23T07:00:00.2Z".into(),
            outcome: "deleted".into(),
        };
        journal.append(&Record::evicted(eviction)).unwrap();
        journal.append(&Record::Reported(reported)).unwrap();
        if !incident.samples.is_empty() {
            let files = Incidents::new(dir.path());
            files.writer().write(vec![incident.clone()], &[]);
        }
    }
    dir
}

/// What the page of an incident is.
fn page(state: &Path, incident: &Incident) -> String {
    let words = ["report", &incident.eviction.id, "-o", "html"];
    agent::text(&agent::evictd(&words, &[("--state-dir", state)]))
}

/// Of Debian's package.
const BROWSER: &str = "/usr/bin/chromium";

/// Why no browser can show the page, if none can.
fn no_browser() -> Option<String> {
    let is_missing = !Path::new(BROWSER).is_file();
    is_missing.then(|| format!("no {BROWSER}: apt-get install chromium"))
}

/// Runs the browser without a window over a file.
fn browse(file: &Path, is_dark: bool) -> String {
    let profile = tempfile::tempdir().unwrap();
    let scheme = if is_dark { 0 } else { 1 };
    let mut command = Command::new("timeout");
    command
        .args(["120", BROWSER])
        .args("--headless --no-sandbox --disable-gpu --disable-quic --no-first-run".split(' '))
        .args("--disable-background-networking --disable-component-update".split(' '))
        .args("--disable-sync --disable-dev-shm-usage --hide-scrollbars".split(' '))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()));
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The text as the value of an attribute.
fn attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;")
}

/// A page with these in frames of a width, which measures them and leaves the result in its title: a browser's own window is
/// not narrower than 500 pixels.
fn frames(pages: &[String], script: &str) -> String {
    let frames: String = WIDTHS
        .iter()
        .flat_map(|width| pages.iter().map(move |page| (width, page)))
        .map(|(width, page)| {
            let page = attribute(page);
            format!("<iframe width={width} height=900 style=border:0 srcdoc=\"{page}\"></iframe>\n")
        })
        .collect();
    format!("<!doctype html><meta charset=utf-8>\n{frames}<script>{script}</script>")
}

const MEASURE: &str = r#"
onload = () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const doc = frame.contentDocument, width = doc.documentElement.clientWidth, wrong = [], texts = [];
    if (doc.documentElement.scrollWidth > width) wrong.push('scrolls to ' + doc.documentElement.scrollWidth);
    const walker = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode, range = doc.createRange();
      range.selectNodeContents(text);
      if (text.data.trim() === '') continue;
      for (const box of range.getClientRects()) {
        if (box.width > 0 && box.height > 0) texts.push({text: text.data.trim(), box});
      }
    }
    for (const {text, box} of texts) {
      if (box.left < -0.5 || box.right > width + 0.5) wrong.push('leaves the page: ' + text);
    }
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      const x = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const y = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (x > 1.5 && y > 1.5) wrong.push('overlap: ' + a.text + ' / ' + b.text);
    }));
    const svgs = [...doc.querySelectorAll('svg')].filter(svg => svg.getClientRects().length > 0);
    const small = svgs.flatMap(svg => [...svg.querySelectorAll('text')]).map(text =>
      parseFloat(text.getAttribute('font-size')) * text.ownerSVGElement.getBoundingClientRect().width
        / text.ownerSVGElement.viewBox.baseVal.width);
    return {width, wrong, texts: texts.length, charts: svgs.length, least: Math.min(...small),
      loads: doc.querySelectorAll('img, script, link, [src], [href]').length,
      paper: getComputedStyle(doc.body).backgroundColor,
      chart: svgs.length ? getComputedStyle(svgs[0].querySelector('rect')).fill : ''};
  });
  document.title = JSON.stringify(found);
};
"#;

// R49
#[test]
fn nothing_overlaps_and_nothing_leaves_the_page() {
    skip_if!(no_browser());
    let incidents = [crowded(), of_pids(), of_journal()];
    let state = state(&incidents);
    let pages = incidents.each_ref().map(|i| page(state.path(), i));
    let file = state.path().join("frames.html");
    fs::write(&file, frames(&pages, MEASURE)).unwrap();
    for (is_dark, paper) in [(false, "rgb(255, 255, 255)"), (true, "rgb(22, 24, 29)")] {
        let dom = browse(&file, is_dark);
        let title = dom.split_once("<title>");
        let title = title.and_then(|(_, rest)| rest.split_once("</title>"));
        let (title, _) = title.unwrap_or_else(|| panic!("{dom}"));
        let escapes = [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
        let unescaped = |text: String, (from, to): (&str, &str)| text.replace(from, to);
        let title = escapes.into_iter().fold(title.to_owned(), unescaped);
        let found: Vec<Value> = serde_json::from_str(&title).unwrap();
        assert_eq!(found.len(), WIDTHS.len() * pages.len());
        for (number, found) in found.iter().enumerate() {
            assert_eq!(found["width"], WIDTHS[number / pages.len()]);
            assert_eq!(found["wrong"], Value::Array(Vec::new()), "{found}");
            assert_eq!(found["loads"], 0);
            assert_eq!(found["paper"], paper);
            assert!(found["texts"].as_u64().unwrap() > 20, "{found}");
            // The journal alone has no chart; of the two sizes one is shown.
            let has_chart = number % pages.len() < 2;
            assert_eq!(found["charts"], u8::from(has_chart), "{found}");
            if has_chart {
                assert_eq!(found["chart"], paper, "{found}");
                let least = found["least"].as_f64().unwrap();
                assert!(least > 9.0, "too small to read: {found}");
            }
        }
    }
}
