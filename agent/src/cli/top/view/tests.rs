//! The screen at 80 columns and 24 lines, and what keys change on it.

use std::collections::HashMap;

use evictd_engine::{
    Observation, Pod, PodUsage, QosClass, Ranking, Threshold, ThresholdValue, Trend, Usages,
    model::settings::{Mode, RankingStrategy},
    units,
};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};

use super::*;
use crate::cli::rank;

const MIB: u64 = 1 << 20;
const SECOND: i64 = units::SECOND.cast_signed();

/// A signal that falls by so many MiB per second.
fn signal(signal: Signal, available: i64, threshold: &str, fall: i64) -> SignalJson {
    let mib = MIB as i64;
    let mut trend = Trend::new(Duration::from_secs(30));
    trend.observe(0, (available + fall) * mib);
    trend.observe(SECOND, available * mib);
    let threshold = Threshold {
        signal,
        value: ThresholdValue::Quantity(threshold.parse().unwrap()),
        grace_period: Duration::ZERO,
        min_reclaim: None,
    };
    let observation = Observation {
        available: available * mib,
        capacity: 1024 * mib,
        time: None,
    };
    SignalJson::new(&threshold, Some(observation), Some(&trend))
}

fn pods() -> Vec<PodJson> {
    let pod = |name: &str, request: u64| Pod {
        uid: name.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        qos: QosClass::Burstable,
        memory_request: request * MIB,
        ..Pod::default()
    };
    let pods = [pod("hog", 0), pod("calm", 500), pod("spared", 1)];
    let used = [("hog", 300), ("calm", 450), ("spared", 200)];
    let usage = |(name, mib): (&str, u64)| {
        let usage = PodUsage {
            memory_working_set: Some(mib * MIB),
            ..PodUsage::default()
        };
        (name.to_owned(), usage)
    };
    let usages: Usages = used.map(usage).into_iter().collect::<HashMap<_, _>>();
    let ranking = Ranking {
        strategy: RankingStrategy::Kubelet,
        signal: Signal::MemoryAvailable,
        layout: evictd_engine::Layout::default(),
    };
    let ranked = ranking.order(&pods, &usages);
    let spared = |uid: &str| (uid == "spared").then(|| "a gate".to_owned());
    let mut pods = rank::explain(Mode::Evictd, &ranked, &usages, Some(1024 * MIB), spared);
    pods[1].growth = Some(2.0 * MIB as f64);
    pods[2].growth = Some(1.0 * MIB as f64);
    pods[2].until_limit_seconds = Some(42.0);
    pods
}

fn view() -> View {
    View {
        signals: vec![
            signal(Signal::MemoryAvailable, 160, "64Mi", 10),
            signal(Signal::NodeFsAvailable, 50, "100Mi", 0),
        ],
        signal: Signal::MemoryAvailable,
        pods: pods(),
        pressure: vec![(
            "memory",
            Psi {
                some: 1.5,
                full: Some(0.5),
            },
        )],
        past: vec![PastEviction {
            time: "2026-11-23T07:00:00".to_owned(),
            pod: "shop/db-0".to_owned(),
            signal: "memory.available".to_owned(),
            note: "shadow".to_owned(),
        }],
        unknown: 1,
        are_policies_unknown: false,
    }
}

fn state(has_colours: bool) -> State {
    State {
        selected: 0,
        sort: 0,
        offset: 0,
        interval: Duration::from_secs(2),
        has_colours,
    }
}

fn drawn(view: &View, state: &mut State) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, view, state)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |row: &[ratatui::buffer::Cell]| {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    };
    buffer.content.chunks(80).map(line).collect()
}

/// The names of the pods from top to bottom.
fn order(buffer: &Buffer) -> Vec<&'static str> {
    let lines = lines(buffer);
    let names = lines.iter().filter_map(|line| {
        let known = ["hog", "calm", "spared"].into_iter();
        known
            .into_iter()
            .find(|name| line.contains(&format!(" default/{name}")))
    });
    names.collect()
}

// R13, R44
#[test]
fn all_of_it_fits_on_a_small_terminal() {
    let lines = lines(&drawn(&view(), &mut state(true)));
    assert_eq!(
        lines[0],
        "evictd top  every 2 s  3 pods, 1 known by cgroup alone"
    );
    for word in ["SIGNAL", "LEFT ABOVE IT", "MET IN", "NONE IN"] {
        assert!(lines[1].contains(word), "{lines:#?}");
    }
    // 96 of 960 MiB are left above the threshold: two columns of twelve.
    for word in [
        "memory.available",
        "[##..........]",
        "160.0 MiB",
        "64.0 MiB",
        "9.6 s",
        "16 s",
    ] {
        assert!(lines[2].contains(word), "{word}: {lines:#?}");
    }
    assert!(
        lines[3].contains("[............]") && lines[3].contains(" met "),
        "{lines:#?}"
    );
    assert!(lines[4].contains("memory some 1.5 full 0.5"), "{lines:#?}");
    let place = |word: &str| lines.iter().position(|line| line.contains(word)).unwrap();
    let pods = place("Pods for memory.available, by eviction");
    assert!(lines[pods + 2].contains("default/hog") && lines[pods + 2].contains("evicted first"));
    assert!(lines[pods + 3].contains("denied: a gate"), "{lines:#?}");
    assert!(lines[pods + 4].contains("default/calm") && lines[pods + 4].contains("42 s"));
    assert!(
        lines
            .iter()
            .any(|line| line.contains("evicted first, the OOM")),
        "{lines:#?}"
    );
    assert_eq!(
        lines[22],
        "2026-11-23T07:00:00  memory.available  shop/db-0 (shadow)"
    );
    assert!(lines[23].starts_with("q quit"), "{lines:#?}");
}

