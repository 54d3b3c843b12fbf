//! The competitors' own process: the way each learns of the pressure is its own; the decision and the kill are
//! evictd's, on fresh values, which is better than what they replace.

use std::os::fd::{AsFd as _, AsRawFd as _};

use clap::{Args, Subcommand};
use evictd_config::{DEFAULT_STATE_DIR, pod_manifest};
use evictd_engine::{Among, Resource, SelectionCriteria, model::settings::RankingStrategy, select};
use evictd_node::{
    memory_scope::Scope,
    pods::table::{PodEntry, PodTable},
};
use evictd_sys::page::page_size;
use evictd_tests::{cpus, prelude::*};
use nix::{
    sys::{
        eventfd::{EfdFlags, EventFd},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::heat::scope;

/// What every competitor is told.
#[derive(Args)]
pub struct Task {
    /// The cgroup that plays the node
    scope: PathBuf,
    /// The manifest of its pods
    manifest: PathBuf,
    /// Bytes that must be available
    threshold: u64,
}

/// How a competitor learns of the pressure.
#[derive(Subcommand)]
pub enum Way {
    /// Looks at fixed intervals, as the kubelet does
    Poll {
        #[command(flatten)]
        task: Task,
        /// Milliseconds
        interval: u64,
        /// Milliseconds until the first look
        phase: u64,
    },
    /// Waits for cgroup v1's usage notification, as the kubelet's notifier does
    Notified {
        #[command(flatten)]
        task: Task,
    },
    /// Reads the counter without end on a CPU of its own and kills a process that it knows already
    Spin {
        #[command(flatten)]
        task: Task,
        /// The process to kill
        victim: i32,
    },
}

/// What a competitor says once it has killed; nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// It saw that the threshold was met.
    pub woken: u64,
    /// It had a victim.
    pub decided: u64,
    /// The signals were sent.
    pub signalled: u64,
}

/// Runs until it has killed, says so, and waits for its own end.
pub fn run(way: &Way) -> Result<()> {
    let status = match way {
        Way::Poll {
            task,
            interval,
            phase,
        } => poll(&mut Judge::new(task)?, *interval, *phase)?,
        Way::Notified { task } => notified(&mut Judge::new(task)?)?,
        Way::Spin { task, victim } => spin(&Judge::new(task)?, *victim)?,
    };
    println!("{}", serde_json::to_string(&status)?);
    loop {
        std::thread::park();
    }
}

fn poll(judge: &mut Judge, interval: u64, phase: u64) -> Result<Verdict> {
    println!("ready");
    std::thread::sleep(Duration::from_millis(phase));
    loop {
        if let Some(status) = judge.look()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(interval));
    }
}

fn notified(judge: &mut Judge) -> Result<Verdict> {
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
    let usage = File::open(judge.scope.cgroup().path().join("memory.usage_in_bytes"))?;
    let mut registered = judge.register(&usage, &event)?;
    println!("ready");
    loop {
        event.read()?;
        if let Some(status) = judge.look()? {
            return Ok(status);
        }
        // The ground has moved: another threshold is added at the new place.
        let limit = judge.limit()?;
        if limit != registered {
            registered = judge.register(&usage, &event)?;
        }
    }
}

fn spin(judge: &Judge, victim: i32) -> Result<Verdict> {
    let last = std::thread::available_parallelism()?.get() - 1;
    cpus::tie(0, &[last])?;
    // SAFETY: plain integers. Not SCHED_FIFO: the kernel takes a CPU away from a real-time thread that never sleeps.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } != 0 {
        bail!(io::Error::last_os_error());
    }
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    let limit = judge.limit()?;
    loop {
        if judge.scope.cgroup().usage()? >= limit {
            let woken = monotonic_ns();
            kill(Pid::from_raw(victim), Signal::SIGKILL)?;
            return Ok(Verdict {
                woken,
                decided: woken,
                signalled: monotonic_ns(),
            });
        }
    }
}

struct Judge {
    scope: Scope,
    table: Box<PodTable>,
    threshold: u64,
}

impl Judge {
    fn new(task: &Task) -> Result<Self> {
        let state_dir = Path::new(DEFAULT_STATE_DIR);
        let pods = pod_manifest::load(&task.manifest, &task.scope, state_dir)?;
        let entries: Result<Vec<_>, _> = pods
            .iter()
            .map(|p| PodEntry::open(p.pod.clone(), &p.cgroup, Mode::Evictd).map(Arc::new))
            .collect();
        Ok(Self {
            scope: scope(&task.scope, task.threshold)?,
            table: Box::new(PodTable::new(entries?)),
            threshold: task.threshold,
        })
    }

    fn limit(&self) -> Result<u64> {
        let look = self.scope.sample()?;
        Ok(self
            .scope
            .usage_limit(self.threshold, look.reclaimable_cache))
    }

    fn register(&self, usage: &File, event: &EventFd) -> Result<u64> {
        let limit = self.limit()?;
        let control = self.scope.cgroup().path().join("cgroup.event_control");
        // The kernel compares with >; one page less makes it "at the limit".
        let threshold = limit - page_size();
        let [event, usage] = [event.as_fd(), usage.as_fd()].map(|fd| fd.as_raw_fd());
        fs::write(control, format!("{event} {usage} {threshold}"))?;
        Ok(limit)
    }

    /// One round: nothing while the threshold is not met.
    fn look(&mut self) -> Result<Option<Verdict>> {
        let look = self.scope.sample()?;
        if look.guarded_available >= self.threshold {
            return Ok(None);
        }
        let woken = monotonic_ns();
        let PodTable {
            entries,
            candidates,
            ..
        } = &mut *self.table;
        for (entry, candidate) in entries.iter().zip(candidates.iter_mut()) {
            candidate.is_exact = false;
            candidate.state = entry.read_usage(candidate);
        }
        let rules = SelectionCriteria {
            strategy: RankingStrategy::Kubelet,
            resource: Resource::Memory,
            system_over_reserved: false,
        };
        let exact = |i: usize| entries.get(i)?.memory.read().map(|r| r.working_set()).ok();
        let chosen = select(candidates, rules, Among::All, exact);
        let Some(entry) = chosen.and_then(|at| entries.get(at)) else {
            return Ok(None);
        };
        let decided = monotonic_ns();
        entry.killer.kill()?;
        Ok(Some(Verdict {
            woken,
            decided,
            signalled: monotonic_ns(),
        }))
    }
}
