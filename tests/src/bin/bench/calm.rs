//! What a daemon costs an innocent neighbour while no pod is killed: the node is close to its threshold, where every hook
//! is attached, and the neighbour's page faults and requests are compared with those on a node without a daemon.

use evictd_tests::prelude::*;
use serde::Serialize;

use crate::{
    contender::Contender,
    heat::{Plan, wait},
    neighbour::{Neighbour, Service},
    scope::Programme,
    stats::{quantile, sorted},
};

/// The hog stops so many seconds of this rate before the threshold: 16 MiB.
const RATE: u64 = 40;
/// Until hooks are attached and page faults of the start are over.
const SETTLE: Duration = Duration::from_millis(300);

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Beside {
    pub contender: String,
    pub runs: Vec<Service>,
    /// Medians over the runs.
    pub faults_per_second: f64,
    pub p99_us: f64,
    /// Page-fault rate with the daemon / without: 1 is no slowdown.
    pub fault_rate_ratio: Option<f64>,
    /// p99 request latency with the daemon / without: 1 is no slowdown.
    pub p99_ratio: Option<f64>,
}

/// Measures all contenders round by round, so that what else the machine does hits all alike. Which one is absent from the race is
/// absent here.
pub fn run(programme: &Programme, absent: &[(String, String)]) -> Result<Vec<Beside>> {
    let (runs, time) = match programme.is_quick {
        true => (1, Duration::from_millis(700)),
        false => (5, Duration::from_secs(2)),
    };
    let is_absent = |c: &&Contender| absent.iter().any(|(name, _)| *name == c.name());
    // A stopped agent costs what it costs unstopped.
    let contenders: Vec<&Contender> = programme
        .contenders
        .iter()
        .filter(|c| !is_absent(c) && **c != Contender::Floor)
        .collect();
    let mut found: Vec<(String, Vec<Service>)> = Vec::new();
    found.extend(contenders.iter().map(|c| (c.name(), Vec::new())));
    for _ in 0..runs {
        for (contender, (_, runs)) in contenders.iter().zip(&mut found) {
            runs.extend(beside(**contender, programme, time)?);
        }
    }
    Ok(compare(found))
}

fn beside(contender: Contender, programme: &Programme, time: Duration) -> Result<Option<Service>> {
    let plan = Plan {
        programme,
        contender,
        way: "touch",
        rate: RATE,
        phase: 0.0,
    };
    let mut stage = plan.stage("calm")?;
    let files = tempfile::tempdir()?;
    let neighbour = Neighbour::start(&stage.directory_of("api").unwrap_or_default())?;
    // Its own cgroup goes after it.
    let (_own, mut running) = plan.start(&stage, files.path())?;
    stage.start_ahead()?;
    contender.last_moment(&mut running)?;
    std::thread::sleep(SETTLE);
    let start = monotonic_ns();
    wait(time)?;
    Ok(neighbour.finish(start, monotonic_ns()))
}

fn compare(found: Vec<(String, Vec<Service>)>) -> Vec<Beside> {
    let median = |runs: &[Service], value: fn(&Service) -> f64| {
        quantile(&sorted(runs.iter().map(value)), 0.5).unwrap_or(0.0)
    };
    let mut lines: Vec<Beside> = found
        .into_iter()
        .filter(|(_, runs)| !runs.is_empty())
        .map(|(contender, runs)| Beside {
            contender,
            faults_per_second: median(&runs, |s| s.faults_per_second),
            p99_us: median(&runs, |s| s.p99_us),
            runs,
            fault_rate_ratio: None,
            p99_ratio: None,
        })
        .collect();
    let alone = lines
        .iter()
        .find(|l| l.contender == Contender::Nothing.name());
    let Some((faults, p99)) = alone.map(|l| (l.faults_per_second, l.p99_us)) else {
        return lines;
    };
    for line in &mut lines {
        let ratio = |with: f64, without: f64| (without > 0.0).then(|| with / without);
        line.fault_rate_ratio = ratio(line.faults_per_second, faults);
        line.p99_ratio = ratio(line.p99_us, p99);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(faults_per_second: f64, p99_us: f64) -> Service {
        Service {
            requests: 1000,
            p50_us: 1.0,
            p99_us,
            max_us: 1.0,
            faults_per_second,
        }
    }

    #[test]
    fn a_slowdown_is_told_against_the_node_without_a_daemon() {
        let without = vec![
            service(400.0, 10.0),
            service(100.0, 30.0),
            service(300.0, 20.0),
        ];
        let with = vec![service(150.0, 30.0)];
        let lines = compare(vec![
            ("spinner".into(), with.clone()),
            ("nothing".into(), without),
        ]);
        assert_eq!(lines[0].fault_rate_ratio, Some(0.5));
        assert_eq!(lines[0].p99_ratio, Some(1.5));
        assert_eq!(lines[1].p99_ratio, Some(1.0));
        let alone = compare(vec![
            ("spinner".into(), with),
            ("poll-10s".into(), Vec::new()),
        ]);
        assert_eq!((alone.len(), alone[0].p99_ratio), (1, None));
    }
}