#[test]
fn long_names_are_shortened_in_their_middle() {
    let mut view = view();
    let name = "observability/prometheus-kube-prometheus-stack-prometheus-0";
    view.pods[0].pod = name.to_owned();
    view.pods[1].pod = format!("{}/{}", "n".repeat(63), "p".repeat(252) + "7");
    view.past[0].pod = name.to_owned();
    let lines = lines(&drawn(&view, &mut state(false)));
    let at = |word: &str| lines.iter().find(|line| line.starts_with(word)).unwrap();
    // 18 columns of 80 are the name's.
    let first = at("1  ");
    assert_eq!(&first[4..22], "observab..etheus-0", "{first}");
    assert!(first.contains("300.0 MiB"), "{first}");
    let second = at("2  ");
    assert!(second[4..22].starts_with("nnnnnnn"), "{second}");
    assert!(second[4..22].trim_end().ends_with("pp7"), "{second}");
    let past = at("2026-11-23");
    assert!(
        past.contains("observability/p..") && past.ends_with("prometheus-0 (shadow)"),
        "{past}"
    );
    assert_eq!(past.chars().count(), 80, "{past}");
    for (width, expected) in [
        (9, "abcdefgh"),
        (8, "abcdefgh"),
        (7, "ab..fgh"),
        (3, "..h"),
        (1, ".."),
        (0, ".."),
    ] {
        assert_eq!(shortened("abcdefgh", width), expected);
    }
}

#[test]
fn a_share_of_a_disk_that_is_not_seen_is_no_amount() {
    let mut view = view();
    let threshold = Threshold {
        signal: Signal::ImageFsAvailable,
        value: "15%".parse().unwrap(),
        grace_period: Duration::ZERO,
        min_reclaim: None,
    };
    view.signals.push(SignalJson::new(&threshold, None, None));
    let lines = lines(&drawn(&view, &mut state(true)));
    let line = lines.iter().find(|line| line.starts_with("imagefs"));
    let line = line.unwrap();
    assert!(
        line.contains("not seen here") && line.contains(" 15% "),
        "{line}"
    );
}

#[test]
fn keys_change_the_signal_and_the_order() {
    let (view, mut state) = (view(), state(true));
    assert_eq!(order(&drawn(&view, &mut state)), ["hog", "spared", "calm"]);
    let mut orders = Vec::new();
    for _ in 0..5 {
        state.press(KeyCode::Char('s'), &view);
        orders.push(order(&drawn(&view, &mut state)));
    }
    assert_eq!(
        orders,
        [
            ["calm", "hog", "spared"],
            ["spared", "calm", "hog"],
            ["calm", "hog", "spared"],
            ["calm", "hog", "spared"],
            ["hog", "spared", "calm"],
        ]
    );
    assert_eq!(state.signal(&view.signals), Some(Signal::MemoryAvailable));
    state.press(KeyCode::Tab, &view);
    assert_eq!(state.signal(&view.signals), Some(Signal::NodeFsAvailable));
    state.press(KeyCode::Tab, &view);
    assert_eq!(state.signal(&view.signals), Some(Signal::MemoryAvailable));
    state.press(KeyCode::BackTab, &view);
    assert_eq!(state.signal(&view.signals), Some(Signal::NodeFsAvailable));
    for _ in 0..9 {
        state.press(KeyCode::Down, &view);
    }
    assert_eq!(
        order(&drawn(&view, &mut state)),
        ["calm"],
        "the last one stays"
    );
    state.press(KeyCode::Home, &view);
    assert_eq!(order(&drawn(&view, &mut state)).len(), 3);
}

#[test]
fn of_a_disk_no_usage_is_claimed() {
    let mut view = view();
    view.signal = Signal::NodeFsAvailable;
    let lines = lines(&drawn(&view, &mut state(true)));
    let heading = "Pods for nodefs.available, without what pods use of it, by eviction";
    assert!(lines.iter().any(|line| line == heading), "{lines:#?}");
}

#[test]
fn without_colours_there_are_none() {
    let has_colour = |buffer: &Buffer| buffer.content.iter().any(|c| c.fg != Color::Reset);
    assert!(has_colour(&drawn(&view(), &mut state(true))));
    assert!(!has_colour(&drawn(&view(), &mut state(false))));
    let of = |pairs: &'static [(&str, &str)]| {
        has_colours(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    assert!(of(&[("TERM", "xterm")]) && of(&[("TERM", "xterm"), ("NO_COLOR", "")]));
    assert!(!of(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
    assert!(!of(&[("TERM", "vt220")]) && !of(&[("TERM", "xterm-mono")]));
}

#[test]
fn no_terminal_is_too_small_and_nothing_is_too_little() {
    let nothing = View {
        signals: Vec::new(),
        pods: Vec::new(),
        pressure: Vec::new(),
        past: Vec::new(),
        ..view()
    };
    for view in [&view(), &nothing] {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut state = state(true);
            terminal
                .draw(|frame| draw(frame, view, &mut state))
                .unwrap();
        }
    }
    let lines = lines(&drawn(&nothing, &mut state(true)));
    assert!(
        lines.iter().any(|line| line == "PSI: unavailable"),
        "{lines:#?}"
    );
    assert!(
        lines.iter().any(|line| line == "none in the journal"),
        "{lines:#?}"
    );
}
