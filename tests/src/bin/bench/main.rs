//! `cargo xtask bench`: evictd side by side with what a user would pick instead, in one run on one machine.

mod bare;
mod calm;
mod columns;
mod contender;
mod heat;
mod judge;
mod load;
mod neighbour;
mod node;
mod observer;
mod own;
mod process;
mod report;
mod rest;
mod scope;
mod stats;
mod storm;
mod svg;
mod table;
mod trace;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use contender::Contender;
use evictd_engine::model::quantity::Quantity;
use scope::Programme;

use evictd_tests::prelude::*;

/// Measures evictd against other daemons and against the machine's own limits.
#[derive(Parser)]
#[command(name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// Fewer contenders' courses and runs: under two minutes
    #[arg(long)]
    quick: bool,
    /// Which races; without it all that this machine can run
    #[arg(long, value_enum)]
    race: Vec<RaceName>,
    /// How often each contender runs each course
    #[arg(long)]
    runs: Option<u32>,
    /// Only these contenders (see the table of a run for names)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The hog's ways: touch, populate, thp, tmpfs, threads, processes, cache
    #[arg(long, value_delimiter = ',', value_parser = WAYS, hide_possible_values = true)]
    ways: Vec<String>,
    /// MiB per second for `--ways touch`, 0 for full speed; other ways run at full speed
    #[arg(long, value_delimiter = ',')]
    rates: Vec<u64>,
    /// Memory of the node that is played
    #[arg(long, default_value = "512Mi")]
    size: Quantity,
    /// evictionHard[memory.available]
    #[arg(long, default_value = "100Mi")]
    threshold: Quantity,
    /// Pods beside the cast of six, which use nothing: what ranking many costs
    #[arg(long, default_value_t = 0)]
    crowd: u32,
    /// How many minutes `--race storm` stays near a threshold
    #[arg(long, default_value_t = 2)]
    near: u64,
    /// Folder for the report
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Prints what is to be run in a guest, and whether anything is to be run here; does nothing else
    #[arg(long, hide = true)]
    plan: bool,
    /// What came of the node race in the guest
    #[arg(long, hide = true)]
    node_outcome: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RaceName {
    /// A virtual machine with an OOM killer of its own, and the daemons that Debian has
    Node,
    /// A cgroup plays the node
    Scope,
    /// The same with both CPUs saturated, and with the daemon's own memory under pressure
    Busy,
    /// Nothing happens: CPU and memory of each daemon
    Rest,
    /// Cgroups and processes come and go on a node of 500 pods, and a node stays near its threshold: CPU of the agent. Only when it
    /// is asked for
    Storm,
}

/// What a process of the race itself does.
#[derive(Subcommand)]
enum Part {
    /// A competitor
    #[command(hide = true)]
    Compete {
        #[command(subcommand)]
        way: judge::Way,
    },
    /// The innocent neighbour
    #[command(hide = true)]
    Neighbour {
        /// `cgroup.procs` to enter
        procs: PathBuf,
    },
    /// One heat of the node race
    #[command(hide = true)]
    NodeHeat(node::Task),
    /// What keeps a CPU busy
    #[command(hide = true)]
    Load {
        /// How
        kind: load::Kind,
    },
}

