//! What a big and busy node costs: 500 pods, cgroups that come and go or are just there, processes that come and go, and a node
//! that stays near its threshold.

use std::collections::VecDeque;

use evictd_node::pods::builder::{PodTableBuilder, PodUpdate};
use evictd_tests::{interrupt::interrupted, prelude::*};
use serde::Serialize;

use crate::{
    columns::{self, Column},
    heat::wait,
    process::{CpuShare, Footprint},
    rest,
    stats::{quantile, sorted},
};

/// Four times what a kubelet allows by default.
const PODS: u64 = 500;
/// Cgroups that are made each second; as many are removed.
const RATE: u32 = 500;
/// Cgroups that are there at once.
const ALIVE: usize = 20;
/// Far from any threshold, in MiB.
const SIZE: u64 = 16 << 10;
/// Until what a start leaves behind is done.
const SETTLE: Duration = Duration::from_secs(8);
/// Looks of each kind that are timed.
const LOOKS: u32 = 50;

/// Cgroups of others that are just there, 100 in each of so many slices.
const SLICES: u64 = 100;
/// Processes that a fork storm makes between two looks at the clock.
const FORKS: u32 = 200;
/// Of the node that stays near its threshold, in MiB; 100 of them must stay available.
const NEAR_SIZE: u64 = 512;
/// Parts of the time near the threshold that are compared.
const PARTS: u32 = 6;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storm {
    /// What comes and goes, and where.
    pub place: &'static str,
    /// Cgroups or processes made in each second.
    pub made_per_second: f64,
    /// CPU time of the agent per elapsed time, in percent of one core.
    pub cpu_percent: f64,
}

/// How long one comparison of the cgroups with what is held open takes, in microseconds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Look {
    pub kind: &'static str,
    pub median_us: f64,
}

/// A part of the time near the threshold.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Near {
    /// CPU time of the agent per elapsed time, in percent of one core.
    pub cpu_percent: f64,
    /// Its heap and stacks at the end, in KiB.
    pub anonymous: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storms {
    pub pods: u64,
    pub seconds: f64,
    pub storms: Vec<Storm>,
    pub looks: Vec<Look>,
    /// Part after part.
    pub near: Vec<Near>,
}

