//! What one agent costs the API server, counted request by request. `docs/api-load.md` holds the result; with
//! `EVICTD_WRITE_DOCS=1` this test writes it anew.

use std::fmt::Write as _;

use evictd_kube::{
    access::{ENDPOINT_RIGHTS, FLEET_ENTRY_RIGHTS, FLEET_RIGHTS, PAUSE_RIGHTS, RIGHTS},
    policy_status::SPREAD,
    watch::WATCH_SECONDS,
};
use evictd_tests::{apiserver::State, prelude::*};

/// Evictions of the burst.
const BURST: usize = 5;
/// Watches of one agent.
const WATCHES: usize = 5;
/// What nodes tell each other of evictions, and how often one tells at most, in seconds.
const ENTRIES: &str = "evictd-fleet-evictions";
const REPORT_SECONDS: u64 = 30;
/// Nodes of the cluster that is computed.
const NODES: usize = 5_000;

const FLEET_ENTRIES: &str = "the fleet's evictions ConfigMap";

/// Requests by method and kind.
type Load = BTreeMap<String, usize>;

fn load(state: &State) -> Load {
    let mut load = Load::new();
    for r in &state.requests {
        let kind = match r.path.as_str() {
            "/api/v1/pods" if r.query.contains("watch") => "WATCH pods of the node".into(),
            "/api/v1/pods" => "LIST pods of the node".into(),
            "/api/v1/nodes" if r.query.contains("watch") => "WATCH the node's metadata".into(),
            "/api/v1/nodes" => "LIST the node's metadata".into(),
            path if path.ends_with("/configmaps") => {
                let verb = if r.query.contains("watch") {
                    "WATCH"
                } else {
                    "LIST"
                };
                let is_fleet = r.query.contains("evictd-fleet");
                let map = if is_fleet { "fleet" } else { "pause" };
                format!("{verb} the {map} ConfigMap")
            }
            path if path.ends_with(ENTRIES) => format!("{} {FLEET_ENTRIES}", r.method),
            path if path.ends_with("/evictionpolicies") && r.query.contains("watch") => {
                "WATCH evictionpolicies".into()
            }
            path if path.ends_with("/evictionpolicies") => "LIST evictionpolicies".into(),
            path if path.contains("/evictionpolicies/") => "PATCH evictionpolicies/status".into(),
            path if path.ends_with("selfsubjectaccessreviews") => {
                "POST selfsubjectaccessreviews".into()
            }
            path if path.ends_with("/events") && r.query == "dryRun=All" => {
                "POST an Event in a dry run".into()
            }
            path if path.ends_with("/events") => "POST events".into(),
            path if path.contains("/events/") => "PATCH events".into(),
            path if path.contains("/pods/") && path.ends_with("/status") => {
                "PATCH pods/status".into()
            }
            path if path.contains("/pods/") => format!("{} pods", r.method),
            path if path.contains("/nodes/") && path.ends_with("/status") => {
                "PATCH nodes/status".into()
            }
            path if path.contains("/nodes/") => format!("{} nodes", r.method),
            path => format!("{} {path}", r.method),
        };
        *load.entry(kind).or_default() += 1;
    }
    load
}

/// The node has settled: nothing was asked for half a second.
fn settle(member: &ClusterNode) -> Load {
    loop {
        let before = member.server.state().requests.len();
        std::thread::sleep(Duration::from_millis(500));
        if member.server.state().requests.len() == before {
            return load(&member.server.state());
        }
    }
}

fn forget(member: &ClusterNode) {
    member.server.state().requests.clear();
}