const WAYS: [&str; 7] = [
    "touch",
    "populate",
    "thp",
    "tmpfs",
    "threads",
    "processes",
    "cache",
];
const RATES: [u64; 6] = [20, 50, 100, 200, 500, 0];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.part {
        Some(Part::Compete { way }) => judge::run(way),
        Some(Part::Neighbour { procs }) => neighbour::live(procs),
        Some(Part::Load { kind }) => load::work(*kind),
        Some(Part::NodeHeat(task)) => node::run(task),
        None if arguments.plan => plan(&arguments),
        None => bench(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether a race is to be run. The node race takes too long for `--quick`.
fn wants(arguments: &Arguments, race: RaceName) -> bool {
    let all = arguments.race.is_empty();
    arguments.race.contains(&race) || all && !(arguments.quick && race == RaceName::Node)
}

fn plan(arguments: &Arguments) -> Result<()> {
    let in_guest = match wants(arguments, RaceName::Node) {
        true => node_programme(arguments)?.jobs(),
        false => Vec::new(),
    };
    let here = [RaceName::Scope, RaceName::Busy, RaceName::Rest];
    let on_host = here.into_iter().any(|race| wants(arguments, race))
        || arguments.race.contains(&RaceName::Storm);
    let plan = serde_json::json!({ "in_guest": in_guest, "on_host": on_host });
    println!("{plan}");
    Ok(())
}

fn bench(arguments: &Arguments) -> Result<()> {
    evictd_tests::interrupt::catch();
    if let Some(why) = evictd_tests::skip::not_root() {
        bail!("{why}: cgroups are made and processes killed");
    }
    let mut programme = programme(arguments)?;
    let mut report = report::Report::begin();
    let all = arguments.race.is_empty();
    if let Some(file) = &arguments.node_outcome {
        let race = node::race::read(file, &node_programme(arguments)?)?;
        print!("{}", node::table::draw(&race));
        report.node = Some(race);
    } else if arguments.race.contains(&RaceName::Node) {
        let why = "--race node: only cargo xtask bench can run it, in a guest";
        bail!(why);
    }
    if wants(arguments, RaceName::Scope) {
        let race = scope::run(&programme)?;
        print!("{}", table::draw(&race));
        report.scope = Some(race);
    }
    let busy = !arguments.quick && all || arguments.race.contains(&RaceName::Busy);
    for load in [load::Kind::Faults, load::Kind::Io, load::Kind::Reader] {
        if busy {
            programme.load = Some(load);
            let race = scope::run(&programme)?;
            print!("{}", table::draw(&race));
            report.busy.push(race);
        }
    }
    if wants(arguments, RaceName::Rest) {
        let seconds = if arguments.quick { 4 } else { 20 };
        let time = Duration::from_secs(seconds);
        let contenders = match arguments.quick {
            true => &[],
            false => programme.contenders.as_slice(),
        };
        report.rest = rest::run(contenders, time)?;
        print!("{}", table::rest(&report.rest));
    }
    if arguments.race.contains(&RaceName::Storm) {
        let seconds = if arguments.quick { 4 } else { 20 };
        let near = Duration::from_secs(arguments.near * 60).max(Duration::from_secs(seconds));
        let found = storm::run(Duration::from_secs(seconds), near)?;
        print!("{}", storm::draw(&found));
        report.storm = Some(found);
    }
    report.write(&arguments.out, &programme)
}

fn programme(arguments: &Arguments) -> Result<Programme> {
    let bytes = |q: &Quantity| u64::try_from(q.value());
    let (size, threshold) = (bytes(&arguments.size)?, bytes(&arguments.threshold)?);
    if size < 128 << 20 || threshold * 3 > size {
        bail!("--size must be at least 128Mi, and --threshold at most a third of it");
    }
    let wanted = wanted(arguments)?;
    let contenders = Contender::ALL.into_iter().filter(|c| wanted(&c.name()));
    Ok(Programme {
        contenders: contenders.collect(),
        courses: courses(arguments),
        runs: arguments
            .runs
            .unwrap_or(if arguments.quick { 2 } else { 10 }),
        size,
        threshold,
        crowd: arguments.crowd,
        load: None,
        is_quick: arguments.quick,
    })
}

fn node_programme(arguments: &Arguments) -> Result<node::Programme> {
    let wanted = wanted(arguments)?;
    let rivals = node::Rival::value_variants()
        .iter()
        .filter(|r| wanted(&r.name()));
    Ok(node::Programme {
        rivals: rivals.copied().collect(),
        courses: courses(arguments),
        runs: arguments.runs.unwrap_or(1),
        threshold: u64::try_from(arguments.threshold.value())?,
    })
}

/// The contenders: `--only evictd` is evictd on every hook.
fn wanted(arguments: &Arguments) -> Result<impl Fn(&str) -> bool> {
    let is_meant =
        |only: &str, name: &str| only == name || only == "evictd" && name.starts_with("evictd-");
    let mut names: Vec<String> = Contender::ALL.iter().map(|c| c.name()).collect();
    names.extend(node::Rival::value_variants().iter().map(|r| r.name()));
    names.dedup();
    for only in &arguments.only {
        if !names.iter().any(|name| is_meant(only, name)) {
            let names = names.join(", ");
            bail!("--only: {only}: is none of {names}");
        }
    }
    let only = arguments.only.clone();
    Ok(move |name: &str| only.is_empty() || only.iter().any(|only| is_meant(only, name)))
}

fn courses(arguments: &Arguments) -> Vec<(String, u64)> {
    let or = |given: &[u64], quick: &[u64], full: &[u64]| match (given, arguments.quick) {
        ([], true) => quick.to_vec(),
        ([], false) => full.to_vec(),
        (given, _) => given.to_vec(),
    };
    let rates = or(&arguments.rates, &[100, 0], &RATES);
    let ways: Vec<String> = match (arguments.ways.as_slice(), arguments.quick) {
        ([], true) => vec!["touch".to_owned()],
        ([], false) => WAYS.map(str::to_owned).to_vec(),
        (given, _) => given.to_vec(),
    };
    let courses = ways.iter().flat_map(|way| match way.as_str() {
        "touch" => rates.iter().map(|rate| (way.clone(), *rate)).collect(),
        _ => vec![(way.clone(), 0)],
    });
    courses.collect()
}
