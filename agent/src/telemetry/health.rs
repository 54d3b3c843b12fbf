//! Whether the agent lives: its loops note each cycle, and a thread of its own answers the kubelet's probes.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use evictd_sys::clock::monotonic_ns;

use super::{
    error::ServeError,
    http::{self, Answer, Limits, Request},
    listen::listen,
};

/// Probes take no time, and the kubelet is one client.
const LIMITS: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(1),
    answer: Duration::from_secs(1),
};

/// The time of a loop's last cycle, in nanoseconds of CLOCK_MONOTONIC.
pub type LastCycle = Box<dyn Fn() -> u64 + Send + Sync>;

/// A loop that decides, and how long it may be silent.
pub struct Heartbeat {
    /// Name of the loop.
    pub name: &'static str,
    /// Time without a cycle after which the loop hangs.
    pub limit: Duration,
    /// Whether an agent in which it hangs should be started anew. Otherwise the agent is not ready.
    pub counts_for_liveness: bool,
    /// Time of the loop's last cycle; 0: none yet.
    pub last: LastCycle,
}

/// Whether the agent lives, and whether it is ready.
pub struct Health {
    /// Time at which the start began, in nanoseconds of CLOCK_MONOTONIC.
    began: u64,
    /// Set when the start is complete, with that moment.
    heartbeats: OnceLock<(u64, Vec<Heartbeat>)>,
    ends: AtomicBool,
    /// The async loop's last cycle; it is judged with the others.
    agent: AtomicU64,
}

/// The longest time that a start may take: it waits for programs to load and for the API server.
const START: Duration = Duration::from_secs(600);
/// The name of the manager's [`Heartbeat`].
pub const MANAGER: &str = "manager";
/// The fast path looks at least once a second.
pub const FAST_PATH_LIMIT: Duration = Duration::from_secs(10);
/// The manager reads cgroups and procfs, which may be slow.
pub const MANAGER_LIMIT: Duration = Duration::from_secs(30);
/// The async loop routes events at normal priority, which full CPUs may delay; the journal has a thread of its own.
const ASYNC_LOOP_LIMIT: Duration = Duration::from_secs(30);

impl Default for Health {
    fn default() -> Self {
        Self {
            began: monotonic_ns(),
            heartbeats: OnceLock::new(),
            ends: AtomicBool::new(false),
            agent: AtomicU64::new(0),
        }
    }
}

impl Health {
    /// The start is complete; these loops are judged from now on, and the async loop.
    pub fn started(&self, heartbeats: Vec<Heartbeat>) {
        // A second start does not happen.
        let _ = self.heartbeats.set((monotonic_ns(), heartbeats));
    }