#[test]
fn the_load_of_one_agent_is_what_the_page_says() {
    let mut member = as_root!(ClusterNode::new("load", 512).unwrap());
    member.config["evictionPressureTransitionPeriod"] = "10s".into();
    // Each pressure has its taint: more requests than with the default.
    member.config["cluster"]["taint"] = json!({"setAfter": "0s"});
    // As the chart has it.
    member.config["cluster"]["pauseConfigMap"] = "evictd/evictd-pause".into();
    member.config["cluster"]["fleetBrake"] = json!({"configMap": "evictd/evictd-fleet"});
    for name in ["evictd-fleet", ENTRIES] {
        let mut state = member.server.state();
        state.put_config_map("evictd", name, json!({}));
    }
    member.config["cluster"]["admissionPolicies"] = true.into();
    member.server.fails("POST", "/events", 1, 403);
    let groups: Vec<_> = (0..BURST)
        .map(|i| {
            let name = format!("wild-{i}");
            member.best_effort(&name, i as u64)
        })
        .collect();
    let _agent = member.start().unwrap();
    let of_brake = FLEET_RIGHTS.len() + FLEET_ENTRY_RIGHTS.len();
    let rights = RIGHTS.len() + ENDPOINT_RIGHTS.len() + PAUSE_RIGHTS.len() + of_brake;
    let is_requested = |s: &State| s.count("POST", "reviews") == rights;
    let has_looked = |s: &State| is_requested(s) && s.count("GET", ENTRIES) == 1;
    assert!(member.server.wait(SOON, has_looked));
    let start = settle(&member);
    let watches = start.iter().filter(|(kind, _)| kind.starts_with("WATCH"));
    assert_eq!(watches.map(|(_, times)| times).sum::<usize>(), WATCHES);

    forget(&member);
    std::thread::sleep(Duration::from_secs(3));
    let rest = load(&member.server.state());
    assert_eq!(rest, Load::new(), "an agent at rest asks for nothing");

    Hog::until_killed(&groups[0], &["--mib", "2048"]);
    assert!(member.wait(SOON, |m| m.reported().len() == 1));
    assert!(member.server.wait(SOON, |s| s.count("PATCH", ENTRIES) == 1));
    let clean = |s: &State| !s.node().to_string().contains("evictd.dev/");
    assert!(member.server.wait(SOON, clean));
    let one = settle(&member);

    forget(&member);
    let begin = Instant::now();
    for (done, group) in groups.iter().enumerate().skip(1) {
        Hog::until_killed(group, &["--mib", "2048"]);
        assert!(member.wait(SOON, |m| m.reported().len() == done + 1));
    }
    assert!(member.server.wait(SOON, clean));
    let mut more = settle(&member);
    // How many of these there are depends on how long the burst takes.
    let reports = more.remove(&format!("PATCH {FLEET_ENTRIES}"));
    let reads = more.remove(&format!("GET {FLEET_ENTRIES}"));
    let most = 1 + begin.elapsed().as_secs() / REPORT_SECONDS;
    let told = |times: Option<usize>| times.unwrap_or(0) as u64 <= most;
    assert!(told(reports) && told(reads), "{reports:?} {reads:?} {most}");
    // The count of the node's Event is written after a pause: a burst that takes longer meets one.
    let counted = more.remove("PATCH events");
    assert!(counted.unwrap_or(0) <= 1, "{counted:?}");

    let page = page(&start, &one, &more);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api-load.md");
    if std::env::var_os("EVICTD_WRITE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap();
    assert_eq!(before, page, "docs/api-load.md is out of date");
}

fn total(load: &Load) -> usize {
    load.values().sum()
}

fn table(load: &Load) -> String {
    let mut text = String::from("| request | times |\n| --- | --- |\n");
    for (kind, times) in load {
        writeln!(text, "| {kind} | {times} |").unwrap();
    }
    writeln!(text, "| **all** | **{}** |", total(load)).unwrap();
    text
}

fn page(start: &Load, one: &Load, more: &Load) -> String {
    let followers = BURST - 1;
    // Condition and taint come and go once for all of them.
    let once: usize = ["GET nodes", "PATCH nodes", "PATCH nodes/status"]
        .iter()
        .filter_map(|k| more.get(*k))
        .sum();
    let each = (total(more) - once) / followers;
    format!(
        "# What evictd costs the API server\n\n\
         Counted with the scripted API server of `tests/`, every request of one agent. To count again (and to write this\n\
         page anew):\n\n\
         ```sh\n\
         EVICTD_WRITE_DOCS=1 cargo test -p evictd-tests --test kube load\n\
         ```\n\n\
         ## Start\n\n{start_table}\n\
         The lists name `resourceVersion=0`: they are answered from the API server's cache. They hold the pods of one node, one\n\
         Node, two ConfigMaps, and the policies. While a policy selects by other labels of namespaces than their name, a list and a\n\
         watch of the namespaces' metadata come on top; while a gate asks servers, a list of ServiceCIDRs and a GET of the\n\
         EndpointSlice `kubernetes`, again every ten minutes.\n\n\
         ## At rest\n\n\
         Nothing but {WATCHES} open watches (pods of the node, the Node's metadata, the ConfigMap that pauses all agents, the one\n\
         with the fleet's pace, policies). Each ends after {shortest} to {longest} s, at random, and is opened again where it stopped,\n\
         without a list: what an API server's restart has opened at once does not end at once.\n\n\
         ## A policy changes\n\n\
         Every agent hears of it in its watch. One of them writes the status: each waits for a random time of up to {SPREAD} s, and\n\
         an agent that finds it right already writes nothing. With 5000 agents and 0.1 s from a write to the watch of every agent\n\
         about 50 try, and all but the first get a 409.\n\n\
         ## The first eviction\n\n{one_table}\n\
         This includes condition and taint, which come with the pressure and go after the transition period, and the node's entry for\n\
         the fleet brake: read from the API server's cache and then written, unless enough other nodes have written theirs; at most every\n\
         {REPORT_SECONDS} s, however many evictions there are.\n\n\
         ## {followers} more evictions within one pressure\n\n{more_table}\n\
         That is {each} requests for each eviction (condition, DELETE, Event); the node's own Event is counted up in place, at\n\
         most every 30 s, and condition and taint are written once for all of them. The fleet brake's two come on top, every\n\
         {REPORT_SECONDS} s at most.\n\n\
         ## {NODES} nodes\n\n\
         | what | requests | per second |\n| --- | --- | --- |\n\
         | all agents at rest | {all_watches} watches, each opened again every {shortest} to {longest} s | {rest:.1} |\n\
         | a rolling update over 30 minutes | {all_starts} | {update:.1} |\n\
         | all agents at once after an outage of the API server | {lists} watches or lists, spread by a backoff with jitter between 0.8 s and 60 s | {outage:.0} |\n\
         | one node in a hundred evicts a pod every minute | {evicting} every minute | {evictions:.1} |\n\n\
         A watch that was cut goes on from its last bookmark; only where the server has forgotten that version a list follows.\n",
        start_table = table(start),
        one_table = table(one),
        more_table = table(more),
        all_watches = NODES * WATCHES,
        SPREAD = SPREAD.as_secs(),
        shortest = WATCH_SECONDS.start(),
        longest = WATCH_SECONDS.end(),
        rest =
            (NODES * WATCHES * 2) as f64 / f64::from(WATCH_SECONDS.start() + WATCH_SECONDS.end()),
        all_starts = NODES * total(start),
        update = (NODES * total(start)) as f64 / 1800.0,
        lists = NODES * WATCHES,
        outage = (NODES * WATCHES) as f64 / 30.0,
        evicting = NODES / 100 * total(one),
        evictions = (NODES / 100 * total(one)) as f64 / 60.0,
    )
}