enum Load<'a> {
    Rest,
    /// Cgroups come and go in these directories.
    ComeAndGo(&'a [PathBuf]),
    AreThere(&'a TestCgroup),
    /// Processes come and go in this one.
    Forks(&'a Path),
}

/// Runs each kind of storm for so long, and stays near a threshold for as long as `near` says.
pub fn run(time: Duration, near: Duration) -> Result<Storms> {
    let node = ClusterNode::new("storm", SIZE)?;
    let containers = rest::burstable_pods(&node, PODS)?;
    let pods: Vec<PathBuf> = containers
        .iter()
        .filter_map(|container| container.parent().map(PathBuf::from))
        .collect();
    let foreign = node.cgroup.child("system.slice")?;
    let agent = node.start()?;
    let loads: [(&str, Load<'_>); 5] = [
        ("nothing", Load::Rest),
        (
            "cgroups in other slices",
            Load::ComeAndGo(std::slice::from_ref(&foreign)),
        ),
        ("containers of the pods", Load::ComeAndGo(&pods)),
        ("10,000 more cgroups there", Load::AreThere(&node.cgroup)),
        ("processes in a pod", Load::Forks(&containers[0])),
    ];
    let mut storms = Vec::new();
    for (place, load) in loads {
        if let Load::AreThere(cgroup) = load {
            for slice in 0..SLICES {
                for leaf in 0..100 {
                    cgroup.child(&format!("crowd.slice/s{slice}/c{leaf}"))?;
                }
            }
        }
        wait(SETTLE)?;
        let share = CpuShare::of(agent.pid(), || match load {
            Load::Rest | Load::AreThere(_) => come_and_go(&[], 0, time),
            Load::ComeAndGo(directories) => come_and_go(directories, RATE, time),
            Load::Forks(pod) => fork(pod, time),
        })?;
        storms.push(Storm {
            place,
            made_per_second: f64::from(share.outcome) / share.seconds,
            cpu_percent: share.percent,
        });
    }
    drop(agent);
    Ok(Storms {
        pods: PODS,
        seconds: time.as_secs_f64(),
        storms,
        looks: looks(&node, &pods)?,
        near: stay_near(near)?,
    })
}

/// Starts and reaps processes in a pod as fast as the machine can; how many.
fn fork(pod: &Path, time: Duration) -> Result<u32> {
    let (mut forker, start, mut made) = (Forker::start(Some(pod))?, Instant::now(), 0);
    while start.elapsed() < time && !interrupted() {
        forker.order(&format!("storm {FORKS}"))?;
        made += FORKS;
    }
    Ok(made)
}

/// A node that stays some 20 to 60 MiB above its threshold while a pod takes and gives back 40 MiB all the time: what the agent
/// costs with its hook attached, part after part.
fn stay_near(time: Duration) -> Result<Vec<Near>> {
    let mut node = ClusterNode::new("near", NEAR_SIZE)?;
    node.config["evictionHard"] = json!({"memory.available": "100Mi"});
    let steady = node.pod("steady", 1, "Burstable", 0, Some("400Mi"))?;
    let restless = node.pod("restless", 2, "Burstable", 0, Some("400Mi"))?;
    let _steady = Hog::start(&steady, &["--mib", "350"])?;
    let _restless = Hog::start(&restless, &["--mib", "40", "--way", "churn"])?;
    wait(SETTLE)?;
    let agent = node.start()?;
    wait(SETTLE)?;
    let mut parts = Vec::new();
    for _ in 0..PARTS {
        let share = CpuShare::of(agent.pid(), || wait(time / PARTS))?;
        parts.push(Near {
            cpu_percent: share.percent,
            anonymous: Footprint::of(agent.pid())?.anonymous,
        });
    }
    ensure!(
        node.evictions().is_empty(),
        "a pod was evicted near the threshold"
    );
    Ok(parts)
}

/// Makes short-lived cgroups at a rate, in one directory after the other; how many it has made.
fn come_and_go(directories: &[PathBuf], rate: u32, time: Duration) -> Result<u32> {
    let (start, mut made, mut alive) = (Instant::now(), 0, VecDeque::new());
    while start.elapsed() < time && !interrupted() {
        let due = start.elapsed().as_secs_f64() * f64::from(rate);
        if f64::from(made) >= due || directories.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let directory = &directories[made as usize % directories.len()];
        let path = directory.join(format!("short-{made}"));
        fs::create_dir(&path)?;
        alive.push_back(path);
        made += 1;
        if alive.len() > ALIVE
            && let Some(oldest) = alive.pop_front()
        {
            fs::remove_dir(oldest)?;
        }
    }
    for path in alive {
        fs::remove_dir(path)?;
    }
    Ok(made)
}

/// Times looks at the same tree in this process.
fn looks(node: &ClusterNode, pods: &[PathBuf]) -> Result<Vec<Look>> {
    let told = |uid: &str, held: Option<&Pod>| {
        let pod = Pod {
            uid: uid.to_owned(),
            ..Pod::default()
        };
        PodUpdate::new(Some(&pod), held)
    };
    let mut joined = PodTableBuilder::new(node.cgroup.path(), Mode::Evictd);
    drop(joined.refresh(told));
    let mut found = Vec::new();
    // `None`: the whole tree; otherwise so many pods have one container more.
    for (kind, changed) in [
        ("whole tree", None),
        ("no pod changed", Some(0)),
        ("1 pod changed", Some(1)),
        ("10 pods changed", Some(10)),
    ] {
        let mut times = Vec::new();
        for n in 0..LOOKS {
            let some = pods.iter().take(changed.unwrap_or(0));
            let directories: BTreeSet<PathBuf> = some.cloned().collect();
            for directory in &directories {
                fs::create_dir(directory.join(format!("look-{changed:?}-{n}")))?;
            }
            let start = Instant::now();
            let look = match changed {
                None => joined.refresh(told),
                Some(_) => joined.follow(&directories, told),
            };
            times.push(start.elapsed().as_secs_f64() * 1e6);
            drop(look);
            for directory in &directories {
                fs::remove_dir(directory.join(format!("look-{changed:?}-{n}")))?;
            }
            drop(joined.follow(&directories, told));
        }
        let median_us = quantile(&sorted(times), 0.5).unwrap_or_default();
        found.push(Look { kind, median_us });
    }
    Ok(found)
}

/// As text.
pub fn draw(found: &Storms) -> String {
    let storms: [Column<Storm>; 3] = [
        ("what comes and goes", -26, |s| s.place.to_owned()),
        ("made per s", 14, |s| format!("{:.0}", s.made_per_second)),
        ("CPU %", 12, |s| format!("{:.2}", s.cpu_percent)),
    ];
    let looks: [Column<Look>; 2] = [
        ("one look", -26, |l| l.kind.to_owned()),
        ("median us", 14, |l| format!("{:.0}", l.median_us)),
    ];
    let near: [Column<(usize, &Near)>; 3] = [
        ("near the threshold, part", -26, |(part, _)| {
            part.to_string()
        }),
        ("heap KiB", 14, |(_, n)| n.anonymous.to_string()),
        ("CPU %", 12, |(_, n)| format!("{:.2}", n.cpu_percent)),
    ];
    let parts: Vec<_> = (1..).zip(&found.near).collect();
    format!(
        "\n{} pods, {:.0} s each\n{}\n{}\n{}",
        found.pods,
        found.seconds,
        columns::draw(&storms, &found.storms),
        columns::draw(&looks, &found.looks),
        columns::draw(&near, &parts),
    )
}