    /// The agent takes down what it has built: it is not ready any more.
    pub fn ends(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// The async loop has run a cycle.
    pub fn heartbeat(&self) {
        self.agent.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Whether all loops live that count for it; the error names those that do not.
    ///
    /// # Errors
    /// Why the agent should be started anew.
    fn liveness(&self) -> Result<(), String> {
        self.judge(|heartbeat| heartbeat.counts_for_liveness)
    }

    /// Whether a loop has run no cycle for longer than its limit, as `/readyz` judges it once the start is complete.
    pub fn is_late(&self, name: &str) -> bool {
        self.heartbeats.get().is_some() && self.judge(|heartbeat| heartbeat.name == name).is_err()
    }

    fn judge(&self, which: impl Fn(&LoopState) -> bool) -> Result<(), String> {
        let now = monotonic_ns();
        match self.heartbeats.get() {
            None => judge([("start", START, self.began)], now),
            Some((started, heartbeats)) => {
                let judged = self.beats(heartbeats).filter(which);
                // A loop has all of its time for the first cycle.
                judge(judged.map(|b| (b.name, b.limit, b.last.max(*started))), now)
            }
        }
    }

    /// Whether the agent watches: the start is complete, its triggers are armed, and each loop has run a cycle.
    ///
    /// # Errors
    /// What is missing.
    fn readiness(&self) -> Result<(), String> {
        if self.ends.load(Ordering::Relaxed) {
            return Err("the agent ends".to_owned());
        }
        let Some((_, heartbeats)) = self.heartbeats.get() else {
            return Err("the start is not complete".to_owned());
        };
        if let Some(heartbeat) = self.beats(heartbeats).find(|heartbeat| heartbeat.last == 0) {
            return Err(format!("the {} has not run yet", heartbeat.name));
        }
        self.judge(|_| true)
    }

    /// All loops.
    fn beats(&self, heartbeats: &[Heartbeat]) -> impl Iterator<Item = LoopState> {
        let own = LoopState {
            name: "async loop",
            limit: ASYNC_LOOP_LIMIT,
            counts_for_liveness: true,
            last: self.agent.load(Ordering::Relaxed),
        };
        let others = heartbeats.iter().map(|h| LoopState {
            name: h.name,
            limit: h.limit,
            counts_for_liveness: h.counts_for_liveness,
            last: (h.last)(),
        });
        others.chain([own])
    }
}

/// A loop at a moment, as [`Heartbeat`].
struct LoopState {
    name: &'static str,
    limit: Duration,
    counts_for_liveness: bool,
    last: u64,
}

/// Loops by name, limit and last cycle, as of a moment.
///
/// # Errors
/// Each loop that has run no cycle for longer than its limit.
fn judge(
    loops: impl IntoIterator<Item = (&'static str, Duration, u64)>,
    now: u64,
) -> Result<(), String> {
    let late = loops.into_iter().filter_map(|(name, limit, last)| {
        let silent = Duration::from_nanos(now.saturating_sub(last));
        let hangs = silent > limit;
        let (seconds, limit) = (silent.as_secs(), limit.as_secs());
        hangs.then(|| format!("the {name} has not run for {seconds} s, limit {limit} s"))
    });
    let late: Vec<_> = late.collect();
    match late.is_empty() {
        true => Ok(()),
        false => Err(late.join("; ")),
    }
}

/// Answer of `/healthz`.
pub(super) fn healthz(health: &Health) -> Answer {
    answer(health.liveness())
}

fn answer(status: Result<(), String>) -> Answer {
    match status {
        Ok(()) => Answer::plain("200 OK", "ok\n"),
        Err(reason) => Answer::plain("503 Service Unavailable", reason + "\n"),
    }
}

/// Serves `/healthz`, `/livez` and `/readyz` on a thread of its own. The address that was bound.
///
/// # Errors
/// The address is in use, or is none of this machine's.
pub fn serve(address: SocketAddr, health: Arc<Health>) -> Result<SocketAddr, ServeError> {
    let failed = |e: io::Error| ServeError::new("healthAddress", address, &e);
    let listener = listen(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let probe = move |request: Request<'_>| match request.path {
        "/healthz" | "/livez" => healthz(&health),
        "/readyz" => answer(health.readiness()),
        _ => Answer::plain("404 Not Found", "/healthz or /readyz\n"),
    };
    http::spawn("health", listener, LIMITS, None, probe).map_err(failed)?;
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use evictd_engine::units::SECOND;

    use super::*;

    fn heartbeat(name: &'static str, limit: u64, last: &Arc<AtomicU64>) -> Heartbeat {
        let last = Arc::clone(last);
        Heartbeat {
            name,
            limit: Duration::from_secs(limit),
            counts_for_liveness: name != "manager",
            last: Box::new(move || last.load(Ordering::Relaxed)),
        }
    }

    #[test]
    fn each_loop_that_hangs_is_named_with_its_own_limit() {
        let now = 100 * SECOND;
        let seconds = Duration::from_secs;
        let at = |a, b| [("a", seconds(10), a), ("b", seconds(30), b)];
        assert_eq!(judge(at(90 * SECOND, 70 * SECOND), now), Ok(()));
        // Noted by another CPU a moment after the clock was read.
        assert_eq!(judge(at(now + 5, now), now), Ok(()));
        let said = |beats| judge(beats, now).unwrap_err();
        assert_eq!(
            said(at(89 * SECOND, 70 * SECOND)),
            "the a has not run for 11 s, limit 10 s"
        );
        assert_eq!(
            said(at(SECOND, 69 * SECOND)),
            "the a has not run for 99 s, limit 10 s; the b has not run for 31 s, limit 30 s"
        );
    }

    #[test]
    fn ready_is_after_the_start_alive_already_before() {
        let health = Health::default();
        assert_eq!(health.liveness(), Ok(()));
        assert_eq!(health.readiness().unwrap_err(), "the start is not complete");
        assert!(!health.is_late(MANAGER));
        let (a, b) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        health.started(vec![
            heartbeat("manager", 3600, &a),
            heartbeat("fast path", 3600, &b),
        ]);
        assert_eq!(
            health.readiness().unwrap_err(),
            "the manager has not run yet"
        );
        assert_eq!(health.liveness(), Ok(()));
        for heartbeat in [&a, &b] {
            heartbeat.store(monotonic_ns(), Ordering::Relaxed);
        }
        assert_eq!(
            health.readiness().unwrap_err(),
            "the async loop has not run yet"
        );
        health.heartbeat();
        assert_eq!(health.readiness(), Ok(()));
        health.ends();
        assert_eq!(health.readiness().unwrap_err(), "the agent ends");
        assert_eq!(health.liveness(), Ok(()));
    }

    /// Another agent would hang at the same place, and memory is watched without the manager.
    #[test]
    fn a_manager_that_hangs_makes_the_agent_unready_and_ends_it_not() {
        let health = Health::default();
        let now = Arc::new(AtomicU64::new(monotonic_ns()));
        let old = Arc::new(AtomicU64::new(1));
        health.started(vec![
            heartbeat("fast path", 3600, &now),
            heartbeat("manager", 0, &old),
        ]);
        health.heartbeat();
        let said = health.readiness().unwrap_err();
        assert!(said.starts_with("the manager has not run for "), "{said}");
        assert!(health.is_late(MANAGER) && !health.is_late("fast path"));
        assert_eq!(health.liveness(), Ok(()));
        assert_eq!(healthz(&health), Answer::plain("200 OK", "ok\n"));
    }

    #[test]
    fn a_fast_path_that_hangs_is_reported() {
        let health = Health::default();
        let old = Arc::new(AtomicU64::new(1));
        health.started(vec![heartbeat("fast path", 0, &old)]);
        let said = health.liveness().unwrap_err();
        assert!(said.starts_with("the fast path has not run for "), "{said}");
        assert_eq!(
            healthz(&health),
            Answer::plain("503 Service Unavailable", said.clone() + "\n")
        );
    }
}
