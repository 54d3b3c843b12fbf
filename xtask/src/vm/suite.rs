//! Chooses the kernels and the tests, runs each on each, and gathers what came out.

use super::{
    MachineOptions,
    boots::Run,
    build::{self, Test},
    cache,
    kernels::{self, KERNELS, Kernel},
    logs, matrix_entry,
    outcome::Outcome,
    programs,
    qemu::Cgroup,
    table::Summary,
};
use crate::{parallel::in_parallel, prelude::*};

/// Choice of what to test, and where.
#[derive(clap::Parser, Debug, Clone)]
pub struct Options {
    /// Kernels of the matrix; all when none is named
    pub kernels: Vec<String>,
    #[command(flatten)]
    pub machine: MachineOptions,
    /// Only tests whose name (`binary::test`) contains this
    #[arg(long)]
    pub filter: Option<String>,
    /// Only the test of exactly this name, with or without its binary and file
    #[arg(long, value_name = "TEST")]
    pub exact: Option<String>,
    /// Seconds until a test is killed
    #[arg(long, default_value_t = 180)]
    pub timeout: u64,
    /// Seconds for all tests of one kernel and cgroup version; what has not run by then is skipped
    #[arg(long, value_name = "SECONDS")]
    pub within: Option<u64>,
    /// Machines that are up at a time; each keeps one processor busy, however many it has inside
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Show the tests' output while they run
    #[arg(long, short)]
    pub verbose: bool,
}

impl Options {
    fn wants(&self, test: &Test) -> bool {
        let id = test.id();
        self.filter.as_ref().is_none_or(|part| id.contains(part))
            && self
                .exact
                .as_ref()
                .is_none_or(|name| *name == id || *name == test.function())
    }
}

/// A machine to test on: a kernel of the matrix, and the cgroup version inside.
pub type OnMachine = (&'static str, Cgroup);

/// Where machines are up at the same time, so many of them share the tests of one: none runs on by itself for long.
const PARTS: usize = 2;

/// Runs the tests on the machines that the options name.
pub fn test(options: &Options) -> Result<Summary> {
    let mut wanted = Vec::new();
    for name in &options.kernels {
        wanted.push(matrix_entry(name)?.0);
    }
    if wanted.is_empty() {
        wanted.extend(KERNELS.map(|(name, _)| name));
    }
    let cgroups = options
        .machine
        .cgroup
        .map_or_else(|| vec![Cgroup::V2, Cgroup::V1], |only| vec![only]);
    let machines: Vec<OnMachine> = wanted
        .into_iter()
        .flat_map(|name| cgroups.iter().map(move |cgroup| (name, *cgroup)))
        .collect();
    test_on(&machines, options)
}

/// Runs the tests on these machines instead, prints one table, and returns what came out. A kernel that cannot be had is a
/// skipped row.
pub fn test_on(machines: &[OnMachine], options: &Options) -> Result<Summary> {
    let mut summary = Summary::default();
    let unavailable = if cfg!(target_arch = "x86_64") {
        programs::ensure().err().map(|reason| format!("{reason:#}"))
    } else {
        Some(
            "the kernels of the matrix are for x86_64, and so must be the programs built here"
                .to_owned(),
        )
    };
    if let Some(reason) = unavailable {
        summary.add_machine("all", "any", Outcome::Skipped(reason));
        summary.print();
        return Ok(summary);
    }
    let mut built = build::build()?;
    let tests: Vec<Test> = build::list(&built)?
        .into_iter()
        .filter(|test| options.wants(test))
        .collect();
    ensure!(
        !tests.is_empty(),
        "no test matches --exact {:?} --filter {:?}",
        options.exact,
        options.filter
    );
    // The others would take the guest's memory and the time to unpack them.
    let used = |binary: &str| tests.iter().any(|test| test.binary == binary);
    built.tests.retain(|(binary, _)| used(binary));
    let mut kernels = Vec::new();
    for (name, cgroup) in machines {
        let found = available(name, *cgroup);
        match found.unwrap_or_else(|error| Err(format!("{error:#}"))) {
            Ok(kernel) => kernels.push((kernel, *cgroup)),
            Err(why) => summary.add_machine(name, &cgroup.to_string(), Outcome::Skipped(why)),
        }
    }
    let parts = if options.jobs > 1 { PARTS } else { 1 };
    let mut runs = Vec::new();
    for (kernel, cgroup) in &kernels {
        let run = |part| Run {
            options,
            kernel,
            cgroup: *cgroup,
            part,
            built: &built,
        };
        run(0).clear()?;
        runs.extend((0..parts).map(run));
    }
    let work = |run: &Run<'_>| {
        let mut summary = Summary::default();
        let (kernel, cgroup) = (run.kernel.name, run.cgroup.to_string());
        let begin = Instant::now();
        let its: Vec<&Test> = tests.iter().skip(run.part).step_by(parts).collect();
        if let Err(error) = run.all(&its, &mut summary) {
            let outcome = Outcome::Failed(format!("{error:#}"));
            summary.add_machine(kernel, &cgroup, outcome);
        }
        let machine = format!("kernel {kernel}, cgroup {cgroup}, {} tests", its.len());
        summary.machines.push((machine, begin.elapsed()));
        summary
    };
    for came in in_parallel(&runs, options.jobs, work) {
        summary.merge(came);
    }
    summary.print();
    fs::create_dir_all(logs())?;
    fs::write(
        logs().join("results.json"),
        serde_json::to_vec_pretty(&summary)?,
    )?;
    Ok(summary)
}

/// Installs and downloads what [`test_on`] needs for these kernels; it says itself what it could not have.
pub fn prepare(kernels: &[&str]) {
    if !cfg!(target_arch = "x86_64") || programs::ensure().is_err() {
        return;
    }
    for name in kernels {
        if let Err(reason) = available(name, Cgroup::V2) {
            println!("vm: kernel {name}: {reason:#}");
        }
    }
}

/// The kernel, or why it cannot be tested with this cgroup version.
pub(super) fn available(name: &str, cgroup: Cgroup) -> Result<Result<Kernel, String>> {
    let (name, suite) = matrix_entry(name)?;
    let kernel = kernels::fetch(&cache(), name, suite)?;
    if let (Ok(kernel), Cgroup::V1) = (&kernel, cgroup)
        && let Some(lack) = kernel.lacks_v1()?
    {
        return Ok(Err(lack));
    }
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn tests_are_chosen_by_part_or_by_whole_name() {
        let test = Test {
            binary: "kernel".into(),
            name: "facts::oom::memcg".into(),
        };
        let wanted_by = |words: &str| {
            let words = format!("test {words}");
            Options::parse_from(words.split_whitespace()).wants(&test)
        };
        assert!(wanted_by(""));
        assert!(wanted_by("--filter facts::oom"));
        assert!(wanted_by("--exact oom::memcg"));
        assert!(wanted_by("--exact kernel::facts::oom::memcg"));
        assert!(!wanted_by("--exact memcg"));
        assert!(!wanted_by("--filter kernel::oom --exact oom::memcg"));
    }
}
